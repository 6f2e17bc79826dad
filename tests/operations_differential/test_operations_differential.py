# SPDX-License-Identifier: Apache-2.0
"""What operators see of a server beside the real Triton: as recorded, and live where asked for.

`PYTRITON_LIVE_OPERATIONS=1` also compares the recordings with the real server, where installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.operations_differential.recording import answers
from tests.operations_differential.surface import load, surfaces
from tests.recorded_suite import mistakes
from tests.suite import available_cores

SURFACES = surfaces()
REAL = {name: load(surface.golden) for name, surface in SURFACES.items()}
KNOWN = {name: load(surface.known) for name, surface in SURFACES.items()}
# The package of buckets is one of another part of the suite.
MARKS = {"cloud": pytest.mark.part("cloud")}
CASES = [
    pytest.param(surface.name, case.name, marks=MARKS.get(surface.name, ()))
    for surface in SURFACES.values()
    for case in surface.cases
]
IS_LIVE = bool(os.environ.get("PYTRITON_LIVE_OPERATIONS"))


@pytest.fixture(scope="module")
def our_answers(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """What ours answers about the surfaces that are tested, two or more of them at a time."""
    tested = {
        item.callspec.params["surface"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    with ThreadPoolExecutor(max_workers=max(2, available_cores() // 4)) as pool:
        yield {
            name: pool.submit(answers, SURFACES[name], is_real=False)
            for name in SURFACES
            if name in tested
        }


@pytest.mark.e2e
@pytest.mark.parametrize("surface, case", CASES)
def test_our_server_answers_as_the_real_one(
    surface: str, case: str, our_answers: dict[str, Future[dict[str, Any]]]
) -> None:
    known = KNOWN[surface].get(case)
    expected = REAL[surface][case] if known is None else known["ours"]

    assert our_answers[surface].result()[case] == expected


@pytest.mark.e2e
@pytest.mark.part("peers")
@pytest.mark.skipif(not IS_LIVE, reason="PYTRITON_LIVE_OPERATIONS is not set")
@pytest.mark.parametrize("surface", SURFACES)
def test_recording_is_what_the_real_server_answers(surface: str) -> None:
    assert answers(SURFACES[surface], is_real=True) == REAL[surface]


def test_recordings_have_all_cases_and_a_reason_for_each_difference() -> None:
    found = {
        name: mistakes(
            REAL[name],
            {case: known["ours"] for case, known in KNOWN[name].items()},
            {case: known["reason"] for case, known in KNOWN[name].items()},
            names=[case.name for case in surface.cases],
        )
        for name, surface in SURFACES.items()
    }

    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_stored_answers_belong_to_a_surface() -> None:
    folder = next(iter(SURFACES.values())).golden.parent
    stored = {
        path.stem for kind in ("golden", "known") for path in (folder.parent / kind).iterdir()
    }

    assert stored <= set(SURFACES)
