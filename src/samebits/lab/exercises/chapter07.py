"""The exercises of chapter 07: one source of variation, the first difference, two models, and how many runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from samebits.lab.check import Exercise, call

Verdicts = Iterator[tuple[float, str]]

# --- 07-one-source: seed everything and leave one -------------------------------------------------------

SEEDED = ("weights", "batches", "dropout")
PURPOSES = (*SEEDED, "order")
RUNS = 25


def judge_one_source(generators: Callable) -> Verdicts:
    """generators(run) → a random generator for each purpose: one point for the three that must repeat, one for
    the order that must not, one for streams that have nothing to do with each other."""
    drawn = []
    for run in (*range(RUNS), 0):
        given = call(generators, run)
        if wrong := _not_generators(given):
            yield 0, wrong
            return
        drawn.append({name: given[name].integers(0, 2**62, 8).tolist() for name in PURPOSES})
    runs, again = drawn[:RUNS], drawn[RUNS]
    for name in SEEDED:
        if any(run[name] != runs[0][name] for run in runs) or again[name] != runs[0][name]:
            yield (
                0,
                f"What is drawn for {name} differs from run to run: a second source. Give that generator a "
                "seed that doesn't depend on the run.",
            )
            return
    yield 1, "Weights, batches and dropout: the same in every run."
    if again["order"] != runs[0]["order"]:
        yield (
            0,
            "Run 0 has another order the second time; make its seed from `run`, so that a run can be repeated.",
        )
        return
    if len({tuple(run["order"]) for run in runs}) < RUNS:
        yield 0, "Two runs have the same order, so nothing is left to vary; make its seed from `run`."
        return
    yield 1, "The order: another one in each run, and the same when a run is repeated."
    if clash := _clash(runs):
        yield 0, clash
        return
    yield 1, f"The four streams share no number in any of {RUNS} runs."


def _not_generators(given: Any) -> str:
    if not isinstance(given, dict) or set(given) != set(PURPOSES):
        return f"Return a dict with the keys {', '.join(PURPOSES)}."
    wrong = next((name for name in PURPOSES if not isinstance(given[name], np.random.Generator)), None)
    if wrong:
        return f"{wrong} is a {type(given[wrong]).__name__}; make each one with np.random.default_rng(…)."
    if len({id(generator) for generator in given.values()}) < len(PURPOSES):
        return (
            "One generator serves two purposes, so that drawing one number more for the first shifts all of the "
            "second; make one for each."
        )
    return ""


def _clash(runs: list[dict[str, list[int]]]) -> str:
    """Two purposes that draw the same numbers in one run, in words; empty if there are none."""
    for number, run in enumerate(runs):
        for i, one in enumerate(PURPOSES):
            for other in PURPOSES[i + 1 :]:
                if set(run[one]) & set(run[other]):
                    return (
                        f"In run {number}, {one} and {other} draw the same numbers, so they are not independent; a "
                        "list of two numbers is a seed, too, such as [4, run]."
                    )
    return ""


# --- 07-first-difference: where two trainings part ------------------------------------------------------


def judge_first_difference(first_difference: Callable) -> Verdicts:
    """first_difference(a, b) → (step, name) or None, for two recordings: a list of dicts, name → array."""
    for points, cases, right in (
        (1, _plain_recordings(), "Recordings that part at some step, or never: right."),
        (
            1,
            _small_recordings(),
            "Differences of one ULP and in the sign of a zero: found; a NaN of the same bits: none.",
        ),
        (1, _ordered_recordings(), "The first tensor of the step, in the recording's own order: right."),
    ):
        for words, a, b, answer in cases:
            given = call(first_difference, a, b)
            given = tuple(given) if isinstance(given, list) else given
            if given != answer:
                yield (
                    0,
                    f"{words}: you say {given!r}, and it is {answer!r}. {_difference_hint(given, answer)}",
                )
                return
        yield points, right


def _recording(steps: int = 6) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(11)
    shapes = {"weight": (3, 2), "bias": (2,), "average": (2,)}
    return [
        {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(steps)
    ]


def _changed(recording: list, *changes: tuple[int, str, Callable]) -> list:
    copy = [{name: array.copy() for name, array in step.items()} for step in recording]
    for step, name, change in changes:
        flat = copy[step][name].reshape(-1)
        flat[-1] = change(flat[-1])
    return copy


def _add_one(x):
    return x + np.float32(1)


def _next_float(x):
    return np.nextafter(x, np.float32(np.inf))


def _plain_recordings() -> Iterator[tuple]:
    a = _recording()
    yield "Two recordings with the same bits", a, _changed(a), None
    yield "Only step 3 differs", a, _changed(a, (3, "bias", _add_one)), (3, "bias")
    both = _changed(a, (2, "weight", _add_one), (5, "bias", _add_one))
    yield "Steps 2 and 5 differ", a, both, (2, "weight")
    yield "Step 0 differs", a, _changed(a, (0, "average", _add_one)), (0, "average")


def _small_recordings() -> Iterator[tuple]:
    a = _recording()
    yield "One ULP at step 4", a, _changed(a, (4, "weight", _next_float)), (4, "weight")
    zero = _changed(a, (1, "bias", lambda x: np.float32(0.0)))
    minus = _changed(a, (1, "bias", lambda x: np.float32(-0.0)))
    yield "+0.0 against −0.0 at step 1", zero, minus, (1, "bias")
    nan = _changed(a, (2, "bias", lambda x: np.float32(np.nan)))
    yield (
        "The same NaN in both, and step 5 differs",
        nan,
        _changed(nan, (5, "weight", _add_one)),
        (5, "weight"),
    )


def _ordered_recordings() -> Iterator[tuple]:
    a = _recording()
    every = [(1, name, _add_one) for name in ("average", "bias", "weight")]
    yield "All tensors differ at step 1", a, _changed(a, *every), (1, "weight")
    yield "Two differ at step 2", a, _changed(a, (2, "average", _add_one), (2, "bias", _add_one)), (2, "bias")


def _difference_hint(given: Any, answer: Any) -> str:
    if answer is None:
        return "Return None where every byte is the same."
    if given is None:
        return "Compare bytes, as fingerprint or tobytes does: no tolerance, and no ==."
    if not isinstance(given, tuple) or len(given) != 2:
        return "Return a pair: the step, counted from 0, and the name."
    if isinstance(given[0], int) and given[0] > answer[0]:
        return "There is an earlier step; go from the first one on, and stop at the first difference."
    if isinstance(given[0], int) and given[0] < answer[0]:
        return "Those bytes are the same: a NaN is not equal to itself, and its bits are."
    return "Within a step, take the tensors in the order in which the recording holds them."


# --- 07-two-models: an honest interval ------------------------------------------------------------------

VERDICTS = ("B is better", "A is better", "not enough evidence")


def judge_two_models(compare: Callable) -> Verdicts:
    """compare(a, b) → (low, high, verdict): two points for the interval of the mean difference, one for verdicts.

    The reference is Student's interval of the paired differences. A bootstrap of twenty is some percent
    narrower, and random, so each end may lie off by a quarter of the interval's width.
    """
    cases = list(_scores())
    for words, a, b in cases:
        given = call(compare, a.copy(), b.copy())
        if wrong := _not_an_interval(given):
            yield 0, wrong
            return
        low, high = float(given[0]), float(given[1])
        right = _student(b - a)
        if max(abs(low - right[0]), abs(high - right[1])) > (right[1] - right[0]) / 4:
            yield (
                0,
                f"{words}: your interval is {low:+.4f} to {high:+.4f}; one of 95 % is about {right[0]:+.4f} to "
                f"{right[1]:+.4f}. {_interval_hint(low, high, a, b)}",
            )
            return
        again = call(compare, a.copy(), b.copy())
        if (float(again[0]), float(again[1])) != (low, high):
            yield (
                0,
                "The same scores gave another interval the second time; seed the generator of your bootstrap.",
            )
            return
    yield 2, f"The interval: right for {len(cases)} pairs of models, and the same when it is asked for again."
    for words, a, b in cases:
        low, high, verdict = call(compare, a.copy(), b.copy())
        right = VERDICTS[0] if low > 0 else VERDICTS[1] if high < 0 else VERDICTS[2]
        if verdict != right:
            hint = "Zero lies inside." if right == VERDICTS[2] else "All of it lies on one side of zero."
            yield (
                0,
                f"{words}: with {low:+.4f} to {high:+.4f}, the verdict is {right!r}, not {verdict!r}. {hint}",
            )
            return
    yield 1, "The verdicts: right."


def _scores() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Accuracies on twenty seeds; what is good luck for A is mostly good luck for B, too."""
    rng = np.random.default_rng(5)
    for words, gain, noise in (
        ("A small gain on every seed", 0.012, 0.010),
        ("A gain that is noise", 0.001, 0.020),
        ("A loss", -0.025, 0.015),
    ):
        luck = rng.normal(0.7, 0.08, 20)
        own = rng.normal(size=20)
        own = noise * (own - own.mean()) / own.std()
        yield words, luck, luck + gain + own


def _student(differences: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of twenty: 2.093 standard errors to each side (t with 19 degrees of freedom)."""
    middle, error = differences.mean(), differences.std(ddof=1) / math.sqrt(len(differences))
    return middle - 2.093 * error, middle + 2.093 * error


def _not_an_interval(given: Any) -> str:
    try:
        low, high, _ = given
        low, high = float(low), float(high)
    except (TypeError, ValueError):
        return "Return three things: the low end, the high end and the verdict."
    if not low < high:
        return "The low end must lie below the high end, also on different scores."
    return ""


def _interval_hint(low: float, high: float, a: np.ndarray, b: np.ndarray) -> str:
    differences = b - a
    error = differences.std(ddof=1) / math.sqrt(len(a))
    half, middle = (high - low) / 2, (high + low) / 2
    apart = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    if abs(middle + differences.mean()) < 0.5 * error and abs(differences.mean()) > error:
        return "The sign is turned around: the difference is B minus A."
    if abs(half - 2 * math.sqrt(len(a)) * error) < 0.6 * math.sqrt(len(a)) * error:
        return "That is where single differences lie; the mean of twenty is much surer. Resample, and take each mean."
    if abs(half - 2 * apart) < 0.4 * apart:
        return "You resampled A and B apart; both ran on the same seeds, so take the difference seed by seed first."
    if half < 1.4 * error:
        return "It is too narrow for 95 %: one standard error to each side holds about two thirds."
    return "Draw twenty differences with replacement, take their mean, repeat thousands of times, and take quantiles."


# --- 07-how-many-runs -----------------------------------------------------------------------------------


def judge_how_many(runs_to_see: Callable, pairs_needed: Callable) -> Verdicts:
    """runs_to_see(rate) and pairs_needed(spread, half_width): a point and two points."""
    for rate in (0.5, 0.15, 0.1, 0.05, 0.01, 0.001):
        right = 1 + math.ceil(math.log(0.05) / math.log1p(-rate))
        given = call(runs_to_see, rate)
        if not _whole(given, right):
            yield (
                0,
                f"runs_to_see({rate}) gives {given!r}, and should give {right}. {_rate_hint(given, right, rate)}",
            )
            break
    else:
        yield 1, "runs_to_see: right, with the reference counted."
    for spread, half_width in ((0.04, 0.01), (0.04, 0.005), (0.02, 0.01), (0.1, 0.002), (0.01, 0.1)):
        right = max(2, math.ceil((1.96 * spread / half_width) ** 2))
        given = call(pairs_needed, spread, half_width)
        if not _whole(given, right):
            hint = _pairs_hint(given, right, spread, half_width)
            yield 0, f"pairs_needed({spread}, {half_width}) gives {given!r}, and should give {right}. {hint}"
            return
    yield 2, "pairs_needed: right. Half the width costs four times the runs."


def _whole(given: Any, right: int) -> bool:
    return isinstance(given, int | float | np.number) and given == right


def _rate_hint(given: Any, right: int, rate: float) -> str:
    if not isinstance(given, int | float | np.number):
        return "Return a whole number."
    if given == right - 1:
        return "That many repeats, and the run that they are compared with: one more. (And round up.)"
    if given in (math.ceil(1 / rate), math.ceil(1 / rate) + 1):
        return "After 1/rate runs, a difference has still stayed away in about a third of all cases."
    if given in (math.ceil(3 / rate), math.ceil(3 / rate) + 1):
        return "3/rate is the rule of thumb; here it should be exact: (1 − rate)**m ≤ 0.05."
    return "m repeats all agree with probability (1 − rate)**m; find the least m with at most 0.05, add the reference."


def _pairs_hint(given: Any, right: int, spread: float, half_width: float) -> str:
    if not isinstance(given, int | float | np.number):
        return "Return a whole number."
    if right == 2:
        return "One difference has no spread: two is the least."
    if 0 <= given - 1.96 * spread / half_width < 1:
        return "The interval narrows with the square root of n, so n is the square."
    if given in (math.ceil((spread / half_width) ** 2), round((spread / half_width) ** 2)):
        return "One standard error to each side holds two thirds; 95 % takes 1.96 of them."
    if given == math.ceil((2 * 1.96 * spread / half_width) ** 2):
        return "half_width is from the middle to one end, so no factor of 2."
    if given == right - 1 or (isinstance(given, float) and math.ceil(given) == right):
        return "Round up: one run fewer leaves the interval too wide."
    return "Solve 1.96 · spread / √n ≤ half_width for n."


EXERCISES = (
    Exercise("07-one-source", "Leave exactly one source", 3, judge_one_source),
    Exercise("07-first-difference", "The first step and tensor that differ", 3, judge_first_difference),
    Exercise("07-two-models", "Two models and an honest interval", 3, judge_two_models),
    Exercise("07-how-many-runs", "How many runs a claim needs", 3, judge_how_many),
)
