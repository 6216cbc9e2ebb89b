"""What people typically answer in chapter 02, and a phrase of the sentence that each must get."""

import importlib.util
import re
from pathlib import Path

# Tests are no package, so the list of kernels, which has a file of its own, is loaded by its path.
_spec = importlib.util.spec_from_file_location(
    "wrong_block_tree", Path(__file__).with_name("wrong_block_tree.py")
)
_kernels = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_kernels)

# Those that people write most; the tests of the judge take all of them.
_TYPICAL = (
    "no atomic",
    "no atomic, written out",
    "no barrier in the loop",
    "no barrier after loading",
    "barrier in the branch of the loop",
    "early return",
    "no bounds check",
    "whole blocks only",
    "slots beyond the end left unset",
    "every thread adds the block's sum",
    "float64 inside",
    "stub with its first line",
)

# Clamps the index instead of testing it, which nothing but an empty array shows.
_CLAMPED = """
def block_sum(x, total):
    shared = cuda.shared.array(BLOCK, float32)
    thread = cuda.threadIdx.x
    i = cuda.grid(1)
    value = x[min(i, x.size - 1)]
    shared[thread] = value if i < x.size else 0
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride //= 2
    if thread == 0:
        cuda.atomic.add(total, 0, shared[0])
"""


def _answer(kernel: str) -> str:
    return f"{kernel}\nanswer = block_sum\n"


def _without_line(phrase: str) -> str:
    """Lines are counted from the first line of the function here, and from the one above it there."""
    return re.split(r":? (?:in )?line \d", phrase)[0]


_SEGMENTS = """
import numpy as np

def segments(order, index, values, slots):
    sums = np.zeros(slots, np.float32)
    present, starts = np.unique(index[order], return_index=True)
    sums[present] = np.add.reduceat(values[order], starts)
    return sums
"""

_STATEMENT = """
import numpy as np

def answer(results):
    reference, repeats = results[0], results[1:]
    differs = {differs}
    wide, runs = reference.astype({dtype}), repeats.astype({dtype})
    with np.errstate(divide="ignore", invalid="ignore"):
        v_s = np.abs(1 - np.abs(runs[:, 0] / wide[0])).max()
        relative = np.where(differs, np.abs(wide - runs) / np.abs(wide), 0)
    m = {m}
    same = not differs.any()
    return dict(
        v_s=v_s,
        v_ermv={v_ermv},
        v_c={v_c},
        bound={bound},
        verdict={verdict},
    )
"""

_PARTS = {
    "differs": "repeats.view(np.int32) != reference.view(np.int32)",
    "dtype": "np.float64",
    "m": "len(repeats)",
    "v_ermv": "relative.mean(axis=1).max()",
    "v_c": "differs.mean(axis=1).max()",
    "bound": "1 - 0.05 ** (1 / m) if same else None",
    "verdict": '"different" if not same else "same" if len(results) >= 20 else "not enough evidence"',
}


def _statement(**changed: str) -> str:
    return _STATEMENT.format(**_PARTS | changed)


WRONG = {
    "02-block-tree": [
        *(
            (label, _answer(kernel), _without_line(phrase))
            for label, (kernel, phrase) in _kernels.WRONG.items()
            if label in _TYPICAL
        ),
        *((label, _answer(kernel), phrase) for label, (kernel, phrase) in _kernels.ANOTHER_WAY.items()),
        ("an index clamped, and no elements", _answer(_CLAMPED), "x has 0 elements"),
    ],
    "02-rescue": [
        (
            "add.at, in order of arrival",
            """
import numpy as np

def answer(index, values, slots):
    sums = np.zeros(slots, np.float32)
    np.add.at(sums, index, values)
    return sums
""",
            "still happen in order of arrival",
        ),
        (
            "updates lost",
            """
import numpy as np

def answer(index, values, slots):
    sums = np.zeros(slots, np.float32)
    sums[index] += values
    return sums
""",
            "other updates are lost",
        ),
        (
            "float64, then rounded",
            """
import numpy as np

def answer(index, values, slots):
    return np.bincount(index, weights=values, minlength=slots).astype(np.float32)
""",
            "rarer, not gone",
        ),
        (
            "sorted by slot alone",
            _SEGMENTS
            + """
def answer(index, values, slots):
    return segments(np.argsort(index, kind="stable"), index, values, slots)
""",
            "values within a slot still stand in order of arrival",
        ),
        (
            "sorted by magnitude",
            _SEGMENTS
            + """
def answer(index, values, slots):
    return segments(np.lexsort((abs(values), index)), index, values, slots)
""",
            "Sort by the value itself",
        ),
        (
            "float32, rounded to 3 decimals",
            """
import numpy as np

def answer(index, values, slots):
    sums = np.zeros(slots, np.float32)
    np.add.at(sums, index, values)
    return np.round(sums, 3)
""",
            "Rounding the answer",
        ),
        *(
            (
                f"float64, rounded to {decimals} decimals",
                f"""
import numpy as np

def answer(index, values, slots):
    sums = np.bincount(index, weights=values, minlength=slots)
    return np.round(sums, {decimals}).astype(np.float32)
""",
                "Rounding the answer",
            )
            for decimals in range(1, 7)
        ),
        (
            "reduceat over all slots, also the empty one",
            """
import numpy as np

def answer(index, values, slots):
    order = np.lexsort((values, index))
    starts = np.searchsorted(index[order], np.arange(slots))
    return np.add.reduceat(np.append(values[order], np.float32(0)), starts)
""",
            "it is an empty slot",
        ),
        (
            "fixed point that overflows",
            """
import numpy as np

def answer(index, values, slots):
    sums = np.zeros(slots, np.int64)
    np.add.at(sums, index, np.rint(values.astype(np.float64) * 2**40).astype(np.int64))
    return (sums / 2**40).astype(np.float32)
""",
            "choose the scale from the largest value",
        ),
        (
            "a float64 array",
            """
import math
import numpy as np

def answer(index, values, slots):
    return np.array([math.fsum(values[index == slot]) for slot in range(slots)])
""",
            "float32 array of 7 elements",
        ),
        (
            "sorts its inputs in place",
            """
import numpy as np

def answer(index, values, slots):
    order = np.lexsort((values, index))
    index[:], values[:] = index[order], values[order]
    sums = np.zeros(slots, np.float32)
    np.add.at(sums, index, values)
    return sums
""",
            "changes its inputs",
        ),
    ],
    "02-statement": [
        ("N instead of N − 1", _statement(m="len(results)"), "The reference is no repeat"),
        ("rule of thumb", _statement(bound="3 / m if same else None"), "rule of thumb"),
        ("values instead of bits", _statement(differs="repeats != reference"), "Compare bytes"),
        (
            "NaN made equal, zeros too",
            _statement(differs="(repeats != reference) & (repeats == repeats)"),
            "One run holds −0.0",
        ),
        (
            "deterministic",
            _statement(verdict='"deterministic" if same else "different"'),
            "never a proof",
        ),
        ("same after ten runs", _statement(verdict='"same" if same else "different"'), "twenty runs"),
        (
            "no verdict from few runs, though they differ",
            _statement(
                verdict='"not enough evidence" if len(results) < 20 else "same" if same else "different"'
            ),
            "one witness is enough",
        ),
        ("a bound though runs differ", _statement(bound="1 - 0.05 ** (1 / m)"), "nothing left to bound"),
        ("float32 arithmetic", _statement(dtype="np.float32"), "Convert to float64"),
        ("V_c as a count", _statement(v_c="differs.sum(axis=1).max()"), "V_c is a fraction"),
        ("means instead of the largest", _statement(v_ermv="relative.mean()"), "the mean over the runs"),
        (
            "mean over the differing elements",
            _statement(v_ermv="(relative.sum(axis=1) / np.maximum(differs.sum(axis=1), 1)).max()"),
            "elements that differ",
        ),
        ("a tuple", "def answer(results):\n    return 0.0, 0.0, 0.0, None, 'same'", "Return a dict"),
    ],
}

RIGHT = {
    "02-block-tree": _answer(_kernels.RIGHT["stride halving"]),
    "02-rescue": _SEGMENTS
    + """
def answer(index, values, slots):
    return segments(np.lexsort((values, index)), index, values, slots)
""",
    "02-statement": _statement(),
}
