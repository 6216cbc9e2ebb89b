"""Question files: what is malformed is refused in one sentence that names the file and the entry."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samebits.lab import questions
from samebits.lab.errors import LabError

from .conftest import SAMPLE

TEXT = (SAMPLE / "02.toml").read_text(encoding="utf-8")


def test_the_sample_is_read_as_it_stands():
    chapter = questions.load("02")
    letters, flag = chapter.predictions
    assert letters.prompt.startswith("Twenty runs add") and "\n" not in letters.prompt
    assert [option.holds(17) for option in letters.options] == [False, False, True]
    assert [option.holds(1.0) for option in letters.options] == [True, False, False]
    assert not any(option.holds(math.nan) or option.holds("17") for option in letters.options)
    assert [option.holds(True) for option in flag.options] == [True, False]
    assert not any(option.holds(1) for option in flag.options), "a count is no truth value"
    first, second = chapter.questions
    assert [first.points, second.points] == [1, 2]
    assert questions.paragraphs(second.prompt) == ["Fifty runs gave one answer.", "What may you say?"]


def test_a_chapter_without_a_file_has_no_questions():
    assert questions.load("77") == questions.Chapter()


def test_unknown_names_get_the_nearest_one():
    with pytest.raises(LabError, match=r"no prediction '02-leters'\. Did you mean 02-letters\?"):
        questions.prediction("02-leters")
    with pytest.raises(LabError, match="no quiz for chapter '07'"):
        questions.quiz("07")
    for name in (2, None, ""):
        with pytest.raises(LabError, match=f"no prediction {name!r}"):
            questions.prediction(name)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('id = "02-flag"', 'id = "02-letters"', "prediction 2 repeats the id 02-letters"),
        ('id = "02-flag"', 'id = "flag"', "prediction 2 needs an id that begins with 02-"),
        ('id = "02-flag"\n', "", "prediction 2 needs an id"),
        ("high = 5", "high = 6", "prediction 02-letters options few and many overlap"),
        ("low = 2\n", "", "prediction 02-letters, option few needs a number as its low"),
        ("high = inf", 'high = "inf"', "option many needs a number as its high"),
        ("low = 6", "low = nan", "option many has its low above its high"),
        ("value = true", "value = true\nlow = 1", "option slower has a value and a range"),
        ("value = true", "value = [1]", "option slower needs a text, a number or a truth value"),
        ('id = "one"', 'id = "few"', "prediction 02-letters has two options few"),
        ('text = "yes, slower"', 'text = ""', "option slower needs a text as its text"),
        (
            "`index_put_`",
            "`index_put_",
            "prediction 02-letters has a backtick without its partner in its prompt",
        ),
        ("points = 2", "points = 0", "question 02-q2 needs a whole number from 1 as its points"),
        ("points = 2", "poins = 2", "question 02-q2 has an unknown entry 'poins'. Did you mean points?"),
        ("correct = true", "correct = false", "question 02-q1 has 0 correct options and needs exactly one"),
        ("correct = true", 'correct = "yes"', "question 02-q1, option b needs true or false as its correct"),
        ('reread = "What the hardware does"\n', "", "question 02-q1 needs a text as its reread"),
        ("[[prediction.option]]", "[prediction.option]", "cannot be read"),
        ("# Questions", "quiz = 1\n# Questions", "the top level has an unknown entry 'quiz'"),
    ],
)
def test_malformed_entries_are_named(old, new, sentence):
    assert old in TEXT
    (questions.FOLDER / "02.toml").write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(LabError) as refused:
        questions.load("02")
    message = str(refused.value)
    assert message.startswith("questions/02.toml") and sentence in message
    assert "\n" not in message and message.endswith((".", "?"))


@pytest.mark.parametrize(
    "content",
    [b"x = " + b"[" * 5000 + b"]" * 5000, b"x = " + b"{a = " * 5000, b"x = " + b"9" * 5000, b"\xff"],
)
def test_what_is_no_toml_is_told_in_the_usual_sentence(content):
    (questions.FOLDER / "02.toml").write_bytes(content)
    with pytest.raises(LabError, match=r"^questions/02\.toml cannot be read: [^\n]+\.$"):
        questions.load("02")


def test_an_explanation_may_not_be_missing():
    start = TEXT.index("because = ")
    (questions.FOLDER / "02.toml").write_text(
        TEXT[:start] + TEXT[TEXT.index("\n", start) + 1 :], encoding="utf-8"
    )
    with pytest.raises(LabError, match="question 02-q1, option a needs a text as its because"):
        questions.load("02")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.integers(0, len(TEXT)),
    length=st.integers(0, 80),
    instead=st.sampled_from(
        ["", "1", "[]", '"', "\n", "[[question]]\n", "[question]\n", 'x = "y"\n', "inf", "\ud800"]
    ),
)
def test_a_damaged_file_is_read_or_refused_in_one_sentence(start, length, instead):
    damaged = TEXT[:start] + instead + TEXT[start + length :]
    (questions.FOLDER / "02.toml").write_bytes(damaged.encode("utf-8", "surrogatepass"))
    try:
        questions.load("02")
    except LabError as refused:
        assert str(refused).startswith("questions/02.toml")


def test_the_course_s_own_questions_are_well_formed(monkeypatch):
    monkeypatch.undo()
    files = sorted(questions.FOLDER.glob("*.toml"))
    assert files, "the course has questions"
    for file in files:
        questions.load(file.stem)
