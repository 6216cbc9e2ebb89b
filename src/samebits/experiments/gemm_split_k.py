"""split-k: one matrix product, K cut into parts, and three ways to add the parts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import kernels, machine, split_k
from samebits.bits import fingerprint
from samebits.experiment import Experiment, Knob, Observation, Prepared
from samebits.experiments import torch_worker

SIDE = 64  # c has 64 × 64 elements
SIMULATED = {"side": 4, "k": 64, "parts": 8}  # the most that the simulator takes: 128 threads
BLOCK = 256


def inputs(k: int, side: int = SIDE) -> tuple[np.ndarray, np.ndarray]:
    """a (side, k) and b (k, side), normal float32 numbers, always the same."""
    rng = np.random.default_rng(41)
    a = rng.standard_normal((side, k), dtype=np.float32)
    return a, rng.standard_normal((k, side), dtype=np.float32)


def cuts(k: int, parts: int) -> list[int]:
    """Where the parts of K begin, and k itself: parts + 1 numbers."""
    return [k * part // parts for part in range(parts + 1)]


@dataclass(frozen=True)
class _OnCpu:
    """The product by PyTorch on the CPU; `index_put_` is the atomics, since it races from 32,768 values on."""

    way: str
    a: Any
    b: Any
    cuts: list[int]
    element: Any  # of c, for each of the partial products

    def __call__(self) -> tuple[np.ndarray, float]:
        import torch

        product, seconds = torch_worker.timed(self._multiply, torch.device("cpu"))
        return product.numpy(), seconds

    def _multiply(self):
        import torch

        if self.way == "unsplit":
            return self.a @ self.b
        parts = zip(self.cuts, self.cuts[1:], strict=False)
        workspace = torch.stack([self.a[:, first:end] @ self.b[first:end] for first, end in parts])
        if self.way == "atomics":
            c = torch.zeros(workspace[0].numel())
            c.index_put_((self.element,), workspace.reshape(-1), accumulate=True)
            return c.reshape(workspace[0].shape)
        c = workspace[0]
        for part in workspace[1:]:
            c = c + part
        return c

    def inputs(self) -> list[Any]:
        return [self.a, self.b]


@dataclass(frozen=True)
class _ByKernels:
    product: split_k.Product

    def __call__(self) -> tuple[np.ndarray, float]:
        seconds = self.product.run()
        return self.product.value(), seconds

    def inputs(self) -> list[Any]:
        return self.product.inputs_read_back()


def prepare(settings: dict) -> Prepared:
    return _prepare_cpu(settings) if _where(settings) == "cpu" else _prepare_kernels(settings)


def _prepare_cpu(settings: dict) -> Prepared:
    import torch

    torch_worker.set_flags(threads=settings["threads"])
    a, b = (torch.from_numpy(x) for x in inputs(settings["k"]))
    parts = 1 if settings["way"] == "unsplit" else settings["parts"]
    element = torch.arange(SIDE * SIDE).repeat(parts)
    return Prepared(
        _OnCpu(settings["way"], a, b, cuts(settings["k"], parts), element),
        seen={"device": "cpu", "threads": torch.get_num_threads(), "parts": parts, "k": settings["k"]},
        device=torch_worker.device_words(torch.device("cpu")),
        libraries={"torch": torch.__version__},
    )


def _prepare_kernels(settings: dict) -> Prepared:
    device = kernels.open_device()
    side, k, parts, block = SIDE, settings["k"], settings["parts"], BLOCK
    if device.model:
        side, k, parts = SIMULATED["side"], min(k, SIMULATED["k"]), min(parts, SIMULATED["parts"])
        block = 32
    product = split_k.Product(settings["way"], *inputs(k, side), parts, block, device)
    launched = " then ".join(kernel.__name__ for kernel in product.kernels)
    return Prepared(
        _ByKernels(product),
        seen={
            "device": "simulator" if device.model else "cuda",
            "kernel": launched,
            "parts": product.parts,
            "k": k,
            "workspace bytes": product.workspace_bytes,
        },
        device=device.name,
        libraries=device.libraries,
        model=device.model,
    )


def observe(multiply: _OnCpu | _ByKernels, n: int) -> Iterator[Observation]:
    multiply()  # the first call allocates
    for _ in range(n):
        c, seconds = multiply()
        yield Observation(
            fingerprint(c),
            fingerprint(multiply.inputs(), "xxh3"),
            seconds,
            scalars={"c[0, 0]": float(c[0, 0])},
            sample=tuple(c.reshape(-1)[:64].tolist()),
        )


CPU_LINES = {
    "unsplit": ["c = a @ b"],
    "fixed order": [
        "workspace = [a[:, first:end] @ b[first:end] for first, end in parts_of_k]",
        "c = workspace[0]",
        "for part in workspace[1:]:",
        "    c = c + part",
    ],
    "atomics": [
        "workspace = torch.stack([a[:, first:end] @ b[first:end] for first, end in parts_of_k])",
        "c = torch.zeros(64 * 64)",
        "element = torch.arange(64 * 64).repeat(len(workspace))",
        "c.index_put_((element,), workspace.reshape(-1), accumulate=True)",
    ],
}


def code(settings: dict) -> str:
    about = f"# a: 64 × {settings['k']:,}, b: {settings['k']:,} × 64, float32; K in {settings['parts']} parts"
    if _where(settings) == "cpu":
        return "\n".join(
            [about, f"torch.set_num_threads({settings['threads']})", *CPU_LINES[settings["way"]]]
        )
    return "\n\n".join([about, *(inspect.getsource(kernel) for kernel in split_k.WAYS[settings["way"]])])


def _where(settings: dict) -> str:
    """cpu, cuda or simulator: decided without importing a framework and without a CUDA context."""
    if settings["device"] != "auto":
        return settings["device"]
    return "cuda" if machine.cuda_device_count() else "cpu"


SPLIT_K = Experiment(
    name="split-k",
    title="Split-K: one product, cut along K",
    question="Who adds the parts, and does it show in the bits?",
    knobs=(
        Knob(
            "way",
            "The parts are added",
            "Not at all (unsplit), by a second step in the order of the parts, or by atomics as they come.",
            "choice",
            "atomics",
            choices=tuple(split_k.WAYS),
        ),
        Knob(
            "parts",
            "Parts of K",
            "Into how many parts K is cut; on the CPU, 8 or more can race.",
            "number",
            16,
            low=1,
            high=64,
        ),
        Knob(
            "k",
            "K",
            "How many products each element of the result adds.",
            "number",
            4_096,
            low=64,  # not less than the most parts
            high=65_536,
        ),
        torch_worker.THREADS,
        Knob(
            "device",
            "Device",
            "Where it runs; auto takes an NVIDIA GPU, with the course's kernels, else the CPU, with PyTorch.",
            "choice",
            "auto",
            choices=("auto", "cpu", "cuda", "simulator"),
        ),
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    race_size={"parts": 8, "threads": 2},
    framework="torch",
    environment=lambda settings: kernels.environment(simulate=_where(settings) == "simulator"),
    card=lambda settings: "cuda-0" if _where(settings) == "cuda" else None,
    recordings=tuple({"way": way} for way in split_k.WAYS),
)
