"""Checks of chapter 04: the error that is gone, variables that act until a library has looked, cuBLAS's workspace.

Those whose claims need an NVIDIA GPU have not been run on one.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.checks import THREADS, Seen, check, in_new_process
from samebits.experiments import gemm_environment, gemm_workspace
from samebits.experiments.gemm_environment import AFTER_IMPORT, AFTER_USE, BEFORE

VARIABLE = gemm_workspace.VARIABLE
NO_QUESTION = Seen(None, "this PyTorch cannot be asked for its workspace")


# --- The error that is gone ------------------------------------------------------------------------------


@check("04-no-cublas-check", control="the words of an error that PyTorch still has")
def no_cublas_check(control: bool) -> Seen:
    words = "does not have a deterministic implementation" if control else "it uses CuBLAS and you have CUDA"
    package = Path(importlib.util.find_spec("torch").origin).parent  # torch itself is not imported
    places = (package / "lib", Path(sys.prefix) / "lib")  # pip's and conda's
    libraries = [path for place in places for path in place.glob("*torch_cpu.[sd]*")]
    if not libraries:
        return Seen(None, "PyTorch's library was not found")
    with open(libraries[0], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        found = library.find(words.encode()) >= 0
    return Seen(not found, f"{libraries[0].name} {'has' if found else 'lacks'} “{words}”")


@check(
    "04-flag-multiplies",
    control="put_, which the flag refuses",
    framework="torch",
    environment={VARIABLE: None},
)
def flag_multiplies(control: bool) -> Seen:
    import torch

    x = torch.ones(64, 64, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        x.put_(torch.tensor([0, 0], device="cuda"), torch.ones(2, device="cuda")) if control else x @ x
        torch.cuda.synchronize()
    except RuntimeError as error:
        return Seen(False, str(error).partition(".")[0])
    return Seen(True, "no error")


@check("04-lstm-page", control="the page of Linear", framework="torch")
def lstm_page(control: bool) -> Seen:
    import torch

    layers = ["Linear"] if control else ["RNN", "LSTM"]
    found = [layer for layer in layers if "cudnn_rnn_determinism" in getattr(torch.nn, layer).__doc__]
    return Seen(found == layers, f"included by {', '.join(found) or 'no page'} of {', '.join(layers)}")


# --- Atomics in place of a fixed order -------------------------------------------------------------------


@check("04-index-put", control="64 parts, enough values for many threads", framework="torch")
def index_put(control: bool) -> Seen:
    import torch

    torch.set_num_threads(THREADS)
    parts = 64 if control else 7
    values = torch.from_numpy(np.random.default_rng(4).standard_normal(64 * 64 * parts, dtype=np.float32))
    element = torch.arange(64 * 64).repeat(parts)
    sums = (torch.zeros(64 * 64).index_put_((element,), values, accumulate=True) for _ in range(50))
    return Seen.same(len(set(map(fingerprint, sums))), 50, control)


# --- Variables that act until the library has looked -----------------------------------------------------

MKL = {"MKL_CBWR": "COMPATIBLE"}
OTHERS = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
_PROGRAM = """
import json
from samebits.checks import chapter04
print(json.dumps(chapter04.looked({when!r}, {variables!r})))
"""


def looked(when: str, variables: dict[str, str]) -> dict[str, Any]:
    """What every operation gives in this process, a new one, and which code its libraries say they run.

    With AFTER_USE also, as "plain", what came out before the variables were set.
    """
    plain = gemm_environment.every_op() if when == AFTER_USE else None
    bits = gemm_environment.every_op(when, variables)
    seen = {}
    for op in ("matmul", "conv"):
        settings = gemm_environment.GEMM_ENVIRONMENT.settings(op=op)
        seen[op] = dict(gemm_environment.prepare(settings).seen)
    code = {
        "MKL": seen["matmul"]["MKL"],
        "oneDNN": seen["conv"]["oneDNN"],
        "ATen": seen["matmul"]["ATen"],
        "threads": seen["matmul"]["threads"],
    }
    return {"bits": bits, "plain": plain, "code": code}


@functools.cache
def _process(when: str, which: str) -> dict[str, Any]:
    """`looked` in a new process in which MKL's variable, the others or all are set at that moment."""
    variables = {"MKL": MKL, "others": OTHERS, "all": MKL | OTHERS}[which]
    environment = dict.fromkeys(gemm_environment.VARIABLES.values()) | (variables if when == BEFORE else {})
    program = _PROGRAM.format(when=when, variables=variables)
    return json.loads(in_new_process(program, **environment).splitlines()[-1])


def _plain() -> dict[str, str]:
    """The bits of a process without the variables: those of the one that sets them last, from before that."""
    return _process(AFTER_USE, "all")["plain"]


def _late() -> dict[str, Any]:
    return _process(AFTER_USE, "all")


LATE = "the variable set after the first use"


@check("04-mkl-cbwr", control=LATE)
def mkl_cbwr(control: bool) -> Seen:
    found = _late() if control else _process(BEFORE, "MKL")
    branch = found["code"]["MKL"]
    if "CNR" not in branch:
        return Seen(None, f"MKL: {branch}")
    bits = "other" if found["bits"]["matmul"] != _plain()["matmul"] else "no other"
    return Seen(branch == "CNR:COMPATIBLE", f"MKL names {branch}; {bits} bits than without the variable")


@functools.cache
def _branch(value: str | None) -> str:
    """The branch that MKL names beside a product in a new process with this MKL_CBWR, such as "CNR:AUTO"."""
    program = """
from samebits.experiments.gemm_environment import GEMM_ENVIRONMENT
print(GEMM_ENVIRONMENT.prepare(GEMM_ENVIRONMENT.settings()).seen["MKL"])
"""
    return in_new_process(program, MKL_CBWR=value).splitlines()[-1]


@check("04-cbwr-auto", control="the variable unset")
def cbwr_auto(control: bool) -> Seen:
    auto, named = (_branch(None), _branch(None)) if control else (_branch("AUTO"), _branch("AVX2"))
    if "CNR" not in auto:
        return Seen(None, f"MKL: {auto}")
    told = f"MKL names {auto}" + ("" if control else f", and for MKL_CBWR=AVX2 {named}")
    return Seen(auto == "CNR:AUTO" and named in ("CNR:AVX2", "CNR:AUTO"), told)


@check("04-cbwr-reaches-mkl", control="the variables of the other libraries")
def cbwr_reaches_mkl(control: bool) -> Seen:
    changed = _changed(_process(BEFORE, "others" if control else "MKL"))
    if not changed:
        return Seen(None, "no bits changed")
    return Seen(not {"conv", "sigmoid", "randn"} & set(changed), f"changed: {', '.join(changed)}")


@check("04-onednn-isa", control=LATE)
def onednn_isa(control: bool) -> Seen:
    code = (_late() if control else _process(BEFORE, "others"))["code"]["oneDNN"]
    usual = _process(AFTER_USE, "all")["code"]["oneDNN"]  # what is set too late does not act
    if "avx512" not in usual and "avx10" not in usual:
        return Seen(None, f"oneDNN runs {usual} here without the variable, too")
    return Seen("avx2" in code and "avx512" not in code, f"oneDNN runs {code}, without the variable {usual}")


@check("04-aten-capability", control=LATE)
def aten_capability(control: bool) -> Seen:
    code = (_late() if control else _process(BEFORE, "others"))["code"]["ATen"]
    usual = _late()["code"]["ATen"]
    if usual in ("DEFAULT", "NO AVX"):
        return Seen(None, "PyTorch has one build of its kernels for this processor")
    return Seen(code == "DEFAULT", f"PyTorch runs its {code} kernels, without the variable {usual}")


# Prints the fingerprint of the numbers of seed 0, and once more, with the variable set in between if it is late.
_NORMAL_NUMBERS = """
import os, torch
from samebits.bits import fingerprint
for late in (False, {late}):
    if late:
        os.environ["ATEN_CPU_CAPABILITY"] = "default"
    torch.manual_seed(0)
    print(fingerprint(torch.randn(10_000)))
"""


@check("04-seed-and-code", control=LATE)
def seed_and_code(control: bool) -> Seen:
    # This variable alone: the number of threads, say, could have changed the numbers as well.
    start = {"ATEN_CPU_CAPABILITY": None if control else "default"}
    plain, then = in_new_process(_NORMAL_NUMBERS.format(late=control), **start).split()
    if not control:
        plain, _ = in_new_process(_NORMAL_NUMBERS.format(late=False), ATEN_CPU_CAPABILITY=None).split()
    told = f"seed 0 gave {'other' if then != plain else 'the same'} numbers under ATEN_CPU_CAPABILITY=default"
    return Seen(then != plain or (False if control else None), told)


@check("04-openmp-loads", control="the variable set before the start")
def openmp_loads(control: bool) -> Seen:
    threads = _process(BEFORE, "others")["code"]["threads"]
    late, usual = _process(AFTER_IMPORT, "all")["code"]["threads"], _late()["code"]["threads"]
    if usual == 1:
        return Seen(None, "one thread is usual here")
    return Seen(
        (threads if control else late) == usual, f"{threads if control else late} threads, usual {usual}"
    )


@check("04-mkl-first-use", control=LATE)
def mkl_first_use(control: bool) -> Seen:
    code = (_late() if control else _process(AFTER_IMPORT, "all"))["code"]
    if "CNR" not in code["MKL"]:
        return Seen(None, f"MKL: {code['MKL']}")
    told = f"MKL names {code['MKL']}, oneDNN {code['oneDNN']}, PyTorch {code['ATen']}"
    return Seen(code["MKL"] == "CNR:COMPATIBLE", told)


@check("04-after-first-use", control="the same variables before the start")
def after_first_use(control: bool) -> Seen:
    if not control:
        changed = _changed(_late())
        return Seen(not changed, f"changed: {', '.join(changed) or 'nothing'}")
    changed = [op for which in ("MKL", "others") for op in _changed(_process(BEFORE, which))]
    # Where they change nothing even before the start, that they do not later is no evidence.
    return Seen(False if changed else None, f"changed: {', '.join(changed) or 'nothing'}")


def _changed(found: dict[str, Any]) -> list[str]:
    """The operations whose bits are others than in a process without the variables."""
    plain = _plain()
    assert found["bits"]["input"] == plain["input"], "the inputs differ"
    return [op for op in plain if found["bits"][op] != plain[op]]


@check("04-stretches", control="the beginnings of stretches instead", framework="torch")
def stretches(control: bool) -> Seen:
    import torch

    numbers = torch.from_numpy(np.random.default_rng(4).standard_normal(99_999, dtype=np.float32))
    torch.set_num_threads(1)
    whole = torch.sigmoid(numbers).view(torch.int32)
    torch.set_num_threads(3)
    stretch, tail = len(numbers) // 3, 32  # two vectors of AVX-512, which the loop takes at once
    changed = torch.nonzero(torch.sigmoid(numbers).view(torch.int32) != whole).flatten() % stretch
    if not len(changed):
        return Seen(None, "one thread and three gave the same bits")
    near = changed < tail if control else changed >= stretch - tail
    place = "beginning" if control else "end"
    return Seen(
        bool(near.all()),
        f"{int(near.sum())} of {len(changed)} changed elements are near the {place} of a thread's stretch",
    )


# --- On a GPU --------------------------------------------------------------------------------------------


def _matrices() -> tuple[Any, Any]:
    import torch

    rng = np.random.default_rng(4)
    shapes = ((256, 4096), (4096, 256))
    return tuple(torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).cuda() for shape in shapes)


@check("04-one-stream", control="index_add_, which uses atomics on a GPU", framework="torch")
def one_stream(control: bool) -> Seen:
    import torch

    a, b = _matrices()
    index = torch.arange(a.numel(), device="cuda") % 16

    def once() -> Any:
        return torch.zeros(16, device="cuda").index_add_(0, index, a.flatten()) if control else a @ b

    return Seen.same(len({fingerprint(once()) for _ in range(50)}), 50, control)


@check("04-workspace-each-stream", control="one stream, twice", framework="torch")
def workspace_each_stream(control: bool) -> Seen:
    import torch

    a, b = _matrices()
    out = torch.empty(256, 256, device="cuda")
    first = torch.cuda.Stream()
    streams = [first, first] if control else [first, torch.cuda.Stream()]
    one = _allocated_by_products([first], a, b, out)
    both = _allocated_by_products(streams, a, b, out)
    if one is None or both is None:
        return NO_QUESTION
    return Seen(one > 0 and both == 2 * one, f"{one:,} bytes for one stream, {both:,} for these two")


def _allocated_by_products(streams: list[Any], a: Any, b: Any, out: Any) -> int | None:
    """Bytes of PyTorch's allocator that products on these streams leave allocated, all workspaces given back before."""
    import torch

    give_back: Callable[[], None] | None = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if give_back is None:
        return None
    torch.cuda.synchronize()
    give_back()
    before = torch.cuda.memory_allocated()
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
    return torch.cuda.memory_allocated() - before


@functools.cache
def _asked(config: str | None) -> tuple[int, tuple[int, int]] | None:
    """(bytes for each handle and stream, the card's capability) in a new process with this configuration."""
    program = """
import json, torch
ask = getattr(torch.backends.cuda, "cublas_workspace_size", None)
print(json.dumps([ask(), torch.cuda.get_device_capability()] if ask else None))
"""
    answer = json.loads(in_new_process(program, **{VARIABLE: config}).splitlines()[-1])
    return (answer[0], tuple(answer[1])) if answer else None


@check("04-workspace-rule", control="the rule without COUNT, as it was around version 2.0")
def workspace_rule(control: bool) -> Seen:
    answer = _asked(":16:8")
    if answer is None:
        return NO_QUESTION
    expected = 16 * 1024 if control else gemm_workspace.workspace_bytes(":16:8", answer[1])
    return Seen(answer[0] == expected, f":16:8 gives {answer[0]:,} bytes; the rule says {expected:,}")


@check("04-workspace-default", control="the variable set to :16:8")
def workspace_default(control: bool) -> Seen:
    answer = _asked(":16:8" if control else None)
    if answer is None:
        return NO_QUESTION
    expected = gemm_workspace.default_bytes(answer[1])
    return Seen(
        answer[0] == expected, f"{answer[0]:,} bytes on a card of capability {answer[1]}, rule {expected:,}"
    )


@check("04-malformed", control="the same text with its first colon")
def malformed(control: bool) -> Seen:
    answer = _asked(":1024:3" if control else "1024:3")
    if answer is None:
        return NO_QUESTION
    expected = gemm_workspace.default_bytes(answer[1])
    return Seen(answer[0] == expected, f"{answer[0]:,} bytes, the default is {expected:,}")


@check("04-can-ask", control="the module of MKL, which has no workspace", framework="torch")
def can_ask(control: bool) -> Seen:
    import torch

    module = torch.backends.mkl if control else torch.backends.cuda
    found = hasattr(module, "cublas_workspace_size")
    return Seen(found, f"{module.__name__} {'has' if found else 'lacks'} cublas_workspace_size")
