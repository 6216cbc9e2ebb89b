"""What conftest.py promises about the running of notebooks and tests, on a small course of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import canonical
import pytest
import text

ROOT = Path(__file__).resolve().parent.parent.parent

LESSON = """=== code compared nbval-check-output
print("as stored")

=== code differs nbval-check-output
print("not as stored")

=== code not-compared
print("not as stored")

=== code card gpu
raise AssertionError("there is no card")

=== code slow {"nbval_timeout": 1}
import time; time.sleep(30)
"""

DYING = """=== code dies
import os; os._exit(9)

=== code after
1
"""

# The first cell fails if a learner's state, or that of the notebook before it, is there.
GRADED = """=== code state
import os, pathlib
state = pathlib.Path(os.environ["SAMEBITS_DATA"])
assert not any(state.iterdir())
(state / "progress.json").touch()

=== code untouched-check points=2
print("Not attempted yet."); 0

=== code half-check points=2
print("Half of it."); 1

=== code full-check points=2
print("All of it."); 2

=== code silent-check points=2
0

=== code nothing-check points=2
earned = 2
"""

TESTS = """
import pytest

def test_race(not_exercised, vary):
    control = vary(lambda: 1.5, budget_seconds=0.01)
    assert not control.varied and len(control.fingerprints) > 1
    not_exercised("the control did not vary")

def test_race_that_varies(vary):
    results = iter([1.5, 1.5, 2.5, 3.5])
    control = vary(lambda: next(results))
    assert control.varied and str(control).startswith("3 runs in") and next(results) == 3.5

@pytest.mark.gpu
def test_card():
    raise AssertionError("there is no card")

@pytest.mark.browser
def test_browser():
    raise AssertionError("there is no browser")
"""


@dataclass(frozen=True)
class Session:
    """A finished pytest: what it printed, and test or cell → (outcome, message, seconds)."""

    printed: str
    results: dict[str, tuple[str, str, float]]


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("course")
    for name in ("conftest.py", "pyproject.toml", "tests/conftest.py"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    (root / "tests" / "test_it.py").write_text(TESTS)
    for name, written in {
        "notebooks/1": LESSON,
        "notebooks/2": DYING,
        "labs/1": GRADED,
        "solutions/1": GRADED,
    }.items():
        path = root / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        notebook = text.from_text(written)
        if name == "notebooks/1":
            for cell in notebook.cells[:3]:
                cell.execution_count = 1
                cell.outputs = [text.nbformat.v4.new_output("stream", text="as stored\n")]
        canonical.write(notebook, path)
    return root


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("empty")


def session(course: Path, empty: Path, *arguments: str, **environment: str) -> Session:
    """Run pytest on the course, on a machine with neither a GPU nor a browser."""
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--junitxml=results.xml", "-p", "no:cacheprovider", *arguments],
        cwd=course,
        env=inherited
        | {"PATH": str(empty), "PYTHONPATH": str(ROOT / "tools"), "SAMEBITS_DATA": str(empty)}
        | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    results = {}
    for case in ElementTree.parse(course / "results.xml").iter("testcase"):
        outcome = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        tag, message = (
            ("passed", "") if outcome is None else (outcome.tag, f"{outcome.get('message')} {outcome.text}")
        )
        results[f"{case.get('classname')}::{case.get('name')}"] = (tag, message, float(case.get("time")))
    return Session(done.stdout, results)


@pytest.fixture(scope="module")
def ran(course, empty) -> Session:
    return session(course, empty, CI="true")


def assert_result(ran: Session, name: str, outcome: str, message: str = "") -> None:
    found = {key: result for key, result in ran.results.items() if key.replace(".ipynb", "").endswith(name)}
    assert len(found) == 1, (name, list(ran.results))
    (result,) = found.values()
    assert result[0] == outcome and message in result[1], result


def test_plain_pytest_runs_tests_and_every_cell_of_every_notebook(ran):
    assert len(ran.results) == 4 + 5 + 2 + 6 + 6


@pytest.mark.parametrize(
    ("cell", "outcome", "message"),
    [
        ("notebooks.1::Cell 0", "passed", ""),
        ("notebooks.1::Cell 1", "failure", "Cell outputs differ"),
        ("notebooks.1::Cell 2", "passed", ""),
        ("notebooks.1::Cell 3", "skipped", "needs an NVIDIA GPU"),
        ("notebooks.1::Cell 4", "failure", "Timeout of 1 seconds exceeded"),
        ("notebooks.2::Cell 0", "failure", "The kernel died while it ran this cell."),
        ("notebooks.2::Cell 1", "failure", "Kernel dead"),
        ("labs.1::Cell 0", "passed", ""),
        ("labs.1::Cell 1", "passed", ""),
        ("labs.1::Cell 2", "failure", "it earns 1.0 and says: Half of it."),
        ("labs.1::Cell 3", "failure", "it earns 2.0 and says: All of it."),
        ("labs.1::Cell 4", "failure", "say that it is not attempted yet"),
        ("labs.1::Cell 5", "failure", "it earns None"),
        ("solutions.1::Cell 0", "passed", ""),
        ("solutions.1::Cell 1", "failure", "earns 0.0 of 2 points. It said: Not attempted yet."),
        ("solutions.1::Cell 2", "failure", "earns 1.0 of 2 points. It said: Half of it."),
        ("solutions.1::Cell 3", "passed", ""),
        ("solutions.1::Cell 4", "failure", "earns 0.0 of 2 points."),
        ("solutions.1::Cell 5", "failure", "earns None of 2 points."),
    ],
)
def test_a_cell(cell, outcome, message, ran):
    assert_result(ran, cell, outcome, message)


def test_a_dead_kernel_is_noticed_in_seconds(ran):
    died = next(result for result in ran.results.values() if "kernel died" in result[1])
    assert died[2] < 10


def test_the_learner_s_own_state_is_not_touched(ran, empty):
    assert list(empty.iterdir()) == []


def test_a_missing_browser_is_a_failure_under_ci_and_a_skip_elsewhere(ran, course, empty):
    assert_result(ran, "test_it::test_browser", "error", "Under CI a browser is not optional")
    elsewhere = session(course, empty, "tests")
    assert_result(elsewhere, "test_it::test_browser", "skipped", "needs a Chromium")


def test_the_closing_summary_counts_and_gives_reasons(ran):
    assert "skipped 2: needs an NVIDIA GPU and none is visible" in ran.printed
    assert "not exercised: tests/test_it.py::test_race: the control did not vary" in ran.printed
    assert "2 skipped, 1 not exercised" in ran.printed
    assert_result(ran, "test_it::test_race", "passed")
    assert_result(ran, "test_it::test_race_that_varies", "passed")
