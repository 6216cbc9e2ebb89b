"""What every op of a PyTorch program read and gave, as fingerprints in a file, and where two such files part.

    with recording("first.trace"):          # a part of a program; a whole one: python -m samebits trace
        train()
    print(compare("first.trace", "second.trace"))

Two runs of one program should write the same file. The first line in which they don't is the first divergence,
and what that line says tells its kind: the same inputs with another result is a race, or another algorithm; another
state of the random generator is a missing seed; other inputs, though every op before agreed, came from outside
PyTorch; another op is Python's decision.

A file is lines of JSON: a header, then one line for each op in the order in which they ran, then an end. It holds
fingerprints, no values. What never passes PyTorch's dispatcher is not in it: compiled code, another library's
kernels, other threads of Python and other processes. What those change shows at the op that reads it next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import json
import linecache
import os
import platform
import sys
import sysconfig
import threading
import time
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
_WAITING = 1000  # ops whose fingerprints may stay on a GPU before they are read in one transfer
_LINES_KEPT = 200_000  # forward ops whose line is remembered for the backward pass


class Unreadable(ValueError):
    """A trace file that cannot be read; the message is one sentence for a person."""


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
        return {k: v for k, v in data.items() if v not in ("", ()) or k in ("number", "name")}


def _op(data: Mapping[str, Any]) -> Op:
    blank = {
        "line": "",
        "forward": "",
        "module": "",
        "phase": "forward",
        "step": 0,
        "arguments": "",
        "generator": "",
    }
    tensors = {
        key: tuple(Tensor(**({"name": "", "what": "", "fingerprint": ""} | t)) for t in data.get(key, ()))
        for key in ("inputs", "results")
    }
    return Op(**(blank | dict(data) | tensors))


# --- Recording --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def recording(path: str | os.PathLike, command: str = "") -> Iterator[None]:
    """Write what PyTorch's ops do inside the `with` to the file `path`, which is made anew.

    Ops of this thread and of its backward passes are seen, on any device. Numbers and shapes are written as they
    are; tensors as fingerprints (xxh3 of their bytes on a CPU; on a GPU mix64, which stays there until a thousand
    ops have run). Random generators are read, never drawn from. Raises OSError if the file cannot be written, and
    RuntimeError inside another recording.
    """
    import torch
    from torch.optim import optimizer
    from torch.utils.module_tracker import ModuleTracker

    if _RECORDING.locked():
        raise RuntimeError("A recording is under way already; end it before you begin another.")
    with _RECORDING, contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "wb", buffering=0))
        writer = _Writer(file, ModuleTracker())
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
        )
        for hook in hooks:
            stack.callback(hook.remove)
        stack.enter_context(writer.modules)
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


@dataclass
class _Before:
    line: str
    forward: str
    module: str
    phase: str
    inputs: list[dict]
    arguments: str
    generator: str


class _Writer:
    """Makes the lines of one file."""

    def __init__(self, file: Any, modules: Any):
        self.process = os.getpid()
        self.modules = modules
        self._file = file
        self._lock = threading.Lock()  # a backward pass on several GPUs has a thread for each
        self._abouts: dict[Any, _About] = {}
        self._lines: dict[tuple[str, int], str] = {}
        self._ours: dict[Any, bool] = {}
        self._forward: dict[int, str] = {}
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
        self._flush()
        seconds = round(time.monotonic() - self._began, 3)
        self._write({"end": how, "ops": self._number, "seconds": seconds, "unread": self._unread})

    def _write(self, *lines: dict) -> None:
        self._file.write(b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines))

    def _flush(self) -> None:
        read = read_device_fingerprints([value for _, value in self._on_device])
        for (tensor, _), text in zip(self._on_device, read, strict=True):
            tensor["fingerprint"] = text
        self._on_device.clear()
        self._write(*self._waiting)
        self._waiting.clear()

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

        node = torch._C._current_autograd_node()
        line = self._line()
        forward = ""
        sequence = torch.autograd._get_sequence_nr()
        if node is not None:
            # An op and the node of its gradient carry the same number, in the thread that ran the op.
            forward = self._forward.get(node._sequence_nr(), "")
        elif sequence:
            self._forward.setdefault(sequence - 1, line)
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
            module=self._module(),
            phase="backward" if node is not None else "optimizer" if self._stepping else "forward",
            inputs=inputs,
            arguments=", ".join(plain),
            generator=_generator_state(generator, args, kwargs) if about.seeded else "",
        )

    def after(self, about: _About, before: _Before, args: tuple, kwargs: dict, result: Any) -> None:
        import torch

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
                    if about.without_contents:
                        self._memory.made_empty(value, self._number)
                        results.append({"name": name, "what": _what(value)})
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

    def _tensor(self, name: str, value: torch.Tensor, memory: _Origin | None) -> dict:
        import torch

        found: dict[str, Any] = {"name": name, "what": _what(value), "part": _part(value)}
        if memory is not None:
            found |= {"origin": memory.op, "memory": memory.state}
        elif isinstance(value, torch.nn.Parameter):
            found["kind"] = "parameter"
        found = {k: v for k, v in found.items() if v not in ("", None)}
        try:
            compact = _compact(value)
            if compact.device.type == "cpu":
                found["fingerprint"] = fingerprint(compact, "xxh3")
            else:
                self._on_device.append((found, device_fingerprint(compact)))
        except Exception:
            # Sparse, quantized, without contents, another package's subclass: its reader must not end the program.
            self._unread += 1
        return found

    def _module(self) -> str:
        names = [name for name in self.modules.parents if name != "Global"]
        return max(names, key=len, default="")  # the innermost path is the longest

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
            short = f"{Path(place[0]).name}:{place[1]}"
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
        skipped=view or base.partition("::")[0] in ("profiler", "prim") or base == "aten::detach",
        seeded=torch.Tag.nondeterministic_seeded in function.tags,
        without_contents=base in _WITHOUT_CONTENTS,
        names=tuple(a.name for a in arguments),
        written=frozenset(written),
        unread=frozenset(written if base in _WRITE_ONLY else {a.name for a in arguments if a.is_out}),
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
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _part(tensor: torch.Tensor) -> str:
    if _storage(tensor) is None or (tensor.storage_offset() == 0 and tensor.is_contiguous()):
        return ""
    return f"from {tensor.storage_offset()} by {list(tensor.stride())}"


def _compact(tensor: torch.Tensor) -> torch.Tensor:
    """Without the repeats of an expanded tensor, which would be copied out."""
    if tensor.numel() and _storage(tensor) is not None:
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
    """Of the generator that was given, else of the default one of the op's device."""
    import torch

    if generator is None:
        devices = [
            value.device
            for _, value in _leaves("", [*args, *kwargs.values()])
            if isinstance(value, torch.Tensor)
        ]
        device = torch.device(kwargs.get("device") or (devices[0] if devices else "cpu"))
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            generator = torch.cuda.default_generators[index]
        else:
            generator = torch.default_generator
    return fingerprint(generator.get_state(), "xxh3")


def _is_program(file: str) -> bool:
    """Whether a source file is the program's own: not PyTorch's, another package's, Python's, or this one's."""
    if file.startswith("<"):
        return not file.startswith("<frozen")
    path = os.path.abspath(file)
    here = os.path.dirname(os.path.abspath(__file__))
    if path in {os.path.join(here, name) for name in ("trace.py", "cli.py", "__main__.py")}:
        return False
    places = sysconfig.get_paths()
    packages = {places[name] + os.sep for name in ("purelib", "platlib")}
    if path.startswith(tuple(packages)):
        return False
    # Without a virtual environment, packages lie inside the standard library's folder, and programs may too.
    return not path.startswith(places["stdlib"] + os.sep)


# --- Reading ----------------------------------------------------------------------------------------------


class Trace:
    """A trace file, read as it is iterated: `for op in Trace(path)`.

    header, path  what it begins with, and where it is
    lines         text of the program's lines that were met so far, "train.py:14" → "loss.backward()"
    ended         after the last op: "complete", the name of the exception that ended the program, or "cut off"
    Raises Unreadable, with one sentence, for a file that is none or that is damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.lines: dict[str, str] = {}
        self.ended = ""
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
                if "end" in data:
                    self.ended = str(data["end"])
                    return
                if "number" not in data:
                    self.lines[str(data.get("line"))] = str(data.get("text"))
                    continue
                try:
                    op = _op(data)
                    if op.number != expected:
                        raise ValueError
                except (TypeError, ValueError, AttributeError) as error:
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
        except (ValueError, RecursionError) as error:
            if place == 1:
                raise Unreadable(f"{self.path} is no trace: python -m samebits trace makes one.") from error
            raise self._damaged(place) from error
        if not isinstance(data, dict):
            raise self._damaged(place)
        return data

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
    pattern        one character for each op, as far as the runs call the same ops: "." all agree, "r" other results
                   though the inputs agree, "x" other inputs
    more           kind "flow": what one run has that the other has not, in words
    lines          text of the program's lines
    ended          how each run ended
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

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        if self.kind == "none":
            return f"No difference: all {self.ops[0]} ops have the same inputs and the same results."
        op = self.first or self.second
        return f"The runs part at op {op.number} of {self.ops[0]}: {KINDS[self.kind]}."

    def __str__(self) -> str:
        return "\n".join(_report(self))

    def to_json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data |= {name: op.to_json() if (op := getattr(self, name)) else None for name in ("first", "second")}
        return data | {"sentence": self.sentence, "settings": dict(self.settings), "lines": dict(self.lines)}


def compare(first: str | os.PathLike | Trace, second: str | os.PathLike | Trace) -> Divergence:
    """The first op in which two trace files differ, and what kind of difference it is. Raises Unreadable.

    The files may come from different processes, machines and versions. Both are read once, op by op.
    """
    one, other = (x if isinstance(x, Trace) else Trace(x) for x in (first, second))
    ops = [iter(one), iter(other)]
    pattern: list[str] = []
    found: tuple[str, Op | None, Op | None, tuple[str, ...]] | None = None
    more = ""
    counts = [0, 0]
    for a, b in itertools.zip_longest(*ops):
        if a is None or b is None or a.name != b.name:
            rest = [[op] if op else [] for op in (a, b)]
            for part, left in zip(rest, ops, strict=True):
                part += left
            counts = [len(pattern) + len(part) for part in rest]
            if found is None:
                found, more = ("flow", a, b, ()), _other_way(*rest)
            break
        difference = _difference(a, b)
        pattern.append("." if difference is None else "r" if difference[0] == "result" else "x")
        if difference is not None and found is None:
            found = (difference[0], a, b, difference[1])
    else:
        counts = [len(pattern)] * 2
    kind, a, b, tensors = found or ("none", None, None, ())
    same = next((place for place, mark in enumerate(pattern) if mark != "."), len(pattern))
    return Divergence(
        kind=kind,
        first=a,
        second=b,
        tensors=tensors,
        settings=_settings(one.header, other.header),
        ops=(counts[0], counts[1]),
        same=same,
        pattern="".join(pattern),
        more=more,
        lines=other.lines | one.lines,
        ended=(one.ended, other.ended),
    )


def _difference(a: Op, b: Op) -> tuple[str, tuple[str, ...]] | None:
    """What differs between two calls of one op, and in which arguments. Inputs come first: where they differ, other
    results need no explanation."""
    if len(a.inputs) != len(b.inputs):
        return "python", ("number of tensors",)
    differing = [(x, y) for x, y in zip(a.inputs, b.inputs, strict=True) if _contents(x) != _contents(y)]
    if differing:
        return _kind_of_input(*differing[0]), tuple(x.name for x, _ in differing)
    if a.arguments != b.arguments:
        pairs = zip(a.arguments.split(", "), b.arguments.split(", "), strict=False)
        return "python", tuple(x.partition("=")[0] for x, y in pairs if x != y) or ("arguments",)
    if a.generator != b.generator:
        return "random", ("generator",)
    results = [
        x.name or "result"
        for x, y in itertools.zip_longest(a.results, b.results, fillvalue=Tensor("", "", ""))
        if (x.name, *_contents(x)) != (y.name, *_contents(y))
    ]
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
    return ops[0].name if len(ops) == 1 else f"{len(ops)} ops, from {ops[0].name} on,"


def _report(found: Divergence) -> Iterator[str]:
    """The finding with the op, the lines of the program and what followed."""
    yield found.sentence
    op = found.first or found.second
    if op is not None:
        yield ""
        yield f"    op       {op.name}" + (f", {found.more}" if found.more else "")
        for name, line in (("line", op.line), ("gradient of", op.forward)):
            if line:
                yield f"    {name:8} {line}    {found.lines.get(line, '')}"
        place = [f"step {op.step}", op.phase, op.module]
        yield f"    when     {', '.join(filter(None, place))}"
        if found.kind != "flow":
            yield from (f"    differs  {text}" for text in _differing(found))
        yield ""
    if found.kind not in ("none", "flow"):
        later = found.pattern[found.same + 1 :]
        changed = sum(mark != "." for mark in later)
        yield f"Before it {found.same} ops agree; of the {len(later)} after it, {changed} differ too."
    for name, (a, b) in found.settings.items():
        yield f"The runs differ in {name}: {a} and {b}."
    for run, ended in zip(("first", "second"), found.ended, strict=True):
        if ended == "cut off":
            yield f"The {run} trace was cut off: its program was killed."
        elif ended not in ("complete", "SystemExit"):
            yield f"The {run} run ended with {ended}."


def _differing(found: Divergence) -> Iterator[str]:
    assert found.first is not None and found.second is not None
    for tensors in zip(found.first.inputs, found.second.inputs, strict=False):
        x, y = tensors
        if found.kind != "result" and x.name in found.tensors:
            yield f"{x.name}: {_both(x.what, y.what)}" + (
                f", written last by op {x.origin}" if x.origin is not None else ""
            )
    if found.kind == "python" and found.first.arguments != found.second.arguments:
        yield f"{found.first.arguments} | {found.second.arguments}"
    if found.kind == "random":
        yield "the state of the generator before the op"
    if found.kind == "result":
        for x, y in zip(found.first.results, found.second.results, strict=False):
            if (x.name, *_contents(x)) != (y.name, *_contents(y)):
                yield f"{x.name or 'result'}: {_both(x.what or x.name, y.what or y.name)}"


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a} and {b}"
