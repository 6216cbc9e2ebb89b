"""Notebooks as plain text, to write and to review them.

    python tools/text.py to-text notebooks/02_atomicadd_ordering.ipynb > /tmp/02.txt
    python tools/text.py from-text /tmp/02.txt notebooks/02_atomicadd_ordering.ipynb

A cell is one header line and its source; a blank line before the next header belongs to neither.

    === markdown header
    # 02 · atomicAdd ordering

    === code race nbval-check-output
    twenty = repeat(race)
    lab.tiles(twenty)

    === code 02-block-tree solution
    def block_tree(x, out):
        ### BEGIN SOLUTION
        …
        ### END SOLUTION

    === code 02-block-tree-check points=3
    lab.check("02-block-tree", block_tree)

The header: `===`, the cell's type, its id, then its tags. Two words are no tags, and stand for nbgrader's
metadata with the cell's id as grade_id: `solution` (the learner writes here) and `points=N` (a locked,
graded cell). Any other metadata is a JSON object at the end of the line. A line of source that would read
as a header gets a backslash in front.

The text holds no outputs: `from-text` keeps those of the notebook that it overwrites if no code cell has
changed, and drops all of them otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import canonical
import nbformat
from canonical import Refused
from nbformat import NotebookNode

HEADER = re.compile(
    r"=== (?P<type>markdown|code|raw) (?P<id>[A-Za-z0-9_-]+)(?P<words>( [^\s{]\S*)*)( (?P<metadata>{.*}))?"
)
LOOKS_LIKE_HEADER = re.compile(r"\\*===( |$)")
POINTS = re.compile(r"points=(\d+)")


def to_text(notebook: NotebookNode) -> str:
    """The text form of `notebook`, without outputs. Raises Refused for what it cannot hold (attachments)."""
    cells = canonical.canonical(notebook).cells
    return "\n".join(f"{_header(cell)}\n{_escaped(cell.source)}\n" for cell in cells)


def from_text(text: str) -> NotebookNode:
    """The notebook for a text. Raises Refused, naming the line, for a header that says nothing valid."""
    notebook = nbformat.v4.new_notebook()
    for number, line in enumerate(text.splitlines(), start=1):
        if re.match("===( |$)", line):
            notebook.cells.append(_cell(line, number))
        elif notebook.cells:
            notebook.cells[-1].source += (line[1:] if LOOKS_LIKE_HEADER.match(line) else line) + "\n"
        elif line.strip():
            raise Refused(f"Line {number} comes before the first cell; begin with '=== markdown title'.")
    notebook = canonical.canonical(notebook)
    canonical.validate(notebook)
    return notebook


def solution_metadata(grade_id: str) -> dict:
    """nbgrader's metadata for a cell that the learner writes."""
    return _nbgrader(grade_id, solution=True)


def graded_metadata(grade_id: str, points: int) -> dict:
    """nbgrader's metadata for a locked cell that is worth points."""
    return _nbgrader(grade_id, grade=True, locked=True, points=points)


def _nbgrader(grade_id: str, **values) -> dict:
    plain = {"grade": False, "locked": False, "solution": False, "task": False}
    return {"grade_id": grade_id, "schema_version": 3} | plain | values


def _header(cell: NotebookNode) -> str:
    if cell.get("attachments"):
        raise Refused(f"Cell {cell.id} has an attachment, which text cannot hold; put the picture in a file.")
    metadata = json.loads(json.dumps(cell.metadata))
    words = ["===", cell.cell_type, cell.id]
    if all(re.fullmatch(r"[^\s{]\S*", tag) and not _is_reserved(tag) for tag in metadata.get("tags", [])):
        # An empty list stays in the JSON: it is not the same bytes as no list.
        words += metadata.pop("tags") if metadata.get("tags") else []
    nbgrader = metadata.get("nbgrader")
    if nbgrader == solution_metadata(cell.id):
        words.append("solution")
        del metadata["nbgrader"]
    elif (
        nbgrader
        and POINTS.fullmatch(f"points={nbgrader.get('points')}")
        and nbgrader == graded_metadata(cell.id, nbgrader["points"])
    ):
        words.append(f"points={nbgrader['points']}")
        del metadata["nbgrader"]
    if metadata:
        words.append(json.dumps(metadata, ensure_ascii=False, sort_keys=True))
    return " ".join(words)


def _cell(line: str, number: int) -> NotebookNode:
    header = HEADER.fullmatch(line.rstrip())
    if not header:
        raise Refused(
            f"Line {number} is no header: {line!r}. Write '=== code some-id tag … {{…}}', or a backslash "
            "before '===' if it belongs to the cell above."
        )
    try:
        metadata = json.loads(header["metadata"] or "{}")
    except ValueError as error:
        raise Refused(f"Line {number} ends in metadata that is not JSON: {error}.") from error
    for word in header["words"].split():
        if word == "solution":
            metadata["nbgrader"] = solution_metadata(header["id"])
        elif points := POINTS.fullmatch(word):
            metadata["nbgrader"] = graded_metadata(header["id"], int(points[1]))
        else:
            metadata.setdefault("tags", []).append(word)
    new = getattr(nbformat.v4, f"new_{header['type']}_cell")
    return new(id=header["id"], metadata=metadata)


def _is_reserved(word: str) -> bool:
    return word == "solution" or bool(POINTS.fullmatch(word))


def _escaped(source: str) -> str:
    return "\n".join(f"\\{line}" if LOOKS_LIKE_HEADER.match(line) else line for line in source.split("\n"))


def _with_outputs_of(notebook: NotebookNode, old: NotebookNode) -> NotebookNode:
    """`notebook` with the outputs of `old` if both have the same code cells, else without any."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    old_code = [cell for cell in canonical.canonical(old).cells if cell.cell_type == "code"]
    if [(cell.id, cell.source) for cell in code] == [(cell.id, cell.source) for cell in old_code]:
        for cell, old_cell in zip(code, old_code, strict=True):
            cell.outputs, cell.execution_count = old_cell.outputs, old_cell.execution_count
    return notebook


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Notebooks as plain text, to write and to review them.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("to-text").add_argument("notebook", type=Path)
    from_text_parser = commands.add_parser("from-text")
    from_text_parser.add_argument("text", type=Path)
    from_text_parser.add_argument("notebook", type=Path)
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "to-text":
            sys.stdout.write(to_text(canonical.read(asked.notebook)))
        else:
            notebook = from_text(asked.text.read_text(encoding="utf-8"))
            if asked.notebook.exists():
                notebook = _with_outputs_of(notebook, canonical.read(asked.notebook))
            canonical.write(notebook, asked.notebook)
    except Refused as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
