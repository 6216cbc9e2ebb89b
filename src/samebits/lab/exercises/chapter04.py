"""The exercises of chapter 04: a configuration in bytes, split-K, three diagnoses, and what restores a promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiments.gemm_workspace import workspace_bytes
from samebits.lab.check import AnswerFailed, Exercise, call, short

Verdicts = Iterator[tuple[float, str]]

# --- 04-bytes: a configuration in bytes -----------------------------------------------------------------

AMPERE, HOPPER, BLACKWELL, ADA = (8, 0), (9, 0), (12, 0), (8, 9)
WELL_FORMED = ((":4096:8", AMPERE), (":16:8", HOPPER), (":4096:2:16:8", AMPERE), (":1:1:2:2:3:3", ADA))
DEFAULTS = tuple(
    (None, card) for card in (AMPERE, HOPPER, BLACKWELL, (10, 0), (10, 3), (12, 1), (11, 0), (7, 5), ADA)
)
MALFORMED = (
    ("4096:8", AMPERE),
    ("", HOPPER),
    (":4096", AMPERE),
    (":big:8", HOPPER),
    (":-16:8", AMPERE),
    (":16:big:8", AMPERE),
)
# What PyTorch's rule finds where a person may see an error.
PARTLY = ((":16:8:4096", AMPERE), (" :16:8 ", AMPERE), ("limit:16:8", HOPPER), (":16:8:big:4:2", HOPPER))


def judge_bytes(bytes_of: Callable) -> Verdicts:
    """bytes_of(config, capability) → bytes: a point for pairs, one for defaults, one for malformed text."""
    for points, cases, right in (
        (1, WELL_FORMED, "Pairs: right, and in KiB."),
        (1, DEFAULTS, "Defaults: right, for cards of six generations."),
        (1, MALFORMED + PARTLY, "Malformed and half-formed text: right."),
    ):
        for config, capability in cases:
            if wrong := _wrong_bytes(bytes_of, config, capability):
                yield 0, wrong
                return
        yield points, right


def _wrong_bytes(bytes_of: Callable, config: str | None, capability: tuple[int, int]) -> str:
    right = workspace_bytes(config, capability)
    try:
        given = call(bytes_of, config, capability)
    except AnswerFailed as failure:
        if config is None or (config, capability) in MALFORMED:
            raise AnswerFailed(f"{failure} PyTorch doesn't stop there: it takes the default.") from failure
        raise
    if isinstance(given, int | float | np.number) and given == right:
        return ""
    told = f"bytes_of({config!r}, {capability}) gives {short(given)}, and should give {right:,}."
    return f"{told} {_bytes_mistake(config, capability, given, right)}".strip()


def _bytes_mistake(config: str | None, capability: tuple[int, int], given: Any, right: int) -> str:
    if not isinstance(given, int | float | np.number):
        return "Return a number of bytes."
    if config is None:
        if capability[0] in (9, 10, 12):
            return "Cards of capability 9, 10 and 12 have 32 MiB by default."
        return "On cards that are not of capability 9, 10 or 12 the default is what :4096:2:16:8 says."
    if (config, capability) in MALFORMED:
        return "There is no :SIZE:COUNT in this text, so it means the default."
    if (config, capability) in PARTLY:
        return "The rule looks for :SIZE:COUNT anywhere in the text, and adds up what it finds."
    if given * 1024 == right:
        return "SIZE is in KiB: 1024 bytes."
    if given * 1.024 == right:
        return "A KiB has 1024 bytes, not 1000."
    if given == sum(int(size) for size in config.split(":")[1::2]) * 1024:
        return "COUNT is missing: there are COUNT buffers of SIZE KiB."
    first = config.split(":")[1:3]
    if given == int(first[0]) * int(first[1]) * 1024:
        return "There may be several pairs; their bytes add up."
    return "It is the sum of SIZE · COUNT KiB over all pairs."


# --- 04-split-k: a fixed order --------------------------------------------------------------------------

PARTS = 4


def judge_split_k(split_k: Callable, evidence: Callable) -> Verdicts:
    """Two points for split_k(a, b, parts), two for evidence(a, b, parts) about it."""
    for a, b, parts, words in _products():
        if wrong := _wrong_product(split_k, a, b, parts, words):
            yield 0, wrong
            return
    yield 2, "split_k: right. The parts are added one by one, in their order, in float32."
    for planted in _planted():
        if wrong := _wrong_evidence(evidence, planted):
            yield 0, wrong
            return
    yield (
        2,
        "evidence: right. It compares bits, counts the answers of a product that varies, and tells a product that "
        "the split changes from one that it does not.",
    )


def _products() -> Iterator[tuple[np.ndarray, np.ndarray, int, str]]:
    """Products of which each part is exact in float32, so that only the order of the parts can round."""
    rng = np.random.default_rng(44)
    whole = [rng.integers(-9, 10, shape).astype(np.float32) for shape in ((3, 24), (24, 5))]
    yield *whole, 4, "whole numbers"
    yield *whole, 1, "whole numbers and one part"
    ragged = [rng.integers(-9, 10, shape).astype(np.float32) for shape in ((2, 10), (10, 3))]
    yield *ragged, 4, "a K of 10 in 4 parts"
    # In order 3, backwards 7, as a tree 4, sorted 8 or 0, and exactly 6.
    yield *_ordered((3.0, 2.0**26, -(2.0**26), 3.0)), PARTS, "four parts that are 3, 2^26, −2^26 and 3"
    yield *_ordered((2.0**24, 1.0, 1.0, 1.0)), PARTS, "four parts that are 2^24, 1, 1 and 1"


def _ordered(values: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(1, 8) and (8, 1): the partial product of part p of four is values[p], exactly."""
    a = np.zeros((1, 2 * len(values)), np.float32)
    a[0, ::2] = values
    return a, np.ones((2 * len(values), 1), np.float32)


def _partials(a: np.ndarray, b: np.ndarray, parts: int) -> list[np.ndarray]:
    """Exact for the products above, so that it does not matter how NumPy multiplies."""
    pieces = zip(np.array_split(a, parts, axis=1), np.array_split(b, parts), strict=True)
    return [(x.astype(np.float64) @ y.astype(np.float64)).astype(np.float32) for x, y in pieces]


def _in_order(partials: list[np.ndarray]) -> np.ndarray:
    return np.add.accumulate(partials)[-1]


def _wrong_product(split_k: Callable, a: np.ndarray, b: np.ndarray, parts: int, words: str) -> str:
    given = call(split_k, a.copy(), b.copy(), parts)
    partials = _partials(a, b, parts)
    right = _in_order(partials)
    if not isinstance(given, np.ndarray) or given.shape != right.shape or given.dtype != np.float32:
        found = f"{given.dtype}{list(given.shape)}" if isinstance(given, np.ndarray) else type(given).__name__
        return f"With {words}, the product should be float32{list(right.shape)}, not {found}."
    # + 0 makes +0 of −0: which of them comes out depends on how one starts, not on the order.
    if (given + np.float32(0)).tobytes() == (right + np.float32(0)).tobytes():
        return ""
    told = f"With {words}, element [0, 0] is {float(given[0, 0]):.9g} and should be {float(right[0, 0]):.9g}."
    return f"{told} {_order_mistake(split_k, given, a, b, partials)}"


def _order_mistake(split_k: Callable, given: np.ndarray, a: np.ndarray, b: np.ndarray, partials: list) -> str:
    if not np.allclose(given, sum(partials), atol=8):  # how far wrong, not whether the same
        return "Is every column of a in one part, and multiplied by the row of b that belongs to it?"
    probes = [(x, y, call(split_k, x.copy(), y.copy(), PARTS)) for x, y in _probes()]
    for way, advice in _OTHER_ORDERS.items():
        # On one product two orders may agree by chance, on all of these they don't.
        if all(np.array_equal(given, way(x, y, _partials(x, y, PARTS))) for x, y, given in probes):
            return advice
    return "Add the parts one by one: the first, plus the second, plus the third …"


def _probes() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(45)
    for _ in range(12):
        yield _ordered(tuple(rng.standard_normal(PARTS) * 2.0 ** rng.integers(0, 3, PARTS)))


def _pairwise(partials: list[np.ndarray]) -> np.ndarray:
    """As a tree of neighbours; an odd one waits."""
    while len(partials) > 1:
        pairs = [x + y for x, y in zip(partials[::2], partials[1::2], strict=False)]
        partials = pairs + partials[len(pairs) * 2 :]
    return partials[0]


def _every_fourth(a: np.ndarray, b: np.ndarray, partials: list[np.ndarray]) -> np.ndarray:
    pieces = (
        (a[:, part::PARTS].astype(np.float64), b[part::PARTS].astype(np.float64)) for part in range(PARTS)
    )
    return _in_order([(x @ y).astype(np.float32) for x, y in pieces])


def _sorted(partials: list[np.ndarray], reverse: bool) -> list[np.ndarray]:
    return sorted(partials, key=lambda part: part[0, 0], reverse=reverse)


_BY_VALUE = "The parts were sorted by their value first. Add them in the order of K."
_OTHER_ORDERS: Mapping[Callable[[np.ndarray, np.ndarray, list[np.ndarray]], np.ndarray], str] = {
    lambda a, b, partials: _exact(a, b): (
        "That is the exact sum, rounded once: K was not cut, or the parts were added in float64. Keep every addition "
        "in float32."
    ),
    lambda a, b, partials: _in_order(partials[::-1]): (
        "The parts were added from the last to the first. The order is fixed, but it is another one."
    ),
    lambda a, b, partials: _pairwise(partials): (
        "The parts were added as a tree. That order is fixed, too, but it is another one: go from part to part."
    ),
    _every_fourth: (
        "Each part holds every fourth column of a. Cut K into stretches, of columns that stand side by side."
    ),
    lambda a, b, partials: _in_order(_sorted(partials, reverse=False)): _BY_VALUE,
    lambda a, b, partials: _in_order(_sorted(partials, reverse=True)): _BY_VALUE,
}


@dataclass(frozen=True)
class _Planted:
    """What a product of the judge's own gives, whose bits no BLAS decides.

    split    results of a multiply in parts, turn by turn
    unsplit  result of a multiply in one part
    """

    words: str
    split: tuple[np.ndarray, ...]
    unsplit: np.ndarray
    hint: str = ""


def _planted() -> Iterator[_Planted]:
    close = "They are close, and a tolerance hides that: compare fingerprints."
    yield _Planted("parts of 2^24, 1, 1 and 1", (_column(2.0**24),), _column(2.0**24 + 4), close)
    yield _Planted("parts of 1, 2, 3 and 4, which add exactly", (_column(10),), _column(10))
    yield _Planted(
        "a part that is NaN",
        (_column(np.nan),),
        _column(np.nan),
        "A NaN is not equal to itself, and its bits are: compare fingerprints.",
    )
    # Their sums agree, and so do the texts that NumPy makes of them.
    value, next_to_it = np.float32(0.01), np.nextafter(np.float32(0.01), np.float32(1))
    yield _Planted(
        "rows of which only the middle ones differ, by one ULP",
        (_column(10, value, -value, 10),),
        _column(10, next_to_it, -next_to_it, 10),
        "Compare all of it, and bits: the fingerprint of the whole array.",
    )
    yield _Planted(
        "parts that add to −0.0, and +0.0 unsplit",
        (_column(-0.0),),
        _column(0.0),
        "`==` and tolerances call −0.0 and +0.0 equal, and their bits differ: compare fingerprints.",
    )
    yield _Planted("a multiply that adds backwards in every other run", (_column(7), _column(3)), _column(6))


def _column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def _wrong_evidence(evidence: Callable, planted: _Planted) -> str:
    rows = len(planted.unsplit)
    a, b = np.ones((rows, 2 * PARTS), np.float32), np.ones((2 * PARTS, 1), np.float32)
    calls: list[int] = []

    def multiply(a: np.ndarray, b: np.ndarray, parts: int) -> np.ndarray:
        calls.append(parts)
        if parts == 1:
            return planted.unsplit.copy()
        return planted.split[(calls.count(parts) - 1) % len(planted.split)].copy()

    given = call(evidence, multiply, a, b, PARTS)
    if not isinstance(given, dict) or set(given) != {"answers", "differs"}:
        return "evidence should return a dict with the keys answers and differs, and no others."
    if calls.count(PARTS) < 20:
        return (
            f"evidence multiplied {calls.count(PARTS)} times in {PARTS} parts; the task asks for twenty runs."
        )
    if 1 not in calls:
        return "evidence never multiplied unsplit. One part is the whole: multiply(a, b, 1)."
    answers = len({fingerprint(result) for result in planted.split})
    differs = fingerprint(planted.unsplit) not in {fingerprint(result) for result in planted.split}
    if given["answers"] != answers:
        runs = "the runs have two answers" if answers == 2 else "all runs have the same bits"
        hint = planted.hint if np.isnan(planted.unsplit).any() else ""
        if answers == 2:
            hint = "Count what the runs gave: the length of the set of their fingerprints."
        return f"With {planted.words}, {runs}, and answers is {short(given['answers'])}. {hint}".rstrip()
    if bool(given["differs"]) != differs:
        state = "have other bits" if differs else "have the same bits"
        told = f"With {planted.words}, split and unsplit {state}, and differs is {short(given['differs'])}."
        return f"{told} {planted.hint}".rstrip()
    return ""


def _exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


# --- 04-diagnosis: three programs -----------------------------------------------------------------------

LATE, OVERWRITTEN, NEEDLESS, WORKS = "too late", "overwritten", "never needed", "works"
DIAGNOSES = (LATE, OVERWRITTEN, NEEDLESS, WORKS)

# The programs as the lab shows them; tests run them against a stand-in for torch that notes what it reads.
PROGRAMS = {
    "A": """\
import os
import models                      # models.py ends with: warm_up = torch.ones(8, 8, device="cuda") @ weight
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"

import torch
product = models.run(torch)        # the author wants a small workspace, to save memory
""",
    "B": """\
import os
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
import settings                    # settings.py: os.environ.update(CUBLAS_WORKSPACE_CONFIG=":4096:8")

import torch
x = torch.ones(8, 8, device="cuda")
product = x @ x                    # the author wants a small workspace, to save memory
""",
    "C": """\
import os
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch                       # 2.13; one stream, no RNN
torch.use_deterministic_algorithms(True)
x = torch.ones(8, 8, device="cuda")
product = x @ x                    # the author wants the flag to raise no error here
""",
}
RIGHT_DIAGNOSES = {"A": LATE, "B": OVERWRITTEN, "C": NEEDLESS}

_WHY = {
    (
        "A",
        OVERWRITTEN,
    ): "Nobody sets it a second time. Ask which line multiplies first, and what the variable is then.",
    (
        "A",
        NEEDLESS,
    ): "It was needed: only the variable shrinks the workspace here. Ask when the first product runs.",
    ("A", WORKS): (
        "It stands before `import torch`, and still after the first product: importing models multiplies once, and "
        "PyTorch has looked."
    ),
    (
        "B",
        LATE,
    ): "It is set before any product. Follow its value line by line: what is it at the first product?",
    (
        "B",
        NEEDLESS,
    ): "It was needed: only the variable shrinks the workspace here. Follow its value line by line.",
    (
        "B",
        WORKS,
    ): "It is set in time, and then set again: at the first product its value is :4096:8, not :16:8.",
    (
        "C",
        LATE,
    ): "It is set before the first product, and in time. Ask what would happen without it, in torch 2.13.",
    ("C", OVERWRITTEN): "Nobody sets it a second time. Ask what would happen without it, in torch 2.13.",
    ("C", WORKS): (
        "It acts, but not on what its author wants: from PyTorch 2.10 on the flag raises no error about cuBLAS, with "
        "or without the variable."
    ),
}


def judge_diagnosis(diagnosis: Any) -> Verdicts:
    """A point for each program."""
    if not isinstance(diagnosis, Mapping) or set(diagnosis) != set(PROGRAMS):
        yield 0, f"Give a dict with the keys {', '.join(PROGRAMS)}, one for each program."
        return
    for program, given in diagnosis.items():
        if given not in DIAGNOSES:
            yield 0, f"{program}: {short(given)} is none of the diagnoses: {', '.join(DIAGNOSES)}."
        elif given == RIGHT_DIAGNOSES[program]:
            yield 1, f"{program}: {given}. {_BECAUSE[program]}"
        else:
            yield 0, f"{program}: not {given!r}. {_WHY[program, given]}"


_BECAUSE = {
    "A": "The import of models multiplied before the line was reached. Set it where the process is started.",
    "B": "The last writer before the first product wins; search the imports for it.",
    "C": "The line does no harm, and nothing depends on it.",
}


# --- 04-remedy: two streams and one handle --------------------------------------------------------------

# Change to the program → does the documented promise hold then, and why.
REMEDIES: Mapping[str, tuple[bool, str]] = {
    "seed": (False, "No random number is drawn in a product, so a seed has nothing to fix."),
    "flag": (
        False,
        "PyTorch's flag knows PyTorch's operations. This library calls cuBLAS by itself, unheard by the flag.",
    ),
    "handles": (
        True,
        "One handle for each stream is one of the four remedies: each handle has its own workspace.",
    ),
    "once": (
        False,
        "cublasSetStream puts the handle back to its default workspace, so what was set once is gone at the first "
        "change of stream.",
    ),
    "each time": (
        True,
        "A workspace of its own for each stream, set after each cublasSetStream, is the first of the four remedies.",
    ),
    "shared": (
        False,
        "Two streams then write their partial products into the same buffer at the same time. Each needs its own.",
    ),
    "launcher": (
        True,
        "In the environment of the process it is there before cuBLAS can look; :4096:8 is one of the two values "
        "that the documentation names.",
    ),
    "environ": (
        False,
        "The handle exists and has multiplied, so it is too late for this process: the documentation nowhere says "
        "that cuBLAS looks again.",
    ),
}


def judge_remedy(restores: Any) -> Verdicts:
    """Three points for all eight, two for one mistake, one for two."""
    if not isinstance(restores, Mapping) or set(restores) != set(REMEDIES):
        yield 0, f"Give a dict with the keys {', '.join(REMEDIES)}, each True or False."
        return
    if unclear := [name for name, given in restores.items() if not isinstance(given, bool | np.bool_)]:
        yield 0, f"{unclear[0]!r} is neither True nor False."
        return
    wrong = [name for name, (right, _) in REMEDIES.items() if restores[name] != right]
    if not wrong:
        yield (
            3,
            "All eight are right: three restore the promise. (From cuBLAS's documentation; not verified here.)",
        )
        return
    name = wrong[0]
    more = len(wrong) - 1
    left = (
        f" {more} more of the eight are wrong."
        if more > 1
        else " One more of the eight is wrong."
        if more
        else ""
    )
    yield max(0, 3 - len(wrong)), f"{name!r} is not {restores[name]}. {REMEDIES[name][1]}{left}"


EXERCISES = (
    Exercise("04-bytes", "A configuration in bytes", 3, judge_bytes),
    Exercise("04-split-k", "Split-K in a fixed order", 4, judge_split_k),
    Exercise("04-diagnosis", "Three programs", 3, judge_diagnosis),
    Exercise("04-remedy", "Two streams and one handle", 3, judge_remedy),
)
