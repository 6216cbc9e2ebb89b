"""Runs a program again and again in fresh processes until two runs part, and says at which op (see trace.py).

    print(diverge("train.py", ["--epochs", "1"]))

Fresh processes, because much is decided once per process: the order of sets, environment variables, what a library
found out at its start. Where the inputs of an op agree and its result doesn't, the deterministic flag is tried too,
in processes of its own, and what came of it is reported as evidence, not as a promise.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import samebits
from samebits import variability
from samebits.trace import Divergence, Trace, compare

RUNS = 5
BUDGET = 120.0
# A process that is stopped gets this long to write the end of its trace.
_GRACE = 2.0

# What helps against each kind of difference, as a sentence; {line} is where.
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
    "result": "If both runs had the same settings, this op races or chose another algorithm: "
    "torch.use_deterministic_algorithms(True), or another op.",
    "none": "What was not seen is not excluded: more runs, another load of the machine, another machine.",
}


class ProgramFailed(RuntimeError):
    """The program could not be run or failed; the message is one sentence, `output` what it printed last."""

    def __init__(self, sentence: str, output: str = ""):
        super().__init__(sentence)
        self.output = output

    def _render_traceback_(self) -> list[str]:
        return [str(self), *([self.output] if self.output else [])]


@dataclass(frozen=True)
class Arm:
    """Several runs of a program under one setting.

    flag     whether torch.use_deterministic_algorithms(True) was called before the program began
    verdict  on the fingerprints of whole traces, one for each run, each in a process of its own
    seconds  of each run, with the start of its process
    refused  what PyTorch said if an op refused to run under the flag; else ""
    """

    flag: bool
    verdict: variability.Verdict
    seconds: tuple[float, ...]
    refused: str = ""


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

    def __str__(self) -> str:
        lines = [str(self.divergence), ""]
        lines.append(f"Runs: {self.plain.verdict.sentence}")
        lines.append(REMEDIES[self.divergence.kind])
        if self.fixed is not None:
            lines.append(_tried(self.fixed))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        data = dataclasses.asdict(dataclasses.replace(self, divergence=None))  # type: ignore[arg-type]
        for name in ("plain", "fixed"):
            if data[name]:
                data[name]["verdict"] = getattr(self, name).verdict.to_json()
        return data | {
            "divergence": self.divergence.to_json(),
            "second": dict(self.second),
            "remedy": REMEDIES[self.divergence.kind],
        }


def _tried(arm: Arm) -> str:
    what = "Tried: torch.use_deterministic_algorithms(True) before the program begins. "
    if arm.refused:
        return what + f"PyTorch refused an op: {arm.refused}"
    verdict = arm.verdict
    if verdict.kind == "not enough evidence" and verdict.distinct == 1:
        where = f"One answer in {verdict.runs} runs, each in a process of its own"
        return what + f"{where}; {variability.LEAST_RUNS} or more are evidence."
    return what + verdict.sentence


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
    budget     seconds for all of it; two runs are made in any case
    second     environment variables of all runs but the first: {"OMP_NUM_THREADS": "1"} compares two settings
    flag       call torch.use_deterministic_algorithms(True) before the program begins
    try_flag   if the same inputs gave another result, make as many runs with the flag on
    keep       a folder in which the trace files stay: run0.trace, run1.trace, flag0.trace, …
    on_run     called before each run with its number, and whether it is one with the flag

    Raises ProgramFailed, with one sentence, if a run fails or outlives the budget.
    """
    program = Path(program)
    if not program.is_file():
        raise ProgramFailed(f"There is no program {program}. Give the path of a Python file.")
    if runs < 2:
        raise ProgramFailed(f"A comparison needs at least two runs, not {runs}.")
    if not budget > 0:
        raise ProgramFailed(f"The budget must be more than 0 seconds, not {budget:g}.")
    ends = time.monotonic() + budget
    with tempfile.TemporaryDirectory(prefix="samebits-") as scratch:
        folder = Path(scratch)
        if keep is not None:
            folder = Path(keep)
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ProgramFailed(f"The folder {folder} could not be made ({error.strerror}).") from error
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
        self._refused = ""

    def arm(self) -> Arm:
        verdict = variability.verdict(self._fingerprints, processes=len(self._fingerprints), per_process=True)
        return Arm(self._flag, verdict, tuple(self._seconds), self._refused)

    def search(self, runs: int, until_different: bool) -> Divergence | None:
        reference = self._run(0)
        found = None
        for run in range(1, runs):
            if self._refused or (run > 1 and time.monotonic() > self._ends):
                break
            path = self._run(run)
            if self._refused:
                break
            compared = compare(reference, path)
            if found is None or found.kind == "none":
                found = compared
            if until_different and found.kind != "none":
                break
        return found

    def _run(self, number: int) -> Path:
        self._on_run(number, self._flag)
        path = self._folder / f"{self._name}{number}.trace"
        environment = dict(os.environ)
        source = str(Path(samebits.__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [source, environment.get("PYTHONPATH", "")]))
        if number:
            environment |= self._second
        command = [sys.executable, "-m", "samebits", "trace", "--out", str(path)]
        command += ["--deterministic"] if self._flag else []
        command += ["--", str(self._program), *self._arguments]
        started = time.monotonic()
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        try:
            output, _ = process.communicate(timeout=max(self._ends - started, _GRACE))
        except subprocess.TimeoutExpired:
            raise ProgramFailed(
                f"{self._program.name} was still running when the budget ended, and was stopped. "
                "Give it less to do, or a larger budget."
            ) from None
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self._seconds.append(time.monotonic() - started)
        if process.returncode:
            self._failed(process.returncode, output)
            return path
        self._fingerprints.append(_whole(path))
        return path

    def _failed(self, code: int, output: str) -> None:
        last = "\n".join(output.strip().splitlines()[-12:])
        refusal = next(
            (line for line in output.splitlines() if "does not have a deterministic implementation" in line),
            "",
        )
        if self._flag and refusal:
            self._refused = refusal.removeprefix("RuntimeError: ").split(", but you set")[0] + "."
            return
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise ProgramFailed(f"{self._program.name} {how}. What it printed last:", last)


def _whole(path: Path) -> str:
    """One fingerprint of everything a trace says of its ops."""
    import hashlib

    digest = hashlib.sha256()
    for op in Trace(path):
        for tensor in (*op.inputs, *op.results):
            digest.update(f"{tensor.name} {tensor.what} {tensor.fingerprint}\n".encode())
        digest.update(f"{op.name} {op.arguments} {op.generator}\n".encode())
    return f"sha256:{digest.hexdigest()}"
