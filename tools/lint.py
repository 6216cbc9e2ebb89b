"""What every notebook of the course has, and what none may have.

    python tools/lint.py                           every notebook
    python tools/lint.py notebooks/02_….ipynb      this one

Each rule is a function that yields one sentence for each thing to mend. How a notebook is written as text
is in tools/text.py; what an exercise needs is refused by tools/derive.py already.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import canonical
import derive
import outputs
import sources
from canonical import Refused
from nbformat import NotebookNode

from samebits import claims, course
from samebits.course import Chapter
from samebits.lab import questions

ROOT = Path(__file__).resolve().parent.parent

KINDS = {"notebooks": "lesson", "labs": "lab", "solutions": "solution"}
TAGS = {"gpu", "nbval-check-output", "remove-in-lab", "tensorflow"}
BANNED = ("simply", "just", "obviously")
CLOSING = ["Say it out loud", "Questions to expect", "Where this comes from"]
LONGEST_CELL, LONGEST_MEDIAN = 25, 6


@dataclass(frozen=True)
class Size:
    """How long a lesson may be, and how many of its cells must be compared when it is tested."""

    cells: range
    words: range
    compared: int


LESSON = Size(range(25, 46), range(900, 1801), 5)
START_HERE = Size(range(8, 26), range(250, 901), 1)


@dataclass(frozen=True)
class Notebook:
    """A notebook where it stands: its folder says whether it is a lesson, a lab or a solution."""

    path: Path
    kind: str
    chapter: Chapter
    content: NotebookNode

    def cells(self, kind: str) -> list[NotebookNode]:
        return [cell for cell in self.content.cells if cell.cell_type == kind]

    @property
    def first(self) -> str:
        return self.content.cells[0].source if self.content.cells else ""


Rule = Callable[[Notebook], Iterator[str]]


def lint(path: Path) -> list[str]:
    """One sentence for each thing to mend in the notebook at `path`; an empty list if there is none."""
    kind = KINDS[path.parent.name]
    chapters = [chapter for chapter in course.CHAPTERS if chapter.notebook == path.name]
    if not chapters:
        return [f"No chapter in course.py has a notebook {path.name}."]
    try:
        notebook = Notebook(path, kind, chapters[0], canonical.read(path))
        canonical.validate(notebook.content)
    except Refused as error:
        return [str(error)]
    if not notebook.content.cells:
        return ["The notebook has no cells."]
    return [sentence for rule in RULES[kind] for sentence in rule(notebook)]


# --- Every notebook --------------------------------------------------------------------------------------


def layout(notebook: Notebook) -> Iterator[str]:
    if notebook.path.read_bytes() != canonical.to_bytes(notebook.content):
        yield "The file is not in the course's layout; write it through tools/text.py to-text and from-text."


def header(notebook: Notebook) -> Iterator[str]:
    chapter = notebook.chapter
    title = f"# {chapter.number} · {chapter.title}" + ("" if notebook.kind == "lesson" else ": lab")
    minutes = chapter.lesson if notebook.kind == "lesson" else chapter.lab
    if notebook.first.splitlines()[:1] != [title]:
        yield f"The first cell does not begin with the title '{title}'."
    if not re.search(r"You will be able to\b.*\n+- ", notebook.first):
        yield "The first cell does not say 'You will be able to' with a list of objectives."
    if f"**Time:** about {minutes} minutes" not in notebook.first:
        yield f"The first cell does not say '**Time:** about {minutes} minutes', as course.py does."
    if f"**Needs:** {chapter.needs}" not in notebook.first:
        yield f"The first cell does not say '**Needs:** {chapter.needs}', as course.py does."
    if chapter.after and "**Before this:**" not in notebook.first:
        yield "The first cell does not name what to do first, after '**Before this:**'."


def cells_hold_something(notebook: Notebook) -> Iterator[str]:
    for cell in notebook.content.cells:
        if cell.cell_type == "raw":
            yield f"Cell {cell.id} is raw, which JupyterLab shows as it is written; make it Markdown or code."
        elif not cell.source.strip():
            yield f"Cell {cell.id} is empty."


# Headings that the rules below would not see: underlined ones, and HTML's.
OTHER_HEADING = re.compile(r"^[^\s|>#-][^|\n]*\n(=+|-{2,})[ \t]*$|^<h[1-6]\b", re.MULTILINE | re.IGNORECASE)


def headings(notebook: Notebook) -> Iterator[str]:
    for cell in notebook.cells("markdown"):
        if OTHER_HEADING.search(_without_fences(cell.source)):
            yield f"Cell {cell.id} has a heading without '#' marks, which JupyterLab's table of contents may leave out."
    levels = [(len(marks), cell) for cell, marks, _ in _headings(notebook)]
    if [level for level, _ in levels].count(1) != 1:
        yield "There is not one '#' heading."
    for (before, _), (level, cell) in zip(levels, levels[1:], strict=False):
        if level > before + 1:
            yield f"Cell {cell.id} jumps from a heading of level {before} to one of level {level}."


def alternative_text(notebook: Notebook) -> Iterator[str]:
    for cell in notebook.cells("markdown"):
        if re.search(r"!\[\s*\][(\[]", _without_code(cell.source)) or _lacks_alt(_without_code(cell.source)):
            yield f"Cell {cell.id} has an image without alternative text."
    for cell in notebook.cells("code"):
        for output in cell.outputs:
            data = output.get("data", {})
            html = "".join(data.get("text/html", ""))
            if _lacks_alt(html) or ("image/png" in data and "<img" not in html):
                yield f"Cell {cell.id} puts out an image without alternative text; use lab.figure."


def tags(notebook: Notebook) -> Iterator[str]:
    for cell in notebook.content.cells:
        if unknown := _tags(cell) - TAGS:
            yield f"Cell {cell.id} has a tag that means nothing here: {', '.join(sorted(unknown))}."
        if "NBVAL_" in cell.source:
            yield f"Cell {cell.id} has a marker for the test runner in its source; use a tag."


def code_parses(notebook: Notebook) -> Iterator[str]:
    for cell in notebook.cells("code"):
        if not derive.parses(cell.source):
            yield f"Cell {cell.id} does not parse."


def plain_words(notebook: Notebook) -> Iterator[str]:
    for cell in notebook.cells("markdown"):
        for word in BANNED:
            if re.search(rf"\b{word}\b", _prose(cell.source), re.IGNORECASE):
                yield f"Cell {cell.id} says '{word}'; leave the word out."


# [text](target "title"), [text](<target>), [reference]: target, and HTML's attributes with and without quotes.
LINK = re.compile(
    r"\]\((?:<([^>\n]+)>|([^)\s>]+))[^)]*\)|^ {0,3}\[[^\]\n]+\]:\s*<?([^\s>]+)"
    r"|\b(?:href|src)\s*=\s*(?:\"([^\"]+)\"|'([^']+)'|([^\s\"'>]+))",
    re.MULTILINE | re.IGNORECASE,
)


def links(notebook: Notebook) -> Iterator[str]:
    """Links to files of the course, which lie in its three folders, and to headings; the web is not asked."""
    course_folders = [(notebook.path.parent.parent / folder).resolve() for folder in KINDS]
    for cell in notebook.cells("markdown"):
        text = _without_code(cell.source)
        for target in LINK.findall(text):
            target = next(filter(None, target))
            if re.match(r"(https?|mailto|data):", target):
                continue
            file, _, anchor = unquote(target).partition("#")
            linked = (notebook.path.parent / file).resolve() if file else notebook.path
            if not linked.exists():
                yield f"Cell {cell.id} links to {file}, which is not there."
            elif file and not any(linked.is_relative_to(folder) for folder in course_folders):
                # ./course lab copies no more than the notebooks.
                yield f"Cell {cell.id} links to {file}, which a learner's copy of the course does not have."
            elif anchor and anchor not in _anchors(notebook.content if not file else canonical.read(linked)):
                where = file or "this notebook"
                yield f"Cell {cell.id} links to a heading #{anchor}, which is not in {where}."


def no_machine_paths(notebook: Notebook) -> Iterator[str]:
    for cell in notebook.content.cells:
        found = outputs.MACHINE_PATH.search(cell.source)
        if found or any(map(outputs.machine_path, cell.get("outputs", []))):
            yield f"Cell {cell.id} names a place on somebody's machine."


# A number with a unit that something was measured or computed in; words such as "about 25 minutes" are not meant.
QUANTITY = re.compile(
    r"(?<![\w.,:])\d[\d.,]*(?:\s?(?:to|–|-)\s?\d[\d.,]*)?\s?(?:×|%|(?:ms|µs|s|seconds|GB/s|[KMG]i?B|ULPs?)\b)"
    r"|(?<![\w.,:])\d+(?:\.\d+)?e[-−]\d+"
)


def numbers_come_from_claims(notebook: Notebook) -> Iterator[str]:
    """A measured or published number in prose stands in the cell's metadata with the claim that holds it."""
    for cell in notebook.cells("markdown"):
        if cell.id == sources.CELL:
            continue
        values = cell.metadata.get("values", {})
        prose = _prose(cell.source)
        for text, reference in values.items():
            if not re.search(sources.whole(text), cell.source):
                yield f"Cell {cell.id} maps {text} to {reference}, but does not say it."
            elif reference not in sources.NO_CLAIM:
                try:
                    current = claims.value(reference)
                except claims.Malformed as error:
                    yield f"Cell {cell.id} takes a number from a claim: {error}"
                    continue
                if current != text:
                    yield f"Cell {cell.id} says {text} where {reference} is {current}; run tools/sources.py."
            prose = re.sub(sources.whole(text), "", prose)
        for found in QUANTITY.finditer(prose):
            yield f"Cell {cell.id} says '{found[0]}' and does not say from which claim (tools/sources.py)."


def claims_are_said(notebook: Notebook) -> Iterator[str]:
    """The places that claims name in this notebook, and in the chapter's quiz, are there."""
    cells = {cell.id for cell in notebook.content.cells}
    quiz = {question.id for question in questions.load(notebook.chapter.number).questions}
    for claim in claims.of_chapter(notebook.chapter.number):
        for place in claim.places:
            where, _, name = place.partition(" ")
            if where not in ("lesson", "lab", "quiz"):
                yield f"Claim {claim.id} is said at '{place}'; a place is 'lesson', 'lab' or 'quiz' and an id."
            elif where == "quiz" and name not in quiz:
                yield f"Claim {claim.id} is said in the quiz question {name}, which is not there."
            elif where == {"solution": "lab"}.get(notebook.kind, notebook.kind) and name not in cells:
                yield f"Claim {claim.id} is said in cell {name}, which is not there."


# --- Lessons ---------------------------------------------------------------------------------------------


def size(notebook: Notebook) -> Iterator[str]:
    allowed = _size(notebook)
    count = len(notebook.content.cells)
    written = [cell for cell in notebook.cells("markdown") if cell.id != sources.CELL]
    words = sum(len(re.sub(r"<[^>]+>", " ", cell.source).split()) for cell in written)
    lengths = [_lines(cell.source) for cell in notebook.cells("code")]
    if count not in allowed.cells:
        yield f"A lesson has {allowed.cells[0]} to {allowed.cells[-1]} cells; this one has {count}."
    if words not in allowed.words:
        yield f"A lesson has {allowed.words[0]} to {allowed.words[-1]} words of text; this one has {words}."
    if lengths and statistics.median(lengths) > LONGEST_MEDIAN:
        yield f"Half of the code cells are longer than {LONGEST_MEDIAN} lines; split them."


def cell_sizes(notebook: Notebook) -> Iterator[str]:
    for cell in notebook.cells("code"):
        if (length := _lines(cell.source)) > LONGEST_CELL:
            yield f"Cell {cell.id} has {length} lines; the most is {LONGEST_CELL}."


def closing_sections(notebook: Notebook) -> Iterator[str]:
    sections = [text for _, marks, text in _headings(notebook) if marks == "##"]
    if sections[-len(CLOSING) :] != CLOSING:
        yield f"The last sections are not {', '.join(CLOSING)}."


def closing_is_from_the_claims(notebook: Notebook) -> Iterator[str]:
    last = notebook.content.cells[-1]
    if last.id != sources.CELL or last.source != sources.cell_text(notebook.chapter.number):
        yield f"The last cell, '{sources.CELL}', is not what the claims say; run tools/sources.py."


def compared_cells(notebook: Notebook) -> Iterator[str]:
    """nbval compares a cell only if it has an execution count, and passes in silence otherwise."""
    # A cell that needs a card is not compared on most machines, so it does not count.
    compared = [
        cell
        for cell in notebook.cells("code")
        if "nbval-check-output" in _tags(cell) and "gpu" not in _tags(cell)
    ]
    if len(compared) < _size(notebook).compared:
        yield (
            f"{_size(notebook).compared} cells or more must be compared when this lesson is tested (tag "
            f"nbval-check-output); {len(compared)} are."
        )
    for cell in compared:
        if not cell.outputs:
            yield f"Cell {cell.id} is tagged to be compared but has no stored output."


def stored_outputs(notebook: Notebook) -> Iterator[str]:
    """The outputs are those of one run from top to bottom, and only of the kinds that outputs.py keeps."""
    count = 0
    for cell in notebook.cells("code"):
        if "gpu" in _tags(cell) and cell.execution_count is None:
            continue
        count += 1
        if cell.execution_count != count:
            yield f"Cell {cell.id} was not run with the others; run tools/outputs.py on this lesson."
            return
    if outputs.kept(notebook.content) != notebook.content:
        yield "An output is of a kind that is not stored; run tools/outputs.py on this lesson."


# --- Labs and solutions ----------------------------------------------------------------------------------


def no_outputs(notebook: Notebook) -> Iterator[str]:
    for cell in notebook.cells("code"):
        if cell.outputs or cell.execution_count is not None:
            yield f"Cell {cell.id} has a stored output or count; clear the outputs of this notebook."


def graded_cells(notebook: Notebook) -> Iterator[str]:
    """Under nbgrader whatever a graded cell writes to stderr costs its points, and frameworks do."""
    for cell in notebook.cells("code"):
        if "points" in cell.metadata.get("nbgrader", {}) and re.search(
            r"\b(torch|tensorflow)\b", cell.source
        ):
            yield f"Cell {cell.id} is graded and names a framework; let the check run it in a worker."


EVERYWHERE = [
    layout,
    header,
    cells_hold_something,
    headings,
    alternative_text,
    tags,
    code_parses,
    plain_words,
    links,
    no_machine_paths,
    numbers_come_from_claims,
    claims_are_said,
]
RULES: dict[str, list[Rule]] = {
    "lesson": [
        *EVERYWHERE,
        size,
        cell_sizes,
        closing_sections,
        closing_is_from_the_claims,
        compared_cells,
        stored_outputs,
    ],
    # A solution's cells may be longer: its docstrings are the lab's, and its answers are read and not written.
    "lab": [*EVERYWHERE, cell_sizes, no_outputs, graded_cells],
    "solution": [*EVERYWHERE, no_outputs, graded_cells],
}


def _size(notebook: Notebook) -> Size:
    return START_HERE if notebook.chapter.number == "00" else LESSON


def _tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


def _anchors(content: NotebookNode) -> set[str]:
    """What JupyterLab makes of the headings: their text, with hyphens for spaces."""
    cells = [cell for cell in content.cells if cell.cell_type == "markdown"]
    return {text.strip().replace(" ", "-") for cell in cells for _, text in _marked(cell)}


def _headings(notebook: Notebook) -> Iterator[tuple[NotebookNode, str, str]]:
    """Each Markdown heading: its cell, its marks, its text."""
    for cell in notebook.cells("markdown"):
        for marks, text in _marked(cell):
            yield cell, marks, text


def _marked(cell: NotebookNode) -> list[tuple[str, str]]:
    return re.findall(r"^(#{1,6}) +(.*?)\s*$", _without_fences(cell.source), re.MULTILINE)


def _lacks_alt(html: str) -> bool:
    return any(
        not re.search(r"\balt=(\"[^\"]*[^\"\s][^\"]*\"|'[^']*[^'\s][^']*')", tag)
        for tag in re.findall(r"<img\b[^>]*>", html, re.IGNORECASE)
    )


def _without_fences(source: str) -> str:
    return re.sub(r"^```.*?^```", "", source, flags=re.MULTILINE | re.DOTALL)


def _without_code(source: str) -> str:
    return re.sub(r"`[^`\n]*`", "", _without_fences(source))


def _prose(source: str) -> str:
    """Markdown without code and without the targets of its links."""
    return re.sub(r"\]\([^)]*\)", "]", _without_code(source))


def _lines(source: str) -> int:
    return sum(bool(line.strip()) for line in source.splitlines())


def notebooks(root: Path = ROOT) -> list[Path]:
    """Every lesson, lab and solution."""
    return [path for folder in KINDS for path in sorted((root / folder).glob("*.ipynb"))]


def main(arguments: list[str] | None = None) -> None:
    asked = [Path(name).resolve() for name in (sys.argv[1:] if arguments is None else arguments)]
    sentences = [
        f"{path.parent.name}/{path.name}: {line}" for path in asked or notebooks() for line in lint(path)
    ]
    sys.exit("\n".join(sentences) if sentences else 0)


if __name__ == "__main__":
    main()
