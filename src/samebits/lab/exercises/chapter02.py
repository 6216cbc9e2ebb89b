"""The exercises of chapter 02: a block tree, a race rescued, and what fifty runs prove."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from samebits import kernels, variability
from samebits.lab.check import AnswerFailed, Exercise, NotAttempted, call, judged_in_worker, short, source_of

Verdicts = Iterator[tuple[float, str]]


# --- 02-block-tree --------------------------------------------------------------------------------------

SECONDS = 30  # after which a kernel that is being judged is stopped


def judge_block_tree(kernel: Callable) -> Verdicts:
    """The kernel runs in a worker: it may have no end, and numba must not be imported here before its time."""
    if type(kernel).__module__.partition(".")[0] in ("numba", "numba_cuda"):
        raise AnswerFailed("Leave out @cuda.jit: the check compiles your function.")
    source = source_of(kernel, "Check the kernel itself, a function")
    answer = judged_in_worker(
        "samebits.kernels:judge_block_sum",
        {"source": source, "name": kernel.__name__},
        environment=kernels.environment(simulate=True),
        fresh=True,  # what a learner's code leaves behind must not judge the next attempt
        seconds=SECONDS,
        what="The kernel",
        if_stopped="A loop in it may never end: look for one whose condition stays true, such as a stride that is "
        "never halved.",
    )
    if not answer["attempted"]:
        raise NotAttempted
    yield from ((0, sentence) for sentence in answer["sentences"][:-1])
    yield answer["points"], answer["sentences"][-1]


# --- 02-rescue ------------------------------------------------------------------------------------------

ARRIVALS = 24  # orders of arrival that each set of pairs is given in


def judge_rescue(rescue: Callable) -> Verdicts:
    index, values, slots = _ordinary_pairs()
    opposite = index, -values, slots  # for what keeps an answer for later
    for pairs in (
        (index, values, slots),
        opposite,
        _no_pairs(),
        _equal_pairs(),
        _few_pairs(),
        _large_pairs(),
    ):
        if wrong := _wrong_sums(rescue, *pairs):
            yield 0, wrong
            return
    for pairs in (_ordinary_pairs(), _cancelling_pairs()):
        if wrong := _depends_on_arrival(rescue, *pairs):
            yield 0, wrong
            return
    wrong, time_taken = _with_many_pairs(rescue)
    if wrong:
        yield 0, wrong
        return
    yield (
        2,
        f"The same bits in {ARRIVALS} orders of arrival, also where large values cancel. {time_taken}",
    )


def _ordinary_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """(index, values, slots): slots of some hundred values, and one slot, 3, that gets none."""
    rng = np.random.default_rng(20240805)
    index = rng.choice([0, 1, 2, 4, 5, 6], 3_000)
    return index.astype(np.int64), rng.standard_normal(3_000, dtype=np.float32), 7


def _no_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    return np.zeros(0, np.int64), np.zeros(0, np.float32), 4


def _few_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """Slots of three values, so that little rounding is excused, and half of the slots with small values."""
    rng = np.random.default_rng(5)
    values = rng.standard_normal((64, 3), dtype=np.float32)
    values[::2] *= 2.0**-12
    return np.repeat(np.arange(64), 3), values.reshape(-1), 64


def _equal_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """Two slots that get one value several times."""
    return np.array([0, 1, 0, 1, 1]), np.array([1.5, 2.5, 1.5, 2.5, 2.5], np.float32), 2


def _many_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(3)
    return rng.integers(0, 1_000, 100_000), rng.standard_normal(100_000, dtype=np.float32), 1_000


def _large_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """Values that 64-bit fixed point holds only if its scale was chosen for them."""
    return np.array([0, 1, 0]), np.array([2.0**45, -(2.0**44), 2.0**43], np.float32), 2


def _cancelling_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """Slots in which 2^45 and −2^45 meet small values.

    Even float64 loses part of the small ones, more or less by the order. Their sums lie beside 0.5, 0.05 …, the
    edges of rounding to 0, 1, … decimals, so that rounding the answer shows the order as well. In the slot before
    the last, two values of one magnitude meet a third that only one of their orders keeps. In the last slot each
    magnitude is beyond the 53 bits of the one before, so that what a compensation keeps is swallowed as well.
    """
    unit = 2.0**-22  # below what 80-bit floats, NumPy's longdouble on x86, can hold beside 2^45
    slots = []
    for decimals in range(5):
        edge = 0.5 * 10.0**-decimals
        parts = np.round(np.array([0.37, 0.29, 0.17, 0.11]) * edge / unit) * unit
        slots.append([2.0**45, *parts, -(2.0**45), edge - parts.sum()])
    slots.append([1.0, 2.0**21, 2.0**45, -(2.0**45)])
    nest = [2.0**45, 2.0**-10, 2.0**-65]
    slots.append([*nest, 2.0**-120, *(-level for level in reversed(nest))])
    index = np.repeat(np.arange(len(slots)), [len(slot) for slot in slots])
    return index.astype(np.int64), np.concatenate(slots).astype(np.float32), len(slots)


def _wrong_sums(rescue: Callable, index: np.ndarray, values: np.ndarray, slots: int) -> str:
    """A sentence if the answer is not an array of about the right sums, or ""."""
    sums = _sums(rescue, index, values, slots)
    words = _pairs(index)
    for slot in range(slots):
        here = values[index == slot].astype(np.float64)
        exact = math.fsum(here)
        # Wide enough for float32 in any order (each addition rounds by 2^-24 of at most the sum of magnitudes), and
        # for fixed point with 20 fraction bits (each value is rounded by 2^-21).
        if abs(float(sums[slot]) - exact) <= (len(here) + 1) * (2.0**-24 * np.abs(here).sum() + 2.0**-21):
            continue
        told = f"With {words}, slot {slot} should hold {exact:.7g} and holds {float(sums[slot]):.7g}."
        if not here.size:
            return (
                f"{told} Nothing arrives in it, so it is an empty slot, and its sum is 0. (np.add.reduceat gives an "
                "empty segment the element that follows.)"
            )
        if here.size > 1 and (here == here[0]).all():
            return f"{told} Equal values count as often as they come."
        if here.size > 1 and sums[slot] == values[index == slot][-1]:
            return (
                f"{told} That is its last value alone: `sums[index] += values` adds once for each slot, and the "
                "other updates are lost."
            )
        if np.abs(here).max() > 2.0**40:
            return f"{told} If you add in fixed point, the integers overflow: choose the scale from the largest value."
        return (
            f"{told} Add every value into its own slot, once. Rounding the answer, or leaving out small values, does "
            "not count: float32 itself loses less."
        )
    return ""


def _sums(rescue: Callable, index: np.ndarray, values: np.ndarray, slots: int) -> np.ndarray:
    """The answer. Raises AnswerFailed if it is no array of the right kind, or the inputs were changed."""
    given = index.copy(), values.copy()
    sums = _of_right_kind(call(rescue, *given, slots), index, slots)
    if given[0].tobytes() != index.tobytes() or given[1].tobytes() != values.tobytes():
        raise AnswerFailed(
            "Your function changes its inputs, as sort() does in place. Leave them alone: np.sort makes a copy."
        )
    return sums


def _of_right_kind(sums: Any, index: np.ndarray, slots: int) -> np.ndarray:
    if not isinstance(sums, np.ndarray) or sums.dtype != np.float32 or sums.shape != (slots,):
        found = f"{sums.dtype}{list(sums.shape)}" if isinstance(sums, np.ndarray) else type(sums).__name__
        raise AnswerFailed(
            f"With {_pairs(index)} the answer should be a float32 array of {slots:,} elements, one for each slot, not "
            f"{found}."
        )
    return sums


def _pairs(index: np.ndarray) -> str:
    return f"{index.size:,} pairs" if index.size else "no pairs at all"


def _depends_on_arrival(rescue: Callable, index: np.ndarray, values: np.ndarray, slots: int) -> str:
    """A sentence, with the misconception if it is a known one, if two orders of arrival give other bits."""
    rng = np.random.default_rng(1)
    arrivals = [rng.permutation(index.size) for _ in range(ARRIVALS)]
    answers = [_sums(rescue, index[order], values[order], slots) for order in arrivals]
    other = next((n for n, sums in enumerate(answers) if sums.tobytes() != answers[0].tobytes()), None)
    if other is None:
        return ""
    told = _other_bits(answers[0], answers[other])
    for way, advice in _WAYS_THAT_RACE.items():
        if all(
            way(index[arrivals[n]], values[arrivals[n]], slots).tobytes() == answers[n].tobytes()
            for n in (0, other)
        ):
            return f"{told} {advice}"
    return (
        f"{told} The order of arrival still shows. Rounding the answer, a wider format or a compensation makes that "
        "rarer, not gone. Give the values of a slot an order that does not depend on arrival, or add in a way that "
        "needs none."
    )


def _other_bits(first: np.ndarray, other: np.ndarray) -> str:
    """What differs, of two answers that differ."""
    slot = np.flatnonzero(first.view(np.int32) != other.view(np.int32))[0]
    return (
        f"The same pairs in another order of arrival give other bits: slot {slot} holds {first[slot]!s}, then "
        f"{other[slot]!s}."
    )


def _as_they_come(index: np.ndarray, values: np.ndarray, slots: int) -> np.ndarray:
    sums = np.zeros(slots, np.float32)
    np.add.at(sums, index, values)
    return sums


def _in_float64(index: np.ndarray, values: np.ndarray, slots: int) -> np.ndarray:
    return np.bincount(index, weights=values, minlength=slots).astype(np.float32)


def _segments(order: np.ndarray, index: np.ndarray, values: np.ndarray, slots: int) -> np.ndarray:
    """Sums of the slots' values, taken in the given order of the pairs, in which each slot's are together."""
    sums = np.zeros(slots, np.float32)
    present, starts = np.unique(index[order], return_index=True)
    sums[present] = np.add.reduceat(values[order], starts)
    return sums


def _sorted_by_slot(index: np.ndarray, values: np.ndarray, slots: int) -> np.ndarray:
    return _segments(np.argsort(index, kind="stable"), index, values, slots)


def _sorted_by_magnitude(index: np.ndarray, values: np.ndarray, slots: int) -> np.ndarray:
    return _segments(np.lexsort((np.abs(values), index)), index, values, slots)


def _sorted_by_magnitude_one_by_one(index: np.ndarray, values: np.ndarray, slots: int) -> np.ndarray:
    order = np.lexsort((np.abs(values), index))
    return _as_they_come(index[order], values[order], slots)


_BY_MAGNITUDE = "Sorted by magnitude, x and −x stand in order of arrival. Sort by the value itself."

_WAYS_THAT_RACE: Mapping[Callable[[np.ndarray, np.ndarray, int], np.ndarray], str] = {
    # Sorted by slot alone or not at all, it is the same sum.
    _as_they_come: (
        "Your additions still happen in order of arrival. A sort by slot alone keeps that order within each slot: sort "
        "by value, too, or add without rounding."
    ),
    _in_float64: "Float64 makes it rarer, not gone: it rounds, too, and rounding to float32 hides most of it, not all.",
    _sorted_by_slot: "Sorted by slot alone, the values within a slot still stand in order of arrival. Sort them, too.",
    _sorted_by_magnitude: _BY_MAGNITUDE,
    _sorted_by_magnitude_one_by_one: _BY_MAGNITUDE,
}


def _with_many_pairs(rescue: Callable) -> tuple[str, str]:
    """(what is wrong or "", the time that it took in words): so many pairs that a library may share the work among
    threads, which race even in one order of arrival. The time is shown and not judged, since one live timing is no
    evidence; and who needs too much memory for this has answered all the same."""
    index, values, slots = _many_pairs()
    rng = np.random.default_rng(2)
    answers, yours, racing = [], [], []
    for _ in range(3):
        order = rng.permutation(index.size)
        pairs = index[order], values[order], slots
        try:
            start = time.perf_counter()
            sums = call(rescue, *pairs)
            yours.append(time.perf_counter() - start)
        except AnswerFailed as failure:
            return "", f"Its time is not shown, since it did not manage {_pairs(index)}: {failure}"
        answers.append(_of_right_kind(sums, index, slots))
        start = time.perf_counter()
        _as_they_come(*pairs)
        racing.append(time.perf_counter() - start)
    for other in answers[1:]:
        if other.tobytes() != answers[0].tobytes():
            return (
                f"With {_pairs(index)}: {_other_bits(answers[0], other)} Few pairs are added by one thread, many by "
                "several, which race for a slot even if the pairs are sorted. Add in one thread, or without rounding."
            ), ""
    return "", (
        f"For {_pairs(index)} in {slots:,} slots it took {_plainly(1000 * min(yours))} ms here, "
        f"{_plainly(min(yours) / min(racing))} times as long as np.add.at in order of arrival."
    )


def _plainly(measured: float) -> str:
    """Never as 3.16e+03, which people in a hurry read as 3.16."""
    return f"{measured:.3g}" if measured < 100 else f"{measured:,.0f}"


# --- 02-statement ---------------------------------------------------------------------------------------

KEYS = ("v_s", "v_ermv", "v_c", "bound", "verdict")
VERDICTS = ("different", "same", "not enough evidence")
PERCENT = "A fraction, not a percentage."


def judge_statement(statement: Callable) -> Verdicts:
    for judge in (_judge_metrics, _judge_bits, _judge_verdicts):
        if wrong := judge(statement):
            yield 0, wrong
            return
    yield 2, "Right: the metrics, the bits, and a verdict with its bound, on eleven tables of runs."


def _judge_metrics(statement: Callable) -> str:
    for words, results in (("50 runs", _results(50)), ("50 runs with both signs", _signed_results())):
        said, repeats = _said(statement, results), results[1:]
        for key, (value, near) in _metrics(results[0], repeats).items():
            if _close(said[key], value):
                continue
            near[PERCENT] = 100 * value
            hint = next((hint for hint, wrong in near.items() if _close(said[key], wrong)), "")
            told = f"{key} of a table of {words} should be {value:.4g} and is {_number(said[key])}."
            return f"{told} {hint}".rstrip()
    return ""


def _metrics(reference: np.ndarray, repeats: np.ndarray) -> dict[str, tuple[float, dict[str, float]]]:
    """Of each metric the right value, and hints with the wrong values that they belong to."""
    a, b = reference.astype(np.float64), repeats.astype(np.float64)
    run_before = np.vstack([a, b[:-1]])
    against_it = "Compare with row 0, not with the run before."
    away = np.abs(a - b)
    relative = away / np.abs(a)
    differing = (repeats != reference).mean(axis=1)
    per_run = [variability.v_s(run[0], reference[0]) for run in repeats]
    with np.errstate(divide="ignore", invalid="ignore"):
        only_differing = np.nanmax(relative.mean(axis=1) / differing)
    return {
        "v_s": (
            max(map(abs, per_run)),
            {
                "It comes out in steps of 6e-8, as in float32. Convert to float64 before you divide.": float(
                    np.abs(np.float32(1) - np.abs(repeats[:, 0] / reference[0])).max()
                ),
                "Take the largest |V_s|, without its sign.": max(per_run),
                "V_s compares magnitudes: take |S / S_ref| first, then the distance from 1.": (
                    np.abs(1 - b[:, 0] / a[0]).max()
                ),
                "S_ref, the reference, is the denominator: row 0, for every run.": (
                    np.abs(1 - np.abs(a[0] / b[:, 0])).max()
                ),
                "V_s is of slot 0 alone.": np.abs(1 - np.abs(b / a)).max(),
            },
        ),
        "v_ermv": (
            relative.mean(axis=1).max(),
            {
                "That is the mean over the elements that differ; equal elements count as 0.": only_differing,
                "That is the mean over the runs; take the largest.": relative.mean(),
                "That is the largest element; V_ermv is a mean over the elements.": relative.max(),
                "Divide by |A|, the reference, not by the repeat.": (away / np.abs(b)).mean(axis=1).max(),
                "Divide by |A|, without its sign.": (away / a).mean(axis=1).max(),
                against_it: (np.abs(run_before - b) / np.abs(run_before)).mean(axis=1).max(),
            },
        ),
        "v_c": (
            differing.max(),
            {
                "That is a count; V_c is a fraction of the elements.": differing.max() * reference.size,
                "That is the mean over the runs; take the largest.": differing.mean(),
                against_it: (run_before != b).mean(axis=1).max(),
            },
        ),
    }


def _judge_bits(statement: Callable) -> str:
    zeros = _results(50, differing=())
    zeros[:, 5] = 0.0
    zeros[31, 5] = -0.0
    try:
        said = _said(statement, zeros)
    except AnswerFailed as failure:
        raise AnswerFailed(
            f"{failure} Here one run holds −0.0 and the others +0.0: a slot of the reference may hold 0, and Python's "
            "own floats raise where NumPy's give nan."
        ) from failure
    if said["verdict"] != "different" or not _close(said["v_c"], 1 / zeros.shape[1]):
        return "One run holds −0.0 where the others hold +0.0: `==` calls them equal, their bits differ. Compare bytes."
    nans = _results(50, differing=())
    nans[:, 5] = np.nan
    if _said(statement, nans)["verdict"] == "different":
        return (
            "All 50 runs hold the same NaN: `!=` says it differs from itself, its bits don't. Compare bytes."
        )
    undefined = _results(50)
    value, _ = _metrics(undefined[0], undefined[1:])["v_ermv"]
    # Slots that are equal in all runs anyway.
    equal = np.flatnonzero((undefined == undefined[0]).all(axis=0))[:2]
    undefined[:, equal] = np.nan, 0.0
    said = _said(statement, undefined)
    if not _close(said["v_ermv"], value):
        return (
            f"v_ermv of a table in which all runs hold the same NaN and the same 0 should be {value:.4g} and is "
            f"{_number(said['v_ermv'])}. Where the bits are equal, count 0, whatever |A − B| / |A| would be."
        )
    lost = _results(50, differing=())
    lost[1:, 5] = np.nan
    if _number(_said(statement, lost)["v_ermv"]) != "nan":
        return (
            "All repeats hold NaN where the reference holds a number: v_ermv should be nan there, since a mean without "
            "that slot, as np.nanmean takes it, hides the worst difference of all."
        )
    return ""


def _judge_verdicts(statement: Callable) -> str:
    for runs, kind, why in (
        (50, "same", "that is evidence, with a bound, and never a proof"),
        (10, "not enough evidence", "a verdict needs twenty runs or more"),
        (20, "same", "a verdict needs twenty runs or more, with the reference"),
        (19, "not enough evidence", "a verdict needs twenty runs or more, with the reference"),
    ):
        said = _said(statement, _results(runs, differing=()))
        if said["verdict"] != kind:
            return f"{runs} runs without a difference are {kind!r}, not {said['verdict']!r}: {why}."
        if wrong := _wrong_bound(said["bound"], runs):
            return wrong
    said = _said(statement, _results(5, differing=(3,)))
    if said["verdict"] != "different":
        return (
            f"5 runs of which one differs are 'different', not {said['verdict']!r}: one witness is enough, however "
            "few the runs."
        )
    if said["bound"] is not None:
        return "Where runs differ there is nothing left to bound: bound should be None there."
    return ""


def _wrong_bound(bound: Any, runs: int) -> str:
    m = runs - 1
    right = variability.bound(m)
    if _close(bound, right):
        return ""
    hints = {
        1 - 0.05 ** (1 / runs): "The reference is no repeat: of N runs, m = N − 1 are compared with it.",
        100 * right: PERCENT,
        3 / m: "3/m is the rule of thumb; the exact bound is 1 − 0.05^(1/m).",
        3 / runs: "3/m is the rule of thumb; the exact bound is 1 − 0.05^(1/m), with m = N − 1.",
    }
    hint = next((text for wrong, text in hints.items() if _close(bound, wrong)), "")
    if runs < variability.LEAST_RUNS and not hint:
        hint = "Few runs are bounded, too, if loosely: only where bits differ is there no bound."
    told = f"The bound for {runs} runs without a difference should be {right:.4f} and is {_number(bound)}."
    return f"{told} {hint}".rstrip()


def _results(runs: int, differing: tuple[int, ...] = (3, 17, 31, 32)) -> np.ndarray:
    """(runs, 16) float32: equal rows, but for the runs named, in which some elements are a few ULPs away."""
    rng = np.random.default_rng(7)
    results = np.tile(rng.uniform(20, 90, 16).astype(np.float32), (runs, 1))
    for run in differing:
        changed = np.unique(np.append(rng.integers(0, 16, 6), 0))
        steps = rng.integers(1, 9, changed.size).astype(np.int32)
        results[run, changed] = (results[run, changed].view(np.int32) + steps).view(np.float32)
    return results


def _signed_results() -> np.ndarray:
    """As `_results`, with both signs; in one run slot 0 has another sign and, by two percent, another magnitude, so
    that it matters which of the two sums is the denominator, and whether its sign counts."""
    results = _results(50)
    results[:, ::2] *= -1
    results[17, 0] *= -0.98
    return results


def _said(statement: Callable, results: np.ndarray) -> dict[str, Any]:
    # Some tables hold a 0 or NaN on purpose: dividing by it is no mistake where the bits are equal.
    with np.errstate(divide="ignore", invalid="ignore"):
        said = call(statement, results.copy())
    if not isinstance(said, dict) or set(said) != set(KEYS):
        raise AnswerFailed(f"Return a dict with the keys {', '.join(KEYS)} and no others.")
    if said["verdict"] not in VERDICTS:
        *words, last = map(repr, VERDICTS)
        raise AnswerFailed(
            f"verdict is {short(said['verdict'])}; the words are {', '.join(words)} and {last}. Runs are evidence, and "
            "never a proof."
        )
    return said


def _close(value: Any, wanted: float) -> bool:
    """Whether `value` is `wanted` but for how the arithmetic was arranged, in float64."""
    try:
        return math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-15)
    except TypeError:
        return False


def _number(value: Any) -> str:
    try:
        return f"{value:.4g}"
    except (TypeError, ValueError):
        return short(value)


EXERCISES = (
    Exercise("02-block-tree", "The block tree", points=kernels.POINTS, judge=judge_block_tree),
    Exercise("02-rescue", "Rescue a racing accumulation", points=2, judge=judge_rescue),
    Exercise("02-statement", "From fifty runs to a statement", points=2, judge=judge_statement),
)
