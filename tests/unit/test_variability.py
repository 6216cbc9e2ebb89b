"""Metrics of variability, and verdicts that claim no more than the runs show."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samebits.variability import bound, distinct, letters, v_c, v_ermv, v_s, verdict

# A busy machine is no failure.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def runs(*counts: int) -> list[str]:
    """Fingerprints of as many distinct answers as there are counts, each seen so often."""
    return [f"sha256:{answer:02x}" for answer, count in enumerate(counts) for _ in range(count)]


# --- Verdicts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fingerprints", "settings", "sentence"),
    [
        (runs(), {}, "Not enough evidence: nothing has run yet; a verdict needs at least 20 runs."),
        (runs(1), {}, "Not enough evidence: one run; a verdict needs at least 20."),
        (runs(5), {}, "Not enough evidence: 5 runs; a verdict needs at least 20."),
        (runs(19), {"processes": 19}, "Not enough evidence: 19 runs; a verdict needs at least 20."),
        (
            runs(20),
            {},
            "Same so far: one answer in 20 runs in one process; if it ever differs, it does so in fewer than 15 % "
            "of runs (95 % bound).",
        ),
        (
            runs(20),
            {"processes": 2, "per_process": True},
            "Same so far: one answer in 20 runs in 2 processes; if it ever differs, it does so in fewer than 15 % "
            "of runs (95 % bound).",
        ),
        (
            runs(1000),
            {},
            "Same so far: one answer in 1000 runs in one process; if it ever differs, it does so in fewer than "
            "0.3 % of runs (95 % bound).",
        ),
        (
            runs(20),
            {"per_process": True},
            "Not enough evidence: 20 runs in one process; what you set acts per process, so a verdict needs at "
            "least two processes.",
        ),
        (runs(1, 1), {}, "Different: 2 answers in 2 runs."),
        (runs(4, *[1] * 16), {}, "Different: 17 answers in 20 runs."),
        (
            runs(19, 1),
            {"processes": 2, "per_process": True},
            "Different: 2 answers in 20 runs in 2 processes.",
        ),
        (
            runs(10, 10),
            {"inputs": runs(19, 1)},
            "Not enough evidence: the runs had 2 different inputs, so their answers cannot be compared.",
        ),
        (
            runs(20),
            {"inputs": runs(19, 1)},
            "Not enough evidence: the runs had 2 different inputs, so their answers cannot be compared.",
        ),
    ],
)
def test_verdicts_in_words(fingerprints, settings, sentence):
    assert verdict(fingerprints, **settings).sentence == sentence


@patient
@given(st.integers(0, 60), st.integers(1, 4), st.integers(1, 3), st.booleans(), st.integers(1, 2))
def test_a_verdict_never_claims_more_than_its_rules(count, answers, processes, per_process, different_inputs):
    fingerprints = [f"sha256:{run % answers}" for run in range(count)]
    inputs = [f"sha256:in{run % different_inputs}" for run in range(count)]
    result = verdict(fingerprints, processes, per_process, inputs)
    answers, different_inputs = len(set(fingerprints)), len(set(inputs))
    if result.kind == "same":
        assert count >= 20 and answers == 1 and different_inputs == 1 and (processes >= 2 or not per_process)
        assert result.bound == bound(count - 1)
    elif result.kind == "different":
        assert answers > 1 and different_inputs == 1 and result.bound is None
    else:
        assert result.kind == "not enough evidence"
        assert different_inputs > 1 or answers < 2
        assert count < 20 or different_inputs > 1 or (per_process and processes == 1)
    assert (result.runs, result.processes, result.distinct) == (count, processes, answers)
    assert "determinis" not in result.sentence and result.sentence.count(".") in (1, 2)


def test_a_verdict_takes_inputs_that_are_described_in_words():
    assert verdict(runs(20), inputs=["the same call"] * 20).kind == "same"


def test_a_verdict_needs_one_input_for_each_run():
    with pytest.raises(ValueError, match="20 runs need 20 input fingerprints, not 19"):
        verdict(runs(20), inputs=runs(19))


# --- The bound ------------------------------------------------------------------------------------------


def test_the_bound_is_the_rate_that_would_go_unseen_once_in_twenty_times():
    for repeats in (1, 2, 19, 99, 999, 10**6):
        assert (1 - bound(repeats)) ** repeats == pytest.approx(0.05, rel=1e-9)
        assert bound(repeats) == pytest.approx(1 - 0.05 ** (1 / repeats), rel=1e-9)
    assert bound(10**12) == pytest.approx(2.9957322735539909e-12, rel=1e-11, abs=0)
    assert bound(0) == 1.0
    assert bound(1) == pytest.approx(0.95)
    assert bound(19) == pytest.approx(0.145869, abs=1e-6)


def test_the_bound_falls_with_every_repeat_and_three_over_m_is_its_rule_of_thumb():
    values = [bound(repeats) for repeats in range(200)]
    assert all(later < earlier for earlier, later in zip(values, values[1:], strict=False))
    assert all(bound(m) < 3 / m for m in range(1, 200))
    with pytest.raises(ValueError, match="cannot be negative"):
        bound(-1)


@patient
@given(st.integers(20, 10**6))
def test_the_sentence_rounds_the_bound_up(count):
    said = re.search(r"fewer than ([0-9.e-]+) %", verdict(["sha256:a"] * min(count, 5000)).sentence)[1]
    exact = 100 * bound(min(count, 5000) - 1)
    assert exact <= float(said) < 1.1 * exact


# --- Counting -------------------------------------------------------------------------------------------


def test_distinct_counts_and_refuses_two_algorithms():
    assert distinct([]) == 0
    assert distinct(runs(3, 4, 1)) == 3
    with pytest.raises(
        ValueError, match=r"different algorithms \(mix64, sha256\).*make all of them with one"
    ):
        distinct(["sha256:00", "mix64:00"])


def test_letters_follow_the_order_in_which_answers_were_seen():
    assert letters(["s:x", "s:y", "s:x", "s:z", "s:y"]) == list("ABACB")
    assert letters([]) == []
    many = letters([f"s:{n}" for n in range(26 * 27 + 1)])
    assert [many[n] for n in (0, 25, 26, 27, 51, 52, 701, 702)] == [
        "A",
        "Z",
        "AA",
        "AB",
        "AZ",
        "BA",
        "ZZ",
        "AAA",
    ]
    assert len(set(many)) == len(many)


# --- V_s, V_ermv, V_c -----------------------------------------------------------------------------------

NUMBERS = st.floats(allow_nan=False, allow_infinity=False).filter(lambda x: x != 0)


def test_metrics_of_worked_examples():
    assert v_s(0.75, 1.0) == 0.25
    assert v_s(1.5, -1.0) == -0.5
    assert v_ermv([1.0, 2.0, 4.0, 8.0], [1.0, 3.0, 4.0, 6.0]) == (1 / 2 + 2 / 8) / 4
    assert v_c([1.0, 2.0, 4.0, 8.0], [1.0, 3.0, 4.0, 6.0]) == 0.5
    assert v_c(torch.zeros(2, 2), torch.tensor([[0.0, 0.0], [0.0, -0.0]])) == 0.25
    assert v_ermv(np.array([3 + 4j]), np.array([3 + 3j])) == 0.2


@patient
@given(NUMBERS, NUMBERS)
def test_v_s_is_zero_for_equal_magnitudes_and_for_nothing_else(a, b):
    assert v_s(a, a) == v_s(-a, a) == 0
    assert (v_s(a, b) == 0) == (abs(a) == abs(b))
    assert v_s(math.nextafter(a, 0), a) > 0


@patient
@given(st.lists(NUMBERS, min_size=1, max_size=9), st.data())
def test_v_ermv_and_v_c_are_zero_for_equal_bits_and_for_nothing_else(values, data):
    a = np.array(values)
    assert v_ermv(a, a.copy()) == v_c(a, a.copy()) == 0
    index = data.draw(st.integers(0, len(values) - 1))
    b = a.copy()
    b[index] = np.nextafter(b[index], 0)
    assert v_c(a, b) == 1 / len(values)
    assert v_ermv(a, b) > 0


def test_zeros_nans_and_infinities():
    assert v_s(0.0, 0.0) == 0 and v_s(1.0, 0.0) == -math.inf and math.isnan(v_s(math.nan, 0.0))
    assert v_ermv([0.0, 1.0], [0.0, 1.0]) == 0
    assert v_ermv([0.0, 1.0], [-0.0, 1.0]) == 0 and v_c([0.0, 1.0], [-0.0, 1.0]) == 0.5
    assert v_ermv([0.0, 1.0], [1e-300, 1.0]) == math.inf
    nan = np.array([math.nan, 1.0])
    assert v_ermv(nan, nan.copy()) == 0 and v_c(nan, nan.copy()) == 0
    assert v_c(nan, [1.0, 1.0]) == 0.5 and math.isnan(v_ermv(nan, [1.0, 1.0]))
    assert v_ermv([1.0], [math.inf]) == math.inf
    assert v_ermv([], []) == v_c([], []) == 0


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2]
)
def test_metrics_take_tensors_of_short_formats(dtype):
    a = torch.tensor([[1.0, 2.0], [4.0, 8.0]]).to(dtype)
    b = torch.tensor([[1.0, 2.0], [4.0, 7.0]]).to(dtype)
    assert v_c(a, b) == 0.25
    assert v_ermv(a, b) == 1 / 8 / 4
    assert v_c(a.T, b) == v_c(a.T.contiguous(), b) == 0.75


def test_differences_are_computed_without_overflow_or_rounding_in_the_arrays_format():
    assert v_ermv(np.float16([60000]), np.float16([-60000])) == 2
    assert v_ermv(np.uint8([3]), np.uint8([4])) == 1 / 3
    assert v_c(np.int64([2**60]), np.int64([2**60 + 1])) == 1


def test_unlike_results_are_refused_in_one_sentence():
    for metric in (v_ermv, v_c):
        with pytest.raises(ValueError, match=r"not float64\[2\] with float64\[3\]"):
            metric(np.ones(2), np.ones(3))
        with pytest.raises(ValueError, match="one shape and dtype"):
            metric(np.ones(2), np.ones(2, np.float32))
