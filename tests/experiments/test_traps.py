"""The traps of chapter 05: each one bites, and what mends it mends it."""

from __future__ import annotations

import pytest

from samebits import runner
from samebits.experiment import BadSetting
from samebits.experiments import traps

torch = pytest.importorskip("torch")


def draws_seen(table):
    """What is wrong with draws: {"duplicates": in the first epoch, "epochs repeat": whether all epochs are equal}."""
    first = list(table[0])
    return {
        "duplicates": len(first) - len(set(first)),
        "epochs repeat": len(table) > 1 and all(list(epoch) == first for epoch in table[1:]),
    }


@pytest.fixture(autouse=True, scope="module")
def end_workers():
    yield
    runner.close()


@pytest.mark.parametrize("draws", ["np.random", "random", "torch"])
def test_workers_seed_the_global_generators_by_themselves(draws):
    """Since PyTorch 1.9, without a worker_init_fn: no two workers draw the same, epochs differ, runs repeat."""
    table = traps.augmentation_draws(draws)
    assert draws_seen(table) == {"duplicates": 0, "epochs repeat": False}
    assert traps.augmentation_draws(draws) == table
    assert traps.augmentation_draws(draws, workers=0) != table, "the number of workers should matter"


def test_a_generator_stored_in_the_dataset_gives_every_worker_the_same_numbers():
    table = traps.augmentation_draws("stored generator")
    assert draws_seen(table) == {"duplicates": 4, "epochs repeat": True}
    assert draws_seen(traps.augmentation_draws("stored generator", workers=0)) == {
        "duplicates": 0,
        "epochs repeat": False,
    }


def test_a_generator_made_in_the_worker_mends_it_but_depends_on_the_number_of_workers():
    table = traps.augmentation_draws("worker's generator")
    assert draws_seen(table) == {"duplicates": 0, "epochs repeat": False}
    assert traps.augmentation_draws("worker's generator", workers=1) != table


def test_a_generator_for_each_image_does_not_depend_on_the_number_of_workers():
    tables = [traps.augmentation_draws("per image", workers=workers) for workers in (0, 1, 3)]
    assert tables[0] == tables[1] == tables[2]
    assert draws_seen(tables[0]) == {"duplicates": 0, "epochs repeat": False}


def test_a_validation_loader_changes_the_training_unless_each_loader_has_a_generator():
    alone, watched = traps.validated(validate=False), traps.validated()
    assert watched["order"][0] == alone["order"][0]
    assert watched["order"][1:] != alone["order"][1:]
    assert watched["weights"] != alone["weights"]
    assert traps.validated(validate=False, own_generator=True) == traps.validated(own_generator=True)


def test_a_resumed_training_needs_every_part_of_the_state():
    whole = traps.resumed()
    assert whole["same"]
    for part in traps.RESUME_STATE:
        without = traps.resumed([saved for saved in traps.RESUME_STATE if saved != part])
        assert not without["same"], part
        assert without["uninterrupted"] == whole["uninterrupted"]


def test_checkpointing_with_dropout_gives_a_wrong_gradient_and_not_noise():
    wrong = traps.checkpointed(preserve_rng_state=False)
    assert wrong["relative error"] > 0.3
    assert wrong["repeats"], "it is wrong in the same way each time"
    right = traps.checkpointed(preserve_rng_state=True)
    assert right["same bits"] and right["relative error"] == 0.0


def test_the_flag_hides_a_read_of_memory_that_nobody_wrote(not_exercised):
    control = traps.uninitialised(deterministic=False)
    hidden = traps.uninitialised(deterministic=True)
    if control["distinct"] == 1:
        not_exercised("what was left in memory was the same in every run")
    assert set(hidden["counts"]) == {900}
    assert all(count >= 900 for count in control["counts"])
    assert torch.get_deterministic_debug_mode() == 0
    assert torch.utils.deterministic.fill_uninitialized_memory is True


@pytest.mark.parametrize(
    ("op", "kernel", "place"),
    [
        ("put_", "put_", "forward"),
        ("MaxUnpool1d", "max_unpooling2d_forward_out", "forward"),
        ("put, flag set between", "put_", "backward"),
    ],
)
def test_what_the_flag_refuses_is_named_by_its_kernel_where_it_runs(op, kernel, place):
    answer = traps.refused(op)
    assert answer["error"].startswith(f"{kernel} does not have a deterministic implementation")
    assert answer["raised in"] == place
    assert torch.get_deterministic_debug_mode() == 0


def test_the_flag_neither_mends_nor_refuses_a_kernel_that_it_does_not_know(not_exercised):
    under_the_flag = traps.raced_by_extension(deterministic=True, runs=40)
    assert under_the_flag["error"] == ""
    if under_the_flag["distinct"] == 1:
        not_exercised("the custom op did not race in 40 runs")
    assert traps.raced_by_extension(deterministic=True, threads=1)["distinct"] == 1


def test_attention_is_left_to_a_gpu_and_says_so():
    if not torch.cuda.is_available():
        with pytest.raises(BadSetting, match="NVIDIA GPU"):
            traps.attention_backward()
    small = traps.attention_backward("on", "math", runs=2, device="cpu", length=64)
    assert (small["distinct"], small["error"]) == (1, "")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["flash", "efficient"])
def test_warn_only_leaves_attentions_backward_racing_on_a_gpu(backend, not_exercised):
    warned = traps.attention_backward("warn", backend)
    if warned["distinct"] == 1:
        not_exercised(f"the {backend} backward did not race on this GPU in {warned['runs']} runs")
    assert warned["warning"]
    assert traps.attention_backward("on", backend, runs=40)["distinct"] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: traps.augmentation_draws("dice"),
        lambda: traps.resumed(["weights"]),
        lambda: traps.refused("x"),
    ],
)
def test_a_wrong_word_is_answered_with_the_possible_ones(wrong):
    with pytest.raises(BadSetting, match="Possible: "):
        wrong()


def test_a_trap_runs_in_a_worker_too():
    table = runner.call(
        "samebits.experiments.traps:augmentation_draws",
        {"draws": "stored generator"},
        framework="torch",
        seconds=60,
    )
    assert table == traps.augmentation_draws("stored generator")
