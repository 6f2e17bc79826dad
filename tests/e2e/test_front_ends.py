# SPDX-License-Identifier: Apache-2.0
"""Bound functions whose clients are served by processes of their own."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal

import numpy as np
import psutil
import pytest

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton, Triton, TritonConfig, TritonSecurityConfig
from tests.e2e.conftest import new_ports
from tests.e2e.grpc_infer import GrpcCaller
from tests.e2e.http_client import infer, infer_json
from tests.e2e.load import ConstantLoad
from tests.e2e.scripts import SERVE, own_servers
from tests.e2e.waiting import DEADLINE_S, eventually

X = Tensor(name="x", dtype=np.float32, shape=(-1,))
Y = Tensor(name="y", dtype=np.float32, shape=(-1,))
TWO = {"frontend_processes": 2}
CONNECTIONS = 6  # enough that both front ends have some


def plus_one(requests):
    return [{"y": request["x"] + 1} for request in requests]


def count(requests):
    (request,) = requests
    for number in range(int(request["x"][0])):
        yield [{"y": np.array([number], np.float32)}]


def is_alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def answers(connection):
    """Whether a connection is still served."""
    try:
        connection.request("GET", "/v2/health/live")
        answer = connection.getresponse()
        answer.read()  # so that the connection can be used again
    except (OSError, http.client.HTTPException):
        return False
    return answer.status == 200


class Served:
    """A running server with two front ends."""

    def __init__(self, triton, ports):
        self.triton = triton
        self.ports = ports
        self.port = ports["http_port"]
        self.grpc_port = ports["grpc_port"]

    def bind(self, name="Model", function=plus_one, **config):
        self.triton.bind(name, function, [X], [Y], config=ModelConfig(**config))

    @property
    def core(self):
        (core,) = [
            each
            for each in own_servers()
            if any(child.laddr.port == self.port for child in each.net_connections())
        ]
        return core

    def front_ends(self):
        return [
            process
            for zygote in self.core.children()
            for process in zygote.children()
            if is_alive(process)
        ]

    def connection_counts(self):
        """The number of HTTP clients of each front end."""
        return [
            sum(each.laddr.port == self.port for each in process.net_connections())
            for process in self.front_ends()
        ]

    @contextlib.contextmanager
    def connections(self):
        with contextlib.ExitStack() as stack:
            made = []
            for _ in range(CONNECTIONS):
                each = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
                made.append(stack.enter_context(contextlib.closing(each)))
                each.connect()
            yield made


@contextlib.contextmanager
def serving(security_config=None, **settings):
    ports = new_ports()
    config = TritonConfig(**{**ports, **TWO, **settings})
    with Triton(config=config, security_config=security_config) as triton:
        yield Served(triton, ports)


@pytest.fixture
def served():
    with serving() as made:
        yield made


def test_clients_of_both_protocols_are_served_by_two_processes(served):
    served.bind(max_batch_size=64)
    with served.connections():
        assert len(served.front_ends()) == 2
        assert eventually(lambda: sum(served.connection_counts()) == CONNECTIONS)
        assert all(served.connection_counts())
    x = np.arange(5, dtype=np.float32)[None]
    assert infer(served.port, "Model", {"x": x})["y"].tolist() == (x + 1).tolist()
    assert infer_json(served.port, "Model", {"x": x}).json["outputs"][0]["data"] == [1, 2, 3, 4, 5]
    with GrpcCaller(served.grpc_port) as caller:
        assert caller.infer("Model", {"x": x})["y"].tolist() == (x + 1).tolist()


def test_restricted_api_asks_for_its_token_in_every_process():
    security = TritonSecurityConfig(access_token="secret", restricted_endpoints=["metadata"])
    with serving(security) as served, served.connections() as connections:
        statuses = []
        for each in connections:
            for headers in ({}, {"triton-access-token": "secret"}):
                each.request("GET", "/v2", headers=headers)
                answer = each.getresponse()
                answer.read()
                statuses.append(answer.status)

    assert statuses == [403, 200] * CONNECTIONS


def test_headers_are_forwarded_by_every_process():
    seen = []

    def note(requests):
        seen.extend(request.parameters for request in requests)
        return plus_one(requests)

    with serving(http_header_forward_pattern="x-.*") as served:
        served.bind(function=note)
        body = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1]}]}'
        with served.connections() as connections:
            for number, each in enumerate(connections):
                headers = {"x-number": str(number), "other": "no"}
                each.request("POST", "/v2/models/Model/infer", body, headers)
                answer = each.getresponse()
                assert answer.read()
                assert answer.status == 200

    numbers = [parameters["x-number"] for parameters in seen]
    assert numbers == [str(number) for number in range(CONNECTIONS)]
    assert not any("other" in parameters for parameters in seen)


def test_model_that_another_process_binds_is_known_to_all_front_ends_at_once(served):
    url, token = f"localhost:{served.port}", served.triton.get_access_token()
    with RemoteTriton(url, access_token=token) as remote, served.connections() as connections:
        for round_number in range(5):
            name = f"Remote{round_number}"
            remote.bind(name, plus_one, [X], [Y])
            statuses = []
            for each in connections:
                each.request("GET", f"/v2/models/{name}/ready")
                answer = each.getresponse()
                answer.read()
                statuses.append(answer.status)
            assert statuses == [200] * CONNECTIONS
            remote.unbind(name)


def test_front_end_is_replaced_and_bound_functions_go_on(served):
    served.bind(max_batch_size=64)
    core = served.core
    with served.connections() as connections, ConstantLoad(served.port, clients=1):
        assert all(answers(each) for each in connections)  # so each has its front end
        first = served.front_ends()[0]
        first.kill()
        assert eventually(lambda: first.pid not in {e.pid for e in served.front_ends()})
        assert eventually(lambda: len(served.front_ends()) == 2)
        kept = sum(answers(each) for each in connections)

        assert 0 < kept < CONNECTIONS
    assert served.core.pid == core.pid
    x = np.ones((1, 1), np.float32)
    assert infer(served.port, "Model", {"x": x})["y"].tolist() == [[2]]


@pytest.mark.parametrize("victim", ["user", "server"])
def test_everything_ends_when_one_of_the_processes_is_killed(start_script, victim):
    script = start_script(
        SERVE, quiet=True, environment={"PYTRITON_FRONTEND_PROCESSES": "2"}
    ).await_ready()
    with ConstantLoad(script.http_port) as load:
        assert eventually(lambda: len(load.statuses) > 20)
        # Titles of forked processes overwrite the mark in their environment, so they are kept here.
        processes = psutil.Process(script.process.pid).children(recursive=True)
        assert len(processes) == 4  # the server, a zygote and two front ends
        os.kill(script.process.pid if victim == "user" else processes[0].pid, signal.SIGKILL)
        left = script.await_gone()

    assert left == {}
    assert eventually(lambda: not any(is_alive(each) for each in processes))
