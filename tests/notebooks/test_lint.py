"""Every notebook keeps the rules of the course, and every rule notices a notebook that breaks it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import canonical
import derive
import lint
import pytest
import sources
import text
from nbformat import NotebookNode, v4

from samebits import claims, course
from samebits.claims import Claim
from samebits.lab import questions

CHAPTER = course.chapter("02")


@pytest.mark.parametrize("path", lint.notebooks(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_notebook(path):
    assert lint.lint(path) == []


@pytest.mark.parametrize("chapter", course.CHAPTERS, ids=lambda chapter: chapter.number)
def test_every_chapter_has_its_notebooks(chapter):
    folders = ["notebooks", "labs", "solutions"] if chapter.lab else ["notebooks"]
    missing = [folder for folder in folders if not (lint.ROOT / folder / chapter.notebook).exists()]
    assert missing == []


# --- The rules themselves: a good lesson and a good solution, and one thing wrong with it at a time -------


def header(minutes: int, kind: str) -> str:
    return f"""=== markdown header
# {CHAPTER.number} · {CHAPTER.title}{kind}

**You will be able to**

- break one rule at a time.

**Before this:** [this](#Be-wrong-first).
**Time:** about {minutes} minutes.
**Needs:** {CHAPTER.needs}
"""


def lesson() -> str:
    """A lesson that keeps every rule: 2 + 12 + 12 + 3 cells and about a thousand words."""
    cells = [
        header(CHAPTER.lesson, ""),
        "=== markdown wrong\n## Be wrong first\n\nHow many? `just` is code.\n",
    ]
    for n in range(12):
        cells.append(f"=== markdown text-{n}\n{'word ' * 80}\n")
        cells.append(f"=== code code-{n}{' nbval-check-output' if n < 5 else ''}\nprint({n})\n")
    for n, section in enumerate(lint.CLOSING[:-1]):
        cells.append(f"=== markdown closing-{n}\n## {section}\n\nIt is said.\n")
    cells.append(f"=== markdown {sources.CELL}\n{sources.cell_text(CHAPTER.number)}\n")
    return "\n".join(cells)


EXTRA_CELLS = "".join(f"=== markdown extra-{n}\nMore.\n\n" for n in range(20))

# The one claim of the toy lesson.
CLAIM = Claim("02-toy", "It takes long.", ("lesson text-1",), source="A book", values={"time": "3 ms"})

SOLUTION = (
    header(CHAPTER.lab, ": lab")
    + """
=== markdown wrong
## Be wrong first

=== markdown task
### Exercise

Difficulty ●○○○○ · about 2 min

<details><summary>a nudge</summary></details>
<details><summary>a pointer</summary></details>
<details><summary>code</summary></details>

=== code 02-toy solution
def toy():
    ### BEGIN SOLUTION
    return 1
    ### END SOLUTION

=== code 02-toy-check points=1
lab.check("02-toy", toy)
"""
)


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    # The real ones hold numbers of the chapter's quiz, but are said elsewhere.
    real = [dataclasses.replace(claim, places=()) for claim in claims.of_chapter(CHAPTER.number)]
    monkeypatch.setattr(claims, "of_chapter", lambda number: (CLAIM, *real))
    for folder in lint.KINDS:
        (tmp_path / folder).mkdir()
    return tmp_path


def with_outputs(notebook: NotebookNode) -> NotebookNode:
    """As outputs.py would store them."""
    for count, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = count
        cell.outputs = [v4.new_output("stream", name="stdout", text=f"{count - 1}\n")]
    return notebook


def put(notebook: NotebookNode, folder: Path) -> Path:
    path = folder / CHAPTER.notebook
    canonical.write(notebook, path)
    return path


def test_a_good_lesson_solution_and_lab_have_nothing_to_mend(root):
    solution = text.from_text(SOLUTION)
    assert lint.lint(put(with_outputs(text.from_text(lesson())), root / "notebooks")) == []
    assert lint.lint(put(solution, root / "solutions")) == []
    assert lint.lint(put(derive.derive(solution), root / "labs")) == []


def in_text(old: str, new: str) -> Callable[[str], str]:
    def change(written: str) -> str:
        assert old in written, old
        return written.replace(old, new, 1)

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (in_text("# 02 · atomicAdd ordering", "# atomicAdd"), "does not begin with the title"),
        (in_text("You will be able to", "You will not"), "list of objectives"),
        (in_text("- break one rule at a time.", ""), "list of objectives"),
        (in_text("about 25 minutes", "about 20 minutes"), "about 25 minutes"),
        (in_text("**Needs:** A GPU", "**Needs:** No GPU"), "**Needs:**"),
        (in_text("**Before this:**", "Before:"), "what to do first"),
        (in_text("## Be wrong first", "### Be wrong first"), "jumps from a heading of level 1"),
        (in_text("## Be wrong first", "# Be wrong first"), "not one '#' heading"),
        (in_text("How many?", "![](../notebooks)"), "wrong has an image without alternative text"),
        (in_text("How many?", "<img src='../notebooks'>"), "wrong has an image without alternative text"),
        (in_text("How many?", "<img alt=' ' src='../notebooks'>"), "wrong has an image without"),
        (in_text("code-6", "code-6 nbval-chek-output"), "code-6 has a tag that means nothing"),
        (in_text("code-6", "code-6 raises-exception"), "code-6 has a tag that means nothing"),
        (in_text("print(6)", "# NBVAL_IGNORE_OUTPUT\nprint(6)"), "code-6 has a marker"),
        (in_text("print(6)", "print(6"), "code-6 does not parse"),
        (in_text("How many?", "Obviously many."), "wrong says 'obviously'"),
        (in_text("How many?", "Many, just so."), "wrong says 'just'"),
        (in_text("(#Be-wrong-first)", "(#Be-right)"), "links to a heading #Be-right"),
        (in_text("(#Be-wrong-first)", "(03_no_chapter.ipynb)"), "links to 03_no_chapter.ipynb"),
        (in_text("How many?", "<a href='nowhere.md'>?</a>"), "links to nowhere.md"),
        (in_text("print(6)", "open('/home/somebody/x')"), "code-6 names a place"),
        (in_text("How many?", "See /tmp/x."), "wrong names a place"),
        (in_text("How many?", "![][dot]\n\n[dot]: ../notebooks"), "wrong has an image without alternative text"),
        (in_text("How many?", "<IMG SRC='../notebooks'>"), "wrong has an image without alternative text"),
        (in_text("How many?", "[how][many]\n\n[many]: nowhere.md"), "links to nowhere.md, which is not there"),
        (in_text("How many?", "<a href=nowhere.md>?</a>"), "links to nowhere.md, which is not there"),
        (in_text("How many?", "[?](<no where.md>)"), "links to no where.md, which is not there"),
        (in_text("How many?", f"[?]({CHAPTER.notebook}#Nope)"), f"heading #Nope, which is not in {CHAPTER.notebook}"),
        (in_text("How many?", "[?](/etc)"), "links to /etc, which a learner's copy of the course does not have"),
        (in_text("How many?", "[?](../)"), "links to ../, which a learner's copy of the course does not have"),
        (in_text("How many? `just` is code.", "Many\n===="), "wrong has a heading without '#' marks"),
        (in_text("How many? `just` is code.", "Many\n----"), "wrong has a heading without '#' marks"),
        (in_text("How many?", "<h2>Many</h2>"), "wrong has a heading without '#' marks"),
        (in_text("print(6)", "return 6"), "code-6 does not parse"),
        (in_text(f"text-3\n{'word ' * 80}\n", "text-3\n\n"), "text-3 is empty"),
        (in_text("=== markdown text-3", "=== raw text-3"), "text-3 is raw"),
        (in_text("=== markdown closing-0", EXTRA_CELLS + "=== markdown closing-0"), "25 to 45 cells; this one has 49"),
        (in_text("word " * 80, "word " * 1000), "900 to 1800 words"),
        (in_text("print(6)", "print(6)\n" * 26), "code-6 has 26 lines"),
        (lambda written: written.replace("print(", "1\n" * 7 + "print("), "Half of the code cells"),
        (in_text("## Say it out loud", "## Whisper it"), "The last sections are not"),
        (in_text("## Say it out loud", "### Say it out loud"), "The last sections are not"),
        (in_text(" nbval-check-output", ""), "5 cells or more must be compared"),
        (in_text(" nbval-check-output", " nbval-check-output gpu"), "5 cells or more must be compared"),
        (in_text("How many?", "It takes 3 ms."), "wrong says '3 ms' and does not say from which claim"),
        (in_text("wrong\n", 'wrong {"values": {"How many": "02-toy.time"}}\n'), "where 02-toy.time is 3 ms"),
        (in_text("wrong\n", 'wrong {"values": {"How many": "02-toy.size"}}\n'), "No claim holds the value"),
        (in_text("wrong\n", 'wrong {"values": {"4 ms": "setting"}}\n'), "maps 4 ms to setting, but does not"),
        (in_text("=== markdown text-1\n", "=== markdown text-one\n"), "said in cell text-1, which is not there"),
        (in_text("It takes long", "It takes longer"), "is not what the claims say"),
    ],
)  # fmt: skip
def test_a_rule_about_what_is_written_notices(change, sentence, root):
    assert_noticed(put(with_outputs(text.from_text(change(lesson()))), root / "notebooks"), sentence)


def test_a_number_may_be_said_with_its_claim(root):
    written = in_text("wrong\n", 'wrong {"values": {"3 ms": "02-toy.time", "4 ms": "setting"}}\n')(lesson())
    written = in_text("How many?", "It takes 3 ms, and we wait 4 ms.")(written)
    assert lint.lint(put(with_outputs(text.from_text(written)), root / "notebooks")) == []


def test_a_number_is_not_part_of_another_one(root):
    written = in_text("wrong\n", 'wrong {"values": {"3 ms": "02-toy.time", "5×": "setting"}}\n')(lesson())
    written = in_text("How many?", "13 ms, 2.3 ms, 5×10⁻³ s and 3 ms.")(written)
    found = lint.lint(put(with_outputs(text.from_text(written)), root / "notebooks"))
    assert [line.split(" and does not")[0].split(" wrong ")[1] for line in found] == [
        "maps 5× to setting, but does not say it.",
        "says '13 ms'",
        "says '2.3 ms'",
        "says '5×'",
    ], found


def assert_noticed(path: Path, sentence: str) -> None:
    found = lint.lint(path)
    assert len(found) == 1 and sentence in found[0], found


def image(html: str | None) -> NotebookNode:
    data = {"image/png": "", "text/plain": "a dot"} | ({"text/html": html} if html else {})
    return v4.new_output("display_data", data)


def stored(**changes) -> Callable[[NotebookNode], None]:
    """Change the stored outputs of the first code cell."""

    def change(notebook: NotebookNode) -> None:
        next(cell for cell in notebook.cells if cell.cell_type == "code").update(changes)

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (stored(outputs=[]), "code-0 is tagged to be compared but has no stored output"),
        (stored(execution_count=None), "code-0 was not run with the others"),
        (stored(execution_count=7), "code-0 was not run with the others"),
        (stored(outputs=[v4.new_output("stream", name="stderr", text="!")]), "a kind that is not stored"),
        (stored(outputs=[v4.new_output("error", ename="E", evalue="")]), "a kind that is not stored"),
        (stored(outputs=[v4.new_output("display_data", {"text/latex": "x"})]), "a kind that is not stored"),
        (stored(outputs=[image(None)]), "code-0 puts out an image without alternative text"),
        (stored(outputs=[image("<img src=''>")]), "code-0 puts out an image without alternative text"),
        (stored(outputs=[v4.new_output("stream", text="/tmp/ipykernel_17/1.py")]), "code-0 names a place"),
    ],
)  # fmt: skip
def test_a_rule_about_what_is_stored_notices(change, sentence, root):
    notebook = with_outputs(text.from_text(lesson()))
    change(notebook)
    assert_noticed(put(notebook, root / "notebooks"), sentence)


def test_a_lab_s_cells_are_short_too(root):
    written = SOLUTION.replace(
        "=== code 02-toy solution", "=== code long\n" + "1\n" * 26 + "\n=== code 02-toy solution"
    )
    assert_noticed(put(text.from_text(written), root / "labs"), "Cell long has 26 lines; the most is 25.")


def test_links_of_every_kind_that_resolve_are_fine(root):
    """And a table, or a rule after an empty line, is no underlined heading."""
    good = (
        f"[a](<{CHAPTER.notebook}#Be-wrong-first>) [b][ref] <a href=#Be-wrong-first>c</a>\n"
        "<img alt='d' src=\"../labs\">\n\n"
        f"[ref]: ../notebooks/{CHAPTER.notebook}\n\n| x |\n|---|\n| 1 |\n\n---\n\n- item\n\n`[x](nowhere.md)`"
    )
    written = in_text("How many?", good)(lesson())
    assert lint.lint(put(with_outputs(text.from_text(written)), root / "notebooks")) == []


def test_a_notebook_without_cells_is_noticed(root):
    path = root / "labs" / CHAPTER.notebook
    path.write_text('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}')
    assert lint.lint(path) == ["The notebook has no cells."]
    path.write_text('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": null}')
    assert_noticed(path, "is no notebook")


def test_an_image_with_alternative_text_may_be_stored(root):
    notebook = with_outputs(text.from_text(lesson()))
    stored(outputs=[image("<img alt='a dot' src=''>")])(notebook)
    assert lint.lint(put(notebook, root / "notebooks")) == []


@pytest.mark.parametrize("folder", ["labs", "solutions"])
@pytest.mark.parametrize(
    "change", [stored(execution_count=1), stored(outputs=[v4.new_output("stream", text="1")])]
)
def test_labs_and_solutions_have_no_outputs(change, folder, root):
    notebook = text.from_text(SOLUTION)
    change(notebook)
    assert_noticed(put(notebook, root / folder), "02-toy has a stored output or count")


def test_a_graded_cell_names_no_framework(root):
    notebook = text.from_text(SOLUTION.replace('"02-toy", toy)', '"02-toy", toy, torch.ones(3))'))
    assert_noticed(put(notebook, root / "solutions"), "02-toy-check is graded and names a framework")


def test_the_layout_of_the_file_is_the_course_s(root):
    path = put(text.from_text(SOLUTION), root / "solutions")
    path.write_bytes(path.read_bytes().replace(b'\n  "', b'\n   "'))
    assert_noticed(path, "not in the course's layout")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (b'"id": "task"', b'"id": "wrong"', "no valid notebook"),
        (b'"id": "task",', b"", "no valid notebook"),
        (b'"name": "python3"', b'"name": "my-venv"', "not in the course's layout"),
        (b'"nbformat_minor": 5', b'"nbformat_minor": 4', "older than nbformat 4.5"),
        (b"{", b"[", "is no notebook"),
    ],
)
def test_a_file_that_nbformat_would_repair_is_noticed(old, new, sentence, root):
    path = put(text.from_text(SOLUTION), root / "solutions")
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    assert_noticed(path, sentence)


def test_a_notebook_of_no_chapter_is_noticed(root):
    path = root / "labs" / "77_lost.ipynb"
    canonical.write(text.from_text(SOLUTION), path)
    assert_noticed(path, "No chapter in course.py has a notebook 77_lost.ipynb")


@pytest.mark.parametrize("number", [chapter.number for chapter in course.CHAPTERS if chapter.lab])
def test_no_place_in_a_quiz_holds_most_of_the_right_answers(number):
    """Whoever always takes the second option should not pass."""
    asked = questions.load(number).questions
    places = [[option.correct for option in question.options].index(True) for question in asked]
    assert max(places.count(place) for place in places) <= 0.7 * len(asked)
