"""Chapter 06 where there is no TensorFlow: lesson and lab run from top to bottom and say in a sentence what to do."""

from __future__ import annotations

import sys

import canonical
import derive
import nbclient
import pytest

from samebits import runner
from samebits.lab import tf_process
from samebits.lab.check import check

SENTENCE = "TensorFlow is not installed; ./course tensorflow makes an environment for it beside this one."


@pytest.fixture
def without(monkeypatch, tmp_path):
    """This interpreter, which has PyTorch and no TensorFlow, is what TensorFlow's experiments are sent to."""
    runner.close()
    monkeypatch.setenv("SAMEBITS_TF_PYTHON", sys.executable)
    monkeypatch.setenv("SAMEBITS_DATA", str(tmp_path))


@pytest.mark.parametrize("folder", ["notebooks", "labs"])
def test_the_notebook_runs_and_says_what_to_do(folder, without):
    notebook = canonical.read(derive.ROOT / folder / "06_the_tensorflow_recipe.ipynb")
    nbclient.NotebookClient(notebook, timeout=60).execute()
    said = [
        output.text.strip()
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "stream" and output.name == "stdout" and SENTENCE in output.text
    ]
    assert len(said) >= 2
    assert all(text.splitlines()[-1].endswith(SENTENCE) for text in said)


def test_walls_and_scripts_say_it_once_and_give_nothing(without, capsys):
    assert tf_process.walls("tf-ops", {"off": {}, "on": {"deterministic": True}}) == {}
    assert capsys.readouterr().out == SENTENCE + "\n"
    assert tf_process.script("print(1)") is None
    assert tf_process.gpu_messages() is None
    assert capsys.readouterr().out == 2 * (SENTENCE + "\n")


def test_a_check_that_needs_it_says_so_and_loses_nothing(without, capsys):
    assert check("06-repair", {4: "keras.utils.set_random_seed(1)"}) == 0
    assert f"Your code could not be judged. {SENTENCE}" in capsys.readouterr().out
