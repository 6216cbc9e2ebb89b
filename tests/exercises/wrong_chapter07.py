"""Answers that people typically give in chapter 07, and what the check must say to each; see test_wrong_answers.py."""

_FOUR = """
import numpy as np
def answer(run):
    return {{
        "weights": {weights}, "batches": {batches}, "dropout": {dropout}, "order": {order},
    }}
"""


def _generators(weights="1", batches="2", dropout="3", order="[4, run]"):
    made = {
        name: f"np.random.default_rng({seed})"
        for name, seed in dict(weights=weights, batches=batches, dropout=dropout, order=order).items()
    }
    return _FOUR.format(**made)


_WALK = """
import numpy as np
def answer(a, b):
    for step, (x, y) in enumerate(zip(a, b)):
        for name in x:
            if {differ}:
                return {result}
    return None
"""


def _walk(differ="x[name].tobytes() != y[name].tobytes()", result="step, name"):
    return _WALK.format(differ=differ, result=result)


_VERDICT = """
    if low > 0:
        return low, high, "B is better"
    return low, high, "A is better" if high < 0 else "not enough evidence"
"""
_BOOTSTRAP = """
import numpy as np
def answer(a, b):
    differences = b - a
    rng = np.random.default_rng(0)
    means = rng.choice(differences, (10_000, len(a))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
"""


def _many(see="1 + math.ceil(math.log(0.05) / math.log(1 - rate))", pairs=None):
    pairs = pairs or "max(2, math.ceil((1.96 * spread / half_width) ** 2))"
    return f"""
import math
def runs_to_see(rate):
    return {see}
def pairs_needed(spread, half_width):
    return {pairs}
answers = runs_to_see, pairs_needed
"""


WRONG = {
    "07-one-source": [
        ("no seeds at all", _generators("", "", "", ""), "drawn for weights differs from run to run"),
        ("everything from the run", _generators("run", "run + 100", "run + 200"), "a second source"),
        ("dropout not seeded", _generators(dropout=""), "drawn for dropout differs from run to run"),
        ("the order fixed as well", _generators(order="4"), "nothing is left to vary"),
        ("an order that cannot be repeated", _generators(order=""), "so that a run can be repeated"),
        ("the order's seed runs into another's", _generators(order="run"), "draw the same numbers"),
        ("one seed for all", _generators("1", "1", "1"), "draw the same numbers"),
        (
            "one generator for all",
            """
import numpy as np
def answer(run):
    rng = np.random.default_rng(1)
    return {"weights": rng, "batches": rng, "dropout": rng, "order": np.random.default_rng([4, run])}
""",
            "serves two purposes",
        ),
        ("the global generator", "def answer(run):\n    return {}", "Return a dict with the keys"),
        (
            "seeds instead of generators",
            "def answer(run):\n    return dict(weights=1, batches=2, dropout=3, order=run)",
            "np.random.default_rng",
        ),
    ],
    "07-first-difference": [
        ("allclose", _walk("not np.allclose(x[name], y[name])"), "no tolerance"),
        ("==", _walk("not (x[name] == y[name]).all()"), "no =="),
        (
            "array_equal with equal_nan",
            _walk("not np.array_equal(x[name], y[name], equal_nan=True)"),
            "no ==",
        ),
        ("nothing but the step", _walk(result="step"), "Return a pair"),
        (
            "from the end",
            """
def answer(a, b):
    for step in reversed(range(len(a))):
        for name in a[step]:
            if a[step][name].tobytes() != b[step][name].tobytes():
                return step, name
""",
            "an earlier step",
        ),
        (
            "names by the alphabet",
            """
def answer(a, b):
    for step, (x, y) in enumerate(zip(a, b)):
        for name in sorted(x):
            if x[name].tobytes() != y[name].tobytes():
                return step, name
""",
            "in the order in which the recording holds them",
        ),
        ("always something", "def answer(a, b):\n    return 0, 'weight'", "Return None"),
        (
            "dicts compared with !=",
            "def answer(a, b):\n    for s in range(len(a)):\n        if a[s] != b[s]:\n            return s",
            "[{...}, {...}, {...}, {...}, {...}, {...}]) raised ValueError",
        ),
    ],
    "07-two-models": [
        (
            "the spread of single differences",
            "import numpy as np\ndef answer(a, b):\n    low, high = np.quantile(b - a, [0.025, 0.975])"
            + _VERDICT,
            "where single differences lie",
        ),
        (
            "unpaired",
            """
import numpy as np
def answer(a, b):
    rng = np.random.default_rng(0)
    means = rng.choice(b, (10_000, 20)).mean(axis=1) - rng.choice(a, (10_000, 20)).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
"""
            + _VERDICT,
            "seed by seed",
        ),
        (
            "one standard error",
            """
def answer(a, b):
    d = b - a
    e = d.std(ddof=1) / len(d) ** 0.5
    low, high = d.mean() - e, d.mean() + e
"""
            + _VERDICT,
            "too narrow for 95 %",
        ),
        ("A minus B", _BOOTSTRAP.replace("b - a", "a - b") + _VERDICT, "B minus A"),
        ("unseeded", _BOOTSTRAP.replace("default_rng(0)", "default_rng()") + _VERDICT, "seed the generator"),
        (
            "the verdict from the mean alone",
            _BOOTSTRAP + '    return low, high, "B is better" if differences.mean() > 0 else "A is better"\n',
            "Zero lies inside",
        ),
        (
            "one seed",
            "def answer(a, b):\n    return b[0] - a[0], b[0] - a[0], 'B is better'",
            "below the high end",
        ),
        ("no verdict", "def answer(a, b):\n    return (b - a).min(), (b - a).max()", "three things"),
    ],
    "07-how-many-runs": [
        (
            "no reference",
            _many(see="math.ceil(math.log(0.05) / math.log(1 - rate))"),
            "the run that they are compared with",
        ),
        ("one in 1/rate", _many(see="math.ceil(1 / rate)"), "a third of all cases"),
        ("the rule of three", _many(see="1 + math.ceil(3 / rate)"), "rule of thumb"),
        ("no square", _many(pairs="math.ceil(1.96 * spread / half_width)"), "square root of n"),
        ("no square, not rounded", _many(pairs="1.96 * spread / half_width"), "square root of n"),
        ("one standard error", _many(pairs="math.ceil((spread / half_width) ** 2)"), "two thirds"),
        (
            "the whole width",
            _many(pairs="math.ceil((2 * 1.96 * spread / half_width) ** 2)"),
            "no factor of 2",
        ),
        ("not rounded up", _many(pairs="int((1.96 * spread / half_width) ** 2)"), "Round up"),
        ("one pair will do", _many(pairs="math.ceil((1.96 * spread / half_width) ** 2)"), "two is the least"),
    ],
}

RIGHT = {
    "07-one-source": [
        _generators(),
        """
import numpy as np
def answer(run):
    names = ("weights", "batches", "dropout")
    made = dict(zip(names, map(np.random.default_rng, np.random.SeedSequence(7).spawn(3))))
    return made | {"order": np.random.default_rng([9, run])}
""",
    ],
    "07-first-difference": _walk(),
    "07-two-models": [
        _BOOTSTRAP + _VERDICT,
        """
def answer(a, b):
    d = b - a
    e = 2.093 * d.std(ddof=1) / len(d) ** 0.5
    low, high = d.mean() - e, d.mean() + e
"""
        + _VERDICT,
    ],
    "07-how-many-runs": _many(),
}
