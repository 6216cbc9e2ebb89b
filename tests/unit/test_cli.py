"""The commands: what they print, what they refuse, and that recordings are planned before anything runs."""

from __future__ import annotations

import json
import math

import pytest

from samebits import cli, experiments, machine, runner
from samebits.experiment import Observation, Runs, Source

LIVE = Source("LIVE", "a card", {"torch": "2"}, "2026-11-29T12:00:00+00:00")


def runs_of(name: str, source: Source = LIVE, value: float = 1.0) -> Runs:
    observations = (Observation("sha256:a", "sha256:in", 0.1, {"sum": value}, sample=(value,)),) * 2
    return Runs(name, {}, {}, source, observations)


@pytest.fixture
def measured(monkeypatch):
    """The runs that were asked for; none is made."""
    asked = []

    def run(name, settings=None, **more):
        asked.append((name, settings))
        return runs_of(name)

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(machine, "cuda_device_count", lambda: 1)
    return asked


def test_list_names_every_experiment_and_knob(capsys):
    assert cli.main(["list"]) == 0
    printed = capsys.readouterr().out
    for name in experiments.names():
        assert name in printed
        for knob in experiments.find(name).knobs:
            assert f"{knob.name}=" in printed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "scater"], "Did you mean scatter?"),
        (["run", "scatter", "--set", "n"], "--set needs knob=value, such as n=100000, not 'n'."),
        (["run", "scatter", "--set", "opp"], "Did you mean op?"),
        (["run", "scatter", "--set", "n=-1"], "The nearest is 1."),
        (["run", "scatter", "--set", "opp=put_"], "Did you mean op?"),
        (["run", "sum-order", "--repeats", "0"], "at least one repeat"),
        (["run", "sum-order", "--budget", "0"], "more than 0 seconds"),
        (["run", "sum-order", "--budget", "nan"], "more than 0 seconds"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(words, sentence, capsys):
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_run_prints_json_that_any_reader_reads(monkeypatch, capsys):
    monkeypatch.setattr(runner, "run", lambda *a, **k: runs_of("sum-order", value=math.nan))
    assert cli.main(["run", "sum-order", "--json"]) == 0

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    data = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert set(data) >= {"experiment", "settings", "source", "runs", "distinct", "verdict"}
    assert math.isnan(Runs.from_json(data).observations[0].sample[0])


def test_without_a_gpu_nothing_is_recorded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(machine, "cuda_device_count", lambda: 0)
    assert cli.main(["record", "scatter", "--out", str(tmp_path / "x.json")]) == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("name", [n for n in experiments.names() if experiments.find(n).recordings])
def test_every_declared_recording_can_be_asked_for(name, measured, tmp_path):
    out = tmp_path / "x.json"
    assert cli.main(["record", name, "--out", str(out)]) == 0
    recorded = [Runs.from_json(data) for data in json.loads(out.read_text())]
    assert len(recorded) == len(measured) == len(experiments.find(name).recordings)
    assert {runs.source.kind for runs in recorded} == {"RECORDED"}
    assert all(settings.get("device", "cuda") == "cuda" for _, settings in measured)


@pytest.mark.parametrize("names", [["scatter", "scater"], ["scatter", "sum-order"]])
def test_a_recording_is_planned_before_anything_runs(names, measured, tmp_path):
    out = tmp_path / "x.json"
    out.write_text("old")
    assert cli.main(["record", *names, "--out", str(out)]) == 2
    assert measured == []
    assert out.read_text() == "old"


def test_where_a_recording_cannot_be_written_is_found_out_first(measured, tmp_path, capsys):
    for out in (tmp_path, tmp_path / "missing" / "x.json"):
        with pytest.raises(SystemExit):
            cli.main(["record", "scatter", "--out", str(out)])
        assert "can be written" in capsys.readouterr().err
    assert measured == []


def test_what_was_recorded_before_a_fault_is_kept(monkeypatch, tmp_path):
    calls = []

    def run(name, settings, **more):
        calls.append(settings)
        if len(calls) == 3:
            raise runner.RunFailed("The worker crashed.")
        return runs_of(name)

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(machine, "cuda_device_count", lambda: 1)
    out = tmp_path / "x.json"
    assert cli.main(["record", "scatter", "--out", str(out)]) == 2
    assert len(json.loads(out.read_text())) == 2


def test_a_model_is_never_recorded(monkeypatch, tmp_path, capsys):
    model = Source("MODEL", why="a simulator")
    monkeypatch.setattr(runner, "run", lambda name, settings, **more: runs_of(name, model))
    monkeypatch.setattr(machine, "cuda_device_count", lambda: 1)
    assert cli.main(["record", "scatter", "--out", str(tmp_path / "x.json")]) == 2
    assert "Only what a GPU measured" in capsys.readouterr().err


def test_a_terminal_is_told_once_what_there_is_to_wait_for(capsys):
    counter = cli._Counter()
    for sentence in ("Starting a process.", "In a queue.", "In a queue."):
        counter.wait(sentence)
    assert capsys.readouterr().err.replace("\r", "").splitlines() == ["Starting a process.", "In a queue."]
