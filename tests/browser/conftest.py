"""A Chromium for the tests that need one, and pages in it."""

from __future__ import annotations

import available
import pytest
from playwright.sync_api import sync_playwright

from .jupyter import CHROMIUM_ARGUMENTS


@pytest.fixture(scope="module")
def chromium():
    """The machine's own Chromium, driven by playwright.

    Not kept for the session: playwright's event loop counts as running for as long as it is started, and
    no other test of this process could run one.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=available.chromium(), args=CHROMIUM_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def new_page(chromium):
    """`new_page()` opens a page with a profile of its own, closed after the module's last test."""
    contexts = []

    def open_page():
        contexts.append(chromium.new_context(viewport={"width": 1200, "height": 1100}))
        return contexts[-1].new_page()

    yield open_page
    for context in contexts:
        context.close()
