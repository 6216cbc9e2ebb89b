"""Orders of summation: one set of numbers, added in different ways.

    permuted_serial_sums(x, runs=1000, seed=1)   # a thousand answers to one sum
    pairwise(x), kahan(x), fixed_point(x)        # sums that depend less on the order, or not at all

Each function takes a 1-d array of float16, float32 or float64 and adds in that dtype: every partial sum is
rounded to it, as on a machine that has nothing wider. Sums start from +0.0; the empty sum is +0.0. NaN and
infinities behave as IEEE 754 says, where nothing else is stated. ValueError, in one sentence, for anything
else than such an array.

The loops below are compiled by numba where it is installed and supports the dtype (float16 it does not), and
run as plain Python otherwise, some hundred times slower. They give the same bits: compiled without
"fast math", no sum is reordered, no product is fused into it, and no compensation is optimised away.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

# --- Sums whose answer depends on the order -------------------------------------------------------------


def serial(x: Any) -> np.floating:
    """From the first element to the last, each added to the running total."""
    x = _checked(x)
    with np.errstate(over="ignore", invalid="ignore"):
        # accumulate stores every partial, so it must add one by one; np.sum would add pairwise.
        partials = np.add.accumulate(x) if x.size else np.zeros(1, x.dtype)
        return partials[-1] + x.dtype.type(0)


def permuted(x: Any, seed: int = 0, run: int = 0) -> np.floating:
    """Serial sum in the order `permutation(len(x), seed, run)`."""
    x = _checked(x)
    return serial(x[permutation(x.size, seed, run)])


def permuted_serial_sums(x: Any, runs: int, seed: int = 0, threads: int | None = None) -> np.ndarray:
    """`runs` serial sums of x, each in a random order of its own: an array of shape [runs] in x's dtype.

    Run r adds in the order `permutation(len(x), seed, r)`. The result depends on x and the seed alone, not on
    `threads`, over which the runs are spread (default: one for each core), and not on `runs`: the first ten
    of a thousand are the ten of ten.
    """
    x = _checked(x)
    sums = np.zeros(runs, x.dtype)
    if not x.size or not runs:
        return sums
    states = _start_states(seed, runs)
    threads = min(threads or os.cpu_count() or 1, runs)
    shuffle_and_sum = _compiled(_shuffle_and_sum, x.dtype)

    def some(first: int) -> None:
        for run in range(first, runs, threads):
            sums[run] = shuffle_and_sum(x.copy(), states[run])

    # The compiled loop holds no lock of the interpreter, so plain threads run it side by side. numba's own
    # parallel loops would start a second pool of threads beside torch's.
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, range(threads)))
    return sums


def permutation(n: int, seed: int = 0, run: int = 0) -> np.ndarray:
    """The random order in which run `run` adds n numbers: an int64 array with each of 0 … n−1 once."""
    order = np.arange(n, dtype=np.int64)
    if n:
        _compiled(_shuffle_and_sum, order.dtype)(order, _start_states(seed, run + 1)[run])
    return order


def _start_states(seed: int, runs: int) -> np.ndarray:
    """One 64-bit state for each run; those of fewer runs are the first of those of more."""
    return np.random.SeedSequence(seed).generate_state(runs, np.uint64)


def _shuffle_and_sum(values, state):
    """Shuffles `values` in place (Fisher–Yates, from the front) and adds each the moment it has its place.

    The random numbers are SplitMix64's (Steele, Lea & Flood, OOPSLA 2014), started at `state`. Their upper
    32 bits choose among the elements left, by multiplication (Lemire, ACM TOMACS 2019) without his rejection
    step: for n elements, each probability is off by less than n / 2^32 of itself.
    """
    half = np.uint64(32)
    total = values.dtype.type(0)
    for i in range(values.size):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
        left = np.uint64(values.size - i)
        j = np.uint64(i) + (((mixed >> half) * left) >> half)
        chosen = values[j]
        values[j] = values[i]
        values[i] = chosen
        total = total + chosen
    return total


def pairwise(x: Any) -> np.floating:
    """Neighbours are added in pairs, then the neighbouring sums in pairs, until one is left; an odd one waits.

    A tree of ⌈log2 n⌉ levels. np.sum is a relative: it adds blocks of up to 128 with eight running totals,
    then the blocks in such a tree.
    """
    x = _checked(x)
    if not x.size:
        return x.dtype.type(0)
    with np.errstate(over="ignore", invalid="ignore"):
        while x.size > 1:
            even = x.size // 2 * 2
            x = np.concatenate([x[0:even:2] + x[1:even:2], x[even:]])
        return x[0] + x.dtype.type(0)


def block_tree(x: Any, block: int = 256) -> np.floating:
    """What a GPU does with a tree in each block of threads, and the blocks added serially, in their order.

    On a GPU with one atomic addition for each block, the blocks come in the order in which they finish:
    `permuted(block_partials(x, block))` is such a run.
    """
    return serial(block_partials(x, block))


def block_partials(x: Any, block: int = 256) -> np.ndarray:
    """Each block's sum: element t is added to element t − stride for stride = block/2, …, 2, 1.

    block    threads of a block, a power of two; the last block is filled up with zeros
    returns  array of shape [⌈n / block⌉] in x's dtype
    """
    x = _checked(x)
    if block < 1 or block & (block - 1):
        raise ValueError(f"A tree needs a block size that is a power of two, such as 256, not {block}.")
    partials = np.zeros((-(-x.size // block), block), x.dtype)
    partials.reshape(-1)[: x.size] = x
    with np.errstate(over="ignore", invalid="ignore"):
        while partials.shape[1] > 1:
            stride = partials.shape[1] // 2
            partials = partials[:, :stride] + partials[:, stride:]
    return partials[:, 0]


# --- Compensated sums -----------------------------------------------------------------------------------


def kahan(x: Any) -> np.floating:
    """Compensated sum: what each addition rounds off is subtracted from the next element (Kahan 1965).

    An infinity among the elements, or an overflow on the way, gives NaN: the compensation becomes ∞ − ∞.
    """
    return _looped(_kahan, x)


def neumaier(x: Any) -> np.floating:
    """Compensated sum that also survives elements larger than the running total (Neumaier 1974).

    What the additions round off is added up apart, and joined at the end. Infinities as in `kahan`.
    """
    return _looped(_neumaier, x)


def _kahan(values):
    total = values.dtype.type(0)
    excess = values.dtype.type(0)  # how much more than it should `total` holds
    for value in values:
        wanted = value - excess
        new_total = total + wanted
        excess = (new_total - total) - wanted
        total = new_total
    return total


def _neumaier(values):
    total = values.dtype.type(0)
    lost = values.dtype.type(0)
    for value in values:
        new_total = total + value
        if abs(total) >= abs(value):
            lost = lost + ((total - new_total) + value)
        else:
            lost = lost + ((value - new_total) + total)
        total = new_total
    return total + lost


# --- Sums that any order gives --------------------------------------------------------------------------


def exact(x: Any) -> float:
    """The exact sum, rounded once to float64 (math.fsum); a Python float, whatever x's dtype.

    Not in x's dtype, because it is the reference for the error of the others. Infinities of both signs give
    NaN. OverflowError if a partial sum exceeds the largest float64.
    """
    values = _checked(x).tolist()
    if math.inf in values and -math.inf in values:
        return math.nan
    try:
        return math.fsum(values)
    except OverflowError:
        raise OverflowError(
            "The exact sum leaves the range of float64 on its way; divide the numbers by a power of two first."
        ) from None


def fixed_point(x: Any, fraction_bits: int = 40) -> np.floating:
    """Sum of integers: each element is rounded to a multiple of 2^−fraction_bits, and those add exactly.

    Integer addition is associative, so every order gives the same bits; what is lost is lost element by
    element, at most 2^−(fraction_bits + 1) each (float32 elements of 2^−17 and more lose nothing at 40). The
    integers are 64-bit, as on a GPU: total and elements must stay below 2^(63 − fraction_bits), 8.4 million
    at 40. That partial sums may wrap around on the way does no harm: they wrap back.
    The total is rounded to float64 and then to x's dtype.

    Raises ValueError for infinities and NaN, OverflowError if an element or the total does not fit.
    """
    x = _checked(x)
    if not np.isfinite(x).all():
        raise ValueError("Fixed point has no infinity and no NaN; remove them from the array first.")
    if (np.abs(x.astype(np.float64)) >= 2.0 ** (63 - fraction_bits)).any():
        raise _too_large("An element", fraction_bits)
    integers = np.rint(np.ldexp(x.astype(np.float64), fraction_bits)).astype(np.int64)
    # Upper and lower halves apart cannot wrap for fewer than 2^31 elements, so this is the true total.
    total = (int((integers >> 32).sum()) << 32) + int((integers & 0xFFFFFFFF).sum())
    if not -(2**63) <= total < 2**63:
        raise _too_large("The total", fraction_bits)
    with np.errstate(over="ignore"):
        return x.dtype.type(total / 2**fraction_bits)


def _too_large(what: str, fraction_bits: int) -> OverflowError:
    return OverflowError(
        f"{what} reaches 2^{63 - fraction_bits} in magnitude, where 64-bit fixed point with {fraction_bits} "
        "fraction bits ends; use fewer fraction bits."
    )


# --- How large the error can be -------------------------------------------------------------------------
#
# From Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., SIAM 2002, chapter 4. u is half the
# distance from 1 to the next float (2^−24 for float32), γ_k = k·u / (1 − k·u), and Σ|x| the sum of magnitudes.
# They hold for any order and barring overflow; the error seen is usually far smaller.


def bound_serial(n: int, dtype: Any, abs_sum: float) -> float:
    """Largest error of a serial sum of n numbers: γ_(n−1) · Σ|x|. Grows as n."""
    return _gamma(n - 1, dtype) * abs_sum


def bound_pairwise(n: int, dtype: Any, abs_sum: float) -> float:
    """Largest error of a pairwise sum of n numbers: γ_⌈log2 n⌉ · Σ|x|. Grows as log n."""
    return _gamma((n - 1).bit_length() if n > 1 else 0, dtype) * abs_sum


def bound_kahan(n: int, dtype: Any, abs_sum: float) -> float:
    """Largest error of Kahan's sum of n numbers, to first order: 2u · Σ|x|. Does not grow with n.

    The next term is of the order of n·u²·Σ|x|, which only counts when n approaches 1/u (2^24 in float32).
    """
    return 2 * _unit_roundoff(dtype) * abs_sum if n > 1 else 0.0


def _gamma(k: int, dtype: Any) -> float:
    ku = max(k, 0) * _unit_roundoff(dtype)
    return ku / (1 - ku) if ku < 1 else math.inf


def _unit_roundoff(dtype: Any) -> float:
    return float(np.finfo(dtype).eps) / 2


# --- Helpers --------------------------------------------------------------------------------------------


def _checked(x: Any) -> np.ndarray:
    array = np.asarray(x)
    if array.ndim != 1 or array.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(
            f"A sum needs a 1-d array of float16, float32 or float64, not {array.dtype}{list(array.shape)}."
        )
    return np.ascontiguousarray(array)


def _looped(loop: Callable, x: Any) -> np.floating:
    x = _checked(x)
    return x.dtype.type(_compiled(loop, x.dtype)(x))


@functools.cache
def _compiled(loop: Callable, dtype: np.dtype) -> Callable:
    """`loop` compiled for arrays of `dtype`, or the plain loop where numba cannot."""
    try:
        import numba
    except ImportError:
        numba = None
    if numba is None or dtype == np.float16:
        return _plain(loop)
    return numba.njit(cache=True, nogil=True)(loop)


def _plain(loop: Callable) -> Callable:
    def run(*arguments):
        # Wrapping integers are meant in the shuffle, and inf and NaN are results like others.
        with np.errstate(over="ignore", invalid="ignore"):
            return loop(*arguments)

    return run
