# SPDX-License-Identifier: Apache-2.0
"""Models bound into a server that another process runs."""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np
import pytest

from pytriton.model_config import Tensor
from pytriton.runtime.transport import rendezvous
from pytriton.runtime.transport.control import ControlLink, Join, ServerStop
from pytriton.triton import RemoteTriton, Triton, TritonConfig
from tests.e2e.http_client import call

X, Y = (Tensor(name=name, dtype=np.float32, shape=(1,)) for name in "xy")


def times(factor):
    return lambda requests: [{"y": request["x"] * factor} for request in requests]


def infer(port, model, value=1.0):
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    answer = call(port, f"/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode())
    return answer.json["outputs"][0]["data"][0] if answer.status == 200 else answer.status


def is_served(port, model):
    return call(port, f"/v2/models/{model}/ready").status == 200


@pytest.fixture
def server(ports):
    with Triton(config=TritonConfig(**ports)) as triton:
        triton.bind("local", times(1), [X], [Y])
        yield triton


@pytest.fixture(params=["http", "grpc"])
def url(request, ports):
    return f"{request.param}://localhost:{ports[f'{request.param}_port']}"


def test_remote_models_come_and_go_with_their_binder(server, ports, url):
    port = ports["http_port"]
    with RemoteTriton(url=url, access_token=server.get_access_token()) as remote:
        remote.bind("remote", times(2), [X], [Y])

        assert remote.is_connected()
        assert remote.is_alive()
        assert infer(port, "remote") == 2
        assert infer(port, "local") == 1

    assert not is_served(port, "remote")
    assert infer(port, "local") == 1
    assert server.is_alive()


def test_models_bound_before_connect_are_served_by_it(server, ports, url):
    remote = RemoteTriton(url=url, access_token=server.get_access_token())
    remote.bind("remote", times(3), [X], [Y])
    assert not remote.is_alive()

    remote.connect()
    remote.connect()

    assert infer(ports["http_port"], "remote") == 3
    assert remote.stop()
    assert not remote.stop()


def test_remote_can_be_stopped_and_connected_again(server, ports, url):
    remote = RemoteTriton(url=url, access_token=server.get_access_token())
    remote.bind("remote", times(3), [X], [Y])
    for _ in range(3):
        remote.connect()
        assert infer(ports["http_port"], "remote") == 3
        remote.stop()

    assert not is_served(ports["http_port"], "remote")


def test_remote_process_cannot_stop_the_server(server, ports):
    sock = rendezvous.connect(ports["http_port"], 1.0)
    link = ControlLink(sock)
    link.send(Join(server.get_access_token()))
    link.receive()
    link.send(ServerStop())
    with pytest.raises(EOFError):
        link.receive()
    link.close()

    assert server.is_alive()
    assert infer(ports["http_port"], "local") == 1


def test_server_leaves_no_name_behind(ports):
    with Triton(config=TritonConfig(**ports)):
        rendezvous.connect(ports["http_port"], 1.0).close()
    with pytest.raises(ConnectionError):
        rendezvous.connect(ports["http_port"], 1.0)
    names = pathlib.Path("/proc/net/unix")
    if names.exists():
        assert f"@pytriton/{os.getuid()}/{ports['http_port']}" not in names.read_text()
