"""Programs in fresh processes: how they are run, what becomes of those that fail, and the command line.

Where it doesn't matter what PyTorch does, the program imports none of it beyond what recording needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from samebits import cli, diverge
from samebits.diverge import ProgramFailed
from samebits.trace import Divergence, Trace


@pytest.fixture
def program(tmp_path):
    """`program(text)` → path of a program, in a folder with a space in its name."""

    def written(text, name="train it.py"):
        folder = tmp_path / "my programs"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


@pytest.fixture
def in_this_process(monkeypatch, tmp_path, capfd):
    """`in_this_process(*arguments)` → code, output, errors of `python -m samebits` with these, run here: what is
    about a program's text, folder and ending needs no process of its own."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["samebits"])
        monkeypatch.setattr(sys, "path", list(sys.path))
        code = cli.main([str(argument) for argument in arguments])
        return code, *capfd.readouterr()

    return run


def fails(path, *arguments, **options):
    with pytest.raises(ProgramFailed) as raised:
        diverge.diverge(path, arguments, **options)
    sentence = str(raised.value)
    assert "\n" not in sentence and sentence[-1] in ".:"
    return sentence, raised.value.output


# --- One recorded program ----------------------------------------------------------------------------------


def test_a_program_runs_as_python_runs_it(program, in_this_process, tmp_path):
    program("value = 3\n", "beside.py")
    path = program(
        "import argparse, sys, beside, torch\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--runs', type=int)\n"
        "parser.add_argument('--out')\n"
        "print(__name__, __file__, sys.argv, parser.parse_args().runs, beside.value)\n"
        "torch.ones(beside.value)\n"
    )
    out = tmp_path / "x.trace"
    code, printed, errors = in_this_process("trace", "--out", out, path, "--runs", "7", "--out", "y")
    assert (code, errors) == (0, "")
    assert printed == f"__main__ {path} {[str(path), '--runs', '7', '--out', 'y']} 7 3\n"
    read = Trace(out)
    assert [op.line for op in read] == ["train it.py:6"] and read.ended == "complete"
    assert read.lines["train it.py:6"] == "torch.ones(beside.value)"
    assert read.header.command == "train it.py --runs 7 --out y"
    assert str(tmp_path) not in out.read_text()


def test_a_relative_path_and_a_folder_that_python_may_not_search(
    program, in_this_process, tmp_path, monkeypatch
):
    path = program("import torch\ntorch.ones(1)\n")
    monkeypatch.chdir(path.parent)
    assert in_this_process("trace", "--out", "x.trace", path.name)[0] == 0
    assert [op.line for op in Trace("x.trace")] == ["train it.py:2"]
    program("", "beside.py")
    path = program("import beside\n", "needs.py")
    done = subprocess.run(
        [sys.executable, "-m", "samebits", "trace", "--out", tmp_path / "y", path],
        env=os.environ | {"PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "No module named 'beside'" in done.stderr, "as without us"


@pytest.mark.parametrize(
    "ending, code, error",
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(5)", 5, ""),
        ("sys.exit(True)", 1, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("raise SystemExit", 0, ""),
    ],
)
def test_how_a_program_exits_is_passed_on(program, in_this_process, tmp_path, ending, code, error):
    path = program(f"import sys, torch\ntorch.ones(1)\n{ending}\n")
    assert in_this_process("trace", "--out", tmp_path / "x", path) == (code, "", error)
    read = Trace(tmp_path / "x")
    assert len(list(read)) == 1 and read.ended == "SystemExit"


def test_a_program_that_raises_shows_its_own_traceback_only(program, in_this_process, tmp_path):
    path = program("import torch\ndef f():\n    torch.ones(2) @ torch.ones(3)\nf()\n")
    code, _, errors = in_this_process("trace", "--out", tmp_path / "x", path)
    assert code == 1 and errors.startswith("Traceback") and "size" in errors
    assert "samebits" not in errors.replace(str(tmp_path), "") and "runpy" not in errors
    assert errors.count("  File ") == 2
    read = Trace(tmp_path / "x")
    assert list(read) is not None and read.ended == "RuntimeError"


def test_a_program_that_does_not_parse_shows_its_line(program, in_this_process, tmp_path):
    code, _, errors = in_this_process("trace", "--out", tmp_path / "x", program("x = (\n"))
    assert code == 1 and "SyntaxError" in errors and "runpy" not in errors


def test_a_program_that_is_stopped(program, in_this_process, tmp_path):
    path = program("import torch\ntorch.ones(1)\nraise KeyboardInterrupt\n")
    assert in_this_process("trace", "--out", tmp_path / "x", path) == (130, "", "Stopped.\n")
    read = Trace(tmp_path / "x")
    assert len(list(read)) == 1 and read.ended == "KeyboardInterrupt"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_full_disk_is_one_sentence(program, in_this_process):
    code, _, errors = in_this_process("trace", "--out", "/dev/full", program("print(1)\n"))
    assert (code, errors) == (1, "The trace /dev/full could not be written (No space left on device).\n")


def test_bad_input_is_one_sentence(program, in_this_process, tmp_path):
    path = program("")
    for arguments, sentence in (
        (("trace", "--out", tmp_path / "x", tmp_path), f"There is no program {tmp_path}. Give the path of a"),
        (("diverge", "no.py"), "There is no program no.py."),
        (("diverge", "--runs", "1", path), "A comparison needs at least two runs, not 1."),
        (("diverge", "--budget", "0", path), "The budget must be more than 0 seconds, not 0."),
        (("diverge", "--budget", "nan", path), "The budget must be more than 0 seconds, not nan."),
        (("diverge", "--second", "OMP", path), "--second needs NAME=VALUE, not 'OMP'."),
        (("diverge", "--second", "=1", path), "--second needs NAME=VALUE, not '=1'."),
        (("diverge", "--keep", path, path), f"The folder {path} could not be written (File exists)."),
        (("compare", tmp_path / "a", tmp_path / "b"), "could not be read (No such file or directory)."),
        (("compare", path, path), "is no trace: python -m samebits trace makes one."),
    ):
        code, printed, errors = in_this_process(*arguments)
        assert code == 2 and not printed and sentence in errors and errors.count("\n") == 1, errors


def test_help_names_every_option(in_this_process, capfd):
    for command in ("trace", "compare", "diverge"):
        with pytest.raises(SystemExit) as end:
            in_this_process(command, "--help")
        assert end.value.code == 0
        text = capfd.readouterr().out
        assert "usage: python -m samebits" in text and "PROGRAM.py" in text or command == "compare"


# --- Fresh processes ---------------------------------------------------------------------------------------


def test_the_order_of_a_set_is_found_only_in_fresh_processes(program, tmp_path, capsys):
    path = program(
        "import sys, torch\n"
        "print('rubbish' * 10_000, file=sys.stderr)\n"
        "sys.stdout.buffer.write(bytes(range(256)))\n"
        "assert sys.stdin.read() == '' and sys.argv[1:] == ['--runs', '3']\n"
        "torch.tensor([ord(x) for x in set('abcdefghij')])\n"
    )
    keep = tmp_path / "kept"
    called = []
    hunt = diverge.diverge(path, ["--runs", "3"], keep=keep, on_run=lambda *run: called.append(run))
    found = hunt.divergence
    assert (found.kind, found.first.line) == ("input", "train it.py:5")
    assert (
        called == [(0, False), (1, False)] and hunt.plain.verdict.kind == "different" and hunt.fixed is None
    )
    assert sorted(path.name for path in keep.iterdir()) == ["run0.trace", "run1.trace"]
    assert capsys.readouterr() == ("", "")
    assert cli.main(["compare", *map(str, sorted(keep.iterdir()))]) == 1
    assert capsys.readouterr().out.startswith(found.sentence)
    text = str(hunt)
    assert "Different: 2 answers in 2 runs in 2 processes." in text and diverge.REMEDIES["input"] in text
    data = json.loads(json.dumps(hunt.to_json()))
    assert data["divergence"]["kind"] == "input" and data["fixed"] is None and data["remedy"] in text
    assert data["plain"]["verdict"]["sentence"] in text and len(data["plain"]["seconds"]) == 2


def test_the_flag_is_tried_where_the_same_inputs_gave_another_result(program):
    path = program(
        "import time, torch\n"
        "library = torch.library.Library('planted', 'DEF')\n"
        "library.define('race(Tensor x) -> Tensor')\n"
        "def race(x):\n"
        "    if torch.are_deterministic_algorithms_enabled():\n"
        "        return x + 1\n"
        "    return x + time.time_ns() % 1_000_003\n"
        "library.impl('race', race, 'CPU')\n"
        "torch.ops.planted.race(torch.zeros(2, dtype=torch.int64))\n"
    )
    hunt = diverge.diverge(path, runs=2)
    assert (hunt.divergence.kind, hunt.divergence.first.name) == ("result", "planted.race.default")
    assert hunt.fixed.flag and hunt.fixed.verdict.distinct == 1 and not hunt.fixed.refused
    assert "One answer in 2 runs, each in a process of its own; 20 or more are evidence." in str(hunt)


def test_a_program_that_does_not_run_under_the_flag_is_told_and_the_finding_stays(program):
    path = program("")
    printed = "Traceback …\nRuntimeError: race does not have a deterministic implementation, but you set so and so\n!"
    for output, reason in (
        (printed, "race does not have a deterministic implementation."),
        ("a\nRuntimeError: out of memory\n", "out of memory."),
        ("", "It ended with code 1."),
    ):
        tried = diverge._Arm(path, (), path.parent, "flag", True, {}, 0, print)
        tried._failed(1, output)
        assert tried.arm().refused == reason
        assert diverge._tried(tried.arm()).endswith(f" The program doesn't run with it: {reason}")
    # But where the learner asked for the flag, the program failed.
    asked = diverge._Arm(path, (), path.parent, "run", True, {}, 0, print)
    with pytest.raises(ProgramFailed, match="ended with code 1"):
        asked._failed(1, printed)


def test_programs_that_fail_are_told_with_what_they_printed_last(program):
    sentence, output = fails(program("print('a\\n' * 50)\nprint('the last')\n1 / 0\n"))
    assert sentence == "train it.py ended with code 1. What it printed last:"
    assert "the last" in output and "ZeroDivisionError" in output and len(output.splitlines()) <= 12
    path = program("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert fails(path) == ("train it.py was killed by signal 9, and had printed nothing.", "")
    path = program("import sys\nopen(sys.orig_argv[sys.orig_argv.index('--out') + 1], 'w').write('oops')\n")
    assert "is no trace" in fails(path)[0] or "is damaged" in fails(path)[0]


def test_a_program_that_hangs_is_stopped_with_its_children(program, tmp_path):
    path = program(
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "print('begun', flush=True)\n"
        "time.sleep(100)\n"
    )
    start = time.monotonic()
    sentence, output = fails(path, budget=8)
    assert "still running when the budget ended" in sentence and output == "begun"
    assert time.monotonic() - start < 30
    assert not _alive(int((tmp_path / "child").read_text()))


def _alive(process):
    """Whether it still runs; a dead one that nobody has waited for does not."""
    with contextlib.suppress(OSError):
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            os.kill(process, 0)
            with open(f"/proc/{process}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return False
            time.sleep(0.05)
        return True
    return False


def hunt_with(monkeypatch, tmp_path, run, budget=20.0):
    """Search in an arm whose runs are imitated: each takes `run(number)` seconds of an imitated clock."""
    now, begun = [0.0], []
    monkeypatch.setattr(diverge.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(diverge, "compare", lambda one, other: Divergence("none", *NOTHING))
    arm = diverge._Arm(tmp_path / "train.py", (), tmp_path, "run", False, {}, budget, print)

    def made(number):
        begun.append(number)
        now[0] += run(number)
        if now[0] > budget:
            raise diverge._TimeUp("train.py was still running when the budget ended, and was stopped.")
        arm._seconds.append(run(number))
        arm._fingerprints.append("sha256:1")
        return tmp_path

    monkeypatch.setattr(arm, "_run", made)
    assert arm.search(9, until_different=True).kind == "none"
    return arm.arm().verdict.runs, len(begun)


NOTHING = (None, None, (), {}, (0, 0), 0, "")


def test_a_run_that_the_budget_does_not_hold_is_left_out(monkeypatch, tmp_path):
    assert hunt_with(monkeypatch, tmp_path, lambda number: 3) == (6, 6)  # a seventh would take it to 21
    assert hunt_with(monkeypatch, tmp_path, lambda number: 30 if number == 4 else 3) == (4, 5)
    with pytest.raises(ProgramFailed, match="when the budget ended"):
        hunt_with(monkeypatch, tmp_path, lambda number: 30 if number == 1 else 3)


def test_a_child_that_outlives_the_program_is_not_waited_for(program):
    path = program(
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    )
    start = time.monotonic()
    hunt = diverge.diverge(path, runs=2)
    assert hunt.divergence.kind == "none" and time.monotonic() - start < 40


def test_a_program_that_leaves_without_goodbye_is_told(program):
    hunt = diverge.diverge(program("import os, torch\ntorch.ones(1)\nos._exit(0)\n"), runs=2)
    assert "The first trace was cut off" in str(hunt)


def test_a_loaders_spawned_workers_write_nothing(program):
    """Forked ones are in the case "workers"."""
    path = program(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "if __name__ == '__main__':\n"
        "    data = torch.arange(8.0).split(1)\n"
        "    torch.manual_seed(0)\n"
        "    for x in DataLoader(data, 2, num_workers=1, multiprocessing_context='spawn'):\n"
        "        x.sum()\n"
    )
    hunt = diverge.diverge(path, runs=2)
    assert hunt.divergence.kind == "none" and hunt.divergence.ended == ("complete", "complete")
    assert hunt.divergence.ops[0] >= 4


def test_a_temporary_folder_that_cannot_be_written_is_told(program, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(diverge.tempfile, "TemporaryDirectory", refuse)
    assert fails(program(""))[0] == "The folder for temporary files could not be written (Permission denied)."


def test_a_failure_in_a_notebook_is_a_sentence_and_what_was_printed():
    assert ProgramFailed("It failed:", "last")._render_traceback_() == ["It failed:", "last"]
    assert ProgramFailed("It failed.")._render_traceback_() == ["It failed."]


def test_an_interrupt_stops_the_program_too(program, tmp_path):
    """Ctrl-C reaches only the hunt: its program has a session of its own."""
    path = program(
        f"import os, time\nopen({str(tmp_path / 'child')!r}, 'w').write(str(os.getpid()))\ntime.sleep(100)\n"
    )
    hunt = subprocess.Popen(
        [sys.executable, "-m", "samebits", "diverge", path], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    hunt.send_signal(signal.SIGINT)
    assert hunt.wait(30) == 130 and hunt.stderr.read() == "Stopped.\n"
    assert not _alive(int((tmp_path / "child").read_text()))
