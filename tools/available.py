"""What this machine has for the tests, asked without importing a framework."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys

from samebits import machine


@functools.cache
def gpu() -> bool:
    """Whether an NVIDIA GPU is there and not hidden by CUDA_VISIBLE_DEVICES."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return False
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU 0" in listed.stdout


@functools.cache
def tensorflow() -> bool:
    """Whether the interpreter that the runner would take for TensorFlow has it."""
    script = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)"
    try:
        asked = subprocess.run([machine.tensorflow_python(), "-c", script], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


def tensorflow_is_served() -> bool:
    """Whether there is a TensorFlow for this Python, as the script `course` has it."""
    return (3, 11) <= sys.version_info[:2] <= (3, 13)


def chromium() -> str | None:
    """The path of a Chromium to drive, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)
