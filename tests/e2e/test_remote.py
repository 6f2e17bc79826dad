# SPDX-License-Identifier: Apache-2.0
"""Models bound into a server that another process runs."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config import Tensor
from pytriton.transport import rendezvous
from pytriton.transport.control import ControlLink, Join, Stop
from pytriton.triton import RemoteTriton, Triton, TritonConfig
from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually

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


@pytest.mark.parametrize("token", [None, "", "wrong"])
def test_wrong_token_is_refused(server, url, token):
    with pytest.raises(PyTritonRuntimeError, match="wrong or missing access token"):
        RemoteTriton(url=url, access_token=token).connect()


def test_second_binder_of_a_name_replaces_the_first(server, ports, url):
    port = ports["http_port"]
    token = server.get_access_token()
    with RemoteTriton(url=url, access_token=token) as first:
        first.bind("model", times(2), [X], [Y])
        with RemoteTriton(url=url, access_token=token) as second:
            second.bind("model", times(5), [X], [Y])

            assert infer(port, "model") == 5
            assert first.is_alive()

        assert not is_served(port, "model")

    with RemoteTriton(url=url, access_token=token) as third:
        third.bind("local", times(7), [X], [Y])
        assert infer(port, "local") == 7
    assert server.is_alive()


def test_killed_binder_takes_its_models_away(server, ports, tmp_path):
    port = ports["http_port"]
    script = tmp_path / "remote.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import numpy as np
            from pytriton.model_config import Tensor
            from pytriton.triton import RemoteTriton
            x, y = (Tensor(name=n, dtype=np.float32, shape=(1,)) for n in "xy")
            with RemoteTriton("localhost:{port}", access_token="{server.get_access_token()}") as t:
                t.bind("remote", lambda rs: [{{"y": r["x"] * 4}} for r in rs], [x], [y])
                t.serve()
            """
        )
    )
    process = subprocess.Popen([sys.executable, str(script)])
    try:
        assert eventually(lambda: is_served(port, "remote"))
        assert infer(port, "remote") == 4
        process.send_signal(signal.SIGKILL)

        assert eventually(lambda: not is_served(port, "remote"), 1.0)
    finally:
        process.kill()
        process.wait()
    assert infer(port, "local") == 1


def test_end_of_the_server_ends_serving(ports):
    server = Triton(config=TritonConfig(**ports))
    server.run()
    remote = RemoteTriton(f"localhost:{ports['http_port']}", None, server.get_access_token())
    remote.connect()
    remote.bind("remote", times(2), [X], [Y])
    server.stop()

    assert eventually(lambda: not remote.is_alive())
    assert eventually(lambda: not remote.is_connected())


def test_remote_process_cannot_stop_the_server(server, ports):
    sock = rendezvous.connect(ports["http_port"], 1.0)
    link = ControlLink(sock)
    link.send(Join(server.get_access_token()))
    link.receive()
    link.send(Stop())
    with pytest.raises(EOFError):
        link.receive()
    link.close()

    assert server.is_alive()
    assert infer(ports["http_port"], "local") == 1


def test_who_does_not_introduce_himself_is_turned_away(server, ports):
    sock = rendezvous.connect(ports["http_port"], 1.0)
    sock.sendall(b"\x05\x00\x00\x00hello")
    sock.settimeout(DEADLINE_S)

    assert sock.recv(100) == b""
    sock.close()
    assert infer(ports["http_port"], "local") == 1


def test_server_leaves_no_name_behind(ports):
    with Triton(config=TritonConfig(**ports)):
        rendezvous.connect(ports["http_port"], 1.0).close()
    with pytest.raises(ConnectionError):
        rendezvous.connect(ports["http_port"], 1.0)
    names = pathlib.Path("/proc/net/unix")
    if names.exists():
        assert f"@pytriton/{os.getuid()}/{ports['http_port']}" not in names.read_text()
