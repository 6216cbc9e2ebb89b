"""The op atlas in a real browser: measure, find, open, by mouse and by keyboard, in both themes."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from playwright.sync_api import expect

from .jupyter import Notebook, jupyterlab

pytestmark = pytest.mark.browser

RUN_MS = 90_000
OPS = ["put", "index_put-accumulate", "matmul", "max_unpool2d"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder, private = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("private")
    cells = [
        f"from samebits import lab\natlas = lab.atlas({OPS}, budget=1)\natlas",
        "print(atlas.found.raising)",
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"}}
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells], metadata=kernel)
    nbformat.write(notebook, folder / "atlas.ipynb")
    with jupyterlab(folder, private) as server:
        yield server


def test_measure_find_and_open(new_page, lab):
    notebook = Notebook(new_page(), lab, "atlas.ipynb")
    notebook.run(0)
    card = notebook.output(0)
    cells = notebook.cells.count()
    card.get_by_role("button", name="Measure 4 ops").click()
    expect(card.locator(".sb-status")).to_have_text("All 4 ops are measured.", timeout=RUN_MS)
    expect(card.locator(".sb-source")).to_contain_text("LIVE")
    expect(card.get_by_role("row", name="max_unpool2d")).to_contain_text("max_unpooling2d_forward_out")
    expect(card.locator(".sb-advice")).to_contain_text("What to do")

    # By keyboard: open a row, and find by typing what would be shortcuts of the notebook.
    card.get_by_role("button", name="matmul").focus()
    notebook.page.keyboard.press("Enter")
    expect(card.get_by_role("button", name="matmul")).to_have_attribute("aria-expanded", "true")
    expect(card.get_by_text("a @ b")).to_be_visible()
    for theme in ("light", "dark"):
        notebook.theme(theme)
        assert notebook.axe(0) == []
    notebook.theme("light")
    card.get_by_label("Find").focus()
    notebook.page.keyboard.type("dd")
    assert notebook.cells.count() == cells
    card.get_by_label("Find").fill("put_")
    expect(card.get_by_text("1 of 4 ops shown")).to_be_visible()
    card.get_by_label("Find").fill("")
    card.get_by_label("Group").select_option("pooling")
    expect(card.get_by_text("1 of 4 ops shown")).to_be_visible()
    card.get_by_label("Group").select_option("")
    card.get_by_label("only what varies").check()
    expect(card.get_by_role("button", name="matmul")).to_be_hidden()
    expect(card.get_by_role("button", name="put", exact=True)).to_be_visible()

    notebook.run(1)
    expect(notebook.output(1)).to_contain_text("['put', 'max_unpool2d']")
    notebook.restart_kernel()
    expect(card.locator(".sb-status")).to_contain_text("The kernel was restarted")
    expect(card.locator(".sb-badge-live")).to_be_hidden()
    expect(card.locator(".sb-measured")).to_be_visible()
    assert notebook.errors == [] and notebook.external == []
