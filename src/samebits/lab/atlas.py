"""The op atlas as a panel: a table that fills while each op is measured, and what to do at its end."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterable
from typing import Any

import anywidget
import traitlets

from samebits import runner, variability
from samebits.atlas import BUDGET, Atlas, Row, check_budget, chosen, sweep
from samebits.experiment import BadSetting, Runs
from samebits.experiments.atlas_ops import ATLAS_OP, Op
from samebits.lab.background import Background
from samebits.lab.errors import LabError
from samebits.lab.theme import CSS, JS, STATIC, TILE_COLOURS

REFRESH = 0.3  # seconds between two updates of the table while a sweep goes on
STRIP = 20  # runs that a row shows as little tiles


class AtlasPanel(Background, anywidget.AnyWidget):
    """The atlas of some ops, or of all. A click runs it in the background; `run()` runs it in the calling cell.

    found  the last finished Atlas, or None
    """

    _esm = JS + (STATIC / "atlas.js").read_text(encoding="utf-8")
    _css = CSS + (STATIC / "atlas.css").read_text(encoding="utf-8")

    total = traitlets.Int().tag(sync=True)
    colours = traitlets.List(list(TILE_COLOURS)).tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
    current = traitlets.Unicode("").tag(sync=True)
    done = traitlets.Int(0).tag(sync=True)
    status = traitlets.Unicode("").tag(sync=True)
    failed = traitlets.Bool(False).tag(sync=True)
    detail = traitlets.Unicode("").tag(sync=True)
    rows = traitlets.List(traitlets.Dict()).tag(sync=True)
    summary = traitlets.Unicode("").tag(sync=True)
    advice = traitlets.List(traitlets.Dict()).tag(sync=True)
    source = traitlets.Dict().tag(sync=True)

    def __init__(self, ops: Iterable[str] | None = None, device: str = "auto", budget: float = BUDGET):
        self._ops = [op.name for op in chosen(ops)]
        self._device = ATLAS_OP.knob("device").parse(device)
        check_budget(budget)
        self._budget = budget
        self.found: Atlas | None = None
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None
        super().__init__(total=len(self._ops))
        self.on_msg(self._receive)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        runner.warm(ATLAS_OP)  # while the learner reads, a worker gets ready
        return super()._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return f"The op atlas, {self.total} ops: {self.summary or 'not measured yet.'}"

    def run(self) -> Atlas | None:
        """Measure now, in this cell; None if it failed or was interrupted, which it says."""
        if self.busy:
            print("This atlas is being measured already. Cancel that, or wait until it has ended.")
            return None
        found = None
        try:
            self._begin()
            found = self._measure()
        except KeyboardInterrupt:
            self._end("Stopped by interrupting the kernel. Nothing of this run was kept.", failed=True)
            self.rows = []
        if found is None:
            print(self.status)
        return found

    def result(self) -> Atlas:
        """The last atlas of this panel; if there is none yet, it's measured now. One under way is waited for.

        Raises LabError, in one sentence, if that fails.
        """
        self._wait("Waiting for the atlas that is being measured in the panel; Cancel ends it.")
        if self.found is None and self.run() is None:
            raise LabError(
                "So there is no result here. Mend what the line above says, and run this cell again."
            )
        return self.found

    def _receive(self, _widget: Any, message: dict, _buffers: Any) -> None:
        {"run": self.press_run, "cancel": self.press_cancel}.get(message.get("do"), lambda: None)()

    def _begin(self) -> None:
        self._cancel = threading.Event()
        self.busy, self.failed, self.done, self.current = True, False, 0, ""
        self.status, self.detail, self.summary = "Running …", "", ""
        self.rows, self.advice = [], []

    def _measure(self) -> Atlas | None:
        growth = _Growth(self)
        try:
            found = sweep(
                self._ops,
                device=self._device,
                budget=self._budget,
                on_start=growth.start,
                on_row=growth.add,
                on_wait=growth.wait,
                cancel=self._cancel,
            )
        except (BadSetting, runner.RunFailed) as error:
            growth.show()
            self._end(str(error), failed=True, detail=getattr(error, "detail", ""))
            return None
        except Exception as error:
            # A defect of ours must still end in a sentence, with what it takes to mend it.
            self._end(
                f"Same Bits failed ({type(error).__name__}). Please report it.", True, traceback.format_exc()
            )
            return None
        growth.show()
        self.found = found
        self.summary = found.summary
        self.advice = [{"advice": advice, "ops": names} for advice, names in found.advice]
        kept = f"Cancelled after {len(found.rows)} of {found.asked} ops; they are kept."
        self._end(kept if found.cancelled else f"All {found.asked} ops are measured.")
        return found

    def _end(self, status: str, failed: bool = False, detail: str = "") -> None:
        self.failed, self.status, self.detail, self.current = failed, status, detail, ""
        self.busy = False  # last: from here on, another run may begin


def atlas(ops: Iterable[str] | None = None, device: str = "auto", budget: float = BUDGET) -> AtlasPanel:
    """The panel of the op atlas.

    ops     names and groups of ops; all where there are none
    device  "auto", "cpu" or "cuda"
    budget  seconds of looking for a difference, for each op that can race and was not seen to

    Raises BadSetting, in one sentence, for a name that does not exist or a budget that is none.
    """
    return AtlasPanel(ops, device, budget)


class _Growth:
    """The table of a sweep that is still going on, sent to the browser a few times a second."""

    def __init__(self, panel: AtlasPanel):
        self._panel = panel
        self._rows: list[dict] = []
        self._next = 0.0

    def start(self, op: Op) -> None:
        self._panel.current = op.name
        if self._panel.status != "Cancelling …":
            self._panel.status = "Running …"

    def wait(self, sentence: str) -> None:
        if not self._panel._cancel.is_set():
            self._panel.status = sentence

    def add(self, row: Row) -> None:
        self._rows.append(_row(row))
        if row.off and not self._panel.source:
            source = row.off.source
            self._panel.source = {"kind": source.kind, "where": source.where, "date": source.date[:10]}
        if time.monotonic() >= self._next:
            self.show()
            self._next = time.monotonic() + REFRESH

    def show(self) -> None:
        self._panel.rows, self._panel.done = list(self._rows), len(self._rows)


def _row(row: Row) -> dict[str, Any]:
    """A row for the browser: words, and the first runs as numbers of tile colours."""
    verdicts = []
    if row.off:
        verdicts.append(f"Without the flag: {_inner(row.off)}")
    if row.on:
        verdicts.append(f"Under the flag: {_inner(row.on)}")
    if row.kernel:
        verdicts.append(f"Under the flag: an error that names {row.kernel}.")
    return {
        "op": row.op,
        "group": row.group,
        "line": row.line,
        "failed": row.failed,
        "without": _of(row.off),
        "strip": _strip(row.off),
        "under": "raises" if row.kernel else _of(row.on),
        "strip_under": _strip(row.on),
        "varies": [row.varies, row.varies_under_flag],
        "kernel": row.kernel,
        "price": row.costs if row.priced else "" if row.price is None else "≈ 1",
        "listed": row.listed,
        "agreement": row.agreement,
        "says": row.says,
        "quoted": [entry.text for entry in row.documented],
        "verdicts": verdicts,
        "advice": row.advice,
        "interesting": row.interesting,
    }


def _of(runs: Runs | None) -> str:
    return f"{runs.distinct:,} of {len(runs.observations):,}" if runs else ""


def _inner(runs: Runs) -> str:
    sentence = runs.verdict.sentence
    return sentence[0].lower() + sentence[1:]


def _strip(runs: Runs | None) -> str:
    """The first runs, each as the number of its tile's colour."""
    if runs is None:
        return ""
    numbers: dict[str, int] = {}
    letters = variability.letters(runs.fingerprints[:STRIP])
    return "".join(str(numbers.setdefault(letter, len(numbers)) % len(TILE_COLOURS)) for letter in letters)
