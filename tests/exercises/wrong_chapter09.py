"""Answers that people typically give in chapter 09, and what the check must say to each; see test_wrong_answers.py.

Those that need PyTorch share one worker.
"""

_FIRST_RIGHT = """
def answer(a, b):
    for index, (x, y) in enumerate(zip(a, b)):
        for part, kind in (("op", "flow"), ("inputs", "input"), ("generator", "random"), ("results", "result")):
            if x[part] != y[part]:
                return index, kind
    return None if len(a) == len(b) else (min(len(a), len(b)), "flow")
"""
_IN_CHAIN = """
def answer(a, b):
    for index, (x, y) in enumerate(zip(a, b)):
        if x["op"] != y["op"]:
            return index, "flow"
        elif x["inputs"] != y["inputs"]:
            return index, "input"
        elif x["generator"] != y["generator"]:
            return index, "random"
        elif x["results"] != y["results"]:
            return index, "result"
    if len(a) != len(b):
        return [min(len(a), len(b)), "flow"]
"""


def _first(old: str, new: str) -> str:
    assert old in _FIRST_RIGHT
    return _FIRST_RIGHT.replace(old, new)


_INPUT, _RANDOM, _RESULT = '("inputs", "input"), ', '("generator", "random"), ', '("results", "result")'

_DIGEST_HEAD = "import hashlib\nimport numpy as np\n\ndef answer(x):\n    "
_DIGEST = "about = f'{x.dtype} {x.shape}'.encode()\n    "


def _sha(data: str, about: str = "x.tobytes()") -> str:
    return (
        f"{_DIGEST_HEAD}{_DIGEST}return int.from_bytes(hashlib.sha256({data} + {about}).digest()[:8], 'big')"
    )


# A right function beside which the other one is judged.
_SUMS = {
    "index_add": "return torch.zeros(places).index_add_(0, place, values)",
    "bincount": "return torch.bincount(place, values.double(), minlength=places).float()",
    "one thread": (
        "before = torch.get_num_threads()\n    torch.set_num_threads(1)\n    "
        "result = torch.zeros(places).index_put_((place,), values, accumulate=True)\n    "
        "torch.set_num_threads(before)\n    return result"
    ),
    "flag": (
        "torch.use_deterministic_algorithms(True)\n    "
        "return torch.zeros(places).index_put_((place,), values, accumulate=True)"
    ),
}
_RACING = "torch.zeros(places).index_put_((place,), values, accumulate=True)"
_FITTED = """torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    weights = torch.zeros(x.shape[1])
    for step in range(20):
        noise = rng.normal(0, 0.3, x.shape).astype(np.float32)
        noisy = x + torch.from_numpy(noise)
        weights = weights - 0.1 * noisy.T @ (noisy @ weights - y) / len(y)
    return weights"""


def _mend(sums: str = _SUMS["index_add"], fitted: str = _FITTED, old: str = "", new: str = "") -> str:
    assert old in fitted
    body = fitted.replace(old, new) if old else fitted
    head = "import numpy as np\nimport torch\n"
    return (
        f"{head}\ndef sums(values, place, places):\n    {sums}\n\n"
        f"def fitted(x, y, seed):\n    {body}\n\nanswers = sums, fitted"
    )


def _diagnose(shared="('unseen', 15)", shuffle="('python', 13)", last="('result', 12)") -> str:
    return f"answers = {{'shared_buffer': {shared}, 'shuffle': {shuffle}, 'last_writer': {last}}}, {{}}"


WRONG = {
    "09-first": [
        ("results only", _first(_INPUT + _RANDOM, ""), "compare inputs before results"),
        (
            "results before inputs",
            """
def answer(a, b):
    for index, (x, y) in enumerate(zip(a, b)):
        for part, kind in (("op", "flow"), ("results", "result"), ("inputs", "input"), ("generator", "random")):
            if x[part] != y[part]:
                return index, kind
    return None if len(a) == len(b) else (min(len(a), len(b)), "flow")
""",
            "compare inputs before results",
        ),
        (
            "inputs only where results differ",
            _first("if x[part]", 'if x["results"] != y["results"] and x[part]'),
            "a comparison of results alone misses it",
        ),
        ("the generator ignored", _first(_RANDOM, ""), "that is 'random', and no race"),
        (
            "ops that are missing at the end",
            _first('None if len(a) == len(b) else (min(len(a), len(b)), "flow")', "None"),
            "it parts at the first op that it doesn't have",
        ),
        (
            "names only",
            """
def answer(a, b):
    for index, (x, y) in enumerate(zip(a, b)):
        if x["op"] != y["op"]:
            return index, "flow"
    return None if len(a) == len(b) else (min(len(a), len(b)), "flow")
""",
            "Op 3 has the same inputs and another result",
        ),
        (
            "sorted by name",
            """
def answer(a, b):
    for index in range(min(len(a), len(b))):
        x, y = a[index], b[index]
        if sorted(r["op"] for r in a) != sorted(r["op"] for r in b) and x["op"] != y["op"]:
            return index, "flow"
        for part, kind in (("inputs", "input"), ("generator", "random"), ("results", "result")):
            if x[part] != y[part]:
                return index, kind
    return None if len(a) == len(b) else (min(len(a), len(b)), "flow")
""",
            "don't sort",
        ),
        (
            "the last difference",
            """
def answer(a, b):
    found = None if len(a) == len(b) else (min(len(a), len(b)), "flow")
    for index, (x, y) in enumerate(zip(a, b)):
        for part, kind in (("op", "flow"), ("inputs", "input"), ("generator", "random"), ("results", "result")):
            if x[part] != y[part]:
                found = index, kind
                break
    return found
""",
            "what differs later follows from it",
        ),
        (
            "inputs as a set",
            _first("if x[part] != y[part]", "if set(x[part]) != set(y[part])"),
            "the other order",
        ),
        ("the op itself", _first("return index, kind", "return x, kind"), "Yours gives"),
    ],
    "09-digest": [
        ("a sum", f"{_DIGEST_HEAD}return int(x.sum() * 2**40)", "two rows swapped"),
        ("a norm", f"{_DIGEST_HEAD}return int(np.abs(x.astype(float)).sum() * 2**40)", "a flipped sign"),
        (
            "XOR",
            f"{_DIGEST_HEAD}return int(np.bitwise_xor.reduce(x.view(np.uint32), axis=None))",
            "two flipped signs",
        ),
        (
            "odd weights",
            f"{_DIGEST_HEAD}bits = x.ravel().view(np.uint32)\n"
            "    return int((bits * (2 * np.arange(bits.size, dtype=np.uint32) + 1)).sum(dtype=np.uint32))",
            "two flipped signs",
        ),
        ("rounded first", _sha("np.round(x, 4).tobytes()", "about"), "Look at all bits"),
        ("what is printed", _sha("str(x).encode()", "about"), "has dots in the place of most of it"),
        (
            "what is printed, whole",
            _sha("np.array2string(x, threshold=10**9).encode()", "about"),
            "Don't go by what is printed",
        ),
        ("as a list", _sha("str(x.tolist()).encode()", "about"), "two kinds of nan"),
        ("the first thousand bytes", _sha("x.tobytes()[:1000]", "about"), "in the middle of 4,096"),
        (
            "values",
            f"{_DIGEST_HEAD}return hash(tuple(x.ravel().tolist()) + (x.shape, x.dtype.num))",
            "0.0 and -0.0",
        ),
        ("no shape", _sha("x.tobytes()", "str(x.dtype).encode()"), "Shape and dtype belong into it"),
        ("no dtype", _sha("x.tobytes()", "str(x.shape).encode()"), "zeros of float32 and of int32"),
        (
            "size, no shape",
            _sha("x.tobytes()", "f'{x.dtype} {x.size}'.encode()"),
            "another shape, the same bytes",
        ),
        (
            "Python's hash",
            f"{_DIGEST_HEAD}return hash((x.tobytes(), str(x.dtype), x.shape))",
            "In another process",
        ),
        (
            "as it lies in memory",
            _sha("x.tobytes('A')", "about + str(x.strides).encode()"),
            "how they lie in memory",
        ),
        ("id", f"{_DIGEST_HEAD}return id(x)", "which copy it is"),
        (
            "few bits",
            f"{_DIGEST_HEAD}{_DIGEST}return hashlib.sha256(x.tobytes() + about).digest()[0]",
            "digest",
        ),
        ("a text", f"{_DIGEST_HEAD}return hashlib.sha256(x.tobytes()).hexdigest()", "should return an int"),
    ],
    "09-diagnose": [
        ("input, as its line shows", _diagnose(shared="('input', 15)"), "the op that wrote it last"),
        ("where it shows", _diagnose(shared="('unseen', 16)"), "Who wrote into its memory"),
        ("random", _diagnose(shuffle="('random', 13)"), "from another place on"),
        ("the matrix product", _diagnose(shuffle="('python', 15)"), "Which line chooses the number"),
        ("a seed", _diagnose(last="('random', 12)"), "it draws nothing"),
        ("the seed's line", _diagnose(last="('result', 5)"), "another result"),
        ("one is missing", "answers = {'shared_buffer': ('unseen', 15)}, {}", "no diagnosis yet"),
        ("no such kind", _diagnose(last="('race', 12)"), "is no kind"),
        ("a kind alone", _diagnose(last="'result'"), "write the kind and the line"),
        ("the line as text", _diagnose(last="('result', '12')"), "write the line as one whole number"),
        ("several lines", _diagnose(last="('result', [12, 13])"), "write the line as one whole number"),
        ("several kinds", _diagnose(last="(['result', 'memory'], 12)"), "is no kind"),
    ],
    "09-mend": [
        ("as it was", _mend(f"return {_RACING}"), "there is nothing to seed"),
        (
            "a seed where nothing is random",
            _mend(f"torch.manual_seed(0)\n    return {_RACING}"),
            "nothing to seed",
        ),
        (
            "sums rounded, repeatable",
            _mend("return torch.zeros(places).index_add_(0, place, values).round(decimals=3)"),
            "rounding the result hides differences",
        ),
        ("rounding a race", _mend(f"return {_RACING}.round()"), "sum"),
        ("constant", _mend("return torch.zeros(places)"), "sums"),
        (
            "means",
            _mend("return torch.zeros(places).index_reduce_(0, place, values, 'mean')"),
            "gives other sums now",
        ),
        (
            "float64",
            _mend("return torch.bincount(place, values.double(), minlength=places)"),
            "a float32 tensor",
        ),
        ("noise as it was", _mend(old="default_rng(seed)", new="default_rng()"), "who seeds it"),
        (
            "manual_seed in the loop",
            _mend(old="default_rng(seed)", new="default_rng()").replace(
                "        noise = rng", "        torch.manual_seed(seed)\n        noise = rng"
            ),
            "who seeds it",
        ),
        (
            "np.random.seed",
            _mend(
                old="rng = np.random.default_rng(seed)",
                new="np.random.seed(seed)\n    rng = np.random.default_rng()",
            ),
            "don't reach one made by default_rng",
        ),
        (
            "a fixed seed",
            _mend(old="default_rng(seed)", new="default_rng(0)"),
            "does the seed that is given count",
        ),
        (
            "a generator in the loop",
            _mend(old="        noise = rng.normal", new="        noise = np.random.default_rng(seed).normal"),
            "gives each step the same",
        ),
        (
            "no noise",
            _mend(old="noisy = x + torch.from_numpy(noise)", new="noisy = x"),
            "is there still noise in it",
        ),
        ("less noise", _mend(old="rng.normal(0, 0.3", new="rng.normal(0, 0.03"), "fits something else now"),
    ],
}

RIGHT = {
    "09-first": [_FIRST_RIGHT, _IN_CHAIN],
    "09-digest": [
        _sha("x.tobytes()", "about"),
        f"{_DIGEST_HEAD}return int(hashlib.blake2b(repr((x.dtype, x.shape)).encode() + x.tobytes()).hexdigest(), 16)",
    ],
    "09-diagnose": [_diagnose(), _diagnose(shared="('unseen', 10)")],
    "09-mend": [
        *(_mend(sums) for sums in _SUMS.values()),
        _mend(
            old="noise = rng.normal(0, 0.3, x.shape).astype(np.float32)",
            new="noise = 0.3 * torch.randn(x.shape).numpy()",
        ),
        _mend(old="rng = np.random.default_rng(seed)", new="np.random.seed(seed)\n    rng = np.random"),
    ],
}
