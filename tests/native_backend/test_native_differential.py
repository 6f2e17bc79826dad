# SPDX-License-Identifier: Apache-2.0
"""Backends in C on our server beside the real Triton: as recorded, and live where installed."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from pytriton.runtime.native_backend.worker import CODE_SETTING
from tests.native_backend import building
from tests.native_backend.known_differences import KNOWN_DIFFERENCES
from tests.native_backend.native_rig import COMPILED, WRITTEN
from tests.native_backend.recording import GOLDEN, OURS, REAL_LIVES, answers, load
from tests.native_backend.servers import our_server, real_server

REAL = load(GOLDEN)
DIFFERENT = load(OURS)
EXPECTED = {**REAL, **DIFFERENT}

pytestmark = pytest.mark.skipif(bool(building.missing()), reason=building.missing())


@pytest.fixture(scope="module", params=[COMPILED, WRITTEN])
def our_answers(request: pytest.FixtureRequest) -> dict[str, Any]:
    return answers(functools.partial(our_server, {CODE_SETTING: request.param}))


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_our_server_runs_backends_as_the_real_one(name: str, our_answers: dict[str, Any]) -> None:
    assert our_answers[name] == EXPECTED[name]


@pytest.mark.e2e
def test_everything_that_our_server_answered_is_compared(our_answers: dict[str, Any]) -> None:
    assert set(our_answers) == set(EXPECTED)


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_recording_is_what_the_real_server_answers() -> None:
    assert answers(real_server, REAL_LIVES) == REAL


def test_every_difference_is_known() -> None:
    assert {name for name in DIFFERENT if name in REAL} == set(KNOWN_DIFFERENCES)


@pytest.mark.parametrize("name", sorted(KNOWN_DIFFERENCES))
def test_known_difference_is_one(name: str) -> None:
    assert DIFFERENT[name] != REAL[name]
