"""The widget under predictions and quizzes: a card of single-choice questions, answered by the kernel."""

from __future__ import annotations

from typing import Any

import anywidget
import traitlets

from samebits.lab import theme


class Choice(anywidget.AnyWidget):
    """A card of questions; static/choice.js draws it.

    heading    shown on top, with `note` under it; empty for none
    questions  per question {"kicker", "prompt" (paragraphs), "options" (texts)}; nothing that tells the key
    answers    per question what it shows now, see `answer`; written by the kernel only
    summary    {"mark", "text", "tone"} under the last question

    A subclass says in `choose` what a chosen option does.
    """

    _esm = theme.STATIC / "choice.js"
    _css = theme.CSS + (theme.STATIC / "choice.css").read_text(encoding="utf-8")

    heading = traitlets.Unicode().tag(sync=True)
    note = traitlets.Unicode().tag(sync=True)
    questions = traitlets.List(traitlets.Dict()).tag(sync=True)
    answers = traitlets.List(traitlets.Dict()).tag(sync=True)
    summary = traitlets.Dict({"text": ""}).tag(sync=True)

    def __init__(self, **traits: Any):
        super().__init__(**traits)
        self.on_msg(self._received)

    def choose(self, question: int, option: int) -> None:
        """Someone committed to option number `option` of question number `question`."""
        raise NotImplementedError

    def show(self, question: int, **changes: Any) -> None:
        """Change what one question shows."""
        answers = list(self.answers)
        answers[question] = answers[question] | changes
        self.answers = answers

    def _received(self, _widget: Any, message: Any, _buffers: Any) -> None:
        if not isinstance(message, dict) or message.get("type") != "choose":
            return
        question, option = message.get("question"), message.get("option")
        if question not in range(len(self.questions)):
            return
        if option in range(len(self.questions[question]["options"])):
            self.choose(question, option)
        else:
            self.show(question, mark="", text="Choose an option first.", tone="")
        self.send({"heard": question})


def answer(
    button: str,
    chosen: int = -1,
    mark: str = "",
    text: str = "",
    tone: str = "",
    locked: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """What a question shows: its button, the chosen option (-1: whatever the learner has picked), and the
    reply, which begins with `mark` in bold; `tone` is "good", "surprise" or empty. A locked question takes
    no more answers; a quiet button is no longer the main thing to press."""
    return {
        "button": button,
        "chosen": chosen,
        "mark": mark,
        "text": text,
        "tone": tone,
        "locked": locked,
        "quiet": quiet,
    }
