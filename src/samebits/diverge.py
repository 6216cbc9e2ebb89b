"""Runs a program again and again in fresh processes until two runs part, and says at which op (see trace.py).

    print(diverge("train.py", ["--epochs", "1"]))

Fresh processes, because much is decided once per process: the order of sets, environment variables, what a library
found out at its start. Where the inputs of an op agree and its result doesn't, the deterministic flag is tried too,
in processes of its own, and what came of it is reported as evidence, not as a promise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import samebits
from samebits import variability
from samebits.trace import Divergence, Trace, Unreadable, compare

RUNS = 5
BUDGET = 120.0
_LEAST = 2.0  # seconds that a run gets, however little of the budget is left

# What helps against each kind of difference.
REMEDIES = {
    "flow": "Look at what Python decides before this line: the order of a set, a clock, a cache that was empty the "
    "first time, a number read from a tensor.",
    "memory": "Fill the tensor before it is read: torch.zeros in the place of torch.empty.",
    "state": "Something was left over when recording began: build the model and the optimizer anew, after seeding, "
    "or load all of their state.",
    "input": "Follow this tensor back to where it came into PyTorch: seed NumPy and Python's random, sort what comes "
    "from a set or a folder, give the loader a generator and a worker_init_fn.",
    "unseen": "Look for what writes this memory without an op of PyTorch: a NumPy array that shares it, another "
    "library's kernel, compiled code, another thread.",
    "python": "Look at where this number comes from: Python's random, a clock, the order of a set, a length that "
    "differs between runs.",
    "random": "Seed the generator before the first number is drawn (torch.manual_seed), and look at what drew from it "
    "in one run only; code that is run twice in one process must be seeded each time.",
    "result": "This op races, or chose another algorithm in one run: torch.use_deterministic_algorithms(True) before "
    "the first op, or another op that computes the same.",
    "none": "What was not seen is not excluded: more runs, another load of the machine, another machine.",
}


# Where the runs were made under different settings, it is these that part them.
_REMEDY_FOR_SETTINGS = (
    "The runs had different settings, and this op computes in another order under each, which is no race: give both "
    "the same settings, or use an op whose order doesn't depend on them."
)


class ProgramFailed(RuntimeError):
    """The program could not be run or failed; the message is one sentence, `output` what it printed last."""

    def __init__(self, sentence: str, output: str = ""):
        super().__init__(sentence)
        self.output = output

    def _render_traceback_(self) -> list[str]:
        return [str(self), *([self.output] if self.output else [])]


class _TimeUp(ProgramFailed):
    """A run that the budget did not hold."""


@dataclass(frozen=True)
class Arm:
    """Several runs of a program under one setting.

    flag     whether torch.use_deterministic_algorithms(True) was called before the program began
    verdict  on the fingerprints of whole traces, one for each run, each in a process of its own
    seconds  of each run, with the start of its process
    refused  what was said if the program didn't run under the flag, as when PyTorch refuses an op; else ""
    """

    flag: bool
    verdict: variability.Verdict
    seconds: tuple[float, ...]
    refused: str = ""

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(self)
        data["verdict"]["sentence"] = self.verdict.sentence
        return data


@dataclass(frozen=True)
class Hunt:
    """What `diverge` found: the first divergence, and the runs that it rests on.

    divergence  between the first run and the first other one that differs; kind "none" if none did
    plain       the runs of the program as it is
    fixed       the runs under the deterministic flag, where that was worth trying; else None
    second      variables that the second and later runs had and the first had not
    """

    divergence: Divergence
    plain: Arm
    fixed: Arm | None = None
    second: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def remedy(self) -> str:
        """What helps against this kind of difference, one or two sentences."""
        if self.divergence.kind == "result" and self.divergence.settings:
            return _REMEDY_FOR_SETTINGS
        return REMEDIES[self.divergence.kind]

    def __str__(self) -> str:
        lines = [str(self.divergence), ""]
        lines.append(f"Runs: {self.plain.verdict.sentence}")
        lines.append(self.remedy)
        if self.fixed is not None:
            lines.append(_tried(self.fixed))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "divergence": self.divergence.to_json(),
            "plain": self.plain.to_json(),
            "fixed": self.fixed.to_json() if self.fixed else None,
            "second": dict(self.second),
            "remedy": self.remedy,
        }


def _tried(arm: Arm) -> str:
    what = "Tried: torch.use_deterministic_algorithms(True) before the program begins. "
    if arm.refused:
        return what + f"The program doesn't run with it: {arm.refused}"
    verdict = arm.verdict
    if verdict.kind == "not enough evidence" and verdict.distinct == 1:
        where = f"One answer in {verdict.runs} runs, each in a process of its own"
        return what + f"{where}; {variability.LEAST_RUNS} or more are evidence."
    return what + verdict.sentence


def begins(run: int, flag: bool) -> str:
    """What to show when a run begins: for `on_run` of `diverge`."""
    return f"run {run + 1}{' with the flag' if flag else ''} …"


def diverge(
    program: str | os.PathLike,
    arguments: Sequence[str] = (),
    *,
    runs: int = RUNS,
    budget: float = BUDGET,
    second: Mapping[str, str] | None = None,
    flag: bool = False,
    try_flag: bool = True,
    keep: str | os.PathLike | None = None,
    on_run: Callable[[int, bool], None] = lambda run, flag: None,
) -> Hunt:
    """Run `program` in up to `runs` fresh processes, stop at the first that differs from the first one, and say where.

    program    a Python file; it runs as the main program, with `arguments`, in the current folder
    budget     seconds for the search, and as many again for the runs with the flag; no run begins that it would not
               hold, going by those before, and a third or later one that it doesn't hold is stopped and left out
    second     environment variables of all runs but the first: {"OMP_NUM_THREADS": "1"} compares two settings
    flag       call torch.use_deterministic_algorithms(True) before the program begins
    try_flag   if the same inputs gave another result, make as many runs with the flag on
    keep       a folder in which the trace files stay: run0.trace, run1.trace, flag0.trace, …
    on_run     called before each run with its number, and whether it is one with the flag

    Raises ProgramFailed, with one sentence, if a run fails or the budget ends before two runs have.
    """
    program = Path(program)
    if not program.is_file():
        raise ProgramFailed(f"There is no program {program}. Give the path of a Python file.")
    if runs < 2:
        raise ProgramFailed(f"A comparison needs at least two runs, not {runs}.")
    if not budget > 0:
        raise ProgramFailed(f"The budget must be more than 0 seconds, not {budget:g}.")
    ends = time.monotonic() + budget
    with contextlib.ExitStack() as stack:
        try:
            if keep is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="samebits-")))
            else:
                folder = Path(keep)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "run0.trace").touch()
        except OSError as error:
            where = "for temporary files" if keep is None else keep
            raise ProgramFailed(f"The folder {where} could not be written ({error.strerror}).") from error
        one = _Arm(program, arguments, folder, "run", flag, second or {}, ends, on_run)
        found = one.search(runs, until_different=True)
        fixed = None
        # Where the runs' settings differ, it is they that part the runs, and no flag makes one of two settings.
        if found.kind == "result" and try_flag and not flag and not found.settings:
            fixed = _Arm(program, arguments, folder, "flag", True, {}, time.monotonic() + budget, on_run)
            fixed.search(runs, until_different=False)
        return Hunt(found, one.arm(), fixed.arm() if fixed else None, dict(second or {}))


class _Arm:
    """Makes the runs of one arm, one after the other: two at a time would take each other's cores."""

    def __init__(
        self,
        program: Path,
        arguments: Sequence[str],
        folder: Path,
        name: str,
        flag: bool,
        second: Mapping[str, str],
        ends: float,
        on_run: Callable[[int, bool], None],
    ):
        self._program = program
        self._arguments = arguments
        self._folder = folder
        self._name = name
        self._flag = flag
        self._second = second
        self._ends = ends
        self._on_run = on_run
        self._fingerprints: list[str] = []
        self._seconds: list[float] = []
        self._trying = name == "flag"  # whether the runs then agree; here the program may fail
        self._refused = ""

    def arm(self) -> Arm:
        verdict = variability.verdict(self._fingerprints, processes=len(self._fingerprints), per_process=True)
        return Arm(self._flag, verdict, tuple(self._seconds), self._refused)

    def search(self, runs: int, until_different: bool) -> Divergence:
        reference = self._run(0)
        found = Divergence("none", None, None, (), {}, (0, 0), 0, "")
        for run in range(1, runs):
            if self._refused or (run > 1 and time.monotonic() + max(self._seconds) > self._ends):
                break
            try:
                path = self._run(run)
            except _TimeUp:
                if run == 1:
                    raise
                break
            if self._refused:
                break
            if found.kind == "none":
                found = _readable(compare, reference, path)
            if until_different and found.kind != "none":
                break
        return found

    def _run(self, number: int) -> Path:
        self._on_run(number, self._flag)
        path = self._folder / f"{self._name}{number}.trace"
        environment = dict(os.environ)
        source = str(Path(samebits.__file__).parents[1])
        if source not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
            # Not the folder of all packages, which would then come before the standard library.
            paths = [source, environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if number:
            environment |= self._second
        command = [sys.executable, "-m", "samebits", "trace", "--out", str(path)]
        command += ["--deterministic"] if self._flag else []
        command += ["--", str(self._program), *self._arguments]
        # A file: a pipe would stay open as long as the program's workers live.
        with tempfile.TemporaryFile() as output:
            started = time.monotonic()
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(timeout=max(self._ends - started, _LEAST))
            except subprocess.TimeoutExpired:
                raise _TimeUp(
                    f"{self._program.name} was still running when the budget ended, and was stopped. "
                    "Give it less to do, or a larger budget.",
                    _last_words(output),
                ) from None
            finally:
                _stop(process)
            self._seconds.append(time.monotonic() - started)
            if process.returncode:
                self._failed(process.returncode, _last_words(output))
                return path
        self._fingerprints.append(_readable(_whole, path))
        return path

    def _failed(self, code: int, output: str) -> None:
        if self._trying:
            lines = [line for line in output.splitlines() if line.strip()] or [f"It ended with code {code}."]
            refusal = next((line for line in lines if "deterministic" in line), lines[-1])
            self._refused = refusal.removeprefix("RuntimeError: ").split(", but you set")[0].rstrip(".") + "."
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        ending = ". What it printed last:" if output else ", and had printed nothing."
        raise ProgramFailed(f"{self._program.name} {how}{ending}", output)


def _stop(process: subprocess.Popen) -> None:
    """With its workers, which would go on without it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError, PermissionError):  # Windows has no groups; nobody is left
        if process.poll() is None:
            process.kill()
    process.wait()


def _last_words(output: IO[bytes]) -> str:
    """The last lines of what a program printed, which may be gigabytes, and no text."""
    end = output.seek(0, os.SEEK_END)
    output.seek(max(end - 10_000, 0))
    text = output.read().decode(errors="replace")
    return "\n".join(text.strip().splitlines()[-12:])


def _readable(read: Callable, *paths: Path) -> Any:
    """What `read` makes of traces, which a program may have spoilt, as by removing them."""
    try:
        return read(*paths)
    except Unreadable as error:
        raise ProgramFailed(str(error)) from error


def _whole(path: Path) -> str:
    """One fingerprint of everything a trace says of its ops."""
    digest = hashlib.sha256()
    for op in Trace(path):
        for tensor in (*op.inputs, *op.results):
            digest.update(f"{tensor.name} {tensor.what} {tensor.fingerprint}\n".encode())
        digest.update(f"{op.name} {op.arguments}\n".encode())
    return f"sha256:{digest.hexdigest()}"
