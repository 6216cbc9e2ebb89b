"""The README's pictures, taken from a real run in a real browser.

    python tools/pictures.py        writes lesson.png, lab.png, panel.png and tiles.png into docs/

They show what this machine measured when the command ran. Needs Chromium and the test extra.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser.jupyter import CHROMIUM_ARGUMENTS, Notebook, jupyterlab  # noqa: E402

RUN_MS = 60_000


def main() -> None:
    docs = ROOT / "docs"
    docs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder, private = Path(name) / "work", Path(name) / "private"
        private.mkdir(parents=True)
        for kind in ("notebooks", "labs"):
            shutil.copytree(ROOT / kind, folder / kind)
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), headless=True, args=CHROMIUM_ARGUMENTS
        )
        with jupyterlab(folder, private) as lab:
            for picture, notebook in (
                (lesson, "notebooks/00_start_here.ipynb"),
                (panel, "notebooks/00_start_here.ipynb"),
                (first_prediction, "labs/02_atomicadd_ordering.ipynb"),
            ):
                context = browser.new_context(
                    viewport={"width": 1150, "height": 1100}, device_scale_factor=1.5
                )
                picture(Notebook(context.new_page(), lab, notebook), docs)
                context.close()
        browser.close()


def lesson(notebook: Notebook, docs: Path) -> None:
    """The first minute of the course: a prediction, one line of code, twenty tiles."""
    quiet(notebook.page)
    notebook.run(0)
    notebook.output(0).get_by_role("radio").first.check()
    notebook.output(0).get_by_role("button", name="Commit prediction").click()
    for cell in (1, 2, 3):
        notebook.run(cell)
    expect(notebook.output(2).locator("img")).to_be_visible()
    notebook.output(2).locator(".sb-card").screenshot(path=docs / "tiles.png")
    notebook.output(0).scroll_into_view_if_needed()
    notebook.page.screenshot(path=docs / "lesson.png")


def panel(notebook: Notebook, docs: Path) -> None:
    """A panel after two runs: before a toggle and after it."""
    quiet(notebook.page)
    notebook.run_all()
    card = notebook.page.locator(".sb-panel").first
    card.get_by_role("button", name="Run 20").click()
    expect(card.locator(".sb-row")).to_have_count(1, timeout=RUN_MS)
    card.get_by_label("Deterministic algorithms").check()
    card.get_by_role("button", name="Run 20").click()
    expect(card.locator(".sb-row")).to_have_count(2, timeout=RUN_MS)
    card.screenshot(path=docs / "panel.png")


def first_prediction(notebook: Notebook, docs: Path) -> None:
    """A lab: a prediction, the panel that it is about, and what the machine said."""
    quiet(notebook.page)
    notebook.run(0)
    notebook.run(1)
    notebook.output(1).get_by_role("radio").nth(1).check()
    notebook.output(1).get_by_role("button", name="Commit prediction").click()
    notebook.run(2)
    notebook.run(3)
    expect(notebook.output(2).locator(".sb-row")).to_have_count(1, timeout=RUN_MS)
    notebook.output(1).scroll_into_view_if_needed()
    notebook.page.screenshot(path=docs / "lab.png")


def quiet(page: Page) -> None:
    """Close the file browser, which says nothing about the course."""
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area').then(() => null)")


if __name__ == "__main__":
    main()
