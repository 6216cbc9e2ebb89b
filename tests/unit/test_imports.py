"""What importing costs: no framework and no widgets until somebody asks for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from samebits import experiments

FRAMEWORKS = {"torch", "tensorflow", "numba"}
WIDGETS = {"ipywidgets", "anywidget", "matplotlib", "IPython"}


def loaded_by(*modules: str) -> set[str]:
    """The top-level modules that a fresh Python has after importing these."""
    program = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_the_package_imports_nothing_heavy():
    assert not loaded_by("samebits") & (FRAMEWORKS | WIDGETS | {"numpy"})


@pytest.mark.parametrize("module", ["samebits.runner", "samebits.worker", "samebits.cli"])
def test_what_runs_experiments_imports_no_framework_and_no_widgets(module):
    assert not loaded_by(module) & (FRAMEWORKS | WIDGETS)


def test_declaring_experiments_imports_no_framework():
    modules = {experiments.find(name).prepare.__module__ for name in experiments.names()}
    assert not loaded_by(*sorted(modules)) & (FRAMEWORKS | WIDGETS)


def test_the_lab_imports_no_framework():
    assert not loaded_by("samebits.lab") & (FRAMEWORKS | {"matplotlib"})
