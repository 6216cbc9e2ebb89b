"""The three programs of chapter 04, run against a stand-in for torch: what their authors hoped for, and what was."""

import os
import sys
import types
from pathlib import Path

import pytest

from samebits.lab.exercises.chapter04 import LATE, NEEDLESS, OVERWRITTEN, PROGRAMS, RIGHT_DIAGNOSES

VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
SOLUTION = Path(__file__).parents[2] / "solutions" / "04_cublas_workspace_configuration.ipynb"


class Reads:
    """Stands for a matrix on a GPU: the first product of the process notes the variable, once and for all."""

    seen: list = []

    def __matmul__(self, other):
        if not Reads.seen:
            Reads.seen.append(os.environ.get(VARIABLE))
        return self


@pytest.fixture
def ran(monkeypatch):
    """Runs a program in a process that is new as far as the variable goes; returns what was read, and its source."""

    def run(program):
        monkeypatch.setattr(os, "environ", {})
        monkeypatch.setattr(Reads, "seen", [])
        torch = types.SimpleNamespace(
            ones=lambda *shape, device: Reads(), use_deterministic_algorithms=lambda on: None
        )
        monkeypatch.setitem(sys.modules, "torch", torch)
        finder = Modules(
            {
                "models": "Reads() @ Reads()\nrun = lambda torch: torch.ones(8, 8, device='cuda') @ Reads()",
                "settings": f"import os\nos.environ.update({VARIABLE}=':4096:8')",
            }
        )
        for name in finder.sources:
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
        exec(PROGRAMS[program], {})
        for name in finder.sources:
            sys.modules.pop(name, None)
        return Reads.seen[0], os.environ[VARIABLE]

    return run


class Modules:
    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self) if name in self.sources else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.Reads = Reads
        exec(self.sources[module.__name__], module.__dict__)


def test_what_the_first_product_sees(ran):
    assert ran("A") == (None, ":16:8")  # too late: read before it was set
    assert ran("B") == (":4096:8", ":4096:8")  # overwritten: the author wrote :16:8
    assert ran("C") == (":4096:8", ":4096:8")  # in time, and for nothing
    assert RIGHT_DIAGNOSES == {"A": LATE, "B": OVERWRITTEN, "C": NEEDLESS}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_lab_shows_the_programs_that_are_judged(program):
    import nbformat

    cells = nbformat.read(SOLUTION, 4).cells
    assert any(PROGRAMS[program] in cell.source for cell in cells if cell.cell_type == "markdown")
