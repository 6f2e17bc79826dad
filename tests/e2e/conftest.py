# SPDX-License-Identifier: Apache-2.0
"""A Triton in the test's process, and users' scripts in processes of their own; free ports."""

from __future__ import annotations

import contextlib
import pathlib

import numpy as np
import pytest

from pytriton import constants
from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonConfig
from tests.collected import items_in
from tests.e2e.hosts import Host
from tests.e2e.scripts import Script
from tests.free_ports import free_ports

PORT_NAMES = ("http_port", "grpc_port", "metrics_port")


def pytest_collection_modifyitems(items):
    for item in items_in(pathlib.Path(__file__).parent, items):
        item.add_marker(pytest.mark.e2e)


def new_ports() -> dict[str, int]:
    return dict(zip(PORT_NAMES, free_ports(3), strict=True))


@pytest.fixture
def ports() -> dict[str, int]:
    return new_ports()


@pytest.fixture(autouse=True)
def workspace_home(tmp_path_factory, monkeypatch):
    """Workspaces of the test's process lie where nobody else puts any."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setattr(constants, "PYTRITON_HOME", home)
    return home


@pytest.fixture(scope="module")
def running_host(front_end_mode):
    ports = new_ports()
    with Triton(config=TritonConfig(**ports)) as triton:
        yield Host(triton, ports)


@pytest.fixture
def host(running_host):
    """A server shared by the tests of a module, each with models of its own."""
    yield running_host
    running_host.unbind_all()


@pytest.fixture
def run_triton(front_end_mode):
    """Starts servers with settings of `TritonConfig` and stops them in the end."""
    with contextlib.ExitStack() as stack:

        def run(security_config=None, **settings) -> Triton:
            config = TritonConfig(**{**new_ports(), **settings})
            return stack.enter_context(Triton(config=config, security_config=security_config))

        yield run


@pytest.fixture
def triton(ports, front_end_mode):
    """A running server without models."""
    with Triton(config=TritonConfig(**ports)) as running:
        yield running


@pytest.fixture
def bind(triton, ports):
    """Binds a model with float rows in and out unless told otherwise; gives the HTTP port."""

    def bind(infer_func, name="Model", **settings) -> int:
        tensor = {"dtype": np.float32, "shape": (-1,)}
        defaults = {
            "inputs": [Tensor(name="x", **tensor)],
            "outputs": [Tensor(name="y", **tensor)],
        }
        triton.bind(name, infer_func, **{**defaults, **settings})
        return ports["http_port"]

    return bind


@pytest.fixture
def start_script(tmp_path, front_end_mode):
    """Starts a user's script in a process of its own; kills what is left of it in the end."""
    with contextlib.ExitStack() as stack:
        count = 0

        def start(source: str, **settings) -> Script:
            nonlocal count
            count += 1
            folder = tmp_path / f"script{count}"
            folder.mkdir()
            return stack.enter_context(Script(folder, source, new_ports(), **settings))

        yield start
