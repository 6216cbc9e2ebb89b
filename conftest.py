"""How the course is tested: `pytest`, here, runs the tests and every cell of every notebook.

nbval runs the notebooks (notebooks/, labs/, solutions/), one kernel each, and this file adds what the
course asks of them: a dead kernel is noticed at once, a learner's state is never touched, a solution earns
every point, an untouched lab none. At the end it says what did not run, and what ran but could not show
what it was for.
"""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
import time
from collections import Counter
from queue import Empty

import available
import nbval.plugin
import pytest
from nbval.kernel import RunningKernel
from nbval.plugin import IPyNbCell

POLL_SECONDS = 2

WITHOUT_GPU = "needs an NVIDIA GPU and none is visible; the same code was tested on the CPU"
WITHOUT_CHROMIUM = (
    "needs a Chromium and none is installed (Debian: apt install chromium); all else was tested"
)
WITHOUT_TENSORFLOW = (
    "needs TensorFlow and none is installed; ./course tensorflow makes an environment for it on Python 3.11 to 3.13; "
    "all else was tested"
)

STATE_FOLDERS = pytest.StashKey[list[str]]()


# --- Machines differ: what is skipped, and where that is not allowed -------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if _is_marked(item, "gpu") and not available.gpu():
        pytest.skip(WITHOUT_GPU)
    if _is_marked(item, "browser") and not available.chromium():
        if os.environ.get("CI") == "true":
            pytest.fail(f"This test {WITHOUT_CHROMIUM}. Under CI a browser is not optional.", pytrace=False)
        pytest.skip(WITHOUT_CHROMIUM)
    if _is_marked(item, "tensorflow") and not available.tensorflow():
        if os.environ.get("CI") == "true" and available.tensorflow_is_served():
            pytest.fail(
                f"This test {WITHOUT_TENSORFLOW}. Under CI, on a Python that it serves, TensorFlow is not optional.",
                pytrace=False,
            )
        pytest.skip(WITHOUT_TENSORFLOW)
    if isinstance(item, IPyNbCell) and item.parent.kernel is None:
        _use_fresh_state(item.config)  # this notebook's kernel is about to start


def _is_marked(item, name: str) -> bool:
    if isinstance(item, IPyNbCell):
        return name in item.cell.metadata.get("tags", [])
    return item.get_closest_marker(name) is not None


# --- A learner's progress is never read or written -------------------------------------------------------


def pytest_configure(config):
    config.stash[STATE_FOLDERS] = []
    _use_fresh_state(config)


def pytest_unconfigure(config):
    for folder in config.stash.get(STATE_FOLDERS, []):
        shutil.rmtree(folder, ignore_errors=True)


def _use_fresh_state(config) -> None:
    """Point this process, and the kernels and workers that it will start, to a new and empty folder."""
    folder = tempfile.mkdtemp(prefix="samebits-test-")
    config.stash[STATE_FOLDERS].append(folder)
    os.environ["SAMEBITS_DATA"] = folder


# --- Cells -----------------------------------------------------------------------------------------------


class WatchedKernel(RunningKernel):
    """nbval's kernel, but one that dies is noticed while waiting for it, not when the cell's time is up."""

    def await_reply(self, msg_id, timeout=None):
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Empty
            try:
                return super().await_reply(msg_id, timeout=min(POLL_SECONDS, left))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("The kernel died while it ran this cell.") from None


# nbval has no hook for this; the version is pinned in pyproject.toml.
nbval.plugin.RunningKernel = WatchedKernel


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not isinstance(item, IPyNbCell):
        return (yield)
    options = item.config.option
    limit = options.nbval_cell_timeout
    options.nbval_cell_timeout = min(limit, item.cell.metadata.get("nbval_timeout", limit))
    try:
        result = yield
    finally:
        options.nbval_cell_timeout = limit
    if points := item.cell.metadata.get("nbgrader", {}).get("points"):
        _judge(item, points)
    return result


def _judge(item, points: int) -> None:
    """Fail a graded cell of a solution that misses a point, or of an untouched lab that earns one."""
    earned = _value(item.test_outputs)
    said = "".join(output.get("text", "") for output in item.test_outputs).strip()
    if item.path.parent.name == "solutions" and earned != points:
        item.raise_cell_error(f"The solution earns {earned} of {points} points. It said: {said}")
    if item.path.parent.name == "labs" and (earned != 0 or "not attempted yet" not in said.lower()):
        item.raise_cell_error(
            f"The untouched exercise should earn 0 points and say that it is not attempted yet; "
            f"it earns {earned} and says: {said}"
        )


def _value(outputs) -> float | None:
    """The number that a cell's last expression gave, read as nbgrader reads it; None if it gave none."""
    for output in outputs:
        if output.output_type == "execute_result":
            try:
                return float(ast.literal_eval(output.data["text/plain"]))
            except (KeyError, ValueError, SyntaxError, TypeError):
                return None
    return None


# --- The closing summary ---------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter, config):
    if config.option.collectonly:
        return
    say = terminalreporter
    skipped = Counter(_reason(report) for report in say.stats.get("skipped", []))
    finished = [report for outcome in ("passed", "failed") for report in say.stats.get(outcome, [])]
    blanks = [
        (report.nodeid, reason)
        for report in finished
        if getattr(report, "when", "") == "call"
        for key, reason in report.user_properties
        if key == "not exercised"
    ]
    say.section("what did not run, and what ran without showing anything")
    for reason, count in skipped.most_common():
        say.line(f"skipped {count}: {reason}")
    for test, reason in blanks:
        say.line(f"not exercised: {test}: {reason}")
    say.line(f"{sum(skipped.values())} skipped, {len(blanks)} not exercised")
    if available.gpu():
        # A second run rather than a second copy of each notebook here: it covers workers and unit tests too.
        say.line("A GPU was visible. Test again as without one: CUDA_VISIBLE_DEVICES= pytest")


def _reason(report) -> str:
    """The reason of a skip, which pytest keeps as (file, line, "Skipped: reason")."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)
