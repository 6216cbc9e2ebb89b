"""A learner's progress survives restarts, other notebooks, broken files and places that cannot be written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import filelock
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.lab.progress import Store

from .conftest import progress


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


def test_what_was_written_is_read_after_a_restart(folder):
    store = Store(folder)
    store.predict("02-letters", "few")
    store.measure("02-letters", np.int64(17))
    store.answer("02-q1", "a")
    store.earn("02-block-tree", 2, of=3)
    again = Store(folder)
    assert again.predicted("02-letters") == "few"
    assert again.measured("02-letters") == 17
    assert again.answered("02-q1") == "a"
    assert again.best("02-block-tree") == 2
    assert again.notice() == ""


def test_nothing_is_written_by_reading(folder):
    assert Store(folder).answered("02-q1") is None
    assert not folder.exists()


def test_the_first_answer_and_prediction_stand_and_the_best_points_stay(folder):
    store = Store(folder)
    for option in ("a", "b"):
        store.answer("02-q1", option)
        store.predict("02-letters", option)
    for points in (1, 3, 2):
        store.earn("02-block-tree", points, of=3)
    assert store.answered("02-q1") == store.predicted("02-letters") == "a"
    assert store.best("02-block-tree") == 3


def test_two_processes_writing_at_once_lose_nothing(folder):
    program = (
        "import sys; from pathlib import Path; from samebits.lab.progress import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for n in range(40): store.answer(f'{sys.argv[2]}-{n}', 'a')\n"
        "print(store.notice(), end='')"
    )
    command = [sys.executable, "-c", program, str(folder)]
    writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE) for name in ("one", "two")]
    assert [writer.communicate(timeout=60)[0] for writer in writers] == [b"", b""]
    kept = json.loads((folder / "progress.json").read_text())["answers"]
    assert sorted(kept) == sorted(f"{name}-{n}" for name in ("one", "two") for n in range(40))


@pytest.mark.parametrize("rubbish", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_corrupt_file_is_set_aside_and_named_once(folder, rubbish):
    folder.mkdir()
    (folder / "progress.json").write_bytes(rubbish)
    store = Store(folder)
    store.answer("02-q1", "a")
    [aside] = folder.glob("progress.corrupt-*.json")
    assert aside.read_bytes() == rubbish
    assert str(aside) in store.notice()
    assert store.notice() == ""
    assert Store(folder).answered("02-q1") == "a"


def test_a_second_corrupt_file_of_a_day_does_not_replace_the_first(folder):
    folder.mkdir()
    for rubbish in ("first", "second"):
        (folder / "progress.json").write_text(rubbish)
        Store(folder).answer("02-q1", "a")
    assert {aside.read_text() for aside in folder.glob("progress.corrupt-*.json")} == {"first", "second"}


def test_a_newer_version_and_wrong_types_are_tolerated_field_by_field(folder):
    folder.mkdir()
    file = folder / "progress.json"
    newer = {
        "version": 7,
        "streak": [1, 2],
        "predictions": "none",
        "answers": {"02-q1": {"option": 5}, "02-q2": {"option": "b"}, "02-q3": "c"},
        "exercises": {"02-x": {"points": "many"}, "02-y": {"points": 2}},
    }
    file.write_text(json.dumps(newer))
    store = Store(folder)
    assert [store.answered(f"02-q{n}") for n in (1, 2, 3)] == [None, "b", None]
    assert [store.best("02-x"), store.best("02-y")] == [None, 2]
    store.predict("02-letters", "few")
    store.answer("02-q1", "a")
    store.earn("02-x", 1, of=3)
    kept = json.loads(file.read_text())
    assert (kept["version"], kept["streak"]) == (7, [1, 2])
    assert Store(folder).predicted("02-letters") == "few"
    assert Store(folder).answered("02-q1") == "a"
    assert Store(folder).best("02-x") == 1


def test_an_unwritable_place_keeps_progress_in_the_kernel_and_says_so_once(tmp_path):
    (tmp_path / "file").write_text("a file where a folder should be")
    store = Store(tmp_path / "file" / "data")
    store.answer("02-q1", "a")
    assert "kept until this kernel stops" in store.notice()
    store.answer("02-q2", "b")
    assert store.notice() == ""
    assert [store.answered("02-q1"), store.answered("02-q2")] == ["a", "b"]


def test_a_full_disk_leaves_the_old_file_whole_and_no_rubbish_beside_it(folder, monkeypatch):
    store = Store(folder)
    store.answer("02-q1", "a")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(progress.os, "fsync", full)
        store.answer("02-q2", "b")
        assert "no space left on device" in store.notice()
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".lock"]
    assert [Store(folder).answered("02-q1"), Store(folder).answered("02-q2")] == ["a", None]
    store.answer("02-q3", "c")
    assert Store(folder).answered("02-q2") == "b", "what was pending is written with the next change"


def test_a_locked_file_is_waited_for_briefly_and_written_later(folder, monkeypatch):
    monkeypatch.setattr(progress, "LOCK_SECONDS", 0.1)
    folder.mkdir()
    store = Store(folder)
    with filelock.FileLock(folder / "progress.json.lock"):
        store.answer("02-q1", "a")
        assert "Another program holds" in store.notice()
        assert store.answered("02-q1") == "a"
        assert not (folder / "progress.json").exists()
    store.answer("02-q2", "b")
    assert [Store(folder).answered("02-q1"), Store(folder).answered("02-q2")] == ["a", "b"]


def test_the_store_follows_samebits_data(tmp_path, monkeypatch):
    monkeypatch.setenv("SAMEBITS_DATA", str(tmp_path / "here"))
    assert progress.store() is progress.store()
    assert progress.store().path == tmp_path / "here" / "progress.json"
    monkeypatch.delenv("SAMEBITS_DATA")
    assert progress.store().path.parent.name == "samebits"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.dictionaries(st.sampled_from(["02-q1", "x"]), JSON | st.dictionaries(st.text(), JSON)) | JSON
STATES = st.dictionaries(st.sampled_from(["version", *progress.SECTIONS]), ENTRIES)


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=40) | STATES.map(lambda state: json.dumps(state).encode()))
def test_no_file_makes_the_store_fail(tmp_path_factory, content):
    folder = Path(tmp_path_factory.mktemp("any"))
    (folder / "progress.json").write_bytes(content)
    store = Store(folder)
    store.best("02-q1"), store.predicted("02-q1"), store.measured("02-q1")
    already = store.answered("02-q1")
    store.answer("02-q1", "a")
    assert Store(folder).answered("02-q1") == (already or "a")
