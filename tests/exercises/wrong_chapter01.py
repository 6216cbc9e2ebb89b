"""Answers that people typically give in chapter 01, and what the check must say to each; see test_wrong_answers.py."""

_NUMPY = "import numpy as np\n"
# Written out, because Python's own sum compensates from 3.12 on.
_FLOAT64 = """
import numpy as np
def wide(x):
    total = 0.0
    for value in x.tolist():
        total = total + value
    return total
"""
# Five floats hold what each addition lost: some 270 bits, which 2**127 down to 2**-143 does not fit into.
_FIVE_COMPENSATIONS = """
import math
def answer(x):
    parts = [0.0] * 5
    for value in x.tolist():
        for n, part in enumerate(parts):
            parts[n] = part + value
            used = parts[n] - part
            value = (part - (parts[n] - used)) + (value - used)
    return math.fsum(parts)
"""
_COMPENSATED = """
def compensated(x):
    total = lost = 0.0
    for value in x.tolist():
        t = total + value
        lost += (total - t) + value if abs(total) >= abs(value) else (value - t) + total
        total = t
    return total + lost
"""

WRONG = {
    "01-decode": [
        (
            "text",
            """
import struct
def answer(pattern):
    return str(struct.unpack("<f", struct.pack("<I", pattern))[0])
""",
            "gives '3.1415927410125732', and should give a number",
        ),
        (
            "−1 ** sign without its brackets",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    return -1 ** sign * (1 + fraction / 2**23) * 2.0 ** (exponent - 127)
""",
            "Python reads −1 ** sign as −(1 ** sign)",
        ),
        (
            "no leading 1",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    return (-1.0) ** sign * (fraction / 2**23) * 2.0 ** (exponent - 127)
""",
            "leading 1 of a normal number is not stored",
        ),
        (
            "no bias",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    return (-1.0) ** sign * (1 + fraction / 2**23) * 2.0 ** exponent
""",
            "bias of 127; subtract it",
        ),
        (
            "a bias of 128",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    return (-1.0) ** sign * (1 + fraction / 2**23) * 2.0 ** (exponent - 128)
""",
            "factor of two",
        ),
        (
            "the fraction as a whole number",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    return (-1.0) ** sign * (1 + fraction) * 2.0 ** (exponent - 127)
""",
            "divide it by 2**23",
        ),
        (
            "no sign",
            """
def answer(pattern):
    exponent, fraction = pattern >> 23 & 255, pattern & 0x7FFFFF
    return (1 + fraction / 2**23) * 2.0 ** (exponent - 127)
""",
            "1 means minus",
        ),
        (
            "a leading 1 in subnormal numbers",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    return (-1.0) ** sign * (1 + fraction / 2**23) * 2.0 ** (exponent - 127)
""",
            "no leading 1 is hidden",
        ),
        (
            "subnormal numbers a factor of two too small",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    return (-1.0) ** sign * ((exponent > 0) + fraction / 2**23) * 2.0 ** (exponent - 127)
""",
            "−126, not −127",
        ),
        (
            "zero without its sign",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    value = ((exponent > 0) + fraction / 2**23) * 2.0 ** (max(exponent, 1) - 127)
    return -value if sign and value else value
""",
            "sign of zero is lost",
        ),
        (
            "times the sign bit",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    return sign * (1 + fraction / 2**23) * 2.0 ** (exponent - 127)
""",
            "you multiply by the sign bit 0; use (−1)**sign",
        ),
        (
            "the fraction not masked",
            """
def answer(pattern):
    sign, exponent = pattern >> 31, pattern >> 23 & 255
    return (-1.0) ** sign * (1 + pattern / 2**23) * 2.0 ** (exponent - 127)
""",
            "sign 0, exponent 128 and fraction 4788187",
        ),
        (
            "the exponent not masked",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23, pattern & 0x7FFFFF
    return (-1.0) ** sign * (1 + fraction / 2**23) * 2.0 ** (exponent - 127)
""",
            "sign 1, exponent 133 and fraction 7793017",
        ),
        (
            "a shift by 22",
            """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 22 & 511, pattern & 0x3FFFFF
    return (-1.0) ** sign * (1 + fraction / 2**22) * 2.0 ** (exponent - 127)
""",
            "sign 0, exponent 128 and fraction 4788187",
        ),
        (
            "binary digits without leading zeros",
            """
def answer(pattern):
    bits = format(pattern, "b")
    return (-1.0) ** int(bits[0]) * (1 + int(bits[9:], 2) / 2**23) * 2.0 ** (int(bits[1:9], 2) - 127)
""",
            "sign 0, exponent 128 and fraction 4788187",
        ),
        ("the integer itself", "answer = float", "(−1)**sign"),
        ("nothing returned", "def answer(pattern):\n    pattern >> 31", "return the result"),
        ("an exception", "def answer(pattern):\n    return pattern[0]", "TypeError"),
    ],
    "01-ulp-distance": [
        (
            "a list as long as the table of floats",
            "def answer(a, b):\n    return {step: step for step in range(100_000)}",
            "gives {0: 0, 1: 1, 2: 2, 3: 3, ...}, and should give a number",
        ),
        (
            "the difference",
            "def answer(a, b):\n    return abs(float(a) - float(b))",
            "difference of the values",
        ),
        (
            "steps upwards only",
            _NUMPY
            + "def answer(a, b):\n    steps = 0\n    while a < b and steps < 10:\n"
            + "        a, steps = np.nextafter(a, b), steps + 1\n    return steps",
            "a is the larger one",
        ),
        (
            "one ULP for all the way",
            _NUMPY + "def answer(a, b):\n    return round(abs(float(a) - float(b)) / float(np.spacing(a)))",
            "doubles at each power of two",
        ),
        (
            "machine epsilon as the unit",
            _NUMPY + "def answer(a, b):\n    return round(abs(float(a) - float(b)) / 2**-23)",
            "doubles at each power of two",
        ),
        (
            "a signed distance",
            _NUMPY + "def answer(a, b):\n    return int(b.view(np.int32)) - int(a.view(np.int32))",
            "distance has no sign",
        ),
        (
            "the numbers in between",
            _NUMPY
            + "def answer(a, b):\n    return max(abs(int(b.view(np.int32)) - int(a.view(np.int32))) - 1, 0)",
            "neighbours are one step apart",
        ),
        (
            "unsigned integers wrap",
            _NUMPY
            + "def answer(a, b):\n    return int((np.uint64(b.view(np.uint32)) - np.uint64(a.view(np.uint32))))",
            "wrap around below 0",
        ),
        (
            "two zeros",
            _NUMPY + "def answer(a, b):\n    return abs(int(a.view(np.uint32)) - int(b.view(np.uint32)))",
            "both are the same place",
        ),
        (
            "the sign as if it were two's complement",
            _NUMPY
            + "def answer(a, b):\n    return 0 if a == b else abs(int(a.view(np.uint32)) - int(b.view(np.uint32)))",
            "negative patterns grow away from zero",
        ),
        (
            "int32 wraps",
            _NUMPY
            + """
def place(x):
    bits = x.view(np.int32)
    return bits if bits >= 0 else np.int32(-2147483648) - bits
def answer(a, b):
    return max(place(a), place(b)) - min(place(a), place(b))
""",
            "range of int32",
        ),
        (
            "a distance as float32",
            _NUMPY
            + "def answer(a, b):\n    return np.float32(abs(int(a.view(np.int32)) - int(b.view(np.int32))))",
            "gives 1065353216, and should give 1065353215",
        ),
    ],
    "01-two-orders": [
        ("text", "answer = ['1.1', '1.2', '1.3']", "Give a list of three numbers"),
        ("a number beyond float64", "answer = [10**400, 1.1, 1.2]", "no giant is needed"),
        ("a number below 1", "answer = [0.1, 1.2, 1.3]", "0.1 is below 1: stay from 1 to 100"),
        ("two numbers", "answer = [1.1, 3.3]", "a + b and b + a are the same bits"),
        ("a giant", "answer = [0.1, 1e20, -1e20]", "no giant is needed"),
        ("whole numbers", "answer = [1, 2, 3]", "Every addition here is exact"),
        ("halves and quarters", "answer = [1.5, 2.25, 99.875]", "Every addition here is exact"),
        ("different in float64 only", "answer = [1.2, 7.7, 4.5]", "differ in float64"),
        ("rounded, but alike", "answer = [2.1, 7.8, 7.1]", "Something is rounded"),
        ("NaN", "answer = [float('nan'), 1.0, 2.0]", "Stay from 1 to 100"),
        ("no numbers", "answer = 'the order of the brackets'", "Give a list of three numbers"),
    ],
    "01-pairwise": [
        (
            "blocks of 4 added serially",
            _NUMPY
            + """
def answer(x):
    if len(x) <= 4:
        return np.add.accumulate(x)[-1]
    return answer(x[: len(x) // 2]) + answer(x[len(x) // 2 :])
""",
            "if only within a block",
        ),
        *(
            (
                f"serial, sorted by {by}",
                f"import numpy as np\ndef answer(x):\n    return np.add.accumulate(x[np.argsort({by})])[-1]",
                said,
            )
            for by, said in (
                ("x", "error of a serial sum"),
                ("-x", "error of a serial sum"),
                ("np.abs(x)", "the error is"),
                ("-np.abs(x)", "error of a serial sum"),
            )
        ),
        *(
            (
                f"parts of 1/{n} and the rest",
                f"""
def answer(x):
    cut = max(1, len(x) // {n})
    return x[0] if len(x) == 1 else answer(x[:cut]) + answer(x[cut:])
""",
                "somewhere yours goes through more",
            )
            for n in (3, 4)
        ),
        (
            "float32 whatever comes in",
            _NUMPY
            + """
def tree(x):
    return x[0] if len(x) == 1 else tree(x[: len(x) // 2]) + tree(x[len(x) // 2 :])
def answer(x):
    return tree(x.astype(np.float32))
""",
            "For float64 numbers it gives a float32",
        ),
        (
            "a tensor",
            """
import torch
def tree(x):
    return x[0] if len(x) == 1 else tree(x[: len(x) // 2]) + tree(x[len(x) // 2 :])
def answer(x):
    return tree(torch.from_numpy(x))
""",
            "For float32 numbers it gives a Tensor",
        ),
        ("serial", _NUMPY + "def answer(x):\n    return np.add.accumulate(x)[-1]", "error of a serial sum"),
        (
            "float64 inside",
            _NUMPY + "def answer(x):\n    return float(np.sum(x, dtype=np.float64))",
            "not the numbers' own format",
        ),
        (
            "float64 inside, rounded at the end",
            _NUMPY + "def answer(x):\n    return x.dtype.type(np.add.accumulate(x.astype(np.float64))[-1])",
            "error of a serial sum",
        ),
        (
            "the odd one is dropped",
            """
def answer(x):
    while len(x) > 1:
        half = len(x) // 2
        x = x[:half] + x[half : 2 * half]
    return x[0]
""",
            "is a number left out",
        ),
        (
            "no base case",
            "def answer(x):\n    half = len(x) // 2\n    return answer(x[:half]) + answer(x[half:])",
            "Recursion",
        ),
        (
            "one number split off at a time",
            "def answer(x):\n    return x[0] if len(x) == 1 else x[0] + answer(x[1:])",
            "somewhere yours goes through more",
        ),
        (
            "blocks of 32 added serially",
            _NUMPY
            + """
def answer(x):
    if len(x) <= 32:
        return np.add.accumulate(x)[-1]
    return answer(x[: len(x) // 2]) + answer(x[len(x) // 2 :])
""",
            "error of a serial sum",
        ),
        ("np.sum", _NUMPY + "def answer(x):\n    return np.sum(x)", "if only within a block"),
        (
            "a Python float at the end",
            """
def tree(x):
    return x[0] if len(x) == 1 else tree(x[: len(x) // 2]) + tree(x[len(x) // 2 :])
def answer(x):
    return float(tree(x))
""",
            "Keep every partial sum and the result in x.dtype",
        ),
        ("an array", "def answer(x):\n    return x[::2]", "array of shape"),
        (
            "the right half serial",
            _NUMPY
            + """
def answer(x):
    half = len(x) // 2
    return x[0] if len(x) == 1 else answer(x[:half]) + np.add.accumulate(x[half:])[-1]
""",
            "64 numbers: ones, and 1/u in the middle",
        ),
        (
            "the middle number left out",
            """
def answer(x):
    half = len(x) // 2
    return x[0] if len(x) == 1 else answer(x[:half]) + answer(x[-half:])
""",
            "your answer([1, 2, 4]) gives 5, and should give 7",
        ),
    ],
    "01-compensated": [
        (
            "a loss too small for six digits",
            "import numpy as np\ndef answer(x):\n    return np.add.accumulate(x)[-1]",
            "answer([16777216, 1, 1, 1, 1]) gives 16777216, and should give 16777220",
        ),
        (
            "nothing comes back",
            """
def answer(x):
    total = lost = x.dtype.type(0)
    for value in x:
        t = total + value
        lost = (t - total) - value
        total = t
    return total
""",
            "come back, with its sign",
        ),
        (
            "the wrong sign",
            """
def answer(x):
    total = lost = x.dtype.type(0)
    for value in x:
        y = value + lost
        t = total + y
        lost = (t - total) - y
        total = t
    return total
""",
            "come back, with its sign",
        ),
        (
            "the compensation of the number, not of what was added",
            """
def answer(x):
    total = lost = x.dtype.type(0)
    for value in x:
        t = total + (value - lost)
        lost = (t - total) - value
        total = t
    return total
""",
            "with the last correction in it",
        ),
        (
            "simplified by algebra",
            """
def answer(x):
    total = lost = x.dtype.type(0)
    for value in x:
        y = value - lost
        lost = (total + y) - (total + y)
        total = total + y
    return total
""",
            "come back, with its sign",
        ),
        (
            "pairwise instead",
            """
def answer(x):
    return x[0] if len(x) == 1 else answer(x[: len(x) // 2]) + answer(x[len(x) // 2 :])
""",
            "A plain sum is no worse than this",
        ),
        (
            "float64 inside",
            "def answer(x):\n    return sum(x.tolist())",
            "not the numbers' own format",
        ),
        (
            "Neumaier without the last line",
            """
def answer(x):
    total = lost = x.dtype.type(0)
    for value in x:
        t = total + value
        lost += (total - t) + value if abs(total) >= abs(value) else (value - t) + total
        total = t
    return total
""",
            "come back, with its sign",
        ),
    ],
    "01-any-order": [
        *(
            (
                f"sorted by magnitude, the largest first, in {wide}",
                f"""
import numpy as np
def answer(x):
    return np.float32(np.add.accumulate(x[np.argsort(-np.abs(x), kind='stable')].astype(np.{wide}))[-1])
""",
                "Ties",
            )
            for wide in ("float64", "longdouble")
        ),
        (
            "sorted by what is left after rounding",
            """
def answer(x):
    total = 0.0
    for value in sorted(x.tolist(), key=lambda value: round(value, 2)):
        total = total + value
    return total
""",
            "one order gives",
        ),
        (
            "text",
            "import math\ndef answer(x):\n    return str(math.fsum(x.tolist()))",
            "and should give a number",
        ),
        (
            "serial",
            _NUMPY + "def answer(x):\n    return np.add.accumulate(x)[-1]",
            "still reaches the answer",
        ),
        (
            "serial, from the second number on",
            _NUMPY + "def answer(x):\n    return np.add.accumulate(np.roll(x, -1))[-1]",
            "still reaches the answer",
        ),
        (
            "pairwise",
            "def answer(x):\n    return x[0] if len(x) == 1 else answer(x[: len(x) // 2]) + answer(x[len(x) // 2 :])",
            "still reaches the answer",
        ),
        ("float64", _FLOAT64 + "answer = wide", "More bits"),
        (
            "float64, rounded to float32",
            _FLOAT64 + "def answer(x):\n    return np.float32(wide(x))",
            "Rounding the total to float32",
        ),
        (
            "rounded to 4 decimals",
            _FLOAT64 + "def answer(x):\n    return round(wide(x), 4)",
            "Rounding the answer doesn't count",
        ),
        (
            "rounded to 1 decimal",
            _FLOAT64 + "def answer(x):\n    return round(wide(x), 1)",
            "Rounding the answer doesn't count",
        ),
        (
            "rounded to 6 decimals",
            _FLOAT64 + "def answer(x):\n    return round(wide(x), 6)",
            "Rounding the answer doesn't count",
        ),
        (
            "long double",
            _NUMPY + "def answer(x):\n    return np.add.accumulate(x.astype(np.longdouble))[-1]",
            "More bits",
        ),
        ("compensated in float64", _COMPENSATED + "answer = compensated", "More bits, or a compensation"),
        (
            "compensated in float64, rounded to 4 decimals",
            _COMPENSATED + "def answer(x):\n    return round(compensated(x), 4)",
            "Rounding the answer doesn't count",
        ),
        (
            "sorted by magnitude",
            _NUMPY
            + "def answer(x):\n    return np.add.accumulate(x[np.argsort(np.abs(x), kind='stable')])[-1]",
            "Ties",
        ),
        (
            "sorted by magnitude, by a sort that isn't stable",
            _NUMPY + "def answer(x):\n    return np.add.accumulate(x[np.argsort(np.abs(x))])[-1]",
            "Ties",
        ),
        *(
            (
                f"sorted by magnitude, in {wide}",
                f"""
import numpy as np
def answer(x):
    return np.float32(np.add.accumulate(x[np.argsort(np.abs(x), kind='stable')].astype(np.{wide}))[-1])
""",
                "Ties",
            )
            for wide in ("float64", "longdouble")
        ),
        ("compensated five times", _FIVE_COMPENSATIONS, "More bits, or a compensation"),
        (
            "one array for all results",
            _NUMPY
            + """
total = np.zeros((), np.float32)
def answer(x):
    total[...] = np.add.accumulate(x)[-1]
    return total
""",
            "still reaches the answer",
        ),
        (
            "equal numbers once",
            "import math\ndef answer(x):\n    return math.fsum(set(x.tolist()))",
            "is off by",
        ),
        (
            "a fixed point that is too coarse",
            "def answer(x):\n    return sum(round(v * 256) for v in x.tolist()) / 256",
            "keep more of each number",
        ),
        (
            "a fixed point that loses tiny numbers",
            "def answer(x):\n    return sum(round(value * 2**30) for value in x.tolist()) / 2**30",
            "keep more of each number",
        ),
        (
            "a fixed point that overflows",
            _NUMPY
            + """
def answer(x):
    with np.errstate(invalid="ignore"):
        return np.rint(x.astype(np.float64) * 2.0**40).astype(np.int64).sum() / 2**40
""",
            "is a factor, a range or a repeated number lost?",
        ),
        (
            "integers not divided back",
            "def answer(x):\n    return sum(int(value * 2.0**149) for value in x.tolist())",
            "divide by the factor again",
        ),
        (
            "rounded integers not divided back",
            "def answer(x):\n    return sum(round(value * 2.0**30) for value in x.tolist())",
            "divide by the factor again",
        ),
        (
            "Kahan's, in float32",
            "from samebits import orders\nanswer = orders.kahan",
            "kept loss is rounded too",
        ),
        (
            "Neumaier's, in float32",
            "from samebits import orders\nanswer = orders.neumaier",
            "kept loss is rounded too",
        ),
        ("infinity", "def answer(x):\n    return float('inf')", "inf is no finite number"),
        ("a constant", "def answer(x):\n    return 0.0", "is off by"),
        ("only the largest", _NUMPY + "def answer(x):\n    return x.max()", "is off by"),
    ],
}

RIGHT = {
    "01-decode": [
        """
def answer(pattern):
    sign, exponent, fraction = pattern >> 31, pattern >> 23 & 255, pattern & 0x7FFFFF
    return (-1.0) ** sign * ((exponent > 0) + fraction / 2**23) * 2.0 ** (max(exponent, 1) - 127)
""",
        """
import math
def answer(pattern):
    bits = f"{pattern:032b}"
    exponent, fraction = int(bits[1:9], 2), int(bits[9:], 2)
    whole = fraction + 2**23 if exponent else fraction
    return math.copysign(math.ldexp(whole, max(exponent, 1) - 150), -1 if bits[0] == "1" else 1)
""",
    ],
    "01-ulp-distance": [
        _NUMPY
        + """
def place(x):
    pattern = int(x.view(np.uint32))
    return pattern if pattern < 2**31 else 2**31 - pattern
def answer(a, b):
    return abs(place(a) - place(b))
""",
        _NUMPY
        + """
def answer(a, b):
    if np.signbit(a) != np.signbit(b):
        return answer(abs(a), np.float32(0)) + answer(abs(b), np.float32(0))
    return abs(a.view(np.int32).astype(np.int64) - b.view(np.int32).astype(np.int64))
""",
    ],
    "01-two-orders": [
        "answer = (tenths / 10 for tenths in (11, 12, 13))",
        "answer = [1.1, 1.2, 1.3]",
        _NUMPY + "answer = np.float32([1.1, 1.2, 1.3])",
    ],
    "01-pairwise": [
        """
def answer(x):
    return x[0] if len(x) == 1 else answer(x[: len(x) // 2]) + answer(x[len(x) // 2 :])
""",
        _NUMPY
        + """
def answer(x):
    while len(x) > 1:
        if len(x) % 2:
            x = np.append(x, x.dtype.type(0))
        x = x[::2] + x[1::2]
    return x[0]
""",
    ],
    "01-compensated": [
        """
def answer(x):
    total = lost = x.dtype.type(0)
    for value in x:
        y = value - lost
        t = total + y
        lost = (t - total) - y
        total = t
    return total
""",
        """
def answer(x):
    total = lost = x.dtype.type(0)
    for value in x:
        t = total + value
        lost += (total - t) + value if abs(total) >= abs(value) else (value - t) + total
        total = t
    return total + lost
""",
        """
def two_sum(a, b):
    total = a + b
    b_used = total - a
    return total, (a - (total - b_used)) + (b - b_used)
def answer(x):
    total = lost = x.dtype.type(0)
    for value in x:
        total, lost = two_sum(total, value + lost)
    return total
""",
    ],
    "01-any-order": [
        "def answer(x):\n    return sum(int(value * 2.0**149) for value in x.tolist()) / 2**149",
        "import math\ndef answer(x):\n    return math.fsum(x.tolist())",
        "from fractions import Fraction\ndef answer(x):\n    return sum(map(Fraction, x.tolist()))",
        _NUMPY + "def answer(x):\n    return np.add.accumulate(np.sort(x))[-1]",
        _NUMPY + "def answer(x):\n    return np.add.accumulate(x[np.lexsort((x, np.abs(x)))])[-1]",
        "def answer(x):\n    return sum(sorted(x.tolist(), key=lambda value: (abs(value), value)))",
        "from samebits import orders\ndef answer(x):\n    return orders.neumaier(sorted(x.tolist()))",
    ],
}
