"""What verifies the course's claims: for each, code that runs against what is installed, and its control.

    @check("01-float32-integers", control="float64, which has 53 bits")
    def float32_integers(control: bool) -> Seen:
        number = (np.float64 if control else np.float32)(2**24)
        return Seen(number + 1 == number, f"2²⁴ + 1 = {number + 1:.0f}")

The control is the opposite setting, or what was true once: under it the claim must not hold. A check whose
control holds as well proves nothing, and counts as a defect (claims.py). Each check runs in a worker process of
its framework; this package holds one module for each chapter.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

THREADS = 8  # as many as race on a busy machine, too; see experiments/torch_worker.py


@dataclass(frozen=True)
class Seen:
    """What a check saw.

    holds  whether the claim held; None if it could not be seen this time (a race that did not show, a machine
           that lacks what it takes), which is no evidence in either direction
    what   in one short sentence
    """

    holds: bool | None
    what: str

    @classmethod
    def varies(cls, distinct: int, runs: int, control: bool) -> Seen:
        """For a claim that something varies from run to run. Its control is a setting that takes the race away."""
        held = True if distinct > 1 else False if control else None
        return cls(held, f"{distinct} distinct in {runs} runs")

    @classmethod
    def same(cls, distinct: int, runs: int, control: bool) -> Seen:
        """For a claim that something is the same in every run. Its control is a setting under which it can vary."""
        held = False if distinct > 1 else None if control else True
        return cls(held, f"{distinct} distinct in {runs} runs")


@dataclass(frozen=True)
class Check:
    """How a claim is verified.

    function     control? → what was seen
    control      the control, in words
    framework    "torch", "tensorflow" or None: whose worker runs it
    environment  variables of that worker (None removes one)
    fresh        True: the worker is new, and serves this check alone
    """

    claim: str
    function: Callable[[bool], Seen]
    control: str
    framework: str | None = None
    environment: Mapping[str, str | None] = field(default_factory=dict)
    fresh: bool = False


_CHECKS: dict[str, Check] = {}


def check(
    claim: str,
    *,
    control: str,
    framework: str | None = None,
    environment: Mapping[str, str | None] | None = None,
    fresh: bool = False,
) -> Callable[[Callable[[bool], Seen]], Callable[[bool], Seen]]:
    """Decorator: this function verifies the claim with this id. Its argument is True in the control arm."""

    def register(function: Callable[[bool], Seen]) -> Callable[[bool], Seen]:
        if claim in _CHECKS:
            raise ValueError(f"Two checks verify the claim {claim}.")
        _CHECKS[claim] = Check(claim, function, control, framework, environment or {}, fresh)
        return function

    return register


def of_chapter(number: str) -> dict[str, Check]:
    """The checks of one chapter by the ids of their claims; empty if it has none."""
    name = f"{__name__}.chapter{number}"
    if importlib.util.find_spec(name):
        importlib.import_module(name)
    return {claim: found for claim, found in _CHECKS.items() if claim.startswith(f"{number}-")}


def run(claim: str, control: bool) -> dict[str, Any]:
    """Run one check in this process, a worker: what was seen, and with which device and libraries, as JSON."""
    from samebits import machine

    found = of_chapter(claim[:2])[claim]
    if found.framework == "torch":
        from samebits.experiments import torch_worker

        torch_worker.set_flags(threads=THREADS)  # whatever the check before it left
    seen = found.function(control)
    holds = None if seen.holds is None else bool(seen.holds)  # NumPy's truth values are no JSON
    return {"holds": holds, "what": seen.what, "libraries": machine.loaded_libraries()}


def in_new_process(program: str, **variables: str | None) -> str:
    """What `program` prints in a new Python of this environment that has these variables (None removes one).

    For what is decided at the start of a process. Raises RuntimeError with the program's last words if it fails.
    """
    environment = dict(os.environ)
    for name, value in variables.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"A program of this check failed: {words[-1]}")
    return done.stdout


def versions_of_tensorflow() -> dict[str, str]:
    """Name → version of TensorFlow and Keras, as far as this interpreter has them; neither is imported."""
    found = {}
    for name, packages in {"tensorflow": ("tensorflow", "tensorflow-cpu"), "keras": ("keras",)}.items():
        for package in packages:
            try:
                found[name] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
    return found
