"""Checks of exercises: a few sentences, points, and never a traceback of ours.

    EXERCISES = (Exercise("02-block-tree", "The block tree", points=3, judge=judge_block_tree),)

stands in samebits.lab.exercises.chapter02, and a lab's cell ends in `lab.check("02-block-tree", kernel)`.
The value of that cell is the points, which nbgrader takes as the grade; it takes all points away from a
cell that writes to stderr, so what learner code writes there goes to stdout.
"""

from __future__ import annotations

import contextlib
import dis
import importlib
import inspect
import reprlib
import sys
import textwrap
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import runner
from samebits.experiment import nearest
from samebits.lab.errors import LabError
from samebits.lab.progress import store


@dataclass(frozen=True)
class Exercise:
    """One exercise and who judges it.

    judge  called with what the learner gave to check; returns (points, sentence) pairs whose points add up
           to at most `points`. It calls the learner's functions through `call`.
    """

    id: str
    title: str
    points: int
    judge: Callable[..., Iterable[tuple[float, str]]]


class NotAttempted(Exception):
    """The answer is still the stub."""


class AnswerFailed(Exception):
    """The learner's function raised; the message is the sentence to print."""


def judged_in_worker(
    function: str,
    arguments: Mapping[str, Any],
    *,
    seconds: float,
    what: str = "Your code",
    if_stopped: str = "Does a loop in it never end?",
    **options: Any,
) -> Any:
    """What a worker's `function` says of a learner's code, which may never end; `options` are those of runner.call.

    Raises AnswerFailed with one sentence about `what`; `if_stopped` ends it where the code took all its `seconds`.
    """
    started = time.monotonic()
    try:
        return runner.call(function, arguments, seconds=seconds, **options)
    except runner.RunFailed as failure:
        if time.monotonic() - started >= seconds:
            raise AnswerFailed(
                f"{what} was stopped, since it had not ended after {seconds} seconds. {if_stopped}"
            ) from failure
        raise AnswerFailed(f"{what} could not be judged. {failure}") from failure


def source_of(function: Any, wanted: str = "Give the check a function made by def") -> str:
    """The text of a learner's function, for a worker. Raises AnswerFailed with one sentence; `wanted` begins it where
    `function` is none, or a lambda, whose text is that of the line around it."""
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        kind = "lambda" if inspect.isfunction(function) else type(function).__name__
        raise AnswerFailed(f"{wanted}; this is a {kind}.")
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise AnswerFailed(
            f"The text of {function.__name__} cannot be read. Run the cell that defines it again."
        ) from error


def check(exercise: str, *answers: Any) -> float:
    """Judge the answers to an exercise: print what is right and wrong, keep the best points, return the points.

    An answer that still holds `...` is not attempted and gives 0; so does a check that the learner
    interrupts. Raises LabError for an unknown exercise.
    """
    found = find(exercise)
    try:
        stubs = [untouched(part) for part in answers]
        if any(stubs):
            raise NotAttempted(_left(found, stubs))
        points = _judge(found, *answers)
    except NotAttempted as left:
        print(f"Not attempted yet{left}.")
        return 0
    except KeyboardInterrupt:
        print("Stopped. The check was interrupted; nothing was saved.")
        return 0
    kept = store()
    kept.earn(found.id, points, found.points)
    best = kept.best(found.id)
    better = f" Your best so far: {best:g}." if best > points else ""
    print(f"{points:g} of {found.points} points.{better}")
    kept.tell()
    return points


def call(function: Callable, *arguments: Any) -> Any:
    """Call a learner's function for a judge, which sees neither its exceptions nor its `...`.

    Arrays in the result are copies: a function may use one buffer for all its results.
    Raises NotAttempted if it returns `...`, and AnswerFailed with one sentence (exception, input, line)
    if it raises.
    """
    # Worded before the call, which may change its arguments.
    shown = ", ".join(short(argument) for argument in arguments)
    try:
        result = function(*arguments)
    except (NotAttempted, AnswerFailed, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, too, would end the kernel
        name = getattr(function, "__name__", "your function")
        raise AnswerFailed(f"{name}({shown}) raised {_told(error, _line_of(error, function))}") from error
    if untouched(result):
        raise NotAttempted
    return _copied(result)


def find(name: str) -> Exercise:
    """The exercise with this id. Raises LabError with the nearest id."""
    if not isinstance(name, str):
        raise LabError('Give the exercise\'s id as text first, as in lab.check("01-decode", decode).')
    known = {exercise.id: exercise for exercise in exercises(name[:2])}
    if name not in known:
        hint = nearest(name, list(known)) if known else "The course has none of that chapter."
        raise LabError(f"There is no exercise {name!r}. {hint}")
    return known[name]


def exercises(number: str) -> tuple[Exercise, ...]:
    """The exercises of chapter `number`, in their order; none where the chapter has none."""
    module = f"samebits.lab.exercises.chapter{number}"
    try:
        return importlib.import_module(module).EXERCISES
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            return ()
        raise


def untouched(answer: Any) -> bool:
    """Whether `...` is still in the answer: as its value, inside a container, or as a function's whole body."""
    left, seen = [answer], set()
    while left:
        part = left.pop()
        if part is ... or (isinstance(part, types.FunctionType) and _only_dots(part)):
            return True
        if isinstance(part, Mapping | list | tuple | set) and id(part) not in seen:
            seen.add(id(part))  # a container may hold itself
            left += part.values() if isinstance(part, Mapping) else part
    return False


def _left(exercise: Exercise, stubs: list[bool]) -> str:
    """Which of several answers are still stubs, as the end of "Not attempted yet"; empty if all are."""
    names = list(inspect.signature(exercise.judge).parameters)
    if all(stubs) or len(stubs) != len(names):
        return ""
    stub = " and ".join(name for name, is_stub in zip(names, stubs, strict=True) if is_stub)
    return f": {stub} is still `...`, and the check takes all parts at once"


def _only_dots(function: types.FunctionType) -> bool:
    """A body of nothing but `...`, `pass` or `return ...` compiles to one constant and its return.

    Asked of the byte code, because the source of a cell is not always at hand.
    """
    bare = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
    constants = {"LOAD_CONST", "RETURN_CONST"}
    with contextlib.suppress(ValueError):  # wrappers in a circle
        innermost = inspect.unwrap(function)
        function = innermost if isinstance(innermost, types.FunctionType) else function
    instructions = list(dis.get_instructions(function))
    return all(step.opname in bare for step in instructions) and all(
        step.argval in (None, ...) for step in instructions if step.opname in constants
    )


def _judge(exercise: Exercise, *answer: Any) -> float:
    """Run the judge, print its sentences and add up its points; a failure is one sentence more and no points."""
    verdicts: list[tuple[float, str]] = []
    with _stderr_to_stdout():
        try:
            # One by one: what was right before a failure stays right.
            for verdict in _wrong_number(exercise, len(answer)) or exercise.judge(*answer):
                verdicts.append(verdict)
        except (NotAttempted, KeyboardInterrupt):
            raise
        except AnswerFailed as failure:
            verdicts.append((0, str(failure)))
        except BaseException as error:
            line = _line_of(error, *answer)
            opening = "Your code raised" if line else "This check could not make sense of your answer:"
            verdicts.append((0, f"{opening} {_told(error, line)}"))
    for _, sentence in verdicts:
        print(sentence)
    points = sum(points for points, _ in verdicts)
    return int(points) if points == int(points) else float(points)


def _wrong_number(exercise: Exercise, given: int) -> list[tuple[float, str]]:
    """A verdict if the judge does not take that many answers; none if it does."""
    signature = inspect.signature(exercise.judge)
    try:
        signature.bind(*range(given))
    except TypeError:
        names = list(signature.parameters)
        takes = f"{len(names)} answer{'s' if len(names) > 1 else ''}"
        cell = f'lab.check("{exercise.id}", {", ".join(names)})'
        return [(0, f"This check takes {takes}, and you gave it {given}. Write {cell}.")]
    return []


def _copied(result: Any) -> Any:
    """The result with copies of its arrays (plain ones, whatever their subclass does) and tensors."""
    torch = sys.modules.get("torch")
    if isinstance(result, np.ndarray):
        return np.array(result)
    if torch and isinstance(result, torch.Tensor):
        return result.clone()
    if type(result) in (list, tuple):
        return type(result)(map(_copied, result))
    if type(result) is dict:
        return {key: _copied(value) for key, value in result.items()}
    return result


@contextlib.contextmanager
def _stderr_to_stdout():
    with contextlib.redirect_stderr(sys.stdout), warnings.catch_warnings():
        # The warning alone, once, without a path of this machine.
        warnings.showwarning = lambda message, *_: print(f"Your code warns: {message}.")
        yield


def _told(error: BaseException, line: str) -> str:
    """The exception, where it happened and its message, as the end of a sentence."""
    message = "it would have ended your kernel; return a result instead"
    if not isinstance(error, SystemExit):
        with contextlib.suppress(Exception):  # its text may be code of the learner, too
            message = ""
            # numba's messages fill a page.
            message = textwrap.shorten(str(error), 300, placeholder=" …").rstrip(".")
    return f"{type(error).__name__}{line}" + (f": {message}." if message else ".")


def _line_of(error: BaseException, *answer: Any) -> str:
    """Where in the learner's code it was raised, as " in line 3 of its cell"; empty if not in theirs."""
    files = {part.__code__.co_filename for part in answer if isinstance(part, types.FunctionType)}
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f" in line {lines[-1]} of its cell" if lines else ""


# Of a container of containers, only how many there are.
_OUTLINE = reprlib.Repr()
_OUTLINE.maxlevel = 1


def short(value: Any) -> str:
    """An argument in a few words; an array by its first elements and how many it has."""
    if hasattr(value, "dtype") and getattr(value, "shape", ()):
        shape = "×".join(str(n) for n in value.shape)
        first = ", ".join(str(element) for element in value.reshape(-1)[:4].tolist())
        return f"array of {shape} {value.dtype} [{first}{', …' if value.size > 4 else ''}]"
    words = reprlib.repr(value)
    return words if len(words) <= 200 else _OUTLINE.repr(value)
