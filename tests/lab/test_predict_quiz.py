"""Predictions and quizzes as the kernel sees them; what the browser does is in tests/browser."""

from __future__ import annotations

import json

import pytest

from samebits import lab
from samebits.lab import questions
from samebits.lab.errors import LabError
from samebits.lab.progress import store


def press(card, question: int, option: int) -> None:
    """What the browser sends when the button is pressed; -1: no option is chosen."""
    card._handle_custom_msg({"type": "choose", "question": question, "option": option}, [])


def sent(card) -> str:
    """Everything about the questions that the browser knows."""
    state = {key: value for key, value in card.get_state().items() if key not in ("_esm", "_css")}
    return json.dumps(state, default=str, ensure_ascii=False)


# --- predictions ----------------------------------------------------------------------------------------


def test_a_prediction_locks_when_it_is_committed():
    letters = lab.predict("02-letters")
    assert letters.option is None and not letters.answers[0]["locked"]
    press(letters, 0, 1)
    assert letters.option == "few"
    assert letters.answers[0]["locked"] and letters.answers[0]["chosen"] == 1
    press(letters, 0, 0)
    letters.commit("many")
    assert letters.option == "few" and letters.answers[0]["chosen"] == 1


def test_the_button_without_a_choice_asks_for_one():
    letters = lab.predict("02-letters")
    press(letters, 0, -1)
    assert letters.sentence == "Choose an option first."
    assert letters.option is None and not letters.answers[0]["locked"]


@pytest.mark.parametrize(
    "message", [None, "choose", {}, {"type": "choose", "question": 9, "option": 0}, {"type": "x"}]
)
def test_other_messages_are_ignored(message):
    letters = lab.predict("02-letters")
    before = sent(letters)
    letters._received(letters, message, [])
    assert sent(letters) == before


@pytest.mark.parametrize(
    ("option", "mark"), [("many", "A match. "), ("few", "A surprise. "), ("one", "A surprise. ")]
)
def test_revealing_compares_and_tells_it_twice(option, mark, capsys):
    letters = lab.predict("02-letters")
    letters.commit(option)
    text = next(o.text for o in questions.prediction("02-letters").options if o.id == option)
    letters.reveal(17)
    printed = capsys.readouterr().out
    assert printed.startswith(f"{mark}You predicted “{text}”; your machine gave 17.")
    assert printed.strip() == letters.sentence
    assert store().measured("02-letters") == 17


def test_revealing_what_no_option_foresaw_says_so(capsys):
    letters = lab.predict("02-letters")
    letters.commit("one")
    letters.reveal(0)
    assert "No option foresaw that" in capsys.readouterr().out


def test_revealing_without_a_prediction_asks_for_one_and_does_not_tell(capsys):
    letters = lab.predict("02-letters")
    letters.reveal(17)
    assert capsys.readouterr().out == "Commit a prediction above first, then run this cell again.\n"
    assert "17" not in str(letters.answers)
    assert store().measured("02-letters") is None
    assert not letters.answers[0]["locked"]


def test_a_measurement_may_come_with_its_own_words(capsys):
    flag = lab.predict("02-flag")
    flag.commit("slower")
    flag.reveal(False, words="0.4 times the time")
    assert "your machine gave 0.4 times the time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("measured", "words"),
    [(100_000, "100,000"), (0.41421356, "0.4142"), (True, "yes"), ("B", "B"), (1e-9, "1e-09")],
)
def test_measurements_in_words(measured, words):
    assert questions.words(measured) == words


def test_a_prediction_survives_a_restart(restart):
    lab.predict("02-letters").commit("few")
    restart()
    letters = lab.predict("02-letters")
    assert letters.option == "few" and letters.answers[0]["locked"]
    assert (
        letters.sentence == "You predicted “a handful, two to five”. Run on to see what your machine gives."
    )
    letters.reveal(17)
    restart()
    assert lab.predict("02-letters").sentence.endswith("when last revealed, your machine gave 17.")


def test_an_option_that_is_gone_from_the_course_leaves_the_prediction_open(capsys, restart):
    store().predict("02-letters", "removed", ["removed"])
    letters = lab.predict("02-letters")
    assert letters.option is None and not letters.answers[0]["locked"]
    letters.reveal(17)
    assert "Commit a prediction above first" in capsys.readouterr().out
    press(letters, 0, 1)
    assert letters.option == "few" and letters.answers[0]["locked"]
    restart()
    assert lab.predict("02-letters").option == "few"


def test_mistyped_names_are_told_in_one_sentence():
    with pytest.raises(LabError) as unknown:
        lab.predict("02-leters")
    assert unknown.value._render_traceback_() == [
        "There is no prediction '02-leters'. Did you mean 02-letters?"
    ]
    with pytest.raises(LabError, match=r"02-letters has no option 'on'\. Did you mean one\?"):
        lab.predict("02-letters").commit("on")


# --- quizzes --------------------------------------------------------------------------------------------


def test_the_key_and_the_explanations_stay_in_the_kernel_until_answered():
    quiz = lab.quiz("02")
    because = [[option.because for option in question.options] for question in questions.quiz("02")]
    known = sent(quiz)
    assert "That no addition is lost" in known
    assert not any(text in known for texts in because for text in texts)
    assert "correct" not in known.lower()
    press(quiz, 0, 2)
    known = sent(quiz)
    assert because[0][2] in known
    assert not any(text in known for text in [because[0][0], because[0][1], *because[1]])


def test_only_the_first_answer_counts_and_the_card_says_so():
    quiz = lab.quiz("02")
    press(quiz, 0, 0)
    assert quiz.answers[0]["mark"] == "Not quite."
    assert quiz.points == 0
    press(quiz, 0, 1)
    assert quiz.answers[0]["mark"] == "Correct."
    assert "Your first answer counts: “That the additions happen" in quiz.answers[0]["text"]
    assert quiz.points == 0 and "first answer" in quiz.note


def test_the_end_sums_up_and_names_what_to_read_again():
    quiz = lab.quiz("02")
    assert quiz.summary["text"] == ""
    quiz.answer("02-q1", "c")
    assert (quiz.summary["mark"], quiz.summary["text"]) == ("0 of 3 points so far.", "1 question to go.")
    quiz.answer("02-q2", "b")
    assert quiz.summary["mark"] == "2 of 3 points."
    assert quiz.summary["text"] == "Read again in the lesson: “What the hardware does”."
    assert (quiz.points, quiz.of) == (2, 3)


def test_all_right_has_nothing_to_read_again():
    quiz = lab.quiz("02")
    quiz.answer("02-q1", "b")
    quiz.answer("02-q2", "b")
    assert (quiz.points, quiz.summary["text"]) == (3, "Nothing to read again.")


def test_answers_survive_a_restart(restart):
    quiz = lab.quiz("02")
    press(quiz, 0, 2)
    press(quiz, 0, 1)
    restart()
    again = lab.quiz("02")
    assert again.answers[0]["chosen"] == 2, "the first answer, not the option read last"
    assert again.answers[0]["mark"] == "Not quite."
    assert again.answers[1]["text"] == "" and again.summary["text"] == "1 question to go."


def test_an_answer_that_is_gone_from_the_course_leaves_the_question_open(restart):
    store().answer("02-q1", "removed", ["removed"])
    quiz = lab.quiz("02")
    assert quiz.answers[0]["text"] == quiz.summary["text"] == ""
    press(quiz, 0, 0)
    press(quiz, 0, 1)
    assert "Your first answer counts: “That the additions happen" in quiz.answers[0]["text"]
    restart()
    assert lab.quiz("02").answers[0]["chosen"] == 0


def test_a_card_answers_even_if_its_answer_is_lost_at_once(monkeypatch):
    """As when another program writes rubbish into the file in between."""
    letters, quiz = lab.predict("02-letters"), lab.quiz("02")
    monkeypatch.setattr(store(), "_write", lambda change: None)
    press(letters, 0, 1)
    assert letters.answers[0]["chosen"] == 1
    press(quiz, 0, 1)
    assert quiz.answers[0]["mark"] == "Correct."


def test_unknown_questions_and_options_are_told():
    quiz = lab.quiz("02")
    with pytest.raises(LabError, match=r"no question '02-q9'\. Did you mean 02-q"):
        quiz.answer("02-q9", "a")
    with pytest.raises(LabError, match=r"02-q1 has no option 'z'\. Possible: a, b, c\."):
        quiz.answer("02-q1", "z")


def test_a_place_that_cannot_be_written_is_told_once_on_the_card(private, monkeypatch):
    (private / "file").write_text("")
    monkeypatch.setenv("SAMEBITS_DATA", str(private / "file" / "data"))
    quiz = lab.quiz("02")
    press(quiz, 0, 1)
    assert "kept until this kernel stops" in quiz.summary["text"] + quiz.answers[0]["text"]
    press(quiz, 1, 1)
    assert "kept until" not in quiz.summary["text"] + quiz.answers[1]["text"]
    assert quiz.points == 3


def test_a_viewer_without_widgets_reads_what_to_do():
    assert repr(lab.quiz("02")) == "Quiz 02: run this cell in JupyterLab to answer."
    assert repr(lab.predict("02-flag")) == "Prediction 02-flag: run this cell in JupyterLab to answer."
