"""Predict, then measure, then compare: a prediction is committed before the machine answers."""

from __future__ import annotations

from typing import Any

from samebits.experiment import nearest
from samebits.lab import choice, questions
from samebits.lab.errors import LabError
from samebits.lab.progress import store


def predict(name: str) -> Prediction:
    """The prediction with this id as a card; a commitment made earlier is shown again.

    Raises LabError for an unknown id or a malformed question file.
    """
    prediction = Prediction(questions.prediction(name))
    store().tell()
    return prediction


class Prediction(choice.Choice):
    """A prediction: `commit` locks it, `reveal` holds it against a measurement."""

    def __init__(self, prediction: questions.Prediction):
        self._prediction = prediction
        self._store = store()
        super().__init__(
            questions=[
                {
                    "kicker": "Predict first",
                    "prompt": questions.paragraphs(prediction.prompt),
                    "options": [option.text for option in prediction.options],
                }
            ],
            answers=[choice.answer("Commit prediction")],
        )
        if committed := self._committed:
            self._lock(committed)

    def __repr__(self) -> str:
        return f"Prediction {self._prediction.id}: run this cell in JupyterLab to answer."

    @property
    def option(self) -> str | None:
        """The id of the option committed to, or None."""
        return self._committed.id if self._committed else None

    @property
    def sentence(self) -> str:
        """What the card says now."""
        return _join(self.answers[0]["mark"], self.answers[0]["text"])

    def commit(self, option: str) -> None:
        """Commit to the option with this id, as the button does; an earlier commitment stands.

        Raises LabError for an unknown option.
        """
        known = self._known
        if option not in known:
            raise LabError(f"{self._prediction.id} has no option {option!r}. {nearest(option, known)}")
        self.choose(0, known.index(option))

    def choose(self, question: int, option: int) -> None:
        chosen = self._prediction.options[option]
        self._store.predict(self._prediction.id, chosen.id, self._known)
        self._lock(self._committed or chosen)

    def reveal(self, measured: Any, words: str = "") -> None:
        """Print and show "You predicted …; your machine gave …" and keep the measurement.

        Without a prediction it asks for one and does not tell: a prediction made afterwards is none.

        measured  the number (or text, or truth value) that the options foresee
        words     how to say it where the number alone would not do, such as "0.4 times the time"
        """
        words = words or questions.words(measured)
        committed, happened = self._committed, self._option_for(measured)
        if committed is None:
            self.show(0, mark="", text="Commit a prediction first, then run the cell below again.", tone="")
            print("Commit a prediction above first, then run this cell again.")
            return
        self._store.measure(self._prediction.id, measured)
        gave = f"your machine gave {words}."
        if committed == happened:
            mark, tone, text = "A match.", "good", f"You predicted “{committed.text}”; {gave}"
        else:
            think = "Think" if happened else "No option foresaw that: think"
            mark, tone = "A surprise.", "surprise"
            text = f"You predicted “{committed.text}”; {gave} {think} why before you read on."
        self.show(0, mark=mark, text=_join(text, self._store.notice()), tone=tone)
        print(self.sentence.replace("`", ""))

    @property
    def _known(self) -> list[str]:
        return [option.id for option in self._prediction.options]

    @property
    def _committed(self) -> questions.Foreseen | None:
        return questions.chosen(self._prediction, self._store.predicted(self._prediction.id))

    def _option_for(self, measured: Any) -> questions.Foreseen | None:
        return next((option for option in self._prediction.options if option.holds(measured)), None)

    def _lock(self, committed: questions.Foreseen) -> None:
        measured = self._store.measured(self._prediction.id)
        if measured is None:
            text = f"“{committed.text}”. Run on to see what your machine gives."
        else:
            text = f"“{committed.text}”; when last revealed, your machine gave {questions.words(measured)}."
        self.show(
            0,
            chosen=self._prediction.options.index(committed),
            button="Committed",
            locked=True,
            mark="You predicted",
            text=_join(text, self._store.notice()),
            tone="",
        )


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
