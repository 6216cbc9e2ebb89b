"""A chapter's quiz: the first answer counts, and every option then tells why it is right or wrong."""

from __future__ import annotations

from samebits.experiment import nearest
from samebits.lab import choice, questions
from samebits.lab.errors import LabError
from samebits.lab.progress import Kept, store


def quiz(number: str) -> Quiz:
    """The quiz of chapter `number` as a card; answers given earlier are shown again.

    Raises LabError for a chapter without a quiz or a malformed question file.
    """
    card = Quiz(number, questions.quiz(number))
    store().tell()
    return card


def score(chapter: tuple[questions.Question, ...], kept: Kept) -> tuple[int, int, list[questions.Question]]:
    """Points of the first answers, how many questions have one, and which of those were wrong."""
    points, answered, wrong = 0, 0, []
    for question in chapter:
        first = questions.chosen(question, kept.answered(question.id))
        if first:
            answered += 1
            points += question.points if first.correct else 0
            wrong += [] if first.correct else [question]
    return points, answered, wrong


class Quiz(choice.Choice):
    """All questions of a chapter, their points, and at the end what to read again."""

    def __init__(self, number: str, chapter: tuple[questions.Question, ...]):
        self._number = number
        self._chapter = chapter
        self._store = store()
        super().__init__(
            heading="Quiz",
            note=f"{len(chapter)} questions, {self.of} points. Your first answer to each question counts; "
            "after it you may choose other options to read what they would have told you.",
            questions=[
                {
                    "kicker": f"Question {n} of {len(chapter)}",
                    "prompt": questions.paragraphs(question.prompt),
                    "options": [option.text for option in question.options],
                }
                for n, question in enumerate(chapter, 1)
            ],
            answers=[choice.answer("Answer") for _ in chapter],
        )
        kept = self._store.snapshot()
        for n, question in enumerate(chapter):
            first = questions.chosen(question, kept.answered(question.id))
            if first:
                self._explain(n, first, first)
        self._sum_up()

    def __repr__(self) -> str:
        return f"Quiz {self._number}: run this cell in JupyterLab to answer."

    @property
    def points(self) -> int:
        """Points of the first answers so far."""
        return score(self._chapter, self._store.snapshot())[0]

    @property
    def of(self) -> int:
        """Points of the whole quiz."""
        return sum(question.points for question in self._chapter)

    def answer(self, question: str, option: str) -> None:
        """Answer the question with this id, as the button does; only the first answer counts.

        Raises LabError for an unknown question or option.
        """
        known = [q.id for q in self._chapter]
        if question not in known:
            raise LabError(f"The quiz has no question {question!r}. {nearest(question, known)}")
        n = known.index(question)
        options = [o.id for o in self._chapter[n].options]
        if option not in options:
            raise LabError(f"{question} has no option {option!r}. {nearest(option, options)}")
        self.choose(n, options.index(option))

    def choose(self, question: int, option: int) -> None:
        asked = self._chapter[question]
        chosen = asked.options[option]
        self._store.answer(asked.id, chosen.id, [known.id for known in asked.options])
        first = questions.chosen(asked, self._store.answered(asked.id))
        self._explain(question, chosen, first or chosen)
        self._sum_up()

    def _explain(self, n: int, option: questions.Option, first: questions.Option) -> None:
        question = self._chapter[n]
        text = option.because
        if option is not first:
            text += f" Your first answer counts: “{first.text}”."
        self.show(
            n,
            chosen=question.options.index(option),
            button="Explain the chosen option",
            quiet=True,
            mark="Correct." if option.correct else "Not quite.",
            text=text,
            tone="good" if option.correct else "surprise",
        )

    def _sum_up(self) -> None:
        points, answered, wrong = score(self._chapter, self._store.snapshot())
        left = len(self._chapter) - answered
        mark, text = "", ""
        if left == 0:
            # In the order of the questions, each heading once.
            headings = dict.fromkeys(f"“{question.reread}”" for question in wrong)
            mark = f"{points} of {self.of} points."
            text = (
                f"Read again in the lesson: {', '.join(headings)}." if headings else "Nothing to read again."
            )
        elif answered:
            mark = f"{points} of {self.of} points so far."
            text = f"{left} question{'s' if left > 1 else ''} to go."
        self.summary = {"mark": mark, "text": f"{text} {self._store.notice()}".strip(), "tone": ""}
