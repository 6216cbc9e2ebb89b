"""A learner's progress survives restarts, other notebooks, broken files and places that cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samebits.lab.progress import Store

from .conftest import progress

# The ids of the options that the course has today.
KNOWN = ("a", "b", "c", "few")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "data"


def test_what_was_written_is_read_after_a_restart(folder):
    store = Store(folder)
    store.predict("02-letters", "few", KNOWN)
    store.measure("02-letters", np.int64(17))
    store.answer("02-q1", "a", KNOWN)
    store.earn("02-block-tree", 2, of=3)
    again = Store(folder)
    assert again.predicted("02-letters") == "few"
    assert again.measured("02-letters") == 17
    assert again.answered("02-q1") == "a"
    assert again.best("02-block-tree") == 2
    assert again.notice() == ""


def test_what_was_written_is_not_written_again_over_another_kernels(folder):
    lesson, lab = Store(folder), Store(folder)
    lesson.measure("02-letters", 1)
    lab.measure("02-letters", 2)
    lesson.answer("02-q1", "a", KNOWN)
    assert [lesson.measured("02-letters"), lab.measured("02-letters")] == [2, 2]


def test_a_snapshot_stays_what_it_was(folder):
    store = Store(folder)
    store.earn("02-block-tree", 2, of=3)
    taken = store.snapshot()
    store.earn("02-block-tree", 3, of=3)
    assert [taken.best("02-block-tree"), store.best("02-block-tree")] == [2, 3]


@pytest.mark.skipif(os.name != "posix", reason="only POSIX files say who may read them")
def test_on_a_shared_machine_nobody_else_reads_it(folder):
    store = Store(folder)
    store.answer("02-q1", "a", KNOWN)
    assert store.path.stat().st_mode & 0o077 == 0


def test_nothing_is_written_by_reading(folder):
    assert Store(folder).answered("02-q1") is None
    assert not folder.exists()


def test_the_first_answer_and_prediction_stand_and_the_best_points_stay(folder):
    store = Store(folder)
    for option in ("a", "b"):
        store.answer("02-q1", option, KNOWN)
        store.predict("02-letters", option, KNOWN)
    for points in (1, 3, 2):
        store.earn("02-block-tree", points, of=3)
    assert store.answered("02-q1") == store.predicted("02-letters") == "a"
    assert store.best("02-block-tree") == 3


def test_two_processes_writing_at_once_lose_nothing(folder):
    program = (
        "import sys; from pathlib import Path; from samebits.lab.progress import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for n in range(40): store.answer(f'{sys.argv[2]}-{n}', 'a', ['a'])\n"
        "print(store.notice(), end='')"
    )
    command = [sys.executable, "-c", program, str(folder)]
    writers = [subprocess.Popen([*command, name], stdout=subprocess.PIPE) for name in ("one", "two")]
    assert [writer.communicate(timeout=60)[0] for writer in writers] == [b"", b""]
    kept = json.loads((folder / "progress.json").read_text())["answers"]
    assert sorted(kept) == sorted(f"{name}-{n}" for name in ("one", "two") for n in range(40))


def test_threads_of_a_kernel_writing_at_once_lose_nothing(folder):
    store = Store(folder)

    def write(name):
        for n in range(25):
            store.answer(f"{name}-{n}", "a", KNOWN)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        writers = [threading.Thread(target=write, args=(name,)) for name in "pqrs"]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(timeout=60)
    finally:
        sys.setswitchinterval(before)
    assert len(json.loads((folder / "progress.json").read_text())["answers"]) == 4 * 25
    assert store.notice() == ""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
def test_a_kernel_killed_while_it_writes_leaves_no_growing_rubbish(folder):
    program = (
        "import os, signal, sys; from pathlib import Path; from samebits.lab.progress import Store\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "Store(Path(sys.argv[1])).answer('02-q1', 'b', ['b'])"
    )
    Store(folder).answer("02-q1", "a", KNOWN)
    for _ in range(2):
        killed = subprocess.run([sys.executable, "-c", program, str(folder)], timeout=60)
        assert killed.returncode == -signal.SIGKILL
    assert len(list(folder.glob("*.tmp"))) == 1
    store = Store(folder)
    store.answer("02-q2", "b", KNOWN)
    assert store.notice() == ""
    assert [store.answered("02-q1"), store.answered("02-q2")] == ["a", "b"]
    assert not list(folder.glob("*.tmp"))


@pytest.mark.parametrize("rubbish", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_corrupt_file_is_set_aside_and_named_once(folder, rubbish):
    folder.mkdir()
    (folder / "progress.json").write_bytes(rubbish)
    store = Store(folder)
    store.answer("02-q1", "a", KNOWN)
    [aside] = folder.glob("progress.corrupt-*.json")
    assert aside.read_bytes() == rubbish
    assert str(aside) in store.notice()
    assert store.notice() == ""
    assert Store(folder).answered("02-q1") == "a"


def test_a_second_corrupt_file_of_a_day_does_not_replace_the_first(folder):
    folder.mkdir()
    for rubbish in ("first", "second"):
        (folder / "progress.json").write_text(rubbish)
        Store(folder).answer("02-q1", "a", KNOWN)
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
    store.predict("02-letters", "few", KNOWN)
    store.answer("02-q1", "a", KNOWN)
    store.earn("02-x", 1, of=3)
    kept = json.loads(file.read_text())
    assert (kept["version"], kept["streak"]) == (7, [1, 2])
    assert Store(folder).predicted("02-letters") == "few"
    assert Store(folder).answered("02-q1") == "a"
    assert Store(folder).best("02-x") == 1


def test_what_this_edition_does_not_know_stays_in_the_file(folder):
    folder.mkdir()
    file = folder / "progress.json"
    before = {
        "version": 7,
        "predictions": {"02-gone": {"option": "x", "measured": 3, "certainty": 0.5}, "02-list": ["x", "y"]},
        "answers": {"02-q1": {"option": "a", "attempts": [1, 2]}, "09-q1": {"option": "z"}},
        "exercises": ["another", "layout"],
        "streak": {"days": 3},
    }
    file.write_text(json.dumps(before))
    store = Store(folder)
    for prediction in ("02-letters", "02-list"):
        store.predict(prediction, "few", KNOWN)
    store.answer("02-q1", "b", KNOWN)
    store.earn("02-x", 1, of=3)
    store.earn("02-x", 2, of=3)
    kept = json.loads(file.read_text())
    assert (kept["version"], kept["streak"], kept["answers"]) == (7, {"days": 3}, before["answers"])
    assert kept["predictions"]["02-gone"] == before["predictions"]["02-gone"]
    assert kept["predictions"]["02-list"]["unreadable"] == ["x", "y"]
    assert kept["unreadable exercises"] == ["another", "layout"]
    assert [store.predicted("02-list"), store.answered("02-q1"), store.best("02-x")] == ["few", "a", 2]


def test_an_option_that_the_course_no_longer_has_gives_way_to_the_next_answer(folder):
    store = Store(folder)
    store.predict("02-letters", "few", KNOWN)
    store.answer("02-q1", "a", KNOWN)
    renamed = ("several", "b")
    store.predict("02-letters", "several", renamed)
    store.answer("02-q1", "b", renamed)
    assert [store.predicted("02-letters"), store.answered("02-q1")] == ["several", "b"]


@pytest.mark.parametrize("points", ["1" + "0" * 400, "1e999", "-1", "NaN", "true", '"2"', "[2]"])
def test_points_that_are_no_points_count_as_never_checked(folder, points):
    folder.mkdir()
    (folder / "progress.json").write_text(f'{{"exercises": {{"02-x": {{"points": {points}}}}}}}')
    store = Store(folder)
    assert store.best("02-x") is None
    store.earn("02-x", 1, of=2)
    assert store.best("02-x") == 1
    assert store.notice() == ""


@pytest.mark.parametrize("measured", ["null", "[1]", '{"a": 1}'])
def test_a_measurement_of_the_wrong_type_counts_as_missing(folder, measured):
    folder.mkdir()
    (folder / "progress.json").write_text(f'{{"predictions": {{"02-x": {{"measured": {measured}}}}}}}')
    assert Store(folder).measured("02-x") is None


def test_half_a_surrogate_pair_is_carried_along_and_never_shown(folder):
    folder.mkdir()
    file = folder / "progress.json"
    file.write_text(r'{"later": {"\ud800": "\udfff"}, "predictions": {"02-x": {"measured": "\udfff"}}}')
    store = Store(folder)
    store.answer("02-q1", "a", KNOWN)
    assert store.notice() == ""
    assert json.loads(file.read_text())["later"] == {"\ud800": "\udfff"}
    store.measured("02-x").encode("utf-8")


@pytest.mark.skipif(sys.platform == "win32", reason="there, file names are Unicode")
def test_a_folder_s_name_that_is_no_unicode_can_be_told(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9")).write_text("a file where a folder should be")
    store = Store(tmp_path / os.fsdecode(b"caf\xe9") / "data")
    store.answer("02-q1", "a", KNOWN)
    assert "kept until this kernel stops" in store.notice().encode("utf-8").decode()


@pytest.mark.parametrize("error", [RecursionError("too deep"), ValueError("too many digits")])
def test_what_json_reads_but_cannot_write_is_told(folder, monkeypatch, error):
    """As a list nested deeper than the writer goes, which is not as deep as the reader goes."""
    store = Store(folder)

    def fail(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(progress.json, "dump", fail)
        store.answer("02-q1", "a", KNOWN)
    assert f"cannot be written ({error})" in store.notice()
    assert store.answered("02-q1") == "a"


def test_an_unwritable_place_keeps_progress_in_the_kernel_and_says_so_once(tmp_path):
    (tmp_path / "file").write_text("a file where a folder should be")
    store = Store(tmp_path / "file" / "data")
    store.answer("02-q1", "a", KNOWN)
    assert "kept until this kernel stops" in store.notice()
    store.answer("02-q2", "b", KNOWN)
    assert store.notice() == ""
    assert [store.answered("02-q1"), store.answered("02-q2")] == ["a", "b"]


def test_a_full_disk_leaves_the_old_file_whole_and_no_rubbish_beside_it(folder, monkeypatch):
    store = Store(folder)
    store.answer("02-q1", "a", KNOWN)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(progress.os, "fsync", full)
        store.answer("02-q2", "b", KNOWN)
        assert "no space left on device" in store.notice()
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".lock"]
    assert [Store(folder).answered("02-q1"), Store(folder).answered("02-q2")] == ["a", None]
    store.answer("02-q3", "c", KNOWN)
    assert Store(folder).answered("02-q2") == "b", "what was pending is written with the next change"


def test_a_locked_file_is_waited_for_briefly_and_written_later(folder, monkeypatch):
    monkeypatch.setattr(progress, "LOCK_SECONDS", 0.1)
    folder.mkdir()
    store = Store(folder)
    with filelock.FileLock(folder / "progress.json.lock"):
        store.answer("02-q1", "a", KNOWN)
        assert "Another program holds" in store.notice()
        assert store.answered("02-q1") == "a"
        assert not (folder / "progress.json").exists()
    store.answer("02-q2", "b", KNOWN)
    assert [Store(folder).answered("02-q1"), Store(folder).answered("02-q2")] == ["a", "b"]


def test_a_held_lock_is_waited_for_once_and_then_only_tried(folder, monkeypatch):
    monkeypatch.setattr(progress, "LOCK_SECONDS", 0.5)
    folder.mkdir()
    (folder / "progress.json").write_text("{")
    store = Store(folder)
    with filelock.FileLock(folder / "progress.json.lock"):
        start = time.monotonic()
        for n in range(10):
            store.answer(f"02-q{n}", "a", KNOWN)
            assert store.answered(f"02-q{n}") == "a"
        # Ten answers and ten questions that all waited would take ten seconds.
        assert 0.5 <= time.monotonic() - start < 5
        notice = store.notice()
        assert notice.count("Another program holds") == notice.count("not readable as progress") == 1
    store.earn("02-x", 1, of=1)
    assert "kept as" in store.notice(), "a free lock is taken at once"
    assert [Store(folder).answered(f"02-q{n}") for n in range(10)] == ["a"] * 10


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "through a link"])
def test_what_is_no_regular_file_is_neither_read_nor_moved(folder, tmp_path, linked):
    """Reading a pipe waits for ever, and a device that is set aside or replaced is gone for the whole machine."""
    folder.mkdir()
    pipe = tmp_path / "pipe" if linked else folder / "progress.json"
    os.mkfifo(pipe)
    if linked:
        (folder / "progress.json").symlink_to(pipe)
    store = Store(folder)
    store.answer("02-q1", "a", KNOWN)
    assert store.answered("02-q1") == "a"
    assert "it is no regular file" in store.notice()
    assert pipe.is_fifo()


def test_a_linked_file_stays_a_link(folder, tmp_path):
    folder.mkdir()
    target = tmp_path / "synchronised" / "real.json"
    (folder / "progress.json").symlink_to(target)
    for n, content in enumerate((None, '{"answers": {"02-q0": {"option": "a"}}}', "{")):
        if content:
            target.write_text(content)
        store = Store(folder)
        store.answer("02-q1", "a", KNOWN)
        assert (folder / "progress.json").is_symlink()
        assert json.loads(target.read_text())["answers"]["02-q1"]["option"] == "a", n
        assert store.answered("02-q1") == "a"
    assert store.answered("02-q0") is None
    [aside] = target.parent.glob("progress.corrupt-*.json")
    assert aside.read_text() == "{" and str(aside) in store.notice()


def test_a_link_that_leads_to_itself_does_not_raise(folder):
    folder.mkdir()
    (folder / "progress.json").symlink_to(folder / "progress.json")
    store = Store(folder)
    assert store.answered("02-q1") is None
    store.answer("02-q1", "a", KNOWN)
    assert store.answered("02-q1") == "a"


def test_the_store_follows_samebits_data(tmp_path, monkeypatch):
    monkeypatch.setenv("SAMEBITS_DATA", str(tmp_path / "here"))
    assert progress.store() is progress.store()
    assert progress.store().path == tmp_path.resolve() / "here" / "progress.json"
    monkeypatch.delenv("SAMEBITS_DATA")
    assert progress.store().path.parent.name == "samebits"


@pytest.mark.parametrize("named", ["~/mine", "mine", "./mine"])
def test_samebits_data_means_one_folder_wherever_a_notebook_lies(tmp_path, monkeypatch, named):
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(tmp_path))
    monkeypatch.setenv("SAMEBITS_DATA", named)
    for notebooks in ("lessons", "labs"):
        (tmp_path / notebooks).mkdir()
        monkeypatch.chdir(tmp_path / notebooks)
        assert progress.store().path == tmp_path.resolve() / "mine" / "progress.json"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(["option", "measured", "points"]) | st.text()
ENTRIES = st.dictionaries(st.sampled_from(["02-q1", "x"]), JSON | st.dictionaries(FIELDS, JSON)) | JSON
STATES = st.dictionaries(st.sampled_from(["version", *progress.SECTIONS]), ENTRIES)


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=40) | STATES.map(lambda state: json.dumps(state).encode()))
def test_no_file_makes_the_store_fail(tmp_path_factory, content):
    folder = Path(tmp_path_factory.mktemp("any"))
    (folder / "progress.json").write_bytes(content)
    store = Store(folder)
    store.best("02-q1"), store.predicted("02-q1"), store.measured("02-q1")
    already = store.answered("02-q1")
    store.answer("02-q1", "a", KNOWN)
    assert Store(folder).answered("02-q1") == (already if already in KNOWN else "a")
