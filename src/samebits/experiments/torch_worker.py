"""What every experiment that uses PyTorch shares: all the flags set, the device named, time taken rightly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from samebits import machine
from samebits.experiment import BadSetting, Knob

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
    "Threads of PyTorch's CPU code. Two race even on one core; one never does.",
    "number",
    2,
    low=1,
    high=64,
    scope="process",
    variable="OMP_NUM_THREADS",
)
DETERMINISTIC = Knob(
    "deterministic",
    "Deterministic algorithms",
    "torch.use_deterministic_algorithms(True): switches known ops to an order-free way, or raises.",
    "toggle",
    False,
)


def set_flags(*, threads: int = 2, deterministic: bool = False) -> None:
    """Set every flag of PyTorch that an experiment of the course touches, so that none is left from another."""
    import torch

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = False


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
    """Such as "NVIDIA H200, 132 SMs" or "Intel Xeon, 2 threads": what computed, for the source line."""
    import torch

    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.multi_processor_count} SMs"
    return machine.device_words(threads=torch.get_num_threads())


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
