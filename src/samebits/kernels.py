"""The course's own CUDA kernels: five ways to sum an array, and what compiles, launches and judges such kernels.

    device = open_device()                     the GPU, or numba-cuda's simulator
    total = Sum("single pass", x, 256, device)
    seconds = total.run()
    total.value()

A kernel is a plain Python function. Three names in it are filled in when it is compiled:

    cuda     numba's module of that name
    BLOCK    threads in a block, a power of two
    float32  NumPy's

Its arrays have one dimension. A launch has ⌈n / BLOCK⌉ blocks for n elements, and one block for none.

With NUMBA_ENABLE_CUDASIM=1 in the environment before numba is imported, kernels run in the simulator
(simulator.py), which suits at most 256 elements in blocks of 32. On a GPU nothing here has been run yet: the
kernels were compiled to PTX and read, no more. numba is imported inside functions only.
"""

from __future__ import annotations

import ast
import builtins
import importlib.metadata
import inspect
import itertools
import math
import os
import textwrap
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import machine, simulator
from samebits.bits import fingerprint
from samebits.experiment import BadSetting

# Placeholders for what `bind` gives a kernel.
cuda = BLOCK = None


# --- The kernels ----------------------------------------------------------------------------------------


def atomic_per_element(x, total):
    """Each thread adds its own element: no update is lost, and nothing is said of the order."""
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i])


def block_tree(x):
    """The sum of this block's elements of x, by a tree in shared memory, for each of its threads."""
    shared = cuda.shared.array(BLOCK, x.dtype)
    thread = cuda.threadIdx.x
    i = cuda.grid(1)
    shared[thread] = 0
    if i < x.size:
        shared[thread] = x[i]
    cuda.syncthreads()
    stride = BLOCK // 2
    while stride > 0:
        if thread < stride:
            shared[thread] += shared[thread + stride]
        cuda.syncthreads()
        stride //= 2
    return shared[0]


def block_tree_atomic(x, total):
    """A tree in each block, then one atomic for each block: fewer atomics, and still in any order."""
    subtotal = block_tree(x)
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(total, 0, subtotal)


def single_pass(x, partials, retired, total):
    """Each block stores its partial sum; the block that retires last adds all of them, in order.

    Which block is last is a race, but of an integer counter: whoever wins does the same work.
    """
    subtotal = block_tree(x)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = subtotal
        cuda.threadfence()  # the partial sum is visible to all blocks before this one counts as retired
        if cuda.atomic.add(retired, 0, 1) == cuda.gridDim.x - 1:
            cuda.threadfence()  # and no partial sum is read before the counter was
            subtotal = partials[0]
            for block in range(1, cuda.gridDim.x):
                subtotal += partials[block]
            total[0] = subtotal


def two_pass(x, partials):
    """Each block stores its partial sum. The end of the launch is the barrier between all blocks."""
    subtotal = block_tree(x)
    if cuda.threadIdx.x == 0:
        partials[cuda.blockIdx.x] = subtotal


def sum_in_order(partials, total):
    """The second pass: one thread adds the partial sums in the order of their blocks."""
    subtotal = partials[0]
    for block in range(1, partials.size):
        subtotal += partials[block]
    total[0] = subtotal


# Way of summing → the kernels that it launches, one after the other.
WAYS: Mapping[str, tuple[Callable, ...]] = {
    "atomic per element": (atomic_per_element,),
    "block tree": (block_tree_atomic,),
    "single pass": (single_pass,),
    "two passes": (two_pass, sum_in_order),
    "integer atomics": (atomic_per_element,),
}


# --- Compile and launch ---------------------------------------------------------------------------------


class Sum:
    """One way of summing x, with its arrays on a device.

    way     a key of WAYS; "integer atomics" is meant for x in int64, the others for float32 and float64
    x       (n,) NumPy array
    block   threads in a block, a power of two
    device  from `open_device`

    Float sums are rounded to x's dtype after every addition. "single pass" and "two passes" add in the same
    order, and so give equal bits.
    """

    def __init__(self, way: str, x: np.ndarray, block: int, device: Gpu | Simulator):
        self.kernels = WAYS[way]
        self.block = block
        self.blocks = blocks_for(x.size, block)
        self._device = device
        self._zero = np.zeros(1, x.dtype)
        self._none_retired = np.zeros(1, np.int32)
        self._x = device.put(x)
        self._partials = device.put(np.zeros(self.blocks, x.dtype))
        self._total = device.put(self._zero)
        self._retired = device.put(self._none_retired)
        self._traces: list[simulator.Trace | None] = []
        self.run()  # compiles the kernels and, on a GPU, loads them

    def run(self) -> float:
        """Sum once. Returns the seconds that the kernels took, without the setting of counters to zero."""
        self._device.fill(self._total, self._zero)
        self._device.fill(self._retired, self._none_retired)
        return self._device.timed(self._launch)

    def _launch(self) -> None:
        arrays = {
            atomic_per_element: (self._x, self._total),
            block_tree_atomic: (self._x, self._total),
            single_pass: (self._x, self._partials, self._retired, self._total),
            two_pass: (self._x, self._partials),
            sum_in_order: (self._partials, self._total),
        }
        self._traces = []
        for kernel in self.kernels:
            blocks, block = (1, 1) if kernel is sum_in_order else (self.blocks, self.block)
            self._traces.append(self._device.launch(kernel, blocks, block, *arrays[kernel]))

    def value(self) -> np.ndarray:
        """(1,) array in x's dtype, read from the device: the last sum."""
        return self._device.take(self._total)

    def x_read_back(self) -> np.ndarray:
        """(n,) array: x as it is on the device now."""
        return self._device.take(self._x)

    def counted(self) -> dict[str, int]:
        """What the simulator counted in the last run: atomics of all threads, barriers of one; {} on a GPU."""
        traces = [trace for trace in self._traces if trace is not None]
        if not traces:
            return {}
        return {
            "atomics": sum(trace.count("atomic") for trace in traces),
            "barriers": sum(len(trace.barriers[0, 0]) for trace in traces),
        }


def blocks_for(n: int, block: int) -> int:
    """⌈n / block⌉, and 1 for n = 0, since CUDA launches no empty grid."""
    return max(1, -(-n // block))


def environment(simulate: bool) -> dict[str, str | None]:
    """Variables of the worker in which kernels run; numba reads them when it is imported."""
    return {
        "NUMBA_ENABLE_CUDASIM": "1" if simulate else None,
        "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "0",  # a small grid is the subject here, not a mistake
    }


def open_device() -> Gpu | Simulator:
    """What kernels run on in this process. Raises BadSetting, in one sentence, if that is nothing."""
    try:
        from numba import cuda
    except ImportError as error:
        raise BadSetting(
            f"Kernels cannot run here, since numba's CUDA part cannot be imported ({_short(error)}). "
            "`python -m pip install numba-cuda` brings it, except to macOS, for which there is none."
        ) from error
    return Simulator() if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1" else Gpu(cuda)


class Gpu:
    """The first CUDA device. Not verified on a GPU: this code has run against the simulator's API only."""

    model = ""

    def __init__(self, numba_cuda: types.ModuleType):
        if not numba_cuda.is_available():
            why = (
                "the compiler for kernels, libNVVM, is missing (./course doctor says how to get it)"
                if machine.cuda_device_count()
                else "no NVIDIA GPU is visible"
            )
            raise BadSetting(f"The kernels cannot run on a GPU: {why}. Choose device=simulator.")
        card = numba_cuda.get_current_device()
        self.name = f"{card.name}, {card.MULTIPROCESSOR_COUNT} SMs"
        self.libraries = _versions("numba-cuda", "numba")
        self._cuda = numba_cuda
        self._compiled: dict[tuple[Callable, int], Any] = {}

    def put(self, values: np.ndarray) -> Any:
        return self._cuda.to_device(values)

    def take(self, array: Any) -> np.ndarray:
        return array.copy_to_host()

    def fill(self, array: Any, values: np.ndarray) -> None:
        array.copy_to_device(values)

    def launch(self, kernel: Callable, blocks: int, block: int, *arrays: Any) -> None:
        """Returns before the kernel ends. Raises BadSetting for one that cannot be compiled or launched."""
        if (kernel, block) not in self._compiled:
            bound = bind(kernel, self._cuda, block, self._cuda.jit(device=True))
            self._compiled[kernel, block] = self._cuda.jit(bound)
        try:
            self._compiled[kernel, block][blocks, block](*arrays)
        except Exception as error:
            raise BadSetting(f"The GPU did not take {kernel.__name__}: {_short(error)}") from error

    def timed(self, action: Callable[[], None]) -> float:
        """Seconds between two events round the launches of `action`, which have ended on return."""
        start, end = self._cuda.event(), self._cuda.event()
        start.record()
        action()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000


class Simulator:
    """numba-cuda's simulator, with the watch of simulator.py; arrays are NumPy's."""

    def __init__(self):
        self.name = machine.device_words(threads=1)
        self.libraries = _versions("numba-cuda", "numba") | {"numpy": np.__version__}
        package, version = next(iter(self.libraries.items()))
        self.model = (
            f"the CUDA simulator of {package} {version}, which runs the kernel in Python, its threads in a fixed "
            "order: additions round as on a GPU, and the structure is the real one (which thread adds what, how many "
            "atomics and barriers), but the order of atomics cannot vary here, so one letter says nothing of a GPU"
        )

    def put(self, values: np.ndarray) -> np.ndarray:
        return values.copy()

    def take(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def fill(self, array: np.ndarray, values: np.ndarray) -> None:
        array[:] = values

    def launch(self, kernel: Callable, blocks: int, block: int, *arrays: np.ndarray) -> simulator.Trace:
        return simulator.launch(bind(kernel, None, block), blocks, block, *arrays)

    def timed(self, action: Callable[[], None]) -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start


def bind(
    kernel: Callable, numba_cuda: Any, block: int, device_function: Callable = lambda helper: helper
) -> Callable:
    """A copy of `kernel` whose globals are `cuda`, `BLOCK`, `float32` and the functions that it calls.

    device_function  what makes a function callable from a kernel; the simulator needs nothing
    """
    names = {"cuda": numba_cuda, "BLOCK": block, "float32": np.float32}
    for name in kernel.__code__.co_names:
        helper = kernel.__globals__.get(name)
        if inspect.isfunction(helper):
            names[name] = device_function(types.FunctionType(helper.__code__, names, name))
    return types.FunctionType(kernel.__code__, names, kernel.__name__)


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _short(error: Exception) -> str:
    """numba's messages begin with a line that says nothing, and are a page long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


# --- Slow motion ----------------------------------------------------------------------------------------

SLOW_MOTION_MODEL = "orders chosen by hand; each addition is rounded to float32, as an atomic rounds it"


@dataclass(frozen=True)
class SlowMotion:
    """One set of partial sums, committed by atomics in two orders.

    orders  the two orders: indices of blocks
    sums    two (b,) float32 arrays: the total after each commit
    part    the first commit, from 1, after which both orders have added the same blocks and yet hold
            different bits; None if there is none. It is 3 at the earliest, since a + b = b + a
    """

    orders: tuple[tuple[int, ...], tuple[int, ...]]
    sums: tuple[np.ndarray, np.ndarray]
    part: int | None


def slow_motion(values: Sequence[float], order_a: Sequence[int], order_b: Sequence[int]) -> SlowMotion:
    """What an accumulator holds after each block's commit, in two orders (a model, see SLOW_MOTION_MODEL).

    values  (b,) the partial sum of each block; taken as float32
    Raises ValueError unless both orders hold each of 0 … b−1 once.
    """
    partials = np.asarray(values, np.float32)
    for order in (order_a, order_b):
        if sorted(order) != list(range(len(partials))):
            raise ValueError(
                f"An order holds each of 0 to {len(partials) - 1} once; this one is {list(order)}."
            )
    sums = tuple(np.add.accumulate(partials[list(order)], dtype=np.float32) for order in (order_a, order_b))
    part = next(
        (
            commits
            for commits in range(1, len(partials) + 1)
            if set(order_a[:commits]) == set(order_b[:commits])
            and sums[0][commits - 1].tobytes() != sums[1][commits - 1].tobytes()
        ),
        None,
    )
    return SlowMotion((tuple(order_a), tuple(order_b)), sums, part)


# --- The exercise: a block tree -------------------------------------------------------------------------

POINTS = 3
# For a sum that is right but was not reached by a tree and one atomic per block.
POINTS_FOR_ANOTHER_WAY = 1

BLOCK_SUM_CONTRACT = """\
block_sum(x, total) adds the sum of x to total[0].

x      float32 array of one dimension, of any length, also 0
total  float32 array with one element, 0 at the start

cuda, BLOCK and float32 are given; import nothing. The launch has blocks of BLOCK threads (a power of two), as
many as it takes to give each element a thread, and at least one. Each block sums its elements as a tree in shared
memory, cuda.shared.array(BLOCK, float32), in log2(BLOCK) steps; then one thread of the block adds the result to
total[0] with one atomic. All additions are in float32, every thread of a block reaches every barrier, and x stays
as it is."""


def judge_block_sum(source: str, name: str = "block_sum") -> dict[str, Any]:
    """Judge a learner's kernel, in the simulator, against BLOCK_SUM_CONTRACT.

    source  of the function, as inspect.getsource gives it; decorators are ignored
    name    of the function

    Returns {"attempted": bool, "points": 0 to POINTS, "possible": POINTS, "sentences": [str]}. Judged are, in
    this order and until something is wrong:

    - the text: it parses, gives shared arrays a constant size, and converts nothing to float64;
    - for each of CASES: indices inside the arrays, loops that end, shared arrays of float32 that fit a block,
      nothing wider added or stored, each barrier reached by all threads of the block, each two accesses ordered
      (or a barrier or an atomic is missing), shared elements written before they are read, x left as it was, and
      the total: exact where float32 additions in any order are exact, and elsewhere within the error bound of a
      tree of any shape;
    - the way: one atomic on global memory for each block, none on shared memory, and no thread that reads more
      than a tree makes it read. A right sum that fails in this gets POINTS_FOR_ANOTHER_WAY.

    Two runs are not compared: the simulator's would agree whatever the kernel does, so races are looked for
    in the accesses instead. Needs the variables of `environment(simulate=True)`. A loop without end that
    touches neither arrays nor barriers is not noticed here: the caller ends this process after its time.
    """
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError as error:
        return _verdict(0, f"Python cannot read line {error.lineno} ({error.msg}). Correct that line first.")
    function = _find(tree, name)
    if function is None:
        return _verdict(0, f"There is no function {name} in this. Keep the name that the exercise gave it.")
    if _untouched(function):
        return _verdict(0, "Not attempted yet.", attempted=False)
    lines = textwrap.dedent(source).splitlines()
    if wrong := _wrong_in_text(function, lines):
        return _verdict(0, wrong)
    another_way = ""
    for case in CASES:
        x, total = case.x.copy(), np.zeros(1, np.float32)
        try:
            kernel = _defined(tree, name, case.block)
        except Exception as error:
            return _verdict(0, f"The function cannot be defined: {_short(error)}. Correct that first.")
        trace = simulator.launch(kernel, blocks_for(x.size, case.block), case.block, x, total)
        if wrong := _wrong_in_trace(trace, lines) or _wrong_result(x, total, trace, case):
            return _verdict(0, f"{wrong} (Seen with {case.words}.)")
        another_way = another_way or _another_way(trace, case)
    if another_way:
        return _verdict(POINTS_FOR_ANOTHER_WAY, another_way)
    return _verdict(
        POINTS,
        f"Right for {len(CASES)} inputs, from none to 200 numbers and in blocks of 32 and 128: a tree in each block, "
        "one atomic for each block, and no two threads race. On a GPU the blocks still commit in any order.",
    )


def _verdict(points: int, sentence: str, attempted: bool = True) -> dict[str, Any]:
    return {"attempted": attempted, "points": points, "possible": POINTS, "sentences": [sentence]}


@dataclass(frozen=True)
class Case:
    """An input for the judge; with `exact`, float32 additions in any order give the exact sum."""

    words: str
    block: int
    x: np.ndarray
    exact: bool = True


def _cases() -> tuple[Case, ...]:
    """Whole numbers whose every partial sum is below 2**24 are exact in float32. All differ, so that one which is
    lost or doubled shows; where they cancel, it leaves millions."""
    counting = np.arange(1, 201, dtype=np.float32)
    cancelling = counting[:77].copy()
    cancelling[[3, 20, 50, 70]] = [2**22, -(2**22), -(2**22), 2**22]
    rounded = np.random.default_rng(2).standard_normal(200).astype(np.float32)
    return (
        Case("96 numbers, three full blocks of 32", 32, counting[:96]),
        Case("77 numbers in blocks of 32, the last one not full", 32, counting[:77]),
        Case("77 numbers that cancel", 32, cancelling),
        Case("one number", 32, counting[:1]),
        Case("no numbers at all", 32, counting[:0]),
        Case("200 numbers in blocks of 128", 128, rounded, exact=False),
    )


CASES = _cases()


def _find(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    return next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)


# Python's own names that a GPU's compiler knows, too. Others would pass in the simulator, and some, such as exit, end
# the process that judges.
_KNOWN_TO_COMPILER = "abs bool divmod enumerate float int len max min pow print range round zip".split()


def _defined(tree: ast.Module, name: str, block: int) -> Callable:
    """The learner's function itself, without decorators; line numbers stay those of its source."""
    _find(tree, name).decorator_list = []
    names: dict[str, Any] = {
        "cuda": None,
        "BLOCK": block,
        "float32": np.float32,
        "__builtins__": {known: getattr(builtins, known) for known in _KNOWN_TO_COMPILER},
    }
    # `compile` takes over this file's future: annotations are not evaluated.
    exec(compile(tree, "<block_sum>", "exec"), names)
    return names[name]


def _untouched(function: ast.FunctionDef) -> bool:
    """A stub: it holds `...` and nothing that touches total."""
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    dots = any(isinstance(node, ast.Constant) and node.value is Ellipsis for node in nodes)
    return dots and not any(isinstance(node, ast.Name) and node.id == "total" for node in nodes)


def _quoted(lines: list[str], number: int) -> str:
    return f"line {number} (`{lines[number - 1].strip()}`)" if 0 < number <= len(lines) else "the kernel"


def _wrong_in_text(function: ast.FunctionDef, lines: list[str]) -> str:
    """A sentence on what the simulator would let pass, or ""."""
    if not _takes_x_and_total(function.args):
        return f"The parameters of {function.name} must stay x and total, since the launch gives it these two arrays."
    for node in itertools.chain.from_iterable(map(ast.walk, function.body)):
        match node:
            case ast.Import() | ast.ImportFrom():
                return (
                    f"The import in {_quoted(lines, node.lineno)} must go: cuda, BLOCK and float32 are given."
                )
            case ast.Name(id="float"):
                return (
                    f"`float` in {_quoted(lines, node.lineno)} means float64. For an array write float32; a value of x "
                    "or of such an array is float32 already, so leave out float()."
                )
            case ast.Call(func=ast.Name(id="sum") | ast.Attribute(attr="sum")):
                return (
                    f"A kernel can't loop over an array with sum(); add by index. In {_quoted(lines, node.lineno)} the "
                    "steps of the tree should have left the sum in one slot."
                )
            case (
                ast.Name(id="float64" | "round" as word)
                | ast.Attribute(attr="float64" | "double" | "round" as word)
                | ast.Constant(value="float64" | "double" as word)
            ):
                return (
                    f"`{word}` in {_quoted(lines, node.lineno)} hides the rounding instead of ordering it: a wider or "
                    "rounded sum still depends on the order. Keep every addition in float32."
                )
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="shared"), attr="array"), args=[size, *_]
            ):
                if not isinstance(size, ast.Constant) and ast.unparse(size) not in ("BLOCK", "(BLOCK,)"):
                    return (
                        f"The size of the shared array in {_quoted(lines, node.lineno)} must be known when the GPU's "
                        "compiler sees it, not when the kernel runs. Write BLOCK."
                    )
    return ""


def _takes_x_and_total(parameters: ast.arguments) -> bool:
    """Whatever their annotations."""
    names = [parameter.arg for parameter in parameters.posonlyargs + parameters.args]
    return names == ["x", "total"] and not (parameters.vararg or parameters.kwonlyargs or parameters.kwarg)


def _wrong_in_trace(trace: simulator.Trace, lines: list[str]) -> str:
    """A sentence on the first thing wrong in what the threads did, or ""."""
    if trace.fault:
        given = "Use only cuda, BLOCK and float32, and of cuda what the exercise names."
        advice = given if trace.fault.sentence.startswith(("NameError", "AttributeError")) else ""
        told = trace.fault.sentence.replace("_WatchedArray", "array")
        if " touches " in told and "[" not in _quoted(lines, trace.fault.line):
            # Python asks for one element after another until there is none, which no index of the learner's did.
            told = "The check can't follow a loop over a whole array; add by index, one element at a time."
        return f"The kernel stopped in {_quoted(lines, trace.fault.line)}. {told} {advice}".strip()
    for dtype, line in trace.shared:
        if dtype != np.float32:
            return (
                f"The shared array in {_quoted(lines, line)} holds {dtype}, and the exercise is about additions in "
                "float32: in a wider format the order still shows, only less often. Write cuda.shared.array(BLOCK, "
                "float32)."
            )
    if trace.widened:
        access, dtype = trace.widened[0]
        return (
            f"In {_quoted(lines, access.line)} a {dtype} goes into {access.array}, which holds float32: a wider sum "
            "still depends on the order, only less visibly. Keep every addition in float32."
        )
    if diverged := trace.divergence():
        block, line, threads = diverged
        return (
            f"Only {threads} of the {trace.block} threads of block {block} reach the barrier in "
            f"{_quoted(lines, line)}, since it stands in a branch or behind a return. A GPU may wait there for ever. "
            "Let every thread of the block reach every barrier, and put only the additions in the branch."
        )
    if race := trace.race():
        return _race_sentence(*race, lines)
    if trace.unwritten:
        read = trace.unwritten[0]
        return (
            f"In {_quoted(lines, read.line)} shared[{read.index}] of block {read.block} is read, and no thread has "
            "written it. Shared memory starts with whatever lay there: a thread beyond the end of x must set its "
            "slot to 0."
        )
    return ""


def _race_sentence(change: simulator.Access, other: simulator.Access, lines: list[str]) -> str:
    if not change.shared:
        plain = other if change.kind == "atomic" else change
        others = "another block" if change.block != other.block else "another thread"
        element = f"{plain.array}[{plain.index}]"
        return (
            f"An atomic is missing: {_quoted(lines, plain.line)} reads or writes {element} while {others} may change "
            "it. Reading, adding and writing back are three steps, and an addition that comes in between is lost. Use "
            f"cuda.atomic.add({plain.array}, {plain.index}, …). (The simulator runs one thread after another, so its "
            "sum can look right.)"
        )
    does = "reads" if other.kind == "read" else "changes"
    return (
        f"A barrier is missing: thread {other.thread} {does} shared[{other.index}] in {_quoted(lines, other.line)} and "
        f"nothing makes it wait for thread {change.thread}, which changes it in line {change.line}. Put "
        "cuda.syncthreads() between the two steps, where all threads pass it."
    )


def _wrong_result(x: np.ndarray, total: np.ndarray, trace: simulator.Trace, case: Case) -> str:
    if x.tobytes() != case.x.tobytes():
        return "The kernel changed x, which others may still need. Add in shared memory instead."
    value, exact = float(total[0]), math.fsum(case.x.tolist())
    if case.exact and value != exact:
        hint = "Follow one element through the steps: is it added once, and only once?"
        if not any(access.array == "total" for access in trace.accesses):
            hint = "Nothing was added to total[0]; a kernel returns nothing. Let one thread of each block add its sum."
        elif value == exact * case.block:
            hint = "Every thread of a block adds the block's sum; let one thread do it."
        return f"total[0] is {value:g} and should be {exact:g}. {hint}"
    if abs(value - exact) <= error_bound(case.x, case.block.bit_length() + trace.blocks):
        return ""
    return (
        f"total[0] is {value:.9g}, further from {exact:.9g} than rounding in float32 explains. Right with whole "
        "numbers in blocks of 32, wrong with fractions in a larger block: does a number stand where BLOCK belongs? Or "
        "is a value rounded on the way?"
    )


def error_bound(x: np.ndarray, additions: int) -> float:
    """Largest error of a sum of x in which no element passes through more than `additions` additions.

    γ Σ|x| with γ = ku / (1 − ku) and u the unit roundoff of x's dtype: Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd edition, section 4.2.
    """
    ku = additions * np.finfo(x.dtype).eps / 2
    return float(ku / (1 - ku) * math.fsum(np.abs(x).tolist()))


def _another_way(trace: simulator.Trace, case: Case) -> str:
    """A sentence on a right sum that was not reached by a tree and one atomic per block, or ""."""
    atomics = trace.count("atomic", shared=False)
    if atomics > trace.blocks:
        return (
            f"The sum is right, but it took {atomics} atomics for {case.x.size} numbers in {trace.blocks} blocks: they "
            "queue at one address, and come in any order. Sum each block in shared memory first, then add it with "
            "one atomic per block."
        )
    if trace.count("atomic", shared=True):
        return (
            "The sum is right, but the threads of a block add with atomics on shared memory, in any order. A tree "
            "with barriers fixes that order: halve the stride, and let thread t add slot t + stride."
        )
    steps = trace.block.bit_length() - 1
    # Its element of x, two elements in each step, which no thread of a tree exceeds, and the result.
    if trace.most_read() > 2 * steps + 2:
        # Without its own element of x, which it put into shared memory first, and adds only there.
        added = trace.most_read() - bool(trace.shared)
        return (
            f"The sum is right, but one thread reads {added} elements and adds them alone, while the "
            "others wait. In a tree no thread adds more than log2(BLOCK) times: halve the stride in each step."
        )
    return ""


def run_block_sum(
    source: str, name: str = "block_sum", n: int = 1_000_000, block: int = 256, repeats: int = 20
) -> dict[str, Any]:
    """Run a learner's kernel, once it is judged right, on what `open_device` gives: meant for a GPU.

    n, block  in the simulator at most 256 and 32
    Returns {"device", "model", "n", "block", "fingerprints", "sums", "exact", "bound"}; the sums are of normal
    float32 numbers, the same in each run. Not verified on a GPU.
    """
    device = open_device()
    n, block = within_reach(n, block, device)
    kernel = _defined(ast.parse(textwrap.dedent(source)), name, block)
    x = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    blocks = blocks_for(n, block)
    x_on_device = device.put(x)
    totals = []
    for _ in range(repeats):
        total = device.put(np.zeros(1, np.float32))
        device.launch(kernel, blocks, block, x_on_device, total)
        totals.append(device.take(total))
    return {
        "device": device.name,
        "model": device.model,
        "n": n,
        "block": block,
        "fingerprints": [fingerprint(total) for total in totals],
        "sums": [float(total[0]) for total in totals],
        "exact": math.fsum(x.tolist()),
        "bound": error_bound(x, block.bit_length() + blocks),
    }


def within_reach(n: int, block: int, device: Gpu | Simulator) -> tuple[int, int]:
    """(n, block) as asked on a GPU; in the simulator less."""
    return within_reach_of_simulator(n, block) if device.model else (n, block)


def within_reach_of_simulator(n: int, block: int) -> tuple[int, int]:
    """(n, block) for the simulator, which takes a Python thread for each CUDA thread."""
    return min(n, 256), min(block, 32)
