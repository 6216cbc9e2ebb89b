"""Predictions and quizzes in JupyterLab, answered by keyboard alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest

from .jupyter import Notebook, jupyterlab

QUESTIONS = Path(__file__).parent.parent / "fixtures" / "questions"

SETUP = """import pathlib
from samebits import lab
from samebits.lab import questions
questions.FOLDER = pathlib.Path("../questions").resolve()"""

# Code cells of the notebook under test, by number.
PREDICTION, REVEAL, QUIZ, CONTENTS, MISTYPED = 1, 2, 3, 4, 5
CELLS = [
    SETUP,
    'letters = lab.predict("02-letters")\nletters',
    "letters.reveal(17)",
    'lab.quiz("02")',
    "lab.contents()",
    'lab.predict("02-leters")',
]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A JupyterLab on a folder laid out as the learner's: notebooks/ beside labs/."""
    folder, private = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("private")
    shutil.copytree(QUESTIONS, folder / "questions")
    for name in ("notebooks", "labs"):
        (folder / name).mkdir()
        notebook = nbformat.v4.new_notebook(
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
            cells=[nbformat.v4.new_code_cell(source) for source in CELLS],
        )
        nbformat.write(notebook, folder / name / "02_atomicadd_ordering.ipynb")
    with jupyterlab(folder, private) as lab:
        yield lab


@pytest.fixture(scope="module")
def opened(server, new_page):
    """The notebook with every cell run, for tests to which it is all one what was answered before."""
    notebook = Notebook(new_page(), server, "labs/02_atomicadd_ordering.ipynb")
    notebook.run_all()
    return notebook


@pytest.fixture
def notebook(server, opened):
    """The notebook in the light theme with every cell run, in a fresh kernel, and nothing answered yet."""
    opened.theme("light")
    opened.restart_kernel()
    shutil.rmtree(server.data, ignore_errors=True)
    opened.run_all()
    return opened


def says(notebook: Notebook, cell: int, text: str) -> None:
    """Wait until a live region of the cell's output holds the text."""
    notebook.output(cell).get_by_role("status").filter(has_text=text).first.wait_for()


def test_answering_by_keyboard_alone_deletes_no_cell(notebook):
    count = notebook.cells.count()
    keyboard = notebook.page.keyboard
    notebook.output(PREDICTION).get_by_role("radio").first.focus()
    for key in ("Space", "ArrowDown", "ArrowDown", "d", "d", "b", "Tab", "d", "d", "Enter"):
        keyboard.press(key)
    says(notebook, PREDICTION, "You predicted “more than five”")
    # The button kept the focus, so a hasty learner's next keys do no harm either.
    assert notebook.page.evaluate("document.activeElement.textContent") == "Committed"
    for key in ("d", "d", "x"):
        keyboard.press(key)
    assert notebook.cells.count() == count
    assert notebook.output(PREDICTION).get_by_role("radio", name="more than five").is_disabled()

    keyboard.press("Tab")  # out of the prediction; then into the quiz
    notebook.output(QUIZ).get_by_role("radio").first.focus()
    for key in ("Space", "Tab", "Enter"):
        keyboard.press(key)
    says(notebook, QUIZ, "Not quite. Nothing is said of the order")
    for key in ("Shift+Tab", "ArrowDown", "d", "d", "Tab", "Enter"):
        keyboard.press(key)
    says(notebook, QUIZ, "Correct. Reading, adding and writing")
    says(notebook, QUIZ, "Your first answer counts: “That the additions happen")
    says(notebook, QUIZ, "0 of 3 points so far. 1 question to go.")
    assert notebook.cells.count() == count


def test_a_click_without_a_choice_asks_for_one_each_time(notebook):
    output = notebook.output(QUIZ)
    for _ in range(2):
        output.get_by_role("button", name="Answer").first.click()
        says(notebook, QUIZ, "Choose an option first.")
    # The kernel's reply came, so the card does not complain about a silent kernel later.
    notebook.page.wait_for_timeout(2000)
    assert output.get_by_text("No reply from the kernel").count() == 0


def test_a_busy_kernel_is_told_and_answers_when_it_is_free(notebook):
    notebook.page.evaluate(
        "() => { window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
        ".requestExecute({code: 'import time; time.sleep(4)'}); }"
    )
    output = notebook.output(PREDICTION)
    output.get_by_role("radio").first.check()
    output.get_by_role("button").click()
    says(notebook, PREDICTION, "No reply from the kernel yet.")
    says(notebook, PREDICTION, "You predicted “exactly one: the inputs are identical”")


def test_answers_survive_a_restart_of_the_kernel(notebook):
    prediction, quiz = notebook.output(PREDICTION), notebook.output(QUIZ)
    prediction.get_by_role("radio", name="a handful").check()
    prediction.get_by_role("button").click()
    says(notebook, PREDICTION, "You predicted “a handful, two to five”")
    quiz.get_by_role("radio", name="That no addition is lost").check()
    quiz.get_by_role("button").first.click()
    says(notebook, QUIZ, "Correct.")

    notebook.restart_kernel()
    notebook.run_all()
    says(notebook, PREDICTION, "A surprise. You predicted “a handful, two to five”; your machine gave 17.")
    assert "your machine gave 17" in notebook.output(REVEAL).inner_text()
    assert notebook.output(PREDICTION).get_by_role("radio", name="a handful").is_checked()
    assert notebook.output(PREDICTION).get_by_role("radio", name="more than five").is_disabled()
    assert notebook.output(QUIZ).get_by_role("radio", name="That no addition is lost").is_checked()
    says(notebook, QUIZ, "1 of 3 points so far.")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(notebook, theme):
    notebook.theme(theme)
    for name, cell in (("Commit", PREDICTION), ("Answer", QUIZ)):
        assert notebook.axe(cell) == []
        notebook.output(cell).get_by_role("radio").first.check()
        notebook.output(cell).get_by_role("button", name=name).first.click()
    says(notebook, PREDICTION, "You predicted")
    says(notebook, QUIZ, "Not quite.")
    for cell in (PREDICTION, REVEAL, QUIZ, CONTENTS):
        assert notebook.axe(cell) == []


def test_axe_would_find_something(notebook):
    """The check above can fail: grey on grey, a control without a name."""
    notebook.output(QUIZ).locator(".sb-card").evaluate(
        "card => { card.insertAdjacentHTML('beforeend', '<input><p style=\"color:#aaa\">pale</p>'); }"
    )
    found = notebook.axe(QUIZ)
    assert any("label" in violation for violation in found) and any(
        "contrast" in violation for violation in found
    )


def test_printed_sentences_break_between_words(opened):
    """JupyterLab's own rule for printed text is break-all, which cuts through the words of a check's sentence."""
    printed = opened.output(REVEAL).locator("pre").first
    assert printed.evaluate("pre => getComputedStyle(pre).wordBreak") == "normal"


def test_controls_are_large_enough_to_hit(opened):
    """24 by 24 CSS pixels (WCAG 2.2, 2.5.8); a radio's target is its whole label."""
    for cell in (PREDICTION, QUIZ):
        output = opened.output(cell)
        for target in [*output.locator("label").all(), *output.get_by_role("button").all()]:
            box = target.bounding_box()
            assert box["height"] >= 24 and box["width"] >= 24


def test_a_mistyped_name_is_one_sentence(opened):
    text = opened.output(MISTYPED).inner_text().strip()
    assert text == "There is no prediction '02-leters'. Did you mean 02-letters?"


def test_nothing_is_fetched_from_outside(notebook):
    notebook.output(PREDICTION).get_by_role("radio").first.check()
    notebook.output(PREDICTION).get_by_role("button").click()
    says(notebook, PREDICTION, "You predicted")
    assert notebook.external == []
    assert notebook.errors == []


def test_contents_opens_the_lesson(opened):
    opened.output(CONTENTS).get_by_role("link", name="02 atomicAdd ordering").click()
    opened.page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget.context.path === 'notebooks/02_atomicadd_ordering.ipynb'"
    )
    opened.open()
