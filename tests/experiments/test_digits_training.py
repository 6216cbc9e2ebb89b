"""The training of chapter 05: what it takes to get the same weights twice, here, on the CPU."""

from __future__ import annotations

import os
import threading
import time

import psutil
import pytest

from samebits import runner
from samebits.experiments.digits_training import EVERYTHING, SMALLEST


@pytest.fixture(autouse=True, scope="module")
def end_workers():
    yield
    runner.close()


def run(repeats: int = 6, **settings):
    # pytest's variable names the test, also in a fixture, which would start workers of an environment of its own.
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    return runner.run("digits-training", {"device": "cpu"} | settings, repeats=repeats)


def seeded(**settings):
    """For arms in which nothing races: one thread, which takes half the time, and shares its processes."""
    return run(**(SMALLEST | {"threads": 1} | settings))


@pytest.fixture(scope="module")
def smallest():
    """With the threads with which it races without the flag."""
    return run(20, **SMALLEST)


@pytest.fixture(scope="module")
def seeded_bits():
    return set(seeded(repeats=2).fingerprints)


def test_three_lines_are_enough_with_loader_workers(smallest):
    assert smallest.verdict.kind == "same"
    assert smallest.processes == 2
    assert len({o.scalars["accuracy"] for o in smallest.observations}) == 1
    assert smallest.observations[0].scalars["accuracy"] > 0.5, "it does not learn"


def test_without_the_flag_it_can_race(smallest, not_exercised):
    control = runner.run(
        "digits-training",
        SMALLEST | {"deterministic": "off", "device": "cpu"},
        repeats=6,
        budget=20,
        until_different=True,
    )
    if control.distinct == 1:
        not_exercised(f"the palette's backward did not race in {len(control.observations)} runs")
    assert smallest.distinct == 1
    assert control.seen["threads"] >= 2


def test_warn_only_switches_what_can_be_switched(smallest):
    warned = run(**SMALLEST | {"deterministic": "warn_only"})
    assert warned.seen["deterministic"] == "warn_only"
    assert set(warned.fingerprints) == set(smallest.fingerprints)


def test_one_thread_does_not_need_the_flag():
    assert seeded(deterministic="off", threads=1).distinct == 1


def test_without_any_of_it_every_run_differs():
    """Not a race: weights and dropout come from fresh seeds."""
    runs = run(threads=1)
    assert runs.distinct == len(runs.observations)
    assert len({o.input for o in runs.observations}) == 1


def test_the_seed_of_pytorch_is_needed_and_the_loaders_generator_does_not_replace_it():
    assert seeded(repeats=3, seed_torch=False, generator=True).distinct == 3


def test_without_workers_the_seeds_of_python_and_numpy_are_needed():
    """The workers' generators get their seeds from PyTorch; this process's do not."""
    assert seeded(repeats=3, workers=0).distinct == 3
    assert seeded(repeats=3, workers=0, seed_python=True).distinct == 3
    assert seeded(repeats=3, workers=0, seed_numpy=True).distinct == 3
    assert seeded(workers=0, seed_python=True, seed_numpy=True).distinct == 1


@pytest.mark.parametrize("inside", [False, True])
def test_a_set_has_another_order_in_each_process_and_a_variable_from_inside_does_not_help(inside):
    runs = seeded(repeats=4, sort_names=False, hash_inside=inside)
    assert runs.seen["hashes of strings"] == "random"
    # One order in 3,628,800 comes twice.
    assert len({(o.process, o.fingerprint) for o in runs.observations}) == runs.distinct == 2


@pytest.mark.parametrize(
    "inert",
    [{"seed_cuda": True}, {"benchmark": True}, {"cudnn_deterministic": True}, {"tf32": False}, {"fill": False},
     {"seed_python": True, "seed_numpy": True}, {"hash_inside": True}],
    ids=lambda settings: " ".join(settings),
)  # fmt: skip
def test_what_is_inert_on_a_cpu_with_workers_leaves_every_bit(inert, seeded_bits):
    assert set(seeded(repeats=2, **inert).fingerprints) == seeded_bits


def test_what_changes_the_bits_still_repeats_them(seeded_bits):
    """Another number of workers, a generator, workers that live on: other bits, the same in every run."""
    for change in ({"workers": 1}, {"generator": True}, {"persistent": True}, {"worker_init": True}):
        runs = seeded(repeats=2, **change)
        assert runs.distinct == 1, change
        # worker_init: the worker's seed cut to 32 bits, which is another seed than the loader's own.
        assert set(runs.fingerprints) != seeded_bits, change


def test_persistent_workers_change_nothing_in_the_first_epoch():
    assert set(seeded(repeats=1, epochs=1).fingerprints) == set(
        seeded(repeats=1, epochs=1, persistent=True).fingerprints
    )


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_loader_processes_end_with_the_run_that_is_cancelled():
    cancel, started = threading.Event(), threading.Event()
    found: list[psutil.Process] = []

    def look():
        started.wait(60)
        end = time.monotonic() + 20
        while not found and time.monotonic() < end:
            workers = [w for w in runner._POOL._workers if w.busy]
            children = [c for w in workers for c in psutil.Process(w._process.pid).children(recursive=True)]
            found.extend(children[:2])
        # Killed outright, in the middle of an epoch: nothing gets a chance to tidy up.
        for worker in workers:
            worker.kill()

    watcher = threading.Thread(target=look)
    watcher.start()
    with pytest.raises(runner.RunFailed):
        runner.run(
            "digits-training",
            {"device": "cpu", "epochs": 20, "persistent": True, "threads": 1},
            repeats=50,
            on_start=lambda seen, source: started.set(),
            cancel=cancel,
        )
    watcher.join()
    assert found, "no loader process was seen"
    gone, alive = psutil.wait_procs(found, timeout=10)
    assert not alive


# These need processes of their own, which takes seconds; so they come last, and share them.


def test_everything_that_recipes_list_does_no_harm():
    assert run(4, **EVERYTHING).distinct == 1


def test_a_variable_from_outside_orders_a_set():
    # The other variable is there to share the processes of the test above; it does nothing on a CPU.
    variables = {"hash_seed": "0", "cublas": EVERYTHING["cublas"]}
    runs = run(4, **SMALLEST | {"sort_names": False} | variables)
    assert runs.seen["hashes of strings"] == "fixed"
    assert runs.distinct == 1
