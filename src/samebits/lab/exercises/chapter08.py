"""The exercises of chapter 08: a benchmark to mend, a tolerance from runs, and a table of prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.experiments.price import spread
from samebits.lab import figures08
from samebits.lab.check import AnswerFailed, Exercise, call

Verdicts = Iterator[tuple[float, str]]

# --- 08-benchmark: four faults ---------------------------------------------------------------------------

ARMS = ("without", "with")
MOST_RUNS = 20_000
ALLOWED = 0.08  # relative error of the ratio; medians of 25 rounds and more stay well inside (see the tests)


class ToyGpu:
    """A MODEL of a device that works by itself, on a clock that only it moves. Nothing here takes real time.

    ratio      what a run with the flag takes, as a multiple of one without (5 ms)
    first      the first run of each arm takes seconds more, as imports, compilers and tuners do
    noise      each run takes up to 10 % more, and one in ten takes five times as long
    drift      each run takes 0.5 % longer than the one before, as on a card that gets hot
    """

    LAUNCH = 20e-6  # seconds that the program spends to launch a run

    def __init__(
        self, ratio: float = 1.0, *, first: bool = True, noise: bool = True, drift: bool = True, seed: int = 0
    ):
        self._seconds = {"without": 5e-3, "with": 5e-3 * ratio}
        self._first, self._noise, self._drift = first, noise, drift
        self._rng = np.random.default_rng(seed)
        self._now = self._busy_until = 0.0
        self.runs: list[str] = []
        self.looks = 0

    def run(self, arm: str) -> None:
        """Launch one run of an arm, "without" or "with"; it returns at once, and the device works on."""
        if arm not in ARMS:
            raise AnswerFailed(f"run({arm!r}): the arms are called 'without' and 'with'.")
        if len(self.runs) == MOST_RUNS:
            raise AnswerFailed(
                f"compare has made {MOST_RUNS:,} runs and did not end. Fifty rounds are plenty."
            )
        seconds = self._seconds[arm]
        if self._noise:
            seconds *= (1 + 0.1 * self._rng.random()) * (5 if self._rng.random() < 0.1 else 1)
        if self._drift:
            seconds *= 1.005 ** min(len(self.runs), 5_000)
        if self._first and arm not in self.runs:
            seconds += 3.0 if arm == "with" else 0.2
        self.runs.append(arm)
        self._now += self.LAUNCH
        self._busy_until = max(self._busy_until, self._now) + seconds

    def synchronize(self) -> None:
        """Wait until the device has done all that was launched."""
        self._now = max(self._now, self._busy_until)

    def clock(self) -> float:
        """Seconds on the program's clock."""
        self.looks += 1
        return self._now


# What a benchmark gets wrong, the toy that shows it, and the sentence for who did.
_FAULTS = (
    (
        dict(first=False, noise=False, drift=False),
        "Waits for the device: right.",
        "run returns as soon as the work is launched, so you timed launches. Call synchronize() before you look at "
        "the clock, at both ends.",
    ),
    (
        dict(first=True, noise=False, drift=False),
        "What happens once doesn't move the result: right.",
        "The first run of each arm takes seconds more, for things done once in a process. Run both arms before the "
        "first look at the clock.",
    ),
    (
        dict(first=True, noise=True, drift=False),
        "Times many runs and takes their middle: right.",
        "One run in ten takes five times as long, and every run a little more. Time 25 rounds or more, and take a "
        "median: a mean follows the few slow ones, and one run is anything.",
    ),
    (
        dict(first=True, noise=True, drift=True),
        "Takes turns: right.",
        "The device gets slower from run to run, so the arm that was timed later looks dearer. Take turns, one run "
        "of each arm in a round, and divide round by round, before you take the median.",
    ),
)
_RATIOS = (0.2, 1.0, 1.15, 2.4)


def judge_benchmark(compare: Callable) -> Verdicts:
    """compare(run, clock, synchronize) → the ratio; a point for each fault that is gone, in their order."""
    for toy, right, wrong in _FAULTS:
        for seed, ratio in enumerate(_RATIOS * 3):
            gpu = ToyGpu(ratio, seed=seed, **toy)
            given = call(compare, gpu.run, gpu.clock, gpu.synchronize)
            if problem := _no_ratio(given, gpu):
                yield 0, problem
                return
            if abs(given / ratio - 1) > ALLOWED:
                upside_down = (
                    " That is the ratio upside down: with ÷ without." if _near(1 / given, ratio) else ""
                )
                yield 0, f"True ratio {ratio:g}, yours {given:.3g}.{upside_down or ' ' + wrong}"
                return
        yield 1, right


def _near(given: float, ratio: float) -> bool:
    return ratio != 1 and abs(given / ratio - 1) <= ALLOWED


def _no_ratio(given: Any, gpu: ToyGpu) -> str:
    if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not math.isfinite(given):
        return f"compare gives {given!r}, and should give one number: with ÷ without."
    if not gpu.looks:
        return "compare never looked at the clock that it was given. Use clock(), not time.perf_counter()."
    if set(gpu.runs) != set(ARMS):
        return "compare did not run both arms."
    return "" if given > 0 else f"compare gives {given:g}, and a ratio of times is positive."


# --- 08-tolerance: from N runs ---------------------------------------------------------------------------


def least_tolerance(deviations: Sequence[float], rate: float) -> float | None:
    """The k-th smallest deviation, k = ⌈(n + 1)(1 − rate)⌉, or None if k > n.

    If the next healthy run is exchangeable with the n, its deviation has each rank among the n + 1 with the same
    probability, so it exceeds the k-th smallest with probability (n + 1 − k)/(n + 1) ≤ rate (less with ties). No
    distribution is assumed. (Wilks, Annals of Mathematical Statistics 12, 1941; as conformal prediction, Vovk,
    Gammerman & Shafer, Algorithmic Learning in a Random World, 2005.)
    """
    k = len(deviations) + 1 - math.floor((len(deviations) + 1) * rate + 1e-9)
    return sorted(deviations)[k - 1] if k <= len(deviations) else None


def least_runs(rate: float) -> int:
    """How many healthy runs it takes before least_tolerance is not None."""
    return math.ceil(1 / rate - 1e-9) - 1


# Rates for which no rounding of a product decides.
_CASES = (
    (13, 0.3),
    (19, 0.05),
    (39, 0.05),
    (40, 0.05),
    (59, 0.1),
    (99, 0.01),
    (7, 0.3),
    (200, 0.04),
    (20, 0.05),
)
_TOO_FEW = ((18, 0.05), (5, 0.1), (98, 0.01), (1, 0.3))


def judge_tolerance(tolerance: Callable, runs_needed: Callable) -> Verdicts:
    """tolerance(deviations, rate) → float or None (2 points); runs_needed(rate) → int (1); what they do (1)."""
    if wrong := _wrong_tolerance(tolerance):
        yield 0, wrong
        return
    yield 2, "tolerance: right, in any order, with ties, and None where the runs are too few."
    alarms, missed = _simulated(tolerance)
    yield (
        1,
        f"400 simulated tests at 5 %: {alarms:.1%} of the healthy runs failed, the regression passed in {missed}.",
    )
    for rate in (0.05, 0.01, 0.1, 0.03, 0.3):
        given, right = call(runs_needed, rate), least_runs(rate)
        if isinstance(given, bool) or not isinstance(given, int | float | np.number) or given != right:
            yield (
                0,
                f"runs_needed({rate}) gives {given!r}, and should give {right}. {_runs_mistake(given, rate)}",
            )
            return
    yield 1, "runs_needed: right."


def _deviations(n: int, seed: int) -> list[float]:
    """As real ones are: skewed, with a few large ones, with ties, and in no order."""
    rng = np.random.default_rng(seed)
    drawn = np.abs(rng.standard_t(2, n)) * 2.0**-20
    drawn[: n // 8] = drawn[0]
    return rng.permutation(drawn).tolist()


def _wrong_tolerance(tolerance: Callable) -> str:
    for seed, (n, rate) in enumerate(_CASES):
        deviations = _deviations(n, seed)
        given, right = call(tolerance, list(deviations), rate), least_tolerance(deviations, rate)
        if not _equal(given, right):
            told = f"For {n} deviations and a rate of {rate:g} you give {_shown(given)}, not {_shown(right)}."
            return f"{told} {_tolerance_mistake(given, deviations, rate)}"
    for seed, (n, rate) in enumerate(_TOO_FEW):
        given = call(tolerance, _deviations(n, seed), rate)
        if given is not None:
            return (
                f"From {n} runs no tolerance holds a rate of {rate:g}: even the largest deviation is exceeded by one "
                f"new run in {n + 1}. Return None; you give {_shown(given)}."
            )
    return ""


def _equal(given: Any, right: float | None) -> bool:
    if given is None or right is None:
        return given is right
    return isinstance(given, int | float | np.number) and abs(given - right) <= 1e-12 * right


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float | np.number) else repr(value)


def _tolerance_mistake(given: Any, deviations: list[float], rate: float) -> str:
    n, ordered = len(deviations), sorted(deviations)
    if given is None:
        return f"{n} runs are enough: with the largest as tolerance, one new run in {n + 1} fails."
    if not isinstance(given, int | float | np.number):
        return "Return a number, or None."
    mean, deviation = float(np.mean(deviations)), float(np.std(deviations))
    for factor in (2, 3):
        for ddof in (0, 1):
            if math.isclose(given, mean + factor * float(np.std(deviations, ddof=ddof)), rel_tol=1e-9):
                return "Mean and standard deviation speak for a bell curve; these deviations are none. Use their ranks."
    if any(math.isclose(given, np.quantile(deviations, q), rel_tol=1e-9) for q in (1 - rate,)):
        return (
            "A quantile of the sample treats the n as all there is. The new run is one of n + 1: count ranks among "
            "those, and round up."
        )
    if _equal(given, ordered[-1]):
        return "The largest fails fewer than the rate allows, and lets larger regressions pass. Take a smaller rank."
    if _equal(given, ordered[max(1, math.floor((n + 1) * (1 - rate) + 1e-9)) - 1]) and not _equal(
        given, ordered[max(1, math.ceil(n * (1 - rate) - 1e-9)) - 1]
    ):
        return "Round the rank up: one lower, and more than the rate fail."
    if _equal(given, ordered[min(n, max(1, math.ceil(n * (1 - rate)))) - 1]):
        return "That rank is ⌈n(1 − rate)⌉. The new run is one of n + 1, so it is ⌈(n + 1)(1 − rate)⌉."
    if given in deviations and given in (deviations[-1], deviations[min(n, n + 1 - int((n + 1) * rate)) - 1]):
        return "The deviations come in no order: sort them first."
    if given > ordered[-1]:
        return "That is more than any healthy run needed, and a regression can hide below it."
    if deviation and given < ordered[0]:
        return "Every healthy run would fail. A tolerance comes from the deviations."
    return "It is the ⌈(n + 1)(1 − rate)⌉-th smallest of them."


def _runs_mistake(given: Any, rate: float) -> str:
    if isinstance(given, int | float | np.number):
        if given == math.ceil(1 / rate - 1e-9):
            return "One fewer: the new run counts, too."
        if given == math.ceil(math.log(0.05) / math.log(1 - rate)):
            return "That is for another promise: 95 % sure that this very tolerance holds the rate."
    return "With the largest of n as tolerance, one new run in n + 1 fails; that may be at most the rate."


def _simulated(tolerance: Callable, tests: int = 400, fresh: int = 50) -> tuple[float, int]:
    """(share of fresh healthy runs that fail, number of tests in which a planted regression passes)."""
    rng = np.random.default_rng(88)
    failed = missed = 0
    for _ in range(tests):
        drawn = np.abs(rng.standard_t(3, 39 + fresh)) * 2.0**-20
        allowed = call(tolerance, drawn[:39].tolist(), 0.05)
        failed += int((drawn[39:] > allowed).sum())
        missed += (
            2.0**-20 * 60 <= allowed
        )  # a regression that moves the result by sixty times the usual noise
    return failed / (tests * fresh), missed


# --- 08-table: least and most ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trap:
    words: str
    table: figures08.Table
    least: str
    most: str
    why: str


def _rounds(*ratios: float, base: float = 1.0) -> tuple[list[float], list[float]]:
    return [base] * len(ratios), [base * ratio for ratio in ratios]


_TRAPS = (
    _Trap(
        "one round with an outlier",
        {
            "A": _rounds(1.2, 1.21, 1.22, 1.23, 90.0),
            "B": _rounds(2.0, 2.1, 2.2, 2.3, 2.4),
            "C": _rounds(0.8, 0.81, 0.82, 0.83, 0.84),
        },
        "C",
        "B",
        "One slow round moves a mean as far as it likes; the median stays.",
    ),
    _Trap(
        "a slow case and a quick one",
        {
            "A": _rounds(1.1, 1.1, 1.1, 1.1, 1.1, base=50.0),
            "B": _rounds(3.0, 3.0, 3.0, 3.0, 3.0, base=1e-3),
            "C": _rounds(0.5, 0.5, 0.5, 0.5, 0.5, base=1e-3),
        },
        "C",
        "B",
        "The price is a multiple: divide, round by round, and don't subtract.",
    ),
    _Trap(
        "a machine that slows down threefold in the middle",
        {
            "A": ([1.0, 1.0, 3.0, 3.0, 3.0], [1.5, 1.5, 4.5, 4.5, 4.5]),
            "B": _rounds(1.3, 1.3, 1.3, 1.3, 1.3),
            "C": ([1.0, 1.0, 3.0, 3.0, 3.0], [0.9, 0.9, 2.7, 2.7, 2.7]),
        },
        "C",
        "A",
        "Both arms of a round met the same machine: pair them.",
    ),
    _Trap(
        "a case that is all noise",
        {
            "A": _rounds(0.1, 0.2, 0.4, 5.0, 9.0),
            "B": _rounds(0.7, 0.71, 0.72, 0.73, 0.74),
            "C": _rounds(1.4, 1.41, 1.42, 1.43, 1.44),
            "D": _rounds(0.3, 0.6, 7.0, 8.0, 9.0),
        },
        "B",
        "C",
        "In A and D the middle half holds 1, so they are not settled, wherever their medians are.",
    ),
)

WHY = {
    "a": "A sort by place is what some GPU code does. On the CPU the bits under the flag are those of one thread.",
    "b": "",
    "c": "The additions are rounded as ever; the flag fixes their order.",
    "d": "",
    "e": "On the CPU no atomics are in reserving memory, or in filling it.",
    "f": "The system gives the same memory either way, in the same time; what comes then is PyTorch's own work.",
}


def judge_table(middle: Callable, extremes: Callable, why: Any) -> Verdicts:
    """middle(without, with_flag) → quartiles (1 point); extremes(table) → names (1); why → letters (2)."""
    if wrong := _wrong_middle(middle):
        yield 0, wrong
        return
    yield 1, "middle: right, round by round."
    for trap in _TRAPS:
        if wrong := _wrong_extremes(extremes, trap):
            yield 0, wrong
            return
    table, _ = figures08.recorded_prices()
    least, most = right_extremes(table)
    given = _pair(call(extremes, dict(table)), table)
    if given != (least, most):
        yield (
            0,
            f"For the recorded table you give {given}, and it should be {(least, most)}: of the settled cases only.",
        )
        return
    yield 1, f"extremes: right. Least: {least}; most: {most}."
    yield from _reasons(why)


def _reasons(why: Any) -> Verdicts:
    if not isinstance(why, dict) or set(why) != {"least", "most"}:
        yield 0, "why should be a dict with the keys least and most."
        return
    letters = {key: str(letter).strip(" ().").lower() for key, letter in why.items()}
    if unknown := [letter for letter in letters.values() if letter not in WHY]:
        yield 0, f"why holds {unknown[0]!r}; the reasons are the letters a to f."
        return
    for key, right, because in (
        ("least", "b", "two threads get in each other's way, and the flag spares them that"),
        (
            "most",
            "d",
            "reserving takes next to no time, so anything done to the memory is a large multiple of it",
        ),
    ):
        letter = letters[key]
        if letter == right:
            yield 1, f"{key}: right, {because}."
        else:
            yield 0, f"{key}: not {letter}. {WHY[letter] or 'That is the reason of the other end.'}"


def right_extremes(table: figures08.Table) -> tuple[str, str]:
    """(the settled case with the lowest median, the one with the highest)"""
    spreads = {
        case: spread([b / a for a, b in zip(without, with_flag, strict=True)])
        for case, (without, with_flag) in table.items()
    }
    settled = {case: s.median for case, s in spreads.items() if not s.low <= 1 <= s.high}
    return min(settled, key=settled.get), max(settled, key=settled.get)


def _wrong_middle(middle: Callable) -> str:
    without, with_flag = (
        [1.0, 1.0, 10.0, 2.0, 1.0, 1.0, 4.0, 1.0, 1.0],
        [2.0, 3.0, 5.0, 9.0, 1.0, 1.2, 4.4, 1.3, 60.0],
    )
    ratios = [b / a for a, b in zip(without, with_flag, strict=True)]
    right = tuple(np.quantile(ratios, (0.25, 0.5, 0.75)))
    given = call(middle, list(without), list(with_flag))
    try:
        given = tuple(float(value) for value in given)
    except (TypeError, ValueError):
        return (
            f"middle gives {given!r}, and should give three numbers: first quartile, median, third quartile."
        )
    if len(given) == 3 and np.allclose(given, right, rtol=1e-9):
        return ""
    told = f"For {without} and {with_flag} middle gives {given}, and should give {tuple(float(x) for x in right)}."
    if len(given) == 3 and np.allclose(given, np.quantile([1 / r for r in ratios], (0.25, 0.5, 0.75))):
        return f"{told} That is without ÷ with."
    if len(given) == 3 and math.isclose(given[1], float(np.mean(ratios))):
        return f"{told} The one in the middle is a mean; one slow round moves it as far as it likes."
    if len(given) == 3 and math.isclose(given[1], float(np.median(with_flag) / np.median(without))):
        return f"{told} Divide round by round first; quartiles come after."
    if len(given) == 3 and math.isclose(given[0], min(ratios)):
        return f"{told} Least and greatest are the two luckiest rounds; take quartiles."
    if len(given) == 3 and np.allclose(given[::-1], right, rtol=1e-9):
        return f"{told} The first quartile comes first."
    if len(given) == 3 and math.isclose(given[1], right[1]):
        return f"{told} The median is right; take the quartiles as np.quantile has them."
    differences = np.subtract(with_flag, without)
    if len(given) == 3 and math.isclose(given[1], float(np.median(differences))):
        return f"{told} The price is a multiple: divide, and don't subtract."
    return told


def _wrong_extremes(extremes: Callable, trap: _Trap) -> str:
    given = _pair(call(extremes, dict(trap.table)), trap.table)
    right = (trap.least, trap.most)
    if given == right:
        return ""
    if given == right[::-1]:
        return f"With {trap.words} you give {given}, the other way round: first least, then most."
    return f"With {trap.words} you give {given}, and it should be {right}. {trap.why}"


def _pair(answer: Any, table: figures08.Table) -> tuple[str, str]:
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        raise AnswerFailed(f"extremes gives {answer!r}, and should give two names of cases: least and most.")
    for name in answer:
        if not isinstance(name, str) or name not in table:
            raise AnswerFailed(
                f"extremes gives {answer!r} for a table whose cases are called {', '.join(table)}. It should give two "
                "names of cases, least and most, in whatever table it gets."
            )
    return tuple(answer)


EXERCISES = (
    Exercise("08-benchmark", "A benchmark with four faults", 4, judge_benchmark),
    Exercise("08-tolerance", "A tolerance from runs", 4, judge_tolerance),
    Exercise("08-table", "Least and most", 4, judge_table),
)
