"""The tables of the course and of the learner's progress."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from samebits import course, lab
from samebits.lab.check import Exercise
from samebits.lab.progress import store

from .conftest import progress

TASKS = (Exercise("02-tree", "The block tree", 3, judge=print),)


@pytest.fixture(autouse=True)
def one_exercise(monkeypatch):
    monkeypatch.setattr(
        importlib.import_module("samebits.lab.contents"),
        "exercises",
        lambda number: TASKS if number == "02" else (),
    )


class Outline(HTMLParser):
    """Tags with their attributes, in order; fails on a tag that is not closed in its place."""

    def __init__(self, html: str):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_contents_lists_every_chapter_with_minutes_and_links(displayed):
    lab.contents()
    [bundle] = displayed
    links = re.findall(r'href="([^"]+)"', bundle["text/html"])
    for chapter in course.CHAPTERS:
        assert f"../notebooks/{chapter.notebook}" in links
        assert (f"../labs/{chapter.notebook}" in links) == bool(chapter.lab)
        assert f"{chapter.number} {chapter.title}: lesson {chapter.lesson} min" in bundle["text/plain"]


def test_contents_shows_what_was_done(displayed):
    lab.predict("02-letters").commit("few")
    lab.quiz("02").answer("02-q2", "b")
    store().earn("02-tree", 1.5, of=3)
    lab.contents()
    text = displayed[0]["text/plain"]
    assert "; Predictions 1 of 2; Exercises 1.5 of 3 points; Quiz 2 of 3 points" in text


def test_progress_tells_each_part(displayed):
    lab.predict("02-letters").commit("few")
    store().measure("02-letters", 17)
    lab.predict("02-flag").commit("slower")
    lab.progress()
    text = displayed[0]["text/plain"]
    assert "“a handful, two to five”; measured 17: a surprise" in text
    assert "“yes, slower”, not measured yet" in text
    assert "Exercise: The block tree: not attempted yet" in text
    assert "Quiz: 0 of 2 answered: 0 of 3 points" in text
    assert "<code>index_put_</code>" in displayed[0]["text/html"]


def test_what_the_course_no_longer_has_is_not_counted(displayed):
    store().predict("02-letters", "removed", ["removed"])
    store().predict("02-removed", "x", ["x"])
    store().answer("02-q1", "removed", ["removed"])
    store().earn("02-tree", 5, of=5)
    store().earn("02-removed", 1, of=1)
    lab.contents()
    lab.progress()
    contents, told = (bundle["text/plain"] for bundle in displayed)
    assert "; Predictions 0 of 2; Exercises 3 of 3 points; Quiz 0 of 3 points" in contents
    assert "How many different answers?: not predicted yet" in told
    assert "The block tree: 3 of 3 points" in told and "Quiz: 0 of 2 answered" in told


@pytest.mark.parametrize("table", [lab.contents, lab.progress])
def test_a_table_reads_the_file_once(table, displayed, monkeypatch):
    reads = []
    read = progress._read
    monkeypatch.setattr(progress, "_read", lambda path: reads.append(path) or read(path))
    table()
    assert len(reads) == 1


@pytest.mark.parametrize("table", [lab.contents, lab.progress])
def test_tables_are_accessible(table, displayed):
    table()
    tags = Outline(displayed[0]["text/html"]).tags
    assert [tag for tag, _ in tags].count("caption") == 1
    headers = [attributes for tag, attributes in tags if tag == "th"]
    assert headers and all(h["scope"] in ("col", "row", "rowgroup") for h in headers)


def test_a_corrupt_file_is_named_where_it_is_noticed(private, displayed):
    (private / "data").mkdir()
    (private / "data" / "progress.json").write_text("{")
    lab.contents()
    lab.contents()
    assert "progress.corrupt-" in displayed[0]["text/plain"]
    assert "progress.corrupt-" not in displayed[1]["text/plain"]


def test_the_public_functions_stay_functions_whatever_is_imported():
    """Several share their name with their module, and importing a module binds it in its package."""
    names = "panel predict quiz check tiles figure here axes progress contents"
    program = (
        "import sys, samebits.lab.tiles, samebits.lab.progress, samebits.lab.check\n"
        "from samebits import lab\n"
        f"assert all(callable(getattr(lab, name)) for name in {names.split()})\n"
        "assert not {'torch', 'tensorflow', 'matplotlib', 'numba'} & set(sys.modules), 'imported too early'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
