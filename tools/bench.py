"""The course's speed, side by side, in one go: ./course bench

    python tools/bench.py                  all of it; some minutes
    python tools/bench.py --no-notebooks   without running every notebook
    python tools/bench.py --readme         also writes the table into README.md

The arms of a comparison take turns, round by round, so that whatever else the machine does meets all of them; what
counts is the ratio within a round, of which the median and the range are printed. An arm too slow to run whole runs
a stated sample, and its time is extrapolated and says so. Everything goes to docs/bench.json.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import platform
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np

from samebits import cases, diverge, machine, orders, thousand, trace
from samebits.bits import fingerprint
from samebits.lab import hunts

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
MEMBERS = 1000
BATCH = 50
ELEMENTS = 100_000
MARKS = ("<!-- bench: written by ./course bench --readme -->", "<!-- end of bench -->")


@dataclass(frozen=True)
class Arm:
    """One way to do a job.

    run     does it, or a sample of it
    whole   how many times the sample the job is; 1 for an arm that does all of it
    sample  what the sample is, in words, where it is one
    """

    name: str
    run: Callable[[], object]
    whole: float = 1
    sample: str = ""


def compare(job: str, arms: list[Arm], rounds: int = ROUNDS) -> dict:
    """Seconds of each arm for the whole job, and how much slower each is than the first: median, least, most."""
    for arm in arms:
        arm.run()  # compiles, imports, allocates
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(rounds):
        for arm in arms:
            start = time.perf_counter()
            arm.run()
            seconds[arm.name].append((time.perf_counter() - start) * arm.whole)
    first = seconds[arms[0].name]
    results = {}
    for arm in arms:
        ratios = [one / base for one, base in zip(seconds[arm.name], first, strict=True)]
        results[arm.name] = {
            "seconds": statistics.median(seconds[arm.name]),
            "ratio": statistics.median(ratios),
            "ratios": [min(ratios), max(ratios)],
            "extrapolated from": arm.sample,
        }
        say(f"{job}: {arm.name}: {in_words(results[arm.name])}")
    return {"job": job, "date": today(), "rounds": rounds, "arms": results}


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def in_words(arm: dict) -> str:
    seconds, (low, high) = arm["seconds"], arm["ratios"]
    time_words = f"{seconds:.3g} s" if seconds < 100 else f"{seconds / 60:.3g} min"
    words = f"{time_words}, {arm['ratio']:.3g} × ({low:.3g} to {high:.3g})"
    return words + (f", extrapolated from {arm['extrapolated from']}" if arm["extrapolated from"] else "")


# --- A thousand trainings --------------------------------------------------------------------------------


def trainings() -> dict:
    graph = thousand.synthetic_graph()
    return compare(
        f"{MEMBERS:,} trainings, each neighbour sum in an order of its own",
        [
            Arm("the course's trainer", lambda: all_of(thousand.train(graph, orders=range(MEMBERS)))),
            Arm(
                f"PyTorch, {BATCH} members in one batch",
                batched(graph),
                MEMBERS / BATCH,
                f"one batch of {BATCH}",
            ),
            Arm("PyTorch, the textbook loop", textbook(graph), MEMBERS, "one training"),
        ],
        rounds=3,
    )


def often(run: Callable[[], object], times: int) -> Callable[[], None]:
    """`run`, several times: what takes milliseconds is timed long enough for a ratio to settle."""

    def repeated() -> None:
        for _ in range(times):
            run()

    return repeated


def all_of(models) -> int:
    return sum(1 for _ in models)


def textbook(graph: thousand.Graph) -> Callable[[], None]:
    """One training as graph libraries write it: neighbours' features are added first, and then multiplied."""
    import torch
    from torch.nn.functional import cross_entropy

    from samebits.experiments import sage_training

    given = sage_training.state_on(torch.device("cpu"), graph, epochs=10).inputs
    first = thousand.tensors(graph, given["weights"].numpy())

    def train() -> None:
        parts = {name: torch.tensor(part, requires_grad=True) for name, part in first.items()}
        adam = torch.optim.Adam(parts.values(), lr=0.01, weight_decay=5e-4)

        def sage(x, layer):
            order = torch.randperm(len(given["sender"]))
            rows = x[given["sender"][order]]
            sums = torch.zeros_like(x).index_add(0, given["receiver"][order], rows) / given["degree"]
            return (
                sums @ parts[f"{layer}, neighbours"] + x @ parts[f"{layer}, self"] + parts[f"{layer}, bias"]
            )

        for _ in range(10):
            adam.zero_grad()
            logits = sage(sage(given["features"], "layer 1").relu(), "layer 2")
            cross_entropy(logits[given["training"]], given["labels"][given["training"]]).backward()
            adam.step()

    return train


def batched(graph: thousand.Graph) -> Callable[[], None]:
    """A batch of trainings as one: members side by side in one axis, sparse features, multiplied first."""
    import torch
    from torch.nn.functional import cross_entropy

    n, edges, hidden, classes = graph.nodes, len(graph.pairs), thousand.HIDDEN, graph.classes
    receiver, sender = torch.from_numpy(graph.pairs.astype(np.int64)).T
    degree = torch.from_numpy(np.maximum(np.diff(graph.starts), 1).astype(np.float32))[:, None, None]
    places = np.stack([np.repeat(np.arange(n), np.diff(graph.rows)), graph.columns])
    features = torch.sparse_coo_tensor(
        torch.from_numpy(places),
        torch.from_numpy(graph.values),
        (n, graph.features),
        is_coalesced=True,
        check_invariants=True,
    )
    training, labels = torch.from_numpy(graph.training).long(), torch.from_numpy(graph.labels).long()
    first = thousand.tensors(graph, thousand.first_weights(graph))
    member = torch.arange(BATCH)[:, None]

    def neighbour_sums(z):
        """(nodes, members, width): each member adds its rows in an order of its own."""
        order = torch.rand(BATCH, edges).argsort(dim=1)
        flat = z.reshape(n * BATCH, -1)
        rows = flat[(sender[order] * BATCH + member).reshape(-1)]
        return (
            torch.zeros_like(flat)
            .index_add(0, (receiver[order] * BATCH + member).reshape(-1), rows)
            .view_as(z)
        )

    def train() -> None:
        parts = {
            name: torch.tensor(np.stack([part] * BATCH, axis=-2), requires_grad=True)
            for name, part in first.items()
        }
        adam = torch.optim.Adam(parts.values(), lr=0.01, weight_decay=5e-4)
        for _ in range(10):
            adam.zero_grad()
            both = [parts[f"layer 1, {name}"].reshape(graph.features, -1) for name in ("neighbours", "self")]
            z, own = ((torch.sparse.mm(features, w)).view(n, BATCH, hidden) for w in both)
            h = (neighbour_sums(z) / degree + own + parts["layer 1, bias"]).relu()
            y, own = (
                torch.einsum("nmh,hmc->nmc", h, parts[f"layer 2, {name}"]) for name in ("neighbours", "self")
            )
            logits = neighbour_sums(y) / degree + own + parts["layer 2, bias"]
            wanted = labels[training].repeat_interleave(BATCH)
            (cross_entropy(logits[training].reshape(-1, classes), wanted) * BATCH).backward()
            adam.step()

    return train


# --- Sums and fingerprints -------------------------------------------------------------------------------


def sums() -> dict:
    x = np.random.default_rng(0).standard_normal(ELEMENTS, dtype=np.float32)
    rng, sample = np.random.default_rng(1), 20_000

    def with_numpy() -> None:
        for _ in range(100):
            np.add.accumulate(x[rng.permutation(ELEMENTS)])[-1]

    def in_python() -> None:
        total = np.float32(0)
        for value in x[rng.permutation(ELEMENTS)[:sample]]:
            total += value

    return compare(
        f"{MEMBERS:,} sums of {ELEMENTS:,} float32, each in an order of its own",
        [
            Arm("the course's sums", often(lambda: orders.permuted_serial_sums(x, MEMBERS), 10), 1 / 10),
            Arm("NumPy, one order at a time", with_numpy, MEMBERS / 100, "100 sums"),
            Arm("Python's loop", in_python, MEMBERS * ELEMENTS / sample, f"{sample:,} additions"),
        ],
    )


def fingerprints() -> dict:
    import torch

    megabytes = 64
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(megabytes * 2**18, dtype=np.float32))
    found = compare(
        f"fingerprint of {megabytes} MiB",
        [
            Arm("sha256, for records", often(lambda: fingerprint(x, "sha256"), 20), 1 / 20),
            Arm("xxh3, for speed", often(lambda: fingerprint(x, "xxh3"), 20), 1 / 20),
            Arm("mix64, the GPU's, on the CPU", often(lambda: fingerprint(x, "mix64"), 20), 1 / 20),
            Arm("torch.hash_tensor (blind to order)", often(lambda: torch.hash_tensor(x), 20), 1 / 20),
        ],
    )
    for arm in found["arms"].values():
        arm["GB/s"] = megabytes * 2**20 / arm["seconds"] / 1e9
    return found


# --- Recording a program, beside PyTorch's own tool ---------------------------------------------------------

STEPS = 3


def recordings() -> list[dict]:
    """What it costs to fingerprint every op of a training step: a small convolutional net, 64 pictures of 32 × 32."""
    import torch

    return [
        recorded(
            "a step of a convolutional net with SGD, every op fingerprinted",
            lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        ),
        recorded(
            "the same with AdamW",
            lambda parameters: torch.optim.AdamW(parameters, lr=0.001),
        ),
    ]


def recorded(job: str, optimizer: Callable) -> dict:
    step = convolutional_step(optimizer)

    def ours() -> None:
        with tempfile.TemporaryDirectory() as folder, trace.recording(Path(folder) / "step.trace"):
            often(step, STEPS)()

    def debug_mode(hash_fn: str) -> Callable[[], None]:
        def run() -> None:
            with debug_mode.debugging(hash_fn):
                often(step, STEPS)()

        return run

    return compare(
        job,
        [
            Arm("not recorded", often(step, STEPS), 1 / STEPS),
            Arm("the course's recording: inputs and results", ours, 1 / STEPS),
            Arm("DebugMode, norm: results", debug_mode("norm"), 1 / STEPS),
            Arm("DebugMode, hash_tensor: results", debug_mode("hash_tensor"), 1 / STEPS),
        ],
        rounds=9,
    )


def convolutional_step(optimizer: Callable) -> Callable[[], None]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    width = 16
    model = nn.Sequential(
        *(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(2 * width, 10),
    )
    steps = optimizer(model.parameters())
    pictures, classes = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))

    def step() -> None:
        steps.zero_grad()
        nn.functional.cross_entropy(model(pictures), classes).backward()
        steps.step()

    return step


# Where DebugMode names the view through which the answer's op reads; that is as good.
NEARBY = {"shuffle": "aten.slice.Tensor", "padding": "aten.unbind.int"}


def hunted() -> list[dict]:
    """For each case: what the course's hunt says and what DebugMode says, with either hash.

    The hunt runs the program in fresh processes. DebugMode's logs can't leave a process, so it watches two runs in this
    one; a race gets ten pairs of runs in either.
    """
    found = []
    for case in cases.CASES:
        with tempfile.TemporaryDirectory() as folder:
            hunt = diverge.diverge(
                case.program,
                case.words(folder),
                second=case.second,
                runs=10 if case.races else 2,
                try_flag=False,
            ).divergence
        row = {"case": case.name, "date": today(), "kind": case.kind, "op": case.op}
        row["the course's"] = {
            "said": f"{hunt.kind}: {hunt.first.name if hunt.first else 'nothing'}",
            "right": case.answered_by(hunt),
        }
        for hash_fn in ("norm", "hash_tensor"):
            said = debugged(case, hash_fn)
            right = said.replace("::", ".") in (case.op.removesuffix(".default"), NEARBY.get(case.name))
            row[f"DebugMode, {hash_fn}"] = {"said": said, "right": right}
        found.append(row)
        say(
            ", ".join(
                f"{key}: {cell['said'] if isinstance(cell, dict) else cell}" for key, cell in row.items()
            )
        )
    return found


def debugged(case: cases.Case, hash_fn: str) -> str:
    """The first op in which DebugMode sees two runs of a case differ, "no mismatch", or what it raises."""
    import torch

    said = "no mismatch"
    for _ in range(10 if case.races else 1):
        with tempfile.TemporaryDirectory() as folder:
            runs = iter(({}, case.second))

            def run(folder: str = folder, runs: Iterator = runs) -> None:
                second = next(runs)
                threads = torch.get_num_threads()
                with (
                    mock.patch.dict(os.environ, second),
                    mock.patch.object(sys, "argv", ["", *case.words(folder)]),
                ):
                    random.seed()  # as in a fresh process
                    torch.seed()
                    torch.set_num_threads(int(second.get("OMP_NUM_THREADS", threads)))
                    with contextlib.redirect_stdout(io.StringIO()):
                        runpy.run_path(str(case.program), run_name="__main__")
                    torch.set_num_threads(threads)

            said = hunts.debugged(run, run, hash_fn)
        if said != "no mismatch":
            break
    return said


# --- Cost against size -----------------------------------------------------------------------------------


def exponents() -> list[dict]:
    """Seconds at growing sizes and the exponent p of seconds ∝ size^p, by least squares on logarithms."""
    graph = thousand.synthetic_graph()
    x = np.random.default_rng(0).standard_normal(1_000_000, dtype=np.float32)
    jobs = {
        "members of a thousand trainings": (
            (50, 100, 200, 400, 800),
            lambda size: all_of(thousand.train(graph, orders=range(size))),
        ),
        "elements of 200 sums": (
            (10_000, 30_000, 100_000, 300_000, 1_000_000),
            lambda size: orders.permuted_serial_sums(x[:size], 200),
        ),
    }
    found = []
    for name, (sizes, run) in jobs.items():
        run(sizes[0])
        best = {size: min(timed(run, size) for _ in range(3)) for size in sizes}
        slope = np.polyfit(np.log(list(best)), np.log(list(best.values())), 1)[0]
        found.append({"what": name, "seconds": best, "exponent": float(slope)})
        say(f"cost against {name}: exponent {slope:.2f}")
    return found


def timed(run: Callable, *arguments: object) -> float:
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


# --- A panel ---------------------------------------------------------------------------------------------

_PANEL = """
import json, time
from samebits import lab
start = time.perf_counter()
panel = lab.panel("scatter", n=40_000)
found = []
for deterministic in (False, True, False, True):
    runs = panel.run(deterministic=deterministic)
    found.append(time.perf_counter() - start - sum(runs.seconds))
    start = time.perf_counter()
print(json.dumps(found))
"""


def panel() -> dict:
    """Seconds from turning a toggle to the finished figure, less the runs themselves.

    cold: a process starts; flag: it turns deterministic algorithms on for the first time, for which PyTorch
    imports its compiler; warm: every later time.
    """
    found: dict[str, list[float]] = {"cold": [], "flag": [], "warm": []}
    for _ in range(3):
        with tempfile.TemporaryDirectory() as state:
            environment = os.environ | {"SAMEBITS_DATA": state}
            done = subprocess.run(
                [sys.executable, "-c", _PANEL], env=environment, capture_output=True, text=True, check=True
            )
        cold, flag, *warm = json.loads(done.stdout.splitlines()[-1])
        found["cold"].append(cold)
        found["flag"].append(flag)
        found["warm"] += warm
    say(
        "a panel beyond its experiment: "
        + ", ".join(f"{k} {statistics.median(v):.2g} s" for k, v in found.items())
    )
    return found


# --- Notebooks -------------------------------------------------------------------------------------------


def notebooks() -> list[dict]:
    """Seconds and peak memory, of the kernel with its workers, of each lesson and solution, run one by one."""
    import canonical
    import outputs

    found = []
    for folder in ("notebooks", "solutions"):
        for path in sorted((ROOT / folder).glob("*.ipynb")):
            peak = Peak()
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as place, peak:
                outputs.executed(canonical.read(path), Path(place))
            seconds = time.perf_counter() - start
            name = f"{folder}/{path.stem}"
            found.append({"notebook": name, "seconds": seconds, "megabytes": peak.bytes / 1e6})
            say(f"{name}: {seconds:.0f} s, {peak.bytes / 1e6:,.0f} MB")
    return found


class Peak:
    """The most memory that the processes started in a `with` block held at once; shared pages count in each."""

    def __enter__(self) -> Peak:
        self.bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        import psutil

        me = psutil.Process()
        while not self._over.wait(0.2):
            held = 0
            for child in me.children(recursive=True):
                try:
                    held += child.memory_info().rss
                except psutil.Error:
                    continue  # it ended in between
            self.bytes = max(self.bytes, held)


# --- The whole -------------------------------------------------------------------------------------------


def table(results: dict) -> str:
    """The README's table, from what docs/bench.json holds."""
    lines = [
        f"Measured by `./course bench` on {results['machine']}, {results['libraries']}, on {results['date']}. "
        "A ratio is the median over rounds in which the arms take turns, with the least and the most.",
        "",
        "| Job | Way | Time | Times the first |",
        "|---|---|---|---|",
    ]
    for comparison in results["comparisons"]:
        # A part may have been measured again by itself.
        again = "" if comparison["date"] == results["date"] else f", on {comparison['date']}"
        for number, (name, arm) in enumerate(comparison["arms"].items()):
            seconds, (low, high) = arm["seconds"], arm["ratios"]
            job = "" if number else comparison["job"] + again
            took = f"{seconds:.2g} s" if seconds < 100 else f"{seconds / 60:.2g} min"
            took = f"{arm['GB/s']:.2g} GB/s" if "GB/s" in arm else took
            took += f" (extrapolated from {arm['extrapolated from']})" if arm["extrapolated from"] else ""
            ratio = f"{arm['ratio']:.3g} ({low:.3g} to {high:.3g})" if number else "1"
            lines.append(f"| {job} | {name} | {took} | {ratio} |")
    cold, flag, warm = (statistics.median(results["panel"][kind]) for kind in ("cold", "flag", "warm"))
    growth = "; ".join(f"{entry['what']}: {entry['exponent']:.2f}" for entry in results["exponents"])
    told = (
        f"From a panel's toggle to its figure, beyond the runs themselves: {cold:.1f} s the first time, when processes "
        f"start; {flag:.1f} s when the flag is first turned on, for which PyTorch imports its compiler; {warm:.2g} s "
        f"from then on. Exponent of the cost in the number of {growth}."
    )
    if rows := results.get("cases"):
        tools = [key for key in rows[0] if key not in ("case", "date", "kind", "op")]
        counts = (f"{tool} {sum(row[tool]['right'] for row in rows)}" for tool in tools)
        told += (
            f" Of chapter 09's {len(rows)} programs, the op in which two runs first differ was named (on "
            f"{rows[0]['date']}) by: {'; '.join(counts)} (docs/bench.json has what each said)."
        )
    if results.get("notebooks"):
        whole = sum(entry["seconds"] for entry in results["notebooks"])
        slowest = max(results["notebooks"], key=lambda entry: entry["seconds"])
        biggest = max(results["notebooks"], key=lambda entry: entry["megabytes"])
        told += (
            f" All lessons and solutions, run one after the other: {whole / 60:.1f} min; the slowest, "
            f"{slowest['notebook']}, {slowest['seconds']:.0f} s; the largest, {biggest['notebook']}, "
            f"{biggest['megabytes'] / 1000:.1f} GB with its workers (docs/bench.json has each)."
        )
    return "\n".join([*lines, "", told])


def into_readme(text: str, content: str) -> str:
    """The README with `content` between its marks. Raises ValueError if it has none."""
    before, start, rest = text.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not start or not end:
        raise ValueError(f"README.md has no place for the table: {MARKS[0]} and {MARKS[1]}")
    return f"{before}{start}\n\n{content}\n\n{end}{after}"


def say(text: str) -> None:
    print(text, flush=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="./course bench", description="The course's speed, side by side.")
    parser.add_argument("--no-notebooks", action="store_true", help="leave out running every notebook")
    parser.add_argument("--readme", action="store_true", help="write the table into README.md")
    options = parser.parse_args(arguments)
    import torch

    results = {
        "machine": machine.device_words(machine.usable_cores()),
        "libraries": f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}",
        "date": today(),
        "comparisons": [trainings(), sums(), fingerprints(), *recordings()],
        "cases": hunted(),
        "exponents": exponents(),
        "panel": panel(),
        "notebooks": [] if options.no_notebooks else notebooks(),
    }
    target = ROOT / "docs" / "bench.json"
    target.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    say(f"Written: {target.relative_to(ROOT)}")
    if options.readme:
        readme = ROOT / "README.md"
        readme.write_text(into_readme(readme.read_text(encoding="utf-8"), table(results)), encoding="utf-8")
        say("Written: the table in README.md")


if __name__ == "__main__":
    main()
