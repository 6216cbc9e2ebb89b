"""Chapter 06's experiments and scripts in TensorFlow workers: what varies, what ends it, and what is silent."""

from __future__ import annotations

import pytest

from samebits import runner
from samebits.experiments import tf_worker
from samebits.lab import tf_process

pytestmark = pytest.mark.tensorflow
SEEDED = {"seeds": tf_worker.EVERYTHING}


@pytest.fixture(autouse=True, scope="module")
def end_workers():
    yield
    runner.close()


@pytest.fixture(autouse=True)
def shared_workers(monkeypatch):
    """`shared_workers()` in a test: pytest's variable names the test, and would make its workers others'."""
    return lambda: monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)


# The tests without the switch come first: turning it needs new processes.


@pytest.fixture(scope="module")
def unfixed():
    """The unfixed arms by name, each repeated until it varied or its budget ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        arms = {
            "training": ("keras-training", SEEDED | {"epochs": 1}, 2),
            "crop_and_resize gradient": ("tf-ops", {"n": 2_000_000}, 2),
            "ones": ("tf-ops", {"n": 2_000_000, "values": "ones"}, 20),
            "Variable.scatter_add": ("tf-ops", {"op": "Variable.scatter_add", "n": 2_000_000}, 2),
            "bincount, weighted": ("tf-ops", {"op": "bincount, weighted"}, 2),
            "map": ("tf-data", SEEDED, 2),
        }
        return {
            name: runner.run(experiment, settings, repeats=repeats, budget=10, until_different=True)
            for name, (experiment, settings, repeats) in arms.items()
        }


@pytest.mark.parametrize("draws", ["stateless", "a map of its own"])
def test_a_parallel_map_has_the_bits_of_one_call(draws, unfixed, not_exercised, shared_workers):
    shared_workers()
    setting = SEEDED | {"draws": draws}
    found = [runner.run("tf-data", setting | {"calls": calls}, repeats=6) for calls in (1, 8)]
    if unfixed["map"].distinct == 1:
        not_exercised("a parallel map with tf.random did not vary, so other draws proved nothing")
    assert len({fingerprint for runs in found for fingerprint in runs.fingerprints}) == 1


@pytest.mark.parametrize("op", ["bincount, int64", "bincount, axis=-1"])
def test_a_bincount_that_repeats(op, unfixed, not_exercised, shared_workers):
    shared_workers()
    runs = runner.run("tf-ops", {"op": op}, repeats=20)
    if unfixed["bincount, weighted"].distinct == 1:
        not_exercised("weighted bincount did not vary, so nothing was proved about another way")
    assert runs.verdict.kind == "same"


def test_a_training_without_the_culprits_repeats(unfixed, not_exercised, shared_workers):
    shared_workers()
    runs = runner.run("keras-training", SEEDED | {"epochs": 1, "calls": 1, "glimpses": False}, repeats=4)
    if unfixed["training"].distinct == 1:
        not_exercised("the training did not vary with the culprits")
    assert runs.distinct == 1 and runs.processes == 2
    assert unfixed["training"].reported == "first weights: 1 answer"


def test_tensorflows_seed_does_not_reach_the_first_weights(shared_workers):
    shared_workers()
    runs = runner.run("keras-training", {"seeds": tf_worker.TENSORFLOW, "epochs": 1}, repeats=2)
    assert runs.reported == "first weights: 2 answers"


def test_the_switch_ends_the_races_in_ops(unfixed, not_exercised, shared_workers):
    shared_workers()
    for op in ("crop_and_resize gradient", "Variable.scatter_add"):
        runs = runner.run("tf-ops", {"op": op, "n": 2_000_000, "deterministic": True}, repeats=20)
        if unfixed[op].distinct == 1:
            not_exercised(f"{op} did not vary, so the switch proved nothing")
        assert runs.verdict.kind == "same"
        assert runs.seen["deterministic"] is True


def test_the_switch_loses_no_update(unfixed, not_exercised, shared_workers):
    shared_workers()
    if not any(unfixed["ones"].scalars("largest error")):
        not_exercised("the gradient of crop_and_resize lost no update without the switch")
    runs = runner.run("tf-ops", {"n": 2_000_000, "values": "ones", "deterministic": True}, repeats=20)
    assert set(runs.scalars("largest error")) == {0.0}


def test_seeds_and_switch_make_the_training_repeat(unfixed, not_exercised, shared_workers):
    shared_workers()
    runs = runner.run("keras-training", SEEDED | {"epochs": 1, "deterministic": True}, repeats=4)
    if unfixed["training"].distinct == 1:
        not_exercised("the training did not vary without the switch")
    assert runs.distinct == 1 and runs.processes == 2


def test_the_switch_without_a_seed_is_one_sentence(shared_workers):
    shared_workers()
    with pytest.raises(runner.RunFailed, match="RuntimeError: Random ops require a seed"):
        runner.run("keras-training", {"deterministic": True}, repeats=1)


# --- Scripts ---------------------------------------------------------------------------------------------


def test_a_script_prints_and_its_error_is_one_line_with_its_own_line_number(capsys):
    source = "print(tf.__version__[:2])\n\ntf.reshape(tf.range(3), (2, 2))"
    assert tf_process.script(source, TF_ENABLE_ONEDNN_OPTS="0") is None
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "2." and len(said) == 2
    assert said[1].startswith("InvalidArgumentError in line 3: Input to reshape is a tensor with 3 values")
