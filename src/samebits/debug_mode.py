"""PyTorch's own tool for finding where two runs part, torch.utils._debug_mode.DebugMode, as the course asks it.

It is a private prototype (torch >= 2.10), the strongest peer of trace.py; chapter 09 and the bench measure both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def debugging(hash_fn: str = "norm") -> Iterator[Any]:
    """PyTorch's DebugMode with a hash of each result: "norm", its default, or "hash_tensor"."""
    from torch.utils._debug_mode import DebugMode

    with DebugMode() as mode, DebugMode.log_tensor_hashes(hash_fn=hash_fn):
        yield mode


def log(part: Callable[[], Any], hash_fn: str = "norm") -> Any:
    """DebugMode's log of one call: a list with an entry for each op."""
    with debugging(hash_fn) as mode:
        part()
    return mode.logs


def mismatches(one: Any, other: Any) -> list[str]:
    """The ops in which two logs differ. Raises ValueError, as DebugMode does, if they have different lengths."""
    from torch.utils._debug_mode import DebugMode

    return [str(each["call"]) for each in DebugMode.check_hash_mismatches(one, other)]
