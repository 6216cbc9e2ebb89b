"""Experiments that misbehave in one way each, for the runner's tests. Workers import this module by name."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from samebits.experiment import BadSetting, Experiment, Knob, Observation, Prepared

HABITS = (
    "none",
    "differs",
    "differs by process",
    "other input",
    "slow",
    "hangs",
    "holds the lock",
    "starts a child",
    "crashes",
    "is killed",
    "is killed with a child",
    "is killed with a daemon",
    "exits",
    "prints",
    "speaks rubbish",
    "runs out of memory",
    "raises",
    "refuses",
    "yields nothing",
)


def prepare(settings: dict) -> Prepared:
    if settings["habit"] == "refuses":
        raise BadSetting("This setting is refused.")
    seen = {"variable": os.environ.get("FAULTY_VARIABLE", "unset"), "pid": os.getpid()}
    return Prepared(settings, seen, "a test", {})


def observe(settings: dict, n: int):
    habit = settings["habit"]
    for number in range(0 if habit == "yields nothing" else n):
        if number == 2:
            _misbehave(habit)
        if habit in ("slow", "starts a child"):
            time.sleep(0.05)
        answer = {"differs": number, "differs by process": os.getpid()}.get(habit, 0)
        output = f"sha256:{answer}-{os.environ.get('FAULTY_VARIABLE', 'unset')}"
        yield Observation(
            output, f"sha256:{number if habit == 'other input' else 0}", 0.0, {"pid": os.getpid()}
        )


def _misbehave(habit: str) -> None:
    if habit == "hangs":
        time.sleep(1000)
    elif habit == "holds the lock":
        ctypes.PyDLL(None).sleep(1000)  # compiled code that never lets another Python thread run
    elif habit == "starts a child":
        _fork_and_sleep(in_a_group_of_its_own=False)
    elif habit == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif habit == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif habit.startswith("is killed with"):
        _fork_and_sleep(in_a_group_of_its_own=habit.endswith("daemon"))
        os.kill(os.getpid(), signal.SIGKILL)
    elif habit == "exits":
        os._exit(3)
    elif habit == "prints":
        print("a library's chatter")
        os.write(1, b"and some from compiled code\n")
    elif habit == "speaks rubbish":
        _answers().write("this is no JSON\n")
    elif habit == "runs out of memory":
        raise MemoryError("Unable to allocate 8.00 EiB")
    elif habit == "raises":
        raise TypeError("no such thing")


def _fork_and_sleep(in_a_group_of_its_own: bool) -> None:
    """A child, which has all of this process's pipes, as a loader's workers have."""
    if os.fork() == 0:
        if in_a_group_of_its_own:
            os.setsid()
        time.sleep(10)
        os._exit(0)


def _answers():
    frame = sys._getframe()
    while frame.f_code.co_name != "main":
        frame = frame.f_back
    return frame.f_locals["answers"]


_compiled = []


def compiling() -> str:
    """As an experiment that compiles once in a process."""
    _compiled.append(True)
    return "Compiling what this run needs." if len(_compiled) == 1 else ""


def echo(**arguments):
    return arguments


def forever():
    time.sleep(1000)


def _experiment(name: str, **more) -> Experiment:
    return Experiment(
        name=f"faulty:{name}",
        title="Faulty",
        question="What happens?",
        knobs=(
            Knob(
                "habit",
                "Habit",
                "What goes wrong at the third observation.",
                "choice",
                "none",
                choices=HABITS,
            ),
            *more.pop("knobs", ()),
        ),
        prepare=prepare,
        observe=observe,
        code=lambda settings: "",
        **more,
    )


FAULTY = _experiment("FAULTY")
FRESH = _experiment("FRESH", fresh=True)
SLOW_TO_START = _experiment("SLOW_TO_START", waiting=compiling)
VARIABLE = _experiment(
    "VARIABLE",
    knobs=(
        Knob(
            "variable",
            "Variable",
            "An environment variable.",
            "choice",
            "unset",
            choices=("unset", "one", "two"),
            scope="process",
            variable="FAULTY_VARIABLE",
        ),
    ),
)
SWITCH = _experiment(
    "SWITCH",
    knobs=(Knob("switch", "Switch", "Read once, when a library starts.", "toggle", False, scope="process"),),
)
WARMED = _experiment("WARMED", framework="imported_while_waiting")
ON_CARD = _experiment("ON_CARD", card=lambda settings: "test-card")
