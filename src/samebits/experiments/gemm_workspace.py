"""gemm-workspace: cuBLAS's workspace and several streams, on an NVIDIA GPU.

What touches the GPU is in `_Gpu` and `_RawHandle`. Neither has been run on one: they were tested with the CPU,
and a cuBLAS written in NumPy, in the GPU's place.
"""

from __future__ import annotations

import ctypes
import os
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from samebits import machine
from samebits.bits import fingerprint
from samebits.experiment import BadSetting, Experiment, Knob, Observation, Prepared
from samebits.experiments import torch_worker

UNAVAILABLE = "unavailable"
VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
MALFORMED = "4096:8"  # without its first colon
CUBLAS, CUBLASLT, RAW = "cuBLAS", "cuBLASLt", "cuBLAS, one raw handle"

# m × K × n. A long K with few elements is where cutting K pays.
SHAPES = {
    "64 × 65536 × 64": (64, 65_536, 64),
    "1024 × 1024 × 1024": (1024,) * 3,
    "4 × 8192 × 4096": (4, 8192, 4096),
}
REDUCTIONS = {"allowed": True, "off": False, "off, and no split-K": (False, False)}
PRODUCTS = 4  # on each stream, one after the other, so that the streams overlap


def workspace_bytes(config: str | None, capability: tuple[int, int]) -> int:
    """The bytes that PyTorch takes for each cuBLAS handle and stream.

    config      value of CUBLAS_WORKSPACE_CONFIG, or None where it is unset
    capability  compute capability of the GPU, such as (8, 0)

    The sum of SIZE · COUNT KiB over all places that read :SIZE:COUNT; the default, if there is none.
    Source: parseChosenWorkspaceSize in PyTorch's aten/src/ATen/cuda/CublasHandlePool.cpp. Not verified on a GPU.
    """
    pairs = re.findall(r":([0-9]+):([0-9]+)", config or "")
    if pairs:
        return sum(int(size) * int(count) for size, count in pairs) * 1024
    return default_bytes(capability)


def default_bytes(capability: tuple[int, int]) -> int:
    """32 MiB on Hopper and Blackwell (compute capability 9, 10 and 12), elsewhere what :4096:2:16:8 says."""
    return 32 * 2**20 if capability[0] in (9, 10, 12) else (4096 * 2 + 16 * 8) * 1024


# --- The GPU --------------------------------------------------------------------------------------------


class _Gpu:
    """The few things that only a GPU can do."""

    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise BadSetting(
                "PyTorch sees no NVIDIA GPU here, and cuBLAS needs one. The panels split-k and gemm-environment run "
                "on your CPU; ./course doctor says what is missing for a GPU."
            )
        self.device = torch.device("cuda")

    def streams(self, count: int) -> list[Any]:
        import torch

        return [torch.cuda.Stream() for _ in range(count)]

    def on(self, stream: Any) -> Any:
        import torch

        return torch.cuda.stream(stream)

    def wait(self) -> None:
        import torch

        torch.cuda.synchronize()

    def capability(self) -> tuple[int, int]:
        import torch

        return torch.cuda.get_device_capability()

    def workspace_asked(self, library: str) -> int | str:
        """Bytes for each handle and stream of CUBLAS or CUBLASLT, as PyTorch says (2.13 and later)."""
        import torch

        name = "cublaslt_workspace_size" if library == CUBLASLT else "cublas_workspace_size"
        ask = getattr(torch.backends.cuda, name, None)
        return ask() if ask else UNAVAILABLE

    def allocated_by(self, function: Callable[[], Any]) -> int | str:
        """Bytes that `function` leaves allocated, with all workspaces given back before."""
        import torch

        give_back = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if give_back is None:
            return UNAVAILABLE
        torch.cuda.synchronize()
        give_back()
        before = torch.cuda.memory_allocated()
        function()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - before

    def taken_by(self, function: Callable[[], Any]) -> int:
        """Bytes of the card's memory that are gone after `function`, whoever took them: past PyTorch's allocator
        nobody keeps count, so kernels loaded meanwhile are in it, and what other processes did."""
        import torch

        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        function()
        torch.cuda.synchronize()
        return before - torch.cuda.mem_get_info()[0]


class _RawHandle:
    """One cuBLAS handle, shared by all streams, with cuBLAS's own workspace: the case its promise leaves out.

    library  the cuBLAS that PyTorch has loaded

    Each call is a float32 product of row-major matrices. Errors of cuBLAS become a RuntimeError. A worker makes
    many runs and so many handles; each gives its workspace back when it is no longer used.
    """

    def __init__(self, library: Any):
        self._library = library
        self._handle = ctypes.c_void_p()
        self._do("cublasCreate_v2", ctypes.byref(self._handle))
        # At the end of the process, CUDA may be gone before the handle is.
        weakref.finalize(self, library.cublasDestroy_v2, self._handle).atexit = False

    def matmul(self, a: Any, b: Any, out: Any, stream: int) -> None:
        """out = a @ b on the stream with this address."""
        (m, k), n = a.shape, b.shape[1]
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        address = ctypes.c_void_p
        self._do("cublasSetStream_v2", self._handle, address(stream))
        # cuBLAS reads matrices by columns: what it sees is the transposed product, outᵀ = bᵀ aᵀ.
        b, a, out = (address(x.data_ptr()) for x in (b, a, out))
        sizes = [ctypes.c_int(x) for x in (n, m, k)]
        as_it_is, lda, ldb, ldc = ctypes.c_int(0), *(ctypes.c_int(x) for x in (n, k, n))
        scale, keep = ctypes.byref(one), ctypes.byref(zero)
        arguments = (as_it_is, as_it_is, *sizes, scale, b, lda, a, ldb, keep, out, ldc)
        self._do("cublasSgemm_v2", self._handle, *arguments)

    def _do(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} answered with cuBLAS status {status}.")


def loaded_cublas() -> ctypes.CDLL:
    """The cuBLAS that PyTorch uses, found by its name once torch has loaded it. Raises BadSetting."""
    import torch

    major = (torch.version.cuda or "0").partition(".")[0]
    names = (f"libcublas.so.{major}", f"cublas64_{major}.dll")
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BadSetting(f"{names[0]}, which PyTorch should have loaded, was not found. Choose another library.")


# --- The experiment -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    gpu: _Gpu
    a: Any
    b: Any
    outputs: list[list[Any]]  # of each stream, one for each of its products
    streams: list[Any]
    raw: _RawHandle | None


def prepare(settings: dict) -> Prepared:
    import torch

    gpu = _Gpu()
    raw = settings["library"] == RAW
    if raw and settings["dtype"] != "float32":
        raise BadSetting("The raw handle multiplies float32 only. Choose that number format.")
    torch_worker.set_flags(
        blas_library="cublaslt" if settings["library"] == CUBLASLT else "cublas",
        reduced_precision=REDUCTIONS[settings["reductions"]],
    )
    m, k, n = SHAPES[settings["shape"]]
    dtype = getattr(torch, settings["dtype"])
    rng = np.random.default_rng(42)
    a, b = (
        torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)).to(gpu.device, dtype)
        for shape in ((m, k), (k, n))
    )
    outputs = [
        [torch.empty(m, n, dtype=dtype, device=gpu.device) for _ in range(PRODUCTS)]
        for _ in range(settings["streams"])
    ]
    streams = gpu.streams(settings["streams"])
    if raw:
        state, workspace = _with_raw_handle(gpu, a, b, outputs, streams)
    else:
        state = _State(gpu, a, b, outputs, streams, None)
        workspace = {
            "workspace for each stream": gpu.workspace_asked(settings["library"]),
            "allocated for all": gpu.allocated_by(lambda: _multiply(state)),
            "expected for each": workspace_bytes(os.environ.get(VARIABLE), gpu.capability()),
        }
    return Prepared(
        state,
        seen={
            "variable": os.environ.get(VARIABLE, "unset"),
            **workspace,
            "library": RAW if raw else str(torch.backends.cuda.preferred_blas_library()).partition(".")[2],
            "streams": len(state.streams),
            "product": f"{m} × {n} {str(outputs[0][0].dtype).removeprefix('torch.')}",
            "reductions": _reductions_allowed(),
        },
        device=torch_worker.device_words(gpu.device),
        libraries={"torch": torch.__version__, "CUDA": torch.version.cuda or UNAVAILABLE},
    )


def _with_raw_handle(gpu: _Gpu, *parts: Any) -> tuple[_State, dict[str, Any]]:
    """(the state with a new raw handle, what is seen of its workspace, which is cuBLAS's own)."""
    library, made = loaded_cublas(), []

    def first_products() -> None:
        made.append(_State(gpu, *parts, _RawHandle(library)))
        _multiply(made[0])

    taken = gpu.taken_by(first_products)
    return made[0], {"workspace": "cuBLAS's own", "taken from the card, with kernels": taken}


def _reductions_allowed() -> str:
    """What cuBLAS may do in float16 and bfloat16, read back from PyTorch's flag; older versions know no split-K."""
    import torch

    name = "_get_cublas_allow_fp16_reduced_precision_reduction"
    flags = getattr(torch._C, name, lambda: UNAVAILABLE)()
    if not isinstance(flags, tuple):
        return str(flags)
    return f"{'allowed' if flags[0] else 'off'}, split-K {'allowed' if flags[1] else 'off'}"


def _multiply(state: _State) -> list[list[Any]]:
    """The same product on every stream, a few times over; the streams run side by side."""
    import torch

    state.gpu.wait()
    for number in range(PRODUCTS):
        for stream, outputs in zip(state.streams, state.outputs, strict=True):
            if state.raw:
                state.raw.matmul(state.a, state.b, outputs[number], stream.cuda_stream)
                continue
            with state.gpu.on(stream):
                torch.mm(state.a, state.b, out=outputs[number])
    state.gpu.wait()
    return state.outputs


def observe(state: _State, n: int) -> Iterator[Observation]:
    given = fingerprint([state.a, state.b], "mix64")
    _multiply(state)
    for _ in range(n):
        outputs, seconds = torch_worker.timed(lambda: _multiply(state), state.gpu.device)
        products = [fingerprint(product) for stream in outputs for product in stream]
        first = outputs[0][0].flatten()[:64].float()
        yield Observation(
            fingerprint(outputs),
            given,
            seconds,
            reported={"different products in one run": len(set(products))},
            sample=tuple(first.tolist()),
        )


def code(settings: dict) -> str:
    m, k, n = SHAPES[settings["shape"]]
    library = "cublaslt" if settings["library"] == CUBLASLT else "cublas"
    multiply = (
        ["    # cublasSetStream(the one handle, stream), then cublasSgemm"]
        if settings["library"] == RAW
        else ["    with torch.cuda.stream(stream):", "        torch.mm(a, b, out=next(outputs))"]
    )
    return "\n".join(
        [
            f"# in the environment of the new process: {VARIABLE} {settings['config']}",
            f"torch.backends.cuda.preferred_blas_library({library!r})",
            f"torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = {REDUCTIONS[settings['reductions']]}",
            f"# and the same for bf16; a: {m} × {k}, b: {k} × {n}, {settings['dtype']}",
            f"streams = [torch.cuda.Stream() for _ in range({settings['streams']})]",
            f"for stream in {PRODUCTS} * streams:",
            *multiply,
        ]
    )


def _knob(name: str, label: str, help: str, choices: tuple[str, ...], **more: Any) -> Knob:
    return Knob(name, label, help, "choice", choices[0], choices, **more)


GEMM_WORKSPACE = Experiment(
    name="gemm-workspace",
    title="Workspace and streams of cuBLAS",
    question="Do streams, or the variable, change the bits?",
    knobs=(
        _knob(
            "config",
            "Workspace",
            f"{VARIABLE}: pairs of size in KiB and count; the last choice is malformed.",
            ("unset", ":16:8", ":4096:8", ":4096:2:16:8", MALFORMED),
            scope="process",
            variable=VARIABLE,
        ),
        Knob(
            "streams",
            "Streams",
            "How many CUDA streams multiply side by side.",
            "number",
            1,
            low=1,
            high=8,
            scope="process",
        ),
        _knob(
            "library",
            "Library",
            "PyTorch gives each handle and stream a workspace; the raw handle is shared and has none of its own.",
            (CUBLAS, CUBLASLT, RAW),
            scope="process",
        ),
        _knob(
            "dtype",
            "Number format",
            "Of the matrices and of the product.",
            ("float32", "float16", "bfloat16"),
        ),
        _knob("shape", "m × K × n", "Sizes of the product.", tuple(SHAPES)),
        _knob(
            "reductions",
            "Reduced precision",
            "Whether sums within a float16 or bfloat16 product may be kept in that format.",
            tuple(REDUCTIONS),
        ),
    ),
    prepare=prepare,
    observe=observe,
    code=code,
    framework="torch",
    card=lambda settings: "cuda-0" if machine.cuda_device_count() else None,
    recordings=(
        *({"config": config} for config in ("unset", ":16:8", ":4096:8", ":4096:2:16:8", MALFORMED)),
        *({"streams": 4, "config": config} for config in ("unset", ":16:8", ":4096:8")),
        *({"streams": 4, "library": library} for library in (CUBLASLT, RAW)),
    ),
)
