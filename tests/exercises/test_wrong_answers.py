"""Every check rejects the answers that people typically give, each with the sentence that helps, and gives
full points to a right one.

The answers of a chapter stand in wrong_chapterNN.py beside this file:

    WRONG = {exercise id: [(label, source, phrase), …]}   rejected, with a sentence that holds the phrase
    RIGHT = {exercise id: source or [source, …]}          each earns every point
    NEEDS_TENSORFLOW = (exercise id, …)                   if there are any: skipped where there is none

A source defines `answer`, or `answers`, a tuple, where the check takes several. The untouched stub is
added to each list.
"""

from __future__ import annotations

import importlib
import itertools
import linecache
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import canonical
import derive
import pytest

from samebits import course
from samebits.lab.check import Exercise, check, exercises

FEWEST = 2
STUB = ("the untouched stub", "answer = ...", "Not attempted yet")

REGISTERED = {exercise.id: exercise for chapter in course.CHAPTERS for exercise in exercises(chapter.number)}
LABS = [chapter for chapter in course.CHAPTERS if chapter.lab]


def answers_of(number: str) -> types.ModuleType | types.SimpleNamespace:
    """WRONG and RIGHT of a chapter; empty where it has none."""
    name = f"wrong_chapter{number}"
    if not Path(__file__).with_name(f"{name}.py").exists():
        return types.SimpleNamespace(WRONG={}, RIGHT={})
    return importlib.import_module(name)


ANSWERS = {chapter.number: answers_of(chapter.number) for chapter in LABS}
WRONG = {name: listed for answers in ANSWERS.values() for name, listed in answers.WRONG.items()}
RIGHT = {name: source for answers in ANSWERS.values() for name, source in answers.RIGHT.items()}

NEEDS_TENSORFLOW = {name for answers in ANSWERS.values() for name in getattr(answers, "NEEDS_TENSORFLOW", ())}


def marked(name: str, *more: Any) -> Any:
    """A test parameter, skipped without TensorFlow where the exercise needs it; the stub never does."""
    needs = name in NEEDS_TENSORFLOW and more != STUB
    return pytest.param(name, *more, marks=[pytest.mark.tensorflow] if needs else [])


REJECTED = [(name, *wrong) for name in REGISTERED for wrong in [STUB, *WRONG.get(name, [])]]
ACCEPTED = [
    (name, source)
    for name, given in RIGHT.items()
    for source in ([given] if isinstance(given, str) else given)
]

_number = itertools.count()


def evaluated(source: str) -> tuple[Any, ...]:
    """What a learner would hand to the check after running `source` in a cell: functions whose source can
    be read, since some checks read it."""
    source = textwrap.dedent(source).strip() + "\n"
    file = f"<answer {next(_number)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, file, "exec"), namespace)
    return namespace["answers"] if "answers" in namespace else (namespace["answer"],)


@pytest.mark.parametrize(
    ("name", "label", "source", "phrase"),
    [marked(*rejected) for rejected in REJECTED],
    ids=[f"{name}: {label}" for name, label, *_ in REJECTED],
)
def test_a_wrong_answer_is_rejected_with_the_sentence_that_helps(
    name, label, source, phrase, capsys, monkeypatch
):
    # pytest's variable names the test, so that each would start a worker with an environment of its own.
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    # A new worker for each answer takes seconds. Right answers get one; so does what leaves something behind
    # (test_learner_code.py).
    monkeypatch.setattr(sys.modules[REGISTERED[name].judge.__module__], "FRESH", False, raising=False)
    points = check(name, *evaluated(source))
    said = capsys.readouterr().out
    assert points < REGISTERED[name].points, said
    assert phrase in said


@pytest.mark.parametrize(
    ("name", "source"), [marked(*accepted) for accepted in ACCEPTED], ids=[name for name, _ in ACCEPTED]
)
def test_a_right_answer_earns_every_point(name, source, capsys, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    assert check(name, *evaluated(source)) == REGISTERED[name].points, capsys.readouterr().out


@pytest.mark.parametrize("name", REGISTERED)
def test_every_exercise_has_its_typical_wrong_answers_and_a_right_one(name):
    assert len(WRONG.get(name, [])) >= FEWEST
    assert name in dict(ACCEPTED), f"wrong_chapter{name[:2]}.py has no RIGHT answer for {name}"


def test_no_answer_is_for_an_exercise_that_does_not_exist():
    assert {*WRONG, *RIGHT} <= set(REGISTERED)


@pytest.mark.parametrize("chapter", LABS, ids=lambda chapter: chapter.number)
def test_the_lab_asks_every_exercise_for_its_points(chapter):
    registered = {exercise.id: exercise.points for exercise in exercises(chapter.number)}
    assert registered, f"chapter {chapter.number} has a lab but no exercises"
    assert derive.exercises(canonical.read(derive.ROOT / "solutions" / chapter.notebook)) == registered


# --- The mechanism itself, on an exercise of its own ------------------------------------------------------


@pytest.fixture
def toy(monkeypatch) -> str:
    def judge(function, *more):
        import inspect

        yield 1, "It says why." if "why" in inspect.getsource(function) else "It does not say why."
        yield (
            int(function(2) == 4 and not more),
            "It doubles." if function(2) == 4 else "Two becomes no four.",
        )

    module = types.SimpleNamespace(EXERCISES=(Exercise("77-double", "Double", 2, judge),))
    monkeypatch.setitem(sys.modules, "samebits.lab.exercises.chapter77", module)
    return "77-double"


@pytest.mark.parametrize(
    ("source", "points", "sentence"),
    [
        ("def answer(x):\n    return 2 * x  # why", 2, "It says why."),
        ("def answer(x):\n    return x + 1", 1, "Two becomes no four."),
        ("    answer = lambda x: 2 * x\n    answers = answer, 1", 1, "It doubles."),
        (STUB[1], 0, STUB[2]),
        ("def answer(x):\n    ...", 0, STUB[2]),
    ],
)
def test_the_source_of_an_answer_becomes_what_a_learner_would_check(source, points, sentence, toy, capsys):
    assert check(toy, *evaluated(source)) == points
    assert sentence in capsys.readouterr().out
