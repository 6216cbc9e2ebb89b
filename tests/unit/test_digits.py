"""The digits: the same as scikit-learn's own loader gives, without importing scikit-learn."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from samebits import digits


def test_they_are_what_scikit_learn_loads():
    from sklearn.datasets import load_digits

    levels, labels = digits.load()
    theirs = load_digits()
    assert (levels.dtype, labels.dtype) == (np.int64, np.int64)
    assert (levels == theirs.images).all() and (labels == theirs.target).all()
    assert (levels.min(), levels.max()) == (0, 16)


def test_scikit_learn_itself_stays_out_of_the_process():
    program = "import sys; from samebits import digits; digits.load(); print('sklearn' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_an_interpreter_without_scikit_learn_is_told_where_they_are(monkeypatch):
    monkeypatch.setenv(digits.VARIABLE, digits.file())
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    assert digits.load()[0].shape == (1797, 8, 8)


def test_without_scikit_learn_the_message_says_what_to_do(monkeypatch):
    monkeypatch.delenv(digits.VARIABLE, raising=False)
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="./course lab"):
        digits.load()


def test_a_scikit_learn_that_moved_its_file_is_asked_to_load_it(monkeypatch):
    expected = digits.load()
    monkeypatch.setattr(digits, "file", lambda: "")
    for ours, theirs in zip(digits.load(), expected, strict=True):
        assert ours.dtype == theirs.dtype and (ours == theirs).all()
