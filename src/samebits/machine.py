"""What this machine can show: processor, GPU, driver, and the frameworks installed here.

    print(report(survey()))

Standard library only, so that `./course doctor` answers before anything is installed. No framework is
imported: each is asked in a process of its own, so a broken one cannot take the answer down with it.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

# Major CUDA version → first driver branch that runs it, from the table of minor version compatibility in
# the release notes of the CUDA toolkit.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}

# JupyterLab, a kernel and one worker with PyTorch fit in this; a second worker may not.
ROOM_FOR_TWO_WORKERS = 3.0  # GiB


def main() -> int:
    """Print what this machine can show; the exit code is 0 whatever that is."""
    print(report(survey()))
    return 0


# ---------------------------------------------------------------------------------- for source lines


def device_words(threads: int | None = None, output: object = None) -> str:
    """What computed, in words, such as "Intel Xeon, 2 threads" or "NVIDIA H200, 132 SMs".

    threads  how many a measurement used; by default PyTorch's number where it is loaded, else one for each
             core that this process may use
    output   the result itself: a tensor on a GPU names that GPU
    """
    torch = sys.modules.get("torch")
    if torch and isinstance(output, torch.Tensor) and output.is_cuda:
        card = torch.cuda.get_device_properties(output.device)
        return f"{card.name}, {card.multi_processor_count} SMs"
    count = threads or (torch.get_num_threads() if torch else usable_cores())
    return f"{_this_processor()}, {count} thread{'' if count == 1 else 's'}"


@functools.cache
def _this_processor() -> str:
    return processor(Probes())


def loaded_libraries() -> dict[str, str]:
    """Name → version of NumPy, PyTorch and TensorFlow, as far as this process has imported them."""
    modules = {name: sys.modules.get(name) for name in ("numpy", "torch", "tensorflow")}
    return {name: module.__version__ for name, module in modules.items() if hasattr(module, "__version__")}


def cuda_device_count() -> int:
    """NVIDIA devices that a program started here would see, counted without making a CUDA context."""
    return len(_visible(_listed_devices(), os.environ.get("CUDA_VISIBLE_DEVICES")))


@functools.cache
def _listed_devices() -> int:
    answer = run_command(["nvidia-smi", "-L"], 20)
    return len(re.findall(r"^GPU \d+:", answer.text, re.MULTILINE)) if answer.ok else 0


def _visible(devices: int, variable: str | None) -> list[str]:
    """Devices that CUDA_VISIBLE_DEVICES leaves. CUDA ignores all entries from the first invalid one on."""
    everything = [str(number) for number in range(devices)]
    if variable is None or not devices:
        return everything
    entries = (entry.strip() for entry in variable.split(","))
    return list(itertools.takewhile(lambda e: e in everything or e.startswith(("GPU-", "MIG-")), entries))


# ---------------------------------------------------------------------------------- the survey


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA card as its driver's tool describes it.

    capability  compute capability such as "9.0"; "" where an old driver does not say
    memory      GiB, or None where the tool may not say (MIG)
    mig         True: the card is divided into instances, and a program sees one of them
    """

    name: str
    driver: str
    capability: str = ""
    memory: float | None = None
    mig: bool = False


@dataclass(frozen=True)
class Framework:
    """PyTorch or TensorFlow in one interpreter.

    build     "CUDA 13.0", "ROCm 6.4" or "CPU only"
    built_for architectures of the CUDA code in it, such as ("sm_90", "compute_90")
    devices   what it sees: name → multiprocessors (0 where it does not say)
    threads   how many its CPU code uses, or None
    why_not   why it does not run or sees no GPU, in its own words; "" if it had no complaint
    """

    name: str
    version: str
    python: str
    build: str = ""
    built_for: tuple[str, ...] = ()
    devices: Mapping[str, int] | None = None
    threads: int | None = None
    why_not: str = ""

    @property
    def works(self) -> bool:
        return bool(self.build)

    @property
    def cuda(self) -> int | None:
        """Major version of the CUDA it was built for."""
        match = re.match(r"CUDA (\d+)", self.build)
        return int(match[1]) if match else None


@dataclass(frozen=True)
class Survey:
    """What was found. `problems` are sentences with a remedy; `works` says what can be done all the same."""

    python: str
    system: str
    processor: str
    cores: int
    instructions: tuple[str, ...]
    memory: float | None  # GiB that this process may use, or None where the system does not say
    gpus: tuple[Gpu, ...]
    gpu_trouble: str  # what the driver's tool said when it failed
    torch: Framework | None
    tensorflow: Framework | None
    problems: tuple[str, ...] = ()
    works: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What a command printed; `ok` is False if it is missing, failed or did not end in time."""

    ok: bool
    text: str
    missing: bool = False


def run_command(command: list[str], seconds: float) -> Answer:
    """Run `command` for at most `seconds`, away from the current folder's own Python files."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
        )
    except FileNotFoundError:
        return Answer(False, "", missing=True)
    except subprocess.TimeoutExpired:
        return Answer(False, f"no answer within {seconds:.0f} seconds")
    except OSError as error:
        return Answer(False, str(error))
    return Answer(done.returncode == 0, done.stdout if done.returncode == 0 else done.stdout + done.stderr)


def read_file(path: str) -> str:
    """The text of a file of the system's, or "" where there is none."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def usable_cores() -> int:
    """Cores that this process may use; a container or a batch system can leave fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def installed_memory() -> int | None:
    """Bytes of memory in the machine, or None where the system has no such call (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


@dataclass(frozen=True)
class Probes:
    """Everything through which the survey looks at the machine, so that a test can show it another one."""

    run: Callable[[list[str], float], Answer] = run_command
    read: Callable[[str], str] = read_file
    cores: Callable[[], int] = usable_cores
    memory: Callable[[], int | None] = installed_memory
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    system: str = platform.system()
    home: Path = Path(__file__).resolve().parents[2]


def survey(probes: Probes | None = None) -> Survey:
    """Look at this machine. Takes a few seconds, in which each framework installed here is imported once."""
    probes = probes or Probes()
    gpus, gpu_trouble = _gpus(probes)
    packages = installed(sys.executable, probes)
    torch = _framework("torch", sys.executable, packages, probes)
    tf_python = tensorflow_python(probes)
    tf_packages = packages if tf_python == sys.executable else installed(tf_python, probes)
    tensorflow = _framework("tensorflow", tf_python, tf_packages, probes)
    found = Survey(
        python=platform.python_version(),
        system=f"{probes.system}, {platform.machine()}",
        processor=processor(probes),
        cores=probes.cores(),
        instructions=_instructions(probes),
        memory=_memory(probes),
        gpus=gpus,
        gpu_trouble=gpu_trouble,
        torch=torch,
        tensorflow=tensorflow,
    )
    problems = [
        *_clash(sys.executable, packages),
        *([] if tf_python == sys.executable else _clash(tf_python, tf_packages)),
        *_framework_problems(found),
        *_gpu_problems(found, probes),
        *_size_problems(found),
    ]
    return replace(found, problems=tuple(problems), works=tuple(_what_works(found)))


def tensorflow_python(probes: Probes | None = None) -> str:
    """The interpreter for TensorFlow: $SAMEBITS_TF_PYTHON, else that of .venv-tf, else this one."""
    probes = probes or Probes()
    chosen = probes.environment.get("SAMEBITS_TF_PYTHON")
    if chosen:
        return chosen
    folder = probes.home / ".venv-tf"
    candidates = (folder / "bin" / "python", folder / "Scripts" / "python.exe")
    return next((str(python) for python in candidates if python.exists()), sys.executable)


# ---------------------------------------------------------------------------------- facts


def processor(probes: Probes) -> str:
    """The processor's name without trademark signs, core count and clock, such as "Intel Xeon Gold 6148"."""
    name = _processor_as_sold(probes)
    name = re.sub(r"\((?:R|TM)\)", "", name, flags=re.IGNORECASE)
    name = re.sub(r"(?:\s+\d+-Core)?\s+(?:CPU|Processor)\b.*$", "", name)
    return " ".join(name.split()) or "unknown processor"


def _processor_as_sold(probes: Probes) -> str:
    if probes.system == "Windows":
        import winreg

        first = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, first) as key:
            return winreg.QueryValueEx(key, "ProcessorNameString")[0]
    if probes.system == "Darwin":
        return probes.run(["sysctl", "-n", "machdep.cpu.brand_string"], 5).text.strip()
    named = re.search(r"^model name\s*:\s*(.+)$", probes.read("/proc/cpuinfo"), re.MULTILINE)
    # On ARM the kernel gives numbers, and lscpu has the table that names them.
    named = named or re.search(r"^Model name:\s*(.+)$", probes.run(["lscpu"], 5).text, re.MULTILINE)
    return named[1] if named else platform.machine()


def _instructions(probes: Probes) -> tuple[str, ...]:
    """The vector instructions by which a numeric library picks its code; () where the system hides them."""
    listed = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", probes.read("/proc/cpuinfo"), re.MULTILINE)
    flags = set(listed[1].split()) if listed else set()
    known = {
        "avx2": "AVX2",
        "avx512f": "AVX-512",
        "amx_tile": "AMX",
        "asimd": "NEON",
        "sve": "SVE",
        "sve2": "SVE2",
    }
    return tuple(words for flag, words in known.items() if flag in flags)


def _memory(probes: Probes) -> float | None:
    """GiB that this process may use: what the machine has, or what a container allows, if that is less."""
    limits = [probes.memory()]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = probes.read(path).strip()
        limits.append(int(text) if text.isdigit() else None)
    known = [limit for limit in limits if limit]
    return min(known) / 2**30 if known else None


def _gpus(probes: Probes) -> tuple[tuple[Gpu, ...], str]:
    """(the NVIDIA cards here, what their driver's tool complained of)."""
    answer = _ask_driver("name,driver_version,memory.total,compute_cap,mig.mode.current", probes)
    if not answer.ok and "not a valid field" in answer.text:
        answer = _ask_driver("name,driver_version,memory.total", probes)  # a driver from before 2021
    if not answer.ok:
        trouble = "" if answer.missing or "No devices were found" in answer.text else _first_line(answer.text)
        return (), trouble
    lines = [line for line in answer.text.splitlines() if line.count(",") >= 2]
    return tuple(_gpu(*(part.strip() for part in line.split(","))) for line in lines), ""


def _ask_driver(fields: str, probes: Probes) -> Answer:
    return probes.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"], 20)


def _gpu(name: str, driver: str, memory: str, capability: str = "", mig: str = "") -> Gpu:
    return Gpu(
        name,
        driver,
        capability=capability if re.fullmatch(r"\d+\.\d+", capability) else "",
        memory=int(memory) / 1024 if memory.isdigit() else None,
        mig=mig == "Enabled",
    )


PACKAGES = """
import importlib.metadata, json
found = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
print(json.dumps(found))
"""

# Each prints one JSON object as its last line; the libraries may say more before it.
FACTS = {
    "torch": """
import json, torch
why_not = ""
if torch.version.cuda and not torch.cuda.is_available():
    try:
        torch.cuda.init()
    except Exception as error:
        why_not = str(error)
numbers = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
devices = [torch.cuda.get_device_properties(number) for number in numbers]
build = "CUDA " + torch.version.cuda if torch.version.cuda else "CPU only"
build = "ROCm " + torch.version.hip if torch.version.hip else build
print(json.dumps({
    "build": build,
    "built_for": torch.cuda.get_arch_list(),
    "devices": {d.name: d.multi_processor_count for d in devices},
    "threads": torch.get_num_threads(),
    "why_not": why_not,
}))
""",
    "tensorflow": """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
info = tf.sysconfig.get_build_info()
devices = tf.config.list_physical_devices("GPU")
names = [tf.config.experimental.get_device_details(d).get("device_name", d.name) for d in devices]
print(json.dumps({
    "build": "CUDA " + str(info.get("cuda_version")) if info.get("is_cuda_build") else "CPU only",
    "devices": {name: 0 for name in names},
}))
""",
}


def installed(python: str, probes: Probes) -> dict[str, str]:
    """Name → version of the distributions that the interpreter `python` can see."""
    answer = probes.run([python, "-c", PACKAGES], 30)
    return _last_json(answer.text) if answer.ok else {}


def _framework(name: str, python: str, packages: Mapping[str, str], probes: Probes) -> Framework | None:
    """What the framework says of itself, or None if this interpreter does not have it."""
    distribution = next((d for d in (name, f"{name}-cpu", f"{name}_cpu") if d in packages), None)
    if distribution is None:
        return None
    answer = probes.run([python, "-c", FACTS[name]], 120)
    facts = _last_json(answer.text) if answer.ok else {}
    if not facts:
        why_not = _last_line(answer.text) or "it printed nothing"
        return Framework(name, packages[distribution], python, why_not=why_not)
    return Framework(
        name,
        packages[distribution],
        python,
        build=facts["build"],
        built_for=tuple(facts.get("built_for", ())),
        devices=facts.get("devices", {}),
        threads=facts.get("threads"),
        why_not=_first_line(facts.get("why_not", "")),
    )


def _last_json(text: str) -> dict:
    try:
        value = json.loads(_last_line(text))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0].strip() if text.strip() else ""


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1].strip() if text.strip() else ""


# ---------------------------------------------------------------------------------- judgements


def _clash(python: str, packages: Mapping[str, str]) -> list[str]:
    """PyTorch's GPU wheels and TensorFlow's bring cuDNN for two CUDAs, and both own the same files."""
    both = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
    found = [f"{name} {packages[name]}" for name in both if name in packages]
    if len(found) < 2:
        return []
    return [
        f"The environment of {python} holds {found[0]} and {found[1]}, which overwrite each other's "
        "libraries, so one of PyTorch and TensorFlow loads a cuDNN that was built for the other CUDA. Delete "
        ".venv, run ./course lab, and let ./course tensorflow make an environment of TensorFlow's own."
    ]


def _framework_problems(found: Survey) -> list[str]:
    problems = []
    if found.torch is None:
        problems.append("PyTorch is not installed in this environment. ./course lab installs it.")
    elif not found.torch.works:
        problems.append(_broken("PyTorch", found.torch, ".venv", "./course lab"))
    if found.tensorflow and not found.tensorflow.works:
        problems.append(_broken("TensorFlow", found.tensorflow, ".venv-tf", "./course tensorflow"))
    return problems


def _broken(name: str, framework: Framework, folder: str, command: str) -> str:
    return (
        f"{name} {framework.version} is installed but cannot be imported ({framework.why_not}). "
        f"Delete {folder} and run {command} again."
    )


def _gpu_problems(found: Survey, probes: Probes) -> list[str]:
    if found.gpu_trouble:
        return [
            f"nvidia-smi is here but fails ({found.gpu_trouble.rstrip('.')}), so no program can use the "
            "card. Restart the machine, or install the driver again; until then everything runs on the CPU."
        ]
    if not found.gpus or not found.torch or not found.torch.works:
        return []
    card, torch = found.gpus[0], found.torch
    if torch.build == "CPU only":
        return [
            f"PyTorch {torch.version} is a CPU-only build, so the {card.name} stays unused. Delete .venv and "
            "run ./course lab, which takes a CUDA build where it finds a card."
        ]
    if not torch.devices:
        return [_why_no_card(card, torch, probes)]
    return [
        *(_no_code_for(card, torch) for card in found.gpus if not _has_code_for(card, torch)),
        *_kernel_compiler_problems(card, probes),
    ]


def _why_no_card(card: Gpu, torch: Framework, probes: Probes) -> str:
    hidden = probes.environment.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and not _visible(1, hidden):
        return (
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides the {card.name} from every program started here. "
            "Unset it to use the card."
        )
    needed = OLDEST_DRIVER.get(torch.cuda or 0)
    branch = card.driver.split(".")[0]
    if needed and branch.isdigit() and int(branch) < needed:
        return (
            f"The NVIDIA driver {card.driver} is too old for PyTorch's {torch.build}, which needs driver "
            f"{needed} or newer, so PyTorch sees no GPU. Update the driver, or install a PyTorch built for "
            "an older CUDA."
        )
    why = torch.why_not.rstrip(".") or "it does not say why"
    return (
        f"PyTorch {torch.version} ({torch.build}) does not see the {card.name} ({why}). Restart the machine, "
        "or update the driver; until then everything runs on the CPU."
    )


def _has_code_for(card: Gpu, torch: Framework) -> bool:
    """Whether this build of PyTorch runs on the card; True where either does not say.

    Machine code for sm_XY runs on compute capability X.Z with Z ≥ Y; PTX for compute_XY is compiled by the
    driver for anything from X.Y on; code for sm_XYa runs on X.Y alone (CUDA C++ Programming Guide,
    "Binary Compatibility" and "PTX Compatibility").
    """
    if not card.capability or not torch.built_for:
        return True
    major, minor = (int(part) for part in card.capability.split("."))
    for built in torch.built_for:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([a-z]?)", built)
        if not match:
            continue
        kind, its_major, its_minor, only = match[1], int(match[2]), int(match[3]), match[4]
        if only:
            runs = (major, minor) == (its_major, its_minor)
        elif kind == "sm":
            runs = major == its_major and minor >= its_minor
        else:
            runs = (major, minor) >= (its_major, its_minor)
        if runs:
            return True
    return False


def _no_code_for(card: Gpu, torch: Framework) -> str:
    return (
        f"PyTorch {torch.version} has no code for the {card.name} (compute capability {card.capability}; it "
        f"was built for {', '.join(torch.built_for)}), so CUDA runs end in an error. Choose device=cpu, or "
        "install a PyTorch built for this card."
    )


def _kernel_compiler_problems(card: Gpu, probes: Probes) -> list[str]:
    """numba-cuda needs libNVVM, which PyTorch's own CUDA packages do not bring."""
    script = "from cuda.pathfinder import load_nvidia_dynamic_lib as load; load('nvvm'); load('nvrtc')"
    if probes.run([sys.executable, "-c", script], 30).ok:
        return []
    return [
        "The compiler for the course's own kernels (libNVVM) is missing, so they cannot run on the "
        f"{card.name}. Install it: {sys.executable} -m pip install 'numba-cuda[cu13]'"
    ]


def _size_problems(found: Survey) -> list[str]:
    problems = []
    if found.memory is not None and found.memory < ROOM_FOR_TWO_WORKERS:
        problems.append(
            f"There are {found.memory:.1f} GiB of memory, in which two worker processes may not fit. Set "
            "SAMEBITS_WORKERS=1 before you start JupyterLab, and keep one notebook open at a time."
        )
    if found.cores == 1:
        problems.append(
            "This machine lets the course use one core. Races use two threads even so; they take turns on "
            "it, so a race needs more runs to show."
        )
    return problems


def _what_works(found: Survey) -> list[str]:
    works = []
    if found.torch and found.torch.works:
        works.append("Races and algorithm changes on the CPU run live.")
    else:
        works.append("The lessons can be read; the experiments wait for PyTorch.")
    seen = found.torch.devices if found.torch else None
    if seen:
        listed = (f"{name} ({count} multiprocessors)" for name, count in seen.items())
        works.append(f"Experiments on the GPU run live on {', '.join(listed)}.")
    elif found.system.startswith("Darwin"):
        works.append("What only a GPU can show is told from papers and documentation, which are named.")
    else:
        works.append(
            "Without a GPU that PyTorch can use, CUDA kernels run in a simulator (labelled MODEL), and what "
            "only a GPU can show is told from papers and documentation, which are named."
        )
    if any(card.mig for card in found.gpus):
        works.append(
            "The card is divided (MIG). A slice has fewer multiprocessors than the whole card, so its bits "
            "can differ from the whole card's; every result names the number of multiprocessors."
        )
    if found.tensorflow and found.tensorflow.works:
        works.append("TensorFlow's experiments run live, in a process of their own.")
    else:
        works.append("Everything but TensorFlow's experiments works without it; ./course tensorflow adds it.")
    return works


# ---------------------------------------------------------------------------------- in words


def report(survey: Survey) -> str:
    """The survey in plain words, for a terminal or a notebook; lines of at most 100 characters."""
    facts = {
        "Python": f"{survey.python} on {survey.system}",
        "Processor": _processor_line(survey),
        "Memory": f"{survey.memory:.1f} GiB" if survey.memory is not None else "the system does not say",
        "GPU": "; ".join(_gpu_line(card) for card in survey.gpus) or "no NVIDIA card that answers",
        "PyTorch": _framework_line(survey.torch),
        "TensorFlow": _framework_line(survey.tensorflow),
    }
    parts = ["This machine", *(_wrapped(f"  {name:<12}", text) for name, text in facts.items())]
    parts += ["", "What works here", *(_wrapped("  - ", text) for text in survey.works)]
    if survey.problems:
        parts += ["", "What stands in the way", *(_wrapped("  - ", text) for text in survey.problems)]
    return "\n".join(parts)


def _wrapped(start: str, text: str) -> str:
    below = " " * len(start)
    return textwrap.fill(text, 100, initial_indent=start, subsequent_indent=below, break_on_hyphens=False)


def _processor_line(survey: Survey) -> str:
    cores = f"{survey.cores} core{'' if survey.cores == 1 else 's'} for this course"
    return ", ".join([survey.processor, cores, *survey.instructions])


def _gpu_line(card: Gpu) -> str:
    parts = [card.name, f"driver {card.driver}"]
    if card.capability:
        parts.append(f"compute capability {card.capability}")
    if card.memory is not None:
        parts.append(f"{card.memory:.0f} GiB")
    if card.mig:
        parts.append("divided into instances (MIG)")
    return ", ".join(parts)


def _framework_line(framework: Framework | None) -> str:
    if framework is None:
        return "not installed"
    if not framework.works:
        return f"{framework.version}, cannot be imported"
    parts = [framework.version, framework.build]
    if framework.devices:
        parts += [f"sees {name}" for name in framework.devices]
    elif framework.build != "CPU only":
        parts.append("sees no GPU")
    if framework.threads:
        parts.append(f"{framework.threads} CPU thread{'' if framework.threads == 1 else 's'}")
    if framework.python != sys.executable:
        parts.append(f"in {_from_home(framework.python)}")
    return ", ".join(parts)


def _from_home(path: str) -> str:
    """A path below the course's folder from there, so that a stored output names nobody's machine."""
    home = Probes().home
    return str(Path(path).relative_to(home)) if Path(path).is_relative_to(home) else path


if __name__ == "__main__":
    sys.exit(main())
