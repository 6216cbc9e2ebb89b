"""The script `course`, with a pip that is imagined: nothing here is downloaded.

It is not a module of the package, so it is loaded from its file; each test gets it with a small course of its
own around it, in a temporary folder.
"""

import ast
import http.server
import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import available
import pytest

SCRIPT = Path(__file__).parents[2] / "course"
posix = pytest.mark.skipif(
    os.name == "nt", reason="uses a shell script as Python; the commands are tested above"
)


def load(path=SCRIPT):
    loader = importlib.machinery.SourceFileLoader("course_script", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("course_script", loader))
    # Its compiled form would be left beside it, where it is not wanted.
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    return module


@pytest.fixture
def course(tmp_path, monkeypatch):
    """The script, in a small course with one notebook; `course.pip` says what pip does, and what it was asked."""
    module = load()
    root = tmp_path / "a course"
    (root / "binder").mkdir(parents=True)
    (root / "binder" / "overrides.json").write_text("{}")
    (root / "pyproject.toml").write_text("[project]")
    (root / "constraints.txt").write_text("torch==2.13.0")
    notebook(root / "notebooks" / "00_start_here.ipynb", "print(1)")
    monkeypatch.setattr(module, "ROOT", root)
    module.pip = types.SimpleNamespace(code=0, says="", asked=[], made=0)

    def run_showing(command, variables, log):
        assert "VIRTUAL_ENV" in variables and "PYTHONPATH" not in variables
        module.pip.asked.append(command)
        log.write(module.pip.says)
        return module.pip.code, module.pip.says

    def run(command, **options):
        if command[1:3] == ["-m", "venv"]:
            module.pip.made += 1
            folder = Path(command[-1])
            shutil.rmtree(folder, ignore_errors=True)
            imagined_python(folder)
        return subprocess.CompletedProcess(command, 0, stdout="")

    monkeypatch.setattr(module, "run_showing", run_showing)
    monkeypatch.setattr(module, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "run": run}))
    monkeypatch.setattr(module, "nvidia_card", lambda: False)
    monkeypatch.setattr(module, "reachable", lambda address: False)
    monkeypatch.setenv("PYTHONPATH", "somebody's own")
    return module


def imagined_python(folder, script="exit 0\n"):
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n" + script)
    python.chmod(0o755)
    return python


def notebook(path, *sources, outputs=(), count=None):
    """A notebook of code cells with these sources, of which the first has these outputs."""
    cells = [
        {"cell_type": "code", "source": source, "outputs": [], "execution_count": count, "metadata": {}}
        for source in sources
    ]
    cells[0]["outputs"] = list(outputs)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def fault(course, command="lab", arguments=()):
    """(exit code, the sentence) of a command that fails."""
    printed = []
    course.say = lambda text, stream=None: printed.append((text, stream))
    code = course.main([command, *arguments])
    said = [text for text, stream in printed if stream is sys.stderr]
    assert len(said) == 1 and "\n" not in said[0], printed
    return code, said[0]


# --- Pythons -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 8, 18), (3, 10, 13), (3, 15, 0)])
def test_a_python_that_does_not_serve_gets_one_sentence_that_names_those_that_do(
    course, monkeypatch, version
):
    monkeypatch.setattr(course, "pythons", lambda served: ["python3.11", "python3.13"])
    sentence = course.wrong_python("Same Bits", version, course.SERVED, ["lab", "--no-browser"])
    assert sentence == (
        f"Same Bits needs Python 3.11 or newer, up to 3.14; this is {version[0]}.{version[1]}. "
        "Found on this machine: python3.11, python3.13. Run: python3.13 course lab --no-browser"
    )


def test_a_machine_without_a_python_that_serves(course, monkeypatch):
    monkeypatch.setattr(course, "pythons", lambda served: [])
    sentence = course.wrong_python("Same Bits", (3, 8), course.SERVED, ["lab"])
    assert "this is 3.8. No such Python was found on this machine: install one" in sentence


@pytest.mark.parametrize("minor", [11, 12, 13, 14])
def test_pythons_that_serve(course, minor):
    assert course.wrong_python("Same Bits", (3, minor, 0), course.SERVED, []) is None


@posix
def test_only_pythons_that_start_are_named(course, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "subprocess", subprocess)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, script in {
        "python3.11": "echo 3.11",
        "python3.12": "echo 'not installed'; exit 127",  # a version manager's stand-in
        "python3.13": "echo 3.9",  # something else under this name
        "python3.14": "echo 3.14",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    assert course.pythons(course.SERVED) == ["python3.11", "python3.14"]


def test_an_old_python_runs_into_the_sentence_and_nothing_else():
    """The whole file is executed with an old version number, as far as it goes."""
    script = f"import sys; sys.version_info = (3, 8, 0); exec(open({str(SCRIPT)!r}).read())"
    done = subprocess.run([sys.executable, "-c", script, "lab"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("Same Bits needs Python 3.11 or newer") and done.stderr.count("\n") == 1


TOO_NEW = (
    ast.JoinedStr,
    ast.NamedExpr,
    ast.AnnAssign,
    ast.Nonlocal,
    ast.YieldFrom,
    ast.AsyncFunctionDef,
    ast.Match,
    ast.MatMult,
)


def test_every_python_since_2_7_can_parse_the_script():
    text = SCRIPT.read_text(encoding="utf-8")
    assert text.isascii(), "Python 2 wants to be told an encoding"
    for node in ast.walk(ast.parse(text)):
        where = f"line {getattr(node, 'lineno', '?')}"
        assert not isinstance(node, TOO_NEW), where
        if isinstance(node, ast.Raise):
            assert node.cause is None, where
        if isinstance(node, ast.FunctionDef):
            assert not node.args.kwonlyargs and not node.args.posonlyargs and node.returns is None, where
        if isinstance(node, ast.arg):
            assert node.annotation is None, where
        if isinstance(node, ast.Call):
            starred = [isinstance(argument, ast.Starred) for argument in node.args]
            assert not any(starred[:-1]), f"{where}: only the last argument may have a star"
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            assert not any(isinstance(element, ast.Starred) for element in node.elts), where
        if isinstance(node, ast.Dict):
            assert None not in node.keys, where


def test_old_pythons_on_this_machine_agree():
    # A version manager keeps them beside the one that runs this test.
    beside = [str(path) for path in Path(sys.base_prefix).parent.glob("*/bin/python")]
    versions = [_version(name) for name in ["python2", "python2.7", "python3.6", "python3.8", *beside]]
    old = sorted((version, name) for name, version in versions if version and version < (3, 11))
    if not old:
        pytest.skip("no Python older than 3.11 is here; the script's syntax was checked by the test above")
    oldest = {version[0]: name for version, name in reversed(old)}  # of Python 2 and of Python 3
    for name in oldest.values():
        done = subprocess.run([name, "-B", str(SCRIPT), "lab"], capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr.startswith("Same Bits needs"), (name, done.stderr)


def _version(name):
    script = "import sys; print('%d %d' % sys.version_info[:2])"
    try:
        printed = subprocess.run([name, "-c", script], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return name, None
    return name, tuple(int(part) for part in printed.split())


# --- Commands ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "meant"), [("lob", "lab"), ("tests", "test"), ("tensorflwo", "tensorflow"), ("docter", "doctor")]
)
def test_an_unknown_command_gets_the_nearest(course, word, meant):
    code, sentence = fault(course, word)
    assert code == 2 and sentence == f"There is no command {word}; did you mean {course.again(meant)}?"


def test_alone_it_says_what_it_can_do(course, capsys):
    assert course.main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"./course {name}" in printed for name in course.COMMANDS)


def test_every_command_runs_again_as_it_was_called(course, monkeypatch):
    assert course.again("lab") == ("python course lab" if os.name == "nt" else "./course lab")


@pytest.fixture
def started(course, monkeypatch):
    """What `lab` hands over to: a list of (command, folder, environment variables)."""
    calls = []
    monkeypatch.setattr(course, "hand_over", lambda *call: calls.append(call) or 0)
    return calls


@pytest.mark.parametrize("user", [0, 1000])
def test_the_lab_starts_jupyterlab_in_work_bound_to_this_machine(course, started, monkeypatch, user):
    monkeypatch.setattr(course.os, "geteuid", lambda: user, raising=False)
    assert course.main(["lab", "--no-browser", "--port=8899", "--x"]) == 0
    [(command, folder, variables)] = started
    environment = course.ROOT / ".venv"
    assert command[1:3] == ["-m", "jupyterlab"] and command[0].startswith(str(environment))
    assert folder == course.ROOT / "work"
    assert "--ServerApp.ip=127.0.0.1" in command
    assert f"--ServerApp.root_dir={course.ROOT / 'work'}" in command
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in command
    assert command[-3:] == ["--no-browser", "--port=8899", "--x"]
    assert ("--allow-root" in command) is (user == 0)
    assert not any("token" in part or "password" in part for part in command)
    assert variables["VIRTUAL_ENV"] == str(environment) and "PYTHONPATH" not in variables
    assert variables["PATH"].startswith(str(Path(command[0]).parent) + os.pathsep)
    assert (course.ROOT / "work" / "notebooks" / "00_start_here.ipynb").exists()
    assert (environment / "share" / "jupyter" / "lab" / "settings" / "overrides.json").read_text() == "{}"


def test_the_tests_all_run_and_the_first_failure_is_the_exit_code(course, monkeypatch):
    ran = []

    def call(command, **options):
        ran.append((command, options["env"].get("CUDA_VISIBLE_DEVICES", "as it is")))
        return (
            {"format": 4, "lint_imports_command()": 3}.get(command[-1].split()[-1], 0)
            if "-k" not in command
            else 7
        )

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(course.subprocess, "call", call)
    assert course.main(["test", "-k", "one"]) == 3
    assert [command[1:3] for command, _ in ran][-1] == ["-m", "pytest"], "pytest's closing line is the last"
    assert ran[-1] == ([ran[-1][0][0], "-m", "pytest", "-k", "one"], "as it is")
    assert len(ran) == 4
    assert course.pip.asked[0][-2:] == ["--editable", ".[test]"]
    ran.clear()
    monkeypatch.setattr(course, "nvidia_card", lambda: True)
    course.main(["test"])
    assert [cuda for command, cuda in ran if "pytest" in command] == ["", "as it is"]


@pytest.mark.parametrize("cause", ["none", "another Python", "no network", "one of their own"])
def test_the_tests_get_tensorflow_or_say_why_not_and_run_all_the_same(course, monkeypatch, capsys, cause):
    ran = []
    monkeypatch.setattr(course.subprocess, "call", lambda command, **options: ran.append(command) or 0)
    monkeypatch.delenv("SAMEBITS_TF_PYTHON", raising=False)
    if cause == "another Python":
        monkeypatch.setattr(course, "SERVED_BY_TENSORFLOW", ((3, 2), (3, 3)))
    if cause == "one of their own":
        monkeypatch.setenv("SAMEBITS_TF_PYTHON", "/theirs/python")
    if cause == "no network":
        course.tested("test")  # PyTorch and the rest are there already
        course.pip.code, course.pip.says = 1, "NewConnectionError"
    assert course.main(["test"]) == 0 and ran[-1][1:3] == ["-m", "pytest"]
    said = capsys.readouterr().out
    asked = [command for command in course.pip.asked if command[0].startswith(str(course.ROOT / ".venv-tf"))]
    assert len(asked) == (cause in ("none", "no network"))
    words = {
        "none": "run in .venv-tf",
        "another Python": "TensorFlow needs Python 3.2",
        "no network": "cannot be reached",
        "one of their own": "/theirs/python",
    }
    assert words[cause] in said
    assert ("what needs it is skipped" in said) is (cause in ("another Python", "no network"))


def test_the_tests_and_the_script_agree_on_the_pythons_that_tensorflow_serves(course, monkeypatch):
    for version in [(3, minor) for minor in range(10, 17)]:
        monkeypatch.setattr(available.sys, "version_info", (*version, 0))
        assert available.tensorflow_is_served() is (
            course.SERVED_BY_TENSORFLOW[0] <= version <= course.SERVED_BY_TENSORFLOW[1]
        )


def test_labs_are_made_by_the_tool_with_what_the_tests_need(course, monkeypatch):
    ran = []
    monkeypatch.setattr(course.subprocess, "call", lambda command, **options: ran.append(command) or 5)
    assert course.main(["labs", "--check"]) == 5
    assert ran[0][1:] == [str(course.ROOT / "tools" / "derive.py"), "--check"]
    assert ".[test]" in course.pip.asked[0]


@pytest.mark.parametrize(
    ("words", "asked"),
    [([], ["--write", "STATUS.md"]), (["--chapter", "04"], ["--chapter", "04"]), (["-h"], ["-h"])],
)
def test_the_claims_fill_the_page_unless_something_else_is_asked(course, monkeypatch, words, asked):
    ran = []
    monkeypatch.setattr(course.subprocess, "call", lambda command, **options: ran.append(command) or 0)
    assert course.main(["claims", *words]) == 0
    assert ran[0][1:] == ["-m", "samebits", "claims", *asked]


def test_the_doctor_needs_no_installation():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "doctor"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and done.stdout.startswith("This machine\n"), done.stderr


@pytest.mark.parametrize(
    ("system", "machine", "card", "package"),
    [
        ("linux", "x86_64", False, "tensorflow-cpu"),
        ("linux", "x86_64", True, "tensorflow[and-cuda]"),
        ("linux", "aarch64", False, "tensorflow"),
        ("darwin", "arm64", False, "tensorflow"),
        ("win32", "AMD64", True, "tensorflow"),
    ],
)
def test_tensorflow_gets_an_environment_of_its_own(course, monkeypatch, system, machine, card, package):
    monkeypatch.setattr(course.sys, "platform", system)
    monkeypatch.setattr(course.platform, "machine", lambda: machine)
    monkeypatch.setattr(course, "nvidia_card", lambda: card)
    assert course.main(["tensorflow"]) == 0
    assert course.pip.asked[0][-3:] == ["numpy", "xxhash", package]
    assert course.pip.asked[0][0].startswith(str(course.ROOT / ".venv-tf"))
    assert course.main(["tensorflow"]) == 0 and len(course.pip.asked) == 1


def test_tensorflow_says_which_pythons_it_takes(course, monkeypatch):
    monkeypatch.setattr(course, "pythons", lambda served: ["python3.13"])
    monkeypatch.setattr(course, "SERVED_BY_TENSORFLOW", ((3, 2), (3, 3)))
    code, sentence = fault(course, "tensorflow")
    assert code == 2 and sentence.startswith("TensorFlow needs Python 3.2 or newer, up to 3.3; this is 3.")
    assert sentence.endswith("Run: python3.13 course tensorflow") and not course.pip.made


def test_interrupting_is_no_error_message(course, monkeypatch):
    def interrupt(arguments):
        raise KeyboardInterrupt

    monkeypatch.setitem(course.COMMANDS, "lab", interrupt)
    assert course.main(["lab"]) == 130


# --- The environment ---------------------------------------------------------------------------------------


def test_it_is_made_once_and_then_nothing_runs(course, started):
    course.main(["lab"])
    assert course.pip.made == 1 and len(course.pip.asked) == 1
    assert course.pip.asked[0][-4:] == ["--constraint", "constraints.txt", "--editable", "."]
    course.main(["lab"])
    assert course.pip.made == 1 and len(course.pip.asked) == 1 and len(started) == 2


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_it_is_completed_when_what_it_should_hold_has_changed(course, started, name):
    course.main(["lab"])
    (course.ROOT / name).write_text("something else")
    course.main(["lab"])
    assert course.pip.made == 1 and len(course.pip.asked) == 2


def test_what_the_tests_need_contains_what_the_lab_needs(course, started, monkeypatch):
    monkeypatch.setattr(course.subprocess, "call", lambda command, **options: 0)
    course.main(["test"])
    course.main(["lab"])
    assert len([command for command in course.pip.asked if "--editable" in command]) == 1


def test_after_a_failure_it_goes_on_from_what_is_there(course, started):
    course.pip.code, course.pip.says = 1, "ERROR: ... Max retries exceeded with url ..."
    code, sentence = fault(course)
    assert code == 2 and "The package index cannot be reached" in sentence and not started
    assert f"All of pip's words are in {course.ROOT / '.venv' / 'install.log'}." in sentence
    assert course.pip.says in (course.ROOT / ".venv" / "install.log").read_text()
    course.pip.code = 0
    assert course.main(["lab"]) == 0
    assert course.pip.made == 1 and len(course.pip.asked) == 2 and len(started) == 1


def half_made(folder):
    """venv was stopped before it had copied Python."""
    shutil.rmtree(folder)
    folder.mkdir()


def half_unpacked(folder):
    """pip was killed while it unpacked a package; RECORD is the last file that it writes."""
    (folder / "samebits-lab.json").unlink()
    (folder / "lib" / "python3.12" / "site-packages" / "torch-2.13.0.dist-info").mkdir(parents=True)


def moved(folder):
    """The course was made in one folder and moved to another."""
    stamp = folder / "samebits-lab.json"
    stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"folder": "elsewhere/.venv"}))


def spoiled(folder):
    (folder / "samebits-lab.json").write_text("{")


@posix
@pytest.mark.parametrize("damage", [half_made, half_unpacked, moved, spoiled])
def test_an_environment_that_is_not_whole_is_made_anew(course, started, damage):
    course.main(["lab"])
    damage(course.ROOT / ".venv")
    assert course.main(["lab"]) == 0
    assert course.pip.made == 2 and len(started) == 2
    course.main(["lab"])
    assert course.pip.made == 2


@posix
def test_an_environment_whose_python_was_removed_or_replaced(course, started, tmp_path):
    course.main(["lab"])
    python = course.ROOT / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("python3.99-was-removed")
    course.main(["lab"])
    assert course.pip.made == 2
    python.unlink()
    other = tmp_path / "python3.12"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    python.symlink_to(other)
    course.main(["lab"])
    assert len(course.pip.asked) == 3, "another Python may lack the packages of the one before"


def test_without_the_venv_module(course, monkeypatch):
    monkeypatch.setattr(
        course.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else name
    )
    code, sentence = fault(course)
    assert code == 2 and "apt install python3-venv" in sentence
    assert not (course.ROOT / ".venv").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "The disk is full"),
        ("OSError: [WinError 112] There is not enough space", "The disk is full"),
        ("ERROR: [Errno 13] Permission denied: 'x'", "cannot be written to"),
        ("ERROR: [Errno 30] Read-only file system: 'x'", "cannot be written to"),
        ("NewConnectionError('...: Failed to establish a new connection')", "index cannot be reached"),
        ("NameResolutionError(... Temporary failure in name resolution)", "index cannot be reached"),
        ("SSLError(SSLCertVerificationError(1, ...))", "index cannot be reached"),
        (
            # all that pip says where an index answers with an error, or a café's page answers in its stead
            "ERROR: Could not find a version that satisfies the requirement setuptools>=77 (from versions: none)\n"
            "ERROR: No matching distribution found for setuptools>=77",
            "index cannot be reached",
        ),
        ("ERROR: No matching distribution found for numpy==2.4.0\n", "index cannot be reached"),
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "There is no torch==2.13.0 for this machine",
        ),
    ],
)
@pytest.mark.parametrize("by", ["venv", "pip"])
def test_known_causes_get_their_sentence(course, monkeypatch, words, said, by):
    if by == "pip":
        course.pip.code, course.pip.says = 1, "Collecting torch\n" + words
    else:
        failed = subprocess.CompletedProcess([], 1, stdout="Error: " + words)
        monkeypatch.setattr(course.subprocess, "run", lambda command, **options: failed)
    code, sentence = fault(course)
    assert code == 2 and said in sentence
    assert not list(course.ROOT.glob(".venv/samebits-*"))


def test_a_cause_that_is_not_known_is_quoted(course, monkeypatch):
    course.pip.code, course.pip.says = 1, "\n".join(f"line {n}" for n in range(20))
    printed = []
    monkeypatch.setattr(course, "say", lambda text, stream=None: printed.append(text))
    assert course.main(["lab"]) == 2
    assert printed[-2].splitlines() == [f"line {n}" for n in range(12, 20)]
    assert f"Delete {course.ROOT / '.venv'}, and run" in printed[-1] and "install.log" in printed[-1]


def test_a_disk_that_fills_up_while_the_log_is_written(course, monkeypatch):
    def run_showing(command, variables, log):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(course, "run_showing", run_showing)
    assert fault(course) == (2, course.explain("No space left on device", course.ROOT / ".venv", "lab"))


def test_venv_does_not_say_that_the_disk_is_full_but_the_disk_does(course, monkeypatch):
    words = "Error: Command '['python', '-m', 'ensurepip']' returned non-zero exit status 1."
    assert course.explain(words, course.ROOT, "lab") is None
    monkeypatch.setattr(course.shutil, "disk_usage", lambda place: types.SimpleNamespace(free=10_000))
    assert course.explain(words, course.ROOT, "lab").startswith("The disk is full")


def test_a_folder_of_the_learners_that_cannot_be_written(course, started, monkeypatch):
    def copy(original, target):
        raise PermissionError(13, "Permission denied", str(target))

    monkeypatch.setattr(course, "copy", copy)
    code, sentence = fault(course)
    assert code == 2 and "cannot be written to" in sentence and not started


def test_a_real_environment_is_made_by_venv(course, monkeypatch):
    monkeypatch.setattr(course, "subprocess", subprocess)
    environment = course.Environment(course.ROOT / ".venv", "lab")
    environment.install("lab", ["--editable", "."])
    assert environment.holds("lab") and environment._sound()
    assert course.pip.asked[0][0] == str(environment.python)
    installed = environment._site_packages("pip-*.dist-info")
    assert len(installed) == 1
    (installed[0] / "RECORD").unlink()
    assert not environment._sound()


# --- Which PyTorch -----------------------------------------------------------------------------------------

CPU, CUDA = "https://download.pytorch.org/whl/cpu", "https://download.pytorch.org/whl/cu130"


@pytest.mark.parametrize(
    ("system", "card", "answers", "added", "said"),
    [
        ("linux", False, True, ["--extra-index-url", CPU], "its CPU build from PyTorch's own index"),
        ("linux", False, False, [], "does not answer; the default build"),
        ("linux", True, True, ["numba-cuda[cu13]"], "its default build for this system, with CUDA"),
        ("darwin", False, True, [], "its default build for this system."),
        ("win32", False, True, [], "its default build for this system."),
        ("win32", True, True, ["--extra-index-url", CUDA, "numba-cuda[cu13]"], "its CUDA build from"),
        ("win32", True, False, ["numba-cuda[cu13]"], "does not answer; the default build"),
    ],
)
def test_the_build_of_pytorch_fits_the_machine(
    course, monkeypatch, capsys, system, card, answers, added, said
):
    monkeypatch.setattr(course.sys, "platform", system)
    monkeypatch.setattr(
        course, "os", types.SimpleNamespace(**{**vars(os), "name": "nt" if system == "win32" else "posix"})
    )
    monkeypatch.setattr(course, "nvidia_card", lambda: card)
    asked = []
    monkeypatch.setattr(course, "reachable", lambda address: asked.append(address) or answers)
    assert course.pytorch_build() == added
    assert said in capsys.readouterr().out
    assert all(address.endswith("/torch/") for address in asked)


def test_the_installed_build_is_named(course, started, monkeypatch, capsys):
    def run_showing(command, variables, log):
        home = course.ROOT / ".venv" / ("Lib" if os.name == "nt" else "lib/python3.12")
        (home / "site-packages" / "torch-2.13.0+cpu.dist-info").mkdir(parents=True)
        return 0, ""

    monkeypatch.setattr(course, "run_showing", run_showing)
    course.main(["lab"])
    assert "Installed, with PyTorch 2.13.0+cpu." in capsys.readouterr().out


def test_an_index_is_reachable_if_it_answers_well(course):
    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/torch/" else 404)
            self.end_headers()

        def log_message(self, *words):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        reachable = load().reachable
        assert reachable(address + "/torch/")
        assert not reachable(address + "/nothing/")
        server.shutdown()
    assert not reachable(address + "/torch/")


@posix
@pytest.mark.parametrize(
    ("script", "card"),
    [
        ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", True),
        ("echo 'No devices were found'", False),
        ("echo 'GPU 0: broken'; exit 9", False),
        (None, False),
    ],
)
def test_a_card_is_found_by_its_drivers_tool(tmp_path, monkeypatch, script, card):
    module = load()
    monkeypatch.setattr(
        module, "Path", lambda path: tmp_path / "nothing" if path.startswith("/proc") else Path(path)
    )
    if script:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.nvidia_card() is card


# --- The learner's copies ----------------------------------------------------------------------------------


@pytest.fixture
def copies(course):
    """Copy the course and return the lines said; with the paths of one original and its copy."""
    original = course.ROOT / "notebooks" / "00_start_here.ipynb"
    yours = course.ROOT / "work" / "notebooks" / "00_start_here.ipynb"
    return types.SimpleNamespace(
        make=lambda: course.copy_course(course.ROOT, course.ROOT / "work"), original=original, yours=yours
    )


def cell(path, number=0):
    return json.loads(path.read_text())["cells"][number]["source"]


def test_everything_is_copied_once(course, copies):
    notebook(course.ROOT / "labs" / "01_x.ipynb", "...")
    (course.ROOT / "notebooks" / "images").mkdir()
    (course.ROOT / "notebooks" / "images" / "tiles.png").write_bytes(b"\x89PNG")
    (course.ROOT / "notebooks" / ".ipynb_checkpoints").mkdir()
    (course.ROOT / "notebooks" / ".ipynb_checkpoints" / "x.ipynb").touch()
    assert copies.make() == ["Copied into work/: 3 files."]
    work = course.ROOT / "work"
    found = sorted(p.relative_to(work).as_posix() for p in work.rglob("*") if p.is_file())
    assert found == [
        ".samebits.json",
        "labs/01_x.ipynb",
        "notebooks/00_start_here.ipynb",
        "notebooks/images/tiles.png",
    ]
    assert copies.make() == []


def test_a_copy_has_no_stored_outputs(copies):
    """They are for readers on the web; a learner would read the answer before the question."""
    output = {"output_type": "stream", "name": "stdout", "text": "20 answers\n"}
    notebook(copies.original, "print(1)", outputs=[output], count=1)
    copies.make()
    copied = json.loads(copies.yours.read_text())["cells"][0]
    assert copied["outputs"] == [] and copied["execution_count"] is None
    assert "20 answers" in copies.original.read_text()


def test_an_original_that_is_no_notebook_is_copied_as_it_is(copies):
    copies.original.write_text("{not json")
    copies.make()
    assert copies.yours.read_text() == "{not json"


def test_an_unedited_copy_follows_the_original(copies):
    copies.make()
    notebook(copies.original, "print(2)")
    assert copies.make() == ["Copied into work/: 1 file."]
    assert cell(copies.yours) == "print(2)"


def test_running_a_notebook_is_not_editing_it(copies):
    copies.make()
    output = {"output_type": "stream", "name": "stdout", "text": "1\n"}
    # As JupyterLab saves it: outputs, counts, sources as lists of lines, an empty cell at the end.
    notebook(copies.yours, ["print(1)"], "", outputs=[output], count=1)
    assert copies.make() == []
    assert "stdout" in copies.yours.read_text(), "outputs stay as long as the original does"
    notebook(copies.original, "print(2)")
    copies.make()
    assert cell(copies.yours) == "print(2)"


def test_what_the_learner_edited_stays_and_the_newer_original_is_beside_it(copies):
    copies.make()
    notebook(copies.yours, "print('mine')")
    assert copies.make() == [], "nothing is newer yet"
    notebook(copies.original, "print(2)")
    assert copies.make() == [
        "work/notebooks/00_start_here.ipynb is yours and stays; the newer original is 00_start_here.new.ipynb."
    ]
    beside = copies.yours.with_name("00_start_here.new.ipynb")
    assert cell(copies.yours) == "print('mine')" and cell(beside) == "print(2)"
    assert copies.make() == [], "it is said once"
    beside.unlink()
    assert copies.make() == [] and not beside.exists(), "and a newer one that was thrown away does not return"


def test_the_newest_original_takes_the_place_of_the_one_before_unless_that_was_edited(copies):
    copies.make()
    notebook(copies.yours, "print('mine')")
    beside = copies.yours.with_name("00_start_here.new.ipynb")
    for version in (2, 3):
        notebook(copies.original, f"print({version})")
        copies.make()
        assert cell(beside) == f"print({version})"
    notebook(beside, "print('mine, too')")
    notebook(copies.original, "print(4)")
    assert "00_start_here.new1.ipynb" in copies.make()[0]
    assert cell(beside) == "print('mine, too')"
    assert cell(copies.yours.with_name("00_start_here.new1.ipynb")) == "print(4)"


def test_a_learner_who_takes_the_newer_original_follows_again(copies):
    copies.make()
    notebook(copies.yours, "print('mine')")
    notebook(copies.original, "print(2)")
    copies.make()
    shutil.move(copies.yours.with_name("00_start_here.new.ipynb"), copies.yours)
    assert copies.make() == []
    notebook(copies.original, "print(3)")
    assert copies.make() == ["Copied into work/: 1 file."] and cell(copies.yours) == "print(3)"


def test_a_copy_that_was_thrown_away_comes_back(copies):
    copies.make()
    copies.yours.unlink()
    assert copies.make() == ["Copied into work/: 1 file."]


@pytest.mark.parametrize("manifest", [None, "{", "[]", '{"notebooks/00_start_here.ipynb": 3}'])
def test_without_its_manifest_nothing_of_the_learners_is_lost(course, copies, manifest):
    copies.make()
    notebook(copies.yours, "print('mine')")
    path = course.ROOT / "work" / ".samebits.json"
    if manifest is None:
        path.unlink()
    else:
        path.write_text(manifest)
    assert "is yours and stays" in copies.make()[0]
    assert cell(copies.yours) == "print('mine')"


@pytest.mark.parametrize(
    "bytes_", [b"", b"not JSON", b'{"cells": 3}', b'{"cells": [{"source": 1}]}', b"\xff\xfe"]
)
def test_a_copy_that_is_no_notebook_any_more_counts_as_edited(copies, bytes_):
    copies.make()
    copies.yours.write_bytes(bytes_)
    notebook(copies.original, "print(2)")
    assert "is yours and stays" in copies.make()[0]
    assert copies.yours.read_bytes() == bytes_


def test_a_full_disk_leaves_no_half_of_a_copy(course, copies, monkeypatch):
    copies.make()
    before = copies.yours.read_bytes()
    notebook(copies.original, "print(2)")

    def write_half(part, data):
        with open(part, "wb") as half:
            half.write(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", write_half)
        with pytest.raises(OSError):
            copies.make()
    assert copies.yours.read_bytes() == before
    assert not list(course.ROOT.rglob("*.part"))
    assert copies.make() == ["Copied into work/: 1 file."]


# --- All of it, as a person starts it -----------------------------------------------------------------------


@posix
def test_a_second_start_adds_less_than_a_second(course, started, capsys):
    """A real process, with a shell script in JupyterLab's place that prints what it was given."""
    picture = {"output_type": "display_data", "data": {"image/png": "x" * 200_000}, "metadata": {}}
    for number in range(20):  # twice as many notebooks as there are chapters, with five pictures in each
        path = course.ROOT / "notebooks" / f"{number:02}_x.ipynb"
        notebook(path, "plot()", *["print()"] * 40, outputs=[picture] * 5)
    shutil.copy(SCRIPT, course.ROOT / "course")
    course.main(["lab"])
    imagined = course.ROOT / ".venv" / "bin" / "python"
    imagined.write_text('#!/bin/sh\npwd\nprintf "%s\\n" "$@"\n')
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, str(course.ROOT / "course"), "lab", "--no-browser"],
            capture_output=True,
            text=True,
            cwd="/",
        )
        seconds.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert printed[:2] == [
        "Starting JupyterLab on work/notebooks/00_start_here.ipynb",
        str(course.ROOT / "work"),
    ]
    assert printed[2:4] == ["-m", "jupyterlab"] and printed[-1] == "--no-browser"
    assert min(seconds) < 1, "the least of three, since other programs may have the processor"


@posix
def test_a_long_command_is_logged_and_its_exit_code_kept(course, tmp_path):
    module = load()
    module.ROOT = tmp_path
    with open(tmp_path / "log", "w+") as log:
        script = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(7)"
        code, text = module.run_showing([sys.executable, "-u", "-c", script], dict(os.environ), log)
        log.seek(0)
        assert code == 7 and text == "one\ntwo\n" == log.read()


@posix
def test_a_command_that_is_stopped_leaves_no_process(tmp_path):
    module = load()
    module.ROOT = tmp_path

    class Full:
        def write(self, line):
            self.process = int(line)
            raise OSError(28, "No space left on device")

    log = Full()
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(OSError):
        module.run_showing([sys.executable, "-c", script], dict(os.environ), log)
    with pytest.raises(ProcessLookupError):
        os.kill(log.process, 0)
