"""Every file that says what to install says the same: pyproject.toml, constraints.txt, the two for conda."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED = [Requirement(line) for line in PROJECT["dependencies"]]
FOR_TESTS = [Requirement(line) for line in PROJECT["optional-dependencies"]["test"]]

CONDA_FILES = ["environment.yml", "binder/environment.yml"]
# What conda-forge calls differently. PyTorch has a build with CUDA and one without.
CONDA_NAMES = {
    ("environment.yml", "torch"): "pytorch-gpu",
    ("binder/environment.yml", "torch"): "pytorch-cpu",
    ("environment.yml", "xxhash"): "python-xxhash",
    ("binder/environment.yml", "xxhash"): "python-xxhash",
}


def pins():
    """Name → version of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {}
    for requirement in pinned:
        [specifier] = requirement.specifier
        assert specifier.operator == "==" and "+" not in specifier.version, (
            f"{requirement} pins no plain version"
        )
        assert canonicalize_name(requirement.name) not in versions, f"{requirement} is there twice"
        versions[canonicalize_name(requirement.name)] = Version(specifier.version)
    return versions


def conda(file):
    """(name → version condition of conda's own packages, the requirements left to pip)."""
    listed = yaml.safe_load((ROOT / file).read_text())["dependencies"]
    [left_to_pip] = [item["pip"] for item in listed if isinstance(item, dict)]
    packages = [re.fullmatch(r"([a-z0-9-]+)(.*)", item) for item in listed if isinstance(item, str)]
    return {match[1]: match[2] for match in packages}, left_to_pip


@pytest.mark.parametrize("requirement", NEEDED + FOR_TESTS, ids=str)
def test_the_tested_set_has_what_the_package_accepts(requirement):
    assert pins()[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_tested_set_holds_everything_that_is_installed_for_the_course():
    """Not only what pyproject.toml names, also what that needs in turn: else two learners get two courses."""
    missing, seen = set(), set()

    def look(requirement):
        name = canonicalize_name(requirement.name)
        if (name, *sorted(requirement.extras)) in seen:
            return
        seen.add((name, *sorted(requirement.extras)))
        # setuptools builds the package before the set is installed, in an environment of its own.
        if name not in pins() and name != "setuptools":
            missing.add(name)
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            asked = [{"extra": extra} for extra in ("", *requirement.extras)]
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in asked):
                look(needed)

    for requirement in NEEDED + FOR_TESTS:
        if requirement.marker is None or requirement.marker.evaluate():
            look(requirement)
    assert len(seen) > 100, "this looked at hardly anything"
    # What PyTorch for CUDA brings, it pins itself, to the digit.
    of_cuda = {name for name in missing if name.startswith(("nvidia-", "cuda-toolkit", "triton"))}
    assert missing - of_cuda == set()


def test_the_tested_set_serves_the_oldest_python_that_the_package_accepts():
    """Debian 12 has Python 3.11.2: one pin that wants 3.11.5, and the first command fails there."""
    [accepted] = SpecifierSet(PROJECT["requires-python"])
    oldest = f"{accepted.version}.0"
    looked_at, too_new = 0, []
    for name in pins():
        try:
            needs = importlib.metadata.metadata(name)["Requires-Python"]
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform, or TensorFlow's
        looked_at += 1
        if oldest not in SpecifierSet(needs or ""):
            too_new.append(f"{name} needs Python {needs}")
    assert looked_at > 100 and not too_new


def test_pytorch_is_the_one_that_the_course_names():
    assert pins()["torch"] == Version("2.13.0")


@pytest.mark.parametrize("file", CONDA_FILES)
@pytest.mark.parametrize("requirement", NEEDED, ids=str)
def test_conda_asks_for_what_pip_asks_for(file, requirement):
    packages, left_to_pip = conda(file)
    name = CONDA_NAMES.get((file, requirement.name), requirement.name)
    by_pip = {Requirement(line).name: Requirement(line) for line in left_to_pip if not line.startswith("-")}
    specifier = str(by_pip[name].specifier) if name in by_pip else packages[name]
    assert SpecifierSet(specifier) == requirement.specifier


@pytest.mark.parametrize("file", CONDA_FILES)
def test_conda_asks_for_nothing_else(file):
    packages, left_to_pip = conda(file)
    known = {CONDA_NAMES.get((file, requirement.name), requirement.name) for requirement in NEEDED}
    assert set(packages) - known <= {"python", "pip", "nbval"}
    by_pip = {Requirement(line).name for line in left_to_pip if not line.startswith("-")}
    assert by_pip <= {"numba-cuda"}


@pytest.mark.parametrize("file", CONDA_FILES)
def test_conda_takes_everything_from_one_channel_and_a_python_that_serves(file):
    environment = yaml.safe_load((ROOT / file).read_text())
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    packages, _ = conda(file)
    python = Version(packages["python"].removeprefix("="))
    assert f"{python}.0" in SpecifierSet(PROJECT["requires-python"])


def test_notebooks_are_tested_by_the_same_nbval_everywhere():
    packages, _ = conda("environment.yml")
    [nbval] = [requirement for requirement in FOR_TESTS if requirement.name == "nbval"]
    assert f"={packages['nbval']}" == str(nbval.specifier)


def test_only_one_of_the_two_installs_the_course_itself_since_binder_has_postbuild():
    assert "--editable ." in conda("environment.yml")[1]
    assert not any(line.startswith("-") for line in conda("binder/environment.yml")[1])


def test_neither_installs_tensorflow_beside_pytorch():
    for file in CONDA_FILES:
        packages, left_to_pip = conda(file)
        assert not [name for name in [*packages, *left_to_pip] if "tensorflow" in name]


# --- Scripts -----------------------------------------------------------------------------------------------

SHELL = [".ci/run", "binder/postBuild", "binder/start"]
with_bash = pytest.mark.skipif(
    shutil.which("bash") is None, reason="these scripts are for bash, and none is here"
)


@with_bash
@pytest.mark.parametrize("script", SHELL)
def test_scripts_can_be_run(script):
    path = ROOT / script
    assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    assert path.read_text().startswith("#!")
    assert os.access(path, os.X_OK)


@with_bash
def test_postbuild_installs_the_course_and_quiets_jupyterlab(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f'#!/bin/sh\nif [ "$1" = -c ]; then echo "{tmp_path}"; else echo "$@" >>"{tmp_path}/asked"; fi\n'
    )
    python.chmod(0o755)
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", str(ROOT / "binder" / "postBuild")], check=True, cwd=ROOT, env=environment)
    assert (tmp_path / "asked").read_text() == "-m pip install --no-deps --editable .\n"
    settings = json.loads((tmp_path / "share/jupyter/lab/settings/overrides.json").read_text())
    assert settings["@jupyterlab/apputils-extension:notification"] == {
        "fetchNews": "false",
        "checkForUpdates": False,
    }


@with_bash
def test_binder_has_memory_for_one_worker():
    script = [str(ROOT / "binder" / "start"), "sh", "-c", 'echo "$SAMEBITS_WORKERS" "$0"', "as it was"]
    done = subprocess.run(["bash", *script], capture_output=True, text=True, check=True)
    assert done.stdout == "1 as it was\n"


@with_bash
@pytest.mark.parametrize(("fails", "code"), [(0, 0), (2, 0), (9, 1)])
def test_the_ci_gets_a_browser_and_then_runs_what_everybody_runs(tmp_path, fails, code):
    """apt-get fails this many times before chromium is there."""
    home = tmp_path / "a course"
    (home / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", home / ".ci" / "run")
    _script(home / "course", 'echo "course $@; stdin: $(cat)"')
    programs = tmp_path / "bin"
    programs.mkdir()
    _script(
        programs / "apt-get",
        f'echo "apt-get $@" >>"{tmp_path}/asked"; [ "$1" = update ] && exit 0\n'
        f'[ "$(grep -c install "{tmp_path}/asked")" -gt {fails} ] || exit 100\n'
        f'cp "$0" "{programs}/chromium"',
    )
    for name in ("bash", "cat", "cp", "dirname", "grep", "sh"):
        (programs / name).symlink_to(shutil.which(name))
    done = subprocess.run(
        [shutil.which("bash"), str(home / ".ci" / "run")],
        capture_output=True,
        text=True,
        env={"PATH": str(programs), "CI": "true"},
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == (["course test; stdin: "] if code == 0 else [])
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[:2] == ["apt-get update", "apt-get install -y chromium"]
    assert len(asked) == 2 * min(fails + 1, 3)


def _script(path, text):
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)
