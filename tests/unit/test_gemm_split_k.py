"""Split-K: the course's kernels in the simulator, and PyTorch's way on the CPU."""

import sys
from pathlib import Path

import numpy as np
import pytest

from samebits.experiments import gemm_split_k
from samebits.experiments.gemm_split_k import SPLIT_K

sys.path.append(str(Path(__file__).parent))
from test_kernels import in_simulator

torch = pytest.importorskip("torch")

CUTS = ((64, 8), (33, 4), (5, 5))  # K and parts; 33 is no multiple of 4


def every_product(cuts):
    from samebits import kernels, split_k
    from samebits.experiments import gemm_split_k

    device = kernels.open_device()
    found = []
    for k, parts in cuts:
        a, b = gemm_split_k.inputs(k, 4)
        for way in split_k.WAYS:
            product = split_k.Product(way, a, b[:, :3], parts, 32, device)
            product.run()
            found.append([k, parts, way, product.value().tobytes().hex(), product.workspace_bytes])
    return found


@pytest.fixture(scope="module")
def products():
    return {(k, parts, way): rest for k, parts, way, *rest in in_simulator(every_product, CUTS)}


def in_order(k, parts):
    """What the kernels' docstrings say, in NumPy: each part one by one, then the parts one by one."""
    a, b = gemm_split_k.inputs(k, 4)
    products = a[:, :, None] * b[:, :3]
    cuts = gemm_split_k.cuts(k, parts)
    partial = [
        np.add.accumulate(products[:, i:j], axis=1)[:, -1] for i, j in zip(cuts, cuts[1:], strict=False)
    ]
    return np.add.accumulate(partial)[-1]


@pytest.mark.parametrize(("k", "parts"), CUTS)
def test_each_kernel_gives_the_bits_of_its_order(products, k, parts):
    expected = {
        "unsplit": in_order(k, 1),
        "fixed order": in_order(k, parts),
        "atomics": in_order(k, parts),  # the simulator's threads commit by number, so part by part
    }
    for way, c in expected.items():
        assert products[k, parts, way][0] == c.tobytes().hex(), way


def test_orders_are_told_apart_by_the_inputs():
    """Else the test above would pass for a kernel that adds in another order."""
    assert in_order(64, 8).tobytes() != in_order(64, 1).tobytes() != in_order(64, 4).tobytes()


def test_the_workspace_holds_every_partial_product(products):
    assert products[64, 8, "fixed order"][1] == 8 * 4 * 3 * 4
    assert products[64, 8, "unsplit"][1] == 4 * 3 * 4
    assert products[64, 8, "atomics"][1] == 0


def on_cpu(**settings):
    return gemm_split_k.prepare(SPLIT_K.settings(device="cpu", **settings)).state


def test_a_fixed_order_repeats_beside_atomics_that_race(vary, not_exercised):
    control = vary(lambda: on_cpu(way="atomics")()[0], budget_seconds=10)
    if not control.varied:
        not_exercised(f"the atomics did not vary: {control}")
    fixed = on_cpu(way="fixed order")
    assert len({fixed()[0].tobytes() for _ in range(40)}) == 1


def test_every_way_is_the_same_product_up_to_rounding():
    a, b = (x.astype(np.float64) for x in gemm_split_k.inputs(512))
    for way in ("unsplit", "fixed order", "atomics"):
        c, _ = on_cpu(way=way, k=512, parts=9)()
        assert np.abs(c - a @ b).max() < 1e-3, way


def test_one_part_is_the_unsplit_product():
    assert on_cpu(way="fixed order", parts=1)()[0].tobytes() == on_cpu(way="unsplit")()[0].tobytes()


def test_every_number_of_parts_fits_into_every_k():
    assert SPLIT_K.knob("parts").high <= SPLIT_K.knob("k").low


@pytest.mark.parametrize("way", ["unsplit", "fixed order", "atomics"])
@pytest.mark.parametrize("device", ["cpu", "simulator"])
def test_the_code_that_is_shown_is_short(way, device):
    code = SPLIT_K.code(SPLIT_K.settings(way=way, device=device))
    assert len(code.splitlines()) <= 25
    assert ("def " in code) == (device == "simulator")
