"""Answers that people typically give in chapter 06, and what the check must say to each; see test_wrong_answers.py.

Those that need TensorFlow share one worker; only a right repair starts new processes.
"""

NEEDS_TENSORFLOW = ("06-repair", "06-augment")

_CHANGES = {
    4: "keras.utils.set_random_seed(1)",
    5: "tf.config.experimental.enable_op_determinism()",
    7: "number = {name: n for n, name in enumerate(sorted(set(digits.NAMES)))}",
    9: "kept = np.random.default_rng(1).permutation(len(images))[:256]",
    11: "ink = np.bincount(np.repeat(labels, 64), weights=ink)",
}


def _changes(changed: dict | None = None, without: int = 0) -> str:
    kept = {line: text for line, text in _CHANGES.items() if line != without}
    return f"answer = {kept | (changed or {})!r}"


def _augment(*lines: str) -> str:
    body = "\n".join(f"    {line}" for line in lines)
    return f"import numpy as np\ndef answer(seed, number, image):\n{body}\n"


_MOVE = "return tf.roll(image, step, (0, 1))"

_LOGS = {"A": "neither", "B": "seeds", "C": "switch", "D": "both"}
_BINCOUNT = {
    "seed": False,
    "switch": False,
    "float64": False,
    "sorted": False,
    "int64": True,
    "axis=-1": True,
    "numpy": True,
    "one thread": True,
}

WRONG = {
    "06-repair": [
        ("only TensorFlow's seed", _changes(without=4), "tf.random.set_seed does not reach them"),
        (
            "determinism still not called",
            _changes({5: "tf.config.experimental.enable_op_determinism"}),
            "does not call it",
        ),
        (
            "the hash seed set in the script",
            _changes(
                {
                    7: "import os; os.environ['PYTHONHASHSEED'] = '0'\n"
                    "number = {name: n for n, name in enumerate(set(digits.NAMES))}"
                }
            ),
            "a set of texts has no order",
        ),
        ("the generator left unseeded", _changes(without=9), "which no global seed"),
        ("bincount left to the switch", _changes(without=11), "varies with op determinism on, too"),
        (
            "bincount in float64",
            _changes(
                {11: "ink = tf.math.bincount(np.repeat(labels, 64), weights=ink.astype('float64')).numpy()"}
            ),
            "adds float weights on several threads",
        ),
        (
            "axis=0, which is no axis",
            _changes({11: "ink = tf.math.bincount(np.repeat(labels, 64), weights=ink, axis=0).numpy()"}),
            "adds float weights on several threads",
        ),
        (
            "axis=-1 without a row",
            _changes({11: "ink = tf.math.bincount(np.repeat(labels, 64), weights=ink, axis=-1).numpy()"}),
            "adds float weights on several threads",
        ),
        ("a line that breaks", _changes({4: "keras.set_random_seed(1)"}), "AttributeError in line 4"),
        ("no such line", _changes({40: "pass"}), "There is no line 40"),
        ("no dict", 'answer = "line 4"', "Give a dict"),
        ("nothing changed", "answer = {}", "Nothing turns op determinism on"),
        ("a constant in place of the fingerprint", _changes({19: "print(1)"}), "no longer prints"),
        ("numbers as texts", 'answer = {"4": "keras.utils.set_random_seed(1)"}', "without quotes"),
    ],
    "06-augment": [
        (
            "tf.random with the seed of an op",
            _augment("step = tf.random.uniform((2,), -1, 2, tf.int32, seed=seed)", _MOVE),
            "whoever comes first",
        ),
        (
            "one seed for all images",
            _augment("step = tf.random.stateless_uniform((2,), (seed, 0), -1, 2, tf.int32)", _MOVE),
            "let the number of the image into the seed",
        ),
        (
            "NumPy, which draws when it is traced",
            _augment("step = np.random.default_rng(seed).integers(-1, 2, 2)", _MOVE),
            "when the function is traced",
        ),
        (
            "no seed",
            _augment("step = tf.random.stateless_uniform((2,), (number, number), -1, 2, tf.int32)", _MOVE),
            "every epoch would be alike",
        ),
        (
            "the upper end left out",
            _augment("step = tf.random.stateless_uniform((2,), (seed, number), -1, 1, tf.int32)", _MOVE),
            "maxval=2",
        ),
        (
            "one step for both directions",
            _augment(
                "step = tf.random.stateless_uniform((), (seed, number), -1, 2, tf.int32)",
                "return tf.roll(image, (step, step), (0, 1))",
            ),
            "two steps to draw",
        ),
        (
            "a TensorFlow generator made in the map",
            _augment("step = tf.random.Generator.from_seed(seed).uniform((2,), -1, 2, tf.int32)", _MOVE),
            "raised ValueError",
        ),
        ("nothing returned", _augment("step = (0, 1)", "tf.roll(image, step, (0, 1))"), "returns nothing"),
        (
            "noise instead of a step",
            _augment("return image + tf.random.stateless_uniform((8, 8), (seed, number), 0, 2, tf.int32)"),
            "no longer itself",
        ),
        (
            "no random number at all",
            _augment(
                "step = tf.stack([(number + seed) % 3 - 1, (number // 3 + seed) % 3 - 1])",
                "return tf.roll(image, tf.cast(step, tf.int32), (0, 1))",
            ),
            "they are not random",
        ),
        (
            "the sum of seed and number",
            _augment("step = tf.random.stateless_uniform((2,), (seed + number, 0), -1, 2, tf.int32)", _MOVE),
            "a copy of the other",
        ),
        (
            "floats",
            _augment("step = tf.random.stateless_uniform((2,), (seed, number), -1, 2)", _MOVE),
            "raised TypeError in line 3: ",
        ),
        ("no function", "answer = 3", "Give the check a function"),
    ],
    "06-which": [
        ("A: seeds do not help", f"answer = {_LOGS | {'A': 'seeds'}!r}", "NumPy's draw would be the same"),
        ("B: the switch is on", f"answer = {_LOGS | {'B': 'both'}!r}", "crop_and_resize"),
        ("C: both, since it raises", f"answer = {_LOGS | {'C': 'both'}!r}", "asks for a seed"),
        ("D: seeds are enough", f"answer = {_LOGS | {'D': 'seeds'}!r}", "as in log B"),
        ("another word", f"answer = {_LOGS | {'A': 'none'}!r}", "is none of"),
        ("a word for all", 'answer = "both"', "Give a dict"),
    ],
    "06-bincount": [
        ("a seed", f"answer = {_BINCOUNT | {'seed': True}!r}", "No random number"),
        ("the switch", f"answer = {_BINCOUNT | {'switch': True}!r}", "does not ask whether"),
        ("float64", f"answer = {_BINCOUNT | {'float64': True}!r}", "rounds less and still rounds"),
        ("sorting", f"answer = {_BINCOUNT | {'sorted': True}!r}", "left to chance"),
        ("integers race, too", f"answer = {_BINCOUNT | {'int64': False, 'numpy': False}!r}", "add exactly"),
        ("a word", f"answer = {_BINCOUNT | {'seed': 'no'}!r}", "neither True nor False"),
        ("one name", 'answer = "int64"', "Give a dict"),
    ],
}

RIGHT = {
    "06-repair": [
        # Keras's seeds start from Python's; and whole numbers add exactly.
        _changes(
            {
                4: "import random; random.seed(1); tf.random.set_seed(1)",
                11: "ink = tf.math.bincount(np.repeat(labels, 64), weights=np.round(ink)).numpy()",
            }
        )
    ],
    "06-augment": [
        _augment("step = tf.random.stateless_uniform((2,), (seed, number), -1, 2, tf.int32)", _MOVE),
        _augment(
            "seeds = tf.random.experimental.stateless_fold_in(tf.stack([tf.cast(seed, tf.int32), 0]), number)",
            "step = tf.random.stateless_uniform((2,), seeds, -1, 2, tf.int32)",
            _MOVE,
        ),
    ],
    "06-which": f"answer = {_LOGS!r}",
    "06-bincount": f"answer = {_BINCOUNT!r}",
}
