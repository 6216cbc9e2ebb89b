"""gemm-workspace with the CPU, and a cuBLAS written in NumPy, in the GPU's place."""

import contextlib
import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from samebits import machine
from samebits.experiment import BadSetting
from samebits.experiments import gemm_workspace
from samebits.experiments.gemm_workspace import GEMM_WORKSPACE, MALFORMED, RAW, VARIABLE, workspace_bytes

torch = pytest.importorskip("torch")

A100, H100, B200, RTX = (8, 0), (9, 0), (10, 0), (12, 0)
MIB = 2**20


@pytest.mark.parametrize(
    ("config", "capability", "size"),
    [
        (None, A100, 8_519_680),
        (None, (8, 9), 8_519_680),
        (None, H100, 32 * MIB),
        (None, B200, 32 * MIB),
        (None, RTX, 32 * MIB),
        (":4096:8", A100, 32 * MIB),
        (":4096:8", H100, 32 * MIB),
        (":16:8", H100, 128 * 1024),
        (":4096:2:16:8", A100, 8_519_680),
        (MALFORMED, A100, 8_519_680),
        (MALFORMED, H100, 32 * MIB),
        ("", A100, 8_519_680),
        (":16:8:4096", A100, 128 * 1024),
    ],
)
def test_bytes_for_each_handle_and_stream(config, capability, size):
    assert workspace_bytes(config, capability) == size


@pytest.mark.skipif(machine.cuda_device_count() > 0, reason="a GPU is visible")
def test_without_a_gpu_there_is_one_sentence_that_says_what_to_do():
    with pytest.raises(BadSetting, match="no NVIDIA GPU here.*split-k and gemm-environment"):
        gemm_workspace.prepare(GEMM_WORKSPACE.settings())


class CpuInstead:
    """The CPU in the GPU's place: streams are numbers, and what runs on which is noted."""

    def __init__(self):
        self.device = torch.device("cpu")
        self.used = []

    def streams(self, count):
        return [SimpleNamespace(cuda_stream=number + 1) for number in range(count)]

    @contextlib.contextmanager
    def on(self, stream):
        self.used.append(stream.cuda_stream)
        yield

    def wait(self):
        pass

    def capability(self):
        return A100

    def workspace_asked(self, library):
        return "unavailable"

    def allocated_by(self, function):
        function()
        return 12345

    def taken_by(self, function):
        function()
        return 678


@pytest.fixture
def cpu(monkeypatch):
    monkeypatch.setattr(gemm_workspace, "_Gpu", CpuInstead)
    monkeypatch.setattr(gemm_workspace, "SHAPES", {"8 × 32 × 8": (8, 32, 8)})
    monkeypatch.delenv(VARIABLE, raising=False)
    return lambda **settings: GEMM_WORKSPACE.settings() | {"shape": "8 × 32 × 8"} | settings


def test_the_same_product_on_each_stream(cpu, monkeypatch):
    monkeypatch.setenv(VARIABLE, ":16:8")
    prepared = gemm_workspace.prepare(cpu(streams=3))
    prepared.state.gpu.used.clear()
    observations = list(gemm_workspace.observe(prepared.state, 3))
    assert prepared.seen["variable"] == ":16:8"
    assert prepared.seen["streams"] == 3
    assert prepared.seen["product"] == "8 × 8 float32"
    assert prepared.seen["allocated for all"] == 12345
    assert prepared.seen["workspace for each stream"] == "unavailable"
    assert prepared.seen["expected for each"] == 128 * 1024
    assert prepared.state.gpu.used == [1, 2, 3] * gemm_workspace.PRODUCTS * 4
    assert {o.reported["different products in one run"] for o in observations} == {1}
    assert len({o.fingerprint for o in observations}) == len({o.input for o in observations}) == 1


def test_a_product_that_differs_on_one_stream_shows(cpu):
    prepared = gemm_workspace.prepare(cpu(streams=2))
    expected = next(gemm_workspace.observe(prepared.state, 1))

    class Wrong(type(prepared.state.gpu)):
        @contextlib.contextmanager
        def on(self, stream):
            yield
            if stream.cuda_stream == 2:
                prepared.state.outputs[1][0][0, 0] = 1

    prepared.state.gpu.__class__ = Wrong
    seen = next(gemm_workspace.observe(prepared.state, 1))
    assert seen.fingerprint != expected.fingerprint
    assert seen.reported["different products in one run"] == 2


@pytest.mark.parametrize(
    ("reductions", "flag"), [("allowed", True), ("off", False), ("off, and no split-K", False)]
)
def test_flags_are_set_each_time(cpu, reductions, flag):
    seen = gemm_workspace.prepare(cpu(reductions=reductions)).seen
    split = "off" if reductions == "off, and no split-K" else "allowed"
    assert seen["reductions"] == f"{'allowed' if flag else 'off'}, split-K {split}"
    matmul = torch.backends.cuda.matmul
    assert matmul.allow_fp16_reduced_precision_reduction is flag
    assert matmul.allow_bf16_reduced_precision_reduction is flag
    gemm_workspace.prepare(cpu())
    assert matmul.allow_fp16_reduced_precision_reduction is True


# --- The raw handle -------------------------------------------------------------------------------------


class NumpyCublas:
    """cublasSgemm_v2 by its documentation: matrices by columns, out = scale · a b + keep · out."""

    def __init__(self, status=0):
        self.status = status
        self.calls = []

    def cublasCreate_v2(self, handle):
        handle._obj.value = 77
        return self.status

    def cublasDestroy_v2(self, handle):
        self.calls.append(("destroyed", handle.value))
        return self.status

    def cublasSetStream_v2(self, handle, stream):
        self.calls.append(("stream", handle.value, stream.value))
        return self.status

    def cublasSgemm_v2(self, handle, ta, tb, m, n, k, scale, a, lda, b, ldb, keep, out, ldc):
        assert handle.value == 77 and ta.value == tb.value == 0
        assert scale._obj.value == 1 and keep._obj.value == 0
        m, n, k = m.value, n.value, k.value
        a = self._by_columns(a, lda.value, k)[:m]
        b = self._by_columns(b, ldb.value, n)[:k]
        self._by_columns(out, ldc.value, n)[:m] = a @ b
        self.calls.append(("product", m, n, k))
        return self.status

    @staticmethod
    def _by_columns(address, rows, columns):
        flat = (ctypes.c_float * (rows * columns)).from_address(address.value)
        return np.frombuffer(flat, np.float32).reshape((rows, columns), order="F")


def test_the_raw_handle_multiplies_row_major_matrices_on_the_stream_it_is_given():
    library = NumpyCublas()
    handle = gemm_workspace._RawHandle(library)
    a, b = torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(3, 4)
    out = torch.empty(2, 4)
    handle.matmul(a, b, out, stream=5)
    assert torch.equal(out, a @ b)
    assert library.calls == [("stream", 77, 5), ("product", 4, 2, 3)]


def test_an_error_of_cublas_is_named():
    with pytest.raises(RuntimeError, match="cublasCreate_v2 answered with cuBLAS status 1"):
        gemm_workspace._RawHandle(NumpyCublas(status=1))


def test_all_streams_share_the_one_raw_handle(cpu, monkeypatch):
    library = NumpyCublas()
    monkeypatch.setattr(gemm_workspace, "loaded_cublas", lambda: library)
    prepared = gemm_workspace.prepare(cpu(library=RAW, streams=2))
    assert prepared.seen["workspace"] == "cuBLAS's own"  # PyTorch's size says nothing of it
    assert "expected for each" not in prepared.seen
    assert prepared.seen["taken from the card, with kernels"] == 678
    library.calls.clear()
    (observed,) = gemm_workspace.observe(prepared.state, 1)
    streams = [stream for kind, _, stream, *_ in library.calls if kind == "stream"]
    assert streams == [1, 2] * gemm_workspace.PRODUCTS * 2  # once to warm up, once to be observed
    assert observed.reported["different products in one run"] == 1
    with pytest.raises(BadSetting, match="float32 only"):
        gemm_workspace.prepare(cpu(library=RAW, dtype="float16"))


def test_a_raw_handle_gives_its_workspace_back_when_its_run_is_over():
    library = NumpyCublas()
    handle = gemm_workspace._RawHandle(library)
    assert library.calls == []
    del handle
    assert library.calls == [("destroyed", 77)]


def test_a_handle_that_could_not_be_made_is_not_destroyed():
    library = NumpyCublas(status=1)
    with pytest.raises(RuntimeError):
        gemm_workspace._RawHandle(library)
    assert library.calls == []


@pytest.fixture
def gpu(monkeypatch):
    """The real `_Gpu`, on a torch.cuda that only counts."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return gemm_workspace._Gpu()


def test_each_library_is_asked_for_its_own_workspace(gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "cublas_workspace_size", lambda: 1, raising=False)
    monkeypatch.setattr(torch.backends.cuda, "cublaslt_workspace_size", lambda: 2, raising=False)
    assert gpu.workspace_asked(gemm_workspace.CUBLAS) == 1
    assert gpu.workspace_asked(gemm_workspace.CUBLASLT) == 2
    monkeypatch.delattr(torch.backends.cuda, "cublas_workspace_size")
    assert gpu.workspace_asked(gemm_workspace.CUBLAS) == "unavailable"


def test_memory_that_nobody_counts_is_the_cards_own_difference(gpu, monkeypatch):
    free = iter(((1000, 5000), (930, 5000)))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: next(free))
    done = []
    assert gpu.taken_by(lambda: done.append(1)) == 70
    assert done == [1]


def test_what_products_leave_allocated_is_measured_with_the_workspaces_given_back(gpu, monkeypatch):
    held = [500]
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: held.clear(), raising=False)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: sum(held))
    assert gpu.allocated_by(lambda: held.extend((100, 20))) == 120
    monkeypatch.delattr(torch._C, "_cuda_clearCublasWorkspaces")
    assert gpu.allocated_by(held.clear) == "unavailable"


def test_without_its_library_the_raw_handle_says_which_one_is_missing(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "99.1")
    with pytest.raises(BadSetting, match=r"libcublas\.so\.99"):
        gemm_workspace.loaded_cublas()
