"""The learner's own progress: predictions, first answers and best points, in one JSON file.

    progress.json = {"version": 1,
                     "predictions": {"02-letters": {"option": "few", "measured": 17, "when": "2026-…"}},
                     "answers":     {"02-q1": {"option": "a", "when": "2026-…"}},
                     "exercises":   {"02-block-tree": {"points": 2, "of": 3, "when": "2026-…"}}}

The file lies in the user's data folder, or in $SAMEBITS_DATA. Several notebooks write it at once, so each
change reads the newest file, changes one entry and replaces the file, all under a lock. Nothing that goes
wrong here may stop a lesson: the store keeps the change in memory, and `notice` says so, once.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import platformdirs

VERSION = 1
SECTIONS = ("predictions", "answers", "exercises")
LOCK_SECONDS = 2.0

State = dict[str, Any]
Change = Callable[[State], None]


def store() -> Store:
    """The store of this kernel for the folder that $SAMEBITS_DATA names, else for the user's data folder."""
    folder = Path(os.environ.get("SAMEBITS_DATA") or platformdirs.user_data_dir("samebits", appauthor=False))
    return _stores.setdefault(folder, Store(folder))


class Store:
    """Progress kept in `folder`/progress.json; entries of the wrong type in it count as missing."""

    def __init__(self, folder: Path):
        self.path = Path(folder) / "progress.json"
        # What could not be written yet; read together with the file, and written with the next change.
        self._pending: list[Change] = []
        self._notices: list[str] = []
        self._said: set[str] = set()

    # What the lab asks.

    def predicted(self, prediction: str) -> str | None:
        """The id of the option committed to, or None."""
        return self._text("predictions", prediction, "option")

    def measured(self, prediction: str) -> Any:
        """The measurement that the prediction was held against, or None."""
        return self._entry("predictions", prediction).get("measured")

    def answered(self, question: str) -> str | None:
        """The id of the first option answered with, or None."""
        return self._text("answers", question, "option")

    def best(self, exercise: str) -> float | None:
        """The most points that a check of the exercise gave, or None if it was never checked."""
        return _points(self._entry("exercises", exercise))

    def notice(self) -> str:
        """What went wrong with the file since the last call, each thing once; empty when all is well."""
        self._state()
        notice = " ".join(self._notices)
        self._notices.clear()
        return notice

    def tell(self) -> None:
        """Print the notice, if there is one."""
        if notice := self.notice():
            print(notice)

    # What the lab writes.

    def predict(self, prediction: str, option: str) -> None:
        """Commit to an option; an earlier commitment stands."""
        self._write(lambda state: _first(state["predictions"], prediction, option))

    def measure(self, prediction: str, measured: Any) -> None:
        self._write(lambda state: _at(state["predictions"], prediction).update(measured=_plain(measured)))

    def answer(self, question: str, option: str) -> None:
        """Record the first answer; a later one changes nothing."""
        self._write(lambda state: _first(state["answers"], question, option))

    def earn(self, exercise: str, points: float, of: int) -> None:
        """Record the points of a check; the best ones stay."""

        def change(state: State) -> None:
            entry = _at(state["exercises"], exercise)
            best = _points(entry)
            if best is None or points > best:
                entry.update(points=points, of=of, when=_now())

        self._write(change)

    # How it is kept.

    def _write(self, change: Change) -> None:
        self._pending.append(change)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._lock():
                state = self._load()
                for pending in self._pending:
                    pending(state)
                _replace(self.path, state)
        except filelock.Timeout:
            self._say(
                f"Another program holds {self.path}.lock, so your progress is kept in this kernel and written "
                "with your next answer; if that persists, close other notebooks."
            )
        except (OSError, NotImplementedError) as error:
            self._say(
                f"Your progress is kept until this kernel stops: {self.path.parent} cannot be written "
                f"({_reason(error)}). Set SAMEBITS_DATA to a folder of yours to keep it."
            )
        else:
            self._pending.clear()

    def _lock(self) -> filelock.BaseFileLock:
        return filelock.FileLock(f"{self.path}.lock", timeout=LOCK_SECONDS)

    def _state(self) -> State:
        """The file as it is now, with what is still to be written; replacing is atomic, so no lock."""
        try:
            state = _read(self.path)
        except _Corrupt:
            state = self._recover()
        except OSError as error:
            self._say(f"Your progress cannot be read from {self.path} ({_reason(error)}).")
            state = _complete({})
        for change in self._pending:
            change(state)
        return state

    def _recover(self) -> State:
        """Set a corrupt file aside under the lock, since another kernel may be mending it already."""
        try:
            with self._lock():
                return self._load()
        except (OSError, NotImplementedError) as error:
            self._say(f"{self.path} is not readable as progress and cannot be set aside ({_reason(error)}).")
            return _complete({})

    def _load(self) -> State:
        """The file's state; a corrupt file is moved aside first. Needs the lock."""
        try:
            return _read(self.path)
        except _Corrupt:
            aside = _free_name(self.path.with_name(f"progress.corrupt-{_now()[:10]}.json"))
            os.replace(self.path, aside)
            self._say(
                f"Your progress file could not be read; it is kept as {aside}, and a new one was begun."
            )
            return _complete({})

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._notices.append(sentence)

    def _entry(self, section: str, name: str) -> dict[str, Any]:
        entry = self._state()[section].get(name)
        return entry if isinstance(entry, dict) else {}

    def _text(self, section: str, name: str, field: str) -> str | None:
        value = self._entry(section, name).get(field)
        return value if isinstance(value, str) else None


_stores: dict[Path, Store] = {}


class _Corrupt(Exception):
    """The file is there but holds no JSON object."""


def _read(path: Path) -> State:
    """The state in the file; an empty one where there is no file. Raises _Corrupt and OSError."""
    try:
        state = json.loads(path.read_bytes())
    except FileNotFoundError:
        return _complete({})
    except (ValueError, RecursionError) as error:
        raise _Corrupt from error
    if not isinstance(state, dict):
        raise _Corrupt
    return _complete(state)


def _complete(state: State) -> State:
    """The state with every section; what a newer version of the course added is carried along untouched."""
    state.setdefault("version", VERSION)
    for section in SECTIONS:
        if not isinstance(state.get(section), dict):
            state[section] = {}
    return state


def _replace(path: Path, state: State) -> None:
    """Write beside the file and rename, so that a reader or a crash never meets half a file."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix="progress.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(state, file, indent=1, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _at(section: dict[str, Any], name: str) -> dict[str, Any]:
    if not isinstance(section.get(name), dict):
        section[name] = {}
    return section[name]


def _first(section: dict[str, Any], name: str, option: str) -> None:
    entry = _at(section, name)
    if not isinstance(entry.get("option"), str):
        entry.update(option=option, when=_now())


def _points(entry: dict[str, Any]) -> float | None:
    points = entry.get("points")
    number = isinstance(points, int | float) and not isinstance(points, bool) and math.isfinite(points)
    return points if number else None


def _plain(value: Any) -> Any:
    """A measurement as JSON can hold it: a number, a truth value, else its text."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, bool | int | float) else str(value)


def _free_name(path: Path) -> Path:
    """`path`, or with a number before its suffix where earlier corrupt files have taken the name."""
    candidate, number = path, 2
    while candidate.exists():
        candidate = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return candidate


def _reason(error: BaseException) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
