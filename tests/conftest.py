"""Fixtures for tests of races: a fix is only as good as the control beside it that raced."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest

# A busy machine may take long over one example; that says nothing about the code under test.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """pytest names the test in a variable; a worker with another environment is another worker, and each test
    would start its own, which takes seconds. Afterwards pytest expects it, also where a test replaced os.environ."""
    environment = os.environ
    named = environment.pop("PYTEST_CURRENT_TEST", "")
    try:
        return (yield)
    finally:
        environment["PYTEST_CURRENT_TEST"] = named


@dataclass(frozen=True)
class Control:
    """The unfixed arm of a test, repeated until it varied or its budget ended.

    fingerprints  one for each run, in order
    seconds       how long all runs took
    """

    fingerprints: tuple[str, ...]
    seconds: float

    @property
    def varied(self) -> bool:
        return len(set(self.fingerprints)) > 1

    def __str__(self) -> str:
        return (
            f"{len(self.fingerprints)} runs in {self.seconds:.1f} s, {len(set(self.fingerprints))} distinct"
        )


@pytest.fixture
def vary() -> Callable[..., Control]:
    """`vary(control, budget_seconds=10)` calls `control` until two results differ in their bits, at least
    twice, or until the budget ends.

    Use it beside a fix, at a size at which the control can race:

        control = vary(lambda: x.index_put_(…))
        if not control.varied:
            not_exercised(f"index_put_ did not vary: {control}")
        assert len({fixed() for _ in range(20)}) == 1
    """
    return _vary


def _vary(control: Callable[[], Any], budget_seconds: float = 10) -> Control:
    from samebits.bits import fingerprint

    start = time.monotonic()
    fingerprints: list[str] = []
    while len(fingerprints) < 2 or (
        len(set(fingerprints)) == 1 and time.monotonic() - start < budget_seconds
    ):
        result = control()
        fingerprints.append(result if isinstance(result, str) else fingerprint(result))
    return Control(tuple(fingerprints), time.monotonic() - start)


@pytest.fixture
def not_exercised(request) -> Callable[[str], None]:
    """`not_exercised(reason)` records that this test ran but could not show what it is for. That is no
    failure; the closing summary prints and counts it."""
    return lambda reason: request.node.user_properties.append(("not exercised", reason))
