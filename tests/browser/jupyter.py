"""A private JupyterLab and a browser in front of it.

    with jupyterlab(folder, private) as lab:          # serves a folder of notebooks that may be changed
        notebook = Notebook(page, lab, "quiz.ipynb")  # opens it and waits for its kernel
        notebook.run_all()
        notebook.output(1).get_by_role("radio").first.check()
        assert notebook.axe(1) == []

Waiting is always for something that shows on the page or in the kernel, never for a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from playwright.sync_api import Locator, Page

START_SECONDS = 60
CELL_MS = 90_000
# Debian's Chromium in a container: no sandbox without user namespaces, and no calls home.
CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

KERNEL_IDLE = """() => {
    const panel = window.jupyterapp && window.jupyterapp.shell.currentWidget;
    const session = panel && panel.sessionContext && panel.sessionContext.session;
    return Boolean(session && session.kernel && session.kernel.status === 'idle');
}"""

AXE = """async output => {
    const results = await axe.run(output, { resultTypes: ['violations', 'incomplete'] });
    const line = (kind, rule, node) => `${kind} ${rule.id}: ${node.html.slice(0, 160)}`;
    const violations = results.violations
        .filter(rule => ['serious', 'critical'].includes(rule.impact))
        .flatMap(rule => rule.nodes.map(node => line(rule.impact, rule, node)));
    const undecided = results.incomplete
        .filter(rule => rule.id === 'color-contrast')
        .flatMap(rule => rule.nodes.map(node => [rule, node]))
        .filter(([, node]) => document.querySelector(node.target[0]).closest('.sb-card'))
        .map(([rule, node]) => line('undecided', rule, node));
    return [...violations, ...undecided];
}"""


@dataclass(frozen=True)
class JupyterLab:
    """A running server; `data` is where its kernels keep the learner's progress."""

    url: str
    token: str
    folder: Path
    data: Path

    def stop_kernels(self) -> None:
        """Shut every kernel down, so that the next notebook starts with a fresh one."""
        for kernel in json.loads(self._api("api/sessions")):
            self._api(f"api/sessions/{kernel['id']}", "DELETE")

    def _api(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(f"{self.url}{path}", method=method)
        request.add_header("Authorization", f"token {self.token}")
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read()


@contextlib.contextmanager
def jupyterlab(
    folder: Path, private: Path, environment: dict[str, str] | None = None
) -> Iterator[JupyterLab]:
    """Serve `folder`, a copy that the test may change, with everything Jupyter writes kept in `private`.

    environment  more variables for the server and so for its kernels

    Raises RuntimeError, with the server's log, if it does not start.
    """
    data = private / "samebits"
    settings = private / "settings"
    _no_news(settings)
    surroundings = os.environ | {
        "JUPYTER_CONFIG_DIR": str(private / "config"),
        "JUPYTER_DATA_DIR": str(private / "data"),
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(settings),
        "JUPYTERLAB_WORKSPACES_DIR": str(private / "workspaces"),
        "IPYTHONDIR": str(private / "ipython"),
        "SAMEBITS_DATA": str(data),
        **(environment or {}),
    }
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        "--ServerApp.port=0",
        f"--ServerApp.root_dir={folder}",
        "--LabApp.expose_app_in_browser=True",
    ]
    log = private / "jupyterlab.log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=surroundings, stdout=output, stderr=subprocess.STDOUT)
    try:
        url, token = _wait_for(server, private / "runtime", log)
        yield JupyterLab(url, token, folder, data)
    finally:
        server.terminate()
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _no_news(settings: Path) -> None:
    """JupyterLab's question about news covers the corner of the page, and asks again in every new profile."""
    plugin = settings / "@jupyterlab" / "apputils-extension"
    plugin.mkdir(parents=True)
    choice = {"fetchNews": "false", "checkForUpdates": False}
    (plugin / "notification.jupyterlab-settings").write_text(json.dumps(choice))


def _wait_for(server: subprocess.Popen, runtime: Path, log: Path) -> tuple[str, str]:
    """The server's address and token, once it answers; it writes them into its runtime folder."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError, ValueError, KeyError):
            info = json.loads((runtime / f"jpserver-{server.pid}.json").read_text())
            request = urllib.request.Request(f"{info['url']}api/status")
            request.add_header("Authorization", f"token {info['token']}")
            urllib.request.urlopen(request, timeout=5).close()
            return info["url"], info["token"]
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text(errors='replace')[-3000:]}")


@dataclass
class Notebook:
    """A notebook open in `page`, with its kernel ready.

    external  addresses that the page asked for outside the server
    errors    exceptions in the page's own JavaScript
    """

    page: Page
    lab: JupyterLab
    name: str
    external: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.page.on("request", self._note_external)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.open()

    def open(self) -> None:
        """Load the page; `reset` forgets which notebooks were open before."""
        self.page.goto(f"{self.lab.url}lab/tree/{self.name}?reset&token={self.lab.token}")
        self.wait_idle()

    def wait_idle(self) -> None:
        """Wait until the notebook's kernel has nothing to do."""
        self.page.wait_for_function(KERNEL_IDLE, timeout=CELL_MS)

    def command(self, name: str, arguments: dict | None = None) -> None:
        """Run one of JupyterLab's own commands and wait until it has ended."""
        self.page.evaluate(
            "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)",
            [name, arguments or {}],
        )

    def run_all(self) -> None:
        """Run every cell from the top."""
        self.command("notebook:run-all-cells")
        self.wait_idle()

    def run(self, cell: int) -> None:
        """Run the code cell number `cell`, from 0, and wait until it has ended."""
        self.start(cell)
        self.wait_idle()

    def start(self, cell: int) -> None:
        """Begin to run the code cell number `cell`, from 0."""
        self.page.evaluate(
            """number => {
                const notebook = window.jupyterapp.shell.currentWidget.content;
                const code = notebook.widgets.flatMap((widget, i) => (widget.model.type === 'code' ? [i] : []));
                notebook.activeCellIndex = code[number];
                notebook.deselectAll();
                window.jupyterapp.commands.execute('notebook:run-cell');
            }""",
            cell,
        )

    def restart_kernel(self) -> None:
        """Restart the kernel, as a learner does after the machine was off."""
        self.page.evaluate(
            "() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => null)"
        )
        self.wait_idle()

    def theme(self, name: str) -> None:
        """Switch to the theme "light" or "dark"."""
        self.command("apputils:change-theme", {"theme": f"JupyterLab {name.title()}"})
        light = str(name == "light").lower()
        self.page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")
        # While a theme loads, JupyterLab covers the page.
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    @property
    def panel(self) -> Locator:
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    @property
    def cells(self) -> Locator:
        """All cells, of text and of code."""
        return self.panel.locator(".jp-Cell")

    def output(self, cell: int) -> Locator:
        """The output of the code cell number `cell`, from 0; the cell's source is outside it."""
        return self.panel.locator(".jp-CodeCell").nth(cell).locator(".jp-Cell-outputWrapper")

    def axe(self, cell: int) -> list[str]:
        """What axe finds in a cell's output, one line each: serious and critical violations, and text of a
        card whose contrast it could not judge.

        Only the output: JupyterLab's own frame has violations that no notebook can mend.
        """
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
        # The active cell has a z-index, of which axe concludes that something covers its text; it then judges
        # no contrast at all.
        flat = self.page.add_style_tag(content=".jp-Cell { z-index: auto !important; }")
        found = self.output(cell).evaluate(AXE)
        flat.evaluate("style => style.remove()")
        return found

    def _note_external(self, request) -> None:
        local = (self.lab.url, self.lab.url.replace("http", "ws", 1), "data:", "blob:")
        if not request.url.startswith(local):
            self.external.append(request.url)
