"""The trainings of chapter 07: a thousand orders that can be repeated, and a race that the flag ends."""

from __future__ import annotations

import pytest

from samebits import runner, thousand


@pytest.fixture(autouse=True, scope="module")
def end_workers():
    yield
    runner.close()


def trained(repeats: int = 30, **settings):
    return runner.run("thousand-models", settings, repeats=repeats)


def test_each_order_gives_its_own_model_and_the_same_one_again():
    runs = trained(threads=3)
    assert runs.verdict.kind == "different"
    assert runs.distinct == 30
    assert runs.fingerprints == trained(threads=1).fingerprints
    assert runs.fingerprints != trained(seed=1).fingerprints
    assert runs.source.kind == "MODEL"


def test_getting_the_trainer_ready_is_told_in_a_new_process():
    runner.close()
    told = []
    for _ in range(2):
        runner.run("thousand-models", {"epochs": 1}, repeats=1, on_wait=told.append)
    assert told == ["Starting a process.", thousand.GETTING_READY]


def test_nothing_varies_unless_something_is_let():
    runs = trained(varies="nothing")
    assert runs.distinct == 1
    assert runs.verdict.kind == "not enough evidence"  # of a model, not of hardware


def test_other_first_weights_are_other_inputs_and_get_no_verdict():
    assert "different inputs" in trained(repeats=3, varies="first weights").verdict.sentence


def test_runs_beyond_the_repeats_are_further_members():
    """until_different asks for one observation more, again and again, and must not get the first one each time."""
    runs = runner.run("thousand-models", {}, repeats=1, until_different=True)
    assert runs.distinct == 2


def test_cora_without_files_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.delenv("SAMEBITS_CORA", raising=False)
    with pytest.raises(runner.RunFailed, match="SAMEBITS_CORA"):
        trained(graph="Cora")
    monkeypatch.setenv("SAMEBITS_CORA", "no-such-folder")
    with pytest.raises(runner.RunFailed, match="cora.content cannot be read"):
        trained(graph="Cora")


@pytest.mark.parametrize("fix", [{"deterministic": True}, {"lookup": "embedding"}, {"threads": 1}])
def test_the_factorisation_stops_racing(fix, not_exercised):
    setting = {"device": "cpu", "steps": 5}
    control = runner.run("factorisation", setting, repeats=20, budget=10, until_different=True)
    fixed = runner.run("factorisation", setting | fix, repeats=30)
    if control.distinct == 1:
        not_exercised(f"the factorisation did not vary in {len(control.observations)} runs")
    assert fixed.verdict.kind == "same"


@pytest.mark.gpu
def test_the_flag_ends_the_race_of_the_graph_network_on_a_gpu(not_exercised):
    control = runner.run("sage-training", {"device": "cuda"}, repeats=20, budget=10, until_different=True)
    fixed = runner.run("sage-training", {"device": "cuda", "deterministic": True}, repeats=40)
    if control.distinct == 1:
        not_exercised(f"the graph network did not vary on this GPU in {len(control.observations)} runs")
    assert fixed.verdict.kind == "same"
