"""The panel of the op atlas, driven from Python over a made-up sweep; the browser's side is in tests/browser."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import threading
import time

import pytest

from samebits import runner
from samebits.atlas import Atlas, Documentation, Row, chosen, judge
from samebits.experiment import BadSetting, Observation, Runs, Source
from samebits.lab.errors import LabError

# By name, because `samebits.lab.atlas` is the function.
panels = importlib.import_module("samebits.lab.atlas")

OPS = ["put", "matmul", "empty"]


def runs(distinct: int) -> Runs:
    source = Source("LIVE", "a processor, 8 threads", {"torch": "2"}, "2026-01-01T00:00:00+00:00")
    observations = tuple(Observation(f"xxh3:{i % distinct}", "xxh3:input", 0.001) for i in range(20))
    return Runs("atlas-op", {}, {}, source, observations)


def made_up(seconds: float = 0.0, rows: int = 3):
    """A sweep in which put raises, each op takes `seconds`, and `rows` of them are measured."""

    def sweep(names, *, on_start, on_row, on_wait, cancel, **more) -> Atlas:
        done = []
        ops = chosen(names)
        on_wait("Starting a process.")
        for op in ops[:rows]:
            on_start(op)
            if cancel.wait(seconds):
                break
            kernel = "put_" if op.name == "put" else ""
            on = None if kernel else runs(1)
            row = Row(op.name, op.group, op.line, "cpu", runs(20 if kernel else 1), on, kernel, 1.0, False)
            done.append(judge(row, op, Documentation()))
            on_row(done[-1])
        return Atlas(tuple(done), Documentation(), "cpu", len(ops), len(done) < len(ops))

    return sweep


@pytest.fixture
def panel(monkeypatch):
    monkeypatch.setattr(panels, "sweep", made_up())
    return panels.atlas(OPS)


def test_when_a_sweep_has_ended_its_status_says_so_already(panel):
    told = []
    panel.observe(lambda change: told.append((panel.status, panel.current)), "busy")
    panel.run()
    assert told[1] == ("All 3 ops are measured.", "")


@pytest.mark.parametrize("budget", [0, float("inf"), "3"])
def test_a_budget_that_is_none_is_refused_before_the_panel_is_shown(budget):
    with pytest.raises(BadSetting, match="budget of more than 0"):
        panels.atlas(OPS, budget=budget)


def wait_until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_click_measures_in_the_background(panel, monkeypatch):
    free = threading.Event()

    def sweep(names, **more):
        assert free.wait(20), "the click waited for the measurement"
        return made_up()(names, **more)

    monkeypatch.setattr(panels, "sweep", sweep)
    panel._receive(panel, {"do": "run"}, [])
    assert panel.busy
    free.set()  # which nobody could do if the kernel were not free again
    wait_until(lambda: not panel.busy)
    assert [row["op"] for row in panel.rows] == OPS[:1] + ["matmul", "empty"]
    assert panel.status == "All 3 ops are measured." and panel.source["kind"] == "LIVE"
    assert panel.found["put"].kernel == "put_"


def test_the_table_grows_op_by_op(panel, monkeypatch):
    monkeypatch.setattr(panels, "sweep", made_up(seconds=0.4))
    lengths, current = [], []
    panel.observe(lambda change: lengths.append(len(change["new"])), "rows")
    panel.observe(lambda change: current.append(change["new"]), "current")
    panel.run()
    assert lengths == [1, 2, 3]
    assert current == ["put", "matmul", "empty", ""]


def test_a_row_says_everything_in_words(panel):
    panel.run()
    put, matmul, _ = panel.rows
    assert (put["without"], put["under"], put["kernel"]) == ("20 of 20", "raises", "put_")
    assert put["strip"] == "01234567012345670123" and put["strip_under"] == ""
    assert put["agreement"] == "missing" and "put_" in put["says"] and put["interesting"]
    assert matmul["strip"] == "0" * 20 and not matmul["interesting"]
    assert "same so far: one answer in 20 runs" in matmul["verdicts"][0]
    assert any("index_put writes the same" in each["advice"] for each in panel.advice)
    assert "3 ops on the CPU" in panel.summary and "3 ops on the CPU" in repr(panel)


def test_cancel_keeps_the_rows_that_were_measured(panel, monkeypatch):
    monkeypatch.setattr(panels, "sweep", made_up(seconds=0.3))
    panel._receive(panel, {"do": "run"}, [])
    wait_until(lambda: panel.done == 1)
    panel._receive(panel, {"do": "cancel"}, [])
    start = time.monotonic()
    wait_until(lambda: not panel.busy)
    assert time.monotonic() - start < 1
    assert panel.status == "Cancelled after 1 of 3 ops; they are kept."
    assert len(panel.found.rows) == 1 and panel.found.cancelled


def test_what_fails_is_a_sentence(panel, monkeypatch, capsys):
    def fails(names, **more):
        raise runner.RunFailed("PyTorch sees no NVIDIA GPU here.", "a traceback")

    monkeypatch.setattr(panels, "sweep", fails)
    assert panel.run() is None
    assert "no NVIDIA GPU" in capsys.readouterr().out
    assert panel.failed and panel.detail == "a traceback" and not panel.busy
    with pytest.raises(LabError, match="no result here"):
        panel.result()

    def breaks(names, **more):
        raise ZeroDivisionError

    monkeypatch.setattr(panels, "sweep", breaks)
    assert panel.run() is None and "Please report it" in panel.status and "ZeroDivisionError" in panel.detail


def test_result_measures_once_and_waits_for_a_click(panel, monkeypatch):
    found = panel.result()
    assert panel.result() is found
    monkeypatch.setattr(panels, "sweep", made_up(seconds=0.1))
    panel.press_run()
    assert panel.run() is None  # busy, and says so
    assert panel.result() is panel.found is not found


def test_interrupting_the_kernel_stops_a_run_in_a_cell(panel, monkeypatch, capsys):
    monkeypatch.setattr(panels, "sweep", made_up(seconds=0.4))
    main = ctypes.c_ulong(threading.main_thread().ident)

    def interrupt():
        wait_until(lambda: panel.done >= 1)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(KeyboardInterrupt))

    threading.Thread(target=interrupt, daemon=True).start()
    assert panel.run() is None and not panel.busy and panel.rows == []
    assert "interrupting the kernel" in capsys.readouterr().out


def test_a_name_that_does_not_exist_is_refused_at_once():
    with pytest.raises(BadSetting, match="Did you mean matmul"):
        panels.atlas(["matmull"])
    with pytest.raises(BadSetting, match="Did you mean cuda"):
        panels.atlas(device="cudaa")


def test_a_second_run_starts_with_an_empty_table(panel):
    panel.run()
    lengths = []
    panel.observe(lambda change: lengths.append(len(change["new"])), "rows")
    panel.run()
    assert lengths[0] == 0 and lengths[-1] == 3


def test_a_row_that_could_not_run_is_drawn(panel, monkeypatch):
    def sweep(names, *, on_row, **more):
        row = Row("put", "scattering", "a line", "cpu", failed="It could not run.")
        on_row(row)
        return Atlas((row,), Documentation(), "cpu", 1)

    monkeypatch.setattr(panels, "sweep", sweep)
    found = panel.run()
    assert panel.rows[0]["failed"] == "It could not run." and panel.source == {}
    assert dataclasses.asdict(found.rows[0])["failed"]
