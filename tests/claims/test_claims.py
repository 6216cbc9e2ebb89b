"""Each claim is run against what is installed, and its control must not hold: a false one fails here."""

from __future__ import annotations

import pytest

from samebits import claims, runner

WITH_CHECK = [claim for claim in claims.everything() if claim.check]


@pytest.fixture(autouse=True, scope="module")
def end_workers():
    yield
    runner.close()


# One worker process serves the checks that follow each other in one environment.
@pytest.mark.parametrize(
    "claim",
    sorted(
        WITH_CHECK, key=lambda claim: (claim.check.framework or "", str(claim.check.environment), claim.id)
    ),
    ids=lambda claim: claim.id,
)
def test_a_claim_holds_and_its_control_does_not(claim, not_exercised):
    evidence = claims.verify(claim)
    if evidence.status == "source" and claim.needs == ("cuda",):
        pytest.skip("a claim whose check needs an NVIDIA GPU: from a source only")
    if evidence.status in ("source", "other versions", "recorded"):
        pytest.skip(f"a claim {claims.STATUSES[evidence.status]}")
    if evidence.status == "not seen":
        not_exercised(f"{claim.says} {evidence.what}")
        return
    assert evidence.status == "verified", claims.sentence_to_mend(claim, evidence)
