"""The panel in a real browser: toggle, run, cancel, by mouse and by keyboard, in both themes."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

from .jupyter import Notebook, jupyterlab

pytestmark = pytest.mark.browser

RUN_MS = 60_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder, private = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("private")
    cells = [
        "from samebits import lab\npanel = lab.panel('scatter', n=2_000)\npanel",
        "print(panel.values['deterministic'], len(panel.runs))",
        "import time\nif panel.runs: time.sleep(6)",
        "other = lab.panel('scatter', n=2_000)\nother",
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=kernel)
    nbformat.write(notebook, folder / "panel.ipynb")
    with jupyterlab(folder, private) as server:
        yield server


@pytest.fixture(scope="module")
def opened(new_page, lab):
    return Notebook(new_page(), lab, "panel.ipynb")


@pytest.fixture
def notebook(opened):
    """The notebook with a new panel in it."""
    opened.run_all()
    yield opened
    assert opened.errors == []
    assert opened.external == []


def test_toggle_and_run(notebook):
    panel = notebook.output(0)
    rows = panel.locator(".sb-row")
    panel.get_by_role("button", name="Run 20").click()
    expect(rows).to_have_count(1, timeout=RUN_MS)
    panel.get_by_label("Deterministic algorithms").check()
    panel.get_by_role("button", name="Run 20").click()
    expect(rows).to_have_count(2, timeout=RUN_MS)
    last = rows.nth(1)
    expect(last.locator(".sb-settings")).to_have_text("Deterministic algorithms: on")
    expect(last.locator(".sb-tile")).to_have_count(20)
    expect(last.get_by_role("img")).to_have_attribute("aria-label", "20 runs, all the same: A.")
    expect(last.locator(".sb-source")).to_contain_text("LIVE")
    expect(last.locator(".sb-source")).to_contain_text("deterministic on")
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("True 2")
    for theme in ("light", "dark"):
        notebook.theme(theme)
        assert notebook.axe(0) == []
    notebook.theme("light")


def test_by_keyboard_alone(notebook):
    panel = notebook.output(0)
    cells = notebook.cells.count()
    panel.get_by_label("Deterministic algorithms").focus()
    notebook.page.keyboard.press("Space")
    expect(panel.get_by_label("Deterministic algorithms")).to_be_checked()
    notebook.page.keyboard.press("d")
    notebook.page.keyboard.press("d")
    panel.get_by_role("button", name="Run 20").focus()
    notebook.page.keyboard.press("Enter")
    expect(panel.locator(".sb-row")).to_have_count(1, timeout=RUN_MS)
    expect(panel.get_by_role("button", name="Run 20")).to_be_focused()
    assert notebook.cells.count() == cells


def test_a_label_belongs_to_its_own_panel(notebook):
    notebook.output(3).get_by_text("Deterministic algorithms", exact=True).click()
    expect(notebook.output(3).get_by_label("Deterministic algorithms")).to_be_checked()
    expect(notebook.output(0).get_by_label("Deterministic algorithms")).not_to_be_checked()


def test_a_search_that_never_ends_is_cancelled_at_once(notebook):
    """Thousands of fast runs must not queue up in front of Cancel."""
    panel = notebook.output(0)
    panel.get_by_label("Deterministic algorithms").check()
    panel.get_by_label("go on until two differ").check()
    panel.get_by_role("button", name="Run 20").click()
    expect(panel.locator(".sb-count")).to_contain_text("no difference yet", timeout=RUN_MS)
    notebook.page.wait_for_timeout(8_000)
    panel.get_by_role("button", name="Cancel").click()
    expect(panel.get_by_role("status")).to_contain_text("Cancelled after", timeout=3_000)
    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("True 1")


def test_a_refused_number_of_runs_is_not_on_the_button(notebook):
    panel = notebook.output(0)
    panel.get_by_label("Runs", exact=True).fill("2000")
    panel.get_by_label("Runs", exact=True).blur()
    expect(panel.get_by_role("status")).to_contain_text("1 to 1000")
    expect(panel.get_by_role("button", name="Run 20")).to_be_visible()


def test_cancel_a_long_run_while_the_kernel_stays_free(notebook):
    panel = notebook.output(0)
    panel.get_by_label("Values").fill("4000000")
    panel.get_by_label("Runs", exact=True).fill("1000")
    panel.get_by_role("button", name="Run 1000").click()
    expect(panel.locator(".sb-tile").first).to_be_visible(timeout=RUN_MS)
    notebook.run(1)  # the kernel answers while the run goes on
    expect(notebook.output(1)).to_contain_text("False 0")
    panel.get_by_role("button", name="Cancel").click()
    expect(panel.get_by_role("status")).to_contain_text("Cancelled after", timeout=3_000)
    expect(panel.locator(".sb-row")).to_have_count(1)


def test_a_click_while_a_cell_runs_is_not_silent(notebook):
    panel = notebook.output(0)
    panel.get_by_role("button", name="Run 20").click()
    expect(panel.locator(".sb-row")).to_have_count(1, timeout=RUN_MS)
    notebook.start(2)
    panel.get_by_role("button", name="Run 20").click()
    # Kernels that take widget messages beside a running cell run at once; others say when they will.
    expect(panel.locator(".sb-status:not(:empty), .sb-row:nth-child(2)").first).to_be_visible()
    expect(panel.locator(".sb-row")).to_have_count(2, timeout=RUN_MS)


def test_a_value_that_cannot_be_is_one_sentence_and_the_control_goes_back(notebook):
    panel = notebook.output(0)
    panel.get_by_label("Values").fill("-3")
    panel.get_by_label("Values").blur()
    expect(panel.get_by_role("status")).to_contain_text("The nearest is 1.")
    expect(panel.get_by_label("Values")).to_have_value("2000")


def test_without_its_kernel_nothing_is_live(notebook):
    panel = notebook.output(0)
    panel.get_by_role("button", name="Run 20").click()
    expect(panel.locator(".sb-row")).to_have_count(1, timeout=RUN_MS)
    expect(panel.locator(".sb-badge-live")).to_be_visible()
    notebook.restart_kernel()
    print(
        panel.locator(".sb-panel").evaluate(
            "e=>{let r=[];while(e){r.push(e.className);e=e.parentElement}return r}"
        )
    )
    expect(panel.locator(".sb-badge-live")).to_be_hidden()
    expect(panel.locator(".sb-measured")).to_be_visible()
    expect(panel.get_by_role("status")).to_contain_text("Run the cell above this panel again")
    expect(panel.get_by_role("button", name="Run 20")).to_be_disabled()
