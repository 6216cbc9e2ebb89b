"""The numbers in prose follow their claims, each as a whole number, and the command says what it did not do."""

from __future__ import annotations

import pytest
import sources
from canonical import Refused
from nbformat import NotebookNode, v4

from samebits import claims


@pytest.fixture
def cell_with(monkeypatch):
    """(text, {number: reference}, {reference: value now}) → the cell, brought up to date."""

    def make(text: str, values: dict[str, str], now: dict[str, str]) -> NotebookNode:
        monkeypatch.setattr(claims, "value", now.__getitem__)
        cell = v4.new_markdown_cell(text, id="price", metadata={"values": values})
        sources.with_values(cell)
        return cell

    return make


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        ("5 %", "6 %", "0.5 %, 15 % and 5 %.", "0.5 %, 15 % and 6 %."),
        ("12", "13", "12, 12.5, 12,000, 112, 1.12 and 12.", "13, 12.5, 12,000, 112, 1.12 and 13."),
        ("5×", "6×", "5×10⁻³ is not 5×.", "5×10⁻³ is not 6×."),
        ("3 ms", "4 ms", "3 msec, 13 ms, (3 ms).", "3 msec, 13 ms, (4 ms)."),
        ("a third", "a half", "a third, a thirdly", "a half, a thirdly"),
    ],
)
def test_a_number_that_only_contains_it_stays(cell_with, old, new, before, after):
    cell = cell_with(before, {old: "08-a.x"}, {"08-a.x": new})
    assert cell.source == after
    assert cell.metadata["values"] == {new: "08-a.x"}


def test_numbers_that_take_each_others_place_are_not_confused(cell_with):
    cell = cell_with(
        "1× off, 2× on", {"1×": "08-a.off", "2×": "08-a.on"}, {"08-a.off": "2×", "08-a.on": "1×"}
    )
    assert cell.source == "2× off, 1× on"
    assert cell.metadata["values"] == {"2×": "08-a.off", "1×": "08-a.on"}


def test_numbers_that_would_look_alike_are_refused(cell_with):
    with pytest.raises(Refused, match="Cell price.*2×.*08-a.off and 08-a.on"):
        cell_with("1× off, 2× on", {"1×": "08-a.off", "2×": "08-a.on"}, {"08-a.off": "2×", "08-a.on": "2×"})


def test_what_nobody_measured_stays(cell_with):
    assert cell_with("2 runs, 3×", {"2 runs": "setting", "3×": "arithmetic"}, {}).source == "2 runs, 3×"


@pytest.mark.parametrize("word", ["--chek", "99", "8"])
def test_what_it_does_not_know_is_said(word, capsys):
    with pytest.raises(SystemExit) as ended:
        sources.main(["--check", word])
    assert word in str(ended.value.code)
