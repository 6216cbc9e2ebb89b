"""Fifteen small PyTorch programs of which no two runs agree, each for another reason, and what the reason is.

    case = find("recommender")
    print(case.story, case.source)               # try to find it by reading first
    diverge(case.program, case.words(folder), second=case.second)

They are ordinary programs that run by themselves: `python path/to/recommender.py`. What parts their runs is in `kind`,
`op` and `line` here, not in the programs. Nothing in this module imports a framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.experiment import nearest

# Stands for a folder of the run's own among a case's arguments.
FOLDER = "FOLDER"


class UnknownCase(LookupError):
    """There is no case of that name; the message is one sentence with the nearest one."""

    def __str__(self) -> str:
        return str(self.args[0])

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True)
class Case:
    """A program and the answer to it.

    name       of the program, without ".py"
    title      what it is about, a few words
    story      what its owner says, one or two sentences; it gives nothing away
    kind       a key of trace.KINDS: what the first difference is
    op         name of the op in which it shows
    line       number of the line of the program that calls it; in a backward pass, the line of `.backward()`
    forward    in a backward pass: number of the line whose gradient the op computes; else 0
    cause      why the runs part, one sentence
    remedy     what makes them agree, one sentence
    arguments  of the program; FOLDER stands for a folder that is empty before the first run
    second     environment variables of all runs but the first
    races      whether it needs two threads that meet, so that some runs, and some machines, show nothing
    """

    name: str
    title: str
    story: str
    kind: str
    op: str
    line: int
    cause: str
    remedy: str
    forward: int = 0
    arguments: tuple[str, ...] = ()
    second: Mapping[str, str] = field(default_factory=dict)
    races: bool = False

    @property
    def program(self) -> Path:
        """Where the program is."""
        return Path(__file__).parent / f"{self.name}.py"

    @property
    def source(self) -> str:
        """Its text."""
        return self.program.read_text(encoding="utf-8")

    def text(self, line: int) -> str:
        """One line of the program, without its indentation; lines count from 1."""
        return self.source.splitlines()[line - 1].strip()

    def words(self, folder: Any = FOLDER) -> list[str]:
        """The program's arguments, with `folder` in its place."""
        return [str(folder) if word == FOLDER else word for word in self.arguments]

    def answered_by(self, found: Any) -> bool:
        """Whether a divergence (trace.Divergence) has this case's kind, op and line. Where the runs part by what
        Python decides, it doesn't matter which of them came first."""
        ops = [op for op in (found.first, found.second) if op is not None]
        return found.kind == self.kind and any(
            op.name == self.op and op.line == f"{self.name}.py:{self.line}" for op in ops
        )


CASES = (
    Case(
        name="recommender",
        title="stars for films",
        story="The seed is set, and the loss agrees to the last digit that I print. The weights don't.",
        kind="result",
        op="aten.index_put.default",
        line=20,
        forward=17,
        cause="The gradient of table[index] adds all ratings of a film into one number, from several threads, and "
        "their order is decided by who comes first.",
        remedy="torch.nn.functional.embedding in the place of table[index], or the deterministic flag.",
        races=True,
    ),
    Case(
        name="augment",
        title="noise against learning by heart",
        story="torch.manual_seed(0) is the first thing that I call. Still every training ends elsewhere.",
        kind="input",
        op="aten.lift_fresh.default",
        line=16,
        cause="The noise comes from a NumPy generator, which torch.manual_seed doesn't reach.",
        remedy="numpy.random.default_rng(0): a seed of its own.",
    ),
    Case(
        name="late_seed",
        title="a curve",
        story="The training is seeded, and its batches are the same in every run; I checked them.",
        kind="random",
        op="aten.uniform_.default",
        line=6,
        cause="The weights are drawn when the model is built, before the seed is set.",
        remedy="torch.manual_seed before the model is built.",
    ),
    Case(
        name="labels",
        title="animals by number",
        story="No thread, no generator without a seed, one line of arithmetic. Yet each start of Python gives another "
        "loss, while repeating the training within one notebook doesn't.",
        kind="input",
        op="aten.lift_fresh.default",
        line=15,
        cause="The class numbers come from the order of a set of strings, which depends on PYTHONHASHSEED.",
        remedy="sorted(set(names)).",
    ),
    Case(
        name="padding",
        title="sequences of different lengths",
        story="Sometimes the loss is fine, sometimes it is nan. Adding a print makes it go away.",
        kind="memory",
        op="aten.addmm.default",
        line=27,
        cause="The end of each row is what happened to be in memory that torch.empty was given.",
        remedy="torch.zeros in the place of torch.empty.",
    ),
    Case(
        name="schedule",
        title="a training of a third of a second",
        story="Everything is seeded, on one machine, and nothing else runs on it.",
        kind="flow",
        op="aten.addmm.default",
        line=15,
        cause="How many steps fit in is up to the clock.",
        remedy="A fixed number of steps.",
    ),
    Case(
        name="cache",
        title="features that are kept",
        story="It is repeatable, I ran it a hundred times. Only my colleague, who ran it for the first time, had "
        "another result.",
        kind="flow",
        op="aten.linspace.default",
        line=15,
        cause="The first run computes the features and keeps them with 16 bits; later runs read these.",
        remedy="Use what was written also in the run that writes it, or keep all 32 bits.",
        arguments=(FOLDER,),
    ),
    Case(
        name="validation",
        title="a look at the validation data",
        story="I only look: no gradient, no optimizer step. But with the look the training ends elsewhere.",
        kind="random",
        op="aten.random_.default",
        line=17,
        cause="Each pass over a DataLoader draws a seed from the global generator, so that the training's dropout "
        "draws other numbers afterwards.",
        remedy="A generator of its own for the validation loader: DataLoader(…, generator=torch.Generator()).",
        second={"VALIDATE": "1"},
    ),
    Case(
        name="shared_buffer",
        title="noise in one buffer",
        story="The buffer begins with zeros in every run, and no op of PyTorch writes to it.",
        kind="unseen",
        op="aten.mul.Tensor",
        line=16,
        cause="buffer is the tensor's own memory, and NumPy writes into it from a generator without a seed.",
        remedy="numpy.random.default_rng(0).",
    ),
    Case(
        name="threads",
        title="a normalised layer",
        story="It repeats its bits on my machine and repeats its bits on the cluster. The two don't agree.",
        kind="result",
        op="aten.native_layer_norm_backward.default",
        line=14,
        forward=12,
        cause="The gradient of LayerNorm's weight is a sum over rows; each thread adds its share, so the number of "
        "threads decides how the sum is bracketed.",
        remedy="The same number of threads in both: OMP_NUM_THREADS or torch.set_num_threads.",
        second={"OMP_NUM_THREADS": "1"},
    ),
    Case(
        name="shuffle",
        title="stretches of a signal",
        story="The signal is the same in all runs, down to the bit.",
        kind="python",
        op="aten.addmm.default",
        line=15,
        cause="Where a stretch begins comes from Python's random, which has no seed.",
        remedy="random.seed(0), or torch.randint.",
    ),
    Case(
        name="workers",
        title="windows from two workers",
        story="I heard that PyTorch seeds its workers, so I didn't.",
        kind="input",
        op="aten.addmm.default",
        line=26,
        cause="The data set has a generator of its own without a seed; PyTorch seeds only the global ones.",
        remedy="A seed for the generator, made in a worker_init_fn, so that each worker has another.",
    ),
    Case(
        name="last_writer",
        title="a cloud of points",
        story="Nothing is added up here, only written, and in the order of the points.",
        kind="result",
        op="aten.index_put_.default",
        line=12,
        cause="Several threads write to the same place, and whoever writes last stays.",
        remedy="Choose the point of each pixel before writing, or the deterministic flag.",
        races=True,
    ),
    Case(
        name="fused",
        title="one trial of a search",
        story="A log of the tensors' norms agrees for a whole step, the optimizer's included.",
        kind="python",
        op="aten._fused_adamw_.default",
        line=18,
        cause="The learning rate comes from Python's random; a fused optimizer writes its parameters in place and "
        "returns nothing, so that a log of results has nothing to show.",
        remedy="random.seed(0), or the rate as an argument of the program.",
    ),
    Case(
        name="signs",
        title="waves upside down",
        story="The norm of every row agrees between the runs, and the seed is set.",
        kind="input",
        op="aten.lift_fresh.default",
        line=11,
        cause="Which waves are turned upside down comes from a generator without a seed. A norm can't see it.",
        remedy="numpy.random.default_rng(0).",
    ),
)


def find(name: str) -> Case:
    """The case of that name. Raises UnknownCase, with the nearest name."""
    names = [case.name for case in CASES]
    if name in names:
        return CASES[names.index(name)]
    raise UnknownCase(f"There is no case {name!r}. {nearest(name, names)}")


def source(name: str) -> str:
    """The program of that case as text. Raises UnknownCase."""
    return find(name).source
