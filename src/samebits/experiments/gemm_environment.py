"""gemm-environment: variables that CPU libraries read once, at their first use, and what they do to the bits.

    MKL_CBWR              oneMKL: which code branch multiplies matrices
    ONEDNN_MAX_CPU_ISA    oneDNN: the newest instructions it may use, in convolutions and bfloat16
    ATEN_CPU_CAPABILITY   PyTorch's own kernels: sigmoid, softmax, random numbers …
    OMP_NUM_THREADS       OpenMP: into how many pieces work is cut

Which of them reaches which operation depends on the processor and on how PyTorch was built; so nothing here
says it, and `compared` tells what was seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiment import BadSetting, Experiment, Knob, Observation, Prepared, Runs
from samebits.experiments import torch_worker

BEFORE, AFTER_IMPORT, AFTER_USE = "before the start", "after import torch", "after the first use"

# Each op as the line that a learner would write.
LINES = {
    "matmul": "a @ b",
    "bf16 matmul": "a.bfloat16() @ b.bfloat16()",
    "conv": "torch.nn.functional.conv2d(images, filters)",
    "sigmoid": "torch.sigmoid(numbers)",
    "randn": "torch.randn(10_000, generator=torch.Generator().manual_seed(0))",
}

# What goes into each op; into randn, the seed.
INPUTS = {
    "matmul": ("a", "b"),
    "bf16 matmul": ("a", "b"),
    "conv": ("images", "filters"),
    "sigmoid": ("numbers",),
    "randn": (),
}
SEED = 0

# Knob → the variable that it sets.
VARIABLES = {
    "cbwr": "MKL_CBWR",
    "onednn": "ONEDNN_MAX_CPU_ISA",
    "aten": "ATEN_CPU_CAPABILITY",
    "threads": "OMP_NUM_THREADS",
}


def every_op(when: str = BEFORE, variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """ "input" → fingerprint of what goes in, and op → fingerprint of its result, in this process, a new one.

    when       BEFORE: the variables are in the environment already, and not touched here;
               AFTER_IMPORT, AFTER_USE: they are set when torch is imported, or when each op has run once
    variables  name → value
    """
    import torch  # noqa: F401

    if when == AFTER_IMPORT:
        os.environ.update(variables)
    tensors = _tensors()
    if when == AFTER_USE:
        for op in LINES:
            _once(op, tensors)
        os.environ.update(variables)
    return {"input": fingerprint(tensors)} | {op: fingerprint(_once(op, tensors)) for op in LINES}


def _arrays() -> dict[str, np.ndarray]:
    """Everything that goes in, from NumPy, whose generator none of the variables reaches."""
    rng = np.random.default_rng(4)
    shapes = {
        "a": (256, 1024),
        "b": (1024, 256),
        "images": (4, 32, 28, 28),
        "filters": (32, 32, 3, 3),
        "numbers": (100_000,),
    }
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def _tensors() -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(array) for name, array in _arrays().items()}


def _once(op: str, tensors: Mapping[str, Any]) -> Any:
    import torch

    if op == "matmul":
        return tensors["a"] @ tensors["b"]
    if op == "bf16 matmul":
        return tensors["a"].bfloat16() @ tensors["b"].bfloat16()
    if op == "conv":
        return torch.nn.functional.conv2d(tensors["images"], tensors["filters"])
    if op == "sigmoid":
        return torch.sigmoid(tensors["numbers"])
    return torch.randn(10_000, generator=torch.Generator().manual_seed(SEED))


@dataclass(frozen=True)
class _State:
    op: str
    tensors: Mapping[str, Any]


def prepare(settings: dict) -> Prepared:
    import torch

    _refuse_missing_instructions(settings)
    late = {variable: settings[knob] for knob, variable in VARIABLES.items() if settings[knob] != "unset"}
    if settings["when"] == AFTER_IMPORT:
        os.environ.update(late)
    # The number of threads is the variable's to set; the flag is set to what came of it.
    torch_worker.set_flags(threads=torch.get_num_threads())
    tensors = _tensors()
    if settings["when"] == AFTER_USE:
        for op in LINES:  # every library, since a later run in this process may ask for another op
            _once(op, tensors)
        os.environ.update(late)
    heard = _heard(lambda: _once(settings["op"], tensors))
    return Prepared(
        _State(settings["op"], tensors),
        seen={
            "input": fingerprint(_inputs(settings["op"], tensors))[7:13],
            "MKL": _mkl(heard),
            "oneDNN": _onednn(heard),
            "ATen": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
        device=torch_worker.device_words(torch.device("cpu")),
        libraries={"torch": torch.__version__} | _versions(torch.__config__.show()),
    )


def _inputs(op: str, tensors: Mapping[str, Any]) -> Any:
    return [tensors[name] for name in INPUTS[op]] or SEED


def _refuse_missing_instructions(settings: dict) -> None:
    """PyTorch takes ATEN_CPU_CAPABILITY at its word, and a processor without those instructions ends the process."""
    import torch

    asked = settings["aten"]
    for name, supported in (("avx512", "_is_avx512_supported"), ("avx2", "_is_avx2_supported")):
        if asked == name and not getattr(torch.cpu, supported, lambda: True)():
            raise BadSetting(
                f"This processor has no {name.upper()}, and PyTorch can crash with ATEN_CPU_CAPABILITY={name}. "
                "Choose another value."
            )


def observe(state: _State, n: int) -> Iterator[Observation]:
    import torch

    for _ in range(n):
        result, seconds = torch_worker.timed(lambda: _once(state.op, state.tensors), torch.device("cpu"))
        sample = result.reshape(-1)[:64].float()
        yield Observation(
            fingerprint(result),
            fingerprint(_inputs(state.op, state.tensors), "xxh3"),
            seconds,
            sample=tuple(sample.tolist()),
        )


# --- What the libraries say they did --------------------------------------------------------------------


def _heard(function: Callable[[], Any]) -> str:
    """What MKL and oneDNN print while `function` runs, with their own switches for that turned on."""
    import torch

    with contextlib.ExitStack() as switches:
        if torch.backends.mkl.is_available():
            switches.enter_context(torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON))
        if torch.backends.mkldnn.is_available():
            switches.enter_context(torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON))
        return _printed_by(function)


def _printed_by(function: Callable[[], Any]) -> str:
    """What compiled code writes to standard output while `function` runs; "" where the C library is out of reach."""
    try:
        flush = ctypes.CDLL(None).fflush
    except (OSError, TypeError, AttributeError):
        function()
        return ""
    with tempfile.TemporaryFile() as file:
        sys.stdout.flush()
        flush(None)
        usual = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            function()
            flush(None)
        finally:
            os.dup2(usual, 1)
            os.close(usual)
        file.seek(0)
        return file.read().decode(errors="replace")


def _mkl(heard: str) -> str:
    """The code branch that MKL names beside a call, such as "CNR:COMPATIBLE"; "CNR:OFF" is its own choice."""
    import torch

    if not torch.backends.mkl.is_available():
        return "not in this PyTorch"
    branches = re.findall(r"\bCNR:\S+", heard)
    return " ".join(sorted(set(branches))) or _silent()


def _onednn(heard: str) -> str:
    """The implementation that oneDNN chose for its main step, such as "jit:avx512_core"."""
    import torch

    if not torch.backends.mkldnn.is_available():
        return "not in this PyTorch"
    steps = re.findall(r"^onednn_verbose,.*?exec,cpu,(\w+),([^,]+),", heard, re.MULTILINE)
    names = {name for primitive, name in steps if primitive != "reorder"}
    return " ".join(sorted(names)) or _silent()


def _silent() -> str:
    return "no call" if sys.platform != "win32" else "unavailable"


def _versions(config: str) -> dict[str, str]:
    """Versions of MKL and oneDNN from torch.__config__.show()."""
    found = {
        "MKL": re.search(r"Math Kernel Library Version ([\w.-]+)", config),
        "oneDNN": re.search(r"MKL-DNN v([\w.]+)", config),
    }
    return {name: match[1] for name, match in found.items() if match}


# --- Which knobs are inert ------------------------------------------------------------------------------


def compared(reference: Runs, others: Mapping[str, Runs]) -> list[str]:
    """One sentence for each of `others` (words for the setting → its runs): did it change the bits of `reference`?"""
    before = set(reference.fingerprints)
    sentences = []
    for words, runs in others.items():
        if {o.input for o in runs.observations} != {o.input for o in reference.observations}:
            verdict = "no verdict, since the inputs differ"
        elif set(runs.fingerprints) == before:
            count = len(runs.observations)
            told = f"as far as {count} run{'s' * (count > 1)} can tell"
            verdict = f"the same bits, so inert for {runs.asked['op']} here, {told}"
        else:
            verdict = "other bits"
        sentences.append(f"{words}: {verdict}.")
    return sentences


def code(settings: dict) -> str:
    late = settings["when"] != BEFORE
    variables = {v: settings[knob] for knob, v in VARIABLES.items() if settings[knob] != "unset"}
    shown = " ".join(f"{name}={value}" for name, value in variables.items())
    line = LINES[settings["op"]]
    sets = [f"os.environ[{name!r}] = {value!r}" for name, value in variables.items()]
    return "\n".join(
        [
            f"# a fresh process, started with: {shown if shown and not late else 'none of the variables'}",
            "import torch",
            *(sets if settings["when"] == AFTER_IMPORT else []),
            *([line + "  # the first use", *sets] if settings["when"] == AFTER_USE else []),
            line,
        ]
    )


def _started_with(settings: dict) -> dict[str, None]:
    """A variable that is set late must not be there at the start."""
    return {} if settings["when"] == BEFORE else dict.fromkeys(VARIABLES.values())


def _variable(knob: str, label: str, help: str, values: tuple[str, ...]) -> Knob:
    name = VARIABLES[knob]
    help = f"{name}: {help}"
    return Knob(knob, label, help, "choice", "unset", ("unset", *values), scope="process", variable=name)


GEMM_ENVIRONMENT = Experiment(
    name="gemm-environment",
    title="One line, one input, another environment",
    question="Which variable changes the bits, and until when?",
    knobs=(
        Knob(
            "op",
            "Operation",
            "What is computed, always on the same NumPy input, or from the same seed.",
            "choice",
            "matmul",
            choices=tuple(LINES),
        ),
        _variable("cbwr", "MKL", "code branch of Intel's MKL.", ("COMPATIBLE", "SSE4_2", "AVX2", "AVX512")),
        _variable(
            "onednn", "oneDNN", "newest instructions that oneDNN may use.", ("SSE41", "AVX2", "AVX512_CORE")
        ),
        _variable(
            "aten", "ATen", "which build of PyTorch's own CPU kernels runs.", ("default", "avx2", "avx512")
        ),
        _variable("threads", "Threads", "threads of PyTorch's CPU code.", ("1", "2", "4")),
        Knob(
            "when",
            "Variables are set",
            "In the environment of the new process, or by os.environ in the running one.",
            "choice",
            BEFORE,
            choices=(BEFORE, AFTER_IMPORT, AFTER_USE),
            scope="process",
        ),
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    framework="torch",
    environment=_started_with,
)
