"""The exercises of chapter 02: a block tree, a race rescued, and what fifty runs prove."""

from __future__ import annotations

import inspect
import math
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from samebits import kernels, runner, variability
from samebits.lab.check import AnswerFailed, Exercise, NotAttempted, call

Verdicts = Iterator[tuple[float, str]]


# --- 02-block-tree --------------------------------------------------------------------------------------


def judge_block_tree(kernel: Callable) -> Verdicts:
    """The kernel runs in a worker: it may have no end, and numba must not be imported here before its time."""
    if not inspect.isfunction(kernel):
        raise AnswerFailed(f"Check the kernel itself, a function; this is a {type(kernel).__name__}.")
    try:
        source = textwrap.dedent(inspect.getsource(kernel))
    except (OSError, TypeError) as error:
        raise AnswerFailed("The kernel's text cannot be read. Run the cell that defines it again.") from error
    try:
        answer = runner.call(
            "samebits.kernels:judge_block_sum",
            {"source": source, "name": kernel.__name__},
            environment=kernels.environment(simulate=True),
        )
    except runner.RunFailed as failure:
        raise AnswerFailed(f"The kernel could not be judged. {failure}") from failure
    if not answer["attempted"]:
        raise NotAttempted
    yield from ((0, sentence) for sentence in answer["sentences"][:-1])
    yield answer["points"], answer["sentences"][-1]


# --- 02-rescue ------------------------------------------------------------------------------------------

ARRIVALS = 24  # orders of arrival that each set of pairs is given in


def judge_rescue(rescue: Callable) -> Verdicts:
    for pairs in (_ordinary_pairs(), _no_pairs(), _large_pairs()):
        if wrong := _wrong_sums(rescue, *pairs):
            yield 0, wrong
            return
    for pairs in (_ordinary_pairs(), _cancelling_pairs()):
        if wrong := _depends_on_arrival(rescue, *pairs):
            yield 0, wrong
            return
    yield (
        2,
        f"The same bits in {ARRIVALS} orders of arrival, also where large values cancel. {_speed(rescue)}",
    )


def _ordinary_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """(index, values, slots): slots of some hundred values, and one slot, 3, that gets none."""
    rng = np.random.default_rng(20240805)
    index = rng.choice([0, 1, 2, 4, 5, 6], 3_000)
    return index.astype(np.int64), rng.standard_normal(3_000, dtype=np.float32), 7


def _no_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    return np.zeros(0, np.int64), np.zeros(0, np.float32), 4


def _large_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """Values that 64-bit fixed point holds only if its scale was chosen for them."""
    return np.array([0, 1, 0]), np.array([2.0**45, -(2.0**44), 2.0**43], np.float32), 2


def _cancelling_pairs() -> tuple[np.ndarray, np.ndarray, int]:
    """Slots in which 2^45 and −2^45 meet small values.

    Even float64 loses part of the small ones, more or less by the order. Their sums lie beside 0.5, 0.05 …, the
    edges of rounding to 0, 1, … decimals, so that rounding the answer shows the order as well. In the last slot
    two values of one magnitude meet a third that only one of their orders keeps.
    """
    unit = 2.0**-22  # below what 80-bit floats, NumPy's longdouble on x86, can hold beside 2^45
    slots = []
    for decimals in range(5):
        edge = 0.5 * 10.0**-decimals
        parts = np.round(np.array([0.37, 0.29, 0.17, 0.11]) * edge / unit) * unit
        slots.append([2.0**45, *parts, -(2.0**45), edge - parts.sum()])
    slots.append([1.0, 2.0**21, 2.0**45, -(2.0**45)])
    index = np.repeat(np.arange(len(slots)), [len(slot) for slot in slots])
    return index.astype(np.int64), np.concatenate(slots).astype(np.float32), len(slots)


def _wrong_sums(rescue: Callable, index: np.ndarray, values: np.ndarray, slots: int) -> str:
    """A sentence if the answer is not an array of about the right sums, or ""."""
    given = index.copy(), values.copy()
    sums = call(rescue, *given, slots)
    words = "no pairs at all" if not index.size else f"{index.size:,} pairs"
    if given[0].tobytes() != index.tobytes() or given[1].tobytes() != values.tobytes():
        return "Your function changes its inputs, as sort() does in place. Leave them alone: np.sort makes a copy."
    if not isinstance(sums, np.ndarray) or sums.dtype != np.float32 or sums.shape != (slots,):
        found = f"{sums.dtype}{list(sums.shape)}" if isinstance(sums, np.ndarray) else type(sums).__name__
        return f"With {words} the answer should be a float32 array of {slots} elements, one for each slot, not {found}."
    for slot in range(slots):
        here = values[index == slot].astype(np.float64)
        exact = math.fsum(here)
        # Wide enough for any order in float32 and for fixed point with 20 fraction bits.
        if abs(float(sums[slot]) - exact) <= (len(here) + 1) * 2.0**-20 * max(1.0, np.abs(here).sum()):
            continue
        told = f"With {words}, slot {slot} should hold {exact:.7g} and holds {float(sums[slot]):.7g}."
        if not here.size:
            return (
                f"{told} Nothing arrives in it, so it is an empty slot, and its sum is 0. (np.add.reduceat gives an "
                "empty segment the element that follows.)"
            )
        if here.size > 1 and sums[slot] == values[index == slot][-1]:
            return (
                f"{told} That is its last value alone: `sums[index] += values` adds once for each slot, and the "
                "other updates are lost."
            )
        if np.abs(here).max() > 2.0**40:
            return f"{told} If you add in fixed point, the integers overflow: choose the scale from the largest value."
        return f"{told} Add every value into its own slot, once."
    return ""


def _depends_on_arrival(rescue: Callable, index: np.ndarray, values: np.ndarray, slots: int) -> str:
    """A sentence, with the misconception if it is a known one, if two orders of arrival give other bits."""
    rng = np.random.default_rng(1)
    arrivals = [rng.permutation(index.size) for _ in range(ARRIVALS)]
    answers = [call(rescue, index[order], values[order], slots) for order in arrivals]
    other = next((n for n, sums in enumerate(answers) if sums.tobytes() != answers[0].tobytes()), None)
    if other is None:
        return ""
    slot = next(n for n in range(slots) if answers[0][n].tobytes() != answers[other][n].tobytes())
    told = (
        f"The same pairs in another order of arrival give other bits: slot {slot} holds {answers[0][slot]!s}, "
        f"then {answers[other][slot]!s}."
    )
    for way, advice in _WAYS_THAT_RACE.items():
        if all(
            way(index[arrivals[n]], values[arrivals[n]], slots).tobytes() == answers[n].tobytes()
            for n in (0, other)
        ):
            return f"{told} {advice}"
    return (
        f"{told} Rounding the answer moves the edge at which runs part, and does not remove it. Give the values "
        "of a slot an order that does not depend on arrival, or add in a way that needs none."
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


_WAYS_THAT_RACE: Mapping[Callable[[np.ndarray, np.ndarray, int], np.ndarray], str] = {
    _as_they_come: "Your additions still happen in order of arrival. Sort the pairs first, or add without rounding.",
    _in_float64: "Float64 makes it rarer, not gone: it rounds, too, and rounding to float32 hides most of it, not all.",
    _sorted_by_slot: "Sorted by slot alone, the values within a slot still stand in order of arrival. Sort them, too.",
    _sorted_by_magnitude: "Sorted by magnitude, x and −x stand in order of arrival. Sort by the value itself.",
}


def _speed(rescue: Callable) -> str:
    """Shown and not judged: one live timing is no evidence."""
    rng = np.random.default_rng(3)
    pairs = rng.integers(0, 1_000, 100_000), rng.standard_normal(100_000, dtype=np.float32), 1_000
    yours, racing = _seconds(rescue, *pairs), _seconds(_as_they_come, *pairs)
    return (
        f"For 100,000 pairs in 1,000 slots it took {1000 * yours:.3g} ms here, "
        f"{yours / racing:.3g} times as long as np.add.at in order of arrival."
    )


def _seconds(function: Callable, *pairs: Any) -> float:
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        function(*pairs)
        best = min(best, time.perf_counter() - start)
    return best


# --- 02-statement ---------------------------------------------------------------------------------------

KEYS = ("v_s", "v_ermv", "v_c", "bound", "verdict")


def judge_statement(statement: Callable) -> Verdicts:
    for judge in (_judge_metrics, _judge_bits, _judge_verdicts):
        if wrong := judge(statement):
            yield 0, wrong
            return
    yield 2, "Right: the metrics, the bits, and a verdict with its bound, on six tables of runs."


def _judge_metrics(statement: Callable) -> str:
    results = _results(50)
    said = _said(statement, results)
    reference, repeats = results[0], results[1:]
    wide = reference.astype(np.float64)
    relative = np.abs(wide - repeats.astype(np.float64)) / np.abs(wide)
    differing = (repeats != reference).mean(axis=1)
    right = {
        "v_s": max(abs(variability.v_s(run[0], reference[0])) for run in repeats),
        "v_ermv": relative.mean(axis=1).max(),
        "v_c": differing.max(),
    }
    with np.errstate(divide="ignore", invalid="ignore"):
        only_differing = np.nanmax(relative.sum(axis=1) / (repeats != reference).sum(axis=1))
    near = {
        "v_s": {
            "It comes out in steps of 6e-8, as in float32. Convert to float64 before you divide.": float(
                np.abs(np.float32(1) - np.abs(repeats[:, 0] / reference[0])).max()
            ),
            "Take the largest |V_s|, without its sign.": max(
                variability.v_s(run[0], reference[0]) for run in repeats
            ),
        },
        "v_ermv": {
            "That is the mean over the elements that differ; equal elements count as 0.": float(
                only_differing
            ),
            "That is the mean over the runs; take the largest.": relative.mean(),
            "That is the largest element; V_ermv is a mean over the elements.": relative.max(),
        },
        "v_c": {
            "That is a count; V_c is a fraction of the elements.": differing.max() * reference.size,
            "That is the mean over the runs; take the largest.": differing.mean(),
        },
    }
    for key, value in right.items():
        if _close(said[key], value):
            continue
        hint = next((words for words, wrong in near[key].items() if _close(said[key], wrong)), "")
        told = f"{key} of a table of 50 runs should be {value:.4g} and is {_number(said[key])}."
        return f"{told} {hint}".rstrip()
    return ""


def _judge_bits(statement: Callable) -> str:
    zeros = _results(50, differing=())
    zeros[:, 5] = 0.0
    zeros[31, 5] = -0.0
    said = _said(statement, zeros)
    if said["verdict"] != "different" or not _close(said["v_c"], 1 / zeros.shape[1]):
        return "One run holds −0.0 where the others hold +0.0: `==` calls them equal, their bits differ. Compare bytes."
    nans = _results(50, differing=())
    nans[:, 5] = np.nan
    if _said(statement, nans)["verdict"] == "different":
        return (
            "All 50 runs hold the same NaN: `!=` says it differs from itself, its bits don't. Compare bytes."
        )
    return ""


def _judge_verdicts(statement: Callable) -> str:
    said = _said(statement, _results(50, differing=()))
    words = "50 runs without a difference"
    if said["verdict"] != "same":
        return (
            f"{words} are 'same', not {said['verdict']!r}: that is evidence, with a bound, and never a proof."
        )
    if not _close(said["bound"], variability.bound(49)):
        hints = {
            1 - 0.05 ** (1 / 50): "The reference is no repeat: of N runs, m = N − 1 are compared with it.",
            3 / 49: "3/m is the rule of thumb; the exact bound is 1 − 0.05^(1/m).",
            3 / 50: "3/m is the rule of thumb; the exact bound is 1 − 0.05^(1/m), with m = N − 1.",
        }
        hint = next((text for wrong, text in hints.items() if _close(said["bound"], wrong)), "")
        told = f"The bound for {words} should be {variability.bound(49):.4f} and is {_number(said['bound'])}."
        return f"{told} {hint}".rstrip()
    said = _said(statement, _results(10, differing=()))
    if said["verdict"] != "not enough evidence":
        return (
            f"10 runs without a difference are 'not enough evidence', not {said['verdict']!r}: a verdict needs "
            "twenty runs or more."
        )
    said = _said(statement, _results(5, differing=(3,)))
    if said["verdict"] != "different":
        return (
            f"5 runs of which one differs are 'different', not {said['verdict']!r}: one witness is enough, however "
            "few the runs."
        )
    if said["bound"] is not None:
        return "Where runs differ there is nothing left to bound: bound should be None there."
    return ""


def _results(runs: int, differing: tuple[int, ...] = (3, 17, 31, 32)) -> np.ndarray:
    """(runs, 16) float32: equal rows, but for the runs named, in which some elements are a few ULPs away."""
    rng = np.random.default_rng(7)
    results = np.tile(rng.uniform(20, 90, 16).astype(np.float32), (runs, 1))
    for run in differing:
        changed = np.unique(np.append(rng.integers(0, 16, 6), 0))
        steps = rng.integers(1, 9, changed.size).astype(np.int32)
        results[run, changed] = (results[run, changed].view(np.int32) + steps).view(np.float32)
    return results


def _said(statement: Callable, results: np.ndarray) -> dict[str, Any]:
    said = call(statement, results.copy())
    if not isinstance(said, dict) or set(said) != set(KEYS):
        raise AnswerFailed(f"Return a dict with the keys {', '.join(KEYS)} and no others.")
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
        return repr(value)


EXERCISES = (
    Exercise("02-block-tree", "The block tree", points=kernels.POINTS, judge=judge_block_tree),
    Exercise("02-rescue", "Rescue a racing accumulation", points=2, judge=judge_rescue),
    Exercise("02-statement", "From fifty runs to a statement", points=2, judge=judge_statement),
)
