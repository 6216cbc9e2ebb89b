"""What this machine has for the tests, asked without importing a framework."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess


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


def chromium() -> str | None:
    """The path of a Chromium to drive, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)
