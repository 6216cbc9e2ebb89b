"""The exercises of chapter 05: seed everything, repair a script, augment by image, resume, report.

Learners' code that needs PyTorch runs in a worker (samebits.experiments.learner_code).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from samebits.bits import fingerprint
from samebits.experiments import learner_code
from samebits.lab.check import AnswerFailed, Exercise, NotAttempted, call, judged_in_worker, source_of

Verdicts = Iterator[tuple[float, str]]

FRESH = True  # a new worker for each attempt: what a learner's code leaves behind must not judge the next one
SECONDS = 45  # after which a learner's code is stopped; a busy machine needs ten to import PyTorch


def _in_worker(judge: str, **arguments: Any) -> Any:
    """The answer of learner_code's function `judge`. Raises AnswerFailed with one sentence."""
    return judged_in_worker(
        f"samebits.experiments.learner_code:{judge}",
        arguments,
        environment=learner_code.ENVIRONMENT,
        framework="torch",
        fresh=FRESH,
        seconds=SECONDS,
    )


def _verdicts(answer: dict[str, Any]) -> Verdicts:
    if not answer["attempted"]:
        raise NotAttempted
    yield from answer["verdicts"]


# --- 05-seed --------------------------------------------------------------------------------------------


def judge_seed(seed_everything: Callable) -> Verdicts:
    """seed_everything(seed) → a torch.Generator: a point for the three libraries, one for the generator, one for a
    loader that uses it."""
    answer = _in_worker("seeding", source=source_of(seed_everything), name=seed_everything.__name__)
    yield from _verdicts(answer)


# --- 05-repair ------------------------------------------------------------------------------------------

# As the lab shows it; a test compares.
SCRIPT = """\
import hashlib, numpy as np, torch
words = "the quick brown fox jumps over the lazy dog".split() * 1000
vocabulary = list(set(words))
index = torch.tensor([vocabulary.index(word) for word in words])
table, average = torch.randn(8, 8, requires_grad=True), torch.empty(8)
torch.manual_seed(0)
target = torch.from_numpy(np.random.standard_normal((9000, 8)).astype("float32"))
for step in range(20):
    loss = (table[index] - target).square().sum() / 9000
    table.data -= torch.autograd.grad(loss, table)[0]
    average.lerp_(table.detach().mean(0), 0.1)
print(hashlib.sha256(torch.cat([table.flatten(), average]).detach().numpy().tobytes()).hexdigest())
"""
PROCESSES = 3

# What the outcome may depend on → (what is repaired, what to say while it isn't).
FAULTS = {
    "numpy": (
        "NumPy's numbers repeat",
        "the targets come from NumPy's global generator, and nobody seeds it. torch.manual_seed doesn't reach it.",
    ),
    "torch": (
        "the first weights repeat",
        "the first weights of the table are drawn before the seed is set, so they are others in each process.",
    ),
    "set": (
        "the vocabulary has one order",
        "the order of the vocabulary is that of a set of texts, which each process hashes in its own way. Setting "
        "PYTHONHASHSEED in the script is too late.",
    ),
    "empty": (
        "no memory is read that nobody wrote",
        "`average` starts as torch.empty: whatever lay in that memory.",
    ),
    "race": (
        "the gradient has one order of additions",
        "the gradient of table[index] adds 72,000 values into eight rows, on several threads, in any order: chapter "
        "02's race. The flag, or another way of looking up, ends it.",
    ),
}


def judge_repair(script: str) -> Verdicts:
    """A point for each fault that is repaired; the last of them only if new processes agree."""
    if not isinstance(script, str):
        yield 0, f"Give the check the script as a text; this is a {type(script).__name__}."
        return
    if script.strip() in ("", "...") or _lines(script) == _lines(SCRIPT):
        raise NotAttempted
    found = _in_worker("diagnosis", script=script)
    if "error" in found:
        yield 0, found["error"]
        return
    left = [fault for fault in FAULTS if fault in found["depends"] or (fault == "race" and found["races"])]
    if found["nan"] and "empty" not in left:
        left.append("empty")
    if not left and (changed := _no_longer_trains(found)):
        yield 0, changed
        return
    repaired = [FAULTS[fault][0] for fault in FAULTS if fault not in left]
    if left:
        yield (
            len(repaired),
            f"Repaired: {', '.join(repaired)}." if repaired else "None of the five is repaired yet.",
        )
        number = f"{len(left)} faults are left. One of them" if len(left) > 1 else "One fault is left"
        yield 0, f"{number}: {_told(left[0], found)}"
        return
    printed = learner_code.in_fresh_processes(script, PROCESSES)
    if wrong := _processes_disagree(printed):
        yield len(FAULTS) - 1, wrong
        return
    yield len(FAULTS), f"All five are repaired: {PROCESSES} new processes printed one fingerprint."


def _lines(script: str) -> list[str]:
    return [line.strip() for line in script.strip().splitlines()]


def _told(fault: str, found: dict[str, Any]) -> str:
    if fault == "empty" and (found["nan"] or found["flag"]):
        return (
            "`average` is NaN. The flag fills what torch.empty leaves unwritten with NaN, so that every process agrees "
            "on a wrong answer: the same bits, and no result."
        )
    return FAULTS[fault][1]


def _no_longer_trains(found: dict[str, Any]) -> str:
    """A sentence if the script is not the same training any more, or ""."""
    if "python" in found["depends"]:
        return "What it prints depends on Python's random, which nobody seeds."
    if found["loss"] is None:
        return "The script should still compute `loss` and train the table by it."
    if not found["drawn"]:
        return "The table should still start from random numbers, as torch.randn draws them."
    if not 7.5 < found["loss"] < 8.5:
        return (
            f"The last loss is {found['loss']:.3g}, where it should be about 8: repair the script without changing "
            "what it trains."
        )
    return ""


def _processes_disagree(printed: Sequence[str]) -> str:
    """A sentence if new processes failed or printed different lines, or ""."""
    if failed := next((line for line in printed if "Error" in line or line == "nothing was printed"), ""):
        return f"In a new process the script failed: {failed[:200].rstrip('.')}."
    if len(set(printed)) > 1:
        return (
            f"{len(printed)} new processes printed {len(set(printed))} different lines. Each hashes texts in its own "
            "way: is there still an order of a set in it?"
        )
    return ""


# --- 05-augment -----------------------------------------------------------------------------------------

# Also those at which numbers that are multiplied by tens and added would meet.
PLACES = tuple(
    (seed, epoch, index)
    for seed in (1, 2)
    for epoch in (0, 1, 2, 10, 100)
    for index in (0, 1, 2, 10, 100, 1000, 10_000, 100_000)
)


def judge_augment(augmented: Callable) -> Verdicts:
    """augmented(image, seed, epoch, index) → the image with noise: one point for the same bits wherever it is asked,
    one for other noise at other places, one for a real loader with 0, 1 and 2 workers."""
    image = learner_code.image()
    given = {place: _noisy(augmented, image, place) for place in PLACES}
    noise = {place: array - image for place, array in given.items()}
    if wrong := _not_noise(noise):
        yield 0, wrong
        return
    if wrong := _depends_on_the_worker(augmented, image):
        yield 0, wrong
        return
    yield 1, "The same bits in any order, and whatever the worker's generators hold."
    if wrong := _same_noise(noise):
        yield 0, wrong
        return
    yield 1, f"Other noise for each image, each epoch and each seed, at {len(PLACES)} places."
    if wrong := _not_normal(noise):
        yield 0, wrong
        return
    found = _in_worker("loaded", source=source_of(augmented), name=augmented.__name__)
    if found["here"] != fingerprint(given[PLACES[0]]):
        yield (
            0,
            "In another process the same image of the same epoch gets other noise. (Python hashes texts in its own way "
            "in each.) Make the seed from the three numbers themselves.",
        )
        return
    if len(set(found["epochs"])) > 1:
        yield (
            0,
            f"A DataLoader with 0, 1 and 2 workers gave {len(set(found['epochs']))} different epochs: something in it "
            "still knows the worker.",
        )
        return
    yield 1, "A DataLoader with 0, 1 and 2 workers gave the same bits, over two epochs."


def _noisy(augmented: Callable, image: np.ndarray, place: tuple[int, int, int]) -> np.ndarray:
    """What the function makes of the image at (seed, epoch, index). Raises AnswerFailed."""
    mine = image.copy()
    given = call(augmented, mine, *place)
    if mine.tobytes() != image.tobytes():
        raise AnswerFailed(
            "Your function changes the image that it is given; in the next epoch the dataset would hand it out with "
            "the noise of this one. Add into a new array."
        )
    if not isinstance(given, np.ndarray) or given.shape != image.shape or given.dtype != np.float32:
        found = f"{given.dtype}{list(given.shape)}" if isinstance(given, np.ndarray) else type(given).__name__
        raise AnswerFailed(f"Return a float32 array of the image's shape, not {found}.")
    return given


def _not_noise(noise: dict[tuple, np.ndarray], slack: float = 0.02) -> str:
    values = np.stack(list(noise.values()))
    spread, middle = float(values.std()), float(values.mean())
    if abs(spread - 0.1) > slack or abs(middle) > slack:
        return (
            f"The noise has mean {middle:.2g} and standard deviation {spread:.2g}; the task asks for normal noise of "
            "mean 0 and standard deviation 0.1, and nothing else."
        )
    if min(np.ptp(array) for array in values) < 1e-3:
        return (
            "Every pixel of an image gets the same number; draw one for each, with image.shape as the size."
        )
    return ""


def _not_normal(noise: dict[tuple, np.ndarray]) -> str:
    """For noise that is other at each place, so that there are many independent values."""
    values = np.stack(list(noise.values()))
    if wrong := _not_noise(noise, slack=0.005):
        return wrong
    far = float((np.abs(values) > 0.2).mean())
    if not 0.03 < far < 0.065:
        return (
            f"{100 * far:.2g} % of the noise lies beyond two standard deviations, where normal noise has about 4.6 %: "
            "draw it with rng.normal."
        )
    return ""


def _depends_on_the_worker(augmented: Callable, image: np.ndarray) -> str:
    """Ask at the same places in another order, with the global generators elsewhere, as another worker would."""
    import random

    def standing() -> tuple:
        torch = sys.modules.get("torch")  # there if the learner's function imports it
        held = np.random.get_state()[1].tobytes(), random.getstate()
        return (*held, torch.get_rng_state().numpy().tobytes()) if torch else held

    answers = []
    for state, places in ((1, PLACES[:40]), (2, PLACES[:40][::-1]), (3, PLACES[:40:2])):
        np.random.seed(state)
        random.seed(state)
        held = standing()
        answers.append({place: _noisy(augmented, image, place).tobytes() for place in places})
        moved = standing() != held
    for other in answers[1:]:
        if any(bits != answers[0][place] for place, bits in other.items()):
            return (
                "The same image of the same epoch gets other noise when images are asked for in another order, or in a "
                "worker whose generators stand elsewhere. Make the generator from seed, epoch and index, in the "
                "function."
            )
    if moved:
        return (
            "Your function seeds the worker's global generator, so that whatever else draws from it starts anew with "
            "each image. Make a generator of its own: np.random.default_rng(…)."
        )
    return ""


def _same_noise(noise: dict[tuple, np.ndarray]) -> str:
    """Two places with the same noise, in words; empty if there are none."""
    seen: dict[bytes, tuple] = {}
    for place, array in noise.items():
        # The noise as added in float32, so that it is compared after rounding.
        other = seen.setdefault(np.round(array, 4).tobytes(), place)
        if other == place:
            continue
        told = "(seed {}, epoch {}, index {}) and (seed {}, epoch {}, index {}) get the same noise. ".format(
            *other, *place
        )
        if other[1:] == place[1:]:
            return f"{told}The seed must count, too."
        if other[::2] == place[::2]:
            return f"{told}Every epoch repeats the noise of the first."
        if other[:2] == place[:2]:
            return f"{told}Every image gets the same noise."
        return (
            f"{told}Numbers that are added or multiplied into one meet again; a list of them is a seed: [seed, epoch, "
            "index]."
        )
    return ""


# --- 05-resume ------------------------------------------------------------------------------------------


def judge_resume(save: Callable, restore: Callable) -> Verdicts:
    """save(training) → anything, restore(training, saved): a point for each group of parts, one for the bits."""
    source = f"{source_of(save)}\n\n{source_of(restore)}"
    answer = _in_worker("resuming", source=source, save_name=save.__name__, restore_name=restore.__name__)
    yield from _verdicts(answer)


# --- 05-report ------------------------------------------------------------------------------------------

# 97.5 % quantile of Student's t by degrees of freedom, as the lab gives it.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 19: 2.093}
KEYS = ("seeds", "mean", "spread", "low", "high")


def judge_report(report: Callable) -> Verdicts:
    """report(runs) → dict with KEYS, for (seed, accuracy) pairs: a point for mean and spread, one for the interval,
    one for repeats of a seed and for a single one."""
    plain = [_runs(5, 0), _runs(10, 1), _runs(20, 2), _runs(2, 3)]
    for runs in plain:
        if wrong := _wrong_report(report, runs, ("seeds", "mean", "spread")):
            yield 0, wrong
            return
    yield 1, "Number of seeds, mean and spread: right."
    for runs in plain:
        if wrong := _wrong_report(report, runs, ("low", "high")):
            yield 0, wrong
            return
    yield 1, "The 95 % interval of the mean: right for 2, 5, 10 and 20 seeds."
    repeated = [run for run in _runs(5, 4) for _ in range(4)]
    for runs in (repeated, _runs(6, 5) + _runs(6, 5)[:3]):
        given = _report(report, runs)
        seeds = len(dict(runs))
        if given["seeds"] != seeds:
            yield (
                0,
                f"{len(runs)} runs with {seeds} seeds are no {given['seeds']} seeds: a repeatable training gives a "
                "seed's accuracy again, which is no new evidence. Count each seed once.",
            )
            return
        if wrong := _wrong_report(report, runs, KEYS[1:]):
            yield 0, f"With seeds that ran several times: {wrong}"
            return
    given = _report(report, [(3, 0.91)])
    if given["spread"] is not None or given["low"] is not None or given["high"] is not None:
        yield (
            0,
            "One seed has no spread, and no interval: spread, low and high should be None there, not a number.",
        )
        return
    yield 1, "Repeated seeds count once, and one seed gets no interval: right."


def _runs(seeds: int, number: int) -> list[tuple[int, float]]:
    """Accuracies of so many seeds; from five seeds on, two of them have the same."""
    rng = np.random.default_rng([5, number])
    runs = [(seed, float(round(accuracy, 4))) for seed, accuracy in enumerate(rng.normal(0.92, 0.02, seeds))]
    return [*runs[:-1], (seeds - 1, runs[1][1])] if seeds >= 5 else runs


def _expected(runs: Sequence[tuple[int, float]]) -> dict[str, float]:
    values = np.array(list(dict(runs).values()))
    n, spread = len(values), float(values.std(ddof=1))
    half = T[n - 1] * spread / math.sqrt(n)
    mean = float(values.mean())
    return {"seeds": n, "mean": mean, "spread": spread, "low": mean - half, "high": mean + half}


def _report(report: Callable, runs: list[tuple[int, float]]) -> dict[str, Any]:
    given = call(report, list(runs))
    if not isinstance(given, dict) or set(given) != set(KEYS):
        raise AnswerFailed(f"Return a dict with the keys {', '.join(KEYS)}, and no others.")
    return given


def _wrong_report(report: Callable, runs: list[tuple[int, float]], keys: tuple[str, ...]) -> str:
    given, right = _report(report, runs), _expected(runs)
    if given["seeds"] == len({accuracy for _, accuracy in runs}) < right["seeds"]:
        return (
            f"{right['seeds']} seeds are counted as {given['seeds']}, where two of them have the same accuracy. Two "
            "seeds may agree by chance: tell them apart by the seed."
        )
    for key in keys:
        try:
            # The table of t has four digits; who takes t from a library has more.
            if math.isclose(float(given[key]), right[key], rel_tol=3e-4):
                continue
        except (TypeError, ValueError):
            return f"{key} is {given[key]!r}; it should be a number."
        return (
            f"{key} of {right['seeds']} seeds should be {right[key]:.5g} and is {float(given[key]):.5g}. "
            f"{_report_hint(key, float(given[key]), [accuracy for _, accuracy in dict(runs).items()], right)}"
        ).rstrip()
    return ""


def _report_hint(key: str, given: float, values: list[float], right: dict[str, float]) -> str:
    def near(value: float) -> bool:
        return math.isclose(given, value, rel_tol=3e-4)

    n, error = len(values), right["spread"] / math.sqrt(len(values))
    if key == "mean" and near(max(values)):
        return "That is the best seed. Who reports the best of several seeds reports luck."
    if near(100 * right[key]):
        return "Accuracies go from 0 to 1 here, not in %."
    if key == "spread":
        if near(float(np.std(values))):
            return "Divide by n − 1: the mean was taken from the same numbers (ddof=1)."
        if near(error):
            return (
                "That is the standard error of the mean. The spread of the seeds is their standard deviation."
            )
        if near(right["spread"] ** 2):
            return "That is the variance; its root is the standard deviation."
        if near(max(values) - min(values)):
            return "That is the range, which grows with the number of seeds; take the standard deviation."
    if key in ("low", "high"):
        sign = -1 if key == "low" else 1
        if near(right["low" if key == "high" else "high"]):
            return "low and high have changed places."
        if math.isclose(given, min(values)) or math.isclose(given, max(values)):
            return "That is where the seeds lie, not the mean: more seeds would widen it."
        if near(right["mean"] + sign * 1.96 * error) or near(right["mean"] + sign * 2 * error):
            return f"1.96 is for many seeds; with {n}, Student's t is {T[n - 1]}."
        if near(right["mean"] + sign * error):
            return "One standard error to each side holds about two thirds, not 95 %."
        if near(right["mean"] + sign * right["spread"]) or near(
            right["mean"] + sign * T[n - 1] * right["spread"]
        ):
            return "The mean of n seeds is surer than one seed: divide the spread by √n."
        if n in T and near(right["mean"] + sign * T[n] * error):
            return "n seeds have n − 1 degrees of freedom."
    return ""


EXERCISES = (
    Exercise("05-seed", "Seed everything", 3, judge_seed),
    Exercise("05-repair", "Five faults in twelve lines", 5, judge_repair),
    Exercise("05-augment", "Noise that does not know its worker", 3, judge_augment),
    Exercise("05-resume", "Stop and go on", 4, judge_resume),
    Exercise("05-report", "A result over seeds", 3, judge_report),
)
