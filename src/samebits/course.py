"""The chapters of the course: one list from which contents, headers and checks of them are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chapter:
    """A chapter with a lesson in notebooks/ and, from 01 on, a lab in labs/ and its solution in solutions/.

    number        two digits; notebooks are called NUMBER_SLUG.ipynb
    lesson, lab   minutes that a learner needs (lab 0: the chapter has none)
    after         numbers of the chapters to do first
    needs         what it runs on, and what happens without
    """

    number: str
    slug: str
    title: str
    promise: str
    lesson: int
    lab: int
    after: tuple[str, ...]
    needs: str

    @property
    def notebook(self) -> str:
        return f"{self.number}_{self.slug}.ipynb"


CHAPTERS = (
    Chapter(
        "00",
        "start_here",
        "Start here",
        "What this machine can show, and one sum that can have many answers",
        lesson=10,
        lab=0,
        after=(),
        needs="Any machine; the threads of your CPU are enough.",
    ),
    Chapter(
        "01",
        "float_non_associativity",
        "Float non-associativity",
        "Why the order of a sum changes its bits, and which sums do not care",
        lesson=25,
        lab=60,
        after=("00",),
        needs="Any machine; nothing here needs a GPU.",
    ),
    Chapter(
        "02",
        "atomicadd_ordering",
        "atomicAdd ordering",
        "Who decides the order on parallel hardware, and three ways to take it back",
        lesson=25,
        lab=55,
        after=("01",),
        needs="A GPU is used if there is one; otherwise the CPU's own atomics race, and kernels run in a simulator.",
    ),
    Chapter(
        "03",
        "cudnn_algorithm_selection",
        "cuDNN algorithm selection",
        "Who picks the algorithm of a convolution, and how a race for speed picks the bits",
        lesson=25,
        lab=60,
        after=("02",),
        needs="A GPU is used if there is one; otherwise the CPU's own convolution algorithms compete.",
    ),
    Chapter(
        "04",
        "cublas_workspace_configuration",
        "cuBLAS workspace configuration",
        "What a workspace is for, and when a variable comes too late",
        lesson=25,
        lab=55,
        after=("03",),
        needs="Any machine. cuBLAS itself needs an NVIDIA GPU; what its workspace does is built on your CPU.",
    ),
    Chapter(
        "05",
        "the_pytorch_recipe",
        "The PyTorch recipe",
        "Which lines make a training repeat, what each one costs, and the traps that no line covers",
        lesson=30,
        lab=60,
        after=("02", "03", "04"),
        needs="Any machine; what only an NVIDIA GPU can show says so.",
    ),
    Chapter(
        "06",
        "the_tensorflow_recipe",
        "The TensorFlow recipe",
        "The same training in Keras: what its two lines cover, what raises, and what silently differs",
        lesson=25,
        lab=50,
        after=("05",),
        needs="TensorFlow, in an environment of its own that ./course tensorflow makes; its CPU build is enough.",
    ),
    Chapter(
        "07",
        "one_thousand_models",
        "One thousand models",
        "Everything seeded, one order left to chance: a thousand trainings, and what they do and don't say",
        lesson=25,
        lab=50,
        after=("05",),
        needs="Any machine. The thousand are a model; live races follow, on your CPU and, if there is one, on a GPU.",
    ),
    Chapter(
        "08",
        "the_price_of_determinism",
        "The price of determinism",
        "What the flag costs on your machine, how a benchmark lies, and when to pay",
        lesson=25,
        lab=50,
        after=("05",),
        needs="Any machine; timings are your own, and a GPU is used if there is one.",
    ),
    Chapter(
        "09",
        "find_the_first_divergence",
        "Find the first divergence",
        "Two runs differ somewhere: which operation parted first, which line is guilty, and did the mending help",
        lesson=25,
        lab=45,
        after=("05",),
        needs="Any machine.",
    ),
)


def chapter(number: str) -> Chapter:
    """The chapter with this number; KeyError if the course has none."""
    return {chapter.number: chapter for chapter in CHAPTERS}[number]
