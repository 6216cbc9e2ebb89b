"""What every experiment that uses PyTorch shares: all the flags set, the device named, time taken rightly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from samebits import machine
from samebits.experiment import BadSetting, Knob, Prepared

DEVICE = Knob(
    "device",
    "Device",
    "Where it runs; auto takes an NVIDIA GPU if PyTorch can use one, else the CPU.",
    "choice",
    "auto",
    choices=("auto", "cpu", "cuda"),
)
THREADS = Knob(
    "threads",
    "CPU threads",
    "Threads of PyTorch's CPU code. Two can race even on one core; one never does.",
    "number",
    # More threads than cores are interrupted in the middle of their work, so a race shows on a busy machine
    # too: there, two threads on two cores gave few answers in twenty runs, and eight gave twenty.
    8,
    low=1,
    high=64,
    scope="process",
    variable="OMP_NUM_THREADS",
)
DETERMINISTIC = Knob(
    "deterministic",
    "Deterministic algorithms",
    "torch.use_deterministic_algorithms(True): switches known ops to a way that repeats, or raises.",
    "toggle",
    False,
)


def set_flags(
    *,
    threads: int = 2,
    deterministic: bool = False,
    warn_only: bool = False,
    fill: bool = True,
    mkldnn: bool = True,
    cudnn_benchmark: bool = False,
    cudnn_benchmark_limit: int = 10,
    cudnn_deterministic: bool = False,
    cudnn_tf32: bool = True,
    blas_library: str = "default",
    reduced_precision: bool | tuple[bool, bool] = True,
) -> None:
    """Set every flag of PyTorch that an experiment of the course touches, so that none is left from another.

    What is not asked for gets PyTorch's own default, except that CPU code has two threads.
    """
    import torch

    torch.set_num_threads(threads)
    # The call imports torch._inductor, which takes seconds, whether or not anything changes.
    set_now = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    if set_now != (deterministic, warn_only):
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.backends.mkldnn.enabled = mkldnn
    torch.backends.cudnn.benchmark = cudnn_benchmark
    torch.backends.cudnn.deterministic = cudnn_deterministic
    torch.backends.cudnn.allow_tf32 = cudnn_tf32
    if torch.backends.cudnn.is_available():  # a build without cuDNN has no limit to set
        torch.backends.cudnn.benchmark_limit = cudnn_benchmark_limit
    torch.backends.cuda.preferred_blas_library(blas_library)
    # A pair also says whether cuBLASLt may split K.
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = reduced_precision
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced_precision
    torch.backends.cuda.matmul.allow_tf32 = False


def choose_device(setting: str):
    """torch.device for the setting of the DEVICE knob. Raises BadSetting for a GPU that is not there."""
    import torch

    if setting == "cuda" and not torch.cuda.is_available():
        raise BadSetting(
            "PyTorch sees no NVIDIA GPU here. Choose device=cpu; ./course doctor says what is missing."
        )
    return torch.device("cuda" if setting != "cpu" and torch.cuda.is_available() else "cpu")


def card(settings: dict) -> str | None:
    """The queue that a run joins: every run that may use the first GPU, decided without a CUDA context."""
    return "cuda-0" if settings["device"] != "cpu" and machine.cuda_device_count() > 0 else None


def device_words(device) -> str:
    """Such as "NVIDIA H200, 132 SMs" or "Intel Xeon, 8 threads": what computed, for the source line."""
    import torch

    return machine.device_words(output=torch.empty(0, device=device))


def prepared(state: Any, device, **more: Any) -> Prepared:
    """`state` with what PyTorch says of device, threads and the flag, and `more` that was seen."""
    import torch

    return Prepared(
        state,
        seen={
            "device": device.type,
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            **more,
        },
        device=device_words(device),
        libraries={"torch": torch.__version__},
    )


def timed(function: Callable[[], Any], device) -> tuple[Any, float]:
    """(result, seconds) of one call; on CUDA between two events, since launches return before they finish."""
    import torch

    if device.type != "cuda":
        start = time.perf_counter()
        result = function()
        return result, time.perf_counter() - start
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    result = function()
    end.record()
    end.synchronize()
    return result, begin.elapsed_time(end) / 1000
