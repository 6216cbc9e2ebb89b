"""The panel driven from Python, as a kernel sees it; the browser's side is in tests/browser."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from pathlib import Path

import pytest

from samebits import experiments, runner
from samebits.experiment import BadSetting, Observation, Runs, Source
from samebits.lab.errors import LabError
from samebits.lab.panel import Panel, _bits, _compared

sys.path.insert(0, str(Path(__file__).parents[1] / "runner"))


@pytest.fixture(autouse=True)
def workers_find_faulty(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "runner"))
    yield
    runner.close()


def wait_until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_when_a_run_has_ended_its_status_says_so_already():
    """Otherwise a click in between begins a run, and the end of the last one is told over it."""
    panel = Panel("faulty:FAULTY")
    told = []
    panel.observe(lambda change: told.append(panel.status), "busy")
    panel.run()
    assert told[1] == panel.status == ""


def test_a_click_runs_in_the_background_and_adds_a_row():
    panel = Panel("faulty:FAULTY", habit="slow")
    panel._receive(panel, {"do": "run"}, [])
    assert panel.busy and not panel.runs  # the kernel is free again, and the run goes on
    wait_until(lambda: not panel.busy)
    assert [row["kind"] for row in panel.rows] == ["LIVE"]
    assert len(panel.runs[0].observations) == 20
    assert panel.growing is None


def test_the_wall_grows_while_a_run_goes_on():
    panel = Panel("faulty:FAULTY", habit="slow")
    seen = []
    panel.observe(lambda change: seen.append(change["new"]), "growing")
    panel.run()
    assert any(growing and len(growing["tiles"]) > 1 for growing in seen)


def test_cancel_ends_a_clicked_run_within_a_second():
    panel = Panel("faulty:FAULTY", habit="slow")
    panel.repeats = 1000
    panel._receive(panel, {"do": "run"}, [])
    wait_until(lambda: panel.done > 0)
    panel._receive(panel, {"do": "cancel"}, [])
    start = time.monotonic()
    wait_until(lambda: not panel.busy)
    assert time.monotonic() - start < 1
    assert "Cancelled after" in panel.status
    assert panel.run(habit="none").distinct == 1


@pytest.mark.parametrize("habit", ["crashes", "is killed", "speaks rubbish", "raises", "runs out of memory"])
def test_a_fault_is_a_sentence_on_the_panel_and_earlier_rows_stay(habit, capsys):
    panel = Panel("faulty:FAULTY")
    panel.run()
    assert panel.run(habit=habit) is None
    assert panel.failed and panel.status and "\n" not in panel.status
    assert panel.status in capsys.readouterr().out
    assert len(panel.rows) == 1
    panel.run(habit="none")
    assert len(panel.rows) == 2 and not panel.failed


def test_a_bad_value_is_a_sentence_and_changes_nothing(capsys):
    panel = Panel("scatter")
    before = dict(panel.values)
    panel._receive(panel, {"do": "run", "values": {"n": "-3"}}, [])
    assert "nearest is 1" in panel.status and panel.failed and not panel.busy
    assert panel.values == before
    assert panel.run(op="puut_") is None
    assert "Did you mean put_" in capsys.readouterr().out
    panel._receive(panel, {"do": "run", "repeats": "0"}, [])
    assert "1 to 1000" in panel.status and not panel.busy
    with pytest.raises(BadSetting):
        Panel("scatter", nothing=1)


def test_after_a_refused_value_the_browser_is_told_to_show_what_holds(monkeypatch):
    panel = Panel("scatter")
    sent = []
    monkeypatch.setattr(panel, "send", sent.append)
    panel._receive(panel, {"do": "set", "values": {"n": "-3"}}, [])
    assert sent == [{"do": "show"}]


def test_interrupting_the_kernel_stops_a_run_in_a_cell(monkeypatch, capsys):
    panel = Panel("faulty:FAULTY", habit="hangs")
    main = threading.main_thread().ident
    import ctypes

    def interrupt():
        wait_until(lambda: panel.done >= 1)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(KeyboardInterrupt))

    threading.Thread(target=interrupt, daemon=True).start()
    assert panel.run() is None
    assert "interrupting the kernel" in capsys.readouterr().out
    assert panel.run(habit="none").distinct == 1


def test_a_second_run_while_one_goes_on_is_refused_in_one_sentence(capsys):
    panel = Panel("faulty:FAULTY", habit="slow")
    panel.press_run()
    assert panel.run() is None
    assert "running already" in capsys.readouterr().out
    assert panel.result() is panel.runs[-1]


def test_result_runs_once_if_nothing_has_run():
    panel = Panel("faulty:FAULTY")
    first = panel.result()
    assert panel.result() is first


def test_rows_say_what_changed_and_how_the_time_compares():
    panel = Panel("sum-order", n=20_000)
    panel.run()
    panel.run(algorithm="exact")
    assert "Algorithm: serial" in panel.rows[0]["title"]
    assert panel.rows[1]["title"] == "Algorithm: exact"
    assert "times the row above" in panel.rows[1]["note"]
    panel.run()
    assert panel.rows[2]["title"] == "The same settings again"


def test_the_setting_that_was_seen_is_on_the_row():
    panel = Panel("scatter", deterministic=True)
    panel.run()
    assert "deterministic on" in panel.rows[0]["note"]


def test_a_value_that_was_not_taken_is_said_on_the_row():
    """The simulator takes blocks of 32 at most; a row must not claim 64."""
    panel = Panel("atomic-sum", device="simulator", block="64", n=40)
    panel.repeats = 1
    panel.run()
    assert "Block size: 64 (32 was taken)" in panel.rows[0]["title"]
    assert "blocks of 32 threads" in panel.code


def test_a_row_shows_the_answer_itself():
    panel = Panel("sum-order", n=2_000)
    panel.run(algorithm="exact")
    panel.run(algorithm="serial")
    assert "sum " in panel.rows[0]["note"] and " to " not in panel.rows[0]["note"]
    assert " to " in panel.rows[1]["note"]


def test_a_row_says_whether_the_row_above_has_its_bits():
    """Its letters cannot: each row has an A of its own."""
    panel = Panel("conv-ways", way="native", batch=2, channels=3, size=7)
    panel.repeats = 2
    for way in ("native", "im2col", "shift-and-add"):
        panel.run(way=way)
    panel.run(size=8)
    same, other = "the same bits as the row above", "other bits than the row above"
    found = [runs.fingerprints[0] for runs in panel.runs]
    assert "row above" not in panel.rows[0]["note"]
    for row in (1, 2):
        assert (same if found[row] == found[row - 1] else other) in panel.rows[row]["note"]
    assert found[2] != found[1]
    assert "bits" not in panel.rows[3]["note"]  # another input


def test_a_row_with_several_answers_counts_those_of_the_row_above():
    panel = Panel("faulty:FAULTY", habit="none")
    panel.repeats = 3
    for habit in ("none", "differs", "differs", "none"):
        panel.run(habit=habit)
    notes = [row["note"] for row in panel.rows]
    assert "1 of 3 answers also in the row above" in notes[1]
    assert "3 of 3 answers also in the row above" in notes[2]
    assert "1 of 1 answer also in the row above" in notes[3]
    others = [
        dataclasses.replace(o, fingerprint=f"sha256:{n}") for n, o in enumerate(panel.runs[1].observations)
    ]
    strange = dataclasses.replace(panel.runs[1], observations=tuple(others))
    assert _bits(strange, panel.runs[1]) == "no answer shared with the row above"


@pytest.mark.parametrize(
    ("earlier", "words"), [(1.0, "0.5 times"), (0.005, "100 times"), (0.0001, "5,000 times")]
)
def test_a_ratio_of_times_is_written_without_powers_of_ten(earlier, words):
    first, then = (
        Runs(
            "scatter",
            asked,
            {},
            Source("LIVE"),
            tuple(Observation("sha256:0", "sha256:0", seconds) for _ in range(5)),
        )
        for asked, seconds in (({"n": 1}, earlier), ({"n": 2}, 0.5))
    )
    one_knob = dataclasses.replace(
        experiments.find("scatter"), knobs=(experiments.find("scatter").knob("n"),)
    )
    assert f"{words} the row above" in _compared(then, first, one_knob)


def test_an_interrupt_before_the_run_has_begun_does_not_lock_the_panel(monkeypatch):
    panel = Panel("faulty:FAULTY")

    def interrupted():
        panel.busy = True
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(panel, "_begin", interrupted)
        assert panel.run() is None
    assert not panel.busy
    assert panel.run().distinct == 1


def test_a_result_that_cannot_be_had_is_one_sentence(capsys):
    with pytest.raises(LabError, match="no result here"):
        Panel("faulty:FAULTY", habit="crashes").result()
    assert "crashed" in capsys.readouterr().out
