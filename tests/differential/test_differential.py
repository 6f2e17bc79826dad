# SPDX-License-Identifier: Apache-2.0
"""Our answers beside the real Triton's: as recorded, and live where it is installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import recorded_json
from tests.differential import recording
from tests.differential.case import Case
from tests.differential.cases import CASES
from tests.differential.recording import real_server, run
from tests.recorded_suite import mistakes

GOLDEN = recorded_json.load(recording.GOLDEN)
COMPARABLE = [case for case in CASES if not case.only_ours]


@pytest.fixture(scope="session")
def real_port() -> Iterator[int]:
    with real_server() as port:
        yield port


@pytest.mark.e2e
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_our_server_answers_as_the_real_one(case: Case, our_port: int) -> None:
    expected = list(case.ours) or GOLDEN[case.name]

    assert run(case, our_port) == expected


@pytest.mark.part("peers")
@pytest.mark.e2e
@pytest.mark.parametrize("case", COMPARABLE, ids=lambda case: case.name)
def test_recording_is_what_the_real_server_answers(case: Case, real_port: int) -> None:
    assert run(case, real_port) == GOLDEN[case.name]


def test_recording_has_all_cases_and_each_difference_is_one() -> None:
    ours = {case.name: list(case.ours) for case in CASES if case.ours}
    reasons = {case.name: case.because for case in COMPARABLE if case.because}
    only_ours = {case.name for case in CASES} - {case.name for case in COMPARABLE}
    names = [case.name for case in CASES]

    assert mistakes(GOLDEN, ours, reasons, names=names, only_ours=only_ours) == {}
