"""Runs experiments in worker processes: environment, progress, cancel, budget, the queue for a shared card.

    runs = run("scatter", {"deterministic": True}, repeats=20)

At most two workers are alive in one kernel ($SAMEBITS_WORKERS sets another number); the least recently used
one goes when a new one is needed, all go when idle, and all die with the kernel.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import importlib.util
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

import samebits
from samebits import experiments, machine
from samebits.experiment import Experiment, Observation, Runs, Source

IDLE_SECONDS = 300  # after which an unused worker gives its memory back
PATIENCE = 120  # seconds without any answer after which a worker counts as hung
GRACE = 0.7  # seconds that a cancelled run has to end by itself before its worker is killed


class RunFailed(RuntimeError):
    """A run that gave no result. The message is one sentence for a person; `detail` may hold a traceback."""

    def __init__(self, sentence: str, detail: str = ""):
        super().__init__(sentence)
        self.detail = detail

    def _render_traceback_(self) -> list[str]:
        return [str(self)]  # in a notebook: the sentence, without frames of ours


@dataclass(frozen=True)
class Place:
    """What a worker must be like: interpreter, the complete environment, what it imports while it waits."""

    interpreter: str
    environment: tuple[tuple[str, str], ...]
    framework: str | None
    process_settings: tuple[tuple[str, Any], ...] = ()


def run(
    experiment: str | Experiment,
    settings: Mapping[str, Any] | None = None,
    *,
    repeats: int | None = None,
    budget: float = 60.0,
    until_different: bool = False,
    on_start: Callable[[Mapping[str, Any], Source], None] = lambda seen, source: None,
    on_observation: Callable[[Observation], None] = lambda observation: None,
    on_wait: Callable[[str], None] = lambda sentence: None,
    cancel: threading.Event | None = None,
    patience: float = PATIENCE,
) -> Runs:
    """Observe `experiment` `repeats` times under `settings` and return what was seen.

    budget           seconds of measuring, shared by the processes, after which the run ends with what it has
                     (at least one observation in each process)
    until_different  go on after `repeats` until two fingerprints differ or the budget ends
    on_start         called with the settings that the worker sees and the source of its numbers
    on_observation   called with each observation as it arrives
    on_wait          called with a sentence while a worker starts or gets ready, or other runs have the card
    cancel           set it from another thread to end the run; what was observed until then is returned

    Raises BadSetting for settings that the experiment does not have, and RunFailed, with one sentence, if no
    result came about.
    """
    name = experiment if isinstance(experiment, str) else experiment.name
    experiment = experiments.find(experiment) if isinstance(experiment, str) else experiment
    asked = experiment.settings(**(settings or {}))
    repeats = experiment.repeats if repeats is None else repeats
    if repeats < 1:
        raise RunFailed(f"A run needs at least one repeat, not {repeats}.")
    if not budget > 0:
        raise RunFailed(f"A run needs a budget of more than 0 seconds, not {budget:g}.")
    cancel = cancel or threading.Event()
    place = _place(experiment, asked)
    # A search for a difference needs every process, however few repeats were asked for.
    shares = _shares(max(repeats, experiment.processes) if until_different else repeats, experiment.processes)

    observations: list[Observation] = []
    used: list[Worker] = []
    prepared: dict[str, Any] = {}
    ended = "repeats"
    with _POOL.turn(cancel, on_wait), _card_turn(experiment.card(asked), cancel, on_wait):
        for process, share in enumerate(shares):
            if cancel.is_set():
                break
            with _POOL.worker(place, on_wait, other_than=used, fresh=experiment.fresh) as worker:
                used.append(worker)
                request = {
                    "do": "run",
                    "experiment": name,
                    "settings": asked,
                    "repeats": share,
                    "budget": max(0.0, budget / (len(shares) - process)),
                    "until_different": until_different and process == len(shares) - 1,
                    "known": [observation.fingerprint for observation in observations],
                }
                started = None
                with contextlib.closing(worker.ask(request, cancel, patience)) as answers:
                    for answer in answers:
                        if "wait" in answer:
                            on_wait(answer["wait"])
                        elif "prepared" in answer:
                            started = time.monotonic()  # starting a process is not measuring
                            if not prepared:
                                prepared = answer["prepared"]
                                on_start(prepared["seen"], Source(**prepared["source"]))
                        elif "observation" in answer:
                            observation = _observation(answer["observation"], process)
                            observations.append(observation)
                            on_observation(observation)
                        elif "done" in answer and (answer["done"] != "repeats" or ended != "budget"):
                            ended = answer["done"]
                budget -= time.monotonic() - started if started else 0
    if cancel.is_set():
        ended = "cancelled"
    if not observations:
        raise RunFailed("The run was cancelled before its first observation.")
    return Runs(
        experiment=experiment.name,
        asked=asked,
        seen=prepared["seen"],
        source=Source(**prepared["source"]),
        observations=tuple(observations),
        per_process=experiment.processes > 1,
        ended=ended,
    )


def call(
    function: str,
    arguments: Mapping[str, Any],
    *,
    environment: Mapping[str, str | None] | None = None,
    framework: str | None = None,
    fresh: bool = False,
    seconds: float = 30.0,
) -> Any:
    """Call "package.module:function" with JSON `arguments` in a worker and return its JSON result.

    For a learner's code that needs a framework or may never end: the worker is killed after `seconds`.
    fresh: it is a new one, and ends after this call. Raises RunFailed with one sentence.
    """
    place = _at(environment or {}, framework)
    cancel = threading.Event()
    with (
        _POOL.turn(cancel, lambda sentence: None),
        _POOL.worker(place, lambda sentence: None, fresh=fresh) as worker,
    ):
        request = {"do": "call", "function": function, "arguments": dict(arguments)}
        with contextlib.closing(worker.ask(request, cancel, seconds)) as answers:
            # Read to the end: a worker whose answers nobody reads is killed.
            results = [answer["result"] for answer in answers if "result" in answer]
    if not results:
        raise RunFailed("The worker ended without an answer. Run the cell again.")
    return results[0]


def warm(experiment: Experiment, settings: Mapping[str, Any] | None = None) -> None:
    """Start the workers that a run under these settings will want, where there is room; returns at once."""
    if not experiment.fresh:
        with contextlib.suppress(
            RunFailed, OSError
        ):  # the run that follows meets the same fault, and says so
            _POOL.warm(_place(experiment, experiment.settings(**(settings or {}))), experiment.processes)


def close() -> None:
    """End every worker of this kernel."""
    _POOL.close()


def _shares(repeats: int, processes: int) -> list[int]:
    """How many runs each process makes: as even as can be, none empty."""
    processes = min(processes, repeats)
    return [repeats // processes + (i < repeats % processes) for i in range(processes)]


def _observation(data: dict[str, Any], process: int) -> Observation:
    return Observation(**(data | {"process": process, "sample": tuple(data["sample"])}))


def _place(experiment: Experiment, settings: Mapping[str, Any]) -> Place:
    scoped = tuple((knob.name, settings[knob.name]) for knob in experiment.knobs if knob.scope == "process")
    return _at(experiment.variables(settings), experiment.framework, scoped)


def _at(
    variables: Mapping[str, str | None],
    framework: str | None,
    process_settings: tuple[tuple[str, Any], ...] = (),
) -> Place:
    environment = dict(os.environ)
    for name, value in variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    source = str(Path(samebits.__file__).parents[1])
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH", "")]))
    environment["PYTHONSAFEPATH"] = "1"  # a learner's json.py in the current folder must not be imported
    environment["PYTHONUNBUFFERED"] = "1"
    return Place(_interpreter(framework), tuple(sorted(environment.items())), framework, process_settings)


def _interpreter(framework: str | None) -> str:
    """The Python for a framework: TensorFlow has its own, since its GPU libraries and PyTorch's clash."""
    if framework != "tensorflow":
        return sys.executable
    python = machine.tensorflow_python()
    if python == sys.executable and importlib.util.find_spec("tensorflow") is None:
        raise RunFailed(
            "TensorFlow is not installed; ./course tensorflow makes an environment for it beside this one."
        )
    if shutil.which(python) is None:
        raise RunFailed(f"SAMEBITS_TF_PYTHON names {python!r}, which cannot be run. Correct it, or unset it.")
    return python


class Worker:
    """One worker process and the pipes to it."""

    def __init__(self, place: Place):
        self.place = place
        self.used = time.monotonic()
        self.busy = False
        self._process: subprocess.Popen | None = None
        self._lifeline: int | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._last_words: collections.deque[str] = collections.deque(maxlen=30)
        try:
            self._start()
        except OSError as error:
            self.kill()
            what = "its Python is gone" if isinstance(error, FileNotFoundError) else error.strerror
            raise RunFailed(
                f"No worker process could be started with {place.interpreter} ({what}). "
                "Close other programs or run ./course lab again."
            ) from error
        except BaseException:
            self.kill()  # an interrupt must not leave a process that nobody owns
            raise

    def _start(self) -> None:
        environment = dict(self.place.environment)
        options: dict[str, Any] = {"start_new_session": True}
        reading = None
        if os.name == "posix":
            reading, self._lifeline = _pipe_above_standard()
            environment["SAMEBITS_LIFELINE"] = str(reading)
            options["pass_fds"] = (reading,)
        try:
            self._process = subprocess.Popen(
                [self.place.interpreter, "-m", "samebits.worker"],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                cwd=tempfile.gettempdir(),
                **options,
            )
        finally:
            if reading is not None:
                os.close(reading)
        self._threads = [
            threading.Thread(target=t, daemon=True) for t in (self._read_answers, self._read_errors)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict, cancel: threading.Event, patience: float) -> Iterator[dict]:
        """Send a request and yield the answers up to the last one. Raises RunFailed; a worker that failed the
        protocol, hung or was interrupted is dead afterwards."""
        try:
            self.tell(request)
            heard = time.monotonic()
            cancelled = None
            while True:
                if cancel.is_set() and cancelled is None:
                    cancelled = time.monotonic()
                    self.tell({"do": "stop"})
                # Also while answers come: a run that never differs may have thousands of them under way.
                if cancelled is not None and time.monotonic() - cancelled > GRACE:
                    self.kill()
                    return
                try:
                    line = self._answers.get(timeout=0.05)
                except queue.Empty:
                    if not self.alive:
                        self._end_answers()
                    elif time.monotonic() - heard > patience:
                        self.kill()
                        raise RunFailed(
                            f"The worker gave no answer for {patience:g} seconds and was stopped. "
                            "Choose smaller sizes; the next run starts a new worker."
                        ) from None
                    continue
                heard = time.monotonic()
                if line is None:
                    raise RunFailed(self._obituary(), "".join(self._last_words))
                answer = self._parse(line)
                if "error" in answer:
                    raise RunFailed(answer["error"], answer.get("detail", ""))
                yield answer
                if answer.keys() & {"done", "result"}:
                    return
        except (BrokenPipeError, OSError):
            raise RunFailed(self._obituary(), "".join(self._last_words)) from None
        except (GeneratorExit, KeyboardInterrupt):
            self.kill()  # nobody reads its answers any more
            raise

    def kill(self) -> None:
        self.let_go()
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.name == "posix":
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def let_go(self) -> None:
        """Close this process's end of the lifeline; the worker ends when no process holds one any more."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)

    def tell(self, request: dict) -> None:
        """Send a request without waiting for its answers. Raises OSError if the worker is gone."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def _parse(self, line: str) -> dict:
        try:
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
        except ValueError:
            pass
        self.kill()
        raise RunFailed(
            f"The worker answered with something that is no answer ({line.strip()[:60]!r}) and was stopped. "
            "The next run starts a new one."
        )

    def _end_answers(self) -> None:
        """Let the answers of a dead worker end, although what it started may live on and hold its pipes open."""
        self.kill()
        self._threads[0].join(timeout=1)
        self._answers.put(None)

    def _obituary(self) -> str:
        """How the process ended, in one sentence."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        code = self._process.poll()
        self.kill()
        self._threads[1].join(timeout=1)  # its last words
        if code == -signal.SIGTERM or (os.name == "posix" and code == -signal.SIGKILL):
            return (
                "The worker was killed from outside, which is what happens when memory runs out. "
                "Choose smaller sizes or close other notebooks; the next run starts a new worker."
            )
        if code is not None and code < 0:
            return f"The worker crashed (signal {-code}) in compiled code. The next run starts a new worker."
        return f"The worker ended unexpectedly (exit code {code}). The next run starts a new worker."

    def _read_answers(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put(None)

    def _read_errors(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stderr:
                self._last_words.append(line[:2000])


def _pipe_above_standard() -> tuple[int, int]:
    """A pipe whose ends are not 0, 1 or 2, which os.pipe gives where a standard stream was closed."""
    import fcntl

    ends = os.pipe()
    try:
        return tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    finally:
        for end in ends:
            os.close(end)


class _Pool:
    """The live workers of this kernel. One run at a time: two would race each other for the same cores."""

    def __init__(self):
        self._workers: list[Worker] = []
        self._lock = threading.RLock()
        self._turn = threading.Lock()
        self._timer: threading.Timer | None = None

    @property
    def most(self) -> int:
        try:
            return max(1, int(os.environ.get("SAMEBITS_WORKERS", "2")))
        except ValueError:
            return 2

    @contextlib.contextmanager
    def turn(self, cancel: threading.Event, on_wait: Callable[[str], None]) -> Iterator[None]:
        """Wait until no other run of this kernel is going on."""
        if not self._turn.acquire(blocking=False):
            on_wait("Waiting for another run in this notebook.")
            while not self._turn.acquire(timeout=0.1):
                if cancel.is_set():
                    raise RunFailed("The run was cancelled while it waited for another one in this notebook.")
        try:
            yield
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def worker(
        self, place: Place, on_wait: Callable[[str], None], other_than: list[Worker] = (), fresh: bool = False
    ) -> Iterator[Worker]:
        """A live worker for this place, kept afterwards unless it died or `fresh` asks for a new one each time."""
        with self._lock:
            self._bury()
            fitting = [w for w in self._workers if w.place == place and w not in other_than and not w.busy]
            if fitting and not fresh:
                worker = fitting[0]
            else:
                on_wait("Starting a process.")
                worker = self._start(place)
            worker.busy = True
        try:
            yield worker
        finally:
            with self._lock:
                worker.busy = False
                worker.used = time.monotonic()
                if fresh:
                    worker.kill()
                self._bury()
                self._release_when_idle()

    def warm(self, place: Place, count: int) -> None:
        """Start up to `count` workers for this place where there is room; they import their framework by themselves."""
        with self._lock:
            self._bury()
            missing = count - sum(w.place == place for w in self._workers)
            for _ in range(min(missing, self.most - len(self._workers))):
                self._start(place).tell({"do": "warm", "framework": place.framework})
            self._release_when_idle()

    def close(self) -> None:
        with self._lock:
            for worker in self._workers:
                worker.kill()
            self._workers.clear()

    def _start(self, place: Place) -> Worker:
        while len(self._workers) >= self.most:
            idle = [w for w in self._workers if not w.busy] or self._workers
            oldest = min(idle, key=lambda w: w.used)
            oldest.kill()
            self._workers.remove(oldest)
        worker = Worker(place)
        self._workers.append(worker)
        return worker

    def _bury(self) -> None:
        for worker in [w for w in self._workers if not w.alive]:
            worker.kill()
            self._workers.remove(worker)

    def _release_when_idle(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = threading.Timer(IDLE_SECONDS, self._release)
        self._timer.daemon = True
        self._timer.start()

    def _release(self) -> None:
        with self._lock:
            for worker in [w for w in self._workers if not w.busy]:
                worker.kill()
            self._bury()


_POOL = _Pool()
atexit.register(close)


def _after_fork_in_child() -> None:
    """The workers stay the parent's: a forked child neither keeps them alive nor ends them."""
    for worker in _POOL._workers:
        worker.let_go()
    _POOL.__init__()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@contextlib.contextmanager
def _card_turn(card: str | None, cancel: threading.Event, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Wait for the shared card: one run at a time on this machine, whoever's kernel it comes from.

    The lock gives exclusion. The tickets, each a file locked by its owner, only tell a waiting run its place;
    a ticket that nobody locks belongs to a process that is gone.
    """
    if card is None:
        yield
        return
    base = Path(os.environ.get("SAMEBITS_QUEUE") or Path(tempfile.gettempdir()) / "samebits-queue")
    folder = base / card
    ticket = _SharedLock(folder / f"{time.time_ns():020d}-{os.getpid()}.ticket")
    lock = _SharedLock(folder / "card.lock")
    try:
        try:
            for part in (base, folder):
                _make_shared(part)
            ticket.acquire()
            while (place := _place_in_queue(folder, ticket.path)) or not lock.acquire():
                if cancel.is_set():
                    raise RunFailed("The run was cancelled while it waited for the GPU.")
                on_wait(f"Waiting for the GPU: {place or 1} in front of you.")
                time.sleep(0.1)
        except OSError as error:
            raise RunFailed(
                f"The queue for the GPU in {folder} cannot be used ({error.strerror}). "
                "Ask whoever runs this machine, or set SAMEBITS_QUEUE to a folder that you can write."
            ) from error
        yield
    finally:
        lock.release()
        ticket.release()
        with contextlib.suppress(OSError):
            ticket.path.unlink()


def _make_shared(folder: Path) -> None:
    """Make a folder that every user of this machine may put files in; one that is there stays as it is."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
    else:
        folder.chmod(0o1777)


def _place_in_queue(folder: Path, mine: Path) -> int:
    """How many live tickets are older than mine; tickets of processes that are gone are removed."""
    older = 0
    for path in sorted(folder.glob("*.ticket")):
        if path.name >= mine.name:
            break
        lock = _SharedLock(path)
        with contextlib.suppress(FileNotFoundError):  # its owner is done in this moment
            if not lock.acquire(create=False):
                older += 1
                continue
            lock.release()
            with contextlib.suppress(OSError):
                path.unlink()  # another user's stays, and counts for nothing
    return older


class _SharedLock:
    """A lock on a file, for processes of several users; it is gone with its process.

    filelock refuses files that another user owns, which in a classroom is every file but one's own; it
    serves where there is no flock (Windows).
    """

    def __init__(self, path: Path):
        self.path = path
        self._held: Any = None

    def acquire(self, create: bool = True) -> bool:
        """Take the lock if nobody holds it. Raises OSError if the file cannot be opened or made."""
        if os.name != "posix":
            self._held = filelock.FileLock(self.path)
            try:
                self._held.acquire(timeout=0)
            except filelock.Timeout:
                return False
            return True
        import fcntl

        descriptor = self._open(create)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._held = descriptor
        return True

    def release(self) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        if os.name == "posix":
            os.close(held)
        else:
            held.release()

    def _open(self, create: bool) -> int:
        # Without O_CREAT where the file is there: Linux forbids it for others' files in a shared folder.
        # Reading is enough for flock, and the one right that a file of another user surely gives.
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if not create:
                raise
        try:
            return os.open(self.path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
