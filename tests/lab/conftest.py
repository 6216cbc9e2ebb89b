"""Questions of the tests' own, a private place for progress, and what a notebook would display."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import IPython.display
import pytest

from samebits.lab import questions

# By name, because `samebits.lab.progress` is the function.
progress = importlib.import_module("samebits.lab.progress")

SAMPLE = Path(__file__).parent.parent / "fixtures" / "questions"


@pytest.fixture(autouse=True)
def private(tmp_path, monkeypatch):
    """Each test has its own progress and its own copy of the sample questions, which it may change."""
    shutil.copytree(SAMPLE, tmp_path / "questions")
    monkeypatch.setattr(questions, "FOLDER", tmp_path / "questions")
    monkeypatch.setenv("SAMEBITS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(progress, "_stores", {})
    return tmp_path


@pytest.fixture
def restart(monkeypatch):
    """`restart()` forgets what a kernel keeps in memory, as a kernel's restart does."""
    return lambda: monkeypatch.setattr(progress, "_stores", {})


@pytest.fixture
def displayed(monkeypatch):
    """The MIME bundles that were displayed, oldest first."""
    bundles: list[dict[str, str]] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, raw: bundles.append(bundle))
    return bundles
