"""What digits-training says of itself, without PyTorch."""

from __future__ import annotations

import pytest

from samebits import digits
from samebits.experiments import digits_training

EXPERIMENT = digits_training.DIGITS_TRAINING


def test_every_ingredient_is_a_knob_that_is_off_by_default():
    default = EXPERIMENT.settings()
    everything = EXPERIMENT.settings(**digits_training.EVERYTHING)
    assert {name for name in default if everything[name] != default[name]} == set(digits_training.INGREDIENTS)


def test_the_smallest_set_is_part_of_everything():
    assert digits_training.SMALLEST.items() <= digits_training.EVERYTHING.items()


def test_names_are_each_there_once_whatever_their_order():
    for sort in (False, True):
        assert sorted(digits_training.names_in_use(sort)) == sorted(digits.NAMES)
    assert digits_training.names_in_use(True) == sorted(digits.NAMES)


@pytest.mark.parametrize("knob", [knob.name for knob in EXPERIMENT.knobs])
def test_each_knob_changes_the_code_that_is_shown(knob):
    """Except the device, which the panel names in its source line."""
    a = EXPERIMENT.settings()
    found = EXPERIMENT.knob(knob)
    values = {"toggle": [not found.default], "choice": found.choices, "number": [found.low, found.high]}
    codes = {EXPERIMENT.code(a | {knob: value}) for value in values[found.kind]} | {EXPERIMENT.code(a)}
    assert len(codes) > 1 or knob == "device"


def test_all_of_it_still_fits_on_a_panel():
    everything = digits_training.EVERYTHING | {"fill": False, "benchmark": True, "persistent": True}
    assert len(EXPERIMENT.code(EXPERIMENT.settings(**everything)).splitlines()) <= 25


def test_the_worker_gets_exactly_the_variables_that_were_asked_for():
    unset = EXPERIMENT.variables(EXPERIMENT.settings())
    assert unset["PYTHONHASHSEED"] is None and unset["CUBLAS_WORKSPACE_CONFIG"] is None
    asked = EXPERIMENT.variables(EXPERIMENT.settings(hash_seed="0", cublas=":16:8", threads=3))
    assert (asked["PYTHONHASHSEED"], asked["CUBLAS_WORKSPACE_CONFIG"]) == ("0", ":16:8")
    assert asked["OMP_NUM_THREADS"] == "3"
