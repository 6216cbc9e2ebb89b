"""Writes the end of each lesson, "Where this comes from", from the claims of its chapter.

    python tools/sources.py            every lesson
    python tools/sources.py --check    write nothing; exit 1 and name each lesson whose end is out of date
    python tools/sources.py 04 07      these chapters

It also brings the numbers in lessons and solutions up to date: a cell's metadata says which claim holds each
number in its text, as {"values": {"1.81×": "08-sage.inference"}}.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import canonical
from nbformat import NotebookNode

from samebits import claims, course
from samebits.claims import Claim

ROOT = Path(__file__).resolve().parent.parent
CELL = "sources"
NO_CLAIM = {"arithmetic", "setting"}  # a number that follows from others in the text, or that somebody chose

HERE = "Checked on your machine"
ON_GPU = "Checked where there is an NVIDIA GPU"
SOURCE_ONLY = "From a source, not verified here"

_INTRODUCTION = """## Where this comes from

What is said here of libraries and hardware is a list of claims. `./course claims` runs each check below against \
what *you* have installed, beside a control under which it must fail, and says which claim no longer holds. \
Every other statement is what the cell beside it shows."""


def cell_text(number: str) -> str:
    """The source of the last section of chapter `number`'s lesson."""
    groups: dict[str, list[Claim]] = {}
    for claim in claims.of_chapter(number):
        groups.setdefault(_group(claim), []).append(claim)
    parts = [_INTRODUCTION]
    for name in (HERE, ON_GPU, SOURCE_ONLY):
        if found := groups.get(name):
            lines = [_line(claim) for claim in found]
            parts.append(
                f"<details>\n<summary>{name}: {len(found)}</summary>\n\n"
                + "\n".join(lines)
                + "\n\n</details>"
            )
    return "\n\n".join(parts)


def _group(claim: Claim) -> str:
    if claim.check is None:
        return SOURCE_ONLY
    return ON_GPU if "cuda" in claim.needs else HERE


def _line(claim: Claim) -> str:
    """One claim: the sentence, the check's control, the source."""
    versions = f" ({', '.join(map(str, claim.versions))})" if claim.versions else ""
    control = f" Control: {claim.check.control}." if claim.check else ""
    source = f" Source: {claim.source}." if claim.source else ""
    on_gpu = " Not verified on a GPU yet." if _group(claim) == ON_GPU and not claims.recorded(claim) else ""
    return f"- {_ended(claim.says)}{versions}{control}{_ended(source) if source else ''}{on_gpu}"


def _ended(text: str) -> str:
    text = text.rstrip(".") if text.endswith("..") else text
    return text if text.endswith((".", "?", "!")) else text + "."


def with_values(cell: NotebookNode) -> None:
    """Bring the numbers of one cell up to date, in its text and in its metadata."""
    values = cell.metadata.get("values", {})
    fresh = {}
    for text, reference in values.items():
        current = text if reference in NO_CLAIM else claims.value(reference)
        if current != text:
            cell.source = re.sub(_as_a_whole(text), lambda _, new=current: new, cell.source)
        fresh[current] = reference
    if fresh != values:
        cell.metadata["values"] = fresh


def _as_a_whole(text: str) -> str:
    return (
        rf"(?<![\w.,]){re.escape(text)}(?![\w])" if text[-1].isalnum() else rf"(?<![\w.,]){re.escape(text)}"
    )


def updated(notebook: NotebookNode, number: str, lesson: bool) -> NotebookNode:
    """`notebook` with its numbers and, if it is a lesson, its last section as the claims have them."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            with_values(cell)
            if lesson and cell.id == CELL:
                cell.source = cell_text(number)
    return notebook


def main(arguments: list[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    asked = [word for word in words if word != "--check"]
    old = []
    for chapter in course.CHAPTERS:
        if asked and chapter.number not in asked:
            continue
        for folder in ("notebooks", "solutions"):
            path = ROOT / folder / chapter.notebook
            if not path.exists():
                continue
            notebook = canonical.read(path)
            before = canonical.to_bytes(notebook)
            if canonical.to_bytes(updated(notebook, chapter.number, folder == "notebooks")) != before:
                old.append(f"{folder}/{chapter.notebook}")
                if "--check" not in words:
                    canonical.write(notebook, path)
    print("\n".join(f"{'out of date' if '--check' in words else 'written'}: {name}" for name in old))
    sys.exit(1 if old and "--check" in words else 0)


if __name__ == "__main__":
    main()
