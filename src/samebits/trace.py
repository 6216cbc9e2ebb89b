"""What every op of a PyTorch program read and gave, as fingerprints in a file, and where two such files part.

    with recording("first.trace"):          # a part of a program; a whole one: python -m samebits trace
        train()
    print(compare("first.trace", "second.trace"))

Two runs of one program should write the same file. The first line in which they don't is the first divergence,
and what that line says tells its kind: the same inputs with another result is a race, or another algorithm; another
state of the random generator is a missing seed; other inputs, though every op before agreed, came from outside
PyTorch; another op is Python's decision.

A file is lines of JSON: a header, then one line for each op in the order in which they ran, then an end. It holds
fingerprints, no values. What never passes PyTorch's dispatcher is not in it: another library's kernels, other threads
of Python and other processes. What those change shows at the op that reads it next. And while a recording is under
way, PyTorch runs the ops of a function made by torch.compile one by one: its compiled code is not what is recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import itertools
import json
import linecache
import os
import platform
import re
import sys
import sysconfig
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.bits import device_fingerprint, fingerprint, read_device_fingerprints

if TYPE_CHECKING:
    import torch

FORMAT = 1
# Variables that are known to change the bits or the order of work: where two runs differ in one, it is said.
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "PYTHONHASHSEED",
)
# These write what they are given without reading it first.
_WRITE_ONLY = frozenset(
    f"aten::{name}_"
    for name in "bernoulli cauchy copy exponential fill geometric log_normal normal random set uniform zero".split()
)
_WITHOUT_CONTENTS = frozenset(
    "aten::empty aten::empty_like aten::empty_permuted aten::empty_strided aten::new_empty "
    "aten::new_empty_strided".split()
)
# These compute nothing: what set_ points to came from elsewhere, as from a loader's worker or from a file.
_NO_WORK = frozenset(("aten::detach", "aten::set_"))
# Scratch memory for the backward pass, given as a result and not filled whole: it differs from run to run and means
# nothing. Backward ops read it under one of these names.
_SCRATCH = {
    "aten::mkldnn_rnn_layer": ("[3]",),
    "aten::_cudnn_rnn": ("[3]",),
    "aten::miopen_rnn": ("[3]",),
    "aten::cudnn_batch_norm": ("[3]",),
    "aten::_batch_norm_with_update": ("[3]",),
    # The state of a generator that isn't drawn from without dropout; where it is, its state was recorded before.
    "aten::_scaled_dot_product_flash_attention": ("[6]", "[7]"),
    "aten::_scaled_dot_product_cudnn_attention": ("[6]", "[7]"),
    "aten::_scaled_dot_product_efficient_attention": ("[2]", "[3]"),
    "aten::_flash_attention_forward": ("[2]", "[3]"),
    "aten::_efficient_attention_forward": ("[2]", "[3]"),
}
_SCRATCH_NAMES = frozenset(
    "workspace reserve reserveSpace reservedSpace philox_seed philox_offset rng_state unused".split()
)
_WAITING = 1000  # ops whose fingerprints may stay on a GPU before they are read in one transfer
_LINES_KEPT = 200_000  # forward ops whose line is remembered for the backward pass
_AHEAD = 5000  # ops of either run among which a place is looked for where two runs meet again
_ENOUGH = 20  # ops in a row that must be the same for that


class Unreadable(ValueError):
    """A trace file that cannot be read; the message is one sentence for a person."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Unwritable(OSError):
    """A trace file that cannot be written; the message is one sentence for a person."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


# --- What a file holds ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """Where and how a trace was made.

    command    the program and its arguments, as far as they are known
    made       time of day, ISO 8601
    libraries  name → version
    threads    of PyTorch's CPU code when recording began
    flag       whether torch.use_deterministic_algorithms was on when recording began
    variables  those of VARIABLES that were set
    """

    command: str
    made: str
    libraries: Mapping[str, str]
    threads: int
    flag: bool
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Tensor:
    """A tensor as an op met it.

    name         the argument, such as "self" or "tensors[3]"; "" for a result
    what         dtype and shape, such as "float32[16, 4]"
    fingerprint  of its bits; "" where they were not read
    origin       number of the op that wrote its memory last; None if no recorded op did
    part         where it begins in its memory and its strides, if it is only a part of it or another order; else ""
    kind         "parameter" for a torch.nn.Parameter, else ""
    memory       "unwritten" if torch.empty made its memory and nothing wrote it, "partly written" if only a part of
                 it was; else ""
    """

    name: str
    what: str
    fingerprint: str
    origin: int | None = None
    part: str = ""
    kind: str = ""
    memory: str = ""


@dataclass(frozen=True)
class Op:
    """One op of one run.

    number     its place among the ops of the run, from 0
    name       such as "aten.index_put_.default"
    line       where it was called, "train.py:14"; in the backward pass, where the backward pass was started
    forward    in the backward pass: the line of the forward op whose gradient this is, if known; else ""
    module     path of the torch.nn.Module that was at work, "" if none
    phase      "forward", "backward" or "optimizer"
    step       how many optimizer steps were done before
    inputs     tensors that it read
    arguments  numbers, flags and dtypes that it was given, as text
    generator  fingerprint of the state of the random generator that it drew from, before it did; else ""
    results    tensors that it gave and wrote; a number that it gave is a tensor of that name
    """

    number: int
    name: str
    line: str
    forward: str
    module: str
    phase: str
    step: int
    inputs: tuple[Tensor, ...]
    arguments: str
    generator: str
    results: tuple[Tensor, ...]

    def to_json(self) -> dict[str, Any]:
        """Only what says something, so that files stay small and readable."""
        data = dataclasses.asdict(self)
        for tensors in ("inputs", "results"):
            data[tensors] = [{k: v for k, v in t.items() if v not in ("", None)} for t in data[tensors]]
        return {k: v for k, v in data.items() if v not in ("", (), []) or k in ("number", "name")}


_OP_TYPES = {
    "number": int,
    "name": str,
    "line": str,
    "forward": str,
    "module": str,
    "phase": str,
    "step": int,
    "inputs": list,
    "arguments": str,
    "generator": str,
    "results": list,
}
_OP_BLANK = {key: kind() for key, kind in _OP_TYPES.items() if key not in ("number", "name")} | {
    "phase": "forward"
}
_TENSOR_TYPES = {
    "name": str,
    "what": str,
    "fingerprint": str,
    "origin": (int, type(None)),
    "part": str,
    "kind": str,
    "memory": str,
}
_TENSOR_BLANK = {key: "" for key in _TENSOR_TYPES} | {"origin": None}
_END_TYPES = {"end": str, "ops": int, "seconds": (int, float), "unread": int}


def _op(data: Mapping[str, Any]) -> Op:
    """Raises TypeError or KeyError for anything that to_json doesn't make."""
    data = _checked(_OP_BLANK | data, _OP_TYPES)
    tensors = {
        key: tuple(Tensor(**_checked(_TENSOR_BLANK | tensor, _TENSOR_TYPES)) for tensor in data[key])
        for key in ("inputs", "results")
    }
    return Op(**(data | tensors))


def _checked(data: dict[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    if len(data) != len(types):
        raise KeyError
    for key, kind in types.items():
        if not isinstance(data[key], kind):
            raise TypeError(key)
    return data


# --- Recording --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def recording(path: str | os.PathLike, command: str = "") -> Iterator[None]:
    """Write what PyTorch's ops do inside the `with` to the file `path`, which is made anew.

    Ops of this thread and of its backward passes are seen, on any device. Numbers and shapes are written as they
    are; tensors as fingerprints (xxh3 of their bytes on a CPU; on a GPU mix64, which stays there until a thousand
    ops have run). Random generators are read, never drawn from. Raises Unwritable if the file cannot be written, as
    when the disk is full, and RuntimeError inside another recording.
    """
    import torch
    from torch.nn.modules import module
    from torch.optim import optimizer

    if _RECORDING.locked():
        raise RuntimeError("A recording is under way already; end it before you begin another.")
    with _RECORDING, contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "wb", buffering=0))
        except OSError as error:
            raise _unwritable(path, error) from error
        writer = _Writer(file)
        writer.begin(
            Header(
                command=command or " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                made=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                libraries={"python": platform.python_version(), "torch": torch.__version__},
                threads=torch.get_num_threads(),
                flag=torch.are_deterministic_algorithms_enabled(),
                variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
            )
        )
        hooks = (
            optimizer.register_optimizer_step_pre_hook(writer.optimizer_begins),
            optimizer.register_optimizer_step_post_hook(writer.optimizer_ends),
            module.register_module_forward_pre_hook(writer.modules.entered),
            module.register_module_forward_hook(writer.modules.left, always_call=True),
        )
        for hook in hooks:
            stack.callback(hook.remove)
        ended = "complete"
        try:
            with _mode(writer):
                yield
        except BaseException as error:
            ended = type(error).__name__
            raise
        finally:
            writer.end(ended)


_RECORDING = threading.Lock()


def _unwritable(path: Any, error: OSError) -> Unwritable:
    return Unwritable(f"The trace {path} could not be written ({error.strerror}).")


def _mode(writer: _Writer) -> contextlib.AbstractContextManager:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            about = writer.about(function)
            # A loader's worker is forked with this mode on, and must not write into the parent's file.
            if about.skipped or os.getpid() != writer.process:
                return function(*args, **kwargs)
            before = writer.before(about, args, kwargs)
            result = function(*args, **kwargs)
            writer.after(about, before, args, kwargs, result)
            return result

    return Watching()


@dataclass(frozen=True)
class _About:
    """What the schema of an op says: looked up once."""

    name: str
    skipped: bool
    seeded: bool
    without_contents: bool
    names: tuple[str, ...]
    written: frozenset[str]
    unread: frozenset[str]
    scratch: tuple[str, ...]


@dataclass
class _Before:
    line: str
    forward: str
    module: str
    phase: str
    inputs: list[dict]
    arguments: str
    generator: str


class _Modules:
    """Which torch.nn.Module is at work in this thread, by its path from the outermost one.

    torch.utils.module_tracker knows it in the backward pass too, but for that it hangs hooks on the program's tensors.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._at_work: list[tuple[Any, str]] = []
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    @property
    def innermost(self) -> str:
        return self._at_work[-1][1] if self._at_work else ""

    def entered(self, module: Any, *_: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        name = self._names.get(module)
        if name is None:
            name = type(module).__name__
            if self._at_work:
                outer, path = self._at_work[-1]
                inside = next((inner for inner, part in outer.named_modules() if part is module), "")
                name = f"{path}.{inside or name}"
            self._names[module] = name
        self._at_work.append((module, name))

    def left(self, module: Any, *_: Any) -> None:
        if threading.get_ident() == self._thread and self._at_work and self._at_work[-1][0] is module:
            self._at_work.pop()


class _Writer:
    """Makes the lines of one file."""

    def __init__(self, file: Any):
        self.process = os.getpid()
        self.modules = _Modules()
        self._thread = threading.get_ident()
        self._file = file
        self._failed = False
        self._lock = threading.RLock()  # a backward pass on GPUs has a thread for each
        self._abouts: dict[Any, _About] = {}
        self._lines: dict[tuple[str, int], str] = {}
        self._ours: dict[Any, bool] = {}
        self._forward: dict[int, tuple[str, str]] = {}  # of an autograd node: line and module of its op
        self._memory = _Memory()
        self._waiting: list[dict] = []
        self._on_device: list[tuple[dict, torch.Tensor]] = []
        self._number = 0
        self._step = 0
        self._stepping = 0
        self._unread = 0
        self._began = time.monotonic()

    # The file

    def begin(self, header: Header) -> None:
        self._write({"samebits": "trace", "format": FORMAT, **dataclasses.asdict(header)})

    def end(self, how: str) -> None:
        # A child that was forked inside the recording comes here too, and has the file open.
        if self._failed or os.getpid() != self.process:
            return
        self._flush()
        seconds = round(time.monotonic() - self._began, 3)
        self._write({"end": how, "ops": self._number, "seconds": seconds, "unread": self._unread})

    def _write(self, *lines: dict) -> None:
        # A name of a file that is no text must not end the program.
        text = b"".join(
            json.dumps(line, ensure_ascii=False).encode(errors="replace") + b"\n" for line in lines
        )
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._failed = True
            raise _unwritable(self._file.name, error) from error

    def _flush(self) -> None:
        for (tensor, _), text in zip(self._on_device, self._read_devices(), strict=True):
            if text:
                tensor["fingerprint"] = text
        self._on_device.clear()
        waiting, self._waiting = self._waiting, []
        self._write(*waiting)

    def _read_devices(self) -> list[str]:
        """The waiting fingerprints, in one transfer from each device; "" for what a device can't give."""
        import torch

        texts = [""] * len(self._on_device)
        for device in {value.device for _, value in self._on_device}:
            places = [i for i, (_, value) in enumerate(self._on_device) if value.device == device]
            try:
                if device.type == "cuda":
                    torch.cuda.synchronize(device)  # they were made on the streams of the program
                read = read_device_fingerprints([self._on_device[i][1] for i in places])
            except Exception:
                self._unread += len(places)
                continue
            for i, text in zip(places, read, strict=True):
                texts[i] = text
        return texts

    # Steps of an optimizer

    def optimizer_begins(self, *_: Any) -> None:
        self._stepping += 1

    def optimizer_ends(self, *_: Any) -> None:
        self._stepping -= 1
        self._step += 1

    # One op

    def about(self, function: Any) -> _About:
        if function not in self._abouts:
            self._abouts[function] = _about(function)
        return self._abouts[function]

    def before(self, about: _About, args: tuple, kwargs: dict) -> _Before:
        """Read at once, since the op may write over its inputs."""
        import torch

        with self._lock:
            line, module, forward = self._line(), self.modules.innermost, ""
            node = _autograd_node()
            known = self._forward.get(node._sequence_nr()) if node is not None else None
            if known:
                forward, module = known
            # An op and the node of its gradient carry the same number, in the thread that ran the op.
            sequence = _next_sequence_number() if threading.get_ident() == self._thread else 0
            if sequence and sequence - 1 not in self._forward:
                self._forward[sequence - 1] = (line, module)
                if len(self._forward) > _LINES_KEPT:
                    for old in list(itertools.islice(self._forward, _LINES_KEPT // 2)):
                        del self._forward[old]
            inputs, plain, generator = [], [], None
            for name, value in _named(about, args, kwargs):
                if isinstance(value, torch.Tensor):
                    if about.without_contents or name.partition("[")[0] in about.unread:
                        continue
                    inputs.append(self._tensor(name, value, self._memory.of(value)))
                elif isinstance(value, torch.Generator):
                    generator = value
                elif value is not None:
                    plain.append(f"{name}={_plain(value)}")
            return _Before(
                line=line,
                forward=forward,
                module=module,
                phase="backward" if node is not None else "optimizer" if self._stepping else "forward",
                inputs=inputs,
                arguments=", ".join(plain),
                generator=_generator_state(generator, args, kwargs) if about.seeded else "",
            )

    def after(self, about: _About, before: _Before, args: tuple, kwargs: dict, result: Any) -> None:
        import torch

        if about.without_contents and isinstance(result, torch.Tensor) and not result.numel():
            return  # what unpickling begins with, in the order in which a loader's workers come
        with self._lock:
            written = [
                (name, value)
                for name, value in _named(about, args, kwargs)
                if isinstance(value, torch.Tensor) and name.partition("[")[0] in about.written
            ]
            in_place = {id(value) for _, value in written}
            given = [(name, value) for name, value in _leaves("", result) if id(value) not in in_place]
            results = []
            for name, value in written + given:
                if isinstance(value, torch.Tensor):
                    if name in about.scratch:
                        continue
                    if about.without_contents:
                        self._memory.made_empty(value, self._number)
                        results.append(self._tensor(name, value, None, contents=False))
                    else:
                        self._memory.wrote(value, self._number)
                        results.append(self._tensor(name, value, None))
                elif value is not None:
                    results.append({"name": _plain(value)})
            op = {
                "number": self._number,
                "name": about.name,
                "line": before.line,
                "forward": before.forward,
                "module": before.module,
                "phase": before.phase,
                "step": self._step,
                "inputs": before.inputs,
                "arguments": before.arguments,
                "generator": before.generator,
                "results": results,
            }
            self._waiting.append({k: v for k, v in op.items() if v not in ("", []) or k == "number"})
            self._number += 1
            if len(self._waiting) >= _WAITING:
                self._flush()

    def _tensor(
        self, name: str, value: torch.Tensor, memory: _Origin | None, contents: bool = True
    ) -> dict[str, Any]:
        """Only what says something; without its fingerprint if it has no contents."""
        import torch

        found: dict[str, Any] = {"name": name, "what": str(value.dtype).removeprefix("torch.")}
        try:
            found["what"] = _what(value)
            if part := _part(value):
                found["part"] = part
            if contents:
                self._fingerprint(value, found)
        except Exception:
            # A nested tensor, or another package's subclass: its reader must not end the program.
            self._unread += 1
        if memory is not None:
            found["origin"] = memory.op
            if memory.state:
                found["memory"] = memory.state
        elif isinstance(value, torch.nn.Parameter):
            found["kind"] = "parameter"
        return found

    def _fingerprint(self, value: torch.Tensor, found: dict[str, Any]) -> None:
        parts = _parts(value)
        whole = parts[0] if len(parts) == 1 else parts
        if _is_at_hand(value):
            found["fingerprint"] = fingerprint(whole, "xxh3")
        elif value.device.type == "meta" or _captured():
            self._unread += 1
        else:
            self._on_device.append((found, device_fingerprint(whole)))

    def _line(self) -> str:
        """The innermost line of the program itself, "" where there is none, as in a backward pass on a GPU."""
        frame = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            ours = self._ours.get(code)
            if ours is None:
                ours = self._ours[code] = _is_program(code.co_filename)
            if ours:
                break
            frame = frame.f_back
        if frame is None:
            return ""
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place not in self._lines:
            short = f"{_called(place[0])}:{place[1]}"
            self._lines[place] = short
            self._waiting.append({"line": short, "text": linecache.getline(*place).strip()})
        return self._lines[place]


@dataclass(frozen=True)
class _Origin:
    op: int
    state: str = ""


class _Memory:
    """Which op wrote each storage last, and whether anything did since torch.empty made it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, _Origin]] = {}
        self._sweep_at = 10_000

    def of(self, tensor: torch.Tensor) -> _Origin | None:
        storage = _storage(tensor)
        found = self._known.get(storage._cdata) if storage is not None else None
        return found[1] if found and not found[0].expired() else None

    def made_empty(self, tensor: torch.Tensor, op: int) -> None:
        self._note(tensor, _Origin(op, "unwritten"))

    def wrote(self, tensor: torch.Tensor, op: int) -> None:
        storage = _storage(tensor)
        if storage is None:
            return
        old = self.of(tensor)
        whole = tensor.numel() * tensor.element_size() >= storage.nbytes()
        partly = old is not None and old.state and not whole
        self._note(tensor, _Origin(op, "partly written" if partly else ""))

    def _note(self, tensor: torch.Tensor, origin: _Origin) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = _storage(tensor)
        if storage is None:
            return
        known = self._known.get(storage._cdata)
        # A weak reference keeps the address from being given to another storage.
        reference = known[0] if known and not known[0].expired() else StorageWeakRef(storage)
        self._known[storage._cdata] = (reference, origin)
        if len(self._known) > self._sweep_at:
            self._known = {k: v for k, v in self._known.items() if not v[0].expired()}
            self._sweep_at = 2 * len(self._known) + 10_000


def _about(function: Any) -> _About:
    import torch

    schema = function._schema
    arguments = schema.arguments
    written = {a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write}
    aliases = any(a.alias_info is not None and not a.alias_info.is_write for a in arguments)
    base = schema.name
    # A view computes nothing; but lift_fresh is where torch.tensor's numbers come in.
    view = aliases and not written and base != "aten::lift_fresh"
    return _About(
        name=str(function),
        skipped=view or base.partition("::")[0] in ("profiler", "prim") or base in _NO_WORK,
        seeded=torch.Tag.nondeterministic_seeded in function.tags,
        without_contents=base in _WITHOUT_CONTENTS,
        names=tuple(a.name for a in arguments),
        written=frozenset(written),
        unread=frozenset(written if base in _WRITE_ONLY else {a.name for a in arguments if a.is_out})
        | (_SCRATCH_NAMES if "backward" in base else frozenset()),
        scratch=_SCRATCH.get(base, ()),
    )


def _named(about: _About, args: tuple, kwargs: dict) -> Iterator[tuple[str, Any]]:
    for name, value in itertools.chain(zip(about.names, args, strict=False), kwargs.items()):
        yield from _leaves(name, value)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Tensors in lists by name and place; a list without tensors is one value."""
    import torch

    if isinstance(value, (list, tuple)) and any(isinstance(x, (torch.Tensor, list, tuple)) for x in value):
        for place, part in enumerate(value):
            yield from _leaves(f"{name}[{place}]", part)
    else:
        yield name, value


def _plain(value: Any) -> str:
    """A value that is no tensor, without addresses, which no two runs share."""
    import torch

    if isinstance(
        value, (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    ):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_plain(part) for part in value)}]"
    return type(value).__name__


def _what(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{_numbers(tensor.shape)}"


def _part(tensor: torch.Tensor) -> str:
    if _storage(tensor) is None or (tensor.storage_offset() == 0 and tensor.is_contiguous()):
        return ""
    return f"from {tensor.storage_offset()} by {_numbers(tensor.stride())}"


def _numbers(sizes: Any) -> str:
    """Without the names that PyTorch makes up for lengths which differ within a nested tensor: j1, j2, …"""
    text = str(list(sizes))
    return re.sub(r"\bj\d+", "?", text) if "j" in text else text


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What holds a tensor's values: itself, or what a sparse or quantized one is made of."""
    import torch

    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    if tensor.is_quantized:
        return [tensor.int_repr()]
    return [_compact(tensor)]


def _is_at_hand(tensor: torch.Tensor) -> bool:
    """Whether reading it makes no device wait."""
    return tensor.device.type == "cpu"


def _autograd_node() -> Any:
    """The node of the backward pass that is at work in this thread; None in a forward pass."""
    import torch

    return torch._C._current_autograd_node()


def _next_sequence_number() -> int:
    """Of the autograd nodes that this thread makes; 0 where PyTorch doesn't tell."""
    import torch

    tell = getattr(torch.autograd, "_get_sequence_nr", None)
    return tell() if tell else 0


def _captured() -> bool:
    """Whether a CUDA graph is being captured, in which nothing of ours may run."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """Without the repeats of an expanded tensor, which would be copied out."""
    if 0 in tensor.stride() and tensor.numel():
        for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            if stride == 0 and size > 1:
                tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors and some subclasses have none
        return None


def _generator_state(generator: Any, args: tuple, kwargs: dict) -> str:
    """Of the generator that was given, else of the default one of the op's device; "" where it can't be read."""
    import torch

    if generator is None:
        devices = (
            value.device
            for _, value in _leaves("", [*args, *kwargs.values()])
            if isinstance(value, torch.Tensor)
        )
        device = torch.device(kwargs.get("device") or next(devices, "cpu"))
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            generator = torch.cuda.default_generators[index]
        elif device.type == "cpu":
            generator = torch.default_generator
        else:
            return ""
    try:
        return fingerprint(generator.get_state(), "xxh3")
    except RuntimeError:  # of a GPU, while a CUDA graph is captured
        return ""


def _called(file: str) -> str:
    """What a person calls a source file: its name, or of a cell of a notebook, which IPython keeps in a file whose
    name is a number, "In[7]"."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    tell = getattr(getattr(shell, "compile", None), "format_code_name", None)
    named = tell(file) if tell else None
    return named[1] if named else Path(file).name


def _is_program(file: str) -> bool:
    """Whether a source file is the program's own: not PyTorch's, another package's, Python's, or this one's."""
    if file.startswith("<"):
        return file.startswith(("<ipython", "<stdin"))  # not what dataclasses and compilers make up
    path = os.path.abspath(file)
    # The program itself may lie anywhere, the course's cases among the packages.
    if sys.argv and path == os.path.abspath(sys.argv[0] or "."):
        return True
    ours, packages, stdlib = _places()
    if path in ours or path.startswith(packages):
        return False
    # Without a virtual environment, packages lie inside the standard library's folder, and programs may too.
    return not path.startswith(stdlib)


@functools.cache
def _places() -> tuple[frozenset[str], tuple[str, ...], str]:
    """This package's files that run a program, the folders of packages, and that of the standard library."""
    here = os.path.dirname(os.path.abspath(__file__))
    ours = frozenset(os.path.join(here, name) for name in ("trace.py", "cli.py", "__main__.py"))
    places = sysconfig.get_paths()
    return ours, tuple({places[name] + os.sep for name in ("purelib", "platlib")}), places["stdlib"] + os.sep


# --- Reading ----------------------------------------------------------------------------------------------


class Trace:
    """A trace file, read as it is iterated: `for op in Trace(path)`.

    header, path  what it begins with, and where it is
    lines         text of the program's lines that were met so far, "train.py:14" → "loss.backward()"
    ended         after the last op: "complete", the name of the exception that ended the program, or "cut off"
    unread        after the last op: how many tensors had no fingerprint, being sparse, without contents, or foreign
    Raises Unreadable, with one sentence, for a file that is none or that is damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.lines: dict[str, str] = {}
        self.ended = ""
        self.unread = 0
        try:
            first = self._object(next(self._open(), ""), 1)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise Unreadable(f"{self.path} could not be read ({reason}).") from error
        if first.get("samebits") != "trace":
            raise Unreadable(f"{self.path} is no trace: python -m samebits trace makes one.")
        if first.get("format") != FORMAT:
            raise Unreadable(
                f"{self.path} has format {first.get('format')!r}, and this version reads format {FORMAT}; "
                "record it again."
            )
        try:
            self.header = Header(**{f.name: first[f.name] for f in dataclasses.fields(Header)})
        except KeyError as error:
            raise Unreadable(
                f"The header of {self.path} says nothing of {error}; record it again."
            ) from error
        for name, kind in _HEADER_TYPES.items():
            if not isinstance(first[name], kind):
                raise Unreadable(f"The header of {self.path} is damaged at {name!r}; record it again.")

    def __iter__(self) -> Iterator[Op]:
        expected = 0
        self.ended = "cut off"
        try:
            for place, text in enumerate(self._open(), start=1):
                if place == 1:
                    continue
                if not text.endswith("\n"):
                    return  # the program was killed while it wrote this line
                data = self._object(text, place)
                try:
                    if "end" in data:
                        self.unread = _checked(data, _END_TYPES)["unread"]
                        self.ended = data["end"]
                        return
                    if "number" not in data:
                        line = _checked(data, {"line": str, "text": str})
                        self.lines[line["line"]] = line["text"]
                        continue
                    op = _op(data)
                    if op.number != expected:
                        raise ValueError
                except (TypeError, ValueError, KeyError) as error:
                    raise self._damaged(place) from error
                expected += 1
                yield op
        except (OSError, UnicodeDecodeError) as error:
            raise Unreadable(f"{self.path} could not be read to its end.") from error

    def _open(self) -> Iterator[str]:
        with open(self.path, encoding="utf-8", newline="\n") as file:
            yield from file

    def _object(self, text: str, place: int) -> dict[str, Any]:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            data = None
        if isinstance(data, dict):
            return data
        if place == 1:
            raise Unreadable(f"{self.path} is no trace: python -m samebits trace makes one.")
        raise self._damaged(place)

    def _damaged(self, place: int) -> Unreadable:
        return Unreadable(f"{self.path} is damaged in line {place}; record it again.")


_HEADER_TYPES = {
    "command": str,
    "made": str,
    "libraries": dict,
    "threads": int,
    "flag": bool,
    "variables": dict,
}


# --- Comparing --------------------------------------------------------------------------------------------

# What a first difference can be, and what it means. The order is that in which it is looked for.
KINDS = {
    "flow": "Python took another way: the runs call different ops from here on, though every tensor before agreed",
    "memory": "an op reads memory that torch.empty made and nothing wrote",
    "state": "a parameter was another one already when recording began",
    "input": "a tensor came from outside PyTorch with other contents: data, NumPy, a file, a loader's worker",
    "unseen": "something that was not recorded changed a tensor on which both runs had agreed",
    "python": "Python gave the op another number, another shape or another part of a tensor",
    "random": "the random generator stood elsewhere",
    "result": "the same inputs gave another result: a race, or another algorithm",
    "none": "no op differs",
}


@dataclass(frozen=True)
class Divergence:
    """Where two traces part, and how.

    kind           a key of KINDS
    first, second  the op in either run; None past the end of a run, and for "none"
    tensors        names of what differs in the op: arguments, or "result"
    settings       what of the runs' headers differs: name → (first, second)
    ops            how many ops each run had
    same           how many ops agreed before
    pattern        one character for each op that both runs have, as far as they call the same ops: "." all agree,
                   "r" other results though the inputs agree, "x" other inputs
    more           what one run has that the other has not, in words: kind "flow", and "random" if that is what drew
                   from the generator
    lines          text of the program's lines
    ended          how each run ended
    unread         how many tensors of each run had no fingerprint; what differs only in these isn't seen
    """

    kind: str
    first: Op | None
    second: Op | None
    tensors: tuple[str, ...]
    settings: Mapping[str, tuple[str, str]]
    ops: tuple[int, int]
    same: int
    pattern: str
    more: str = ""
    lines: Mapping[str, str] = field(default_factory=dict)
    ended: tuple[str, str] = ("complete", "complete")
    unread: tuple[int, int] = (0, 0)

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        if self.kind == "none":
            return f"No difference: all {self.ops[0]} ops have the same inputs and the same results."
        op = self.first or self.second
        what = KINDS[self.kind]
        if self.kind == "result" and self.settings:
            what = "the same inputs gave another result under other settings"
        return f"The runs part at op {op.number} of {self.ops[0]}: {what}."

    def __str__(self) -> str:
        return "\n".join(_report(self))

    def to_json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data |= {name: op.to_json() if (op := getattr(self, name)) else None for name in ("first", "second")}
        return data | {"sentence": self.sentence, "settings": dict(self.settings), "lines": dict(self.lines)}


def compare(first: str | os.PathLike | Trace, second: str | os.PathLike | Trace) -> Divergence:
    """The first op in which two trace files differ, and what kind of difference it is. Raises Unreadable.

    The files may come from different processes, machines and versions. Both are read once, op by op. Where one run
    has ops that the other hasn't, it looks on after them: if what parts the runs there is the state of a random
    generator, that is the finding, since the ops themselves changed nothing that both runs read.
    """
    one, other = (x if isinstance(x, Trace) else Trace(x) for x in (first, second))
    pairs = _Pairs(one, other)
    pattern: list[str] = []
    found: tuple[str, Op | None, Op | None, tuple[str, ...]] | None = None
    same = 0
    more = ""
    met = False  # again, after ops of one run only
    for a, b in pairs:
        difference = _difference(a, b)
        kind = difference[0] if difference else ""
        if kind == "flow" and found is not None:
            break
        back = pairs.astray if kind not in ("", "result") and found is None else []
        if kind == "flow" or back:
            more = pairs.meet_again(back)
            met = bool(more)
            if met:
                del pattern[len(pattern) - max(len(back) - 1, 0) :]
            if met or kind == "flow":
                found, same = ("flow", *pairs.apart, ()), len(pattern)
            if met:
                continue
            if kind == "flow":
                more = pairs.other_way()
                break
        pattern.append({"": ".", "result": "r"}.get(kind, "x"))
        if difference is None:
            continue
        if found is None or (met and kind == "random"):
            found, same = (kind, a, b, difference[1]), len(pattern) - 1
        met = False
    kind, a, b, tensors = found or ("none", None, None, ())
    ops = pairs.counted()
    return Divergence(
        kind=kind,
        first=a,
        second=b,
        tensors=tensors,
        settings=_settings(one.header, other.header),
        ops=ops,
        same=same if found else len(pattern),
        pattern="".join(pattern),
        more=more if kind in ("flow", "random") else "",
        lines=other.lines | one.lines,
        ended=(one.ended, other.ended),
        unread=(one.unread, other.unread),
    )


class _Pairs:
    """The ops of two runs side by side, until both have ended; None past the end of one. It can look ahead."""

    def __init__(self, one: Trace, other: Trace):
        self._lines = (one.lines, other.lines)
        self._ops = (iter(one), iter(other))
        self._ahead: tuple[deque[Op], deque[Op]] = (deque(), deque())
        self._read = [0, 0]
        self.apart: tuple[Op | None, Op | None] = (None, None)
        # The pairs up to the last one that were called from lines with another text, without a gap.
        self.astray: list[tuple[Op, Op]] = []

    def __iter__(self) -> Iterator[tuple[Op | None, Op | None]]:
        while True:
            a, b = self._take(0), self._take(1)
            if a is None and b is None:
                return
            self.apart = (a, b)
            if a is None or b is None or self._text(0, a) == self._text(1, b) or len(self.astray) >= _AHEAD:
                self.astray = []
            else:
                self.astray.append((a, b))
            yield a, b

    def meet_again(self, back: list[tuple[Op, Op]]) -> str:
        """Leave out the ops that only one run has, and say in words what they are; "" if the runs don't meet.

        back  the pairs, the last one included, that may have been paired by mistake; [] for only the last one
        """
        parts: tuple[list[Op], list[Op]] = ([], [])
        for pair in back or [self.apart]:
            for part, op in zip(parts, pair, strict=True):
                part += [op] if op else []
        for run, part in enumerate(parts):
            self._look(run)
            part += self._ahead[run]
        keys = [[(op.name, self._text(run, op)) for op in part] for run, part in enumerate(parts)]
        for extra in range(1, max(map(len, keys))):
            for run in (0, 1):
                if not _agree(keys[run], extra, keys[1 - run]):
                    continue
                self.apart = (parts[0][0], parts[1][0])
                for place, part in enumerate(parts):
                    self._ahead[place].clear()
                    self._ahead[place].extend(part[extra if place == run else 0 :])
                return f"the {('first', 'second')[run]} run calls {_counted(parts[run][:extra])} more"
        return ""

    def other_way(self) -> str:
        """What the two runs do from where they part, in words, where they don't meet again."""
        parts = [[op] if op else [] for op in self.apart]
        for run, part in enumerate(parts):
            self._look(run)
            part += itertools.islice(self._ahead[run], 500)
        return _other_way(*parts)

    def counted(self) -> tuple[int, int]:
        """How many ops each run has; reads to the end."""
        for run in (0, 1):
            self._read[run] += sum(1 for _ in self._ops[run])
        return self._read[0], self._read[1]

    def _take(self, run: int) -> Op | None:
        self._look(run, 1)
        return self._ahead[run].popleft() if self._ahead[run] else None

    def _look(self, run: int, ops: int = _AHEAD) -> None:
        before = len(self._ahead[run])
        self._ahead[run].extend(itertools.islice(self._ops[run], max(ops - before, 0)))
        self._read[run] += len(self._ahead[run]) - before

    def _text(self, run: int, op: Op) -> str:
        return self._lines[run].get(op.line, "")


def _agree(one: list, start: int, other: list) -> bool:
    """Whether one list from `start` on is the other list, for long enough or to the end of both."""
    part, others = one[start : start + _ENOUGH], other[:_ENOUGH]
    return bool(part) and part == others


def _difference(a: Op | None, b: Op | None) -> tuple[str, tuple[str, ...]] | None:
    """What differs between two calls of one op, and in which arguments. Inputs come first: where they differ, other
    results need no explanation. A generator that stood elsewhere counts only where the results differ: many ops may
    draw from it and don't."""
    if a is None or b is None or a.name != b.name:
        return "flow", ()
    if len(a.inputs) != len(b.inputs):
        return "python", ("number of tensors",)
    differing = [(x, y) for x, y in zip(a.inputs, b.inputs, strict=True) if _contents(x) != _contents(y)]
    if differing:
        return _kind_of_input(*differing[0]), tuple(x.name for x, _ in differing)
    if a.arguments != b.arguments:
        pairs = zip(a.arguments.split(", "), b.arguments.split(", "), strict=False)
        return "python", tuple(x.partition("=")[0] for x, y in pairs if x != y) or ("arguments",)
    results = [
        x.name or "result"
        for x, y in itertools.zip_longest(a.results, b.results, fillvalue=Tensor("", "", ""))
        if (x.name, *_contents(x)) != (y.name, *_contents(y))
    ]
    if results and a.generator != b.generator:
        return "random", ("generator",)
    return ("result", tuple(results)) if results else None


def _contents(tensor: Tensor) -> tuple[str, str]:
    return tensor.what, tensor.fingerprint


def _kind_of_input(x: Tensor, y: Tensor) -> str:
    if x.memory or y.memory:
        return "memory"
    if x.origin is None or y.origin is None:
        return "state" if "parameter" in (x.kind, y.kind) else "input"
    if (x.what, x.part, x.origin) != (y.what, y.part, y.origin):
        return "python"
    return "unseen"


def _settings(one: Header, other: Header) -> dict[str, tuple[str, str]]:
    def told(header: Header) -> dict[str, str]:
        return {
            "threads": str(header.threads),
            "use_deterministic_algorithms": str(header.flag),
            **{name: str(version) for name, version in header.libraries.items()},
            **{name: str(value) for name, value in header.variables.items()},
        }

    a, b = told(one), told(other)
    return {
        name: (a.get(name, "not set"), b.get(name, "not set")) for name in a | b if a.get(name) != b.get(name)
    }


def _other_way(one: list[Op], other: list[Op]) -> str:
    """What two runs do from where they part, in words: what the one has more, and whether they meet again."""
    names = [[op.name for op in part[:500]] for part in (one, other)]
    tag, a0, a1, b0, b1 = next(
        code
        for code in difflib.SequenceMatcher(None, *names, autojunk=False).get_opcodes()
        if code[0] != "equal"
    )
    if tag == "insert":
        return f"the second run calls {_counted(other[b0:b1])} more"
    if tag == "delete":
        return f"the first run calls {_counted(one[a0:a1])} more"
    return f"the first run calls {_counted(one[a0:a1])} where the second calls {_counted(other[b0:b1])}"


def _counted(ops: list[Op]) -> str:
    place = f" ({ops[0].line})" if ops[0].line else ""
    return ops[0].name + place if len(ops) == 1 else f"{len(ops)} ops, from {ops[0].name}{place} on,"


def _report(found: Divergence) -> Iterator[str]:
    """The finding with the op, the lines of the program and what followed."""
    yield found.sentence
    op = found.first or found.second
    if op is not None:
        yield ""
        if found.kind == "flow":
            for run, op in zip(("first", "second"), (found.first, found.second), strict=True):
                place = f"{op.line}    {found.lines.get(op.line, '')}" if op else ""
                yield f"    {run:11}  {op.name if op else 'has ended'}    {place}".rstrip()
        else:
            yield f"    op           {op.name}"
            for name, line in (("line", op.line), ("gradient of", op.forward)):
                if line:
                    yield f"    {name:11}  {line}    {found.lines.get(line, '')}".rstrip()
            place = [f"step {op.step}", op.phase, op.module]
            yield f"    when         {', '.join(filter(None, place))}"
            yield from (f"    differs      {text}" for text in _differing(found))
        if found.more:
            yield f"    only there   {found.more}"
        yield ""
    later = found.pattern[found.same + (found.kind != "flow") :]
    changed = sum(mark != "." for mark in later)
    if found.kind == "flow":
        yield _agreed(found.same) + (f"; then {_both_call(len(later), changed)}." if later else ".")
    elif found.kind != "none":
        after = f"of the {len(later)} after it, {changed} differ{'s' * (changed == 1)} too"
        yield f"{_agreed(found.same)}; {after if later else 'none comes after it'}."
    for name, (a, b) in found.settings.items():
        yield f"The runs differ in {name}: {a} and {b}."
    if any(found.unread):
        yield (
            f"{max(found.unread)} tensors had no fingerprint (sparse, without contents, or another package's); what "
            "differs only in these isn't seen."
        )
    for run, ended in zip(("first", "second"), found.ended, strict=True):
        if ended == "cut off":
            yield f"The {run} trace was cut off: its program was killed, or left by os._exit."
        elif ended not in ("complete", "SystemExit"):
            yield f"The {run} run ended with {ended}."


def _agreed(ops: int) -> str:
    return f"Before it {ops} op agrees" if ops == 1 else f"Before it {ops} ops agree"


def _both_call(ops: int, changed: int) -> str:
    if ops == 1:
        return f"both runs call one more op, which {'differs' if changed else 'agrees'}"
    return f"both runs call {ops} ops, of which {changed} differ{'s' * (changed == 1)}"


def _written(memory: str, origin: int | None) -> str:
    """Where only a part was ever written, "written last" alone would contradict what is said of that memory."""
    if memory == "unwritten" or origin is None:
        return f", {memory}" if memory else ""
    return f", partly written, last by op {origin}" if memory else f", written last by op {origin}"


def _differing(found: Divergence) -> Iterator[str]:
    assert found.first is not None and found.second is not None
    for tensors in zip(found.first.inputs, found.second.inputs, strict=False):
        x, y = tensors
        if found.kind != "result" and x.name in found.tensors:
            yield f"{x.name}: {_both(x.what, y.what)}{_written(x.memory or y.memory, x.origin)}"
    if found.kind == "python" and found.first.arguments != found.second.arguments:
        yield f"{found.first.arguments} | {found.second.arguments}"
    if found.kind == "random":
        yield "the state of the generator before the op"
    if found.kind == "result":
        for x, y in zip(found.first.results, found.second.results, strict=False):
            if (x.name, *_contents(x)) != (y.name, *_contents(y)):
                name = f"result{x.name}" if x.name[:1] in ("", "[") else x.name
                yield f"{name}: {_both(x.what or x.name, y.what or y.name)}"


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a} and {b}"
