"""Tables of the course: its chapters with their minutes, and how far the learner has come."""

from __future__ import annotations

import html

from samebits import course
from samebits.lab import card, questions
from samebits.lab.check import Exercise, exercises
from samebits.lab.progress import Kept, store
from samebits.lab.quiz import score


def contents() -> None:
    """Display the chapters: what each is about, its minutes, links that open it, and the learner's progress."""
    kept = store().snapshot()
    rows, lines = [], []
    for chapter in course.CHAPTERS:
        done = _done(chapter.number, kept)
        name = f"{chapter.number} {chapter.title}"
        lab = f'<a href="../labs/{chapter.notebook}">Lab {chapter.number}</a> · {chapter.lab} min'
        rows.append(
            f'<tr><th scope="row"><a href="../notebooks/{chapter.notebook}">{html.escape(name)}</a>'
            f'<br><span class="sb-source">{html.escape(chapter.promise)}</span></th>'
            f'<td class="sb-short">{chapter.lesson} min</td>'
            f'<td class="sb-short">{lab if chapter.lab else "none"}</td>'
            f"<td>{'<br>'.join(done) or 'nothing to answer'}</td></tr>"
        )
        lab_minutes = f", lab {chapter.lab} min" if chapter.lab else ""
        lines.append("; ".join([f"{name}: lesson {chapter.lesson} min{lab_minutes}", *done]))
    _show("The course", ["Chapter", "Lesson", "Lab", "You so far"], f"<tbody>{''.join(rows)}</tbody>", lines)


def progress() -> None:
    """Display every prediction, exercise and quiz of the course with what the learner has done of it."""
    kept = store().snapshot()
    groups, lines = [], []
    for chapter in course.CHAPTERS:
        results = _results(chapter.number, kept)
        if not results:
            continue
        name = f"{chapter.number} {chapter.title}"
        rows = "".join(
            f'<tr><th scope="row">{kind}</th><td>{_code(what)}</td><td>{_code(result)}</td></tr>'
            for kind, what, result in results
        )
        group = f'<tr><th scope="rowgroup" colspan="3">{html.escape(name)}</th></tr>'
        groups.append(f"<tbody>{group}{rows}</tbody>")
        lines += [name, *(f"  {kind}: {what}: {result}" for kind, what, result in results)]
    _show("Your progress", ["Part", "What", "You"], "".join(groups), lines)


def _done(number: str, kept: Kept) -> list[str]:
    """How much of a chapter's predictions, exercises and quiz is done, each in a few words."""
    chapter, tasks = questions.load(number), exercises(number)
    predicted = sum(
        questions.chosen(prediction, kept.predicted(prediction.id)) is not None
        for prediction in chapter.predictions
    )
    earned = sum(_earned(task, kept) or 0 for task in tasks)
    points, _, _ = score(chapter.questions, kept)
    parts = (
        ("Predictions", predicted, len(chapter.predictions), ""),
        ("Exercises", earned, sum(task.points for task in tasks), " points"),
        ("Quiz", points, sum(question.points for question in chapter.questions), " points"),
    )
    return [f"{name} {done:g} of {of}{unit}" for name, done, of, unit in parts if of]


def _results(number: str, kept: Kept) -> list[tuple[str, str, str]]:
    """Part, what and how far, for each prediction, exercise and the quiz of one chapter."""
    chapter = questions.load(number)
    results = [
        ("Prediction", " ".join(questions.paragraphs(prediction.prompt)), _predicted(prediction, kept))
        for prediction in chapter.predictions
    ]
    for task in exercises(number):
        best = _earned(task, kept)
        done = "not attempted yet" if best is None else f"{best:g} of {task.points} points"
        results.append(("Exercise", task.title, done))
    if chapter.questions:
        points, answered, _ = score(chapter.questions, kept)
        of = sum(question.points for question in chapter.questions)
        results.append(
            ("Quiz", f"{answered} of {len(chapter.questions)} answered", f"{points} of {of} points")
        )
    return results


def _earned(task: Exercise, kept: Kept) -> float | None:
    """The best points of an exercise, but not more than it gives today; None if it was never checked."""
    best = kept.best(task.id)
    return None if best is None else min(best, task.points)


def _predicted(prediction: questions.Prediction, kept: Kept) -> str:
    option = questions.chosen(prediction, kept.predicted(prediction.id))
    if option is None:
        return "not predicted yet"
    measured = kept.measured(prediction.id)
    if measured is None:
        return f"“{option.text}”, not measured yet"
    verdict = "a match" if option.holds(measured) else "a surprise"
    return f"“{option.text}”; measured {questions.words(measured)}: {verdict}"


def _show(caption: str, columns: list[str], bodies: str, lines: list[str]) -> None:
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    notice = store().notice()
    told = f'<p class="sb-say">{html.escape(notice)}</p>' if notice else ""
    table = f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead>{bodies}</table>"
    card.show(table + told, "\n".join(line for line in (caption, *lines, notice) if line))


def _code(text: str) -> str:
    """Text with `code` between backticks as HTML."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if n % 2 else part for n, part in enumerate(parts))
