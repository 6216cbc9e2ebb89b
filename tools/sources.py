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
from canonical import Refused
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
    """Bring the numbers of one cell up to date, in its text and in its metadata. Raises Refused."""
    values = cell.metadata.get("values", {})
    current = {text: text if ref in NO_CLAIM else claims.value(ref) for text, ref in values.items()}
    fresh: dict[str, str] = {}
    for text, reference in values.items():
        if fresh.setdefault(current[text], reference) != reference:
            raise Refused(
                f"Cell {cell.id} would say {current[text]} for {fresh[current[text]]} and {reference}, and could not "
                "tell them apart later. Give one of them more words."
            )
    if fresh != values:
        # All at once, since one number may become what another one was; the longest first, since one may be in another.
        pattern = "|".join(map(whole, sorted(values, key=len, reverse=True)))
        cell.source = re.sub(pattern, lambda found: current[found[0]], cell.source)
        cell.metadata["values"] = fresh


def whole(text: str) -> str:
    """A pattern for `text` where it stands for itself: "5 %" is not in "0.5 %", nor 12 in 12.5, nor 5× in 5×10⁻³."""
    after = r"(?!\w|[.,]\d)" if text[-1:].isalnum() else r"(?!\d)"
    return rf"(?<![\w.,]){re.escape(text)}{after}" if text else r"(?!)"


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
    numbers = [chapter.number for chapter in course.CHAPTERS]
    if unknown := [word for word in asked if word not in numbers]:
        sys.exit(f"There is no chapter {unknown[0]}. Possible: {', '.join(numbers)}, and --check.")
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
            try:
                after = canonical.to_bytes(updated(notebook, chapter.number, folder == "notebooks"))
            except (Refused, claims.Malformed) as error:
                sys.exit(f"{folder}/{chapter.notebook}: {error}")
            if after != before:
                old.append(f"{folder}/{chapter.notebook}")
                if "--check" not in words:
                    canonical.write(notebook, path)
    print("\n".join(f"{'out of date' if '--check' in words else 'written'}: {name}" for name in old))
    sys.exit(1 if old and "--check" in words else 0)


if __name__ == "__main__":
    main()
