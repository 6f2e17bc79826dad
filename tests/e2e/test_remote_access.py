# SPDX-License-Identifier: Apache-2.0
"""Who may bind models into a server: its user, on its machine, without a wrong token."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest

from pytriton.binding import remote_triton
from pytriton.exceptions import PyTritonRuntimeError, PyTritonValidationError
from pytriton.model_config import Tensor
from pytriton.runtime.transport.memory import PORTABLE_SETTING
from pytriton.triton import RemoteTriton, TritonSecurityConfig
from tests.e2e.binders import server_process
from tests.e2e.conftest import new_ports
from tests.e2e.http_client import infer, is_ready
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports

X, Y = (Tensor(name=name, dtype=np.float32, shape=(1,)) for name in "xy")


PROTOCOLS = ("http", "grpc")


def join(ports, protocol, token):
    url = f"{protocol}://localhost:{ports[f'{protocol}_port']}"
    return RemoteTriton(url, access_token=token)


def serve_once(remote, ports):
    """What a model answers that is bound as long as this takes."""
    with remote:
        remote.bind("Remote", lambda requests: [{"y": 3 * r["x"]} for r in requests], [X], [Y])
        return infer(ports["http_port"], "Remote", {"x": np.ones((1, 1), np.float32)})["y"].item()


@pytest.mark.parametrize("endpoints", [None, ["inference", "model-repository"]])
def test_wrong_token_is_refused_where_the_model_repository_is_restricted(
    run_triton, ports, endpoints
):
    run_triton(TritonSecurityConfig("mine", endpoints), **ports)

    for protocol in PROTOCOLS:
        with pytest.raises(PyTritonRuntimeError, match="wrong access token"):
            join(ports, protocol, "wrong").connect()


@pytest.mark.parametrize("token", [None, "", "mine"])
def test_user_of_the_server_needs_no_token(run_triton, ports, token):
    run_triton(TritonSecurityConfig("mine"), **ports)

    for protocol in PROTOCOLS:
        assert serve_once(join(ports, protocol, token), ports) == 3


def test_token_never_goes_over_the_network(monkeypatch):
    monkeypatch.setattr(remote_triton, "DEFAULT_TRITON_STARTUP_TIMEOUT_S", 0.1)
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)) as impostor:
        with pytest.raises(TimeoutError):
            RemoteTriton(f"127.0.0.1:{port}", access_token="secret").connect()
        impostor.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody came
            impostor.accept()


def test_server_of_another_machine_is_refused():
    with pytest.raises(PyTritonValidationError, match=r"on this machine, got '192\.0\.2\.1'"):
        RemoteTriton("192.0.2.1:8000", access_token="secret")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where servers are found on systems that find them by files, such as this one now."""
    monkeypatch.setenv(PORTABLE_SETTING, "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # found anew
    return tmp_path / f"pytriton-{os.geteuid()}"


def test_servers_are_found_by_files_where_that_is_how(folder, run_triton):
    first_ports, second_ports = new_ports(), new_ports()
    first, second = run_triton(**first_ports), run_triton(**second_ports)
    files = {path.name for path in folder.iterdir()}

    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(files) == 4
    for triton, ports in ((first, first_ports), (second, second_ports)):
        token = triton.get_access_token()
        assert serve_once(join(ports, "http", token), ports) == 3
        assert serve_once(join(ports, "grpc", token), ports) == 3
        triton.stop()
    assert list(folder.iterdir()) == []


def test_file_of_a_killed_server_is_taken_over(folder, run_triton, ports):
    triton = run_triton(**ports)
    server_process().kill()
    assert eventually(lambda: not triton.is_alive())
    assert len(list(folder.iterdir())) == 2
    triton.stop()
    triton.run()

    assert serve_once(join(ports, "http", triton.get_access_token()), ports) == 3


def test_folder_of_somebody_else_is_not_used(folder, run_triton, ports, monkeypatch):
    monkeypatch.setattr(remote_triton, "DEFAULT_TRITON_STARTUP_TIMEOUT_S", 0.1)
    folder.mkdir()
    folder.chmod(0o777)
    triton = run_triton(**ports)

    assert is_ready(ports["http_port"])
    with pytest.raises(PermissionError, match="must be a folder that belongs to this user alone"):
        join(ports, "http", triton.get_access_token()).connect()
    assert list(folder.iterdir()) == []
