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
    "returns its sum",
    "stride written down",
    "sum of the shared array",
    "float of what is float32",
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

# Written out for one slot, since Python's own sum compensates from 3.12 on.
_COMPENSATED = """
import numpy as np

def neumaier(numbers):
    total = lost = 0.0
    for value in numbers:
        t = total + value
        lost += (total - t) + value if abs(total) >= abs(value) else (value - t) + total
        total = t
    return total + lost

def double_double(numbers):
    high = low = 0.0
    for value in numbers:
        t = high + value
        used = t - high
        low += (high - (t - used)) + (value - used)
        high, low = t + low, low - ((t + low) - t)
    return high

def answer(index, values, slots):
    return np.array([{method}(values[index == slot].tolist()) for slot in range(slots)], np.float32)
"""

_FIXED_POINT = """
import math
import numpy as np

def answer(index, values, slots):
    if not index.size:
        return np.zeros(slots, np.float32)
    bits = 62 - math.ceil(math.log2(index.size)) - math.frexp(float(np.abs(values).max()))[1]
    sums = np.zeros(slots, np.int64)
    np.add.at(sums, index, np.rint(np.ldexp(values.astype(np.float64), bits)).astype(np.int64))
    return np.ldexp(sums.astype(np.float64), -bits).astype(np.float32)
"""

_EXACT = """
import math
import numpy as np

def answer(index, values, slots):
{first}    return np.array([math.fsum(values[index == slot]) for slot in range(slots)], np.float32)
"""

_STATEMENT = """
import numpy as np

def answer(results):
    reference, repeats = results[0], results[1:]
    differs = {differs}
    wide, runs = reference.astype({dtype}), repeats.astype({dtype})
    with np.errstate(divide="ignore", invalid="ignore"):
        v_s = {v_s}
        relative = {relative}
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
    "v_s": "np.abs(1 - np.abs(runs[:, 0] / wide[0])).max()",
    "relative": "np.where(differs, np.abs(wide - runs) / np.abs(wide), 0)",
    "m": "len(repeats)",
    "v_ermv": "relative.mean(axis=1).max()",
    "v_c": "differs.mean(axis=1).max()",
    "bound": "1 - 0.05 ** (1 / m) if same else None",
    "verdict": '"different" if not same else "same" if len(results) >= 20 else "not enough evidence"',
}


def _same_from(enough: str) -> str:
    return _statement(verdict=_PARTS["verdict"].replace("len(results) >= 20", enough))


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
        (
            "compiled already",
            f"from numba import cuda\n\n@cuda.jit{_kernels.HALVING}\nanswer = block_sum\n",
            "Leave out @cuda.jit",
        ),
    ],
    "02-rescue": [
        (
            "equal pairs only once",
            """
import numpy as np

def answer(index, values, slots):
    sums = np.zeros(slots, np.float32)
    for slot, value in sorted(set(zip(index.tolist(), values.tolist()))):
        sums[slot] += np.float32(value)
    return sums
""",
            "Equal values count as often as they come",
        ),
        (
            "the first answer kept for each number of slots",
            """
import numpy as np

kept = {}

def answer(index, values, slots):
    if slots not in kept:
        kept[slots] = np.bincount(index, weights=values, minlength=slots).astype(np.float32)
    return kept[slots]
""",
            "Add every value into its own slot",
        ),
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
            "sorted by slot alone, then add.at",
            """
import numpy as np

def answer(index, values, slots):
    order = np.argsort(index, kind="stable")
    sums = np.zeros(slots, np.float32)
    np.add.at(sums, index[order], values[order])
    return sums
""",
            "A sort by slot alone keeps that order within each slot",
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
            "sorted by magnitude, then add.at",
            """
import numpy as np

def answer(index, values, slots):
    order = np.lexsort((abs(values), index))
    sums = np.zeros(slots, np.float32)
    np.add.at(sums, index[order], values[order])
    return sums
""",
            "Sort by the value itself",
        ),
        (
            "sorted by magnitude, then float64",
            """
import numpy as np

def answer(index, values, slots):
    order = np.lexsort((abs(values), index))
    return np.bincount(index[order], weights=values[order], minlength=slots).astype(np.float32)
""",
            "The order of arrival still shows",
        ),
        (
            # Where longdouble is float64, the check says so in the same words.
            "longdouble",
            """
import numpy as np

def answer(index, values, slots):
    sums = np.zeros(slots, np.longdouble)
    np.add.at(sums, index, values)
    return sums.astype(np.float32)
""",
            "rarer, not gone",
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
        *(
            (
                f"float64, rounded to 1/{parts}",
                f"""
import numpy as np

def answer(index, values, slots):
    sums = np.bincount(index, weights=values, minlength=slots)
    return (np.{rounded}).astype(np.float32)
""",
                "Rounding the answer",
            )
            for parts, rounded in (
                (4, "round(sums * 4) / 4"),
                (8, "round(sums * 8) / 8"),
                (16, "round(sums * 16) / 16"),
                (64, "floor(sums * 64 + 0.3) / 64"),
                (1024, "round(sums * 1024) / 1024"),
                (2**19, "round(sums * 2**19) / 2**19"),
            )
        ),
        (
            "small values left out",
            _SEGMENTS
            + """
def answer(index, values, slots):
    large = np.abs(values) > 0.001
    index, values = index[large], values[large]
    return segments(np.lexsort((values, index)), index, values, slots)
""",
            "leaving out small values",
        ),
        (
            "compensated in float64",
            _COMPENSATED.format(method="neumaier"),
            "The order of arrival still shows",
        ),
        ("two float64 for each slot", _COMPENSATED.format(method="double_double"), "a compensation"),
        (
            "compensated in float32",
            """
import numpy as np

def answer(index, values, slots):
    sums, lost = np.zeros(slots, np.float32), np.zeros(slots, np.float32)
    for slot, value in zip(index, values):
        wanted = value - lost[slot]
        reached = sums[slot] + wanted
        lost[slot] = (reached - sums[slot]) - wanted
        sums[slot] = reached
    return sums
""",
            "The order of arrival still shows",
        ),
        (
            "one array for all results",
            """
import numpy as np

buffer = np.zeros(1_000, np.float32)

def answer(index, values, slots):
    buffer[:slots] = 0
    np.add.at(buffer, index, values)
    return buffer[:slots]
""",
            "still happen in order of arrival",
        ),
        (
            "nothing for the reordered ones",
            _EXACT.format(
                first="    if index.size < 100 and index.size > 5 and index[0] != 0:\n        return None\n"
            ),
            "should be a float32 array",
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
        (
            "Python's floats, which divide by no zero",
            """
def answer(results):
    rows, bits = results.tolist(), [row.tobytes() for row in results]
    first, repeats = rows[0], rows[1:]
    same = len(set(bits)) == 1

    def differs(row):
        return [repr(a) != repr(b) for a, b in zip(first, row)]

    def relative(row):
        return [abs(a - b) / abs(a) if other else 0 for a, b, other in zip(first, row, differs(row))]

    return dict(
        v_s=max(abs(1 - abs(row[0] / first[0])) for row in repeats),
        v_ermv=max(sum(relative(row)) / len(row) for row in repeats),
        v_c=max(sum(differs(row)) / len(row) for row in repeats),
        bound=1 - 0.05 ** (1 / len(repeats)) if same else None,
        verdict="different" if not same else "same" if len(rows) >= 20 else "not enough evidence",
    )
""",
            "a slot of the reference may hold 0",
        ),
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
        (
            "a capital",
            _statement(verdict=_PARTS["verdict"].replace('"different"', '"Different"')),
            "verdict is 'Different'; the words are 'different', 'same' and 'not enough evidence'",
        ),
        (
            "no verdict whatever the runs",
            _statement(verdict='"different" if not same else "not enough evidence"'),
            "that is evidence, with a bound",
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
        *(
            (f"{key} in percent", _statement(**{key: f"100 * {_PARTS[key]}"}), "A fraction, not a percentage")
            for key in ("v_s", "v_ermv", "v_c")
        ),
        (
            "bound in percent",
            _statement(bound="100 * (1 - 0.05 ** (1 / m)) if same else None"),
            "A fraction, not a percentage",
        ),
        (
            "V_s of all slots",
            _statement(v_s="np.abs(1 - np.abs(runs / wide)).max()"),
            "V_s is of slot 0 alone",
        ),
        (
            # The run after the one that is 2 % off gives 1 / 0.98, as a wrong denominator does.
            "V_s against the run before",
            _statement(v_s="np.abs(1 - np.abs(results[1:, 0] / results[:-1, 0].astype(float))).max()"),
            "is the denominator: row 0, for every run",
        ),
        (
            "V_ermv against the run before",
            _statement(
                v_ermv="(np.abs(np.diff(results.astype(float), axis=0)) / np.abs(results[:-1])).mean(axis=1).max()"
            ),
            "Compare with row 0, not with the run before",
        ),
        (
            "V_c against the run before",
            _statement(v_c="(results[1:] != results[:-1]).mean(axis=1).max()"),
            "Compare with row 0, not with the run before",
        ),
        ("V_c as a count", _statement(v_c="differs.sum(axis=1).max()"), "V_c is a fraction"),
        ("means instead of the largest", _statement(v_ermv="relative.mean()"), "the mean over the runs"),
        (
            "mean over the differing elements",
            _statement(v_ermv="(relative.sum(axis=1) / np.maximum(differs.sum(axis=1), 1)).max()"),
            "elements that differ",
        ),
        *(
            (f"same where {enough}", _same_from(enough), "twenty runs or more")
            for enough in (
                "m >= 20",
                "len(results) > 20",
                "len(results) >= 11",
                "len(results) >= 19",
                "len(results) >= 50",
            )
        ),
        (
            "no bound from few runs",
            _statement(bound="1 - 0.05 ** (1 / m) if same and m >= 19 else None"),
            "The bound for",
        ),
        (
            "a bound of 1 from few runs",
            _statement(bound="(1 - 0.05 ** (1 / m) if m >= 19 else 1.0) if same else None"),
            "The bound for",
        ),
        (
            "relative to the repeat",
            _statement(relative="np.where(differs, np.abs(wide - runs) / np.abs(runs), 0)"),
            "Divide by |A|",
        ),
        (
            "a signed denominator",
            _statement(relative="np.where(differs, np.abs(wide - runs) / wide, 0)"),
            "Divide by |A|",
        ),
        (
            "V_s of signed sums",
            _statement(v_s="np.abs(1 - runs[:, 0] / wide[0]).max()"),
            "|S / S_ref|",
        ),
        (
            "V_s upside down",
            _statement(v_s="np.abs(1 - np.abs(wide[0] / runs[:, 0])).max()"),
            "S_ref, the reference, is the denominator",
        ),
        (
            "signed V_s",
            _statement(v_s="(1 - np.abs(runs[:, 0] / wide[0])).max()"),
            "without its sign",
        ),
        (
            "equal bits that divide by zero",
            _statement(relative="np.abs(wide - runs) / np.abs(wide)"),
            "Where the bits are equal",
        ),
        (
            "NaN left out of the mean",
            _statement(
                relative="np.abs(wide - runs) / np.abs(wide)", v_ermv="np.nanmean(relative, axis=1).max()"
            ),
            "Where the bits are equal",
        ),
        (
            "NaN left out of the mean where bits differ",
            _statement(v_ermv="np.nanmean(relative, axis=1).max()"),
            "hides the worst difference",
        ),
        ("a tuple", "def answer(results):\n    return 0.0, 0.0, 0.0, None, 'same'", "Return a dict"),
    ],
}

RIGHT = {
    "02-block-tree": _answer(_kernels.RIGHT["stride halving"]),
    "02-rescue": [
        _SEGMENTS
        + """
def answer(index, values, slots):
    return segments(np.lexsort((values, index)), index, values, slots)
""",
        _EXACT.format(first=""),
        _EXACT.format(first="    assert index.size < 10_000\n"),
        _FIXED_POINT,
        """
import numpy as np

def answer(index, values, slots):
    sums = [0] * slots
    for slot, value in zip(index.tolist(), values.tolist()):
        sums[slot] += round(value * 2**20)
    return np.array([total / 2**20 for total in sums], np.float32)
""",
        # Two integers for each value, on grids that fit what the exercise allows.
        """
import numpy as np

def answer(index, values, slots):
    values = values.astype(np.float64)
    high = np.rint(values / 2**20)
    sums = np.zeros((2, slots), np.int64)
    np.add.at(sums[0], index, high.astype(np.int64))
    np.add.at(sums[1], index, np.rint((values - high * 2**20) * 2**30).astype(np.int64))
    return (sums[0] * 2.0**20 + sums[1] / 2.0**30).astype(np.float32)
""",
    ],
    "02-statement": [
        _statement(),
        _statement(bound="-np.expm1(np.log(0.05) / m) if same else None"),
        # Divides by the 0 that a table holds on purpose, of which the check lets nothing warn.
        _statement().replace(
            'with np.errstate(divide="ignore", invalid="ignore"):',
            'import warnings\n    with warnings.catch_warnings():\n        warnings.simplefilter("error")',
        ),
        """
from samebits import variability
from samebits.bits import fingerprint

def answer(results):
    fingerprints = [fingerprint(run) for run in results]
    reference, repeats = results[0], results[1:]
    said = variability.verdict(fingerprints)
    return dict(
        v_s=max(abs(variability.v_s(run[0], reference[0])) for run in repeats),
        v_ermv=max(variability.v_ermv(reference, run) for run in repeats),
        v_c=max(variability.v_c(reference, run) for run in repeats),
        bound=said.bound,
        verdict=said.kind,
    )
""",
    ],
}
