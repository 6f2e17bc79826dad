# SPDX-License-Identifier: Apache-2.0
"""Our answers beside the real Triton's: as recorded, and live where it is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.differential.case import Case
from tests.differential.cases import CASES
from tests.differential.recording import load_golden, real_server, run

GOLDEN = load_golden()
by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="session")
def real_port() -> Iterator[int]:
    with real_server() as port:
        yield port


@pytest.mark.e2e
@by_name
def test_our_server_answers_as_the_real_one(case: Case, our_port: int) -> None:
    expected = list(case.ours) or GOLDEN[case.name]

    assert run(case, our_port) == expected


@pytest.mark.part("peers")
@pytest.mark.e2e
@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.only_ours], ids=lambda case: case.name
)
def test_recording_is_what_the_real_server_answers(case: Case, real_port: int) -> None:
    assert run(case, real_port) == GOLDEN[case.name]


def test_cases_have_distinct_names() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_comparable_case_is_recorded() -> None:
    assert {case.name for case in CASES if not case.only_ours} == set(GOLDEN)


@by_name
def test_deliberate_difference_is_one(case: Case) -> None:
    assert case.only_ours or list(case.ours) != GOLDEN[case.name]
