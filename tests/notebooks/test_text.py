"""Notebooks as text: what goes through the text form comes back byte for byte."""

from __future__ import annotations

from pathlib import Path

import canonical
import lint
import pytest
import text
from canonical import Refused

FIXTURES = Path(__file__).parent / "fixtures"
FILES = [*FIXTURES.glob("*.ipynb"), *lint.notebooks()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_round_trip_gives_the_same_bytes(path):
    notebook = canonical.read(path)
    again = text.from_text(text.to_text(notebook))
    assert canonical.to_bytes(again) == canonical.to_bytes(canonical.without_outputs(notebook))


def test_the_text_holds_ids_tags_metadata_and_nothing_of_the_layout():
    shown = text.to_text(canonical.read(FIXTURES / "solution.ipynb"))
    assert "\n=== markdown note remove-in-lab\n" in shown
    assert "\n=== code toy-double solution\n" in shown
    assert "\n=== code toy-double-check points=2\n" in shown
    assert '\n=== code toy-other {"nbval_timeout": 10, "tags": []}\n' in shown
    assert "\n\\=== this line is no header\n" in shown


def test_a_missing_blank_line_between_cells_is_no_difference():
    assert text.to_text(text.from_text("=== code a\n1\n=== code b\n2")) == "=== code a\n1\n\n=== code b\n2\n"


@pytest.mark.parametrize(
    "metadata",
    [
        {"tags": ["two words"]},
        {"tags": ["solution"]},
        {"tags": ["points=3"]},
        {"tags": ["{brace"]},
        {"tags": ["gpu"], "nbgrader": text.solution_metadata("another-id")},
        {"nbgrader": text.graded_metadata("a", 3) | {"points": 2.5}},
        {"note": 'braces } { and "quotes" and \n lines'},
    ],
)
def test_metadata_that_the_short_words_cannot_say_survives(metadata):
    notebook = text.from_text("=== code a\n1")
    notebook.cells[0].metadata.update(metadata)
    assert text.from_text(text.to_text(notebook)) == notebook


@pytest.mark.parametrize(
    "source", ["===", "=== code x", "\\=== code x", "\\\\=== x", "====", "a\n=== b\n\nc"]
)
def test_a_source_that_looks_like_a_header_survives(source):
    notebook = text.from_text("=== code a\n1\n\n=== code b\n2")
    notebook.cells[0].source = source
    assert text.from_text(text.to_text(notebook)) == notebook


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("text\n=== code a", "Line 1 comes before the first cell"),
        ("=== code a\n=== code", "Line 2 is no header"),
        ("=== poem a\n1", "Line 1 is no header"),
        ('=== code a {"b": }\n1', "Line 1 ends in metadata that is not JSON"),
        ("=== code a\n1\n=== code a\n2", "no valid notebook"),
        ("=== code grüße\n1", "Line 1 is no header"),
    ],
)
def test_a_text_that_is_no_notebook_is_refused_in_one_sentence(written, sentence):
    with pytest.raises(Refused, match=sentence):
        text.from_text(written)


def test_attachments_are_refused_rather_than_lost():
    notebook = text.from_text("=== markdown a\n![dot](attachment:dot.png)")
    notebook.cells[0].attachments = {"dot.png": {"image/png": ""}}
    with pytest.raises(Refused, match="Cell a has an attachment"):
        text.to_text(notebook)


@pytest.fixture
def lesson(tmp_path) -> Path:
    path = tmp_path / "lesson.ipynb"
    path.write_bytes((FIXTURES / "lesson.ipynb").read_bytes())
    return path


def test_outputs_stay_when_only_prose_is_edited(lesson, tmp_path):
    shown = text.to_text(canonical.read(lesson)).replace("A lesson", "A better lesson")
    (tmp_path / "lesson.txt").write_text(shown, encoding="utf-8")
    before = canonical.read(lesson).cells[1:]
    text.main(["from-text", str(tmp_path / "lesson.txt"), str(lesson)])
    assert canonical.read(lesson).cells[0].source == "# A better lesson · with Unicode"
    assert canonical.read(lesson).cells[1:] == before


def test_all_outputs_go_when_code_is_edited(lesson, tmp_path):
    shown = text.to_text(canonical.read(lesson)).replace("1e20", "1e19")
    (tmp_path / "lesson.txt").write_text(shown, encoding="utf-8")
    text.main(["from-text", str(tmp_path / "lesson.txt"), str(lesson)])
    assert not any(
        cell.get("outputs") or cell.get("execution_count") for cell in canonical.read(lesson).cells
    )


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"nbformat": 4}', '{"nbformat": 4, "nbformat_minor": 4, "cells": [], "metadata": {}}'],
)
def test_a_file_that_is_no_notebook_is_refused_in_one_sentence(content, tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text(content)
    with pytest.raises(Refused, match=r"^x\.ipynb is "):
        canonical.read(path)
