# SPDX-License-Identifier: Apache-2.0
"""Schedules that once showed a fault of the project, each as short as it could be made.

`scripts/simulate` prints such a test for what it finds. `calls` and `plan` say which schedule the
seed made when the fault was found: if the generator makes another one, the test says so.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.campaign import Job, run_job
from tests.simulation.elsewhere import Elsewhere
from tests.simulation.scenario import USUAL_LENGTH, Kept, Length, make_scenario


@pytest.fixture
def check_seed(elsewhere: Elsewhere) -> Callable[..., None]:
    """Fails with the story of a run if that has a finding."""

    def check(
        profile: str, seed: int, kept: Kept, *, calls: int, plan: str, length: Length = USUAL_LENGTH
    ) -> None:
        scenario = make_scenario(seed, profile, kept, length)

        assert (scenario.call_count, scenario.fingerprint) == (calls, plan), (
            f"seed {seed} of profile {profile} makes another schedule than when its fault was "
            f"found ({scenario.call_count} calls, then {calls}), so that this test no longer tests "
            "it: plant the fault again, look for it with scripts/simulate, and replace the test"
        )
        summary = elsewhere.call(run_job, Job(profile, seed, length, kept))

        assert not summary.findings, summary.story

    return check


def test_mixed_11_traced_requests_of_front_ends_leave_memory_behind(check_seed):
    # Found: left behind: program: descriptors of MemoryFile: N before, N after. The trace of a
    # request and its exchange were a cycle, which kept large tensors. The calls are those with
    # which every run uses each model once more.
    check_seed(
        "mixed",
        11,
        Kept(clients=frozenset(), faults=frozenset()),
        calls=0,
        plan="375f93d2774d",
    )


def test_management_1_a_worker_without_a_thread_for_counts_of_failures_lives(check_seed):
    # Found: a thread of triton_python_backend_stub fails_N_N ended with RuntimeError("can't start
    # new thread").
    check_seed(
        "management",
        1,
        Kept(
            clients=frozenset([2, 4]),
            calls=frozenset([33, 80, 82]),
            faults=frozenset([3, 4, 6]),
            splits=False,
        ),
        calls=3,
        plan="7cc496d9f88e",
    )


def test_formats_900020_success_counts_though_a_front_end_could_not_read_the_answer(check_seed):
    # Found: the server counted 3 successes of 'large', clients 2 to 2. The model had answered, but
    # the front end had no descriptor for the shared memory of the answer.
    check_seed(
        "formats",
        900020,
        Kept(
            clients=frozenset([19, 20, 21]),
            calls=frozenset([472, 473, 517]),
            faults=frozenset([1]),
            conducts=frozenset([]),
            files=False,
        ),
        calls=3,
        plan="848c60c34ffc",
    )


def test_stopping_900026_exit_code_says_that_a_call_was_given_up(check_seed):
    # Found: a call was refused that was under way when the server was stopped. It took longer than
    # the exit timeout, but the exit code was 0, as if everything had ended in time.
    check_seed(
        "stopping",
        900026,
        Kept(
            clients=frozenset([7]),
            calls=frozenset([173]),
            front_ends=False,
            splits=False,
            pauses=False,
            files=False,
        ),
        calls=1,
        plan="c307f81f752d",
    )
