"""The exercises of chapter 09: compare two traces, a hash that doesn't lie, three diagnoses, two repairs.

Learners' code that needs PyTorch, or another process, runs in a worker (samebits.experiments.learner_code).
"""

from __future__ import annotations

import copy
import numbers
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from samebits import cases, trace
from samebits.experiment import nearest
from samebits.experiments import learner_code
from samebits.lab.check import AnswerFailed, Exercise, NotAttempted, call, judged_in_worker, source_of

Verdicts = Iterator[tuple[float, str]]

FRESH = True  # a new worker for each attempt: what a learner's code leaves behind must not judge the next one
SECONDS = 60  # after which a learner's code is stopped; a busy machine needs ten to import PyTorch


# --- 09-first -------------------------------------------------------------------------------------------

Record = dict[str, Any]


def run_of(length: int = 8, seed: int = 0) -> list[Record]:
    """A made-up run: records as the lab shows them, with short texts for fingerprints."""
    rng = np.random.default_rng(seed)
    names = ("mul", "add", "mm", "dropout", "sum")

    def bits() -> str:
        return f"{rng.integers(16**6):06x}"

    records = []
    for _ in range(length):
        name = names[rng.integers(len(names))]
        records.append(
            {
                "op": name,
                "inputs": [bits() for _ in range(2 if name in ("add", "mm") else 1)],
                "generator": bits() if name == "dropout" else "",
                "results": [bits()],
            }
        )
    return records


def _changed(records: Sequence[Record], place: int, **parts: Any) -> list[Record]:
    """A copy with other parts of one record."""
    other = copy.deepcopy(list(records))
    other[place] |= parts
    return other


def right_first(a: Sequence[Record], b: Sequence[Record]) -> tuple[int, str] | None:
    """What first_divergence should return."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        for part, kind in (
            ("op", "flow"),
            ("inputs", "input"),
            ("generator", "random"),
            ("results", "result"),
        ):
            if x[part] != y[part]:
                return place, kind
    return None if len(a) == len(b) else (min(len(a), len(b)), "flow")


def _first_trials() -> Iterator[tuple[float, str, list[tuple[list, list, str]]]]:
    """(points, what is right, [(one run, another, what to say where the answer is wrong)])."""
    run = run_of()
    drawing = next(place for place, record in enumerate(run) if record["generator"])
    spread = _changed(_changed(run, 3, results=["f00d00"]), 5, inputs=["f00d00"], results=["beef00"])
    yield (
        1,
        "Runs that agree, and an op that gives another result from the same inputs: right.",
        [
            (run, copy.deepcopy(run), "Two equal runs should give None."),
            ([], [], "Two empty runs should give None."),
            (run, spread, "Op 3 has the same inputs and another result; what differs later follows from it."),
        ],
    )
    came_in = _changed(run, 2, inputs=["c0ffee"], results=["f00d00"])
    lost = _changed(run, 2, inputs=["c0ffee"])
    two = next(place for place, record in enumerate(run) if len(record["inputs"]) > 1)
    yield (
        1,
        "Inputs before results, and the state of the generator: right.",
        [
            (
                run,
                came_in,
                "Op 2 has other inputs already, so its result is no wonder: compare inputs before results.",
            ),
            (
                run,
                lost,
                "The inputs of op 2 differ, and its result agrees: a comparison of results alone misses it.",
            ),
            (
                run,
                _changed(run, drawing, generator="c0ffee", results=["f00d00"]),
                f"At op {drawing} the generator stood elsewhere before the op drew: that is 'random', and no race.",
            ),
            (
                run,
                _changed(run, 4, inputs=[*run[4]["inputs"], "c0ffee"]),
                "Op 4 has an input more in the second run: other inputs.",
            ),
            (
                run,
                _changed(run, two, inputs=run[two]["inputs"][::-1]),
                f"Op {two} has its two inputs in the other order: other inputs. A set has no order.",
            ),
        ],
    )
    swapped = copy.deepcopy(run)
    unlike = next(place for place in range(1, 7) if run[place]["op"] != run[place + 1]["op"])
    swapped[unlike], swapped[unlike + 1] = swapped[unlike + 1], swapped[unlike]
    yield (
        1,
        "Other ops, another order, and a run that ends sooner: right.",
        [
            (
                run,
                _changed(run, 6, op="relu"),
                "Op 6 is another op: the runs took different ways, 'flow'.",
            ),
            (
                run,
                swapped,
                f"Ops {unlike} and {unlike + 1} changed places. The order in which ops ran is what you compare: don't "
                "sort.",
            ),
            (
                run,
                run[:-2],
                "The second run ends sooner: it parts at the first op that it doesn't have, and that is 'flow'.",
            ),
            (run[:-1], run, "The first run ends sooner: 'flow', too."),
            ([], run, "A run without ops parts from the other at op 0."),
        ],
    )


def judge_first(first_divergence: Callable) -> Verdicts:
    """first_divergence(a, b) → (index, kind) or None: a point for each of three groups, one for many pairs."""
    for points, right, trials in _first_trials():
        for a, b, hint in trials:
            if wrong := _wrong_first(first_divergence, a, b):
                yield 0, f"{hint} {wrong}"
                return
        yield points, right
    rng = np.random.default_rng(9)
    for seed in range(200):
        a = run_of(int(rng.integers(1, 30)), seed)
        b = copy.deepcopy(a)
        for _ in range(int(rng.integers(0, 4))):
            part = ("op", "inputs", "generator", "results")[rng.integers(4)]
            new = f"{rng.integers(16**6):06x}"
            b[rng.integers(len(b))][part] = [new] if part in ("inputs", "results") else new
        b = b[: len(b) - int(rng.integers(0, 2))]
        if wrong := _wrong_first(first_divergence, a, b):
            yield 0, f"Of 200 pairs of runs, number {seed} is told wrongly. {wrong}"
            return
    yield 1, "Two hundred pairs of runs: right."


def _wrong_first(function: Callable, a: list, b: list) -> str:
    wanted = right_first(a, b)
    given = call(function, copy.deepcopy(a), copy.deepcopy(b))
    if isinstance(given, list):
        given = tuple(given)
    if given == wanted and not isinstance(given, bool):
        return ""
    return f"Yours gives {given!r}, where {wanted!r} is right."


# --- 09-digest ------------------------------------------------------------------------------------------


def _digest_pairs() -> Iterator[tuple[str, np.ndarray, np.ndarray, str]]:
    """(what changed, an array, the changed one, what to say where both have one digest)."""
    x = learner_code.image()
    one, two, rows, ulps = (x.copy() for _ in range(4))
    one[2, 3] *= -1
    two[2, 3] *= -1
    two[5, 1] *= -1
    rows[[1, 6]] = rows[[6, 1]]
    flat = ulps.view(np.int32).reshape(-1)
    flat[10] += 1
    flat[11] -= 1
    last = x.copy()
    last.view(np.int32)[7, 7] ^= 1
    yield "a flipped sign", x, one, "A norm, or anything with abs or squares in it, forgets signs."
    yield "two flipped signs", x, two, "Two changes must not cancel: adding, XORing and odd weights let them."
    yield "two rows swapped", x, rows, "A sum or an XOR has no order: where a number stands must count."
    yield "one ULP up here, one down there", x, ulps, "Look at all bits, and don't add them up."
    yield "the last bit of the last number", x, last, "Don't round first, and don't leave any number out."
    large = np.random.default_rng(6).random((64, 64), dtype=np.float32)
    middle = large.copy()
    middle[32, 32] *= -1
    yield (
        "a flipped sign in the middle of 4,096 numbers",
        large,
        middle,
        "Don't leave any number out: the text of a large array has dots in the place of most of it.",
    )
    small = np.array([1.0, 0.002], np.float32)
    yield (
        "the last bit of a small number beside a large one",
        small,
        np.array([1.0, np.nextafter(small[1], np.float32(1))], np.float32),
        "Don't go by what is printed: it is rounded. Hash the bytes.",
    )
    nan = np.full(4, np.nan, np.float32)
    other_nan = nan.copy()
    other_nan.view(np.int32)[1] ^= 1
    yield "two kinds of nan", nan, other_nan, "They have different bits, and print alike: hash the bytes."
    yield (
        "0.0 and -0.0",
        np.zeros(4, np.float32),
        -np.zeros(4, np.float32),
        "They are equal, and have different bits: hash the bytes, not the values.",
    )


def judge_digest(digest: Callable) -> Verdicts:
    """digest(x) → int: a point for what it sees, one for shape and dtype, one for the same number everywhere."""
    x = learner_code.image()
    copies = [x.copy() for _ in range(3)]
    if len({_digest(digest, each) for each in copies}) > 1:
        yield 0, "Copies of one array have several digests: which copy it is must not count."
        return
    for change, x, other, hint in _digest_pairs():
        if _digest(digest, x) == _digest(digest, other):
            yield 0, f"One digest for two arrays: {change}. {hint}"
            return
    rng = np.random.default_rng(3)
    many = {_digest(digest, rng.random(6, dtype=np.float32)) for _ in range(3000)}
    if len(many) < 3000:
        yield 0, f"3,000 different arrays have {len(many):,} digests: use 64 bits or more of the hash."
        return
    yield 1, "Signs, order, single bits: it sees them all."
    x = learner_code.image()
    zeros = np.zeros(8, np.float32)
    for change, a, b in (
        ("another shape, the same bytes", x, x.reshape(4, 16)),
        ("a row and a column", x.reshape(1, 64), x.reshape(64, 1)),
        ("zeros of float32 and of int32", zeros, zeros.view(np.int32)),
        ("eight zeros of float32 and four of float64", zeros, zeros.view(np.float64)),
    ):
        if _digest(digest, a) == _digest(digest, b):
            yield (
                0,
                f"One digest for two arrays: {change}. Shape and dtype belong into it, besides the bytes.",
            )
            return
    yield 1, "Shape and dtype count."
    turned = np.asfortranarray(x)
    strided = np.repeat(x, 2, axis=1)[:, ::2]
    if len({_digest(digest, array) for array in (x, x.copy(), turned, strided)}) > 1:
        yield (
            0,
            "The same numbers in the same places have several digests: how they lie in memory "
            "must not count. x.tobytes() gives them in one order.",
        )
        return
    elsewhere = judged_in_worker(
        "samebits.experiments.learner_code:digested",
        {"source": source_of(digest), "name": digest.__name__},
        environment={"PYTHONHASHSEED": "8" if os.environ.get("PYTHONHASHSEED") == "7" else "7"},
        fresh=FRESH,
        seconds=SECONDS,
    )
    if isinstance(elsewhere, dict):
        yield 0, elsewhere["error"]
        return
    if elsewhere != str(_digest(digest, x)):
        yield (
            0,
            "In another process the same array has another digest, so no two runs could be compared. Python's hash() "
            "has another key in each process; hashlib has none.",
        )
        return
    yield 1, "The same number in another process, and however the array lies in memory."


def _digest(function: Callable, x: np.ndarray) -> int:
    before = x.tobytes()
    given = call(function, x)
    if x.tobytes() != before:
        raise AnswerFailed("digest changes the array that it is given.")
    if isinstance(given, np.integer):
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool):
        raise AnswerFailed(f"digest should return an int, not {type(given).__name__}.")
    return given


# --- 09-diagnose ----------------------------------------------------------------------------------------

# Case → lines of the program where the difference comes in, and what to say of the others.
GUILTY = {
    "shared_buffer": (
        {10, 15},
        "Line 16 is where it shows: noise is read there. Who wrote into its memory, and with which numbers?",
    ),
    "shuffle": ({13}, "Which line chooses the number that differs?"),
    "last_writer": ({12}, "Which line has the same inputs in both runs, and another result?"),
}
_KIND_HINTS = {
    "shared_buffer": "The tensor has an origin in the trace, the op that wrote it last, and both runs agreed there.",
    "shuffle": "Look at what both runs read: the same memory, from another place on.",
    "last_writer": "Everything that the op reads agrees, and it draws nothing.",
}


def judge_diagnose(diagnoses: Mapping[str, tuple[str, int]], hunts: Mapping[str, Any]) -> Verdicts:
    """{case: (kind, line)} beside the learner's own hunts: a point for each kind and one for each line."""
    if not isinstance(diagnoses, Mapping):
        raise AnswerFailed(
            f"Give the check a dict, case to (kind, line); this is a {type(diagnoses).__name__}."
        )
    if unknown := [name for name in diagnoses if name not in GUILTY]:
        raise AnswerFailed(f"There is no case {unknown[0]!r} here. {nearest(str(unknown[0]), list(GUILTY))}")
    for name in GUILTY:
        yield from _diagnosed(name, diagnoses.get(name), _kind_of(name, hunts))


def _kind_of(name: str, hunts: Any) -> str:
    """What the learner's own hunt found; what is known of the case if it found nothing."""
    found = hunts.get(name) if isinstance(hunts, Mapping) else None
    kind = getattr(getattr(found, "divergence", None), "kind", "none")
    return cases.find(name).kind if kind == "none" else kind


def _diagnosed(name: str, given: Any, kind: str) -> Verdicts:
    if given is None:
        yield 0, f"{name}: no diagnosis yet."
        return
    if not isinstance(given, tuple | list) or len(given) != 2:
        yield 0, f"{name}: write the kind and the line, such as ('random', 6)."
        return
    said, line = given
    if not isinstance(said, str) or said not in trace.KINDS:
        yield 0, f"{name}: {said!r} is no kind. {nearest(str(said), list(trace.KINDS))}"
        return
    if said != kind:
        yield 0, f"{name}: it is not {said!r}. {_KIND_HINTS[name]}"
        return
    lines, hint = GUILTY[name]
    if isinstance(line, bool) or not isinstance(line, numbers.Real):
        yield 1, f"{name}: {said!r} is right; write the line as one whole number, such as 6, not {line!r}."
        return
    if line not in lines:
        yield 1, f"{name}: {said!r} is right; line {line!r} is not the one to mend. {hint}"
        return
    yield 2, f"{name}: right. {cases.find(name).cause}"


# --- 09-mend --------------------------------------------------------------------------------------------


def judge_mend(sums: Callable, fitted: Callable) -> Verdicts:
    """The lab's two functions, mended: two points for each, beside the unmended ones in a worker."""
    answer = judged_in_worker(
        "samebits.experiments.learner_code:mending",
        {
            "source": f"{source_of(sums)}\n\n{source_of(fitted)}",
            "sums_name": sums.__name__,
            "fitted_name": fitted.__name__,
        },
        environment=learner_code.ENVIRONMENT,
        framework="torch",
        fresh=FRESH,
        seconds=SECONDS,
    )
    if not answer["attempted"]:
        raise NotAttempted
    yield from answer["verdicts"]


EXERCISES = (
    Exercise("09-first", "The first divergence", points=4, judge=judge_first),
    Exercise("09-digest", "A hash that doesn't lie", points=3, judge=judge_digest),
    Exercise("09-diagnose", "Three diagnoses", points=6, judge=judge_diagnose),
    Exercise("09-mend", "Two repairs", points=4, judge=judge_mend),
)
