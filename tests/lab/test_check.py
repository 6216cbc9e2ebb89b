"""The frame of every check: points, sentences, and nothing of ours that could alarm a learner."""

from __future__ import annotations

import importlib
import sys
import textwrap
import types
import warnings

import numpy as np
import pytest

from samebits import lab
from samebits.lab.check import AnswerFailed, Exercise, call, exercises, judged_in_worker, source_of, untouched
from samebits.lab.errors import LabError
from samebits.lab.progress import store


def cell(source: str, name: str):
    """A function as a notebook's cell defines it: in a file of its own, which tracebacks name."""
    namespace: dict = {"np": np, "warnings": warnings}
    exec(compile(textwrap.dedent(source), f"<cell {name}>", "exec"), namespace)
    return namespace[name]


def judge_mean(mean):
    if call(mean, np.array([1.0, 2.0, 6.0])) != 3:
        return [(0, "The mean of 1, 2 and 6 is 3.")]
    return [
        (1, "Three numbers: right."),
        (0.5 if call(mean, np.zeros(0)) is None else 0, "No numbers: looked at."),
    ]


@pytest.fixture(autouse=True)
def chapter98(monkeypatch):
    """A chapter with one exercise, registered as chapter authors do it."""
    module = types.ModuleType("samebits.lab.exercises.chapter98")
    module.EXERCISES = (Exercise("98-mean", "A mean", points=2, judge=judge_mean),)
    monkeypatch.setitem(sys.modules, module.__name__, module)


GOOD = """
    def mean(x):
        return x.mean() if len(x) else None
"""


def test_points_are_printed_returned_and_kept(capsys):
    points = lab.check("98-mean", cell(GOOD, "mean"))
    assert points == 1.5 and type(points) is float
    assert capsys.readouterr().out == "Three numbers: right.\nNo numbers: looked at.\n1.5 of 2 points.\n"
    assert store().best("98-mean") == 1.5


def test_whole_points_are_an_int_and_an_earlier_best_stays(capsys):
    lab.check("98-mean", cell(GOOD, "mean"))
    points = lab.check("98-mean", lambda x: 0)
    assert points == 0 and type(points) is int
    assert capsys.readouterr().out.endswith("0 of 2 points. Your best so far: 1.5.\n")
    assert store().best("98-mean") == 1.5


STUBS = {
    "value": ...,
    "in a list": [1, (2, ...)],
    "in a dict": {"a": {"b": ...}},
    "body": cell("def f(x):\n    ...", "f"),
    "body with a docstring": cell('def f(x):\n    """What it should do."""\n    # your code\n    ...', "f"),
    "pass": cell("def f(x):\n    pass", "f"),
    "returned": cell("def f(x):\n    return ...", "f"),
    "assigned and returned": cell("def f(x):\n    total = ...\n    return total", "f"),
    "returned in a tuple": cell("def f(x):\n    return x, ...", "f"),
}


@pytest.mark.parametrize("stub", STUBS.values(), ids=STUBS)
def test_a_stub_is_not_attempted(stub, capsys):
    assert lab.check("98-mean", stub) == 0
    assert capsys.readouterr() == ("Not attempted yet.\n", "")
    assert store().best("98-mean") is None


@pytest.mark.parametrize(
    "answer",
    [
        0,
        [],
        None,
        np.zeros(3),
        cell("def f(x):\n    return sum(x)\n    ...", "f"),
        cell("def f(x): return x[..., 0]", "f"),
    ],
)
def test_an_answer_is_no_stub(answer):
    assert not untouched(answer)


def test_an_exception_of_the_learner_is_one_sentence(capsys):
    mean = cell("def mean(x):\n    total = 0\n    return total / (len(x) - len(x))", "mean")
    assert lab.check("98-mean", mean) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "mean(array of 3 float64 [1.0, 2.0, 6.0]) raised ZeroDivisionError in line 3 of its cell: division by zero.",
        "0 of 2 points.",
    ]
    assert err == ""


def test_an_exception_inside_a_library_names_the_learner_s_line(capsys):
    mean = cell("def mean(x):\n    return np.zeros(3) + np.zeros(len(x) + 1)", "mean")
    lab.check("98-mean", mean)
    assert (
        "raised ValueError in line 2 of its cell: operands could not be broadcast" in capsys.readouterr().out
    )


def test_an_answer_of_another_kind_is_one_sentence(capsys):
    assert lab.check("98-mean", 3) == 0
    out, err = capsys.readouterr()
    assert out.startswith("3 raised TypeError") or "TypeError" in out.splitlines()[0]
    assert "Traceback" not in out and err == ""


def test_a_judge_that_stumbles_is_one_sentence(monkeypatch, capsys):
    module = sys.modules["samebits.lab.exercises.chapter98"]
    monkeypatch.setattr(module, "EXERCISES", (Exercise("98-mean", "A mean", 2, lambda answer: answer.shape),))
    assert lab.check("98-mean", [1, 2]) == 0
    assert capsys.readouterr().out.startswith(
        "This check could not make sense of your answer: AttributeError:"
    )


def test_what_the_judge_calls_directly_is_told_as_well(monkeypatch, capsys):
    module = sys.modules["samebits.lab.exercises.chapter98"]
    monkeypatch.setattr(module, "EXERCISES", (Exercise("98-mean", "A mean", 2, lambda mean: mean([])),))
    lab.check("98-mean", cell("def mean(x):\n    return x[0]", "mean"))
    assert capsys.readouterr().out.startswith(
        "Your code raised IndexError in line 2 of its cell: list index out"
    )


def test_nothing_reaches_stderr(capfd):
    noisy = """
        def mean(x):
            import sys
            print("looking", file=sys.stderr)
            warnings.warn("this is slow")
            return float(np.float32(1) / np.float32(0)) if len(x) else None
    """
    lab.check("98-mean", cell(noisy, "mean"))
    out, err = capfd.readouterr()
    assert err == ""
    assert "looking" in out and "Your code warns: this is slow." in out and "divide by zero" in out


def test_a_check_says_once_that_progress_cannot_be_kept(private, monkeypatch, capsys):
    (private / "file").write_text("")
    monkeypatch.setenv("SAMEBITS_DATA", str(private / "file" / "data"))
    lab.check("98-mean", cell(GOOD, "mean"))
    lab.check("98-mean", cell(GOOD, "mean"))
    assert capsys.readouterr().out.count("kept until this kernel stops") == 1


@pytest.mark.parametrize("called", [True, False], ids=["by call", "by the judge itself"])
def test_an_interrupt_ends_the_check_in_a_sentence(called, monkeypatch, capsys):
    if not called:
        module = sys.modules["samebits.lab.exercises.chapter98"]
        monkeypatch.setattr(module, "EXERCISES", (Exercise("98-mean", "A mean", 2, lambda mean: mean([])),))

    def endless(_):
        raise KeyboardInterrupt

    assert lab.check("98-mean", endless) == 0
    assert capsys.readouterr() == ("Stopped. The check was interrupted; nothing was saved.\n", "")
    assert store().best("98-mean") is None


@pytest.mark.parametrize("called", [True, False], ids=["by call", "by the judge itself"])
@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("raise SystemExit(1)", "SystemExit in line 2 of its cell: it would have ended your kernel"),
        ("raise GeneratorExit", "GeneratorExit in line 2 of its cell."),
        ("raise BaseException('all')", "BaseException in line 2 of its cell: all."),
    ],
)
def test_nothing_that_learner_code_raises_leaves_the_check(statement, told, called, monkeypatch, capsys):
    if not called:
        module = sys.modules["samebits.lab.exercises.chapter98"]
        monkeypatch.setattr(module, "EXERCISES", (Exercise("98-mean", "A mean", 2, lambda mean: mean([])),))
    assert lab.check("98-mean", cell(f"def mean(x):\n    {statement}", "mean")) == 0
    assert told in capsys.readouterr().out


def test_an_exception_that_cannot_be_told_is_named(capsys):
    source = """
        class Odd(Exception):
            def __str__(self):
                raise RuntimeError("no")

        def mean(x):
            raise Odd
    """
    assert lab.check("98-mean", cell(source, "mean")) == 0
    assert "raised Odd in line 7 of its cell." in capsys.readouterr().out


def test_a_message_of_a_page_is_cut(capsys):
    lab.check("98-mean", cell("def mean(x):\n    raise ValueError('one line\\n' * 500)", "mean"))
    assert max(map(len, capsys.readouterr().out.splitlines())) < 500


def test_too_many_answers_are_one_sentence(capsys):
    assert lab.check("98-mean", cell(GOOD, "mean"), 5) == 0
    said, points = capsys.readouterr().out.splitlines()
    assert said == 'This check takes 1 answer, and you gave it 2. Write lab.check("98-mean", mean).'
    assert points == "0 of 2 points."


def test_too_few_answers_are_one_sentence(monkeypatch, capsys):
    module = sys.modules["samebits.lab.exercises.chapter98"]
    exercise = Exercise("98-mean", "A mean", 2, lambda first, second: [(2, "Right.")])
    monkeypatch.setattr(module, "EXERCISES", (exercise,))
    assert lab.check("98-mean", 5) == 0
    assert (
        'takes 2 answers, and you gave it 1. Write lab.check("98-mean", first, second).'
        in capsys.readouterr().out
    )


class Buffer(np.ndarray):
    """An array that says the same bytes whatever it holds."""

    def tobytes(self, order="C"):
        return b""


@pytest.mark.parametrize(
    "result",
    [
        lambda buffer: buffer,
        lambda buffer: buffer[:1],
        lambda buffer: buffer[0:1].reshape(()),
        lambda buffer: buffer.view(Buffer),
        lambda buffer: (1, [buffer]),
        lambda buffer: {"sums": buffer},
    ],
)
def test_what_a_judge_holds_does_not_change_with_the_next_call(result):
    buffer = np.zeros(2)

    def reused(value):
        buffer[:] = value
        return result(buffer)

    def held(value):
        if isinstance(value, np.ndarray):
            return value.tobytes()
        return (
            [held(part) for part in (value.values() if isinstance(value, dict) else value)]
            if value != 1
            else 1
        )

    first = call(reused, 1)
    before = held(first)
    assert held(call(reused, 2)) != before
    assert held(first) == before


def test_a_tensor_that_is_reused_is_copied_too():
    torch = pytest.importorskip("torch")
    buffer = torch.zeros(2)
    first = call(buffer.fill_, 1)
    call(buffer.fill_, 2)
    assert first.tolist() == [1, 1]


def test_the_answer_s_own_failure_keeps_its_sentence():
    def outer(x):
        return call(cell("def inner(x): return 1 / 0", "inner"), x)

    with pytest.raises(AnswerFailed, match=r"^inner\(5\) raised ZeroDivisionError in line 1"):
        call(outer, 5)


def test_unknown_exercises_get_the_nearest_one():
    with pytest.raises(LabError, match=r"no exercise '98-men'\. Did you mean 98-mean\?"):
        lab.check("98-men", 1)
    with pytest.raises(LabError, match="The course has none of that chapter"):
        lab.check("77-x", 1)


def test_a_fault_inside_a_chapter_s_module_is_not_taken_for_a_missing_chapter(monkeypatch):
    def broken(_):
        raise ModuleNotFoundError("No module named 'nump'", name="nump")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        exercises("98")


def test_the_exercises_of_the_course_are_well_formed():
    from samebits import course

    found = [exercise for chapter in course.CHAPTERS for exercise in exercises(chapter.number)]
    assert found, "the course has exercises"
    assert len({exercise.id for exercise in found}) == len(found)
    assert all(exercise.points > 0 and exercise.title for exercise in found)


def test_code_in_a_worker_that_never_ends_is_stopped_with_a_sentence():
    with pytest.raises(
        AnswerFailed, match="The kernel was stopped, since it had not ended after 2 seconds. Look"
    ):
        judged_in_worker(
            "samebits.checks:in_new_process",
            {"program": "while True: pass"},
            seconds=2,
            what="The kernel",
            if_stopped="Look for a loop.",
        )


def test_code_in_a_worker_that_cannot_be_judged_says_why():
    with pytest.raises(
        AnswerFailed, match="Your code could not be judged. The run stopped with AttributeError"
    ):
        judged_in_worker("operator:nothing", {}, seconds=30)


def test_an_answer_that_holds_itself_is_no_stub():
    circle: list = [1]
    circle.append(circle)
    ring: dict = {}
    ring["again"] = [ring]
    assert not untouched(circle) and not untouched(ring)
    circle.append(...)
    assert untouched(circle)


def wrapping(wrapped):
    def f(x):
        return 1

    f.__wrapped__ = f if wrapped is None else wrapped
    return f


@pytest.mark.parametrize("wrapped", [len, np.sum, "text", None], ids=["len", "np.sum", "text", "itself"])
def test_a_function_that_claims_to_wrap_something_odd_is_no_stub(wrapped):
    assert not untouched(wrapping(wrapped))


@pytest.mark.parametrize("name", [None, 7, wrapping(len), ["98-mean"]], ids=["None", "7", "function", "list"])
def test_an_id_that_is_no_text_is_one_sentence(name):
    with pytest.raises(LabError, match=r"Give the exercise's id as text first, as in lab\.check\("):
        lab.check(name, 1)


def test_a_check_without_an_answer_is_one_sentence(capsys):
    assert lab.check("98-mean") == 0
    assert 'takes 1 answer, and you gave it 0. Write lab.check("98-mean", mean).' in capsys.readouterr().out


def two_parts(monkeypatch, judge) -> None:
    module = sys.modules["samebits.lab.exercises.chapter98"]
    monkeypatch.setattr(module, "EXERCISES", (Exercise("98-mean", "A mean", 2, judge),))


def test_of_several_answers_those_that_are_still_stubs_are_named(monkeypatch, capsys):
    two_parts(monkeypatch, lambda mean, why: [(2, "Right.")])
    assert lab.check("98-mean", cell(GOOD, "mean"), ...) == 0
    assert (
        capsys.readouterr().out
        == "Not attempted yet: why is still `...`, and the check takes all parts at once.\n"
    )
    assert lab.check("98-mean", ..., ...) == 0
    assert capsys.readouterr().out == "Not attempted yet.\n"


@pytest.mark.parametrize("failure", [AnswerFailed("It stopped."), RuntimeError("It stopped."), SystemExit()])
def test_a_failure_leaves_the_points_that_were_given_before_it(failure, monkeypatch, capsys):
    def judge(mean):
        yield 1, "The first half: right."
        raise failure

    two_parts(monkeypatch, judge)
    assert lab.check("98-mean", cell(GOOD, "mean")) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "The first half: right." and said[-1] == "1 of 2 points." and len(said) == 3


def test_the_text_of_a_learners_function_is_for_a_worker():
    assert source_of(judge_mean).startswith("def judge_mean(mean):")
    for wrong, what in ((lambda: 3, "a lambda"), (len, "a builtin_function_or_method"), (..., "a ellipsis")):
        with pytest.raises(AnswerFailed, match=f"^Give the check a function made by def; this is {what}.$"):
            source_of(wrong)
    with pytest.raises(AnswerFailed, match="^The text of mean cannot be read. Run the cell"):
        source_of(cell("def mean(x):\n    return 3", "mean"))
    with pytest.raises(AnswerFailed, match="^Check the kernel itself, a function; this is a int.$"):
        source_of(3, "Check the kernel itself, a function")
