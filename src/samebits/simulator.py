"""numba-cuda's CUDA simulator, watched: what each thread does to memory, and whether two of them race.

The simulator runs one block after another, and the threads of a block in whatever order Python switches
between them. So its result never shows a missing atomic, and shows a missing barrier only by chance. Here
every access to an array is written down (which thread of which block, after how many barriers, in which
line), and two accesses that nothing orders are a race, whatever the sum came out as. NVIDIA's
compute-sanitizer finds races on a GPU in the same way.

A kernel must call the module `cuda`; grids and arrays have one dimension. Needs NUMBA_ENABLE_CUDASIM=1 in
the environment before numba is imported. What the simulator itself does is told in `launch`.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import itertools
import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

# A kernel of the course passes log2(block) barriers and touches a few dozen elements in each thread; a loop
# that comes this far has no end.
MOST_BARRIERS = 200
MOST_ACCESSES = 5_000
# Bytes that a block may declare as shared arrays, on every NVIDIA GPU so far: CUDA C++ Programming Guide, compute
# capabilities.
MOST_SHARED = 48 * 1024


@dataclass(frozen=True)
class Access:
    """One read, write or atomic of one element.

    array     the kernel's parameter; for arrays in shared memory "shared", "shared_2" and so on
    kind      "read", "write" or "atomic"
    barriers  how many barriers the thread had passed
    line      in the kernel's source, from 1
    """

    array: str
    shared: bool
    index: int
    kind: str
    block: int
    thread: int
    barriers: int
    line: int


@dataclass(frozen=True)
class Fault:
    """Why a launch ended early: what a thread did wrong, and in which line (0 where unknown)."""

    sentence: str
    line: int


class Trace:
    """What the threads of one launch did.

    accesses    of all threads; only those of one thread are in its order
    shared      dtype and line of each array in shared memory
    widened     writes and atomics with a float wider than the array that it goes into, and the float's dtype
    barriers    (block, thread) → line of each barrier that the thread reached
    unwritten   reads of shared elements that no thread of the block had written yet
    fault       None if the kernel ran to its end
    """

    def __init__(self, blocks: int, block: int):
        self.blocks = blocks
        self.block = block
        self.accesses: list[Access] = []
        self.shared: list[tuple[np.dtype, int]] = []
        self.widened: list[tuple[Access, np.dtype]] = []
        self.barriers: dict[tuple[int, int], list[int]] = {
            (b, t): [] for b in range(blocks) for t in range(block)
        }
        self.unwritten: list[Access] = []
        self.fault: Fault | None = None

    def count(self, kind: str, shared: bool | None = None) -> int:
        """How many accesses were of this kind; in shared or global memory only, if asked."""
        return sum(a.kind == kind and shared in (None, a.shared) for a in self.accesses)

    def most_read(self) -> int:
        """How many elements the busiest thread read, each counted once."""
        read: dict[tuple[int, int], set[tuple[str, int]]] = defaultdict(set)
        for access in self.accesses:
            if access.kind == "read":
                read[access.block, access.thread].add((access.array, access.index))
        return max(map(len, read.values()), default=0)

    def divergence(self) -> tuple[int, int, int] | None:
        """(block, line, threads) of the first barrier that only some threads of a block reach; None if all do.

        CUDA lets __syncthreads stand in a branch only if all threads of the block take it.
        """
        for block in range(self.blocks):
            lines = [self.barriers[block, thread] for thread in range(self.block)]
            for reached in itertools.zip_longest(*lines):
                if len(set(reached)) > 1:
                    line = next(line for line in reached if line is not None)
                    return block, line, reached.count(line)
        return None

    def race(self) -> tuple[Access, Access] | None:
        """Two accesses to one element that nothing orders and that are neither both reads nor both atomics.

        Barriers order the threads of one block; nothing orders two blocks. (A kernel that orders blocks by a
        fence and a counter, as `single_pass` does, is beyond this rule.)
        """
        elements: dict[tuple, list[Access]] = defaultdict(list)
        for a in self.accesses:
            elements[a.array, a.block if a.shared else None, a.index].append(a)
        races = []
        for accesses in elements.values():
            if {a.kind for a in accesses} in ({"read"}, {"atomic"}):
                continue
            between_barriers = defaultdict(list)
            for a in accesses:
                between_barriers[a.block, a.barriers].append(a)
            groups = [_first_conflict(group, lambda a: a.thread) for group in between_barriers.values()]
            races += filter(None, [*groups, _first_conflict(accesses, lambda a: a.block)])
        return min(races, key=lambda pair: (pair[0].barriers, pair[0].line, pair[0].index), default=None)


def _first_conflict(accesses: list[Access], owner: Callable[[Access], int]) -> tuple[Access, Access] | None:
    """Two accesses by two owners, at least one of them a change, and not both atomic."""
    kinds = {(owner(a), a.kind): a for a in reversed(accesses)}.values()
    for first, second in itertools.combinations(kinds, 2):
        if owner(first) != owner(second) and {first.kind, second.kind} not in ({"read"}, {"atomic"}):
            return (first, second) if first.kind != "read" else (second, first)
    return None


def launch(kernel: Callable[..., None], blocks: int, block: int, *arrays: np.ndarray) -> Trace:
    """Run `kernel` with `blocks` blocks of `block` threads; `arrays` (1-d) are changed in place.

    kernel  a plain function of its own: its global `cuda` is set to the watched one

    What the simulator does (numba-cuda 0.30): one Python thread for each CUDA thread, one block after another.
    Arithmetic is NumPy's: float32 stays float32 and rounds as on a GPU, but a Python float does not widen it,
    while compiled code computes `0.0 + x[i]` in float64. A barrier waits for the threads that are still
    running, so that one in a branch does no harm there. What is added here: threads take turns in the order
    of their number between two barriers, since Python's own switching would change the order of atomics in
    one launch of a hundred; and shared memory starts with NaN instead of what the last block left.
    """
    from numba import cuda

    global _running
    _running = cuda
    trace = Trace(blocks, block)
    turns = [_Turns(block) for _ in range(blocks)]
    kernel.__globals__["cuda"] = _WatchedCuda(trace, turns)
    names = inspect.signature(kernel).parameters
    watched = [_WatchedArray(trace, name, array) for name, array in zip(names, arrays, strict=True)]

    def in_turn():
        number, thread = _here()
        turns[number].wait(thread)
        try:
            # The simulator overlooks an exception if the thread dies while it looks at others, and would then wait
            # for all of them: so none goes on after a fault.
            if trace.fault is None:
                kernel(*watched)
        except Exception as error:
            if trace.fault is None:
                trace.fault = Fault(_told(error), _line_of(error, kernel))
            raise
        finally:
            turns[number].leave(thread)

    try:
        with _quick_switching():
            cuda.jit(in_turn)[blocks, block]()
    except Exception:
        if trace.fault is None:
            raise
        _end_threads(turns)
    return trace


# numba.cuda; while a kernel runs, the simulator puts its own module in the place of every global that is
# numba.cuda in the file of the launched function, which is this one.
_running: Any = None


def _here() -> tuple[int, int]:
    """(block, thread) that is running this."""
    return _running.blockIdx.x, _running.threadIdx.x


class _Turns:
    """Who of a block may run: between two barriers one thread after another, by number."""

    def __init__(self, block: int):
        self._now = list(range(block))
        self._after_barrier: list[int] = []
        self._go = [threading.Semaphore(0) for _ in range(block)]
        self._go[0].release()

    def wait(self, thread: int) -> None:
        self._go[thread].acquire()

    def wake_all(self) -> None:
        for go in self._go:
            go.release()

    def leave(self, thread: int, for_barrier: bool = False) -> None:
        if self._now[:1] != [thread]:
            return  # stopped at a barrier, after the fault of another thread: its turn was over before
        self._now.pop(0)
        if for_barrier:
            self._after_barrier.append(thread)
        if not self._now:
            self._now, self._after_barrier = self._after_barrier, []
        if self._now:
            self._go[self._now[0]].release()


@contextlib.contextmanager
def _quick_switching():
    """The simulator's main thread polls and never waits; with Python's usual 5 ms a launch takes 7 times longer."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def _end_threads(turns: list[_Turns]) -> None:
    """End the threads of a kernel that stopped early: one in a loop without end would run on in this process."""
    threads = [thread for thread in threading.enumerate() if hasattr(thread, "blockIdx")]
    for block in turns:
        block.wake_all()  # each ends at its next access or barrier
    end = time.monotonic() + 1
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    for thread in threads:
        if thread.is_alive():
            ident = ctypes.c_ulong(thread.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
            thread.join(1)


def _told(error: Exception) -> str:
    message = str(error).rstrip(".")
    return f"{type(error).__name__}: {message}." if message else f"{type(error).__name__}."


def _line_of(error: Exception, kernel: Callable) -> int:
    frames = inspect.getinnerframes(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == kernel.__code__.co_filename]
    return lines[-1] if lines else 0


# --- What a kernel sees instead of `cuda` and of its arrays ---------------------------------------------


class _Stopped(Exception):
    """Raised in a thread of the simulator after the trace has its fault."""


class _Watched:
    def __init__(self, trace: Trace):
        self._trace = trace

    def _thread(self) -> tuple[int, int]:
        """(block, thread) that is running this. Ends it if another thread has stopped the launch."""
        if self._trace.fault is not None:
            raise _Stopped(self._trace.fault.sentence)
        return _here()

    def _stop(self, sentence: str, line: int) -> None:
        if self._trace.fault is None:
            self._trace.fault = Fault(sentence, line)
        raise _Stopped(sentence)


class _WatchedCuda(_Watched):
    """`cuda` in a kernel: barriers, atomics and shared arrays are recorded, everything else passed on."""

    def __init__(self, trace: Trace, turns: list[_Turns]):
        super().__init__(trace)
        self._turns = turns
        self.shared = _SharedMemory(trace)
        self.atomic = _Atomic(trace)

    def __getattr__(self, name: str) -> Any:
        return getattr(_running, name)

    def syncthreads(self) -> None:
        block, thread = self._thread()
        line = sys._getframe(1).f_lineno
        passed = self._trace.barriers[block, thread]
        if len(passed) >= MOST_BARRIERS:
            self._stop(
                f"Thread {thread} of block {block} came to a barrier for the {MOST_BARRIERS}th time, so the "
                "loop round it does not end. Halve the stride in each step, and stop when it is 0.",
                line,
            )
        passed.append(line)
        self._turns[block].leave(thread, for_barrier=True)
        _running.syncthreads()
        self._turns[block].wait(thread)
        self._thread()  # ends this one if another stopped the launch meanwhile


class _SharedMemory(_Watched):
    """`cuda.shared`: one array for each block and each line that asks for one."""

    def __init__(self, trace: Trace):
        super().__init__(trace)
        self._arrays: dict[tuple[int, int], _WatchedArray] = {}
        self._lines: list[int] = []

    def array(self, shape: int, dtype: Any) -> _WatchedArray:
        block, _ = self._thread()
        line = sys._getframe(1).f_lineno
        if (block, line) not in self._arrays:
            if line not in self._lines:
                self._lines.append(line)
            number = self._lines.index(line) + 1
            name = "shared" if number == 1 else f"shared_{number}"
            dtype = np.dtype(dtype if isinstance(dtype, type | np.dtype) else str(dtype))
            if number == len(self._trace.shared) + 1:
                self._trace.shared.append((dtype, line))
            size = math.prod(shape) if isinstance(shape, tuple) else shape
            others = sum(array.nbytes for (owner, _), array in self._arrays.items() if owner == block)
            needed = others + size * dtype.itemsize
            if needed > MOST_SHARED:
                self._stop(
                    f"With this array the shared memory of a block comes to {needed:,} bytes, and a block has 48 KiB, "
                    "so a GPU would not launch it. One element for each thread is enough: BLOCK.",
                    line,
                )
            nothing = np.iinfo(dtype).max if dtype.kind in "iu" else np.nan
            values = np.full(shape, nothing, dtype)
            self._arrays[block, line] = _WatchedArray(self._trace, name, values, shared=True)
        return self._arrays[block, line]


class _Atomic(_Watched):
    """`cuda.atomic`, of which the course uses the addition."""

    def add(self, array: _WatchedArray, index: int, value: Any) -> Any:
        if not isinstance(array, _WatchedArray):
            line = sys._getframe(1).f_lineno
            self._stop(
                "cuda.atomic.add takes an array, an index and a value: cuda.atomic.add(total, 0, value).",
                line,
            )
        array._record("atomic", index, value)
        return _running.atomic.add(array._values, index, value)


class _WatchedArray(_Watched):
    """A one-dimensional array whose reads and writes are recorded."""

    def __init__(self, trace: Trace, name: str, values: np.ndarray, shared: bool = False):
        super().__init__(trace)
        self._name = name
        self._values = values
        self._shared = shared
        self._written: set[int] = set()
        self._uses: dict[tuple[int, int], int] = defaultdict(int)

    dtype = property(lambda self: self._values.dtype)
    size = property(lambda self: self._values.size)
    shape = property(lambda self: self._values.shape)
    nbytes = property(lambda self: self._values.nbytes)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> Any:
        self._record("read", index)
        return self._values[index]

    def __setitem__(self, index: int, value: Any) -> None:
        self._record("write", index, value)
        self._values[index] = value

    def _record(self, kind: str, index: int, value: Any = None) -> None:
        block, thread = self._thread()
        who = f"Thread {thread} of block {block}"
        line = sys._getframe(2).f_lineno
        if isinstance(index, tuple) and len(index) == 1:
            (index,) = index  # as compiled kernels take it, too
        if not isinstance(index, int | np.integer):
            self._stop(
                f"{who} uses {index!r} as an index of {self._name}, which takes whole numbers, one at a time. "
                "Halve a stride with //, which stays whole.",
                line,
            )
        if not -self.size <= index < self.size:
            elements = "1 element" if self.size == 1 else f"{self.size} elements"
            self._stop(
                f"{who} touches {self._name}[{index}], but {self._name} has {elements}. A GPU would not "
                f"stop there, but take whatever lies in that memory. Let a thread first test that its index is "
                f"below {self.size if self._shared else f'{self._name}.size'}.",
                line,
            )
        self._uses[block, thread] += 1
        if self._uses[block, thread] > MOST_ACCESSES:
            self._stop(f"{who} used {self._name} {MOST_ACCESSES} times, so its loop does not end.", line)
        index = int(index) % self.size  # compiled kernels count negative indices from the end, too
        passed = len(self._trace.barriers[block, thread])
        access = Access(self._name, self._shared, index, kind, block, thread, passed, line)
        self._trace.accesses.append(access)
        dtype = getattr(value, "dtype", self.dtype)
        if dtype.kind == self.dtype.kind == "f" and dtype.itemsize > self.dtype.itemsize:
            self._trace.widened.append((access, dtype))
        if kind != "write" and self._shared and index not in self._written:
            self._trace.unwritten.append(access)
        if kind != "read":
            self._written.add(index)
