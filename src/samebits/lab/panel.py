"""The panel: an experiment's knobs, Run and Cancel, and one wall of tiles for each run, the latest last."""

from __future__ import annotations

import statistics
import threading
import time
import traceback
from typing import Any

import anywidget
import traitlets

from samebits import experiments, runner
from samebits.experiment import BadSetting, Experiment, Knob, Observation, Runs, Source
from samebits.lab.background import Background
from samebits.lab.errors import LabError
from samebits.lab.theme import CSS, JS, STATIC
from samebits.lab.tiles import wall

REFRESH = 0.15  # seconds between two updates of the wall while a run goes on
BUDGET = 60.0
ROWS = 12  # earlier runs that stay above the latest one


class Panel(Background, anywidget.AnyWidget):
    """One experiment as a panel. A click runs it in the background; `run()` runs it in the calling cell.

    runs    every finished Runs, oldest first
    """

    _esm = JS + (STATIC / "panel.js").read_text(encoding="utf-8")
    _css = CSS + (STATIC / "panel.css").read_text(encoding="utf-8")

    spec = traitlets.Dict().tag(sync=True)
    values = traitlets.Dict().tag(sync=True)
    repeats = traitlets.Int().tag(sync=True)
    until_different = traitlets.Bool(False).tag(sync=True)
    code = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
    done = traitlets.Int(0).tag(sync=True)
    status = traitlets.Unicode("").tag(sync=True)
    failed = traitlets.Bool(False).tag(sync=True)
    detail = traitlets.Unicode("").tag(sync=True)
    rows = traitlets.List(traitlets.Dict()).tag(sync=True)
    growing = traitlets.Dict(allow_none=True, default_value=None).tag(sync=True)

    def __init__(self, experiment: str | Experiment, **settings: Any):
        self.experiment = experiments.find(experiment) if isinstance(experiment, str) else experiment
        self._reference = experiment if isinstance(experiment, str) else experiment.name
        self.runs: list[Runs] = []
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None
        values = self.experiment.settings(**settings)
        super().__init__(
            spec=_spec(self.experiment),
            values=values,
            repeats=self.experiment.repeats,
            code=self.experiment.code(values),
        )
        self.on_msg(self._receive)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        runner.warm(self.experiment, self.values)  # while the learner reads the question, a worker gets ready
        return super()._repr_mimebundle_(**options)

    def __repr__(self) -> str:
        return f"The panel of {self.experiment.name}: {self.experiment.question}"

    def set(self, **settings: Any) -> None:
        """Turn knobs from Python. Raises BadSetting."""
        self._apply(self.values | settings)

    def run(self, **settings: Any) -> Runs | None:
        """Run now, in this cell, with these knobs turned; None if it failed or was interrupted, which it says."""
        if self.busy:
            print("This panel is running already. Cancel that run, or wait until it has ended.")
            return None
        try:
            self.set(**settings)
        except BadSetting as error:
            print(error)
            return None
        runs = None
        try:
            self._begin()
            runs = self._measure()
        except KeyboardInterrupt:
            self._end("Stopped by interrupting the kernel. Nothing of this run was kept.", failed=True)
        if runs is None:
            print(self.status)
        return runs

    def result(self) -> Runs:
        """The last run of this panel; if there is none yet, it runs once now. A run that goes on is waited for.

        Raises LabError, in one sentence, if that run fails.
        """
        self._wait("Waiting for the run that goes on in the panel; Cancel ends it.")
        if not self.runs and self.run() is None:
            raise LabError(
                "So there is no result here. Mend what the line above says, and run this cell again."
            )
        return self.runs[-1]

    def _receive(self, _widget: Any, message: dict, _buffers: Any) -> None:
        if message.get("do") == "cancel":
            self.press_cancel()
            return
        try:
            self._apply(self.values | (message.get("values") or {}))
            if "repeats" in message:
                self.repeats = _count(message["repeats"])
            self.until_different = bool(message.get("until_different", self.until_different))
        except BadSetting as error:
            self.failed, self.status = True, str(error)
            self.send({"do": "show"})  # the controls go back to the settings that hold
            return
        if message.get("do") == "run":
            self.press_run()

    def _apply(self, values: dict) -> None:
        values = self.experiment.settings(**values)
        self.values, self.code = values, self.experiment.code(values)
        if not self.busy:
            self.failed, self.status, self.detail = False, "", ""

    def _begin(self) -> None:
        self._cancel = threading.Event()
        self.busy, self.failed, self.done, self.status, self.detail = True, False, 0, "Running …", ""

    def _measure(self) -> Runs | None:
        growth = _Growth(self)
        try:
            runs = runner.run(
                self._reference,
                self.values,
                repeats=self.repeats,
                budget=BUDGET,
                until_different=self.until_different,
                on_start=growth.start,
                on_observation=growth.add,
                on_wait=lambda sentence: setattr(self, "status", sentence),
                cancel=self._cancel,
            )
        except (BadSetting, runner.RunFailed) as error:
            self._end(str(error), failed=True, detail=getattr(error, "detail", ""))
            return None
        except Exception as error:
            # A defect of ours must still end in a sentence, with what it takes to mend it.
            self._end(
                f"Same Bits failed ({type(error).__name__}). Please report it.", True, traceback.format_exc()
            )
            return None
        before = self.runs[-1] if self.runs else None
        self.runs.append(runs)
        summary = self.experiment.summary(runs)
        measured = (
            [] if summary else [_bits(runs, before), _values(runs), _compared(runs, before, self.experiment)]
        )
        note = " · ".join(filter(None, [_seen(runs), runs.reported, *measured]))
        row = wall(runs) | {"title": self._title(runs, before), "summary": summary, "note": note}
        self.rows = [*self.rows, row][-ROWS:]
        self._end(_ended(runs, self.repeats))
        return runs

    def _end(self, status: str, failed: bool = False, detail: str = "") -> None:
        self.growing = None
        self.failed, self.status, self.detail = failed, status, detail
        self.busy = False  # last: from here on, another run may begin

    def _title(self, runs: Runs, before: Runs | None) -> str:
        """The settings in words: all of them for the first row, then what changed."""
        changed = [
            k for k in self.experiment.knobs if before is None or runs.asked[k.name] != before.asked[k.name]
        ]
        return " · ".join(f"{k.label}: {_taken(k, runs)}" for k in changed) or "The same settings again"


def panel(experiment: str | Experiment, **settings: Any) -> Panel:
    """The panel of an experiment, with these knobs turned already.

    Raises BadSetting, in one sentence, for an experiment, knob or value that does not exist.
    """
    return Panel(experiment, **settings)


class _Growth:
    """The wall of a run that is still going on, sent to the browser a few times a second."""

    def __init__(self, panel: Panel):
        self._panel = panel
        self._observations: list[Observation] = []
        self._source: Source | None = None
        self._next = 0.0

    def start(self, seen: Any, source: Source) -> None:
        self._source = source
        self._panel.status = "Running …"

    def add(self, observation: Observation) -> None:
        self._observations.append(observation)
        if time.monotonic() < self._next:
            return
        start = time.monotonic()
        fingerprints = [observation.fingerprint for observation in self._observations]
        self._panel.done = len(self._observations)
        self._panel.growing = wall(fingerprints, self._source)
        # Drawing ten thousand runs takes a while; it must never hold up the run that it shows.
        self._next = time.monotonic() + max(REFRESH, 10 * (time.monotonic() - start))


def _spec(experiment: Experiment) -> dict:
    return {
        "name": experiment.name,
        "title": experiment.title,
        "question": experiment.question,
        "knobs": [
            {
                "name": knob.name,
                "label": knob.label,
                "help": knob.help,
                "kind": knob.kind,
                "choices": list(knob.choices),
                "low": knob.low,
                "high": knob.high,
                "fresh": knob.scope == "process",
            }
            for knob in experiment.knobs
        ],
    }


def _count(value: Any) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        count = 0
    if not 1 <= count <= 1000:
        raise BadSetting(f"The number of runs goes from 1 to 1000 and cannot be {value!r}.")
    return count


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _taken(knob: Knob, runs: Runs) -> str:
    """What was asked of a knob, and what was taken instead where the worker saw another value."""
    asked, seen = runs.asked[knob.name], runs.seen.get(knob.name)
    comparable = knob.kind == "number" or str(asked).isdigit() or asked == "auto"
    if seen is None or not comparable or str(seen) == str(asked):
        return _word(asked)
    return f"{_word(asked)} ({_word(seen)} was taken)"


def _bits(runs: Runs, before: Runs | None) -> str:
    """Whether the row above has these bits, which letters cannot tell: each row has an A of its own.

    Nothing is said where the two rows had other inputs.
    """
    if before is None or {o.input for o in runs.observations} != {o.input for o in before.observations}:
        return ""
    answers, earlier = set(runs.fingerprints), set(before.fingerprints)
    common = len(answers & earlier)
    if len(answers) == len(earlier) == 1:
        return "the same bits as the row above" if common else "other bits than the row above"
    if not common:
        return "no answer shared with the row above"
    return f"{common} of {len(answers)} answer{'s' * (len(answers) > 1)} also in the row above"


def _values(runs: Runs) -> str:
    """The first scalar of the runs, from the least to the greatest, with all digits that a float32 has."""
    name = next(iter(runs.observations[0].scalars), None)
    values = runs.scalars(name) if name else []
    if not values:
        return ""
    low, high = f"{min(values):.9g}", f"{max(values):.9g}"
    return f"{name} {low}" if low == high else f"{name} {low} to {high}"


def _ended(runs: Runs, repeats: int) -> str:
    count = len(runs.observations)
    if runs.ended == "cancelled":
        return f"Cancelled after {count} of {repeats} runs; they are kept."
    if runs.ended == "budget":
        return f"Ended after {BUDGET:g} seconds, with {count} runs."
    return ""


def _seen(runs: Runs) -> str:
    """The settings as the worker saw them take effect."""
    return (
        "seen: " + ", ".join(f"{name} {_word(value)}" for name, value in runs.seen.items())
        if runs.seen
        else ""
    )


def _compared(runs: Runs, before: Runs | None, experiment: Experiment) -> str:
    """How long it took, and how that compares with the row above when both were measured and one knob changed."""
    if runs.source.kind != "LIVE" or len(runs.seconds) < 2:
        return ""
    median = statistics.median(runs.seconds)
    note = f"median {_duration(median)} a run"
    if before is not None and before.source.kind == "LIVE" and len(before.seconds) >= 5:
        changed = [k.name for k in experiment.knobs if runs.asked[k.name] != before.asked[k.name]]
        earlier = statistics.median(before.seconds)
        if len(changed) == 1 and earlier > 0:
            ratio = median / earlier
            note += f", {f'{ratio:.2g}' if ratio < 99.5 else f'{ratio:,.0f}'} times the row above"
    return note


def _duration(seconds: float) -> str:
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
