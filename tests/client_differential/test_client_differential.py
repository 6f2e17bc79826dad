# SPDX-License-Identifier: Apache-2.0
"""Our clients and server beside NVIDIA PyTriton's: as recorded, and live where it is installed."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests import peers
from tests.client_differential.case import Case, Servers
from tests.client_differential.case import outcomes as outcomes_of
from tests.client_differential.cases import CASES
from tests.client_differential.known_differences import KNOWN_DIFFERENCES
from tests.client_differential.outcome import agree
from tests.client_differential.record import OURS, REAL, outcomes
from tests.client_differential.servers import our_python
from tests.recorded_json import load
from tests.recorded_suite import mistakes

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


def test_recordings_have_all_cases_and_a_reason_for_each_difference() -> None:
    found = {pattern: fnmatch.filter(RECORDED, pattern) for pattern in KNOWN_DIFFERENCES}
    reasons = {name: KNOWN_DIFFERENCES[pattern] for pattern in found for name in found[pattern]}
    names = [case.name for case in CASES]
    deadly = {case.name for case in CASES if case.is_deadly}

    assert [pattern for pattern in found if not found[pattern]] == []
    assert (
        mistakes(RECORDED, DIFFERENT, reasons, names=names, only_ours=deadly, are_same=agree) == {}
    )


def test_last_cases_are_asked_when_all_others_were() -> None:
    asked: list[str] = []

    def case(name: str, **when: bool) -> Case:
        return Case(name, lambda _: asked.append(name), **when)

    cases = [case("last", is_last=True), case("slow", is_slow=True), case("quick")]
    outcomes_of(cases, Servers({}, is_real=True))

    assert asked.index("last") == 2
