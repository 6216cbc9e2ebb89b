"""Floats taken apart, distances in ULPs, and fingerprints that equal bits share and others do not."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from samebits import bits
from samebits.bits import (
    ALGORITHMS,
    FORMATS,
    NAN_DISTANCE,
    anatomy,
    device_fingerprint,
    fingerprint,
    from_bits,
    max_ulp_distance,
    read_device_fingerprints,
    ulp,
    ulp_distance,
)

# A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

TORCH = {name: getattr(torch, name) for name in FORMATS}
UNSIGNED = {name: np.dtype(f"u{form.width // 8}") for name, form in FORMATS.items()}


def tensor_of(patterns, name: str) -> torch.Tensor:
    """The tensor of format `name` whose bits are `patterns`."""
    patterns = np.array(patterns, UNSIGNED[name])
    return torch.from_numpy(patterns.view(f"i{patterns.itemsize}")).view(TORCH[name])


# --- One float ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_pattern_of_a_short_format_has_the_value_that_torch_gives_it(name):
    patterns = range(1 << 16)
    expected = tensor_of(patterns, name).double().tolist()
    for pattern, value in zip(patterns, expected, strict=True):
        number = from_bits(pattern, name)
        assert number.value == value or (math.isnan(value) and number.kind == "nan")
        assert math.copysign(1, number.value) == (-1 if number.sign else 1)
        if number.kind != "nan":
            assert anatomy(value, name).pattern == pattern


@patient
@given(st.sampled_from(["float32", "float64"]), st.data())
def test_patterns_of_long_formats_have_the_value_that_numpy_gives_them(name, data):
    pattern = data.draw(st.integers(0, (1 << FORMATS[name].width) - 1))
    value = float(np.array(pattern, UNSIGNED[name]).view(name))
    number = from_bits(pattern, name)
    assert number.value == value or (math.isnan(value) and number.kind == "nan")


@patient
@given(st.floats(allow_nan=False))
def test_a_value_is_rounded_as_ieee_754_says(value):
    with np.errstate(over="ignore"):
        for name in ("float16", "float32", "float64"):
            assert anatomy(value, name).pattern == int(np.array(value, name).view(UNSIGNED[name]))


@patient
@given(st.floats(width=32, allow_nan=False))
def test_a_value_is_rounded_to_bfloat16_as_torch_does(value):
    expected = torch.tensor(value, dtype=torch.float32).to(torch.bfloat16).view(torch.int16).item() & 0xFFFF
    assert anatomy(value, "bfloat16").pattern == expected


def test_rounding_is_to_even_at_ties_and_to_infinity_past_the_largest():
    assert anatomy(16777217.0).value == 16777216.0
    assert anatomy(16777219.0).value == 16777220.0
    assert anatomy(65519.99, "float16").value == 65504.0
    assert anatomy(65520.0, "float16").value == math.inf
    assert anatomy(2.0**-25, "float16").kind == "zero"
    assert anatomy(1.5 * 2.0**-25, "float16").kind == "subnormal"


@patient
@given(st.floats(width=32, allow_nan=False))
def test_neighbours_and_ulp_are_those_of_numpy(value):
    number, exact = anatomy(value), np.float32(value)
    with np.errstate(all="ignore"):
        assert number.below == np.nextafter(exact, np.float32(-np.inf))
        assert number.above == np.nextafter(exact, np.float32(np.inf))
        if abs(value) < np.finfo(np.float32).max:
            # NumPy signs the spacing of negative numbers, and has none for the largest.
            assert number.ulp == ulp(value) == abs(np.spacing(exact))


@patient
@given(st.floats())
def test_ulp_of_float64_is_that_of_the_standard_library(value):
    assert ulp(value, "float64") == math.ulp(value) or math.isnan(value)


def test_anatomy_shows_the_fields():
    number = anatomy(-0.1)
    assert number.bits == "1 01111011 10011001100110011001101"
    assert (number.sign, number.exponent, number.fraction) == (1, 123, 0b10011001100110011001101)
    assert (number.kind, number.value) == ("normal", -0.10000000149011612)
    assert str(number) == (
        "float32  1 01111011 10011001100110011001101\n"
        "value     -0.10000000149011612, normal\n"
        "          = -1.600000023841858 × 2^-4\n"
        "exponent  123 stored, bias 127\n"
        "between   -0.10000000894069672 and -0.09999999403953552"
    )


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (0.0, "zero"),
        (-0.0, "zero"),
        (1e-45, "subnormal"),
        (1.0, "normal"),
        (math.inf, "infinity"),
        (math.nan, "nan"),
    ],
)
def test_kinds_and_their_words(value, kind):
    assert anatomy(value).kind == kind
    assert f", {kind}" in str(anatomy(value))


def test_neighbours_at_the_ends_of_the_line():
    assert anatomy(0.0).below == anatomy(-0.0).below == -(2.0**-149)
    assert anatomy(math.inf).above == math.inf
    assert anatomy(math.inf).below == np.finfo(np.float32).max
    assert anatomy(-math.inf).below == -math.inf
    assert math.isnan(anatomy(math.nan).above)


def test_a_nan_keeps_its_sign_and_the_payload_that_fits():
    nan = from_bits(0xFFF8_0000_DEAD_BEEF, "float64")
    assert nan.kind == "nan" and nan.sign == 1
    payload = np.array(0xFFC0_1234, np.uint32).view(np.float32)
    assert anatomy(payload).pattern == 0xFFC0_1234
    assert anatomy(math.nan, "bfloat16").kind == "nan"


@pytest.mark.parametrize(
    "dtype", [np.float32, np.dtype("float32"), torch.float32, "float32", np.dtype(">f4")]
)
def test_dtypes_may_be_numpys_or_torchs(dtype):
    assert anatomy(1.0, dtype).pattern == 0x3F800000


def test_wrong_dtypes_and_patterns_are_one_sentence():
    with pytest.raises(ValueError, match="int32 is none of the formats.*bfloat16"):
        anatomy(1.0, torch.int32)
    with pytest.raises(ValueError, match="no pattern of 16 bits"):
        from_bits(1 << 16, "float16")


# --- ULP distance ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_distance_across_the_whole_line(name):
    form = FORMATS[name]
    largest = from_bits(form.infinity - 1, name).value
    least = from_bits(1, name).value
    assert ulp_distance(0.0, -0.0, name) == 0
    assert ulp_distance(-least, least, name) == 2
    assert ulp_distance(1.0, anatomy(1.0, name).above, name) == 1
    assert ulp_distance(largest, math.inf, name) == 1
    assert ulp_distance(-math.inf, math.inf, name) == 2 * form.infinity
    assert ulp_distance(-math.inf, math.inf, name) < NAN_DISTANCE
    assert ulp_distance(math.inf, math.inf, name) == 0


@patient
@given(st.sampled_from(list(FORMATS)), st.data())
def test_distance_is_the_difference_of_places_on_the_line(name, data):
    form = FORMATS[name]
    pattern = st.integers(0, (1 << form.width) - 1).filter(lambda p: p % form.sign_bit <= form.infinity)
    a, b = data.draw(st.lists(pattern, min_size=1, max_size=9)), data.draw(pattern)

    def place(pattern: int) -> int:
        return -(pattern - form.sign_bit) if pattern & form.sign_bit else pattern

    expected = [abs(place(one) - place(b)) for one in a]
    distances = ulp_distance(tensor_of(a, name), tensor_of(b, name))
    assert distances.dtype == np.uint64 and distances.tolist() == expected
    assert max_ulp_distance([tensor_of(one, name) for one in a]) == max(
        abs(place(p) - place(q)) for p in a for q in a
    )


def test_nan_is_at_no_distance_from_nan_and_further_than_any_number_from_numbers():
    patterns = tensor_of([0x7FC00000, 0xFFC12345, 0x3F800000], "float32")
    assert ulp_distance(patterns, math.nan).tolist() == [0, 0, NAN_DISTANCE]
    assert ulp_distance(math.nan, math.inf) == NAN_DISTANCE
    assert max_ulp_distance([patterns, patterns.flip(0)]) == NAN_DISTANCE
    assert max_ulp_distance([patterns[:2], patterns[:2].flip(0)]) == 0


def test_distance_takes_scalars_arrays_and_tensors():
    assert ulp_distance(np.float32(0.1), 0.1) == 0  # a Python number takes the format of the other
    assert ulp_distance(0.1, np.float32(0.1).item()) > 0  # two of them are float64
    assert isinstance(ulp_distance(1.0, 2.0), int)
    assert ulp_distance(1, 2, "float32") == 1 << 23
    assert ulp_distance(np.ones((2, 3), np.float32), 1.0).shape == (2, 3)
    assert ulp_distance(torch.ones(3, requires_grad=True), np.ones(3, np.float32)).tolist() == [0, 0, 0]
    assert ulp_distance(torch.ones(4, 6)[::2, ::3], torch.ones(2, 2)).tolist() == [[0, 0], [0, 0]]
    assert ulp_distance(torch.ones(()), torch.ones(())) == 0


def test_distances_of_unlike_things_are_refused():
    with pytest.raises(ValueError, match="float32 and float64 are not the same"):
        ulp_distance(np.float32(1), np.float64(1))
    with pytest.raises(ValueError, match="float16 and float32"):
        ulp_distance(np.float32(1), 1.0, "float16")
    with pytest.raises(ValueError, match=r"shapes \[2\] and \[3\]"):
        max_ulp_distance([np.ones(2), np.ones(3)])


def test_the_farthest_two_of_few_results():
    one = np.float32([1, 1])
    assert max_ulp_distance([]) == max_ulp_distance([one]) == max_ulp_distance([one[:0], one[:0]]) == 0
    assert max_ulp_distance([one, np.nextafter(one, np.float32(2)), np.nextafter(one, np.float32(0))]) == 2


# --- Fingerprints: what differs -------------------------------------------------------------------------


def arrays(least: int = 1):
    """Formats with patterns of a few elements: any bits at all, or the few values that collide most easily."""

    def patterns(name: str):
        width = FORMATS[name].width
        common = [anatomy(value, name).pattern for value in (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5)]
        pattern = st.one_of(st.sampled_from(common), st.integers(0, (1 << width) - 1))
        return st.tuples(st.just(name), st.lists(pattern, min_size=least, max_size=24))

    return st.sampled_from(list(FORMATS)).flatmap(patterns)


def assert_all_differ(name: str, before: list[int], after: list[int], shape=(-1,)) -> None:
    one, other = (tensor_of(patterns, name).reshape(shape) for patterns in (before, after))
    for algorithm in ALGORITHMS:
        assert fingerprint(one, algorithm) != fingerprint(other, algorithm)
        assert fingerprint(one, algorithm) == fingerprint(one.clone(), algorithm)


@patient
@given(arrays(), st.data())
def test_one_flipped_bit_differs(array, data):
    name, patterns = array
    index = data.draw(st.integers(0, len(patterns) - 1))
    bit = data.draw(st.integers(0, FORMATS[name].width - 1))
    changed = list(patterns)
    changed[index] ^= 1 << bit
    assert_all_differ(name, patterns, changed)


@patient
@given(arrays(least=4), st.integers(1, 3), st.randoms(use_true_random=False))
def test_permuted_rows_differ(array, columns, random):
    name, patterns = array
    rows = [patterns[i : i + columns] for i in range(0, len(patterns) - columns + 1, columns)]
    shuffled = random.sample(rows, len(rows))
    assume(shuffled != rows)
    flat = [[pattern for row in matrix for pattern in row] for matrix in (rows, shuffled)]
    assert_all_differ(name, *flat, shape=(-1, columns))


@patient
@given(arrays(), st.data())
def test_one_or_two_flipped_signs_differ(array, data):
    name, patterns = array
    flipped = data.draw(st.sets(st.integers(0, len(patterns) - 1), min_size=1, max_size=2))
    changed = [p ^ FORMATS[name].sign_bit if i in flipped else p for i, p in enumerate(patterns)]
    assert_all_differ(name, patterns, changed)


@patient
@given(arrays(least=2), st.data())
def test_plus_a_and_minus_a_swapped_differ(array, data):
    name, patterns = array
    i, j = data.draw(st.lists(st.integers(0, len(patterns) - 1), min_size=2, max_size=2, unique=True))
    patterns[j] = patterns[i] ^ FORMATS[name].sign_bit
    changed = list(patterns)
    changed[i], changed[j] = patterns[j], patterns[i]
    assert_all_differ(name, patterns, changed)


@patient
@given(arrays(least=2), st.data())
def test_one_ulp_up_here_and_one_down_there_differ(array, data):
    name, patterns = array
    top = (1 << FORMATS[name].width) - 1
    i, j = data.draw(st.lists(st.integers(0, len(patterns) - 1), min_size=2, max_size=2, unique=True))
    assume(patterns[i] < top and patterns[j] > 0)
    changed = list(patterns)
    changed[i] += 1
    changed[j] -= 1
    assert_all_differ(name, patterns, changed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_pair_of_flipped_signs_and_every_swap_differ(algorithm):
    """Exhaustive, where a sum of words with fixed odd weights collides each time: 2^63 twice is nothing."""
    x = torch.linspace(1, 2, 24, dtype=torch.float64)
    x[1::2] = -x[::2]
    seen = {fingerprint(x, algorithm)}
    pairs = [(i, j) for i in range(24) for j in range(i)]
    for i, j in pairs:
        flipped, swapped = x.clone(), x.clone()
        flipped[[i, j]] *= -1
        swapped[[i, j]] = x[[j, i]]
        seen |= {fingerprint(flipped, algorithm), fingerprint(swapped, algorithm)}
    # Swapping +a with the −a beside it is flipping both signs.
    assert len(seen) == 1 + 2 * len(pairs) - 12


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_signs_of_zero_and_payloads_of_nan_count(algorithm):
    assert fingerprint(0.0, algorithm) != fingerprint(-0.0, algorithm)
    nans = [tensor_of([pattern], "float32") for pattern in (0x7FC00000, 0x7FC00001, 0xFFC00000)]
    assert len({fingerprint(nan, algorithm) for nan in nans}) == 3


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_dtype_shape_and_structure_count(algorithm):
    zeros = torch.zeros(2, 3)
    different = [
        zeros,
        zeros.reshape(3, 2),
        zeros.reshape(6),
        zeros.view(torch.int32),
        zeros.view(torch.bfloat16),
        zeros.view(torch.uint8),
        torch.zeros(0),
        torch.zeros(0, 3),
        torch.zeros(3, 0),
        torch.zeros(()),
        torch.zeros(1),
        torch.zeros(7, dtype=torch.uint8),
        torch.zeros(8, dtype=torch.uint8),
        0,
        0.0,
        0j,
        False,
        [],
        {},
        [[]],
        [zeros],
        [zeros, zeros],
        [[zeros], zeros],
        [zeros, [zeros]],
        {"a": zeros},
        {"b": zeros},
    ]
    assert len({fingerprint(x, algorithm) for x in different}) == len(different)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_order_within_a_list_counts_and_within_a_dict_does_not(algorithm):
    a, b = torch.zeros(3), torch.ones(3)
    assert fingerprint([a, b], algorithm) != fingerprint([b, a], algorithm)
    assert fingerprint([a, b], algorithm) == fingerprint((a, b), algorithm)
    assert fingerprint({"x": a, "y": b}, algorithm) == fingerprint({"y": b, "x": a}, algorithm)
    assert fingerprint({"x": a, "y": b}, algorithm) != fingerprint({"x": b, "y": a}, algorithm)


# --- Fingerprints: what does not differ -----------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_strides_do_not_count(algorithm):
    big = torch.arange(60, dtype=torch.float32).reshape(5, 12)
    views = [big.T, big[::2, ::3], big[1:, 1:4], big.flip(0), big[:, 0], big[0, 0], big.expand(2, 5, 12)]
    views += [big[0, 0].expand(1), big[0, ::12], big[:1, :1], big[:0], big[0, 0].expand(0)]
    for view in views:
        assert fingerprint(view, algorithm) == fingerprint(view.contiguous().clone(), algorithm)
    array = big.numpy()
    for view in (
        array.T,
        array[::-2, ::-3],
        np.asfortranarray(array),
        array[0, ::12],
        np.broadcast_to(array[0, 0], 1),
    ):
        assert fingerprint(view, algorithm) == fingerprint(np.array(view, order="C"), algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("start", range(9))
def test_where_a_slice_begins_does_not_count(algorithm, start):
    data = torch.arange(100, dtype=torch.uint8)
    assert fingerprint(data[start:], algorithm) == fingerprint(data[start:].clone(), algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "int64", "uint16", "bool", "complex64"]
)
def test_an_array_and_a_tensor_of_equal_bits_are_equal(algorithm, dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    assert fingerprint(array, algorithm) == fingerprint(torch.from_numpy(array), algorithm)
    assert fingerprint(array, algorithm) == fingerprint(array.astype(array.dtype.newbyteorder()), algorithm)
    assert fingerprint(array[1, 2], algorithm) == fingerprint(torch.from_numpy(array)[1, 2], algorithm)
    array.flags.writeable = False
    assert fingerprint(array, algorithm) == fingerprint(array.copy(), algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_python_number_is_its_numpy_scalar(algorithm):
    assert fingerprint(1.5, algorithm) == fingerprint(np.float64(1.5), algorithm)
    assert fingerprint(True, algorithm) == fingerprint(np.True_, algorithm)
    assert fingerprint(1, algorithm) == fingerprint(np.int64(1), algorithm)
    assert fingerprint(2j, algorithm) == fingerprint(np.complex128(2j), algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_flags_of_a_tensor_do_not_count_and_what_they_stand_for_does(algorithm):
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert fingerprint(z.conj(), algorithm) == fingerprint(z.conj().resolve_conj(), algorithm)
    assert fingerprint(z.conj(), algorithm) != fingerprint(z, algorithm)
    assert fingerprint(z.conj().imag, algorithm) == fingerprint(z.conj().imag.resolve_neg(), algorithm)
    alone = torch.tensor([1 + 2j]).conj().imag  # contiguous as it is, so no copy resolves it by the way
    assert alone.is_neg() and fingerprint(alone, algorithm) == fingerprint(torch.tensor([-2.0]), algorithm)
    leaf = torch.ones(3, requires_grad=True)
    assert fingerprint(leaf, algorithm) == fingerprint(torch.ones(3), algorithm)
    assert fingerprint(torch.nn.Parameter(torch.ones(3)), algorithm) == fingerprint(torch.ones(3), algorithm)


EVERY_DTYPE = [
    dtype
    for dtype in (getattr(torch, name) for name in dir(torch))
    if isinstance(dtype, torch.dtype) and not str(dtype).startswith(("torch.q", "torch.bits"))
]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", sorted(set(EVERY_DTYPE), key=str), ids=str)
def test_every_dtype_of_torch_has_fingerprints(algorithm, dtype):
    raw = torch.arange(48, dtype=torch.uint8)
    if dtype.itemsize > 1:
        data = raw.view(dtype)
    elif dtype == torch.bool:
        data = raw % 2 == 1
    else:
        data = raw.view(dtype)
    shorter = data[: len(data) // 2]
    prints = [fingerprint(x, algorithm) for x in (data, data[0], data[:0], shorter, data[len(data) // 2 :])]
    assert len(set(prints)) == (4 if dtype == torch.bool else 5)
    assert str(dtype).removeprefix("torch.") not in prints[0]


def test_fingerprints_name_their_algorithm():
    lengths = {"sha256": 64, "xxh3": 32, "mix64": 16}
    for algorithm, length in lengths.items():
        name, _, digits = fingerprint(torch.ones(3), algorithm).partition(":")
        assert (name, len(digits)) == (algorithm, length)
    assert fingerprint(1.0) == fingerprint(1.0, "sha256")


def test_fingerprints_are_those_of_earlier_versions():
    """Recordings hold fingerprints, so a change of these texts makes every recording useless."""
    x = {"weights": torch.arange(5, dtype=torch.float32), "steps": 3}
    assert (
        fingerprint(x)
        == "sha256:"
        + hashlib.sha256(
            b"{'steps': int64[], 'weights': float32[5]}\n"
            + np.int64(3).tobytes()
            + np.arange(5, dtype="f4").tobytes()
        ).hexdigest()
    )
    assert fingerprint(x, "xxh3") == "xxh3:a315baaaea4212e17af5243d89fc297d"
    assert fingerprint(x, "mix64") == "mix64:7b5a071f96a50a3a"


@pytest.mark.parametrize("x", ["text", None, {1, 2}, object(), np.array([object()]), [1.0, "text"]])
def test_what_has_no_bytes_is_refused_in_one_sentence(x):
    for algorithm in ALGORITHMS:
        with pytest.raises(TypeError, match=r"(has no fingerprint|has no bytes).*; use"):
            fingerprint(x, algorithm)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_hides_elements_or_has_none_is_refused(algorithm):
    """Two masks over the same bytes are two results, and a tensor without storage has no bytes at all."""
    with pytest.raises(TypeError, match="masked array.*use filled()"):
        fingerprint(np.ma.array([1.0, 2.0], mask=[False, True]), algorithm)
    with pytest.raises(TypeError, match="meta device"):
        fingerprint(torch.ones(3, device="meta"), algorithm)


def test_sparse_tensors_and_unknown_algorithms_are_refused():
    with pytest.raises(TypeError, match="to_dense"):
        fingerprint(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="'md5' is no fingerprint algorithm; use one of sha256, xxh3, mix64"):
        fingerprint(1.0, "md5")


# --- mix64 ----------------------------------------------------------------------------------------------


def mix64_in_plain_python(structure: str, *leaves: bytes) -> str:
    """mix64 as its documentation defines it, in integers without end."""
    mask = 2**64 - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    total = position = 0
    for leaf in leaves:
        for start in range(0, len(leaf), 8):
            position += 1
            word = int.from_bytes(leaf[start : start + 8], "little")
            total += mix(word ^ (position * 0x9E3779B97F4A7C15 & mask))
    key = int.from_bytes(hashlib.sha256(structure.encode()).digest()[:8], "little")
    return f"mix64:{mix((total & mask) ^ key):016x}"


@patient
@given(st.binary(max_size=100))
def test_mix64_is_what_plain_python_computes(data):
    array = np.frombuffer(data, np.uint8)
    assert fingerprint(array, "mix64") == mix64_in_plain_python(f"uint8[{len(data)}]", data)


def test_mix64_of_several_tensors_is_what_plain_python_computes():
    a, b = np.arange(3, dtype=np.float32), np.arange(4, dtype=np.float64)
    expected = mix64_in_plain_python("(float32[3], {'b': float64[4]})", a.tobytes(), b.tobytes())
    assert fingerprint([torch.from_numpy(a), {"b": torch.from_numpy(b)}], "mix64") == expected


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_mix64_does_not_depend_on_how_the_words_are_taken(monkeypatch, chunk):
    x = torch.arange(1001, dtype=torch.float32)
    whole = fingerprint([x, x[:7]], "mix64")
    monkeypatch.setattr(bits, "_CHUNK_CPU", chunk)
    assert fingerprint([x, x[:7]], "mix64") == whole


def test_device_fingerprints_stay_tensors_until_they_are_read():
    tensors = [torch.arange(n, dtype=torch.float32) for n in range(5)]
    device = [device_fingerprint(x) for x in tensors]
    assert all(isinstance(x, torch.Tensor) and x.dtype == torch.int64 and x.shape == () for x in device)
    assert read_device_fingerprints(device) == [fingerprint(x, "mix64") for x in tensors]
    assert read_device_fingerprints([]) == []


def test_a_fingerprint_changes_nothing():
    x = torch.arange(1000.0)
    for algorithm in ALGORITHMS:
        fingerprint(x, algorithm)
    assert torch.equal(x, torch.arange(1000.0))


@pytest.mark.gpu
def test_the_gpu_gives_the_fingerprint_of_the_cpu():
    x = {"a": torch.arange(10_000_019, dtype=torch.float32), "b": torch.ones(3, dtype=torch.bfloat16)}
    on_gpu = {name: tensor.cuda() for name, tensor in x.items()}
    assert device_fingerprint(on_gpu).is_cuda
    for algorithm in ALGORITHMS:
        assert fingerprint(on_gpu, algorithm) == fingerprint(x, algorithm)


# --- Imports --------------------------------------------------------------------------------------------


def test_fingerprints_of_arrays_import_no_framework():
    code = (
        "import sys, numpy as np; from samebits import bits, variability, orders\n"
        "bits.fingerprint([np.ones(3), 1.0]); bits.fingerprint(np.ones(3), 'xxh3'); bits.ulp_distance(1.0, 2.0)\n"
        "print([name for name in ('torch', 'tensorflow', 'numba', 'ipywidgets') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.strip() == "[]"
