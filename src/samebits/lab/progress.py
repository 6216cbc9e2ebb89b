"""The learner's own progress: predictions, first answers and best points, in one JSON file.

    progress.json = {"version": 1,
                     "predictions": {"02-letters": {"option": "few", "measured": 17, "when": "2026-…"}},
                     "answers":     {"02-q1": {"option": "a", "when": "2026-…"}},
                     "exercises":   {"02-block-tree": {"points": 2, "of": 3, "when": "2026-…"}}}

The file lies in the user's data folder, or in $SAMEBITS_DATA. Several notebooks write it at once, so each
change reads the newest file, changes one entry and replaces the file, all under a lock. The file outlives
editions of the course: whatever this one does not know stays in it. Nothing that goes wrong here may stop a
lesson: the store keeps the change in memory, and `notice` says so, once.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import platformdirs

VERSION = 1
SECTIONS = ("predictions", "answers", "exercises")
LOCK_SECONDS = 2.0
# A lock that was waited for in vain is only tried, not waited for, during the next seconds: a card reads and
# writes many times, and a learner should wait once.
NO_WAIT_SECONDS = 10.0

State = dict[str, Any]
Change = Callable[[State], None]


def store() -> Store:
    """The store of this kernel for the folder that $SAMEBITS_DATA names, else for the user's data folder.

    A relative $SAMEBITS_DATA begins at the home folder: a kernel works in the folder of its notebook, and
    lessons and labs would not share their progress.
    """
    named = os.environ.get("SAMEBITS_DATA") or platformdirs.user_data_dir("samebits", appauthor=False)
    folder = Path(os.path.expanduser("~"), os.path.expanduser(named))
    return _stores.setdefault(folder, Store(folder))


class Kept:
    """What a learner has done; entries of the wrong type count as missing.

    Ids come as they were written: the course may have dropped or renamed them since.
    """

    def _state(self) -> State:
        raise NotImplementedError

    def predicted(self, prediction: str) -> str | None:
        """The id of the option committed to, or None."""
        return self._text("predictions", prediction, "option")

    def measured(self, prediction: str) -> Any:
        """The measurement that the prediction was held against (number, truth value or text), or None."""
        measured = self._entry("predictions", prediction).get("measured")
        if isinstance(measured, str):
            return _printable(measured)
        return measured if isinstance(measured, bool | int | float) else None

    def answered(self, question: str) -> str | None:
        """The id of the first option answered with, or None."""
        return self._text("answers", question, "option")

    def best(self, exercise: str) -> float | None:
        """The most points that a check of the exercise gave, or None if it was never checked."""
        return _points(self._entry("exercises", exercise))

    def _entry(self, section: str, name: str) -> dict[str, Any]:
        entry = self._state()[section].get(name)
        return entry if isinstance(entry, dict) else {}

    def _text(self, section: str, name: str, field: str) -> str | None:
        value = self._entry(section, name).get(field)
        return value if isinstance(value, str) else None


class Snapshot(Kept):
    """Progress as it was at one moment."""

    def __init__(self, state: State):
        self._taken = state

    def _state(self) -> State:
        return self._taken


class Store(Kept):
    """Progress kept in `folder`/progress.json: each question reads the file as it is now."""

    def __init__(self, folder: Path):
        self._folder = Path(folder)
        # What could not be written yet; read together with the file, and written with the next change.
        self._pending: list[Change] = []
        self._notices: list[str] = []
        self._said: set[str] = set()
        # The file lock is between kernels; this one is between the threads of a kernel.
        self._threads = threading.Lock()
        self._no_wait_until = 0.0

    @property
    def path(self) -> Path:
        """The file itself: where progress.json is a link, the file that it leads to, so the link stays."""
        return Path(os.path.realpath(self._folder / "progress.json"))

    # What the lab asks.

    def snapshot(self) -> Snapshot:
        """Everything as it is now, for whoever asks many questions: the file is read once."""
        return Snapshot(self._state())

    def notice(self) -> str:
        """What went wrong with the file since the last call, each thing once; empty when all is well."""
        with self._threads:
            notice = " ".join(self._notices)
            self._notices.clear()
        return notice

    def tell(self) -> None:
        """Print the notice, if there is one."""
        if notice := self.notice():
            print(notice)

    # What the lab writes.

    def predict(self, prediction: str, option: str, known: Sequence[str]) -> None:
        """Commit to an option; an earlier commitment stands if it is one of the `known` options' ids."""
        self._write(lambda state: _first(state["predictions"], prediction, option, known))

    def measure(self, prediction: str, measured: Any) -> None:
        self._write(lambda state: _at(state["predictions"], prediction).update(measured=_plain(measured)))

    def answer(self, question: str, option: str, known: Sequence[str]) -> None:
        """Record the first answer; it stands as long as it is one of the `known` options' ids."""
        self._write(lambda state: _first(state["answers"], question, option, known))

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
        with self._threads:
            self._pending.append(change)
            self._flush()

    def _flush(self) -> None:
        """Write what is pending, or say why it cannot be written."""
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
        except (OSError, NotImplementedError, ValueError, RecursionError) as error:
            # The last two: JSON reads some values, such as very deep lists, that it cannot write.
            self._say(
                f"Your progress is kept until this kernel stops: {self.path.parent} cannot be written "
                f"({_reason(error)}). Set SAMEBITS_DATA to a folder of yours to keep it."
            )
        else:
            self._pending.clear()

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the file's lock. Raises filelock.Timeout, and does not wait again for a while after it."""
        seconds = LOCK_SECONDS if time.monotonic() >= self._no_wait_until else 0
        try:
            with filelock.FileLock(f"{self.path}.lock", timeout=seconds):
                yield
        except filelock.Timeout:
            if seconds:
                self._no_wait_until = time.monotonic() + NO_WAIT_SECONDS
            raise

    def _state(self) -> State:
        """The file as it is now, with what is still to be written."""
        with self._threads:
            return self._merged()

    def _merged(self) -> State:
        # No file lock: replacing is atomic.
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
        except filelock.Timeout:
            self._say(
                f"{self.path} is not readable as progress, and another program holds its lock; it is set aside "
                "as soon as the lock is free."
            )
            return _complete({})
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
            self._notices.append(_printable(sentence))


_stores: dict[Path, Store] = {}


class _Corrupt(Exception):
    """The file is there but holds no JSON object."""


def _read(path: Path) -> State:
    """The state in the file; an empty one where there is no file. Raises _Corrupt and OSError."""
    try:
        # Reading a pipe would wait for ever, and a device must be neither set aside nor replaced.
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "It is no regular file")
        state = json.loads(path.read_bytes())
    except FileNotFoundError:
        return _complete({})
    except (ValueError, RecursionError) as error:
        raise _Corrupt from error
    if not isinstance(state, dict):
        raise _Corrupt
    return _complete(state)


def _complete(state: State) -> State:
    """The state with every section; what another edition of the course put there is carried along."""
    state.setdefault("version", VERSION)
    for section in SECTIONS:
        if not isinstance(state.setdefault(section, {}), dict):
            state[f"unreadable {section}"] = state[section]
            state[section] = {}
    return state


def _replace(path: Path, state: State) -> None:
    """Write beside the file and rename, so that a reader or a crash never meets half a file. Needs the lock.

    A kernel that is killed here leaves its temporary file; having one name, it is the next write's.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="ascii", opener=_private) as file:
            # ASCII, with escapes, holds whatever was read, even half of a surrogate pair.
            json.dump(state, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def _at(section: dict[str, Any], name: str) -> dict[str, Any]:
    entry = section.setdefault(name, {})
    if not isinstance(entry, dict):
        section[name] = {"unreadable": entry}
    return section[name]


def _first(section: dict[str, Any], name: str, option: str, known: Sequence[str]) -> None:
    entry = _at(section, name)
    if entry.get("option") not in known:
        entry.update(option=option, when=_now())


def _points(entry: dict[str, Any]) -> float | None:
    """The entry's points, if they are a number that a float can hold."""
    points = entry.get("points")
    number = isinstance(points, int | float) and not isinstance(points, bool)
    return points if number and 0 <= points <= sys.float_info.max else None


def _plain(value: Any) -> Any:
    """A measurement as JSON can hold it: a number, a truth value, else its text."""
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, bool | int | float) else str(value)


def _printable(text: str) -> str:
    """Half of a surrogate pair, as in a file name that is no UTF-8, can be neither printed nor sent."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _free_name(path: Path) -> Path:
    """`path`, or with a number before its suffix where earlier corrupt files have taken the name."""
    candidate, number = path, 2
    while candidate.exists():
        candidate = path.with_stem(f"{path.stem}-{number}")
        number += 1
    return candidate


def _reason(error: BaseException) -> str:
    if strerror := getattr(error, "strerror", None):
        return strerror.lower()
    return str(error) or type(error).__name__


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
