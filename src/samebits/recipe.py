"""The shortest correct recipe for what is installed: which lines a program needs to repeat its bits, and why.

    print(recipe())                     # PyTorch, as installed here
    print(recipe("tensorflow"))
    recipe(found=Found("torch", "2.9.1", cuda=True))        # for other versions and devices: a pure function

What it promises is what the frameworks promise: the same bits on the same machine with the same software and the
same number of threads. Nothing here imports a framework: versions come from the packages' metadata.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from samebits import machine
from samebits.experiment import BadSetting, nearest

FRAMEWORKS = ("torch", "tensorflow")
# What a program may use that bears on its recipe.
USES = ("python random", "numpy", "loader workers", "hash order", "rnn")
# A recurrent network on a GPU is the exception: cuDNN's own calls of cuBLAS are out of PyTorch's reach.
USUAL = tuple(use for use in USES if use != "rnn")
OLDEST = {"torch": Version("1.8"), "tensorflow": Version("2.1")}


@dataclass(frozen=True)
class Found:
    """What a recipe is for.

    framework  "torch" or "tensorflow"
    version    of the framework, such as "2.13.0+cpu"
    cuda       whether it may run on an NVIDIA GPU
    uses       what the program uses, of USES
    """

    framework: str
    version: str
    cuda: bool = False
    uses: tuple[str, ...] = USUAL


@dataclass(frozen=True)
class Line:
    """A line of the recipe: its code, why it is there (or, among those left out, why not), and the versions
    that this depends on, such as "torch < 2.10"; "" where it holds for all that the recipe knows."""

    code: str
    why: str
    rule: str = ""


@dataclass(frozen=True)
class Recipe:
    """Lines to run in this order, before anything else; `before` belongs in front of the command that starts Python.

    left_out   lines that other recipes have, and why this one does not
    uncovered  what no line reaches, in sentences
    """

    found: Found
    before: tuple[Line, ...]
    lines: tuple[Line, ...]
    left_out: tuple[Line, ...]
    uncovered: tuple[str, ...]

    @property
    def code(self) -> str:
        """The Python lines alone, to be run."""
        return "\n".join(code for code, _ in self._program) + "\n"

    def __str__(self) -> str:
        """The recipe with its reasons as comments; as a whole it can be run too."""
        where = "an NVIDIA GPU" if self.found.cuda else "the CPU"
        parts = [f"# {NAMES[self.found.framework]} {self.found.version} on {where}", ""]
        if self.before:
            command = " ".join([*(line.code for line in self.before), "python your_program.py"])
            parts += [f"# Start it with: {command}"]
            parts += [comment for line in self.before for comment in _wrapped(_reason(line))] + [""]
        for code, line in self._program:
            parts += [code, *(_wrapped(_reason(line)) if line else [])]
        parts += ["", "# Not needed:"]
        for line in self.left_out:
            parts += _wrapped(f"{line.code}: {_reason(line)}")
        parts += ["", "# No line reaches:"]
        for sentence in self.uncovered:
            parts += _wrapped(sentence)
        return "\n".join(parts)

    @property
    def _program(self) -> list[tuple[str, Line | None]]:
        """Each line of code in order, imports between, and the Line that it is. Variables come before the
        imports of what reads them."""
        early = [line for line in self.lines if line.code.startswith("os.")]
        late = [line for line in self.lines if line not in early]
        imports = [
            f"import {name}"
            for name, use in MODULES.items()
            if any(line.code.startswith(use) for line in late)
        ]
        program: list[tuple[str, Line | None]] = [("import os", None)] if early else []
        program += [(line.code, line) for line in early]
        program += [(line, None) for line in imports]
        return program + [(line.code, line) for line in late]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"code": self.code}


NAMES = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
# What is imported → how the lines that need it begin.
MODULES = {"random": "random.", "numpy as np": "np.", "torch": "torch.", "tensorflow as tf": "tf."}


def _reason(line: Line) -> str:
    return f"{line.why} [{line.rule}]" if line.rule else line.why


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        100,
        initial_indent="#   ",
        subsequent_indent="#     ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def recipe(framework: str = "torch", found: Found | None = None) -> Recipe:
    """The recipe for `found`, by default for what is installed and the device that it can use.

    Raises BadSetting, in one sentence, for another framework, one that is not installed or too old, or a version that
    cannot be read.
    """
    found = found or detect(framework)
    if found.framework not in FRAMEWORKS:
        raise BadSetting(
            f"There is no recipe for {found.framework!r}. {nearest(found.framework, list(FRAMEWORKS))}"
        )
    for use in found.uses:
        if use not in USES:
            raise BadSetting(f"There is no use {use!r}. {nearest(use, list(USES))}")
    try:
        version = Version(found.version)
    except (InvalidVersion, TypeError) as error:
        raise BadSetting(
            f"The version {found.version!r} of {NAMES[found.framework]} cannot be read. Install a released one."
        ) from error
    oldest = OLDEST[found.framework]
    if version < oldest:
        raise BadSetting(
            f"{NAMES[found.framework]} {found.version} has no switch for this; {oldest} is the oldest with a recipe."
        )
    return (_torch if found.framework == "torch" else _tensorflow)(found, version)


def detect(framework: str = "torch") -> Found:
    """What is installed of `framework`, where the course runs it, and whether the driver shows a GPU to it.

    Raises BadSetting, in one sentence, if it is not installed.
    """
    if framework not in FRAMEWORKS:
        raise BadSetting(f"There is no recipe for {framework!r}. {nearest(framework, list(FRAMEWORKS))}")
    names = [framework, f"{framework}-cpu", f"{framework}_cpu"]
    python = machine.tensorflow_python() if framework == "tensorflow" else sys.executable
    packages = (
        _own_packages(names) if python == sys.executable else machine.installed(python, machine.Probes())
    )
    name = next((name for name in names if name in packages), None)
    if name is None:
        command = "./course tensorflow" if framework == "tensorflow" else "./course lab"
        raise BadSetting(f"{NAMES[framework]} is not installed here; {command} installs it.")
    for_cpu = name != framework or packages[name].endswith("+cpu")
    return Found(framework, packages[name], cuda=not for_cpu and machine.cuda_device_count() > 0)


def _own_packages(names: list[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# --- PyTorch ----------------------------------------------------------------------------------------------


def _torch(found: Found, version: Version) -> Recipe:
    uses = found.uses
    lines, left_out = [], []

    def decide(needed: bool, code: str, why: str, why_not: str, rule: str = "") -> None:
        (lines if needed else left_out).append(Line(code, why if needed else why_not, rule))

    if found.cuda:
        _cublas(version, "rnn" in uses, decide)
    decide(
        "python random" in uses,
        "random.seed(0)",
        "Python's generator, where this process draws from it (augmentation without workers, sampling).",
        "the program draws nothing from Python's generator.",
    )
    decide(
        "numpy" in uses,
        "np.random.seed(0)",
        "NumPy's global generator, likewise. Generators made by np.random.default_rng need a seed of their own.",
        "the program draws nothing from NumPy's global generator.",
    )
    lines.append(
        Line(
            "torch.manual_seed(0)",
            "First weights, dropout, the loader's shuffle and the seeds of its workers, on every device.",
        )
    )
    lines.append(
        Line(
            "torch.use_deterministic_algorithms(True)",
            "Known operations that race take a way that repeats, or raise; on the CPU too."
            + " Convolutions take only those of cuDNN's algorithms that repeat." * found.cuda,
            "torch ≥ 1.8",
        )
    )
    old_workers = version < Version("1.9") and {"loader workers", "numpy"} <= set(uses)
    if old_workers:
        lines.append(
            Line(
                "# DataLoader(…, worker_init_fn=lambda number: np.random.seed(torch.initial_seed() % 2**32))",
                "Workers are copies, and would all draw the same from NumPy's global generator.",
                "torch < 1.9",
            )
        )
    else:
        left_out.append(
            Line(
                "worker_init_fn=seed_worker",
                "each worker's Python, NumPy and PyTorch are seeded already, from the loader's seed. A Generator "
                "stored in the dataset is another matter: make it in the worker.",
                "torch ≥ 1.9",
            )
        )
    left_out += [
        Line(
            "generator=torch.Generator().manual_seed(0)",
            "the loader takes its seed from torch.manual_seed. Give each loader its own all the same, so that none "
            "changes what another one draws.",
        ),
        Line(
            "torch.utils.deterministic.fill_uninitialized_memory = False",
            "it only saves time, once nothing reads memory before it is written.",
        ),
        Line("torch.set_num_threads(n)", "the number of threads is part of the machine; keep it the same."),
    ]
    if found.cuda:
        left_out += [
            Line("torch.cuda.manual_seed_all(0)", "torch.manual_seed has seeded every device."),
            Line(
                "torch.backends.cudnn.deterministic = True", "use_deterministic_algorithms does it, and more."
            ),
            Line("torch.backends.cudnn.benchmark = False", "it is off unless the program turns it on."),
            Line(
                "torch.backends.cudnn.allow_tf32 = False", "it changes the values, not whether they repeat."
            ),
        ]
    return Recipe(found, _before(uses), tuple(lines), tuple(left_out), _UNCOVERED_TORCH)


def _cublas(version: Version, rnn: bool, decide: Callable[..., None]) -> None:
    """PyTorch < 2.10 refuses products of matrices under the flag without the variable, with exactly two values;
    cuDNN's recurrent networks want it with any version, with another two."""
    if version < Version("2.10"):
        value, rule = (":16:8" if rnn else ":4096:8"), "torch < 2.10"
        why = "Without it, or with another value than :4096:8 or :16:8, the flag makes products of matrices raise."
    else:
        value, rule = ":4096:2", "torch ≥ 2.10"
        why = "cuDNN's recurrent networks call cuBLAS themselves, out of PyTorch's reach."
    decide(
        version < Version("2.10") or rnn,
        f'os.environ["CUBLAS_WORKSPACE_CONFIG"] = "{value}"',
        why + " Before the first of them.",
        "PyTorch gives cuBLAS a workspace for each stream, and no longer asks for the variable. For recurrent "
        "networks (RNN, LSTM, GRU) cuDNN's documentation still wants it.",
        rule,
    )


def _before(uses: tuple[str, ...]) -> tuple[Line, ...]:
    if "hash order" not in uses:
        return ()
    return (
        Line(
            "PYTHONHASHSEED=0",
            "The order of sets of strings; Python reads it when it starts, so setting it in the program is too "
            "late. Not needed where sets are sorted before they are gone through.",
        ),
    )


_UNCOVERED_TORCH = (
    "Other machines, versions, numbers of threads or of loader workers: they can change the bits, and no flag helps.",
    "Kernels that PyTorch does not know: extensions, custom operators, other libraries' threads.",
    "A checkpoint without the whole state: optimizer, schedule, place in the data, every generator.",
    "Memory that is read before it is written: the flag fills it, which hides the mistake.",
)


# --- TensorFlow -------------------------------------------------------------------------------------------


def _tensorflow(found: Found, version: Version) -> Recipe:
    lines, left_out = [], []
    by_function = version >= Version("2.8")
    if not by_function:
        lines.append(
            Line(
                'os.environ["TF_DETERMINISTIC_OPS"] = "1"',
                "Operations that race take a way that repeats. Before TensorFlow is imported.",
                "2.1 ≤ tensorflow < 2.8",
            )
        )
    if version >= Version("2.7"):
        lines.append(
            Line(
                "tf.keras.utils.set_random_seed(0)",
                "Python's generator, NumPy's global one, TensorFlow's, and Keras's own, which draws first weights "
                "and dropout. It is keras.utils.set_random_seed.",
                "tensorflow ≥ 2.7",
            )
        )
        left_out.append(
            Line(
                "random.seed(0), np.random.seed(0), tf.random.set_seed(0)",
                "set_random_seed does all three.",
                "tensorflow ≥ 2.7",
            )
        )
    else:
        lines += [
            Line("random.seed(0)", "Python's generator.", "tensorflow < 2.7"),
            Line("np.random.seed(0)", "NumPy's global generator.", "tensorflow < 2.7"),
            Line("tf.random.set_seed(0)", "TensorFlow's generator.", "tensorflow < 2.7"),
        ]
    if by_function:
        lines.append(
            Line(
                "tf.config.experimental.enable_op_determinism()",
                "Operations that race take a way that repeats, or raise; tf.data keeps its order, and a parallel map "
                "draws the numbers of one call. On the CPU too.",
                "tensorflow ≥ 2.8",
            )
        )
        left_out.append(
            Line(
                'os.environ["TF_DETERMINISTIC_OPS"] = "1"',
                "the older way to turn the same switch.",
                "tensorflow ≥ 2.8",
            )
        )
    left_out.append(
        Line(
            'os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"',
            "it changes the values, not whether they repeat.",
        )
    )
    if found.cuda:
        left_out.append(
            Line(
                "tf.config.experimental.enable_tensor_float_32_execution(False)",
                "it changes the values, not whether they repeat.",
                "tensorflow ≥ 2.4",
            )
        )
    return Recipe(found, _before(found.uses), tuple(lines), tuple(left_out), _UNCOVERED_TENSORFLOW)


_UNCOVERED_TENSORFLOW = (
    "Other machines, versions or numbers of threads: they can change the bits, and no flag helps.",
    "Keras 3 without a seed: its first weights and its dropout differ from process to process, and nothing raises.",
    "tf.math.bincount with float weights on the CPU: seen to vary in 2.21 with the switch on. Whole numbers, "
    "np.bincount, or one row with axis=-1 repeat.",
    "Custom operators, and generators from np.random.default_rng.",
)
