"""Sums in many orders: each is the plain loop to the last bit, and errors stay within the known bounds."""

from __future__ import annotations

import builtins
import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from samebits import orders
from samebits.orders import (
    block_partials,
    block_tree,
    bound_kahan,
    bound_pairwise,
    bound_serial,
    exact,
    fixed_point,
    kahan,
    neumaier,
    pairwise,
    permutation,
    permuted,
    permuted_serial_sums,
    serial,
)

# A busy machine is no failure, and the first example of a dtype may compile.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

DTYPES = [np.float16, np.float32, np.float64]
ALL = [serial, pairwise, block_tree, kahan, neumaier, exact, fixed_point]
ORDER_FREE = [exact, fixed_point]


def normal(n: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(n).astype(dtype)


def same_bits(a, b) -> bool:
    return type(a) is type(b) and np.asarray(a).tobytes() == np.asarray(b).tobytes()


def numbers(dtype=None, **limits):
    """Arrays with every kind of number, or finite ones within `limits`."""
    dtypes = st.sampled_from(DTYPES) if dtype is None else st.just(np.dtype(dtype))
    return dtypes.flatmap(
        lambda chosen: hnp.arrays(
            chosen,
            st.integers(0, 40),
            elements=st.floats(width=8 * np.dtype(chosen).itemsize, **limits),
        )
    )


# --- The plain loops that everything must equal ---------------------------------------------------------


def plain_serial(x):
    total = x.dtype.type(0)
    for value in x:
        total = total + value
    return total


def plain_pairwise(x):
    level = list(x)
    while len(level) > 1:
        pairs = [level[i] + level[i + 1] for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return (level[0] if level else x.dtype.type(0)) + x.dtype.type(0)


def plain_block_tree(x, block):
    partials = []
    for start in range(0, len(x), block):
        shared = [*x[start : start + block], *[x.dtype.type(0)] * block][:block]
        stride = block // 2
        while stride:
            for thread in range(stride):
                shared[thread] = shared[thread] + shared[thread + stride]
            stride //= 2
        partials.append(shared[0])
    return plain_serial(np.array(partials, x.dtype))


def plain_kahan(x):
    total = excess = x.dtype.type(0)
    for value in x:
        wanted = value - excess
        new = total + wanted
        excess, total = (new - total) - wanted, new
    return total


def plain_neumaier(x):
    total = lost = x.dtype.type(0)
    for value in x:
        new = total + value
        larger, smaller = (total, value) if abs(total) >= abs(value) else (value, total)
        lost, total = lost + ((larger - new) + smaller), new
    return total + lost


def plain_permutation(n: int, seed: int, run: int) -> list[int]:
    """Fisher–Yates with SplitMix64, in Python's integers."""
    mask, order = 2**64 - 1, list(range(n))
    state = int(np.random.SeedSequence(seed).generate_state(run + 1, np.uint64)[run])
    for i in range(n):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
        j = i + (((z >> 32) * (n - i)) >> 32)
        order[i], order[j] = order[j], order[i]
    return order


PLAIN = {serial: plain_serial, pairwise: plain_pairwise, kahan: plain_kahan, neumaier: plain_neumaier}


@pytest.mark.parametrize("algorithm", PLAIN, ids=lambda f: f.__name__)
@patient
@given(x=numbers())
def test_every_algorithm_is_its_plain_loop(algorithm, x):
    with np.errstate(all="ignore"):
        expected = PLAIN[algorithm](x)
    result = algorithm(x)
    assert result.dtype == x.dtype
    # Which NaN comes out is the processor's choice, not the algorithm's.
    assert same_bits(result, expected) or (np.isnan(result) and np.isnan(expected))


@patient
@given(numbers(), st.sampled_from([1, 2, 4, 16, 64]))
def test_block_tree_is_its_plain_loop(x, block):
    with np.errstate(all="ignore"):
        expected = plain_block_tree(x, block)
    result = block_tree(x, block)
    assert same_bits(result, expected) or (np.isnan(result) and np.isnan(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", PLAIN, ids=lambda f: f.__name__)
def test_long_sums_are_their_plain_loop(algorithm, dtype):
    x = normal(3001, dtype)
    assert same_bits(algorithm(x), PLAIN[algorithm](x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [2, 64, 256])
def test_a_long_block_tree_is_its_plain_loop(block, dtype):
    """Short arrays alone would let a tree of neighbours pass for one of strides: few of their sums are rounded."""
    x = normal(3001, dtype)
    assert same_bits(block_tree(x, block), plain_block_tree(x, block))


# --- A thousand permuted sums ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_permuted_sums_are_the_plain_loop_over_the_permutations_shown(dtype):
    x = normal(1000, dtype)
    runs = permuted_serial_sums(x, runs=12, seed=5)
    assert runs.dtype == dtype and runs.shape == (12,)
    for run in range(12):
        order = permutation(1000, seed=5, run=run)
        assert order.tolist() == plain_permutation(1000, 5, run)
        assert same_bits(runs[run], plain_serial(x[order]))
        assert same_bits(runs[run], permuted(x, 5, run))


def test_permuted_sums_depend_on_seed_alone_not_on_threads_or_the_number_of_runs():
    x = normal(2000)
    runs = permuted_serial_sums(x, 50, seed=1, threads=1)
    for threads in (2, 3, 50, 99, None):
        assert same_bits(permuted_serial_sums(x, 50, seed=1, threads=threads), runs)
    assert same_bits(permuted_serial_sums(x, 7, seed=1), runs[:7])
    assert not same_bits(permuted_serial_sums(x, 50, seed=2), runs)
    assert same_bits(x, normal(2000))  # the input is left as it was


def test_permuted_sums_vary_as_those_of_a_generator_of_repute_do():
    """Not the same sums, but about as many distinct ones and as far apart as with NumPy's permutations."""
    x = normal(20_000)
    ours = permuted_serial_sums(x, 300, seed=3)
    rng = np.random.default_rng(3)
    theirs = np.array([serial(rng.permutation(x)) for _ in range(300)])
    assert len(set(ours.tolist())) == pytest.approx(len(set(theirs.tolist())), rel=0.15)
    assert ours.std() == pytest.approx(theirs.std(), rel=0.25)
    assert abs(ours.mean() - theirs.mean()) < 0.25 * theirs.std()


@patient
@given(st.integers(0, 60), st.integers(0, 2**64), st.integers(0, 5))
def test_each_permutation_holds_every_index_once(n, seed, run):
    order = permutation(n, seed, run)
    assert order.dtype == np.int64 and sorted(order.tolist()) == list(range(n))
    assert order.tolist() == plain_permutation(n, seed, run)


def test_all_permutations_of_four_come_equally_often():
    counts: dict[tuple, int] = {}
    for run in range(4800):
        order = tuple(permutation(4, seed=run).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    chi_square = sum((count - 200) ** 2 / 200 for count in counts.values())
    assert chi_square < 49.7  # one in a thousand for 23 degrees of freedom; the seeds are fixed


def test_no_two_runs_share_their_order():
    orders_seen = {permutation(50, seed, run).tobytes() for seed in range(20) for run in range(20)}
    assert len(orders_seen) == 400


def test_without_numba_the_bits_are_the_same(monkeypatch):
    x = normal(500)
    compiled = permuted_serial_sums(x, 4, seed=9), permutation(500, 9, 3), kahan(x), neumaier(x)

    def without_numba(name, *more):
        if name == "numba":
            raise ImportError(name)
        return imported(name, *more)

    imported = builtins.__import__
    try:
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("error")  # integers that wrap on purpose must not warn
            orders._compiled.cache_clear()
            patch.setattr(builtins, "__import__", without_numba)
            plain = permuted_serial_sums(x, 4, seed=9), permutation(500, 9, 3), kahan(x), neumaier(x)
            assert not hasattr(orders._compiled(orders._kahan, x.dtype), "py_func")
    finally:
        orders._compiled.cache_clear()
    assert hasattr(orders._compiled(orders._kahan, x.dtype), "py_func")  # elsewhere it is compiled
    assert all(same_bits(a, b) for a, b in zip(compiled, plain, strict=True))


def test_the_loops_are_compiled_to_strict_arithmetic_and_without_the_interpreters_lock():
    options = orders._compiled(orders._kahan, np.dtype(np.float32)).targetoptions
    assert options["nogil"] is True and not options.get("fastmath")


# --- What each algorithm is for -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("algorithm", ALL, ids=lambda f: f.__name__)
def test_the_sum_of_nothing_is_plus_zero_and_of_one_itself(algorithm, dtype):
    assert math.copysign(1, algorithm(np.zeros(0, dtype))) == 1
    assert algorithm(np.array([1.5], dtype)) == 1.5
    assert math.copysign(1, algorithm(np.array([-0.0, -0.0], dtype))) == 1
    assert permuted_serial_sums(np.zeros(0, dtype), 3).tolist() == [0, 0, 0]
    assert permuted_serial_sums(np.ones(3, dtype), 0).shape == (0,)


@patient
@given(numbers(np.float32, min_value=-(2**10), max_value=2**10), st.randoms(use_true_random=False))
def test_exact_and_fixed_point_give_the_same_bits_in_any_order(x, random):
    shuffled = np.array(random.sample(x.tolist(), x.size), np.float32)
    for algorithm in ORDER_FREE:
        assert same_bits(algorithm(x), algorithm(shuffled))


def test_of_all_sums_only_exact_and_fixed_point_are_free_of_order():
    x = normal(10_000) * 100
    reordered = [x[permutation(10_000, 4, run)] for run in range(40)]
    distinct = {f.__name__: len({np.asarray(f(y)).tobytes() for y in reordered}) for f in ALL}
    assert distinct["exact"] == distinct["fixed_point"] == 1
    assert distinct["serial"] > distinct["pairwise"] > 1


def test_fixed_point_adds_integers_longer_than_a_float64_holds():
    x = normal(10_000, np.float64) * 300
    true = sum(round(Fraction(value) * 2**40) for value in x.tolist())
    for run in range(10):
        assert fixed_point(x[permutation(10_000, 4, run)]) == float(Fraction(true, 2**40))
    assert int(np.abs(np.ldexp(x, 40)).sum()) > 2**53 * 100


def test_compensated_sums_are_better_and_neumaier_survives_what_kahan_does_not():
    x = normal(100_000) + np.float32(1)
    truth = exact(x)
    assert abs(kahan(x) - truth) <= abs(pairwise(x) - truth) < abs(serial(x) - truth)
    assert abs(neumaier(x) - truth) <= np.spacing(np.float32(truth))
    hard = np.array([1.0, 1e100, 1.0, -1e100])
    assert (serial(hard), kahan(hard), neumaier(hard)) == (0, 0, 2)


def test_a_serial_sum_stops_where_one_is_half_an_ulp():
    assert serial(np.ones(2**24 + 100, np.float32)) == 2**24
    assert serial(np.ones(3000, np.float16)) == 2048


def test_partials_are_rounded_to_the_dtype():
    x = np.float16([2048, 1, 1])
    assert serial(x) == 2048 and pairwise(x) == 2048 and serial(x[::-1]) == 2050
    assert block_tree(x[::-1], 2) == 2050


def test_block_partials_are_one_for_each_block():
    x = np.arange(10, dtype=np.float32)
    assert block_partials(x, 4).tolist() == [6, 22, 17]
    assert block_partials(x[:0], 4).shape == (0,)
    assert block_tree(x, 1) == serial(x)
    for block in (0, -2, 3, 100):
        with pytest.raises(ValueError, match=f"power of two, such as 256, not {block}"):
            block_partials(x, block)


@patient
@given(numbers(np.float64, allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_exact_is_the_true_sum_rounded_once(x):
    assert exact(x) == float(sum(map(Fraction, x.tolist()), Fraction(0)))


def test_exact_with_infinities_and_without_room():
    assert exact(np.array([math.inf, 1.0])) == math.inf
    assert math.isnan(exact(np.array([math.inf, -math.inf])))
    assert math.isnan(exact(np.array([math.nan, 1.0])))
    with pytest.raises(OverflowError, match="range of float64.*divide the numbers"):
        exact(np.array([1.7e308, 1.7e308]))


def test_compensated_sums_of_infinities_are_nan_and_others_are_not():
    x = np.array([math.inf, 1.0], np.float32)
    assert serial(x) == pairwise(x) == block_tree(x) == math.inf
    assert math.isnan(kahan(x)) and math.isnan(neumaier(x))


# --- Fixed point ----------------------------------------------------------------------------------------


@patient
@given(
    numbers(min_value=-1000, max_value=1000).filter(lambda x: x.dtype != np.float16),
    st.integers(0, 45),
)
def test_fixed_point_is_the_sum_of_rounded_elements(x, fraction_bits):
    integers = sum(round(Fraction(value) * 2**fraction_bits) for value in x.tolist())
    assert same_bits(fixed_point(x, fraction_bits), x.dtype.type(float(Fraction(integers, 2**fraction_bits))))


def test_fixed_point_loses_nothing_of_float32_above_its_grid():
    x = normal(5000)
    x = x[np.abs(x) >= 2.0**-17]
    assert fixed_point(x) == np.float32(exact(x))
    assert fixed_point(np.float32([2.0**-42] * 4)) == 0  # below the grid


def test_fixed_point_may_wrap_on_the_way_but_not_in_the_end():
    most = 2.0**23 - 1
    assert fixed_point(np.array([most, most, -most, -most, 1.0])) == 1.0
    assert fixed_point(np.array([-most, -1.0])) == -(2.0**23)
    for too_much in ([most, most], [-most, -1.0, -1.0]):
        with pytest.raises(
            OverflowError, match=r"^The total reaches 2\^23 .* 40 fraction bits ends; use fewer"
        ):
            fixed_point(np.array(too_much))
    with pytest.raises(OverflowError, match=r"^An element reaches 2\^23 in magnitude"):
        fixed_point(np.array([1e300, 1.0]))
    assert fixed_point(np.array([most, most]), fraction_bits=30) == 2 * most


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_fixed_point_has_no_infinity_and_no_nan(value):
    with pytest.raises(ValueError, match="no infinity and no NaN; remove them"):
        fixed_point(np.array([1.0, value]))


# --- Bounds of the error --------------------------------------------------------------------------------


@patient
@given(numbers(min_value=-1000, max_value=1000))
def test_errors_stay_within_the_bounds(x):
    true = sum(map(Fraction, x.tolist()), Fraction(0))
    abs_sum = float(sum(abs(Fraction(v)) for v in x.tolist()))
    second_order = x.size * (float(np.finfo(x.dtype).eps) / 2) ** 2 * abs_sum
    bounds = {
        serial: bound_serial(x.size, x.dtype, abs_sum),
        pairwise: bound_pairwise(x.size, x.dtype, abs_sum),
        kahan: bound_kahan(x.size, x.dtype, abs_sum) + second_order,
    }
    for algorithm, bound in bounds.items():
        # abs_sum itself is rounded to float64, which shows where the sums are float64 too.
        assert abs(Fraction(float(algorithm(x))) - true) <= Fraction(bound * (1 + 1e-15))


@pytest.mark.parametrize("n", [10**2, 10**4, 10**6])
def test_bounds_of_long_sums_hold_and_are_in_their_order(n):
    x = normal(n) + np.float32(1)
    truth, abs_sum = exact(x), exact(np.abs(x))
    bounds = [f(n, np.float32, abs_sum) for f in (bound_serial, bound_pairwise, bound_kahan)]
    errors = [abs(float(f(x)) - truth) for f in (serial, pairwise, kahan)]
    assert all(error <= bound for error, bound in zip(errors, bounds, strict=True))
    assert bounds == sorted(bounds, reverse=True)


def test_bounds_in_numbers():
    u = 2.0**-24
    for bound in (bound_serial, bound_pairwise, bound_kahan):
        assert bound(0, np.float32, 1.0) == bound(1, np.float32, 1.0) == 0
    assert bound_serial(1001, np.float32, 3.0) == 1000 * u / (1 - 1000 * u) * 3.0
    assert bound_pairwise(1024, np.float32, 1.0) == 10 * u / (1 - 10 * u)
    assert bound_pairwise(1025, np.float32, 1.0) == 11 * u / (1 - 11 * u)
    assert bound_kahan(10**6, np.float32, 3.0) == 6 * u
    assert bound_serial(3000, np.float16, 1.0) == math.inf  # 2^11 additions of float16 may lose everything


def test_the_serial_bound_is_nearly_reached():
    """One large number and many that each vanish in it: every addition loses all it can."""
    n, u = 1001, 2.0**-24
    x = np.full(n, u, np.float32)
    x[0] = 1
    error = abs(float(serial(x)) - exact(x))
    assert 0.99 < error / bound_serial(n, np.float32, exact(np.abs(x))) <= 1


# --- What is refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALL, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "x", [np.ones((2, 2)), np.ones(3, np.int32), np.float32(1), [1, 2], np.ones(3, complex)]
)
def test_only_rows_of_floats_have_a_sum(algorithm, x):
    with pytest.raises(ValueError, match="1-d array of float16, float32 or float64, not"):
        algorithm(x)


def test_strided_and_read_only_arrays_are_taken():
    x = normal(1000)
    x.flags.writeable = False
    for algorithm in ALL:
        assert same_bits(algorithm(x[::3]), algorithm(x[::3].copy()))
    assert same_bits(permuted_serial_sums(x[::3], 3), permuted_serial_sums(x[::3].copy(), 3))
