# SPDX-License-Identifier: Apache-2.0
"""One server for all tests of commands; the real Triton and PyTriton where they are installed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
from dataclasses import dataclass

import pytest

from pytriton import constants
from pytriton.tools.commands import replay, server_options
from pytriton.tools.commands.perf import session
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests import peers
from tests.collected import items_in
from tests.commands import models
from tests.free_ports import first_of_free_ports

FOLDER = pathlib.Path(__file__).parent
TOKEN = "token-of-the-tests"


@dataclass(frozen=True)
class Asked:
    """Where a server listens that commands ask."""

    port: int

    @property
    def http(self) -> str:
        return f"localhost:{self.port}"

    @property
    def grpc(self) -> str:
        return f"grpc://localhost:{self.port + 1}"

    @property
    def metrics(self) -> str:
        return f"localhost:{self.port + 2}"


def pytest_collection_modifyitems(items):
    for item in items_in(FOLDER, items):
        if {"server", "real_pytriton", "real_triton", "any_server"} & set(item.fixturenames):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv("TRITON_ACCESS_TOKEN", raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture
def strangers(monkeypatch):
    """Commands meet servers as if these were of another user."""
    for module in (server_options, session, replay):
        monkeypatch.setattr(module, "ask_own_server", lambda address: None)


@contextlib.contextmanager
def serving(security):
    """A server with all models of the tests."""
    port = first_of_free_ports(3)
    ports = {"http_port": port, "grpc_port": port + 1, "metrics_port": port + 2}
    with Triton(config=TritonConfig(**ports), security_config=security) as triton:
        models.bind_all(triton)
        triton.run()
        yield Asked(port)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(constants, "PYTRITON_HOME", tmp_path_factory.mktemp("home"))
    with serving(TritonSecurityConfig(access_token=TOKEN)) as asked:
        yield asked
    patch.undo()


@pytest.fixture(scope="session")
def real_pytriton():
    port = first_of_free_ports(3)
    python = peers.python()
    path = f"PATH={python.parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = ["env", "-u", "PYTHONPATH", path, str(python), str(FOLDER / "models.py"), str(port)]
    with peers.serving(command, port, "Echo"):
        yield Asked(port)


@pytest.fixture(scope="session")
def real_triton(tmp_path_factory):
    port = first_of_free_ports(3)
    repository = tmp_path_factory.mktemp("repository")
    shutil.copytree(FOLDER / "model_repository", repository, dirs_exist_ok=True)
    ports = zip(("http", "grpc", "metrics"), range(port, port + 3), strict=True)
    options = [f"--{name}-port={number}" for name, number in ports]
    command = [*peers.triton_command(), f"--model-repository={repository}", *options]
    with peers.serving(command, port, "AddSub"):
        yield Asked(port)


@pytest.fixture(
    params=[
        "ours",
        *(pytest.param(name, marks=pytest.mark.part("peers")) for name in ("PyTriton", "Triton")),
    ]
)
def any_server(request):
    names = {"ours": "server", "PyTriton": "real_pytriton", "Triton": "real_triton"}
    return request.getfixturevalue(names[request.param])
