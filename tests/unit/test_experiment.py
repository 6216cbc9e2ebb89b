"""Declarations, settings and their messages, and the form in which results are kept."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.experiment import BadSetting, Experiment, Knob, Observation, Runs, Source, repeat

TOGGLE = Knob("flag", "Flag", "A flag.", "toggle", False)
CHOICE = Knob(
    "op", "Op", "An op.", "choice", "add", choices=("add", "scatter"), variable="OP", scope="process"
)
NUMBER = Knob("n", "N", "A number.", "number", 5, low=1, high=10)
EXPERIMENT = Experiment(
    "toy",
    "Toy",
    "Why?",
    (TOGGLE, CHOICE, NUMBER),
    prepare=lambda settings: None,
    observe=lambda state, n: iter(()),
    code=lambda settings: "",
)
LIVE = Source("LIVE", "a machine", {"numpy": "2"}, "2026-11-29T12:00:00+00:00")


def observed(*fingerprints: str, **more) -> Runs:
    observations = tuple(Observation(f"sha256:{f}", "sha256:in", 0.1, **more) for f in fingerprints)
    return Runs("toy", {"n": 5}, {"n": 5}, LIVE, observations)


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("on", True), ("off", False), (False, False), (True, True)]
)
def test_a_toggle_takes_words(text, value):
    assert TOGGLE.parse(text) is value


@pytest.mark.parametrize(
    ("knob", "value", "sentence"),
    [
        (TOGGLE, "maybe", "Use true or false"),
        (CHOICE, "scater", "Did you mean scatter?"),
        (CHOICE, "zzz", "Possible: add, scatter."),
        (NUMBER, "11", "The nearest is 10."),
        (NUMBER, "-5", "The nearest is 1."),
        (NUMBER, "2.5", "whole number"),
        (NUMBER, "nan", "whole number"),
        (NUMBER, "inf", "whole number"),
        (NUMBER, True, "whole number"),
        (NUMBER, None, "whole number"),
        (NUMBER, [1], "whole number"),
    ],
)
def test_a_value_that_a_knob_cannot_take_is_one_sentence(knob, value, sentence):
    with pytest.raises(BadSetting) as error:
        knob.parse(value)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@given(st.one_of(st.integers(), st.floats(), st.text(max_size=20), st.none()))
def test_any_number_setting_is_within_range_or_refused(value):
    try:
        assert 1 <= NUMBER.parse(value) <= 10
    except BadSetting:
        pass


def test_settings_fill_in_defaults_and_name_the_nearest_knob():
    assert EXPERIMENT.settings(n="3") == {"flag": False, "op": "add", "n": 3}
    with pytest.raises(BadSetting, match="Did you mean flag"):
        EXPERIMENT.settings(flga=True)


def test_a_process_knob_asks_for_two_processes_and_sets_its_variable():
    assert EXPERIMENT.processes == 2
    assert EXPERIMENT.variables({"op": "scatter", "n": 1, "flag": False}) == {"OP": "scatter"}
    assert EXPERIMENT.variables({"op": "unset", "n": 1, "flag": False}) == {"OP": None}


def test_a_source_must_be_of_a_known_kind_and_say_why():
    with pytest.raises(ValueError, match="LIVE, RECORDED, MODEL, PUBLISHED"):
        Source("GUESSED")
    with pytest.raises(ValueError, match="must say why"):
        Source("MODEL")


def test_a_stored_live_source_says_when_it_was_measured():
    assert LIVE.stored == "measured on a machine · numpy 2, on 2026-11-29"
    assert Source("PUBLISHED", why="arXiv:2408.05148").stored == "PUBLISHED · arXiv:2408.05148"


def test_what_several_runs_measured_names_every_device():
    """A figure of runs on one thread and on two said "1 thread", since it took the first run's source."""
    two = dataclasses.replace(LIVE, device="another machine", libraries={"torch": "2.13"})
    joined = Source.joined([LIVE, two, LIVE])
    assert joined.device == "a machine and another machine"
    assert joined.libraries == {"numpy": "2", "torch": "2.13"}
    assert joined.kind == "LIVE" and Source.joined([LIVE]) == LIVE


def test_what_was_measured_is_not_joined_with_what_was_not():
    with pytest.raises(ValueError, match="LIVE and MODEL"):
        Source.joined([LIVE, Source("MODEL", why="a simulator")])


def test_runs_survive_json():
    runs = observed("a", "b", scalars={"sum": 1.0}, sample=(1.0, 2.0))
    again = Runs.from_json(json.loads(json.dumps(runs.to_json())))
    assert again.fingerprints == runs.fingerprints
    assert again.verdict == runs.verdict
    assert again.farthest == runs.farthest
    assert again.source == runs.source


def test_a_model_that_never_varies_is_no_evidence_about_hardware():
    model = Source("MODEL", why="a simulator in which threads take turns")
    runs = dataclasses.replace(observed(*["a"] * 40), source=model)
    assert observed(*["a"] * 40).verdict.kind == "same"
    assert runs.verdict.kind == "not enough evidence"
    assert "of a model" in runs.verdict.sentence
    assert dataclasses.replace(observed("a", "b"), source=model).verdict.kind == "different"


def test_what_the_library_reported_is_told_in_words():
    def reported(*reports):
        observations = tuple(Observation("sha256:a", "i:1", 0, reported=report) for report in reports)
        return Runs("toy", {}, {}, LIVE, observations).reported

    assert reported({}) == ""
    assert reported({"kernel": "gemm"}, {"kernel": "gemm"}) == "kernel: gemm"
    assert reported({"chosen": "a"}, {"chosen": "b"}, {"chosen": "b"}) == "chosen: b 2, a 1"
    hashes = [{"gradient": "sha256:" + "0" * 64}, {"gradient": "sha256:" + "1" * 64}]
    assert reported(*hashes) == "gradient: 2 answers"
    assert reported({"seconds": 0.1, "table": {"a": 1}}) == ""


def test_the_farthest_two_runs_are_told_in_ulps():
    one, two = 1.0, 1.0 + 2**-22
    runs = Runs(
        "toy",
        {},
        {},
        LIVE,
        (
            Observation("sha256:a", "i:1", 0, sample=(one, 0.0)),
            Observation("sha256:b", "i:1", 0, sample=(two, -0.0)),
        ),
    )
    assert runs.farthest == 2
    assert observed("a").farthest is None


# Anything that JSON can hold, and recordings with one field replaced by it.
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_a_malformed_recording_is_one_sentence(data):
    _reads_or_refuses(data)


@given(st.sampled_from(["experiment", "settings", "source", "runs", "per_process", "ended"]), JSON)
def test_a_damaged_recording_is_one_sentence(field, value):
    _reads_or_refuses(observed("a", "b").to_json() | {field: value})


@given(
    st.sampled_from(["fingerprint", "input", "seconds", "scalars", "reported", "sample", "dtype", "process"]),
    JSON,
)
def test_a_damaged_observation_is_one_sentence(field, value):
    data = observed("a", "b", sample=(1.0,)).to_json()
    data["runs"][0] |= {field: value}
    _reads_or_refuses(data)


def _reads_or_refuses(data) -> None:
    try:
        runs = Runs.from_json(data)
    except ValueError as error:
        assert "not a recording" in str(error)
    else:
        assert json.dumps(runs.to_json())


def test_repeat_measures_in_this_process():
    numbers = iter([1.0, 1.0, 2.0])
    runs = repeat(lambda: next(numbers), 3)
    assert runs.distinct == 2
    assert runs.source.kind == "LIVE"
    assert all(o.seconds >= 0 for o in runs.observations)
