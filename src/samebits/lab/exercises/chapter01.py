"""Judges of chapter 01: decode a float, count ULPs, find an order that matters, and sum in three better ways.

Every judge of a function tries several inputs, each chosen because a typical mistake shows in it, and stops at
the first mistake: one sentence at a time can be acted upon.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from samebits.bits import from_bits, ulp_distance
from samebits.lab.check import AnswerFailed, Exercise, call, short

Verdicts = Iterator[tuple[float, str]]

# --- Decode a float -------------------------------------------------------------------------------------

# π rounded, 1.0, −123.456 rounded, 0.1 rounded, the smallest normal number, the largest number. π comes first, since
# the patterns of whole powers of two give the same wrong value for different mistakes.
NORMAL = (0x40490FDB, 0x3F800000, 0xC2F6E979, 0x3DCCCCCD, 0x00800000, 0x7F7FFFFF)
# The largest and the smallest subnormal number, one in between, a negative one, and both zeros.
SMALL = (0x007FFFFF, 0x00000001, 0x00345678, 0x80000400, 0x00000000, 0x80000000)


def judge_decode(decode: Callable) -> Verdicts:
    """decode(pattern) → the value of a float32 bit pattern: a point for normal numbers, one for the rest."""
    wrong = _first_wrong(decode, NORMAL, _normal_mistake)
    if wrong:
        yield 0, wrong
        return
    yield 1, "Normal numbers: right, with both signs."
    wrong = _first_wrong(decode, SMALL, _small_mistake)
    yield (0, wrong) if wrong else (1, "Subnormal numbers and both zeros: right.")


def _first_wrong(decode: Callable, patterns: tuple[int, ...], mistake: Callable) -> str:
    for pattern in patterns:
        right = from_bits(pattern).value
        given = _number(call(decode, pattern), "decode")
        if (given, math.copysign(1, given)) != (right, math.copysign(1, right)):
            return f"decode({pattern:#010x}) gives {given!r}, and should give {right!r}. {mistake(pattern, given)}"
    return ""


def _normal_mistake(pattern: int, given: float) -> str:
    anatomy = from_bits(pattern)
    right, fraction = anatomy.value, anatomy.fraction / 2**23
    if given == -right and right > 0:
        return "The first bit is the sign: 0 means plus. Python reads −1 ** sign as −(1 ** sign): write (−1) ** sign."
    if given == -right:
        return "The first bit is the sign: 1 means minus."
    if given == 0:
        return "Either the leading 1 is missing, or you multiply by the sign bit 0; use (−1)**sign."
    if given == math.copysign(fraction * 2.0 ** (anatomy.exponent - 127), right):
        return "The leading 1 of a normal number is not stored; add it to the fraction."
    if given in (2 * right, right / 2):
        return "You are off by a factor of two: the bias of float32 is 127."
    if given == right * 2.0**127:
        return "The stored exponent carries a bias of 127; subtract it."
    if abs(given) == (1 + anatomy.fraction) * 2.0 ** (anatomy.exponent - 127):
        return "The fraction counts in units of 2**−23; divide it by 2**23."
    return (
        f"This pattern has sign {anatomy.sign}, exponent {anatomy.exponent} and fraction {anatomy.fraction}: if yours "
        "are the same, the value is (−1)**sign × (1 + fraction / 2**23) × 2**(exponent − 127)."
    )


def _small_mistake(pattern: int, given: float) -> str:
    anatomy = from_bits(pattern)
    right = anatomy.value
    if given == right:
        return "The sign of zero is lost: 0x80000000 is −0.0. Multiply by the sign, or use math.copysign."
    if abs(given) == math.ldexp(1 + anatomy.fraction / 2**23, -127):
        return "Where the exponent field is 0, no leading 1 is hidden, and the exponent is −126."
    if given == right / 2:
        return "Subnormal numbers have the exponent −126, not −127: they go on where the normal ones end."
    return "Where the exponent field is 0, the value is (−1)**sign × (fraction / 2**23) × 2**−126."


# --- Count ULPs -----------------------------------------------------------------------------------------


def _after(x: float, steps: int) -> np.float32:
    """The float32 number `steps` above x > 0."""
    return (np.float32(x).view(np.int32) + np.int32(steps)).view(np.float32)


TINY, LARGEST = np.float32(1e-45), np.finfo(np.float32).max
ONE_SIGN = (
    (np.float32(1), _after(1, 1)),
    (np.float32(0.1), np.float32(0.1)),
    (_after(1, 5), np.float32(1)),
    (np.float32(1), np.float32(2)),
    (np.float32(3), np.float32(1000)),
    (np.float32(-1), -_after(1, 3)),
    (TINY, np.float32(1)),
)
ACROSS_ZERO = (
    (np.float32(-0.0), np.float32(0.0)),
    (-TINY, TINY),
    (np.float32(0.0), -TINY),
    (np.float32(-1), np.float32(1)),
    (-LARGEST, LARGEST),
)


def judge_ulp_distance(distance: Callable) -> Verdicts:
    """distance(a, b) → how many float32 numbers b is away from a: a point on one side of zero, one across."""
    wrong = _first_wrong_distance(distance, ONE_SIGN, _one_sign_mistake)
    if wrong:
        yield 0, wrong
        return
    yield 1, "Two numbers of one sign: right, also across powers of two."
    wrong = _first_wrong_distance(distance, ACROSS_ZERO, _across_zero_mistake)
    yield (0, wrong) if wrong else (1, "Across zero: right, and −0.0 and +0.0 are one place.")


def _first_wrong_distance(distance: Callable, pairs: tuple, mistake: Callable) -> str:
    for a, b in pairs:
        right = ulp_distance(a, b)
        given = _number(call(distance, a, b), "distance")
        if given != right:
            seen = f"{given:.0f}" if given.is_integer() else f"{given!r}"
            return f"distance({a!s}, {b!s}) gives {seen}, and should give {right}. {mistake(a, b, given)}"
    return ""


def _one_sign_mistake(a: np.float32, b: np.float32, given: float) -> str:
    right = ulp_distance(a, b)
    if given == -right:
        return "A distance has no sign: the order of a and b must not matter."
    if given == 0 and a > b:
        return "Here a is the larger one: count the steps down as well as those up."
    if given == right - 1:
        return "You counted the numbers in between; neighbours are one step apart."
    if given in (float(2**32 - right), float(2**64 - right)):
        return "Unsigned integers wrap around below 0; convert to Python's int before you subtract."
    if right and given == abs(float(a) - float(b)):
        return "That is the difference of the values; count the steps from float to float."
    return "The gap between floats doubles at each power of two, so no single ULP fits all the way; count patterns."


def _across_zero_mistake(a: np.float32, b: np.float32, given: float) -> str:
    if a == b == 0:
        return (
            "The patterns of −0.0 and +0.0 differ in the sign bit, but both are the same place on the line."
        )
    if given < 0:
        return "The difference has left the range of int32 and wrapped around; convert to Python's int first."
    if given == abs(int(a.view(np.uint32)) - int(b.view(np.uint32))):
        return "The sign is a bit and no complement: negative patterns grow away from zero, so turn them around first."
    return "Count from a to zero and from zero to b, and add the two."


# --- Find an order that matters -------------------------------------------------------------------------


def judge_two_orders(numbers: Any) -> Verdicts:
    """Three numbers from 1 to 100 whose float32 sum depends on the brackets."""
    try:
        numbers = list(numbers)
        if any(isinstance(number, str | bytes) for number in numbers):
            raise TypeError("float reads numbers from text")
        numbers = [_as_float(number) for number in numbers]
    except (TypeError, ValueError):
        yield 0, "Give a list of three numbers, such as [1.5, 2.5, 3.5]."
        return
    if len(numbers) != 3:
        two = " Two cannot do it: a + b and b + a are the same bits." if len(numbers) == 2 else ""
        yield 0, f"Give three numbers; these are {len(numbers)}.{two}"
        return
    if not all(1 <= number <= 100 for number in numbers):
        yield 0, _why_outside(numbers)
        return
    a, b, c = map(np.float32, numbers)
    left, right = (a + b) + c, a + (b + c)
    if left != right:
        apart = ulp_distance(left, right)
        yield (
            1,
            f"(a + b) + c = {left!s} and a + (b + c) = {right!s}: {apart} ULP{'s' if apart > 1 else ''} apart.",
        )
    else:
        yield 0, f"Both brackets give {left!s} in float32. {_why_equal(a, b, c, numbers)}"


def _as_float(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _why_outside(numbers: list[float]) -> str:
    if any(abs(number) > 100 for number in numbers):
        return "Stay from 1 to 100: no giant is needed to swallow a small number, everyday numbers do it too."
    below = next((number for number in numbers if number < 1), None)
    return "Stay from 1 to 100." if below is None else f"{below:g} is below 1: stay from 1 to 100."


def _why_equal(a: np.float32, b: np.float32, c: np.float32, numbers: list[float]) -> str:
    sums = ((a, b, a + b), (a + b, c, (a + b) + c), (b, c, b + c), (a, b + c, a + (b + c)))
    if all(Fraction(float(x)) + Fraction(float(y)) == Fraction(float(total)) for x, y, total in sums):
        return "Every addition here is exact, so nothing is rounded; take numbers that use all 24 significant bits."
    x, y, z = numbers
    if (x + y) + z != x + (y + z):
        return "They differ in float64, Python's own format; round the numbers to np.float32 before you try them."
    return "Something is rounded, but both ways end in the same place; try other numbers, a quarter of all will do."


# --- Pairwise and compensated sums ----------------------------------------------------------------------


def judge_pairwise(pairwise: Callable) -> Verdicts:
    """pairwise(x): error at most γ_k · Σ|x| with k = ⌈log2 n⌉ (Higham 2002, chapter 4), in x's own dtype.

    The error is what is judged, so any method within the bound passes: a compensated sum, or a serial one in a
    format wider than float64 where NumPy has one (longdouble on most Linux machines).
    """

    def allowed(x: np.ndarray) -> float:
        return (len(x) - 1).bit_length()

    wrong = _first_wrong_sum(pairwise, allowed, "⌈log2 n⌉ = {:g}", _not_a_tree)
    yield (
        (0, wrong) if wrong else (2, "Within the bound of a tree for every input, in float32 and in float64.")
    )


def judge_compensated(compensated: Callable) -> Verdicts:
    """compensated(x): error at most 3u · Σ|x|, in x's own dtype.

    For the sizes tried here. Kahan's sum stays within 2u · Σ|x| and a term of order n·u² (Higham 2002, section
    4.3), Neumaier's within u · |sum| and a term of order n²·u² (Neumaier 1974): at 4,097 numbers in float32,
    less than u.
    """
    wrong = _first_wrong_sum(compensated, lambda x: 3, "{:g}", _not_compensated)
    yield (0, wrong) if wrong else (2, "Within 3u · Σ|x| for every input, in float32 and in float64.")


def _not_a_tree(like_serial: bool) -> str:
    if like_serial:
        return (
            "That is the error of a serial sum: one running total takes every number, if only within a block."
        )
    return "In a balanced tree no number goes through more than ⌈log2 n⌉ additions; somewhere yours goes through more."


def _not_compensated(like_serial: bool) -> str:
    if like_serial:
        return "A plain sum is no worse than this: what is rounded off must come back, with its sign."
    return "Look at what is kept: (t − total) − y, where y is what was added, with the last correction in it."


def _hard_sums(dtype: type) -> Iterator[tuple[str, np.ndarray]]:
    """Inputs in words, and the arrays: each is easy for the right algorithm and hard for another one."""
    u = _unit(dtype)
    shuffled = random.Random(1)
    yield "one number", np.array([0.1], dtype)
    yield "three numbers", np.array([1, 2, 4], dtype)
    for n in (4, 5, 8, 64, 128, 1025):
        x = np.array([1 / u] + [1] * (n - 1), dtype)
        yield f"1/u and then {n - 1} ones", x
        # For what goes through the numbers from the other end, or has sorted them.
        yield f"{n - 1} ones and then 1/u", x[::-1]
        yield f"−1/u and then {n - 1} times −1", -x
    # A right half that is added serially is a chain of n/2 additions, and the giant stands at its beginning.
    for n in (64, 1025):
        x = np.array([1 / u] + [1] * (n - 1), dtype)
        yield f"{n} numbers: ones, and 1/u in the middle", np.roll(x, n // 2)
    yield "4,096 random numbers", np.array([shuffled.gauss(0, 1) for _ in range(4096)], dtype)
    yield "3,000 numbers from 0 to 1", np.array([shuffled.random() for _ in range(3000)], dtype)
    # A tree of equal numbers is exact; a running total of any order is not.
    yield "4,096 times 0.1", np.full(4096, 0.1, dtype)
    # Each level of a tree meets exactly the half ULP that it rounds off: hard for pairwise, easy compensated.
    steps = np.concatenate([[1.0], *(np.full(2**k, u / 2**k) for k in range(12))])
    yield "1 and then 4,095 numbers of u, u/2, u/2, u/4, …", steps.astype(dtype)
    yield "1 and then 4,096 numbers of 0.6u", np.array([1.0] + [0.6 * u] * 4096, dtype)


def _first_wrong_sum(add: Callable, allowed: Callable, factor: str, why: Callable) -> str:
    """A sentence on the first input for which add(x) is further from the exact sum than allowed(x) · u · Σ|x|.

    An empty text if there is none.
    """
    for dtype in (np.float32, np.float64):
        u = Fraction(_unit(dtype))
        for words, x in _hard_sums(dtype):
            result = call(add, x.copy())
            _number(result, getattr(add, "__name__", "your function"))
            if not _in_format(result, x.dtype):
                return _left_the_format(result, x.dtype)
            magnitudes = sum(Fraction(abs(float(value))) for value in x)
            error, steps = abs(_error(result, x)) / magnitudes, Fraction(allowed(x))
            if error <= steps * u / (1 - steps * u):
                continue
            if len(x) <= FEW:
                gives, should = _in_full(result), _in_full(_exact(x))
                seen = f"{x.dtype}: your {_call_in_full(add, x)} gives {gives}, and should give {should}."
            else:
                seen = f"{x.dtype}, {words}: the error is {float(error / u):.3g} u · Σ|x|, and at most "
                seen += f"{factor.format(float(steps))} u · Σ|x| is allowed."
            if error > len(x) * u:
                return f"{seen} Not even a serial sum is that far off: is a number left out, or added twice?"
            like_serial = abs(_error(np.add.accumulate(x)[-1], x)) / magnitudes == error
            return f"{seen} {why(like_serial)}"
    return ""


# So many numbers can be read in a message, and added by hand.
FEW = 8


def _call_in_full(add: Callable, x: np.ndarray) -> str:
    numbers = ", ".join(map(_in_full, x))
    return f"{getattr(add, '__name__', 'function')}([{numbers}])"


def _in_full(value: Any) -> str:
    """A whole number in all its digits: NumPy shows the float32 16777220 as 1.677722e+07."""
    return str(int(value)) if math.isfinite(value) and value == int(value) else str(value)


def _exact(x: np.ndarray) -> np.floating:
    """The exact sum, rounded to x's own format."""
    return x.dtype.type(math.fsum(x.tolist()))


def _in_format(result: Any, dtype: np.dtype) -> bool:
    """Whether the result is in the numbers' own format. Python's float is float64; a wider format may hold it too."""
    given = result.dtype if isinstance(result, np.generic | np.ndarray) else None
    if dtype == np.float32:
        return given == dtype
    return given is None or given.itemsize >= dtype.itemsize


def _left_the_format(result: Any, dtype: np.dtype) -> str:
    given = result.dtype if isinstance(result, np.generic | np.ndarray) else type(result).__name__
    return (
        f"For {dtype} numbers it gives a {given}, which is not the numbers' own format. Keep every partial sum and the "
        "result in x.dtype."
    )


def _error(result: Any, x: np.ndarray) -> Fraction:
    """Exact error of a finite result; for any other, one that no bound allows."""
    if not math.isfinite(result):
        return Fraction(10) ** 400
    return Fraction(float(result)) - sum(Fraction(float(value)) for value in x)


def _unit(dtype: Any) -> float:
    """Unit roundoff u: half the distance from 1 to the next number."""
    return float(np.finfo(dtype).eps) / 2


# --- The same bits in any order -------------------------------------------------------------------------


def judge_any_order(any_order: Callable) -> Verdicts:
    """any_order(x): the same bits for every order of x, and no less accurate than a serial float32 sum may be.

    What counts as order-free is decided by bits, not by method: exact sums (math.fsum, fractions), integers
    (fixed point) and a canonical order (sorted by value, then added in any fixed way) all pass. More bits,
    compensation, and rounding the answer only make differences rarer; for each there is an input here in
    which they show.
    """
    inputs = list(_order_traps())
    tried = 0
    for words, x in inputs:
        results = []
        for reordered in _orders(x):
            results.append(call(any_order, reordered))
            _number(results[-1], "any_order")
        tried = max(tried, len(results))
        inaccurate = _too_inaccurate(words, x, results[0])
        if inaccurate:
            yield (
                0,
                f"{inaccurate} {_ROUNDED if _rounds(any_order) else _why_inaccurate(words, x, results[0])}",
            )
            return
        first = _bytes(results[0])
        other = next((result for result in results if _bytes(result) != first), None)
        if other is not None:
            why = _TIES if words in TIES else _why_ordered(any_order)
            yield 0, f"{words}: one order gives {results[0]!s}, another {other!s}. {why}"
            return
    yield (
        3,
        f"The same bits in all orders tried ({tried} of each of {len(inputs)} inputs), and accurate enough.",
    )


PAIRS = "30 numbers, each twice, their negatives, and 0.1"
LARGE = "five numbers from 1e12 to 2e12"
LARGE_PAIRS = "a number near 2**45, twice, its negative, twice, and 2**−7 + 2**−18"
LAST_PAIRS = {power: f"2**{power}, 2**{power - 24}, 2, 1 and −1" for power in (53, 64)}
TIES = (PAIRS, LARGE_PAIRS, *LAST_PAIRS.values())


def _order_traps() -> Iterator[tuple[str, np.ndarray]]:
    """Inputs in words, and float32 arrays."""
    rng = random.Random(2)
    yield "300 random numbers", np.array([rng.gauss(0, 1) for _ in range(300)], np.float32)
    yield "300 numbers below 0.01", np.array([rng.random() / 100 for _ in range(300)], np.float32)
    yield "100 numbers, each three times", np.array([rng.random() for _ in range(100)] * 3, np.float32)
    # What a fixed point loses where its integers are too short, and where it keeps too few bits.
    yield LARGE, np.array([1e12, 1.1e12, 1.3e12, 1.7e12, 1.9e12], np.float32)
    yield "ten numbers of 1e-12", np.full(10, 1e-12, np.float32)
    yield "ten numbers of 1e-40", np.full(10, 1e-40, np.float32)
    # A stable sort by magnitude leaves +a and −a as they came, and what stands between them sees the difference.
    pairs = [sign * value for value in (rng.gauss(0, 1000) for _ in range(30)) for sign in (1, 1, -1, -1)]
    yield PAIRS, np.array([*pairs, 0.1], np.float32)
    giants = [2.0**30 - 64 * rng.randrange(1000) for _ in range(3)]
    for bits in (26, 40, 120):
        dust = [2.0**-bits] * 200
        yield (
            f"six numbers near 2**30 that cancel, and 200 of 2**−{bits}",
            np.array(giants + dust + [-giant for giant in giants], np.float32),
        )
    # Nested: what a compensation keeps is swallowed by the next level. The last and smallest number remains. The
    # second nest has as many levels as float32 has room for, each beyond the 53 bits of the one before.
    for largest, *exponents in ((120, 60, 0), (127, 73, 19, -35, -89, -143)):
        outer = [2.0**exponent for exponent in (largest, *exponents[:-1])]
        last = 2.0 ** exponents[-1]
        nest = [*outer, last, *(-level for level in reversed(outer))]
        yield (
            f"{len(nest)} numbers from 2**{largest} down that cancel, but for {last:.3g}",
            np.array(nest, np.float32),
        )
    # The exact sum lies beside a boundary of rounding to d decimals, nearer than the dust that an order loses.
    for decimals in range(7):
        edge = 0.5 * 10.0**-decimals
        base = _split(edge - 200 * 2.0**-27)
        yield (
            f"numbers whose sum lies next to a boundary of rounding to {decimals} decimals",
            np.array(giants + base + [2.0**-26] * 200 + [-giant for giant in giants], np.float32),
        )
    # The same for wider formats: beside the number float64 keeps 2**−7, and an 80-bit float 2**−18 as well; beside
    # twice the number, which some orders reach, neither does.
    large = [sign * 1.5 * 2.0**45 for sign in (1, 1, -1, -1)]
    yield LARGE_PAIRS, np.array([*large, 2.0**-7 + 2.0**-18], np.float32)
    # From the largest down: 1 and −1 meet a total at which float64, or an 80-bit float, has room for even numbers only,
    # and the first of the two moves it. It lies next to a boundary of rounding to float32, so that this shows as well.
    for power, words in LAST_PAIRS.items():
        yield words, np.array([2.0**power, 2.0 ** (power - 24), 2, 1, -1], np.float32)
    # The dust wanders about a power of two, where float64 rounds it differently on the two sides.
    dust = [rng.gauss(0, 2.0**-20) for _ in range(200)]
    yield (
        "2**31, −2**31 and 200 random numbers near 2**−20",
        np.array([2.0**31, *dust, -(2.0**31)], np.float32),
    )


def _split(value: float) -> list[float]:
    """float32 numbers whose exact sum is as near to `value` as two of them can be."""
    head = float(np.float32(value))
    return [head, float(np.float32(value - head))]


def _orders(x: np.ndarray) -> Iterator[np.ndarray]:
    """The orders tried: as given, reversed, by value, by magnitude, equal magnitudes together, and at random."""
    by_value, by_magnitude = np.argsort(x, kind="stable"), np.argsort(np.abs(x), kind="stable")
    yield x.copy()
    yield x[::-1].copy()
    for order in (by_value, by_value[::-1], by_magnitude, by_magnitude[::-1]):
        yield x[order]
    rng = random.Random(3)
    for _ in range(8):
        yield x[rng.sample(range(len(x)), len(x))]


def _too_inaccurate(words: str, x: np.ndarray, result: Any) -> str:
    if not math.isfinite(result):
        return f"{words}: the answer {result!s} is no finite number, and the sum is one."
    magnitudes = sum(Fraction(abs(float(value))) for value in x)
    error, allowed = abs(_error(result, x)), len(x) * Fraction(_unit(np.float32)) * magnitudes
    if error <= allowed:
        return ""
    return (
        f"{words}: the answer {float(result)!r} is off by {float(error):.2g}, and a serial float32 sum is never "
        f"off by more than {float(allowed):.2g}."
    )


def _why_inaccurate(words: str, x: np.ndarray, result: Any) -> str:
    if _undivided(result, math.fsum(x.tolist())):
        return "That is the sum times a power of two: divide by the factor again."
    magnitudes = sum(Fraction(abs(float(value))) for value in x)
    # No rounding before the additions is as coarse as that; integers which overflow are.
    if words == LARGE or abs(_error(result, x)) > magnitudes:
        return _NO_SUM
    return _COARSE


def _undivided(result: Any, exact: float) -> bool:
    """Whether the result is the exact sum times a large power of two, but for the rounding to integers."""
    if not exact:
        return False
    mantissa, exponent = math.frexp(float(result) / exact)
    return exponent > 4 and (abs(mantissa - 0.5) < 1e-4 or abs(mantissa - 1) < 1e-4)


# All float32 sums of these three, with any brackets and in any order, are the same float, and not the one nearest
# to the exact sum. A wider or a compensated sum finds that one.
EASY = np.array([1.99817942, 1.5365576, 0.42399641], np.float32)
# Added from left to right, float64 keeps 2**−25 beside the rest. A compensation in float32 rounds it off.
WIDE = np.array([2.0**26, 1, 2.0**-25, -(2.0**26), -1], np.float32)


def _why_ordered(any_order: Callable) -> str:
    """The belief behind an answer that depends on the order, told from what it makes of EASY."""
    result, exact = call(any_order, EASY.copy()), math.fsum(EASY.tolist())
    if float(result) == exact:
        return _MORE_BITS
    if np.float32(result) == np.float32(exact):
        if float(call(any_order, WIDE.copy())) == 2.0**-25:
            return f"{_MORE_BITS} Rounding the total to float32 hides that most of the time, not always."
        return f"{_MORE_BITS} The kept loss is rounded too."
    return _ROUNDED if _rounds(any_order) else _SEEN


def _rounds(any_order: Callable) -> bool:
    """Whether the answer to EASY is its exact sum, rounded to a few decimals."""
    result, exact = call(any_order, EASY.copy()), math.fsum(EASY.tolist())
    with np.errstate(over="ignore"):  # a total that was not divided back
        return any(np.float32(result) == np.float32(round(exact, decimals)) for decimals in range(7))


_SEEN = "The order of the additions still reaches the answer: make each addition exact, or always add in one order."
_ROUNDED = (
    "Rounding the answer doesn't count: it hides the order until the sum lies next to a boundary, and then two "
    "orders fall on either side of it."
)
_COARSE = "The same bits are worth little if they are not the sum's: keep more of each number before you add."
_NO_SUM = "The answer is not the sum: is a factor, a range or a repeated number lost?"
_TIES = (
    "Ties: sorting by magnitude does not say which of +a and −a comes first, so that depends on how they came. "
    "Sort by value, or break the tie by the sign."
)
_MORE_BITS = (
    "More bits, or a compensation, round later and not never: these numbers need more bits than you have, so the "
    "order shows."
)


def _bytes(result: Any) -> tuple[str, bytes]:
    """Format and bits; fractions and other exact Python numbers count as the float64 they round to."""
    result = result if isinstance(result, np.generic | np.ndarray) else np.float64(float(result))
    # A long double's bytes hold padding that means nothing; its shortest text names its value.
    return str(result.dtype), repr(result).encode() if result.dtype == np.longdouble else result.tobytes()


# --- Every judge ----------------------------------------------------------------------------------------


def _number(result: Any, name: str) -> float:
    """The result as a Python float. Raises AnswerFailed, with one sentence, if it is no real number."""
    if result is None:
        raise AnswerFailed(f"{name} gives None; return the result.")
    try:
        if isinstance(result, str | bytes):
            raise TypeError("float reads numbers from text")
        shape = np.shape(result)
        if shape:
            raise AnswerFailed(f"{name} gives an array of shape {shape}, and should give one number.")
        return float(result)
    except (TypeError, ValueError, OverflowError) as error:
        raise AnswerFailed(f"{name} gives {short(result)}, and should give a number.") from error


EXERCISES = (
    Exercise("01-decode", "Decode a float", 2, judge_decode),
    Exercise("01-ulp-distance", "Count the steps between two floats", 2, judge_ulp_distance),
    Exercise("01-two-orders", "An order that matters", 1, judge_two_orders),
    Exercise("01-pairwise", "A pairwise sum", 2, judge_pairwise),
    Exercise("01-compensated", "A compensated sum", 2, judge_compensated),
    Exercise("01-any-order", "The same bits in any order", 3, judge_any_order),
)
