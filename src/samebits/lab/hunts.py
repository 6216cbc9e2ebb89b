"""A hunt for the first divergence of a case, as a notebook makes it: with progress, and one sentence if it fails.

found = hunt("augment")         # runs the case in fresh processes until two runs part
print(found.divergence)         # what samebits.diverge says of it
print(records(found))           # what it saw, without what it concludes
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from samebits import cases, debug_mode
from samebits.debug_mode import debugging as debugging  # for the lesson
from samebits.diverge import Hunt, begins, diverge
from samebits.lab.errors import LabError
from samebits.trace import Divergence, Tensor, compare, recording

RUNS = 5
RUNS_OF_A_RACE = 20  # on a busy machine two threads seldom meet; the budget may end it sooner
BUDGET = 40.0  # seconds: no cell of the course takes over a minute


def hunt(name: str, runs: int | None = None) -> Hunt:
    """Run the case `name` in up to `runs` fresh processes, and stop at the first that differs from the first one.

    runs  if not given, RUNS, or RUNS_OF_A_RACE where the case needs two threads that meet

    Prints the number of each run when it begins. Raises LabError for an unknown case, and diverge's ProgramFailed,
    both of which show as one sentence.
    """
    try:
        case = cases.find(name)
    except cases.UnknownCase as error:
        raise LabError(str(error)) from error

    if runs is None:
        runs = RUNS_OF_A_RACE if case.races else RUNS
    with tempfile.TemporaryDirectory(prefix="samebits-") as folder:
        own = Path(folder) / "own"
        own.mkdir()
        return diverge(
            case.program,
            case.words(own),
            runs=runs,
            budget=BUDGET,
            second=case.second,
            try_flag=False,
            on_run=progress,
        )


def progress(run: int, flag: bool) -> None:
    """Print that a run begins: for diverge's `on_run`."""
    print(begins(run, flag), flush=True)


def records(found: Hunt) -> str:
    """The first op in which the runs differ, as both traces have it: what it read and gave, and what of it agrees.

    It draws no conclusion.
    """
    divergence = found.divergence
    one, other = divergence.first, divergence.second
    if one is None and other is None:
        return f"No op differs in {found.plain.verdict.runs} runs. Run this cell again."
    lines = []
    for run, op in (("first run", one), ("second run", other)):
        if op is None:
            lines.append(f"{run:11} ended before this op")
        else:
            lines.append(f"{run:11} op {op.number}: {op.name}, called in {op.line}")
            lines.append(f"{'':11} {divergence.lines.get(op.line, '')}")
    if one is None or other is None or one.name != other.name:
        return "\n".join(lines)
    rows = [
        *_tensors("reads", one.inputs, other.inputs),
        *([("is given", one.arguments, one.arguments == other.arguments, "")] if one.arguments else []),
        *([("draws from", "the generator", one.generator == other.generator, "")] if one.generator else []),
        *_tensors("gives", one.results, other.results),
    ]
    if one.arguments != other.arguments:
        rows = [
            (label, f"{what} | {other.arguments}" if label == "is given" else what, same, more)
            for label, what, same, more in rows
        ]
    lines.append("")
    for label, what, same, more in rows:
        lines.append(f"{label:11} {'agrees ' if same else 'DIFFERS'}  {what}{more}")
    return "\n".join(lines)


def _tensors(
    label: str, one: tuple[Tensor, ...], other: tuple[Tensor, ...]
) -> list[tuple[str, str, bool, str]]:
    rows = []
    for x, y in zip_longest(one, other, fillvalue=Tensor("", "", "")):
        same = (x.what, x.fingerprint) == (y.what, y.fingerprint)
        what = " ".join(filter(None, (x.name, x.what, x.part)))
        if (x.part, x.what) != (y.part, y.what):
            what += f" | {' '.join(filter(None, (y.what, y.part)))}"
        more = ""
        if label == "reads":
            more = f"; written last by op {x.origin}" if x.origin is not None else "; from outside"
            more += f", {x.memory}" if x.memory else ""
        rows.append((label, what, same, more))
    return rows


def twice(first: Callable[[], Any], second: Callable[[], Any] | None = None, tries: int = 10) -> Divergence:
    """Record two calls in this process, of `first` or of `first` and `second`, and compare them; where all ops agree,
    up to `tries` times. A race doesn't show each time."""
    with tempfile.TemporaryDirectory(prefix="samebits-") as folder:
        files = Path(folder) / "first.trace", Path(folder) / "second.trace"
        for _ in range(tries):
            for file, part in zip(files, (first, second or first), strict=True):
                with recording(file, "a part"):
                    part()
            found = compare(*files)
            if found.kind != "none":
                break
    return found


def tell(*parts: Callable[[], Any]) -> None:
    """Print of each function in which op two calls part: the kind, and the line."""
    width = max(len(part.__name__) for part in parts)
    for part in parts:
        found = twice(part)
        op = found.first or found.second
        print(f"{part.__name__:{width}}  {found.kind:6}  {found.lines.get(op.line, op.line) if op else ''}")


# --- PyTorch's own tool -----------------------------------------------------------------------------------


def debugged(first: Callable[[], Any], second: Callable[[], Any], hash_fn: str = "norm") -> str:
    """The first op in which DebugMode sees the two differ, "no mismatch", or what it raises."""
    logs = [debug_mode.log(part, hash_fn) for part in (first, second)]
    try:
        found = debug_mode.mismatches(*logs)
    except ValueError:
        return "ValueError"
    return found[0] if found else "no mismatch"


def turns(
    work: Callable[[], Any],
    ways: Mapping[str, Callable[[], contextlib.AbstractContextManager]],
    rounds: int = 10,
) -> dict[str, list[float]]:
    """Seconds of `work` inside each of the `ways`, as multiples of those outside, round by round; the arms take turns,
    and two rounds before warm up."""
    arms = {"": contextlib.nullcontext, **ways}
    ratios: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        seconds = {}
        for name in arms if number % 2 else reversed(arms):
            started = time.perf_counter()
            with arms[name]():
                work()
            seconds[name] = time.perf_counter() - started
        for name in ratios if number >= 2 else ():
            ratios[name].append(seconds[name] / seconds[""])
    return ratios
