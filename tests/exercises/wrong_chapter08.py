"""Answers that people typically give in chapter 08, and what the check must say to each; see test_wrong_answers.py."""

_COMPARE = """
import statistics
def answer(run, clock, synchronize):
    def seconds(arm):
        {before}
        start = clock()
        run(arm)
        {after}
        return clock() - start
    {warm}
    {measure}
"""
_TURNS = "rounds = [(seconds('without'), seconds('with')) for _ in range(40)]"
_RATIO = "return statistics.median(b / a for a, b in rounds)"


def _compare(before="synchronize()", after="synchronize()", warm="run('without'); run('with')", measure=""):
    measure = measure or f"{_TURNS}\n    {_RATIO}"
    return _COMPARE.format(before=before, after=after, warm=warm, measure=measure)


_TOLERANCE = """
import math, statistics
def tolerance(deviations, rate):
    n = len(deviations)
    {body}
def runs_needed(rate):
    return {runs}
answers = tolerance, runs_needed
"""
_RANK = "k = math.ceil((n + 1) * (1 - rate) - 1e-9)\n    return sorted(deviations)[k - 1] if k <= n else None"


def _tolerance(body=_RANK, runs="math.ceil(1 / rate) - 1"):
    return _TOLERANCE.format(body=body, runs=runs)


_TABLE = """
import numpy as np
def middle(without, with_flag):
    ratios = np.array(with_flag) / np.array(without)
    return {middle}
def extremes(table):
    medians = {{}}
    for case, arms in table.items():
        low, median, high = middle(*arms)
        if {settled}:
            medians[case] = {key}
    return {answer}
answers = middle, extremes, {why}
"""


def _table(
    middle="np.quantile(ratios, (0.25, 0.5, 0.75))",
    settled="not low <= 1 <= high",
    key="median",
    answer="min(medians, key=medians.get), max(medians, key=medians.get)",
    why="dict(least='b', most='d')",
):
    return _TABLE.format(middle=middle, settled=settled, key=key, answer=answer, why=why)


WRONG = {
    "08-benchmark": [
        (
            "the benchmark as it was",
            _compare("pass", "pass", "pass", "return seconds('with') / seconds('without')"),
            "launches",
        ),
        ("waits before, not after", _compare(after="pass"), "launches"),
        (
            "no warm-up, one run",
            _compare(warm="pass", measure="return seconds('with') / seconds('without')"),
            "done once in a process",
        ),
        (
            "warms up one arm",
            _compare(warm="run('without')", measure="return 1 / (seconds('without') / seconds('with'))"),
            "done once in a process",
        ),
        ("one run", _compare(measure="return seconds('with') / seconds('without')"), "one run is anything"),
        (
            "a mean",
            _compare(measure=f"{_TURNS}\n    return sum(b for _, b in rounds) / sum(a for a, _ in rounds)"),
            "a mean follows the few slow ones",
        ),
        (
            "one arm after the other",
            _compare(
                measure="a = statistics.median(seconds('without') for _ in range(40))\n"
                "    return statistics.median(seconds('with') for _ in range(40)) / a"
            ),
            "Take turns",
        ),
        (
            "upside down",
            _compare(measure=f"{_TURNS}\n    return statistics.median(a / b for a, b in rounds)"),
            "upside down",
        ),
        (
            "the wrong clock",
            "import time\ndef answer(run, clock, synchronize):\n    start = time.perf_counter()\n"
            "    run('without'); run('with'); synchronize()\n    return time.perf_counter() - start",
            "Use clock()",
        ),
        ("two numbers", _compare(measure="return seconds('without'), seconds('with')"), "one number"),
        ("an arm by another name", "def answer(run, clock, synchronize):\n    run('flag')", "are called"),
        (
            "no run at all",
            "def answer(run, clock, synchronize):\n    clock()\n    return 1.15",
            "did not run both arms",
        ),
    ],
    "08-tolerance": [
        (
            "two sigma",
            _tolerance("return statistics.fmean(deviations) + 2 * statistics.pstdev(deviations)"),
            "bell curve",
        ),
        (
            "three sigma",
            _tolerance("return statistics.fmean(deviations) + 3 * statistics.stdev(deviations)"),
            "bell curve",
        ),
        (
            "a quantile",
            _tolerance("import numpy as np\n    return float(np.quantile(deviations, 1 - rate))"),
            "one of n + 1",
        ),
        ("always the largest", _tolerance("return max(deviations)"), "Take a smaller rank"),
        ("ten times the largest", _tolerance("return 10 * max(deviations)"), "a regression can hide"),
        ("allclose's own", _tolerance("return 1e-8"), "Every healthy run would fail"),
        (
            "without the new run",
            _tolerance("return sorted(deviations)[math.ceil(n * (1 - rate) - 1e-9) - 1]"),
            "one of n + 1",
        ),
        (
            "unsorted",
            _tolerance(
                "k = math.ceil((n + 1) * (1 - rate) - 1e-9)\n    return deviations[k - 1] if k <= n else None"
            ),
            "sort them first",
        ),
        (
            "never None",
            _tolerance(
                "k = min(n, math.ceil((n + 1) * (1 - rate) - 1e-9))\n    return sorted(deviations)[k - 1]"
            ),
            "Return None",
        ),
        ("None too early", _tolerance("if n < 59: return None\n    " + _RANK), "runs are enough"),
        (
            "rounded down",
            _tolerance(
                "k = math.floor((n + 1) * (1 - rate) + 1e-9)\n    return sorted(deviations)[k - 1] if k <= n else None"
            ),
            "Round the rank up",
        ),
        ("one run too many", _tolerance(runs="math.ceil(1 / rate)"), "One fewer"),
        ("Wilks's 59", _tolerance(runs="math.ceil(math.log(0.05) / math.log(1 - rate))"), "another promise"),
    ],
    "08-table": [
        ("upside down", _table("np.quantile(1 / ratios, (0.25, 0.5, 0.75))"), "without ÷ with"),
        (
            "a mean",
            _table("np.quantile(ratios, 0.25), ratios.mean(), np.quantile(ratios, 0.75)"),
            "is a mean",
        ),
        ("the range", _table("ratios.min(), np.median(ratios), ratios.max()"), "luckiest rounds"),
        ("greatest first", _table("np.quantile(ratios, (0.75, 0.5, 0.25))"), "first quartile comes first"),
        (
            "other quartiles",
            _table("np.quantile(ratios, (0.25, 0.5, 0.75), method='weibull')"),
            "as np.quantile has them",
        ),
        (
            "differences",
            _table("np.quantile(np.subtract(with_flag, without), (0.25, 0.5, 0.75))"),
            "don't subtract",
        ),
        (
            "the names of one table",
            _table(answer="('index_put_, 16 slots, 2 threads', 'x')"),
            "whatever table",
        ),
        ("lists of names", _table(answer="[list(medians), list(medians)]"), "whatever table"),
        (
            "medians first",
            _table("np.array([1, np.median(with_flag) / np.median(without), 1])"),
            "round by round",
        ),
        ("all cases", _table(settled="True"), "not settled"),
        ("seconds, not multiples", _table(key="np.median(np.subtract(*arms[::-1]))"), "don't subtract"),
        (
            "most first",
            _table(answer="max(medians, key=medians.get), min(medians, key=medians.get)"),
            "other way round",
        ),
        (
            "numbers instead of names",
            _table(answer="min(medians.values()), max(medians.values())"),
            "two names",
        ),
        ("reasons exchanged", _table(why="dict(least='d', most='b')"), "the other end"),
        ("exact additions", _table(why="dict(least='c', most='d')"), "rounded as ever"),
        ("atomics everywhere", _table(why="dict(least='b', most='e')"), "no atomics"),
        ("the system's memory", _table(why="dict(least='b', most='f')"), "the same memory either way"),
        ("a sort", _table(why="dict(least='a', most='d')"), "those of one thread"),
        ("a list of reasons", _table(why="['b', 'd']"), "keys least and most"),
    ],
}

RIGHT = {
    "08-benchmark": [
        _compare(),
        # Least timings of each arm, turn by turn, are an honest way, too.
        _compare(measure=f"{_TURNS}\n    return min(b for _, b in rounds) / min(a for a, _ in rounds)"),
    ],
    "08-tolerance": [
        _tolerance(),
        _tolerance(
            "k = n + 1 - math.floor((n + 1) * rate + 1e-9)\n    return sorted(deviations)[k - 1] if k <= n else None"
        ),
        _tolerance(_RANK.replace(" - 1e-9", "")),
    ],
    "08-table": _table(),
}
