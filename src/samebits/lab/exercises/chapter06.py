"""The exercises of chapter 06: repair a Keras script, augment by number, read four logs, and a bincount that repeats.

Learners' code that needs TensorFlow runs in a worker (samebits.experiments.keras_scripts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from samebits.experiments import tf_worker
from samebits.lab.check import AnswerFailed, Exercise, NotAttempted, judged_in_worker, source_of

Verdicts = Iterator[tuple[float, str]]

SECONDS = 50  # after which a learner's code is stopped; a busy machine needs ten to import TensorFlow
PROCESSES = 3


def _in_worker(
    function: str, *, fresh: bool = False, variables: Mapping[str, str] | None = None, **given: Any
) -> Any:
    """The answer of a function of keras_scripts. Raises AnswerFailed with one sentence."""
    return judged_in_worker(
        f"samebits.experiments.keras_scripts:{function}",
        given,
        environment=tf_worker.environment({"device": "cpu"}) | dict(variables or {}),
        framework="tensorflow",
        fresh=fresh,
        seconds=SECONDS,
    )


# --- 06-repair: a Keras script --------------------------------------------------------------------------

SCRIPT = """\
import numpy as np, tensorflow as tf, keras
from samebits import digits
from samebits.bits import fingerprint
tf.random.set_seed(1)
tf.config.experimental.enable_op_determinism
images, digit = digits.load()
number = {name: n for n, name in enumerate(set(digits.NAMES))}
labels = np.array([number[digits.NAMES[d]] for d in digit], "int32")
kept = np.random.default_rng().permutation(len(images))[:256]
ink = np.log1p(images.reshape(-1)).astype("float32")
ink = tf.math.bincount(np.repeat(labels, 64), weights=ink).numpy()
data = tf.data.Dataset.from_tensor_slices((images[kept] / 16, labels[kept]))
move = lambda x, y: (tf.roll(x, tf.random.uniform((), -1, 2, tf.int32), 0), y)
data = data.map(move, num_parallel_calls=8)
model = keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(10)])
first = model.get_weights()
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(data.batch(64), class_weight=dict(enumerate(ink.max() / ink)), verbose=0)
print(fingerprint(model.get_weights()))
"""

# Fault → (what is right once it is repaired, what to say until then).
FAULTS = {
    "switch": (
        "Op determinism is on.",
        "Nothing turns op determinism on. In the listing, line 5 names the function and does not call it, which Python "
        "takes without a word.",
    ),
    "first": (
        "The first weights repeat.",
        "The first weights are others in each process. Keras's initialisers need the same seed each time, and "
        "tf.random.set_seed does not reach them.",
    ),
    "labels": (
        "Each digit has the same number in every process.",
        "The numbers of the classes are others in each process: a set of texts has no order of its own, and no seed "
        "gives it one.",
    ),
    "kept": (
        "The images that are kept repeat.",
        "Other images are kept in each process: default_rng() makes a generator of its own, which no global seed "
        "reaches.",
    ),
    "bincount": (
        "No float weights are added by a bincount that races.",
        "tf.math.bincount adds float weights on several threads; in TensorFlow 2.21 that varies with op determinism "
        "on, too. Only whole numbers, and rows with axis=-1, repeat.",
    ),
}


def listing() -> None:
    """Print the script with the numbers of its lines."""
    for number, line in enumerate(SCRIPT.splitlines(), 1):
        print(f"{number:2}  {line}")


def repaired(changes: Mapping[int, str]) -> str:
    """The script with these lines replaced. Raises AnswerFailed."""
    lines = SCRIPT.splitlines()
    if not isinstance(changes, Mapping) or not all(isinstance(text, str) for text in changes.values()):
        raise AnswerFailed("Give a dict: the number of a line → its new text.")
    for number, text in changes.items():
        if isinstance(number, str):
            raise AnswerFailed(
                f"Write the number of a line without quotes: 4, and not '4'; you have {number!r}."
            )
        if number not in range(1, len(lines) + 1):
            raise AnswerFailed(f"There is no line {number!r}; the script has lines 1 to {len(lines)}.")
        lines[number - 1] = text
    return "\n".join(lines) + "\n"


def judge_repair(changes: Any) -> Verdicts:
    """A point for each of five faults that is gone; the last one is given only if fresh processes agree."""
    script = repaired(changes)
    found = _in_worker("diagnosis", source=script)
    if "error" in found:
        yield 0, f"The script ends with {found['error']}"
        return
    if not found["prints"]:
        yield (
            0,
            "The script no longer prints the fingerprint of the trained weights. Leave its last line as it was.",
        )
        return
    left = set(found["differs"])
    left |= {"bincount"} if found["bincount"] else set()
    left |= set() if found["deterministic"] else {"switch"}
    gone = [fault for fault in FAULTS if fault not in left]
    for fault, (right, wrong) in FAULTS.items():
        if fault in left:
            yield 0, wrong
        elif fault != gone[-1] or left:
            yield 1, right
    if left:
        return
    answers = []
    for process in range(PROCESSES):
        variables = {"PYTHONHASHSEED": str(process + 1)}
        answer = _in_worker("printed", fresh=True, variables=variables, source=script)
        answers.append((answer["printed"].strip().splitlines() or ["nothing"])[-1])
    if len(set(answers)) > 1:
        yield 0, f"Yet {PROCESSES} fresh processes print {len(set(answers))} different last lines."
    else:
        yield 1, f"{FAULTS[gone[-1]][0]} {PROCESSES} fresh processes print {answers[0][:20]} …, each of them."


# --- 06-augment: random and parallel --------------------------------------------------------------------


def judge_augment(augment: Callable) -> Verdicts:
    """augment(seed, number, image) → the image moved by a step that depends on nothing but seed and number."""
    answer = _in_worker("augmentation", source=source_of(augment), name=augment.__name__)
    if not answer["attempted"]:
        raise NotAttempted
    yield answer["points"], answer["sentence"]


# --- 06-which: four logs --------------------------------------------------------------------------------

NEITHER, SEEDS, SWITCH, BOTH = "neither", "seeds", "switch", "both"
ON = (NEITHER, SEEDS, SWITCH, BOTH)

# What three processes wrote, in letters of their fingerprints; None: the line was not reached.
LOGS = {
    "A": {"numpy draw": "ABC", "first weights": "ABC", "tf.random.uniform": "ABC", "weights, trained": "ABC"},
    "B": {"numpy draw": "AAA", "first weights": "AAA", "tf.random.uniform": "AAA", "weights, trained": "ABC"},
    "C": {
        "numpy draw": "ABC",
        "first weights": "ABC",
        "tf.random.uniform": "RuntimeError: Random ops require a seed",
    },
    "D": {"numpy draw": "AAA", "first weights": "AAA", "tf.random.uniform": "AAA", "weights, trained": "AAA"},
}
RIGHT_LOGS = {"A": NEITHER, "B": SEEDS, "C": SWITCH, "D": BOTH}

_NOT = {
    ("A", SEEDS): "With keras.utils.set_random_seed, NumPy's draw would be the same in all three.",
    ("A", SWITCH): "With op determinism on and no seed, tf.random.uniform would raise.",
    ("A", BOTH): "With seeds, NumPy's draw would be the same in all three.",
    ("B", NEITHER): "Three processes that nobody seeded would not draw the same numbers.",
    (
        "B",
        SWITCH,
    ): "With op determinism and no seed, tf.random.uniform would raise. Here it drew the same numbers.",
    ("B", BOTH): (
        "The model crops by crop_and_resize, whose gradient varies until op determinism is on. Here the weights part "
        "in training."
    ),
    ("C", NEITHER): "Without op determinism, tf.random.uniform draws unseeded numbers and does not raise.",
    ("C", SEEDS): "With a seed there is nothing to raise, and NumPy's draw would be the same in all three.",
    (
        "C",
        BOTH,
    ): "The error asks for a seed, so none was set. NumPy's and Keras's draws say the same, in silence.",
    ("D", NEITHER): "Three processes that nobody seeded would not draw the same numbers.",
    ("D", SEEDS): (
        "With seeds alone, the gradient of crop_and_resize would part the weights, as in log B. It may have agreed by "
        "chance, but of the four answers one explains all three."
    ),
    ("D", SWITCH): "With op determinism and no seed, tf.random.uniform would raise.",
}
_BECAUSE = {
    "A": "Nothing repeats, and nothing raises.",
    "B": "All draws repeat, and the weights part in training, where no number is drawn unseeded.",
    "C": "TensorFlow's own random op raises; NumPy and Keras draw on in silence.",
    "D": "Draws and training repeat. (Three runs are little evidence; the panel makes more.)",
}


def judge_logs(on: Any) -> Verdicts:
    """A point for each log."""
    if not isinstance(on, Mapping) or set(on) != set(LOGS):
        yield 0, f"Give a dict with the keys {', '.join(LOGS)}, one for each log."
        return
    for log, given in on.items():
        if given not in ON:
            yield 0, f"{log}: {given!r} is none of {', '.join(ON)}."
        elif given == RIGHT_LOGS[log]:
            yield 1, f"{log}: {given}. {_BECAUSE[log]}"
        else:
            yield 0, f"{log}: not {given!r}. {_NOT[log, given]}"


# --- 06-bincount: what makes it repeat ------------------------------------------------------------------

# Change to a weighted bincount on the CPU → does it then repeat, and why.
CHANGES: Mapping[str, tuple[bool, str]] = {
    "seed": (False, "No random number is drawn, so a seed has nothing to fix."),
    "switch": (
        False,
        "In TensorFlow 2.21 the CPU's bincount does not ask whether op determinism is on; the panel shows it.",
    ),
    "float64": (
        False,
        "float64 rounds less and still rounds, so the order still shows; one answer then is luck with these values.",
    ),
    "sorted": (
        False,
        "Sorted or not, the values are shared out to threads, and which thread takes which part is left to chance.",
    ),
    "int64": (True, "Whole numbers add exactly, in any order, as long as they don't overflow."),
    "axis=-1": (
        True,
        "With one row and axis=-1, another kernel runs, which gives a row to one thread; the panel shows one answer.",
    ),
    "numpy": (True, "np.bincount adds from the first value to the last, on one thread."),
    "one thread": (True, "One thread adds in one order, whatever the op."),
}


def judge_bincount(repeats: Any) -> Verdicts:
    """Three points for all eight, two for one mistake, one for two."""
    if not isinstance(repeats, Mapping) or set(repeats) != set(CHANGES):
        yield 0, f"Give a dict with the keys {', '.join(CHANGES)}, each True or False."
        return
    if unclear := [name for name, given in repeats.items() if not isinstance(given, bool)]:
        yield 0, f"{unclear[0]!r} is neither True nor False."
        return
    wrong = [name for name, (right, _) in CHANGES.items() if repeats[name] != right]
    if not wrong:
        yield 3, "All eight are right: four of them make it repeat."
        return
    name = wrong[0]
    left = f" {len(wrong) - 1} more of the eight are wrong." if len(wrong) > 1 else ""
    yield max(0, 3 - len(wrong)), f"{name!r} is not {repeats[name]}. {CHANGES[name][1]}{left}"


EXERCISES = (
    Exercise("06-repair", "A Keras script with five faults", 5, judge_repair),
    Exercise("06-augment", "Random, parallel and repeatable", 3, judge_augment),
    Exercise("06-which", "Four logs", 4, judge_logs),
    Exercise("06-bincount", "A bincount that repeats", 3, judge_bincount),
)
