"""The checks that need a GPU's kernels, run in numba-cuda's simulator: it cannot race, and flushes nothing."""

from __future__ import annotations

import pytest

from samebits import kernels, runner


@pytest.fixture(autouse=True, scope="module")
def end_workers():
    yield
    runner.close()


# Claim → what its check and its control say there; None is a race that did not show.
@pytest.mark.parametrize(
    ("claim", "holds", "control_holds"),
    [
        ("02-atomic-loses-nothing", True, True),
        ("02-atomic-no-order", None, False),
        ("02-atomic-flushes", False, False),
        ("02-kernels-repeat", True, None),
    ],
)
def test_a_check_of_kernels_runs_in_the_simulator(claim, holds, control_holds):
    for control, expected in ((False, holds), (True, control_holds)):
        seen = runner.call(
            "samebits.checks:run",
            {"claim": claim, "control": control},
            environment=kernels.environment(simulate=True),
        )
        assert seen["holds"] is expected, seen["what"]
