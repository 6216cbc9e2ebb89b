"""The course's experiments: every knob goes there and back, nothing leaks, and a fix fixes what raced."""

from __future__ import annotations

import pytest

from samebits import experiments, runner
from samebits.experiment import Knob
from samebits.experiments import digits_training, tf_worker

# Settings under which an experiment gives one answer, so that "A's fingerprints back" can be asked for.
REPEATABLE = {
    "sum-order": {"order": "as given", "n": 2_000},
    "scatter": {"n": 10_000, "slots": 4},
    "atomic-sum": {"kernel": "two passes", "n": 96},
    "conv-ways": {"way": "native", "channels": 8},
    "conv-autotune": {"rule": "always native", "channels": 8},
    "conv-algorithm": {"channels": 8},
    "split-k": {"way": "fixed order", "k": 512, "parts": 4},
    "gemm-workspace": {"shape": "1024 × 1024 × 1024"},
    "gemm-environment": {"op": "sigmoid"},
    "digits-training": digits_training.SMALLEST | {"epochs": 1, "hash_seed": "0"},
    "keras-training": {
        "seeds": tf_worker.EVERYTHING,
        "shift": "stateless",
        "glimpses": False,
        "epochs": 1,
    },
    "tf-ops": {"op": "unsorted_segment_sum", "n": 10_000},
    "tf-data": {"draws": "stateless", "calls": 2},
    "thousand-models": {"varies": "nothing", "epochs": 2},
    "factorisation": {"ratings": 500, "steps": 2},
    "sage-training": {"epochs": 2, "device": "cpu"},
    "price": {"work": "index_add_", "n": 2_000, "device": "cpu"},
    "atlas-op": {"op": "cumsum", "device": "cpu"},
}
# Two settings may come to one device, and the simulator has one size of block.
MAY_LOOK_THE_SAME = {"device", "block"}
NEEDS_GPU = {"conv-algorithm", "gemm-workspace"}


@pytest.fixture(autouse=True, scope="module")
def end_workers():
    yield
    runner.close()


def other(knob: Knob):
    """A value of the knob that differs from its default and that any machine can run."""
    if knob.kind == "toggle":
        return not knob.default
    if knob.kind == "choice":
        return next(choice for choice in knob.choices if choice not in (knob.default, "cuda"))
    return knob.low + 1 if knob.low + 1 != knob.default else knob.low


def marked(name: str, *more: str):
    """A test parameter, skipped without a GPU or without TensorFlow where the experiment needs one."""
    tensorflow = experiments.find(name).framework == "tensorflow"
    marks = [
        mark
        for mark, needs in ((pytest.mark.gpu, name in NEEDS_GPU), (pytest.mark.tensorflow, tensorflow))
        if needs
    ]
    return pytest.param(name, *more, marks=marks)


def knobs(name: str) -> list[str]:
    """The knobs to turn alone. Those that all TensorFlow experiments share each want a new process, which takes
    seconds to start: they are turned together, below."""
    return [knob.name for knob in experiments.find(name).knobs if knob not in tf_worker.PROCESS]


# PyTorch's experiments first: workers of both frameworks at once would end each other again and again.
IN_ORDER = sorted(experiments.names(), key=lambda name: experiments.find(name).framework == "tensorflow")


def test_every_experiment_has_repeatable_settings_here():
    assert set(REPEATABLE) == set(experiments.names())


def there_and_back(name: str, *turned: str) -> None:
    """A → B → A gives A's fingerprints back: nothing that B set is left."""
    a = experiments.find(name).settings(**REPEATABLE[name])
    b = a | {knob: other(experiments.find(name).knob(knob)) for knob in turned}
    for knob in turned:
        if b[knob] == a[knob]:
            b[knob] = experiments.find(name).knob(knob).default
    first = runner.run(name, a, repeats=1)
    between = runner.run(name, b, repeats=1)
    again = runner.run(name, a, repeats=1)
    assert set(again.fingerprints) == set(first.fingerprints)
    assert dict(again.seen) == dict(first.seen)
    assert all(between.asked[knob] != first.asked[knob] for knob in turned)
    shown = [knob for knob in turned if knob in first.seen and knob not in MAY_LOOK_THE_SAME]
    assert all(between.seen[knob] != first.seen[knob] for knob in shown)


@pytest.mark.parametrize(
    ("name", "knob"),
    [marked(name, knob) for name in IN_ORDER for knob in knobs(name)],
)
def test_a_knob_goes_there_and_back(name, knob):
    there_and_back(name, knob)


@pytest.mark.tensorflow
def test_what_tensorflow_decides_at_its_start_goes_there_and_back():
    there_and_back("tf-ops", *(knob.name for knob in tf_worker.PROCESS))


@pytest.mark.parametrize("name", [marked(name) for name in reversed(IN_ORDER)])
def test_settings_seen_and_source_are_filled_in(name):
    runs = runner.run(name, REPEATABLE[name], repeats=2)
    assert runs.seen
    assert runs.source.device
    assert runs.source.libraries
    assert len(set(o.input for o in runs.observations)) == 1
    assert all(o.seconds > 0 for o in runs.observations)


@pytest.mark.tensorflow
@pytest.mark.parametrize("knob", tf_worker.PROCESS, ids=lambda knob: knob.name)
def test_what_tensorflow_decides_at_its_start_wants_another_process(knob):
    experiment = experiments.find("tf-ops")
    settings = experiment.settings()
    turned = settings | {knob.name: other(knob)}
    assert runner._place(experiment, settings) != runner._place(experiment, turned)


@pytest.mark.parametrize("name", experiments.names())
def test_the_code_that_is_shown_names_what_was_set(name):
    experiment = experiments.find(name)
    code = experiment.code(experiment.settings())
    assert 1 <= len(code.splitlines()) <= 25


def racing(op: str):
    return {"op": op, "n": 200_000, "slots": 100}


@pytest.mark.parametrize("op", ["index_put_", "put_", "getitem_backward"])
def test_the_flag_ends_the_race(op, not_exercised):
    control = runner.run("scatter", racing(op), repeats=20, budget=10, until_different=True)
    fixed = runner.run("scatter", racing(op) | {"deterministic": True}, repeats=40)
    if control.distinct == 1:
        not_exercised(f"{op} did not vary in {len(control.observations)} runs, so its fix proved nothing")
    assert fixed.verdict.kind == "same"
    assert fixed.seen["deterministic"] is True


def test_one_thread_ends_the_race(not_exercised):
    control = runner.run("scatter", racing("index_put_"), repeats=20, budget=10, until_different=True)
    fixed = runner.run("scatter", racing("index_put_") | {"threads": 1}, repeats=40)
    if control.distinct == 1:
        not_exercised(f"index_put_ did not vary in {len(control.observations)} runs with two threads")
    assert fixed.verdict.kind == "same"
    assert fixed.seen["threads"] == 1


def test_the_flag_does_not_leak_into_the_next_run():
    assert runner.run("scatter", {"deterministic": True}, repeats=2).seen["deterministic"] is True
    assert runner.run("scatter", {"deterministic": False}, repeats=2).seen["deterministic"] is False


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("exact", "same"), ("fixed point", "same"), ("serial", "different"), ("pairwise", "different")],
)
def test_sums_that_do_and_do_not_care_about_order(algorithm, kind):
    """Not a race: the shuffles differ for certain, and so do 40 serial float32 sums of 20,000 numbers."""
    runs = runner.run("sum-order", {"algorithm": algorithm, "n": 20_000}, repeats=40)
    assert runs.verdict.kind == kind


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["index_put_", "put_", "getitem_backward", "index_add_", "scatter_add_"])
def test_the_flag_ends_the_race_on_a_gpu(op, not_exercised):
    setting = racing(op) | {"device": "cuda"}
    control = runner.run("scatter", setting, repeats=20, budget=10, until_different=True)
    if control.distinct == 1:
        not_exercised(f"{op} did not vary on this GPU in {len(control.observations)} runs")
    if op == "put_":
        with pytest.raises(runner.RunFailed, match="does not have a deterministic implementation"):
            runner.run("scatter", setting | {"deterministic": True}, repeats=2)
    else:
        assert runner.run("scatter", setting | {"deterministic": True}, repeats=40).verdict.kind == "same"
