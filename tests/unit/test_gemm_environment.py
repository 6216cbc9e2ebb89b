"""gemm-environment: what it hears from the libraries, how it starts its processes, and which knobs it calls inert."""

import ctypes
import sys

import pytest

from samebits.experiment import BadSetting, Observation, Runs, Source, now
from samebits.experiments import gemm_environment as gemm
from samebits.experiments.gemm_environment import GEMM_ENVIRONMENT

torch = pytest.importorskip("torch")

MKL_SAYS = """\
MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture, Lnx 2.60GHz lp64 gnu_thread
MKL_VERBOSE SGEMM(N,N,256,256,1024,0x7ffd,0x511,256,0x411,1024,0x7ffd,0x511,256) 63.44ms CNR:COMPATIBLE Dyn:1 NThr:2
"""
ONEDNN_SAYS = """\
onednn_verbose,v1,info,cpu,isa:Intel AVX2
onednn_verbose,v1,primitive,exec,cpu,reorder,jit:blk,undef,src:f32::blocked:abcd::f0,attr-scratchpad:user,,4x32,56.2
onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_training,src:f32:a:blocked:aBcd8b::f0,mb4,0.26
"""


def test_the_branch_and_the_code_are_read_from_what_the_libraries_print(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert gemm._mkl(MKL_SAYS) == "CNR:COMPATIBLE"
    assert gemm._onednn(ONEDNN_SAYS) == "jit:avx2"
    assert (
        gemm._mkl("") == gemm._onednn(MKL_SAYS) == ("unavailable" if sys.platform == "win32" else "no call")
    )


def test_a_library_that_is_not_there_is_reported_as_such(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert gemm._mkl("") == gemm._onednn("") == "not in this PyTorch"
    assert gemm._heard(lambda: None) == ""


@pytest.mark.skipif(sys.platform == "win32", reason="the C library is out of reach there")
def test_what_compiled_code_prints_is_caught(capfd):
    assert gemm._printed_by(lambda: ctypes.CDLL(None).puts(b"from C")) == "from C\n"
    print("after")
    assert capfd.readouterr().out == "after\n"


def test_versions_come_from_the_build_description():
    config = (
        "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 2024 for\n"
        "  - Intel(R) MKL-DNN v3.12.0 (Git Hash 80af)\n"
    )
    assert gemm._versions(config) == {"MKL": "2024.2-Product", "oneDNN": "3.12.0"}
    assert gemm._versions("  - OpenMP 201511") == {}


def test_a_variable_is_in_the_environment_only_if_it_is_set_before_the_start():
    early = GEMM_ENVIRONMENT.settings(cbwr="AVX2")
    assert GEMM_ENVIRONMENT.variables(early) == {
        "MKL_CBWR": "AVX2",
        "ONEDNN_MAX_CPU_ISA": None,
        "ATEN_CPU_CAPABILITY": None,
        "OMP_NUM_THREADS": None,
    }
    for when in (gemm.AFTER_IMPORT, gemm.AFTER_USE):
        assert set(GEMM_ENVIRONMENT.variables(early | {"when": when}).values()) == {None}


def test_the_code_shows_where_the_variable_is_set():
    lines = {
        when: GEMM_ENVIRONMENT.code(GEMM_ENVIRONMENT.settings(cbwr="AVX2", when=when)).splitlines()
        for when in (gemm.BEFORE, gemm.AFTER_IMPORT, gemm.AFTER_USE)
    }
    assert lines[gemm.BEFORE][0].endswith("MKL_CBWR=AVX2")
    assert lines[gemm.AFTER_IMPORT][1:] == ["import torch", "os.environ['MKL_CBWR'] = 'AVX2'", "a @ b"]
    assert lines[gemm.AFTER_USE][2] == "a @ b  # the first use"


def test_instructions_that_the_processor_lacks_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: False)
    with pytest.raises(BadSetting, match="no AVX512.*can crash"):
        gemm.prepare(GEMM_ENVIRONMENT.settings(aten="avx512"))


def test_every_op_names_its_inputs():
    tensors = gemm._tensors()
    assert set(gemm.INPUTS) == set(gemm.LINES)
    assert [name for names in gemm.INPUTS.values() for name in names if name not in tensors] == []
    for op, names in gemm.INPUTS.items():
        assert all(name in gemm.LINES[op] for name in names)


def runs(fingerprint, given="x"):
    observation = Observation(f"sha256:{fingerprint}", given, 0.1)
    return Runs("gemm-environment", {"op": "conv"}, {}, Source("LIVE", "a CPU", {}, now()), (observation,))


def test_inert_settings_are_named_by_comparing():
    assert gemm.compared(runs("a"), {"p": runs("b"), "q": runs("a"), "r": runs("b", given="y")}) == [
        "p: other bits.",
        "q: the same bits, so inert for conv here, as far as 1 run can tell.",
        "r: no verdict, since the inputs differ.",
    ]
