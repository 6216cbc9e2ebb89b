"""The doctor, shown machines that are not this one: its only view of a machine is `Probes`."""

import json
import re
import sys
import time
from pathlib import Path

import pytest

from samebits import machine
from samebits.machine import Answer, Probes

XEON = """processor\t: 0
model name\t: Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz
flags\t\t: fpu sse2 avx2 avx512f amx_tile
"""
TORCH_CPU = {"build": "CPU only", "built_for": [], "devices": {}, "threads": 2, "why_not": ""}
TORCH_CUDA = {
    "build": "CUDA 13.0",
    "built_for": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"],
    "devices": {"NVIDIA H200": 132},
    "threads": 16,
    "why_not": "",
}
NO_TOOL = Answer(False, "", missing=True)
H200 = "NVIDIA H200, 580.95.05, 143771, 9.0, Disabled\n"


def imagined(
    *,
    smi=NO_TOOL,
    packages=None,
    torch=None,
    tensorflow=None,
    nvvm=True,
    cores=2,
    gib=24,
    files=None,
    environment=None,
    home=Path("nowhere"),
    tf_packages=None,
):
    """Probes of a machine that is described by what its programs answer. A dict is printed as JSON, after noise."""
    files = {"/proc/cpuinfo": XEON} if files is None else files
    packages = {"numpy": "2.4.6"} if packages is None else packages

    def run(command, seconds):
        if command[0] == "nvidia-smi":
            return smi(command) if callable(smi) else smi
        script = command[-1]
        if script == machine.PACKAGES:
            return _printed(packages if command[0] == sys.executable or tf_packages is None else tf_packages)
        if script == machine.FACTS["torch"]:
            return _printed(torch)
        if script == machine.FACTS["tensorflow"]:
            return _printed(tensorflow)
        if "nvvm" in script:
            return Answer(nvvm, "")
        raise AssertionError(f"the survey ran something else: {command}")

    return Probes(
        run=run,
        read=lambda path: files.get(path, ""),
        cores=lambda: cores,
        memory=lambda: int(gib * 2**30),
        environment=environment or {},
        system="Linux",
        home=home,
    )


def _printed(answer):
    return Answer(True, "a library says hello\n" + json.dumps(answer)) if isinstance(answer, dict) else answer


WITH_TORCH = {"packages": {"torch": "2.13.0+cpu"}, "torch": TORCH_CPU}
WITH_CARD = {
    "packages": {"torch": "2.13.0+cu130"},
    "torch": TORCH_CUDA,
    "smi": Answer(True, H200),
}


def diagnosis(**facts):
    """(the problems as one text, the report with no line broken) of an imagined machine."""
    found = machine.survey(imagined(**facts))
    report = machine.report(found)
    assert max(map(len, report.splitlines())) <= 100
    return " ".join(found.problems), re.sub(r"\n {4,}", " ", report)


def test_this_very_machine_gets_an_answer_and_it_names_what_is_installed():
    found = machine.survey()
    report = machine.report(found)
    assert found.torch is not None and found.torch.works, report
    assert found.torch.version in report and found.processor in report
    assert found.cores >= 1 and found.memory > 0.5


def test_a_machine_without_a_card_has_no_problem_and_is_told_what_works():
    problems, report = diagnosis(**WITH_TORCH)
    assert problems == ""
    assert "no NVIDIA card" in report
    assert "simulator (labelled MODEL)" in report
    assert "run live" in report
    assert "Intel Xeon Gold 6148, 2 cores for this course, AVX2, AVX-512, AMX" in report


def test_a_card_that_pytorch_uses_is_named_with_its_multiprocessors():
    problems, report = diagnosis(**WITH_CARD)
    assert problems == ""
    assert "NVIDIA H200, driver 580.95.05, compute capability 9.0, 140 GiB" in report
    assert "run live on NVIDIA H200 (132 multiprocessors)" in report
    assert "simulator" not in report


def test_an_old_driver_that_does_not_know_compute_capability_is_asked_again_without():
    def smi(command):
        if "compute_cap" in command[1]:
            return Answer(False, 'Field "compute_cap" is not a valid field to query.\n')
        return Answer(True, "Tesla V100-SXM2-16GB, 450.80.02, 16160\n")

    _, report = diagnosis(**WITH_CARD | {"smi": smi})
    assert "Tesla V100-SXM2-16GB, driver 450.80.02, 16 GiB" in report


def test_a_divided_card_is_said_to_have_fewer_multiprocessors():
    divided = "NVIDIA A100-SXM4-40GB, 580.95.05, [Insufficient Permissions], 8.0, Enabled\n"
    slice_of_it = TORCH_CUDA | {"devices": {"NVIDIA A100-SXM4-40GB MIG 1g.5gb": 14}}
    problems, report = diagnosis(**WITH_CARD | {"smi": Answer(True, divided), "torch": slice_of_it})
    assert problems == ""
    assert "divided into instances (MIG)" in report
    assert "14 multiprocessors" in report and "fewer multiprocessors" in report


@pytest.mark.parametrize(
    "words",
    [
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that ...\n",
        "no answer within 20 seconds",
    ],
)
def test_a_broken_driver_is_quoted(words):
    problems, report = diagnosis(**WITH_TORCH, smi=Answer(False, words))
    assert words.splitlines()[0].rstrip(".") in problems
    assert "Restart the machine" in problems


def test_a_tool_that_finds_no_devices_is_no_problem():
    problems, _ = diagnosis(**WITH_TORCH, smi=Answer(False, "No devices were found\n"))
    assert problems == ""


def test_a_cpu_build_beside_a_card():
    problems, report = diagnosis(**WITH_TORCH, smi=Answer(True, H200))
    assert "2.13.0+cpu is a CPU-only build, so the NVIDIA H200 stays unused" in problems
    assert "./course lab" in problems
    assert "simulator" in report


def test_a_torch_without_code_for_the_card():
    pascal = Answer(True, "Tesla P100-PCIE-16GB, 580.95.05, 16384, 6.0, [N/A]\n")
    seen = TORCH_CUDA | {"devices": {"Tesla P100-PCIE-16GB": 56}}
    problems, _ = diagnosis(**WITH_CARD | {"smi": pascal, "torch": seen})
    assert "no code for the Tesla P100-PCIE-16GB (compute capability 6.0; it was built for sm_75" in problems


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ("8.6", ["sm_80"], True),  # machine code runs on a later minor version
        ("8.0", ["sm_86"], False),  # but not on an earlier one
        ("9.0", ["sm_80"], False),  # nor on another major version
        ("12.1", ["sm_80", "compute_90"], True),  # PTX is compiled for anything later
        ("8.0", ["compute_90"], False),
        ("9.0", ["sm_90a"], True),  # specific to one architecture
        ("9.1", ["sm_90a"], False),
        ("10.3", ["sm_100"], True),
        ("6.0", ["sm_100"], False),
        ("", ["sm_80"], True),  # the driver does not say
        ("8.0", [], True),  # PyTorch does not say
    ],
)
def test_which_code_runs_on_which_card(capability, built_for, runs):
    card = machine.Gpu("card", "580.1", capability)
    torch = machine.Framework("torch", "2.13.0", "python", "CUDA 13.0", tuple(built_for))
    assert machine._has_code_for(card, torch) is runs


UNSEEN = TORCH_CUDA | {"devices": {}, "built_for": [], "why_not": "CUDA error: unknown error\nmore of it"}


def test_a_driver_that_is_too_old():
    old = Answer(True, "NVIDIA H200, 535.183.01, 143771, 9.0, Disabled\n")
    problems, report = diagnosis(**WITH_CARD | {"smi": old, "torch": UNSEEN})
    assert "driver 535.183.01 is too old for PyTorch's CUDA 13.0, which needs driver 580 or newer" in problems
    assert "sees no GPU" in report


@pytest.mark.parametrize("hiding", ["", "-1", "7"])
def test_a_card_hidden_by_the_environment(hiding):
    problems, _ = diagnosis(**WITH_CARD | {"torch": UNSEEN, "environment": {"CUDA_VISIBLE_DEVICES": hiding}})
    assert f"CUDA_VISIBLE_DEVICES={hiding!r} hides the NVIDIA H200" in problems


def test_a_card_that_pytorch_does_not_see_for_a_reason_of_its_own():
    problems, _ = diagnosis(**WITH_CARD | {"torch": UNSEEN})
    assert "does not see the NVIDIA H200 (CUDA error: unknown error)" in problems


def test_the_compiler_of_the_kernels_is_missed():
    problems, _ = diagnosis(**WITH_CARD, nvvm=False)
    assert "libNVVM" in problems and "numba-cuda[cu13]" in problems


CLASH = {"nvidia-cudnn-cu12": "9.28.0", "nvidia-cudnn-cu13": "9.26.0"}


def test_two_cudnns_in_one_environment_are_named():
    facts = WITH_CARD | {"packages": {"torch": "2.13.0", **CLASH}}
    problems, _ = diagnosis(**facts)
    assert "nvidia-cudnn-cu12 9.28.0 and nvidia-cudnn-cu13 9.26.0" in problems
    assert sys.executable in problems and "./course tensorflow" in problems


def test_two_cudnns_in_the_other_environment_are_found_too():
    theirs = {"tensorflow": "2.21.0", **CLASH}
    environment = {"SAMEBITS_TF_PYTHON": "other-python"}
    found = {"build": "CUDA 12.5", "devices": {"NVIDIA H200": 0}}
    problems, report = diagnosis(
        **WITH_CARD | {"environment": environment}, tf_packages=theirs, tensorflow=found
    )
    assert "The environment of other-python holds" in problems
    assert "TensorFlow  2.21.0, CUDA 12.5, sees NVIDIA H200, in other-python" in report


def test_one_cudnn_is_no_clash():
    problems, _ = diagnosis(**WITH_CARD | {"packages": {"torch": "2.13.0", "nvidia-cudnn-cu13": "9.26.0"}})
    assert problems == ""


@pytest.mark.parametrize(
    "answer", [Answer(False, "Traceback ...\nImportError: libcudnn.so.9: no such file"), Answer(True, "")]
)
def test_a_broken_torch_is_quoted_and_takes_nothing_down(answer):
    problems, report = diagnosis(packages={"torch": "2.13.0"}, torch=answer)
    assert "PyTorch 2.13.0 is installed but cannot be imported" in problems
    assert ("libcudnn.so.9" if answer.text else "it printed nothing") in problems
    assert "experiments wait for PyTorch" in report


def test_before_anything_is_installed():
    problems, report = diagnosis()
    assert "PyTorch is not installed in this environment. ./course lab installs it." in problems
    assert "PyTorch     not installed" in report and "TensorFlow  not installed" in report


def test_tensorflow_has_an_interpreter_of_its_own(tmp_path):
    assert machine.tensorflow_python(imagined(home=tmp_path)) == sys.executable
    python = tmp_path / ".venv-tf" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert machine.tensorflow_python(imagined(home=tmp_path)) == str(python)
    chosen = imagined(home=tmp_path, environment={"SAMEBITS_TF_PYTHON": "mine"})
    assert machine.tensorflow_python(chosen) == "mine"


def test_a_cpu_wheel_of_tensorflow_counts_as_tensorflow():
    _, report = diagnosis(
        packages={"torch": "2.13.0", "tensorflow_cpu": "2.21.0"},
        torch=TORCH_CPU,
        tensorflow={"build": "CPU only", "devices": {}},
    )
    assert "TensorFlow  2.21.0, CPU only" in report
    assert "TensorFlow's experiments run live" in report


def test_a_container_has_the_memory_that_it_is_allowed():
    files = {"/proc/cpuinfo": XEON, "/sys/fs/cgroup/memory.max": f"{2 * 2**30}\n"}
    problems, report = diagnosis(**WITH_TORCH, files=files)
    assert "There are 2.0 GiB of memory" in problems and "SAMEBITS_WORKERS=1" in problems
    assert "Memory      2.0 GiB" in report
    problems, report = diagnosis(**WITH_TORCH, files=files | {"/sys/fs/cgroup/memory.max": "max\n"})
    assert problems == "" and "24.0 GiB" in report


def test_one_core_is_said_to_race_all_the_same():
    problems, _ = diagnosis(**WITH_TORCH, cores=1)
    assert "one core. Races use two threads even so" in problems


@pytest.mark.parametrize(
    ("sold_as", "name"),
    [
        ("Intel(R) Xeon(R) Processor", "Intel Xeon"),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "Intel Xeon Gold 6148"),
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
        ("AMD EPYC-Milan Processor", "AMD EPYC-Milan"),
        ("13th Gen Intel(R) Core(TM) i7-13700H", "13th Gen Intel Core i7-13700H"),
    ],
)
def test_processors_are_called_what_people_call_them(sold_as, name):
    assert machine.processor(imagined(files={"/proc/cpuinfo": f"model name : {sold_as}\n"})) == name


def test_an_arm_processor_is_named_by_lscpu():
    lscpu = Probes(
        run=lambda command, seconds: Answer(True, "Vendor ID:  ARM\nModel name:   Neoverse-N1\n"),
        read=lambda path: "processor\t: 0\nFeatures\t: fp asimd sve\n",
        system="Linux",
    )
    assert machine.processor(lscpu) == "Neoverse-N1"
    assert machine._instructions(lscpu) == ("NEON", "SVE")


def test_device_words_count_the_threads_of_the_measurement():
    name = machine.processor(Probes())
    assert machine.device_words(threads=1) == f"{name}, 1 thread"
    assert machine.device_words(threads=8) == f"{name}, 8 threads"
    assert re.fullmatch(rf"{re.escape(name)}, {machine.usable_cores()} threads?", machine.device_words())


def test_loaded_libraries_imports_nothing(monkeypatch):
    for name in ("torch", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import numpy

    assert machine.loaded_libraries() == {"numpy": numpy.__version__}


@pytest.mark.parametrize(
    ("devices", "variable", "visible"),
    [
        (2, None, 2),
        (2, "", 0),
        (2, "-1", 0),
        (2, "1", 1),
        (2, "1,0", 2),
        (2, "0,-1,1", 1),  # CUDA ignores what follows an invalid entry
        (2, "0,5", 1),
        (1, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 1),
        (1, "MIG-8932f937", 1),
        (0, "0", 0),
    ],
)
def test_devices_that_are_left_visible(devices, variable, visible):
    assert len(machine._visible(devices, variable)) == visible


def test_cuda_devices_are_counted_by_the_drivers_tool(monkeypatch):
    listed = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device 0: (UUID: MIG-2)\nGPU 1: NVIDIA H200\n"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for answer, count in [
        (Answer(True, listed), 2),
        (Answer(False, "", True), 0),
        (Answer(False, "GPU 0: x"), 0),
    ]:
        machine._listed_devices.cache_clear()
        monkeypatch.setattr(machine, "run_command", lambda command, seconds, answer=answer: answer)
        assert machine.cuda_device_count() == count
    machine._listed_devices.cache_clear()


def test_a_command_that_is_missing_fails_or_hangs():
    assert machine.run_command(["a-command-that-nobody-has"], 5).missing
    failed = machine.run_command([sys.executable, "-c", "import sys; sys.exit('so it is')"], 20)
    assert not failed.ok and not failed.missing and "so it is" in failed.text
    start = time.monotonic()
    hung = machine.run_command([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert not hung.ok and "no answer" in hung.text and time.monotonic() - start < 10


def test_the_report_is_printed(capsys, monkeypatch):
    monkeypatch.setattr(machine, "survey", lambda: machine_without_anything())
    assert machine.main() == 0
    assert capsys.readouterr().out.startswith("This machine\n")


def machine_without_anything():
    survey = machine.Survey("3.12.0", "Plan 9", "unknown processor", 1, (), None, (), "", None, None)
    assert "the system does not say" in machine.report(survey)
    return survey


def test_an_environment_of_the_course_is_named_from_its_folder():
    """Lesson 00 shows the report and stores it, and a stored output names no place on a machine."""
    home = machine.Probes().home
    assert machine._from_home(str(home / ".venv-tf" / "bin" / "python")) == str(Path(".venv-tf/bin/python"))
    assert machine._from_home("/elsewhere/python") == "/elsewhere/python"
