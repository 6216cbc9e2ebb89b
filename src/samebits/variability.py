"""How much results vary, and what a number of runs proves about it.

    verdict(["sha256:ab…", "sha256:ab…", …]).sentence
    # "Same so far: one answer in 20 runs in one process; if it ever differs, it does so in fewer than
    #  15 % of runs (95 % bound)."

The metrics V_s, V_ermv and V_c are those of Shanmugavelu et al., "Impacts of floating-point
non-associativity on reproducibility for HPC and deep learning applications", arXiv:2408.05148 (2024).
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_RUNS = 20
LEAST_PROCESSES = 2


@dataclass(frozen=True)
class Verdict:
    """What the runs show, which is never "deterministic".

    kind       "same", "different" or "not enough evidence"
    runs       number of runs, the first of which is the reference
    processes  number of processes that they ran in
    distinct   number of distinct fingerprints
    bound      95 % upper bound on the share of runs that differ from the reference, 0..1; None where the
               runs already differ or cannot be compared, and where there is no run
    reason     the clause that says why, without the full stop
    """

    kind: str
    runs: int
    processes: int
    distinct: int
    bound: float | None
    reason: str

    @property
    def sentence(self) -> str:
        opening = {"same": "Same so far", "different": "Different"}.get(self.kind, "Not enough evidence")
        return f"{opening}: {self.reason}."


def verdict(
    fingerprints: Sequence[str],
    processes: int = 1,
    per_process: bool = False,
    inputs: Sequence[str] | None = None,
) -> Verdict:
    """What the fingerprints of some runs' outputs show.

    processes    in how many processes the runs happened
    per_process  True if a setting acts once per process, so that runs within one process say little
    inputs       fingerprints of what went in, one for each run, where they are known

    Two distinct fingerprints from equal inputs are different after any number of runs. No difference is
    "same" only from 20 runs on, and from two processes on where `per_process`. Runs with unequal inputs
    get no verdict. Raises ValueError for fingerprints of two algorithms, or inputs of another number.
    """
    runs, answers = len(fingerprints), distinct(fingerprints)
    if inputs is not None and len(inputs) != runs:
        raise ValueError(f"{runs} runs need {runs} input fingerprints, not {len(inputs)}.")
    different_inputs = 1 if inputs is None else distinct(inputs)
    limit = bound(runs - 1) if runs and answers == 1 and different_inputs <= 1 else None
    where = "in one process" if processes <= 1 else f"in {processes} processes"

    kind = "not enough evidence"
    if runs == 0:
        reason = f"nothing has run yet; a verdict needs at least {LEAST_RUNS} runs"
    elif different_inputs > 1:
        reason = f"the runs had {different_inputs} different inputs, so their answers cannot be compared"
    elif answers > 1:
        kind = "different"
        reason = f"{answers} answers in {runs} runs" + (f" {where}" if processes > 1 else "")
    elif runs < LEAST_RUNS:
        reason = f"{'one run' if runs == 1 else f'{runs} runs'}; a verdict needs at least {LEAST_RUNS}"
    elif per_process and processes < LEAST_PROCESSES:
        reason = (
            f"{runs} runs {where}; what you set acts per process, so a verdict needs at least two processes"
        )
    else:
        kind = "same"
        reason = (
            f"one answer in {runs} runs {where}; if it ever differs, it does so in fewer than "
            f"{_percent_rounded_up(limit)} of runs (95 % bound)"
        )
    return Verdict(kind, runs, processes, answers, limit, reason)


def bound(repeats: int) -> float:
    """95 % upper bound on the rate of a difference that `repeats` repeats after the reference did not show.

    With rate p, m independent repeats all agree with the reference with probability (1 − p)^m. The largest
    p at which that still happens in 5 % of such experiments is 1 − 0.05^(1/m): the exact (Clopper–Pearson,
    one-sided) bound for none in m, of which "3/m" is the rule of thumb. No repeat bounds nothing: 1.0.
    It assumes that repeats are independent, which runs within one process may not be.
    """
    if repeats < 0:
        raise ValueError(f"The number of repeats cannot be negative, as {repeats} is.")
    if repeats == 0:
        return 1.0
    # expm1 keeps the digits that 1 − 0.05**(1/m) would cancel for large m.
    return -math.expm1(math.log(0.05) / repeats)


def distinct(fingerprints: Sequence[str]) -> int:
    """Number of distinct fingerprints. Raises ValueError if they come from more than one algorithm."""
    algorithms = sorted({fingerprint.rpartition(":")[0] for fingerprint in fingerprints})
    if len(algorithms) > 1:
        raise ValueError(
            f"Fingerprints of different algorithms ({', '.join(algorithms)}) cannot be compared; "
            "make all of them with one algorithm."
        )
    return len(set(fingerprints))


def letters(fingerprints: Sequence[str]) -> list[str]:
    """One letter for each run: A for the fingerprint seen first, B for the next new one, … Z, AA, AB …"""
    names: dict[str, str] = {}
    for fingerprint in fingerprints:
        if fingerprint not in names:
            names[fingerprint] = _letter(len(names))
    return [names[fingerprint] for fingerprint in fingerprints]


def v_s(varying: float, reference: float) -> float:
    """V_s = 1 − |S_nd / S_d|: how far a scalar result is from the reference (arXiv:2408.05148).

    Zero if and only if the two have equal magnitudes; negative if `varying` is the larger one. Against a
    reference of zero the ratio does not exist: 0.0 if `varying` is zero too, otherwise −infinity.
    """
    varying, reference = float(varying), float(reference)
    if reference == 0:
        return 0.0 if varying == 0 else math.nan if math.isnan(varying) else -math.inf
    return 1 - abs(varying / reference)


def v_ermv(reference: Any, varying: Any) -> float:
    """V_ermv: mean over the elements of |A − B| / |A| (arXiv:2408.05148), computed in float64.

    `reference` A and `varying` B are arrays or tensors of one shape and dtype. Elements of equal bits count
    as 0, also where A is zero; where only A is zero the mean is infinite. (The code published with the paper
    adds 1e-8 to the denominator instead, which hides differences of small elements.) 0.0 for empty arrays.
    """
    a, b = _pair(reference, varying)
    differing = _differing(a, b)
    if not differing.any():
        return 0.0
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a[differing].astype(wide), b[differing].astype(wide)
    difference = np.abs(a - b)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(difference == 0, 0.0, difference / np.abs(a))
    return float(relative.sum() / differing.size)


def v_c(reference: Any, varying: Any) -> float:
    """V_c: fraction of the elements whose bits differ (arXiv:2408.05148), 0.0 to 1.0.

    Arrays or tensors of one shape and dtype. Bits, not values: +0.0 and −0.0 differ, a NaN equals itself.
    0.0 for empty arrays.
    """
    differing = _differing(*_pair(reference, varying))
    return float(differing.mean()) if differing.size else 0.0


def _pair(reference: Any, varying: Any) -> tuple[np.ndarray, np.ndarray]:
    a, b = _array(reference), _array(varying)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(
            f"Only results of one shape and dtype can be compared, not {a.dtype}{list(a.shape)} "
            f"with {b.dtype}{list(b.shape)}."
        )
    return a, b


def _array(x: Any) -> np.ndarray:
    if hasattr(x, "detach"):
        x = x.detach().cpu()
        try:
            return np.atleast_1d(x.numpy())
        except TypeError:  # NumPy has no bfloat16 and no float8; float64 holds their values exactly
            return np.atleast_1d(x.double().numpy())
    return np.atleast_1d(np.asarray(x))


def _differing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Whether the bytes of each element differ: a bool array of the arrays' shape."""
    bytes_a = np.ascontiguousarray(a).reshape(-1, 1).view(np.uint8)
    bytes_b = np.ascontiguousarray(b).reshape(-1, 1).view(np.uint8)
    return (bytes_a != bytes_b).any(axis=1).reshape(a.shape)


def _letter(index: int) -> str:
    """0 → A, 25 → Z, 26 → AA, as the columns of a spreadsheet."""
    letter = ""
    index += 1
    while index:
        index, place = divmod(index - 1, 26)
        letter = string.ascii_uppercase[place] + letter
    return letter


def _percent_rounded_up(share: float) -> str:
    """Two digits, rounded up: "fewer than 15 %" stays true where 14.6 % is the bound."""
    percent = 100 * share
    digits = 1 - math.floor(math.log10(percent))
    return f"{math.ceil(percent * 10**digits) / 10**digits:g} %"
