# SPDX-License-Identifier: Apache-2.0
"""Our clients and server beside NVIDIA PyTriton's: as recorded, and live where it is installed."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests import peers
from tests.client_differential.cases import CASES
from tests.client_differential.known_differences import KNOWN_DIFFERENCES
from tests.client_differential.outcome import agree
from tests.client_differential.record import OURS, REAL, load, outcomes
from tests.client_differential.servers import our_python

RECORDED = load(REAL)
DIFFERENT = load(OURS)
DIFFERENCES = {name for name in DIFFERENT if name in RECORDED}


@pytest.fixture(scope="module")
def our_outcomes() -> dict[str, Any]:
    return outcomes(our_python(), our_python())


def disagreements(clients: Path, server: Path) -> dict[str, Any]:
    """What a mixed pair does otherwise than the original, where our own pair does the same."""
    found = outcomes(clients, server)
    compared = RECORDED.keys() - DIFFERENCES
    return {
        name: found[name]
        for name in compared
        if not agree(RECORDED[name], found.get(name, "nothing"))
    }


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(RECORDED.keys() - DIFFERENCES))
def test_our_clients_and_server_do_as_the_original(name: str, our_outcomes: dict[str, Any]) -> None:
    assert agree(RECORDED[name], our_outcomes[name]), (RECORDED[name], our_outcomes[name])


@pytest.mark.e2e
@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_our_clients_and_server_differ_as_recorded(name: str, our_outcomes: dict[str, Any]) -> None:
    assert our_outcomes[name] == DIFFERENT[name]


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_clients_of_the_original_get_the_same_from_our_server() -> None:
    assert disagreements(peers.python(), our_python()) == {}


@pytest.mark.e2e
@pytest.mark.part("peers")
def test_our_clients_get_the_same_from_the_server_of_the_original() -> None:
    assert disagreements(our_python(), peers.python()) == {}


def test_every_case_is_recorded_once() -> None:
    names = [case.name for case in CASES]

    assert sorted(names) == sorted({*RECORDED, *DIFFERENT})


def test_only_deadly_cases_are_not_recorded_of_the_original() -> None:
    assert {case.name for case in CASES if case.is_deadly} == DIFFERENT.keys() - RECORDED.keys()


def test_every_difference_is_known() -> None:
    known = {name for pattern in KNOWN_DIFFERENCES for name in fnmatch.filter(RECORDED, pattern)}

    assert known == DIFFERENCES


@pytest.mark.parametrize("pattern", sorted(KNOWN_DIFFERENCES))
def test_known_difference_is_one(pattern: str) -> None:
    names = fnmatch.filter(RECORDED, pattern)

    assert names
    assert not any(agree(RECORDED[name], DIFFERENT[name]) for name in names)
