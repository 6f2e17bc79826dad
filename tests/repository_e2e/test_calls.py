# SPDX-License-Identifier: Apache-2.0
"""Models that call others: from everywhere, many at once, in circles, and given up."""

from __future__ import annotations

import pytest

from tests.e2e.http_client import InferFailedError
from tests.e2e.waiting import eventually
from tests.repository_e2e import calling_models as models

pytestmark = pytest.mark.both_front_end_modes


@pytest.fixture(scope="module")
def server(start_module_server):
    return start_module_server(
        {
            **models.TARGETS,
            **models.CELLS,
            **models.RELAYS,
            **models.CIRCLES,
            "gather": models.GATHER,
            "meeting": models.MEETING,
            "patient": models.PATIENT,
            "hasty": models.HASTY,
        }
    ).await_ready()


@pytest.mark.parametrize("name", models.CELLS)
@pytest.mark.parametrize("is_decoupled", [False, True])
def test_models_are_called_from_everywhere(server, name, is_decoupled):
    expected = 3 + 2 + 1 if is_decoupled else 3

    assert server.infer(name, float(is_decoupled)) == [expected]
    assert server.infer(name, float(is_decoupled)) == [expected]


def test_decoupled_coroutine_passes_responses_on(server):
    assert server.infer("relayed") == [3 + 2 + 1]


def test_many_calls_go_through_one_instance(server):
    assert server.infer("gather", 200.0, 0.0, 0.0) == [200, 0]


def test_coroutines_of_one_instance_overlap(server):
    assert server.infer("gather", 16.0, 16.0, 1.0) == [16, 0]


@pytest.mark.parametrize("name", ["sync_self", "blocking_self"])
def test_model_that_waits_for_itself_gets_an_error(server, name):
    for _ in range(2):
        with pytest.raises(InferFailedError, match="the call would never be answered, as all 1 in"):
            server.infer(name)


def test_task_that_is_cancelled_cancels_its_call_in_the_other_model(server):
    assert server.infer("hasty") == [0]

    assert eventually(lambda: server.infer("patient", -1.0) == [1])
