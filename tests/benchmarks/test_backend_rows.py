# SPDX-License-Identifier: Apache-2.0
"""The contestants of compiled backends and of in-process calls give the right answers."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import compiled_loads, in_process_calls, in_process_loads, servers, turns
from benchmarks.servers import RunningServer
from tests.free_ports import first_of_free_ports
from tests.native_backend import building


@pytest.fixture(scope="module")
def server():
    port = first_of_free_ports(3)
    with servers.running(servers.repository(None, ["AddSub", "Ident"], port), port) as server:
        yield server


@pytest.mark.e2e
@pytest.mark.skipif(bool(building.missing()), reason=building.missing())
def test_measured_identities_return_what_they_get(tmp_path):
    checked = []

    def check(server: RunningServer, model: str) -> None:
        compiled_loads.check(server, model)
        checked.append(model)

    repository = compiled_loads.compiled_repository(tmp_path)
    ports = first_of_free_ports(2 * turns.PORTS)
    turns.measure(compiled_loads.contestants(None, repository), check, [], ports, 1)

    assert checked == ["IdentC", "Ident1"]


def test_compiled_backends_are_compared_with_both_servers(tmp_path):
    titles = {one.title for one in compiled_loads.contestants(tmp_path, tmp_path)}

    assert titles == {compiled_loads.TABLE.subject, *compiled_loads.TABLE.peers}
    assert len(compiled_loads.loads()) == 4


@pytest.mark.e2e
@pytest.mark.parametrize("row", in_process_calls.ROWS)
def test_calls_in_process_and_over_http_get_the_same_arrays(server, row):
    answers = []
    for client in in_process_loads.CLIENTS.values():
        with in_process_calls.caller(client, row, server.port) as call:
            answers.append(call())

    for answer in answers[1:]:
        assert answer.keys() == answers[0].keys()
        for name, array in answer.items():
            np.testing.assert_array_equal(array, answers[0][name])


@pytest.mark.e2e
def test_median_of_calls_is_measured_in_a_process_of_its_own(server):
    assert 0 < in_process_loads.median_s("in-process", "AddSub", server.port, 0.01) < 60
