"""conv-algorithm: what cuDNN's switches do to the bits of a convolution, and which kernels ran.

Needs an NVIDIA GPU. This has not been run on one: it was tested with the CPU in the GPU's place, and the
reading of kernel names on made-up profiles. PyTorch keeps each choice of a cuDNN plan for as long as its thread
lives, under a key in which the benchmark flag has no part (aten/src/ATen/native/cudnn/Conv_v8.cpp), so that no
process serves two settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from samebits import machine
from samebits.bits import fingerprint
from samebits.experiment import BadSetting, Experiment, Knob, Observation, Prepared
from samebits.experiments import convolution, torch_worker

OFF, CUDNN_ONLY, EVERYWHERE = "off", "cudnn.deterministic", "use_deterministic_algorithms"
FORMATS = ("contiguous", "channels_last")
UNAVAILABLE = "unavailable"


@dataclass(frozen=True)
class _State:
    part: str
    inputs: tuple[Any, Any, Any]
    kernels: list[str] | str  # of one step, as the profiler names them


def gpu():
    """The GPU. Raises BadSetting where PyTorch sees none."""
    import torch

    if not torch.cuda.is_available():
        raise BadSetting(
            "PyTorch sees no NVIDIA GPU here, and cuDNN needs one. The panels conv-ways and conv-autotune use your "
            "CPU's own algorithms instead; ./course doctor says what is missing for a GPU."
        )
    return torch.device("cuda")


def prepare(settings: dict) -> Prepared:
    import torch

    device = gpu()
    torch_worker.set_flags(
        deterministic=settings["deterministic"] == EVERYWHERE,
        cudnn_benchmark=settings["benchmark"],
        cudnn_benchmark_limit=settings["limit"],
        cudnn_deterministic=settings["deterministic"] == CUDNN_ONLY,
        cudnn_tf32=settings["tf32"],
    )
    layout = torch.channels_last if settings["format"] == "channels_last" else torch.contiguous_format
    dtype = getattr(torch, settings["dtype"])
    inputs = tuple(
        tensor.to(device, dtype).contiguous(memory_format=layout) for tensor in convolution.inputs(settings)
    )
    # The first step chooses the algorithms, and with benchmark on it runs every candidate: many kernels.
    first = kernels_of(lambda: convolution.results(convolution.pytorch_chooses, *inputs))
    then = kernels_of(lambda: convolution.results(convolution.pytorch_chooses, *inputs))
    return Prepared(
        _State(settings["part"], inputs, then),
        seen={
            "backend": convolution.backend(*inputs[:2]),
            "cuDNN": torch.backends.cudnn.version() or UNAVAILABLE,
            "benchmark": torch.backends.cudnn.benchmark,
            "limit": UNAVAILABLE if (limit := torch.backends.cudnn.benchmark_limit) is None else limit,
            "deterministic": torch.backends.cudnn.deterministic,
            "deterministic everywhere": torch.are_deterministic_algorithms_enabled(),
            "TF32": torch.backends.cudnn.allow_tf32,
            "dtype": str(inputs[0].dtype).removeprefix("torch."),
            "format": _format(inputs[0]),
            "images": convolution.shape_words(inputs[0]),
            "kernels in the first step": first if first == UNAVAILABLE else len(first),
            "kernels in a later step": _in_words(then),
        },
        device=torch_worker.device_words(device),
        libraries={"torch": torch.__version__, "CUDA": torch.version.cuda or UNAVAILABLE},
    )


def observe(state: _State, n: int) -> Iterator[Observation]:
    x, w, g = state.inputs
    given = fingerprint([x, w, g], "mix64")
    for _ in range(n):
        results, seconds = torch_worker.timed(
            lambda: convolution.results(convolution.pytorch_chooses, x, w, g), x.device
        )
        shown = results[state.part]
        yield Observation(
            fingerprint(shown),
            given,
            seconds,
            reported={part: fingerprint(result) for part, result in results.items()}
            # Each process chose for itself, and what was seen is the first one's: the words say it for every run.
            | {
                "shown": convolution.shape_words(shown),
                "ran": _in_words(state.kernels),
                "kernels": state.kernels,
            },
            # bfloat16 has no NumPy format; float32 holds each of its values, and distances are in float32's ULPs.
            sample=tuple(shown.flatten()[:64].float().tolist()),
            dtype="float16" if shown.element_size() == 2 and not _is_bfloat16(shown) else "float32",
        )


def _format(x) -> str:
    """One of FORMATS; with one channel or one pixel the two are the same, and that is "contiguous"."""
    import torch

    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return "channels_last" if last else "contiguous"


def _is_bfloat16(tensor) -> bool:
    return str(tensor.dtype) == "torch.bfloat16"


def kernels_of(step: Callable[[], Any]) -> list[str] | str:
    """Runs `step` and names the kernels that it launched on the GPU, in their order; "unavailable" where the
    profiler sees none (it may lack the rights, or another profiler may be running)."""
    import torch

    watched = _started_profiler()
    try:
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    finally:
        if watched is not None:
            watched.stop()
    if watched is None:
        return UNAVAILABLE
    return kernel_names(watched.events()) or UNAVAILABLE


def _started_profiler():
    from torch import profiler

    try:
        watched = profiler.profile(activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA])
        watched.start()
    except RuntimeError:
        return None
    return watched


def kernel_names(events: Any) -> list[str]:
    """The kernels among a profiler's events: what ran on the GPU and is no copy or fill."""
    on_gpu = [event for event in events if event.device_type.name == "CUDA"]
    on_gpu.sort(key=lambda event: event.time_range.start)
    return [event.name for event in on_gpu if not event.name.startswith(("Memcpy", "Memset"))]


LONGEST = 90  # characters of a kernel's name


def _in_words(kernels: list[str] | str) -> str:
    return kernels if isinstance(kernels, str) else "; ".join(map(_short, kernels))


def _short(kernel: str) -> str:
    """A kernel's name without its parameters, which can be a page long.

    The template arguments stay: CUTLASS's kernels have one name, and their first argument tells them apart. Where
    even they are too long, four digits of the whole name's sha256 take the place of the rest.
    """
    name = _without_parameters(kernel.removeprefix("void "))
    if len(name) <= LONGEST:
        return name
    return f"{name[:LONGEST]}… ({hashlib.sha256(kernel.encode()).hexdigest()[:4]})"


def _without_parameters(name: str) -> str:
    """`name` up to the bracket that opens its last ( … ); "(anonymous namespace)" and template arguments stay."""
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[place], 0)
        if depth == 0:
            return name[:place] or name
    return name


def code(settings: dict) -> str:
    lines = [
        f"torch.backends.cudnn.benchmark = {settings['benchmark']}",
        f"torch.backends.cudnn.benchmark_limit = {settings['limit']}",
        f"torch.backends.cudnn.deterministic = {settings['deterministic'] == CUDNN_ONLY}",
        f"torch.use_deterministic_algorithms({settings['deterministic'] == EVERYWHERE})",
        f"torch.backends.cudnn.allow_tf32 = {settings['tf32']}",
        convolution.code(settings),
        f"# on the GPU, {settings['dtype']}, {settings['format']}",
        "y = functional.conv2d(x, w, padding=1)",
        "y.backward(g)",
    ]
    return "\n".join(lines)


CONV_ALGORITHM = Experiment(
    name="conv-algorithm",
    title="Who picks cuDNN's algorithm",
    question="What do cuDNN's switches do to the bits?",
    knobs=(
        convolution.PART,
        Knob(
            "benchmark",
            "Benchmark",
            "torch.backends.cudnn.benchmark: time the candidates and keep the fastest.",
            "toggle",
            False,
            scope="process",
        ),
        Knob(
            "limit",
            "Benchmark limit",
            "How many candidates benchmark times; 0 times all.",
            "number",
            10,
            low=0,
            high=1000,
            scope="process",
        ),
        Knob(
            "deterministic",
            "Deterministic",
            "Leave out the candidates that cuDNN notes as nondeterministic: for cuDNN alone, or by the global flag.",
            "choice",
            OFF,
            choices=(OFF, CUDNN_ONLY, EVERYWHERE),
            scope="process",
        ),
        Knob(
            "tf32",
            "TF32",
            "torch.backends.cudnn.allow_tf32: float32 convolutions may read ten fraction bits. On by default.",
            "toggle",
            True,
            scope="process",
        ),
        Knob(
            "dtype",
            "Number format",
            "The format of images, filters and output.",
            "choice",
            "float32",
            choices=("float32", "float16", "bfloat16"),
        ),
        Knob(
            "format",
            "Memory format",
            "Whether the channels of a pixel lie side by side (channels_last) or a plane apart.",
            "choice",
            "contiguous",
            choices=FORMATS,
        ),
        *convolution.SHAPE,
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    framework="torch",
    card=lambda settings: "cuda-0" if machine.cuda_device_count() > 0 else None,
    fresh=True,
    recordings=tuple(
        {"benchmark": benchmark, "deterministic": deterministic, "part": part, "channels": 64, "size": 56}
        for benchmark in (False, True)
        for deterministic in (OFF, CUDNN_ONLY)
        for part in convolution.PARTS
    ),
)
