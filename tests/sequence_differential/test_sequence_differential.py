# SPDX-License-Identifier: Apache-2.0
"""Sequences beside the real Triton: the same arrivals, as recorded, and live where installed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sequence_differential.known_differences import KNOWN_DIFFERENCES
from tests.sequence_differential.recording import (
    GOLDEN,
    NAMES,
    OURS,
    SCENARIOS,
    load,
    observations,
)
from tests.sequence_differential.servers import our_server, real_server

REAL = load(GOLDEN)
DIFFERENT = load(OURS)


@pytest.fixture(scope="module")
def seen_of_ours() -> dict[str, Any]:
    return observations(our_server)


@pytest.mark.e2e
@pytest.mark.parametrize("name", NAMES)
def test_our_server_does_as_the_real_one(name: str, seen_of_ours: dict[str, Any]) -> None:
    assert seen_of_ours[name] == {**REAL, **DIFFERENT}[name]


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_recording_is_what_the_real_server_does() -> None:
    assert observations(real_server) == REAL


def test_everything_is_recorded() -> None:
    assert sorted(NAMES) == sorted(REAL)


def test_scenarios_have_distinct_names() -> None:
    assert len({made.name for made in SCENARIOS}) == len(SCENARIOS)


def test_every_difference_is_known() -> None:
    assert set(DIFFERENT) == set(KNOWN_DIFFERENCES)


@pytest.mark.parametrize("name", sorted(KNOWN_DIFFERENCES))
def test_known_difference_is_one(name: str) -> None:
    assert DIFFERENT[name] != REAL[name]
