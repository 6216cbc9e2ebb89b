"""The runner: every way in which a worker can end is one sentence, and the next run works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from samebits import runner
from samebits.experiment import BadSetting
from samebits.runner import RunFailed

sys.path.insert(0, str(Path(__file__).parent))
import faulty

FAULTY = "faulty:FAULTY"


@pytest.fixture(autouse=True)
def workers_find_faulty(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("SAMEBITS_QUEUE", str(tmp_path / "queue"))
    yield
    runner.close()


def test_a_run_streams_what_it_observes():
    seen, observed = [], []
    runs = runner.run(FAULTY, repeats=20, on_start=lambda *a: seen.append(a), on_observation=observed.append)
    assert len(seen) == 1
    assert observed == list(runs.observations)
    assert runs.verdict.kind == "same"
    assert runs.source.kind == "LIVE"


def test_what_a_worker_waits_for_is_told_before_it_measures_and_once():
    told = []
    for _ in range(2):
        runner.run(
            "faulty:SLOW_TO_START",
            repeats=2,
            on_wait=told.append,
            on_start=lambda seen, source: told.append("started"),
        )
    assert told == ["Starting a process.", "Compiling what this run needs.", "started", "started"]


def test_a_difference_is_a_verdict_at_once():
    assert runner.run(FAULTY, {"habit": "differs"}, repeats=3).verdict.kind == "different"


def test_unequal_inputs_get_no_verdict():
    assert runner.run(FAULTY, {"habit": "other input"}, repeats=20).verdict.kind == "not enough evidence"


@pytest.mark.parametrize(
    ("habit", "sentence"),
    [
        ("crashes", "crashed (signal 11)"),
        ("is killed", "killed from outside"),
        ("exits", "ended unexpectedly (exit code 3)"),
        ("speaks rubbish", "something that is no answer"),
        ("runs out of memory", "not enough memory"),
        ("raises", "TypeError: no such thing"),
        ("refuses", "This setting is refused."),
    ],
)
def test_a_fault_is_one_sentence_and_the_next_run_works(habit, sentence):
    with pytest.raises(RunFailed) as failure:
        runner.run(FAULTY, {"habit": habit}, repeats=5)
    assert sentence in str(failure.value)
    assert ("Traceback" in failure.value.detail) == (habit in ("runs out of memory", "raises"))
    assert "\n" not in str(failure.value)
    assert len(runner.run(FAULTY, repeats=5).observations) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a child has the worker's pipes only where there is fork")
@pytest.mark.parametrize("habit", ["is killed with a child", "is killed with a daemon"])
def test_a_worker_that_dies_before_what_it_started_is_noticed_at_once(habit):
    seen, observed = [], []

    def note(observation):
        observed.append(time.monotonic())

    with pytest.raises(RunFailed, match="killed from outside"):
        runner.run(
            FAULTY,
            {"habit": habit},
            repeats=5,
            on_start=lambda settings, source: seen.append(settings["pid"]),
            on_observation=note,
        )
    assert time.monotonic() - observed[-1] < 3  # the child lives for ten seconds
    assert len(observed) == 2  # nothing that was told before is lost
    end = time.monotonic() + 3  # what was killed is not gone at once
    while left := [process for process in psutil.process_iter() if _lives_in_group(process, seen[0])]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def _lives_in_group(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):
        return False


def test_a_hung_worker_is_stopped():
    with pytest.raises(RunFailed, match="gave no answer for 1 seconds"):
        runner.run(FAULTY, {"habit": "hangs"}, repeats=5, patience=1)
    assert len(runner.run(FAULTY, repeats=2).observations) == 2


def test_what_libraries_print_does_no_harm():
    assert len(runner.run(FAULTY, {"habit": "prints"}, repeats=5).observations) == 5


@pytest.mark.parametrize("habit", ["slow", "hangs", "holds the lock"])
def test_cancel_acts_within_a_second_and_keeps_what_was_seen(habit):
    cancel = threading.Event()
    observed = []

    def count(observation):
        observed.append(observation)
        if len(observed) == 2:
            cancel.set()
            observed.append(time.monotonic())

    runs = runner.run(FAULTY, {"habit": habit}, repeats=1000, cancel=cancel, on_observation=count)
    assert time.monotonic() - observed[2] < 1.0
    assert runs.ended == "cancelled"
    assert len(runs.observations) >= 2
    assert len(runner.run(FAULTY, repeats=2).observations) == 2


def test_a_budget_ends_a_run_with_what_it_has():
    runs = runner.run(FAULTY, {"habit": "slow"}, repeats=1000, budget=0.3)
    assert runs.ended == "budget"
    assert 1 <= len(runs.observations) < 30


def test_until_different_goes_on_past_the_repeats():
    runs = runner.run(FAULTY, {"habit": "slow"}, repeats=2, budget=1.0, until_different=True)
    assert runs.ended == "budget"
    assert len(runs.observations) > 2
    # "differs" numbers its outputs anew in each batch, so the second observation differs.
    assert runner.run(FAULTY, {"habit": "differs"}, repeats=2, until_different=True).ended == "different"


def test_a_search_for_a_difference_compares_across_processes():
    runs = runner.run("faulty:VARIABLE", {"habit": "differs by process"}, repeats=2, until_different=True)
    assert runs.ended == "different" and len(runs.observations) == 2


def test_process_knobs_go_there_and_back():
    def outputs(value):
        runs = runner.run("faulty:VARIABLE", {"variable": value}, repeats=4)
        assert runs.processes == 2
        assert runs.seen["variable"] == value
        return runs.fingerprints

    first = outputs("one")
    assert outputs("two") != first
    assert outputs("one") == first
    assert outputs("unset")[0].endswith("unset")


def test_runs_that_count_as_two_processes_came_from_two():
    for _ in range(2):  # the second time both are there already
        runs = runner.run("faulty:VARIABLE", repeats=4)
        assert len({(o.process, o.scalars["pid"]) for o in runs.observations}) == 2
        assert len({o.scalars["pid"] for o in runs.observations}) == 2


def test_the_environment_is_complete_a_variable_can_be_unset(monkeypatch):
    monkeypatch.setenv("FAULTY_VARIABLE", "from the kernel")
    assert runner.run("faulty:VARIABLE", {"variable": "unset"}, repeats=2).seen["variable"] == "unset"


def test_at_most_two_workers_live_and_fresh_ones_are_not_kept():
    for value in ("one", "two", "unset"):
        runner.run("faulty:VARIABLE", {"variable": value}, repeats=2)
    assert len(_workers_of(os.getpid())) == 2
    runner.close()
    runs = [runner.run("faulty:FRESH", repeats=2) for _ in range(2)]
    assert len({o.scalars["pid"] for r in runs for o in r.observations}) == 4
    assert _workers_of(os.getpid()) == []


def test_the_worker_that_was_used_least_recently_goes():
    def process(value):
        [observation] = runner.run("faulty:VARIABLE", {"variable": value}, repeats=1).observations
        return observation.scalars["pid"]

    one = process("one")
    two = process("two")
    assert process("one") == one
    process("unset")
    assert process("one") == one
    assert process("two") != two


def test_workers_that_nobody_uses_are_released(monkeypatch):
    monkeypatch.setattr(runner, "IDLE_SECONDS", 0.2)
    runner.run("faulty:VARIABLE", repeats=2)
    _assert_gone_within(2, _workers_of(os.getpid()))
    assert len(runner.run("faulty:VARIABLE", repeats=2).observations) == 2


def test_a_process_knob_without_a_variable_wants_another_process_too():
    def processes(switch):
        runs = runner.run("faulty:SWITCH", {"switch": switch}, repeats=2)
        assert runs.per_process
        return {observation.scalars["pid"] for observation in runs.observations}

    assert not processes(False) & processes(True)
    assert not runner.run(FAULTY, repeats=2).per_process


def test_warming_up_imports_the_framework_once_and_the_run_finds_it_done(tmp_path, monkeypatch):
    (tmp_path / "imported_while_waiting.py").write_text(
        f"import os, pathlib; pathlib.Path({str(tmp_path)!r}, f'{{os.getpid()}}.pid').touch()"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parent)]))
    for _ in range(3):  # a panel that is shown three times
        runner.warm(faulty.WARMED)
    [warmed] = _workers_of(os.getpid())
    _wait_until((tmp_path / f"{warmed.pid}.pid").exists, 20)
    told = []
    [observation] = runner.run("faulty:WARMED", repeats=1, on_wait=told.append).observations
    assert observation.scalars["pid"] == warmed.pid and told == []


def test_two_runs_of_one_kernel_take_turns():
    began, told, times = threading.Event(), [], {"first": [], "second": []}

    def note(name):
        def observed(observation):
            times[name].append(time.monotonic())
            began.set()

        return observed

    first = threading.Thread(
        target=runner.run, args=(FAULTY, {"habit": "slow"}), kwargs={"on_observation": note("first")}
    )
    first.start()
    assert began.wait(20)
    runner.run(FAULTY, repeats=3, on_observation=note("second"), on_wait=told.append)
    first.join()
    assert told[0] == "Waiting for another run in this notebook."
    assert len(times["first"]) == 20 and times["first"][-1] <= times["second"][0]


def test_an_interrupted_run_leaves_no_answers_for_the_next():
    def interrupted(observation):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(FAULTY, {"habit": "slow"}, repeats=100, on_observation=interrupted)
    assert _workers_of(os.getpid()) == []
    assert len(runner.run(FAULTY, repeats=3).observations) == 3


def test_a_stop_that_comes_when_the_run_is_over_does_not_stop_the_next():
    runner.run(FAULTY, repeats=2)
    [worker] = runner._POOL._workers
    worker.tell({"do": "stop"})
    runs = runner.run(FAULTY, repeats=5)
    assert len(runs.observations) == 5 and runs.ended == "repeats"


def test_one_worker_is_enough_where_memory_is_short(monkeypatch):
    monkeypatch.setenv("SAMEBITS_WORKERS", "1")
    runs = runner.run("faulty:VARIABLE", repeats=4)
    assert runs.processes == 2
    assert len(_workers_of(os.getpid())) == 1


def test_bad_settings_name_the_nearest():
    with pytest.raises(BadSetting, match="Did you mean habit"):
        runner.run(FAULTY, {"habbit": "none"})
    with pytest.raises(BadSetting, match="Did you mean hangs"):
        runner.run(FAULTY, {"habit": "hang"})
    with pytest.raises(BadSetting, match="Did you mean scatter"):
        runner.run("scater")
    with pytest.raises(RunFailed, match="at least one repeat"):
        runner.run(FAULTY, repeats=0)


def test_call_returns_json_and_ends_what_never_ends():
    assert runner.call("faulty:echo", {"a": [1, 2]}) == {"a": [1, 2]}
    with pytest.raises(RunFailed, match="gave no answer for 1 seconds"):
        runner.call("faulty:forever", {}, seconds=1)
    with pytest.raises(RunFailed, match="ZeroDivisionError|AttributeError"):
        runner.call("faulty:missing", {})


def test_calls_share_a_worker_unless_they_ask_for_a_fresh_one():
    first, second = runner.call("os:getpid", {}), runner.call("os:getpid", {})
    assert first == second
    assert runner.call("os:getpid", {}, fresh=True) != first


def test_a_json_py_where_the_kernel_or_the_worker_stands_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert len(runner.run(FAULTY, repeats=2).observations) == 2


def test_tensorflow_without_tensorflow_is_one_sentence(monkeypatch, tmp_path):
    tensorflow = replace(faulty.FAULTY, framework="tensorflow")
    monkeypatch.setenv("SAMEBITS_TF_PYTHON", str(tmp_path / "python"))
    with pytest.raises(RunFailed, match="SAMEBITS_TF_PYTHON"):
        runner.run(tensorflow, repeats=1)
    monkeypatch.setenv("SAMEBITS_TF_PYTHON", sys.executable)
    with pytest.raises(RunFailed, match="./course tensorflow"):
        runner.run(tensorflow, repeats=1)
    runner.warm(tensorflow)  # a panel that is shown says nothing before it is run


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands in for an interpreter")
def test_a_python_of_tensorflows_without_tensorflow_is_one_sentence(monkeypatch, tmp_path):
    """Such as a .venv-tf whose installation broke off."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("SAMEBITS_TF_PYTHON", str(python))
    with pytest.raises(RunFailed, match="There is no TensorFlow in .*; ./course tensorflow makes"):
        runner.run("tf-ops", repeats=1)


@pytest.mark.skipif(
    os.name != "posix", reason="SIGKILL is POSIX; elsewhere the worker's reading thread ends it"
)
@pytest.mark.parametrize("habit", ["none", "slow", "hangs", "holds the lock", "starts a child"])
def test_no_worker_outlives_its_kernel(habit, tmp_path):
    """SIGKILL gives the kernel no chance to clean up, idle ("none") or busy."""
    marker = tmp_path / "busy"
    program = textwrap.dedent(f"""
        import pathlib, time
        from samebits import runner
        count = []
        def note(observation):
            count.append(1)
            if len(count) == 2: pathlib.Path({str(marker)!r}).touch()
        repeats = 2 if {habit!r} == "none" else 1000
        runner.run("faulty:FAULTY", {{"habit": {habit!r}}}, repeats=repeats, on_observation=note)
        time.sleep(1000)
    """)
    kernel = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    )
    _wait_until(marker.exists, 20)
    time.sleep(0.3)
    workers = _workers_of(kernel.pid)  # with the children that they forked
    assert len(workers) == (2 if habit == "starts a child" else 1)
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    _assert_gone_within(2, workers)


def test_a_worker_ends_with_its_standard_input_where_there_is_no_lifeline():
    with subprocess.Popen([sys.executable, "-m", "samebits.worker"], stdin=subprocess.PIPE) as worker:
        time.sleep(0.5)
        worker.stdin.close()
        try:
            worker.wait(timeout=10)
        finally:
            worker.kill()


@pytest.mark.skipif(os.name != "posix", reason="only a POSIX worker has a lifeline")
def test_a_worker_whose_kernel_ended_before_it_was_ready_ends_too():
    """Its standard input is still open here, as it is where the kernel was forked."""
    reading, writing = os.pipe()
    os.close(writing)
    with subprocess.Popen(
        [sys.executable, "-m", "samebits.worker"],
        env=os.environ | {"SAMEBITS_LIFELINE": str(reading)},
        stdin=subprocess.PIPE,
        pass_fds=(reading,),
        start_new_session=True,
    ) as worker:
        os.close(reading)
        try:
            worker.wait(timeout=10)
        finally:
            worker.kill()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a kernel can only be forked where there is fork")
def test_a_forked_child_neither_keeps_the_workers_nor_ends_them(tmp_path):
    program = textwrap.dedent(f"""
        import os, pathlib, sys, time
        from samebits import runner
        runner.run("faulty:FAULTY", repeats=2)
        if os.fork() == 0: sys.exit()  # runs this process's exit handlers, which are not the child's to run
        os.wait()
        runner.run("faulty:FAULTY", repeats=2)
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        pathlib.Path({str(tmp_path / "forked")!r}).touch()
        time.sleep(1000)
    """)
    kernel = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    )
    _wait_until((tmp_path / "forked").exists, 20)
    workers = _workers_of(kernel.pid)
    children = psutil.Process(kernel.pid).children()
    assert len(workers) == 1  # the same one served both runs
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    try:
        _assert_gone_within(2, workers)
    finally:
        for child in children:
            child.kill()


def test_an_interrupt_while_a_worker_starts_leaves_no_process(monkeypatch):
    started = []

    def interrupted(thread):
        started.extend(_workers_of(os.getpid()))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runner.run(FAULTY, repeats=2)
    assert started
    _assert_gone_within(2, started)
    assert len(runner.run(FAULTY, repeats=2).observations) == 2


@pytest.mark.skipif(os.name != "posix", reason="standard streams are closed so in a POSIX shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_closed_standard_streams_do_no_harm(closed):
    command = f"{sys.executable} -m samebits run faulty:FAULTY --repeats 2 {closed}"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    ended = subprocess.run(
        command, shell=True, env=environment, stderr=subprocess.PIPE, text=True, timeout=30
    )
    assert "signal" not in ended.stderr and "no answer" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_budget_is_shared_by_the_processes():
    runs = runner.run("faulty:VARIABLE", {"habit": "slow"}, repeats=1000, budget=1.0)
    per_process = [sum(o.process == process for o in runs.observations) for process in (0, 1)]
    assert min(per_process) > 3
    assert runs.ended == "budget"


def test_a_search_for_a_difference_takes_every_process():
    runs = runner.run("faulty:VARIABLE", repeats=1, budget=0.2, until_different=True)
    assert runs.processes == 2


def test_cancel_ends_a_run_whose_answers_come_faster_than_they_are_taken():
    cancel = threading.Event()
    seen = []

    def slowly(observation):
        seen.append(time.monotonic())
        time.sleep(0.02)
        if len(seen) == 20:
            cancel.set()

    runs = runner.run(FAULTY, repeats=10**6, cancel=cancel, on_observation=slowly)
    assert time.monotonic() - seen[19] < 1.5
    assert runs.ended == "cancelled"


def test_an_experiment_that_yields_nothing_is_a_fault():
    with pytest.raises(RunFailed, match="gave no observation"):
        runner.run(FAULTY, {"habit": "yields nothing"}, repeats=2)


@pytest.mark.parametrize("name", ["a:b", "os:path", ":", "a:b:c", "faulty:nothing"])
def test_what_is_no_experiment_is_one_sentence(name):
    with pytest.raises(BadSetting, match="There is no experiment"):
        runner.run(name)


def test_two_kernels_on_one_card_take_turns(tmp_path):
    """Both finish, never at once, and the second is told its place."""
    program = textwrap.dedent("""
        import json, sys, time
        from samebits import runner
        waits, stamps = [], []
        def stamp(observation): stamps.append(time.time())
        runner.run("faulty:ON_CARD", {"habit": "slow"}, repeats=20, on_wait=waits.append, on_observation=stamp)
        print(json.dumps({"waits": waits, "first": stamps[0], "last": stamps[-1]}))
    """)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    kernels = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    reports = sorted((json.loads(k.communicate(timeout=60)[0]) for k in kernels), key=lambda r: r["first"])
    assert reports[0]["last"] <= reports[1]["first"]
    assert any("1 in front of you" in sentence for sentence in reports[1]["waits"])


def test_a_dead_waiter_does_not_block_the_queue(tmp_path):
    folder = tmp_path / "queue" / "test-card"
    folder.mkdir(parents=True)
    (folder / f"{1:020d}-1.ticket").touch()
    assert len(runner.run("faulty:ON_CARD", repeats=2).observations) == 2
    assert list(folder.glob("*.ticket")) == []


def test_only_folders_that_the_queue_made_are_opened_to_everyone(tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    monkeypatch.setenv("SAMEBITS_QUEUE", str(mine))
    runner.run("faulty:ON_CARD", repeats=2)
    assert mine.stat().st_mode & 0o777 == 0o700
    assert (mine / "test-card").stat().st_mode & 0o1777 == 0o1777


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can act as several users")
def test_several_users_share_a_card():
    """A lock of one user's, and a ticket that another left behind, keep nobody else waiting."""
    # Not in tmp_path: each pytest that begins, as those of tests/notebooks do, closes its parent to other users.
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        _share_a_card(Path(folder) / "shared")


def _share_a_card(queue):
    program = textwrap.dedent("""
        import fcntl, os, sys, threading
        from samebits import runner
        uid, leave = int(sys.argv[1]), sys.argv[2] == "leave"
        os.setuid(uid)
        with runner._card_turn("test-card", threading.Event(), print):
            print("turn", uid, flush=True)
            if leave: os._exit(0)  # as a killed kernel does: its ticket stays
    """)
    environment = os.environ | {"SAMEBITS_QUEUE": str(queue)}
    for uid, what in ((1001, "leave"), (1002, "leave"), (1003, "end"), (1001, "end")):
        ended = subprocess.run(
            [sys.executable, "-c", program, str(uid), what],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert f"turn {uid}" in ended.stdout, ended.stderr
        assert "in front of you" not in ended.stdout


def test_an_unusable_queue_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SAMEBITS_QUEUE", str(tmp_path / "file"))
    with pytest.raises(RunFailed, match="SAMEBITS_QUEUE"):
        runner.run("faulty:ON_CARD", repeats=2)


def _workers_of(pid: int) -> list[psutil.Process]:
    def is_worker(process):
        try:
            return "samebits.worker" in process.cmdline()
        except psutil.NoSuchProcess:
            return False

    return [process for process in psutil.Process(pid).children(recursive=True) if is_worker(process)]


def _assert_gone_within(seconds: float, processes: list[psutil.Process]) -> None:
    """Gone, or ended and waiting for init to collect it."""
    end = time.monotonic() + seconds

    def alive(process):
        try:
            return process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    while any(map(alive, processes)) and time.monotonic() < end:
        time.sleep(0.02)
    left = [process for process in processes if alive(process)]
    for process in left:
        process.kill()
    assert not left


def _wait_until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
