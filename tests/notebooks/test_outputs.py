"""Lessons are stored with what a reader needs and without what only this machine or this kernel knows."""

from __future__ import annotations

from pathlib import Path

import canonical
import outputs
import pytest
import text
from canonical import Refused
from nbformat import NotebookNode, v4

from samebits import course

FIXTURES = Path(__file__).parent / "fixtures"


def test_running_a_lesson_gives_the_same_file(tmp_path):
    lesson = canonical.read(FIXTURES / "lesson.ipynb")
    lesson.cells = [cell for cell in lesson.cells if cell.id != "card"]  # would run where there is a GPU
    assert canonical.to_bytes(outputs.executed(lesson, tmp_path)) == canonical.to_bytes(lesson)


def test_text_and_figures_are_kept_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("SAMEBITS_DATA", "the learner's own")
    lesson = text.from_text("""=== code streams
import os, sys, warnings
print("one", flush=True)
warnings.warn("to stderr")
print("two")
os.path.exists(os.environ["SAMEBITS_DATA"]), os.listdir(os.environ["SAMEBITS_DATA"])

=== code folder
import pathlib; pathlib.Path.cwd().name

=== code widget
import ipywidgets
ipywidgets.IntSlider()

=== code rich
from IPython.display import display
display({"text/plain": "a dot", "text/html": "<img alt='a dot'>", "text/latex": "x"}, raw=True, metadata={"a": 1})
""")
    cells = {cell.id: cell for cell in outputs.executed(lesson, tmp_path).cells}
    assert [output.get("text") for output in cells["streams"].outputs[:-1]] == ["one\ntwo\n"]
    assert cells["streams"].outputs[-1].data == {"text/plain": "(True, [])"}
    assert cells["folder"].outputs[0].data == {"text/plain": repr(tmp_path.name)}
    assert cells["widget"].outputs == []
    assert cells["rich"].outputs == [
        v4.new_output("display_data", {"text/plain": "a dot", "text/html": "<img alt='a dot'>"})
    ]
    assert [cell.execution_count for cell in cells.values()] == [1, 2, 3, 4]
    assert all(set(cell.metadata) == set() for cell in cells.values())


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("1 / 0", "Cell second did not end well, so nothing is stored: ZeroDivisionError"),
        ("import os; os._exit(9)", "Cell second did not end well, so nothing is stored: Kernel died"),
        ("print('/home/somebody/x')", "Cell second puts out a path of this machine"),
    ],
)
def test_a_lesson_that_does_not_end_well_is_refused(source, sentence, tmp_path):
    with pytest.raises(Refused, match=sentence):
        outputs.executed(text.from_text(f"=== code first\n1\n\n=== code second\n{source}"), tmp_path)


def shown(data: str) -> NotebookNode:
    return v4.new_output("display_data", {"text/html": data})


@pytest.mark.parametrize(
    "said",
    [
        "open /home/somebody/x",
        "(/" + "root/x)",
        "'/tmp/x.py'",
        "C:\\Users\\x",
        "File ipykernel_17/3.py, line 1",
        "lib/python3.11/site-packages/torch",
    ],
)
def test_a_path_of_a_machine_is_noticed(said):
    assert outputs.machine_path(shown(said))


@pytest.mark.parametrize(
    "said",
    [
        "and/or",
        "n/a",
        "https://example.org/home/x",
        "<img src='data:image/png;base64,A+/tmp/x/home/y+='>",
        "1/usr",
    ],
)
def test_what_only_looks_like_a_path_is_not(said):
    assert not outputs.machine_path(shown(said))


@pytest.mark.parametrize("folder", ["labs", "solutions"])
def test_labs_and_solutions_are_not_run(folder, capsys):
    with pytest.raises(SystemExit, match="is no lesson"):
        outputs.main([str(outputs.ROOT / folder / "01_float_non_associativity.ipynb")])


def test_the_stored_contents_are_the_courses_own(tmp_path):
    """A chapter, minute or exercise that was added since makes the stored lesson 00 old."""
    stored = canonical.read(outputs.ROOT / "notebooks" / course.CHAPTERS[0].notebook)
    [kept] = [cell for cell in stored.cells if cell.source == "lab.contents()"]
    now = outputs.executed(
        text.from_text("=== code now\nfrom samebits import lab\nlab.contents()\n"), tmp_path
    )
    assert kept.outputs[0].data["text/plain"] == now.cells[0].outputs[0].data["text/plain"]
