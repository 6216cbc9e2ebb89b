"""Checks of chapter 01's claims: floats, the ways to add them, and what NumPy, Python and PyTorch do."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import random
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction

import numpy as np

from samebits import orders
from samebits.bits import fingerprint
from samebits.checks import Seen, check

RUNS = 20


def _normal(n: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(n, dtype=np.float32)


def _of_many_sizes(n: int) -> np.ndarray:
    """(n, 2) float32: pairs whose magnitudes lie up to 2**40 apart."""
    rng = np.random.default_rng(2)
    values = rng.standard_normal((n, 2)) * 2.0 ** rng.integers(-20, 21, (n, 2))
    return values.astype(np.float32)


def _patterns(n: int) -> np.ndarray:
    """(n,) uint32: random bits, and the zeros, subnormals, infinities and NaNs that they would miss."""
    special = [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00001]
    random_bits = np.random.default_rng(3).integers(0, 2**32, n, np.uint32)
    return np.concatenate([random_bits, np.uint32(special), np.uint32(special) | np.uint32(2**31)])


def _distinct(sums: Iterable) -> int:
    return len({fingerprint(np.asarray(one), "sha256") for one in sums})


def _shuffled(values: np.ndarray, add: Callable) -> list:
    rng = np.random.default_rng(4)
    return [add(rng.permutation(values)) for _ in range(RUNS)]


def _serial(values: np.ndarray):
    return np.add.accumulate(values)[-1]


# --- The bits of a float ---------------------------------------------------------------------------------


@check("01-float32-fields", control="seven bits of exponent, and 24 of fraction")
def float32_fields(control: bool) -> Seen:
    patterns = _patterns(2_000)
    wrong = sum(
        repr(_decoded(int(pattern), 7 if control else 8)) != repr(float(pattern.view(np.float32)))
        for pattern in patterns
    )
    return Seen(wrong == 0, f"{wrong} of {len(patterns)} patterns mean something else to NumPy")


def _decoded(pattern: int, exponent_bits: int) -> float:
    """What the 32 bits mean if that many of them are the exponent."""
    fraction_bits, bias = 31 - exponent_bits, 2 ** (exponent_bits - 1) - 1
    exponent = pattern >> fraction_bits & (2**exponent_bits - 1)
    fraction = pattern & (2**fraction_bits - 1)
    sign = -1.0 if pattern >> 31 else 1.0
    if exponent == 2**exponent_bits - 1:
        return math.nan if fraction else sign * math.inf
    leading = 1 if exponent else 0
    return sign * (leading + fraction / 2**fraction_bits) * 2.0 ** (max(exponent, 1) - bias)


@check("01-significant-bits", control="the stored fraction bits alone", framework="torch")
def significant_bits(control: bool) -> Seen:
    import torch

    bits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
    wrong = []
    for name, count in bits.items():
        dtype, count = getattr(torch, name), count - control
        one, last, half = (torch.tensor(x, dtype=dtype) for x in (1, 2.0 ** -(count - 1), 2.0**-count))
        if one + last == one or one + half != one:  # the half is a tie, and goes to the even 1
            wrong.append(name)
    return Seen(not wrong, f"not so for {', '.join(wrong)}" if wrong else "so for all four")


@check("01-float32-range", control="float64")
def float32_range(control: bool) -> Seen:
    kind = np.float64 if control else np.float32
    whole = range(2**24 - 1_000, 2**24 + 1)
    holds_all = all(int(kind(n)) == n for n in whole)
    first_gap = float(np.spacing(kind(2**24)))
    largest = float(np.finfo(kind).max)
    return Seen(
        holds_all and first_gap == 2 and f"{largest:.1e}" == "3.4e+38",
        f"the largest is {largest:.1e}, and at 2**24 the gap is {first_gap:g}",
    )


@check("01-python-float", control="float32")
def python_float(control: bool) -> Seen:
    kind = np.float32 if control else float
    at = kind(1e20)
    gap = float(np.spacing(at))
    return Seen(
        gap == 16_384 and at + kind(0.1) == at and not at + kind(10_000) == at,
        f"at 1e20 the gap is {gap:,.0f}",
    )


@check("01-patterns-count", control="negative numbers")
def patterns_count(control: bool) -> Seen:
    values = np.abs(_normal(1_000)) * np.float32(-1 if control else 1)
    above = np.nextafter(values, np.float32(np.inf))
    steps = above.view(np.uint32).astype(np.int64) - values.view(np.uint32)
    return Seen(
        bool((steps == 1).all()), f"to the next float above, the pattern grows by {set(steps.tolist())}"
    )


@check("01-whole-multiples", control="multiples of 2**−126, without the subnormal numbers")
def whole_multiples(control: bool) -> Seen:
    values = _patterns(2_000).view(np.float32)
    values = values[np.isfinite(values)]
    power = 126 if control else 149
    left = sum((Fraction(float(value)) * 2**power).denominator != 1 for value in values)
    return Seen(left == 0, f"{left} of {len(values)} float32 are no whole multiple of 2**−{power}")


@check("01-shortest-text", control="seventeen digits, always enough")
def shortest_text(control: bool) -> Seen:
    draw = random.Random(5)
    numbers = [0.1, 0.3, 1e20, *(draw.uniform(-1, 1) * 10.0 ** draw.randint(-9, 9) for _ in range(300))]
    longer = 0
    for number in numbers:
        text = f"{number:.16e}" if control else repr(number)
        digits = len(text.partition("e")[0].lstrip("-").replace(".", "").strip("0"))
        shortest = next(n for n in range(1, 18) if float(f"{number:.{n - 1}e}") == number)
        longer += float(text) != number or digits > shortest
    return Seen(longer == 0, f"{longer} of {len(numbers)} texts have more digits than it takes")


# --- One addition ----------------------------------------------------------------------------------------


@check("01-addition-rounds", control="a sum whose last digits are cut off")
def addition_rounds(control: bool) -> Seen:
    ties = np.float32([(2**24, k) for k in range(8)])
    pairs = np.concatenate([_of_many_sizes(1_000), ties])
    wrong = sum(not _is_nearest(a, b, _cut_off(a, b) if control else a + b) for a, b in pairs)
    return Seen(wrong == 0, f"{wrong} of {len(pairs)} sums are not the nearest float32, ties to even")


def _is_nearest(a: np.float32, b: np.float32, result: np.float32) -> bool:
    exact = Fraction(float(a)) + Fraction(float(b))
    error = abs(Fraction(float(result)) - exact)
    others = [np.nextafter(result, np.float32(end)) for end in (-np.inf, np.inf)]
    nearest_other = min(abs(Fraction(float(other)) - exact) for other in others)
    return error < nearest_other or (error == nearest_other and int(result.view(np.uint32)) % 2 == 0)


def _cut_off(a: np.float32, b: np.float32) -> np.float32:
    result, exact = a + b, Fraction(float(a)) + Fraction(float(b))
    return np.nextafter(result, np.float32(0)) if abs(Fraction(float(result))) > abs(exact) else result


@check("01-commutative", control="moving the brackets")
def commutative(control: bool) -> Seen:
    special = np.float32([0.0, -0.0, np.inf, 1e-45, 3e38])
    a, b = (values.reshape(-1) for values in np.meshgrid(special, special))
    a, b = np.concatenate([a, _of_many_sizes(5_000)[:, 0]]), np.concatenate([b, _of_many_sizes(5_000)[:, 1]])
    c = a[::-1]
    with np.errstate(over="ignore", invalid="ignore"):
        first, second = ((a + b) + c, a + (b + c)) if control else (a + b, b + a)
    differ = int((first.view(np.uint32) != second.view(np.uint32)).sum())
    return Seen(differ == 0, f"{differ} of {len(a)} sums differ in their bits")


@check("01-not-associative", control="whole numbers, halves and quarters")
def not_associative(control: bool) -> Seen:
    triples = np.random.default_rng(6).uniform(1, 100, (100_000, 3)).astype(np.float32)
    if control:
        triples = np.rint(triples * 4) / 4
    a, b, c = triples.T
    share = float(((a + b) + c != a + (b + c)).mean())
    return Seen(0.2 < share < 0.3, f"{share:.1%} of 100,000 triples differ")


@check("01-nan-payloads", control="two infinities, and two numbers")
def nan_payloads(control: bool) -> Seen:
    a, b = (
        np.float32([[np.inf, 1.5], [np.inf, 1e-45]])
        if control
        else np.uint32([[0x7FC00001] * 2, [0x7FC00002] * 2]).view(np.float32)
    )
    told = (a + b).view(np.uint32)[0] != (b + a).view(np.uint32)[0]
    return Seen(
        bool(told), f"a + b is {(a + b).view(np.uint32)[0]:x}, b + a is {(b + a).view(np.uint32)[0]:x}"
    )


def _two_sum(a, b):
    total = a + b
    b_used = total - a
    return total, (a - (total - b_used)) + (b - b_used)


def _fast_two_sum(a, b):
    total = a + b
    return total, b - (total - a)


def _inexact(split: Callable, pairs: np.ndarray) -> int:
    """For how many pairs the two parts do not add up to the exact sum."""
    return sum(
        sum(Fraction(float(part)) for part in split(a, b)) != Fraction(float(a)) + Fraction(float(b))
        for a, b in pairs
    )


@check("01-two-sum", control="three operations, whichever number is larger")
def two_sum(control: bool) -> Seen:
    wrong = _inexact(_fast_two_sum if control else _two_sum, _of_many_sizes(1_000))
    return Seen(wrong == 0, f"in {wrong} of 1,000 pairs something is lost")


@check("01-fast-two-sum", control="the smaller number first")
def fast_two_sum(control: bool) -> Seen:
    pairs = _of_many_sizes(1_000)
    order = np.argsort(np.abs(pairs), axis=1)[:, :: 1 if control else -1]
    wrong = _inexact(_fast_two_sum, np.take_along_axis(pairs, order, axis=1))
    return Seen(wrong == 0, f"in {wrong} of 1,000 pairs something is lost")


# --- Orders ----------------------------------------------------------------------------------------------


@check("01-same-order", control="shuffling before each run")
def same_order(control: bool) -> Seen:
    numbers, rng = _normal(100_000), np.random.default_rng(7)
    sums = [_serial(rng.permutation(numbers) if control else numbers) for _ in range(RUNS)]
    return Seen.same(_distinct(sums), RUNS, control)


@check("01-sorted-order", control="the order in which they come")
def sorted_order(control: bool) -> Seen:
    sums = _shuffled(_normal(100_000), _serial if control else lambda x: _serial(np.sort(x)))
    return Seen.same(_distinct(sums), RUNS, control)


@check("01-integers", control="the same numbers in float64")
def integers(control: bool) -> Seen:
    numbers = np.random.default_rng(8).integers(-(2**62), 2**62, 1_000)  # partial sums wrap around
    sums = _shuffled(numbers.astype(np.float64) if control else numbers, _serial)
    return Seen.same(_distinct(sums), RUNS, control)


@check("01-integers-end", control="Python's integers")
def integers_end(control: bool) -> Seen:
    numbers = [2**62, 2**62]
    total = sum(numbers) if control else int(np.array(numbers).sum())
    return Seen(total != 2**63, f"2**62 + 2**62 = {total}")


@check("01-fsum", control="Neumaier's compensated sum")
def fsum(control: bool) -> Seen:
    nested = [2.0**120, 2.0**60, 1.0, -(2.0**60), -(2.0**120)]
    numbers = np.array([*nested, *_of_many_sizes(500).reshape(-1).tolist()])
    exact = float(sum(map(Fraction, numbers.tolist())))
    sums = _shuffled(numbers, orders.neumaier if control else lambda x: math.fsum(x.tolist()))
    right = sum(float(total) == exact for total in sums)
    return Seen(right == RUNS, f"{right} of {RUNS} orders give the exact sum, rounded once")


@check("01-float64-order", control="numbers that leave float64 room for each partial sum")
def float64_order(control: bool) -> Seen:
    numbers = [1.5, 2.25, 3.0, -1.0] if control else [1e16, 1.0, -1e16, 1.0]
    totals = {float(np.float32(_serial(np.array(order)))) for order in itertools.permutations(numbers)}
    return Seen(len(totals) > 1, f"rounded to float32, the orders of four numbers give {sorted(totals)}")


@check("01-compensation", control="`math.fsum`")
def compensation(control: bool) -> Seen:
    four, five = [1, 1e100, 1, -1e100], [2.0**120, 2.0**60, 1, -(2.0**60), -(2.0**120)]
    ways = [math.fsum] * 2 if control else [orders.kahan, orders.neumaier]
    answers = [
        {float(way(np.array(order))) for order in itertools.permutations(numbers)}
        for way, numbers in zip(ways, (four, five), strict=True)
    ]
    return Seen(
        all(len(found) > 1 for found in answers),
        f"in all orders of a few numbers, {' and '.join(str(len(found)) for found in answers)} answers",
    )


@check("01-bounds", control="a serial sum, held against the other two bounds")
def bounds(control: bool) -> Seen:
    n = 4_096
    unlucky = np.concatenate([np.ones(1, np.float32), np.full(n - 1, 2.0**-24, np.float32)])
    bound_of = {
        orders.serial: orders.bound_serial,
        orders.pairwise: orders.bound_pairwise,
        orders.kahan: orders.bound_kahan,
    }
    beyond = []
    for numbers in (unlucky, unlucky[::-1], _normal(n), np.abs(_normal(n))):
        exact, magnitudes = orders.exact(numbers), float(np.abs(numbers).sum(dtype=np.float64))
        for way, bound in bound_of.items():
            if control and way is orders.serial:
                continue
            error = abs(float((orders.serial if control else way)(numbers)) - exact)
            beyond += [way.__name__] if error > bound(n, np.float32, magnitudes) else []
    return Seen(not beyond, f"{len(beyond)} errors lie beyond their bound")


@check("01-neumaier-bound", control="the bound without its second term")
def neumaier_bound(control: bool) -> Seen:
    numbers, u = [2.0**120, 2.0**60, 1, -(2.0**60), -(2.0**120)], 2.0**-53
    gamma = 4 * u / (1 - 4 * u)
    allowed = u * math.fsum(numbers) + (0 if control else gamma**2 * math.fsum(map(abs, numbers)))
    worst = max(
        abs(float(orders.neumaier(np.array(order))) - math.fsum(numbers))
        for order in itertools.permutations(numbers)
    )
    return Seen(worst <= allowed, f"the largest error is {worst:.1e}, and {allowed:.1e} are allowed")


@check("01-float16-stuck", control="float32")
def float16_stuck(control: bool) -> Seen:
    kind = np.float32 if control else np.float16
    numbers = np.random.default_rng(9).random(100_000).astype(kind)
    totals = {float(total) for total in _shuffled(numbers, _serial)}
    gap = float(np.spacing(kind(2048)))
    return Seen(
        gap == 2 and totals == {2048.0}, f"the gap at 2048 is {gap:g}; the totals go to {max(totals):g}"
    )


# --- What the libraries do -------------------------------------------------------------------------------


@check("01-accumulate-serial", control="`np.sum`")
def accumulate_serial(control: bool) -> Seen:
    numbers = _normal(10_000)
    one_by_one = functools.reduce(operator.add, numbers)
    total = np.sum(numbers) if control else _serial(numbers)
    return Seen(total == one_by_one, f"{total:.9g}, and {one_by_one:.9g} in a loop of Python's")


@check("01-np-sum-documented", control="what it says of `np.prod`")
def np_sum_documented(control: bool) -> Seen:
    text = " ".join((np.prod if control else np.sum).__doc__.split())
    found = [
        words
        for words in ("often numpy will use", "pairwise", "along the fast axis in memory")
        if words in text
    ]
    return Seen(len(found) == 3, f"{len(found)} of 3 phrases are there")


@check("01-np-sum-pairwise", control="the slow axis")
def np_sum_pairwise(control: bool) -> Seen:
    # A 1, and then 2**20 − 1 numbers that are lost on any total of 1 or more. Several totals side by side, each of
    # them serial, would still lose thousands; by pairs, only a few ever meet such a total.
    n, tiny = 2**20, np.float32(2.0**-24)
    numbers = np.full(n, tiny)
    numbers[0] = 1
    total = np.stack([numbers, numbers], axis=1).sum(axis=0)[0] if control else numbers.sum()
    lost = (1 + (n - 1) * 2.0**-24 - float(total)) * 2**24
    return Seen(abs(lost) < 64, f"of {n - 1:,} tiny numbers, as much as {abs(lost):,.0f} is missing")


@check("01-python-sum", control="a loop where `sum` compensates, a compensated sum where it does not")
def python_sum(control: bool) -> Seen:
    numbers = [1.0, 1e100, 1.0, -1e100]
    new = sys.version_info >= (3, 12)
    if not control:
        total = sum(numbers)
    else:
        total = functools.reduce(operator.add, numbers) if new else float(orders.neumaier(np.array(numbers)))
    return Seen(
        total == (2.0 if new else 0.0), f"{total} on Python {sys.version_info[0]}.{sys.version_info[1]}"
    )


@check("01-equal-values", control="comparing bytes", framework="torch")
def equal_values(control: bool) -> Seen:
    import torch

    def equal(a: np.ndarray, b: np.ndarray) -> set[bool]:
        if control:
            return {a.tobytes() == b.tobytes()}
        return {bool((a == b).all()), torch.equal(torch.from_numpy(a), torch.from_numpy(b))}

    minus, plus, nan = (np.float32([x]) for x in (-0.0, 0.0, np.nan))
    with np.errstate(divide="ignore"):
        told_apart = (1 / minus)[0] == -np.inf and (1 / plus)[0] == np.inf
    zeros, nans = equal(minus, plus), equal(nan, nan)
    return Seen(
        zeros == {True} and nans == {False} and bool(told_apart), f"zeros equal: {zeros}, NaNs equal: {nans}"
    )


@check("01-isclose", control="`==`")
def isclose(control: bool) -> Seen:
    a, b = (0.1 + 0.2) + 0.3, 0.1 + (0.2 + 0.3)
    equal = a == b if control else bool(np.isclose(a, b))
    return Seen(equal and fingerprint(a) != fingerprint(b), f"{a} and {b}: {equal}")


@check("01-cumsum", control="NumPy's `cumsum`", framework="torch")
def cumsum(control: bool) -> Seen:
    import torch

    numbers = _normal(100_000)
    wide = np.cumsum(numbers.astype(np.float64)).astype(np.float32)
    found = np.cumsum(numbers) if control else torch.cumsum(torch.from_numpy(numbers), dim=0).numpy()
    differ = int((found.view(np.uint32) != wide.view(np.uint32)).sum())
    return Seen(
        differ == 0, f"{differ:,} of 100,000 outputs differ from a float64 total, rounded for each output"
    )


@check("01-low-precision-repeats", control="float32 in the order in which threads come", framework="torch")
def low_precision_repeats(control: bool) -> Seen:
    import torch

    numbers = torch.from_numpy(_normal(100_000))
    matrix, slot = numbers[:65_536].reshape(256, 256), torch.zeros(100_000, dtype=torch.int64)
    coarse = matrix.bfloat16()

    def once():
        return torch.zeros(1).index_put_((slot,), numbers, accumulate=True) if control else coarse @ coarse

    if not control and torch.equal((coarse @ coarse).float(), matrix @ matrix):
        return Seen(False, "bfloat16 gave the values of float32")
    return Seen.same(len({fingerprint(once(), "sha256") for _ in range(RUNS)}), RUNS, control)


@check("01-threads-shuffle", control="one thread", framework="torch")
def threads_shuffle(control: bool) -> Seen:
    import torch

    if control:
        torch.set_num_threads(1)
    table, rows = torch.zeros(16, requires_grad=True), torch.arange(100_000) % 16
    numbers = torch.from_numpy(_normal(100_000))

    def gradient():
        table.grad = None
        (table[rows] * numbers).sum().backward()
        return table.grad

    return Seen.varies(len({fingerprint(gradient(), "sha256") for _ in range(RUNS)}), RUNS, control)


@check("01-tf32", control="TF32 off", framework="torch")
def tf32(control: bool) -> Seen:
    import torch

    if torch.cuda.get_device_capability() < (8, 0):
        return Seen(None, "this GPU has no TF32")
    torch.backends.cuda.matmul.allow_tf32 = not control
    size = 256
    identity = torch.eye(size, device="cuda")
    ten, twelve = 1 + 2.0**-10, 1 + 2.0**-12  # the last bit that TF32 reads, and one that it does not
    kept, lost = (float((torch.full_like(identity, x) @ identity)[0, 0]) for x in (ten, twelve))
    pair = torch.zeros_like(identity)
    pair[:, 0], pair[:, 1] = 1, 2.0**-20
    added = float((pair @ torch.ones_like(identity))[0, 0])  # needs 21 significant bits
    matrix = torch.from_numpy(_normal(size**2)).reshape(size, size).cuda()
    products = len({fingerprint(matrix @ matrix, "sha256") for _ in range(RUNS)})
    return Seen(
        (kept, lost, added, products) == (ten, 1.0, 1 + 2.0**-20, 1),
        f"1 + 2**−10 became {kept!r}, 1 + 2**−12 became {lost!r}, 1 and 2**−20 added up to {added!r}, "
        f"and a product was the same in {RUNS} runs: {products == 1}",
    )
