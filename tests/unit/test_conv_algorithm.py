"""Convolutions: all ways are correct, their switches act, and what runs on a GPU works with the CPU in its place."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from samebits import runner
from samebits.bits import fingerprint
from samebits.experiment import BadSetting, Runs
from samebits.experiments import conv_algorithm, conv_autotune, conv_ways, convolution, torch_worker

SMALL = {"batch": 2, "channels": 3, "size": 7}


@pytest.fixture(autouse=True)
def flags_as_before():
    threads = torch.get_num_threads()
    yield
    torch_worker.set_flags(threads=threads)


@pytest.fixture(scope="module", autouse=True)
def end_workers():
    yield
    runner.close()


# --- The six ways ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 1, 2), (1, 1, 64), (3, 16, 16), (16, 4, 9)])
@pytest.mark.parametrize("name", convolution.WAYS)
def test_every_way_is_correct_to_float32_in_all_three_parts(name, shape):
    if name not in convolution.ways():
        pytest.skip("this PyTorch was built without oneDNN")
    x, w, g = convolution.inputs(dict(zip(("batch", "channels", "size"), shape, strict=True)))
    exact, allowed = convolution.exact(x, w, g), convolution.allowed_error(x, w, g)
    for part, result in convolution.results(convolution.WAYS[name], x, w, g).items():
        assert result.dtype == torch.float32
        assert result.shape == exact[part].shape
        assert float((result - exact[part]).abs().max()) <= allowed[part], part


def test_the_reference_is_the_definition_of_a_convolution():
    x, w, g = convolution.inputs(SMALL)
    padded = np.pad(x.numpy().astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    y = sum(
        np.einsum(
            "nchw,kc->nkhw", padded[:, :, a : a + 7, b : b + 7], w.numpy().astype(np.float64)[:, :, a, b]
        )
        for a in range(3)
        for b in range(3)
    )
    assert np.allclose(convolution.exact(x, w, g)["forward"], y, atol=1e-12)


def test_an_error_beyond_float32_would_be_found():
    x, w, g = convolution.inputs(SMALL)
    coarse = convolution.im2col(x.bfloat16(), w.bfloat16()).float()
    error = float((coarse - convolution.exact(x, w, g)["forward"]).abs().max())
    assert error > convolution.allowed_error(x, w, g)["forward"]


def test_inputs_are_the_same_each_time_and_not_too_large():
    assert fingerprint(list(convolution.inputs(SMALL))) == fingerprint(list(convolution.inputs(SMALL)))
    with pytest.raises(BadSetting, match="Choose fewer"):
        convolution.inputs({"batch": 256, "channels": 512, "size": 256})


def test_the_backend_follows_the_flag_and_the_shape():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch was built without oneDNN")
    x, w, _ = convolution.inputs({"batch": 8, "channels": 16, "size": 16})
    torch_worker.set_flags(mkldnn=True)
    assert convolution.backend(x, w) == "Mkldnn"
    torch_worker.set_flags(mkldnn=False)
    assert convolution.backend(x, w) == "Slow2d"


def test_a_pytorch_that_cannot_be_asked_says_unavailable(monkeypatch):
    monkeypatch.delattr(torch._C, "_select_conv_backend")
    assert convolution.backend(*convolution.inputs(SMALL)[:2]) == "unavailable"


# --- conv-ways and conv-autotune -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "ran"),
    [
        ("oneDNN", "mkldnn_convolution"),
        ("native", "_slow_conv2d_forward"),
        ("im2col", "im2col"),
        ("FFT", "_fft_r2c, _fft_c2r"),
        ("Winograd", "unfold"),
        (conv_ways.WITHOUT_ONEDNN, "_slow_conv2d_forward"),
    ],
)
def test_what_ran_is_seen(way, ran):
    if way == "oneDNN" and way not in convolution.ways():
        pytest.skip("this PyTorch was built without oneDNN")
    prepared, _ = observed(conv_ways.CONV_WAYS, way=way, **SMALL)
    assert prepared.seen["ran"].startswith(ran)
    assert prepared.seen["images"] == "2 × 3 × 7 × 7"


def test_what_ran_follows_the_shape():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch was built without oneDNN")
    seen = [observed(conv_ways.CONV_WAYS, batch=images)[0].seen["ran"] for images in (1, 8)]
    assert seen == ["_slow_conv2d_forward", "mkldnn_convolution"]


def test_an_operation_that_nobody_knows_is_unavailable():
    assert conv_ways.operations(lambda x, w: x + 1, *convolution.inputs(SMALL)[:2]) == "unavailable"


def observed(experiment, count=2, **asked):
    prepared = experiment.prepare(experiment.settings(**asked))
    return prepared, list(experiment.observe(prepared.state, count))


@pytest.mark.parametrize("way", conv_ways.CONV_WAYS.knob("way").choices)
@pytest.mark.parametrize("part", convolution.PARTS)
def test_a_way_repeats_itself_and_reports_all_three_parts(way, part):
    if way == "oneDNN" and way not in convolution.ways():
        pytest.skip("this PyTorch was built without oneDNN")
    _, runs = observed(conv_ways.CONV_WAYS, count=3, way=way, part=part, threads=1)
    assert len({run.fingerprint for run in runs}) == 1
    assert all(run.reported[part] == run.fingerprint for run in runs)
    assert all(run.reported.keys() == {*convolution.PARTS, "shown"} for run in runs)
    assert runs[0].reported["shown"] == (
        "16 × 16 × 3 × 3" if part == "weight gradient" else "8 × 16 × 16 × 16"
    )
    assert all(run.scalars["largest error"] <= run.scalars["allowed"] for run in runs)


def test_algorithms_give_more_than_one_fingerprint():
    """No race: im2col and shift-and-add round 144 products in other orders, so some output differs."""
    seen = {observed(conv_ways.CONV_WAYS, count=1, way=way)[1][0].fingerprint for way in convolution.ways()}
    assert len(seen) >= 2


def test_a_tuner_without_a_race_always_picks_the_same():
    _, runs = observed(conv_autotune.CONV_AUTOTUNE, rule=conv_autotune.FIXED)
    assert [run.reported for run in runs] == 2 * [{"chosen": "native", "timings in a run": 0}]


def test_a_choice_made_once_is_kept(monkeypatch):
    winners = iter(("FFT", "im2col", "native", "Winograd"))
    monkeypatch.setattr(conv_autotune, "choose", lambda *given: (next(winners), 7))
    prepared, runs = observed(conv_autotune.CONV_AUTOTUNE, when=conv_autotune.ONCE)
    assert prepared.seen["timings before the first run"] == 7
    assert [run.reported for run in runs] == 2 * [{"chosen": "FFT", "timings in a run": 0}]
    prepared, runs = observed(conv_autotune.CONV_AUTOTUNE, when=conv_autotune.EACH)
    assert prepared.seen["timings before the first run"] == 0
    assert [run.reported["chosen"] for run in runs] == ["im2col", "native"]
    assert [run.reported["timings in a run"] for run in runs] == [7, 7]
    assert runs[0].fingerprint == fingerprint(convolution.im2col(*prepared.state.inputs))


@pytest.mark.parametrize(
    ("rule", "seconds", "chosen", "timed"),
    [
        (conv_autotune.FASTEST, {"oneDNN": 1.1, "native": 1.0, "FFT": 9.0}, "native", 3),
        (conv_autotune.WITH_MARGIN, {"oneDNN": 1.1, "native": 1.0, "FFT": 9.0}, "oneDNN", 15),
        (conv_autotune.WITH_MARGIN, {"oneDNN": 2.0, "native": 1.0, "FFT": 9.0}, "native", 15),
    ],
)
def test_the_rules(rule, seconds, chosen, timed, monkeypatch):
    monkeypatch.setattr(conv_autotune, "race", lambda ways, x, w, times=1: seconds)
    assert conv_autotune.choose(rule, {}, None, None) == (chosen, timed)


def test_a_table_of_timings_has_every_way_and_a_source():
    table = conv_autotune.timings([[2, 3, 6], [2, 3, 8]], rounds=3)
    assert list(table["seconds"]) == ["2×3×6×6", "2×3×8×8"]
    assert all(len(t) == 3 and min(t) > 0 for ways in table["seconds"].values() for t in ways.values())
    assert table["source"]["kind"] == "LIVE"


def test_two_fresh_processes_and_the_choice_comes_back():
    runs = runner.run("conv-autotune", SMALL | {"when": conv_autotune.ONCE}, repeats=4)
    assert runs.processes == 2
    for process in (0, 1):
        assert len({o.reported["chosen"] for o in runs.observations if o.process == process}) == 1


# --- conv-algorithm, with the CPU in the GPU's place -----------------------------------------------------


def test_without_a_gpu_it_says_what_to_do_instead(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadSetting, match="conv-ways and conv-autotune"):
        conv_algorithm.prepare(conv_algorithm.CONV_ALGORITHM.settings())


@pytest.fixture
def cpu_as_gpu(monkeypatch):
    monkeypatch.setattr(conv_algorithm, "gpu", lambda: torch.device("cpu"))
    monkeypatch.setattr(
        conv_algorithm, "kernels_of", lambda step: step() and ["void conv<float, 3>(int)", "wgrad(int)"]
    )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", conv_algorithm.FORMATS)
def test_it_runs_in_every_number_and_memory_format(dtype, layout, cpu_as_gpu):
    prepared, runs = observed(conv_algorithm.CONV_ALGORITHM, dtype=dtype, format=layout, **SMALL)
    x = prepared.state.inputs[0]
    assert str(x.dtype) == f"torch.{dtype}"
    assert x.is_contiguous(memory_format=getattr(torch, f"{layout}_format", None) or torch.channels_last)
    assert (prepared.seen["dtype"], prepared.seen["format"]) == (dtype, layout)
    assert runs[0].reported["kernels"] == ["void conv<float, 3>(int)", "wgrad(int)"]
    assert prepared.seen["kernels in the first step"] == 2
    assert prepared.seen["kernels in a later step"] == runs[0].reported["ran"] == "conv<float, 3>; wgrad"
    assert prepared.seen["images"] == runs[0].reported["shown"] == "2 × 3 × 7 × 7"
    np.array(runs[0].sample, runs[0].dtype)


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        ({}, {"benchmark": False, "deterministic": False, "deterministic everywhere": False, "TF32": True}),
        ({"benchmark": True}, {"benchmark": True}),
        ({"tf32": False}, {"TF32": False}),
        (
            {"deterministic": conv_algorithm.CUDNN_ONLY},
            {"deterministic": True, "deterministic everywhere": False},
        ),
        (
            {"deterministic": conv_algorithm.EVERYWHERE},
            {"deterministic": False, "deterministic everywhere": True},
        ),
    ],
)
def test_every_switch_is_set_and_read_back(asked, seen, cpu_as_gpu):
    prepared, _ = observed(conv_algorithm.CONV_ALGORITHM, **asked, **SMALL)
    assert {name: prepared.seen[name] for name in seen} == seen
    code = conv_algorithm.code(conv_algorithm.CONV_ALGORITHM.settings(**asked))
    assert f"cudnn.benchmark = {prepared.seen['benchmark']}" in code


@pytest.mark.parametrize(("limit", "seen"), [(0, 0), (10, 10), (None, "unavailable")])
def test_a_limit_of_zero_is_a_limit(limit, seen, cpu_as_gpu, monkeypatch):
    """0 times all candidates. Whether there is a limit depends on the build, so here cuDNN has one or none."""
    monkeypatch.setattr(torch_worker, "set_flags", lambda **flags: None)
    monkeypatch.setattr(type(torch.backends.cudnn), "benchmark_limit", limit)
    prepared, _ = observed(conv_algorithm.CONV_ALGORITHM, **SMALL)
    assert prepared.seen["limit"] == seen


def test_each_process_says_which_kernels_it_chose(cpu_as_gpu, monkeypatch):
    """What is seen comes from the first process; another one may have chosen other kernels."""
    observations = []
    for process, kernel in enumerate(("wgrad_a", "wgrad_b")):
        monkeypatch.setattr(conv_algorithm, "kernels_of", lambda step, kernel=kernel: step() and [kernel])
        prepared, runs = observed(conv_algorithm.CONV_ALGORITHM, **SMALL)
        observations += [dataclasses.replace(run, process=process) for run in runs]
    runs = Runs("conv-algorithm", {}, prepared.seen, prepared.source(), tuple(observations))
    assert "ran: wgrad_a 2, wgrad_b 2" in runs.reported


LONG = "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_{}_align4>(cutlass_tensorop::Params)"


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        (
            LONG.format("64x64"),
            "cutlass__5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_64x64_align4>",
        ),
        (
            "void implicit_convolve_sgemm<float, 128>(int, float (*)(int))",
            "implicit_convolve_sgemm<float, 128>",
        ),
        (
            "void at::native::(anonymous namespace)::pool<float>(float const*)",
            "at::native::(anonymous namespace)::pool<float>",
        ),
        ("sm90_xmma_wgrad_implicit_gemm_tf32f32_tilesize128x128x32", None),
        ("(anonymous)", None),
    ],
)
def test_a_short_name_keeps_what_tells_kernels_apart(kernel, short):
    assert conv_algorithm._short(kernel) == (short or kernel)


def test_two_names_that_are_too_long_stay_apart():
    one, two = (conv_algorithm._short(LONG.format("x" * 100 + end)) for end in "ab")
    assert one != two
    assert max(len(one), len(two)) <= conv_algorithm.LONGEST + len("… (0123)")


def test_nothing_is_left_of_a_switch():
    torch_worker.set_flags(cudnn_benchmark=True, cudnn_deterministic=True, cudnn_tf32=False, mkldnn=False)
    torch_worker.set_flags()
    cudnn = torch.backends.cudnn
    assert (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32) == (False, False, True)
    assert torch.backends.mkldnn.enabled


def test_kernel_names_are_those_of_the_gpu_in_their_order():
    def event(name, device, start):
        return SimpleNamespace(
            name=name, device_type=SimpleNamespace(name=device), time_range=SimpleNamespace(start=start)
        )

    events = [
        event("aten::conv2d", "CPU", 0),
        event("wgrad_kernel", "CUDA", 30),
        event("Memcpy DtoD (Device -> Device)", "CUDA", 5),
        event("Memset (Device)", "CUDA", 6),
        event("fprop_kernel", "CUDA", 10),
    ]
    assert conv_algorithm.kernel_names(events) == ["fprop_kernel", "wgrad_kernel"]


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_profiler_that_sees_no_gpu_or_fails_says_unavailable(monkeypatch):
    assert conv_algorithm.kernels_of(lambda: None) == "unavailable"

    def refuses(**_):
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    monkeypatch.setattr(torch.profiler, "profile", refuses)
    done = []
    assert conv_algorithm.kernels_of(lambda: done.append(1)) == "unavailable"
    assert done  # the step chooses the algorithms, watched or not


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_what_goes_wrong_in_the_step_is_not_hidden():
    def fails():
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        conv_algorithm.kernels_of(fails)


@pytest.mark.gpu
def test_on_a_gpu_every_part_is_observed_and_the_kernels_are_named():
    for part in convolution.PARTS:
        runs = runner.run("conv-algorithm", {"part": part, "benchmark": True}, repeats=4)
        assert runs.seen["backend"] == "Cudnn"
        assert runs.observations[0].reported["kernels"]
