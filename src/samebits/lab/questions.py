"""Predictions and quizzes as data: reads questions/NN.toml and refuses what would mislead a learner.

    [[prediction]]                      [[question]]
    id = "02-letters"                   id = "02-q1"
    prompt = "How many letters?"        prompt = "What does `atomicAdd` promise?"
    [[prediction.option]]               points = 1
    id = "one"                          reread = "Where it starts"
    text = "exactly one"                [[question.option]]
    low = 1                             id = "a"
    high = 1                            text = "that no update is lost"
                                        correct = true
                                        because = "Each addition is indivisible."

Texts are plain: Unicode, `code` between backticks, a blank line between paragraphs. A measured or published number
is taken from the claim that holds it: {08-sage.inference} (claims.py).
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samebits import claims
from samebits.experiment import nearest
from samebits.lab.errors import LabError

FOLDER = Path(__file__).parent.parent / "questions"


@dataclass(frozen=True)
class Foreseen:
    """An option of a prediction: a measurement equal to `value`, or from `low` to `high`, selects it."""

    id: str
    text: str
    low: float | None = None
    high: float | None = None
    value: Any = None

    def holds(self, measured: Any) -> bool:
        if self.value is not None:
            # True == 1 in Python, but a truth value is no count.
            return self.value == measured and isinstance(self.value, bool) == isinstance(measured, bool)
        try:
            return self.low <= measured <= self.high
        except TypeError:
            return False


@dataclass(frozen=True)
class Prediction:
    id: str
    prompt: str
    options: tuple[Foreseen, ...]


@dataclass(frozen=True)
class Option:
    """An option of a quiz question; `because` answers whoever chose it."""

    id: str
    text: str
    because: str
    correct: bool = False


@dataclass(frozen=True)
class Question:
    """One question; exactly one option is correct, and `reread` is the lesson's heading to go back to."""

    id: str
    prompt: str
    options: tuple[Option, ...]
    points: int
    reread: str


@dataclass(frozen=True)
class Chapter:
    """What questions/NN.toml holds."""

    predictions: tuple[Prediction, ...] = ()
    questions: tuple[Question, ...] = ()


def load(number: str) -> Chapter:
    """The predictions and questions of chapter `number`; empty where the chapter has no file.

    Raises LabError, one sentence that names the file and the entry, for anything malformed.
    """
    path = FOLDER / f"{number}.toml"
    if not path.exists():
        return Chapter()
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LabError(f"questions/{path.name} cannot be read: {error}.") from error
    return _Reader(path.name, number).chapter(data)


def prediction(name: str) -> Prediction:
    """The prediction with this id. Raises LabError with the nearest id."""
    known = {entry.id: entry for entry in load(str(name)[:2]).predictions}
    if name not in known:
        raise LabError(f"There is no prediction {name!r}. {_hint(name, list(known))}")
    return known[name]


def quiz(number: str) -> tuple[Question, ...]:
    """The questions of chapter `number`. Raises LabError where there are none."""
    questions = load(number).questions
    if not questions:
        chapters = sorted(path.stem for path in FOLDER.glob("*.toml"))
        raise LabError(f"There is no quiz for chapter {number!r}. {_hint(number, chapters)}")
    return questions


def chosen(asked: Prediction | Question, option: str | None) -> Foreseen | Option | None:
    """The option with this id; None for None and for an id that this edition of the course does not have."""
    return next((known for known in asked.options if known.id == option), None)


def paragraphs(text: str) -> list[str]:
    """The text's paragraphs with their line breaks folded, as prompts are wrapped in the file."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text.strip())]


def words(measured: Any) -> str:
    """A measurement as a sentence says it: "100,000", "0.4142", "yes"."""
    measured = measured.item() if hasattr(measured, "item") else measured
    if isinstance(measured, bool):
        return "yes" if measured else "no"
    if isinstance(measured, int):
        return f"{measured:,}"
    if isinstance(measured, float):
        return f"{measured:.4g}"
    return str(measured)


def _hint(name: str, known: list[str]) -> str:
    return nearest(name, known) if known else "The course has none of that chapter."


class _Reader:
    """Turns parsed TOML into a Chapter; `where` in its errors is the way to the entry at fault."""

    def __init__(self, file: str, number: str):
        self.file = file
        self.number = number
        self.taken: set[str] = set()

    def chapter(self, data: dict[str, Any]) -> Chapter:
        self._only(data, {"prediction", "question"}, "the top level")
        predictions = self._tables(data, "prediction", "the top level")
        questions = self._tables(data, "question", "the top level")
        return Chapter(
            tuple(self._prediction(table, n) for n, table in enumerate(predictions, 1)),
            tuple(self._question(table, n) for n, table in enumerate(questions, 1)),
        )

    def _prediction(self, table: dict, n: int) -> Prediction:
        where = self._id(table, f"prediction {n}")
        self._only(table, {"id", "prompt", "option"}, where)
        options = [self._foreseen(option, place) for option, place in self._options(table, where)]
        ranges = sorted((o.low, o.high, o.id) for o in options if o.value is None)
        for (_, high, one), (low, _, other) in zip(ranges, ranges[1:], strict=False):
            if low <= high:
                self._fail(where, f"options {one} and {other} overlap, so a measurement could select both")
        return Prediction(table["id"], self._text(table, "prompt", where), tuple(options))

    def _foreseen(self, table: dict, where: str) -> Foreseen:
        self._only(table, {"id", "text", "low", "high", "value"}, where)
        text = self._text(table, "text", where)
        if "value" in table:
            if "low" in table or "high" in table:
                self._fail(where, "has a value and a range; give one of them")
            if not isinstance(table["value"], str | bool | int | float):
                self._fail(where, "needs a text, a number or a truth value as its value")
            return Foreseen(table["id"], text, value=table["value"])
        for bound in ("low", "high"):
            if isinstance(table.get(bound), bool) or not isinstance(table.get(bound), int | float):
                self._fail(where, f"needs a number as its {bound} (inf is one), or a value")
        if not table["low"] <= table["high"]:
            self._fail(where, "has its low above its high")
        return Foreseen(table["id"], text, table["low"], table["high"])

    def _question(self, table: dict, n: int) -> Question:
        where = self._id(table, f"question {n}")
        self._only(table, {"id", "prompt", "points", "reread", "option"}, where)
        options = [self._option(option, place) for option, place in self._options(table, where)]
        correct = sum(option.correct for option in options)
        if correct != 1:
            self._fail(where, f"has {correct} correct options and needs exactly one")
        points = table.get("points", 1)
        if isinstance(points, bool) or not isinstance(points, int) or points < 1:
            self._fail(where, "needs a whole number from 1 as its points")
        prompt, reread = self._text(table, "prompt", where), self._text(table, "reread", where)
        return Question(table["id"], prompt, tuple(options), points, reread)

    def _option(self, table: dict, where: str) -> Option:
        self._only(table, {"id", "text", "correct", "because"}, where)
        correct = table.get("correct", False)
        if not isinstance(correct, bool):
            self._fail(where, "needs true or false as its correct")
        text, because = self._text(table, "text", where), self._text(table, "because", where)
        return Option(table["id"], text, because, correct)

    def _options(self, table: dict, where: str) -> list[tuple[dict, str]]:
        options = self._tables(table, "option", where)
        if len(options) < 2:
            self._fail(where, "needs at least two options")
        places, taken = [], set()
        for n, option in enumerate(options, 1):
            name = option.get("id")
            if not isinstance(name, str) or not name:
                self._fail(f"{where}, option {n}", "needs a text as its id")
            if name in taken:
                self._fail(where, f"has two options {name}")
            taken.add(name)
            places.append(f"{where}, option {name}")
        return list(zip(options, places, strict=True))

    def _id(self, table: dict, where: str) -> str:
        name = table.get("id")
        if not isinstance(name, str) or not name.startswith(f"{self.number}-"):
            self._fail(where, f"needs an id that begins with {self.number}-")
        if name in self.taken:
            self._fail(where, f"repeats the id {name}")
        self.taken.add(name)
        return f"{where.split()[0]} {name}"

    def _text(self, table: dict, key: str, where: str) -> str:
        text = table.get(key)
        if not isinstance(text, str) or not text.strip():
            self._fail(where, f"needs a text as its {key}")
        try:
            text = claims.filled(text)
        except claims.Malformed as error:
            self._fail(where, f"takes a number from a claim: {error}")
        if text.count("`") % 2:
            self._fail(where, f"has a backtick without its partner in its {key}")
        return "\n\n".join(paragraphs(text))

    def _tables(self, data: dict, key: str, where: str) -> list[dict]:
        tables = data.get(key, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._fail(where, f"needs [[…{key}]] tables as its {key}")
        return tables

    def _only(self, table: dict, known: set[str], where: str) -> None:
        for key in table:
            if key not in known:
                self._fail(where, f"has an unknown entry {key!r}. {nearest(key, sorted(known))}")

    def _fail(self, where: str, what: str) -> None:
        raise LabError(f"questions/{self.file}: {where} {what}{'' if what.endswith('.') else '.'}")
