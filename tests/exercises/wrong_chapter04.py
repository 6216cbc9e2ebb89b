"""Answers that people typically give in chapter 04, and what the check must say to each; see test_wrong_answers.py."""

_PAIRS = """
import re
def answer(config, capability):
    pairs = re.findall(r":([0-9]+):([0-9]+)", config or "")
    if pairs:
        return {total}
    return 32 * 2**20 if capability[0] in {large} else 8519680
"""
_TOTAL = "sum(int(size) * int(count) for size, count in pairs) * 1024"

_EVIDENCE = """
def evidence(multiply, a, b, parts):
    answers = {fingerprint(multiply(a, b, parts)) for _ in range(20)}
    return {"answers": len(answers), "differs": fingerprint(multiply(a, b, 1)) not in answers}
answers = (split_k, evidence)
"""
_START = "import numpy as np\nfrom samebits.bits import fingerprint\n"
_SPLIT = """
def split_k(a, b, parts):
    c, *others = [x @ y for x, y in zip(np.array_split(a, parts, axis=1), np.array_split(b, parts))]
    for part in others:
        c = c + part
    return c
"""


def _split(body: str) -> str:
    """A split_k of its own, with a right evidence."""
    return f"{_START}\ndef split_k(a, b, parts):\n{body}\n{_EVIDENCE}"


def _evidence(body: str) -> str:
    """An evidence of its own, with a right split_k."""
    return f"{_START}{_SPLIT}\ndef evidence(multiply, a, b, parts):\n{body}\nanswers = (split_k, evidence)\n"


_PARTS = "    parts = [x @ y for x, y in zip(np.array_split(a, parts, axis=1), np.array_split(b, parts))]\n"


def _diagnosis(**changed: str) -> str:
    return f"answer = { ({'A': 'too late', 'B': 'overwritten', 'C': 'never needed'} | changed)!r}"


_RESTORES = {
    "seed": False,
    "flag": False,
    "handles": True,
    "once": False,
    "each time": True,
    "shared": False,
    "launcher": True,
    "environ": False,
}


def _restores(**changed: object) -> str:
    return f"answer = {_RESTORES | {name.replace('_', ' '): value for name, value in changed.items()}!r}"


WRONG = {
    "04-bytes": [
        *(
            (
                f"32 MiB: {words}",
                _PAIRS.format(total=_TOTAL, large="(9, 10, 12)").replace(
                    "capability[0] in (9, 10, 12)", large
                ),
                hint,
            )
            for words, large, hint in (
                ("9 and later", "capability[0] >= 9", "not of capability 9, 10 or 12"),
                ("all but 7 and 8", "capability[0] not in (7, 8)", "not of capability 9, 10 or 12"),
                ("x.0 alone", "capability in ((9, 0), (10, 0), (12, 0))", "9, 10 and 12 have 32 MiB"),
            )
        ),
        (
            "all numbers, two by two",
            """
def answer(config, capability):
    numbers = [int(word) for word in (config or "").split(":")[1:] if word.strip().isdigit()]
    total = sum(size * count for size, count in zip(numbers[::2], numbers[1::2])) * 1024
    return total or (32 * 2**20 if capability[0] in (9, 10, 12) else 8519680)
""",
            "bytes_of(':16:big:8', (8, 0)) gives 131072",
        ),
        (
            "what does not parse as a whole is the default",
            """
def answer(config, capability):
    try:
        numbers = [int(word) for word in config.split(":")[1:]]
        total = sum(size * count for size, count in zip(numbers[::2], numbers[1::2])) * 1024
    except Exception:
        total = 0
    return total if total > 0 else 32 * 2**20 if capability[0] in (9, 10, 12) else 8519680
""",
            "anywhere in the text, and adds up",
        ),
        (
            "bytes instead of KiB",
            _PAIRS.format(total=_TOTAL.replace(" * 1024", ""), large="(9, 10, 12)"),
            "SIZE is in KiB",
        ),
        (
            "kilobytes of 1000",
            _PAIRS.format(total=_TOTAL.replace("1024", "1000"), large="(9, 10, 12)"),
            "not 1000",
        ),
        (
            "no count",
            _PAIRS.format(total="sum(int(size) for size, count in pairs) * 1024", large="(9, 10, 12)"),
            "COUNT is missing",
        ),
        (
            "the first pair only",
            _PAIRS.format(total="int(pairs[0][0]) * int(pairs[0][1]) * 1024", large="(9, 10, 12)"),
            "several pairs",
        ),
        (
            "8 MiB on every card",
            _PAIRS.format(total=_TOTAL, large="()"),
            "capability 9, 10 and 12 have 32 MiB",
        ),
        (
            "32 MiB on every card",
            _PAIRS.format(total=_TOTAL, large="range(20)"),
            "not of capability 9, 10 or 12",
        ),
        (
            "the text must match as a whole",
            """
import re
def answer(config, capability):
    if config and re.fullmatch(r"(:[0-9]+:[0-9]+)+", config):
        numbers = [int(word) for word in config.split(":")[1:]]
        return sum(size * count for size, count in zip(numbers[::2], numbers[1::2])) * 1024
    return 32 * 2**20 if capability[0] in (9, 10, 12) else 8519680
""",
            "anywhere in the text",
        ),
        (
            "malformed text raises",
            """
def answer(config, capability):
    if config is None:
        return 32 * 2**20 if capability[0] in (9, 10, 12) else 8519680
    numbers = [int(word) for word in config.split(":")[1:]]
    if len(numbers) % 2 or not numbers:
        raise ValueError("malformed")
    return sum(size * count for size, count in zip(numbers[::2], numbers[1::2])) * 1024
""",
            "it takes the default",
        ),
        (
            "malformed text means nothing",
            _PAIRS.format(total=_TOTAL, large="(9, 10, 12)").replace(
                "    return 32", "    if config is not None:\n        return 0\n    return 32"
            ),
            "so it means the default",
        ),
        (
            "nothing returned",
            "def answer(config, capability):\n    capability[0]",
            "Return a number of bytes",
        ),
    ],
    "04-split-k": [
        (
            "not cut at all",
            _split("    return (a.astype(float) @ b.astype(float)).astype(np.float32)"),
            "K was not cut, or the parts were added in float64",
        ),
        (
            "every fourth column",
            _split("    return sum(a[:, p::parts] @ b[p::parts] for p in range(parts))"),
            "Cut K into stretches",
        ),
        (
            "the last part first",
            _split(_PARTS + "    return np.add.accumulate(parts[-1:] + parts[:-1])[-1]"),
            "Add the parts one by one",
        ),
        *(
            (
                f"only {what} is compared",
                _evidence(
                    "    runs = [multiply(a, b, parts) for _ in range(20)]\n"
                    f"    bits = {{fingerprint(run{of}) for run in runs}}\n"
                    f'    return {{"answers": len(bits), "differs": fingerprint(multiply(a, b, 1){of}) not in bits}}'
                ),
                hint,
            )
            for what, of, hint in (
                ("the first element", "[0, 0]", "differs is False"),
                ("the first row", "[0]", "differs is False"),
                ("the last row", "[-1]", "differs is False"),
                ("the sum", ".sum()", "differs is False"),
            )
        ),
        (
            "only the text is compared",
            _evidence(
                "    texts = {str(multiply(a, b, parts)) for _ in range(20)}\n"
                '    return {"answers": len(texts), "differs": str(multiply(a, b, 1)) not in texts}'
            ),
            "and bits: the fingerprint of the whole array",
        ),
        (
            "values, with NaN made equal",
            _evidence(
                "    runs = [multiply(a, b, parts) for _ in range(20)]\n"
                "    bits, one = {fingerprint(run) for run in runs}, multiply(a, b, 1)\n"
                '    return {"answers": len(bits), "differs": not np.array_equal(runs[0], one, equal_nan=True)}'
            ),
            "−0.0 and +0.0",
        ),
        (
            "the parts from the last to the first",
            _split(_PARTS + "    return np.add.accumulate(parts[::-1])[-1]"),
            "from the last to the first",
        ),
        (
            "the parts added in float64",
            _split(_PARTS + "    return sum(part.astype(np.float64) for part in parts).astype(np.float32)"),
            "Keep every addition in float32",
        ),
        (
            "float64 returned",
            _split(_PARTS + "    return sum(part.astype(np.float64) for part in parts)"),
            "should be float32",
        ),
        (
            "a tree",
            _split(
                _PARTS + "    while len(parts) > 1:\n"
                "        parts = [sum(parts[i : i + 2]) for i in range(0, len(parts), 2)]\n"
                "    return parts[0]"
            ),
            "as a tree",
        ),
        (
            "the parts sorted",
            _split(_PARTS + "    return np.add.accumulate(sorted(parts, key=lambda p: p[0, 0]))[-1]"),
            "sorted by their value",
        ),
        (
            "a remainder lost",
            _split(
                "    size = a.shape[1] // parts\n"
                "    return sum(a[:, p * size : p * size + size] @ b[p * size : p * size + size] for p in range(parts))"
            ),
            "Is every column of a in one part",
        ),
        (
            "b is not cut",
            _split("    return sum(x @ b for x in np.array_split(a, parts, axis=1))"),
            "ValueError",
        ),
        (
            "a tolerance",
            _evidence(
                "    runs = [multiply(a, b, parts) for _ in range(20)]\n"
                "    same = len({fingerprint(run) for run in runs})\n"
                '    return {"answers": same, "differs": not np.allclose(runs[0], multiply(a, b, 1), equal_nan=True)}'
            ),
            "a tolerance hides",
        ),
        (
            "== on arrays",
            _evidence(
                "    runs = [multiply(a, b, parts) for _ in range(20)]\n"
                "    same = len({fingerprint(run) for run in runs})\n"
                '    return {"answers": same, "differs": bool((runs[0] != multiply(a, b, 1)).any())}'
            ),
            "A NaN is not equal to itself",
        ),
        (
            "an answer typed in",
            _evidence(
                "    run = [multiply(a, b, parts) for _ in range(20)][0]\n"
                '    return {"answers": 1, "differs": fingerprint(run) != fingerprint(multiply(a, b, 1))}'
            ),
            "two answers",
        ),
        (
            "two runs",
            _evidence(
                "    one = {fingerprint(multiply(a, b, parts)) for _ in range(2)}\n"
                '    return {"answers": len(one), "differs": fingerprint(multiply(a, b, 1)) not in one}'
            ),
            "the task asks for twenty runs",
        ),
        (
            "a fixed answer",
            _evidence('    return {"answers": 1, "differs": True}'),
            "the task asks for twenty runs",
        ),
        (
            "compared with itself",
            _evidence(
                "    runs = {fingerprint(multiply(a, b, parts)) for _ in range(20)}\n"
                '    return {"answers": len(runs), "differs": len(runs) > 1}'
            ),
            "never multiplied unsplit",
        ),
    ],
    "04-diagnosis": [
        ("A: set before the import of torch, so it works", _diagnosis(A="works"), "PyTorch has looked"),
        ("A: never needed", _diagnosis(A="never needed"), "only the variable shrinks"),
        ("B: it works", _diagnosis(B="works"), "its value is :4096:8"),
        ("B: too late", _diagnosis(B="too late"), "set before any product"),
        ("C: it works", _diagnosis(C="works"), "raises no error about cuBLAS"),
        ("C: too late", _diagnosis(C="too late"), "in torch 2.13"),
        ("another word", _diagnosis(A="late"), "none of the diagnoses"),
        ("a word for all", 'answer = "too late"', "Give a dict"),
    ],
    "04-remedy": [
        ("two mistakes", _restores(seed=True, flag=True), "One more of the eight is wrong"),
        ("the flag", _restores(flag=True), "unheard by the flag"),
        ("seeds", _restores(seed=True), "No random number"),
        ("a workspace set once", _restores(once=True), "gone at the first change of stream"),
        ("one buffer for both", _restores(shared=True), "into the same buffer"),
        ("os.environ after the first product", _restores(environ=True), "too late for this process"),
        ("only the variable counts", _restores(handles=False, each_time=False), "one of the four remedies"),
        ("a word", _restores(seed="no"), "neither True nor False"),
        ("one name", 'answer = "handles"', "Give a dict"),
    ],
}

RIGHT = {
    "04-bytes": _PAIRS.format(total=_TOTAL, large="(9, 10, 12)"),
    "04-split-k": _START + _SPLIT + _EVIDENCE,
    "04-diagnosis": _diagnosis(),
    "04-remedy": [
        _restores(),
        f"import numpy as np\nanswer = {{name: np.bool_(right) for name, right in {_RESTORES!r}.items()}}",
    ],
}
