# SPDX-License-Identifier: Apache-2.0
"""The official clients list, unload and load models that processes have bound."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from pytriton.model_config import Tensor
from pytriton.triton import RemoteTriton, Triton, TritonConfig
from tests.e2e.conftest import new_ports
from tests.e2e.http_client import is_ready as is_server_ready
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.both_front_end_modes

X, Y = (Tensor(name=name, dtype=np.float32, shape=(1,)) for name in "xy")
ONE = np.ones((1, 1), np.float32)


class ControlClient:
    """One of the official clients, with the server's access token."""

    def __init__(self, protocol: str, ports: dict[str, int], token: str) -> None:
        self.is_http = protocol == "http"
        self._module = triton_http if self.is_http else triton_grpc
        self._prefix = "" if self.is_http else "triton-grpc-protocol-"
        address = f"127.0.0.1:{ports[f'{protocol}_port']}"
        self.client = self._module.InferenceServerClient(address)
        self.headers = {f"{self._prefix}triton-access-token": token}

    def load(self, name, **overrides):
        self.client.load_model(name, headers=self.headers, **overrides)

    def unload(self, name, **options):
        self.client.unload_model(name, headers=self.headers, **options)

    def index(self) -> list[tuple[str, str, str]]:
        index = self.client.get_model_repository_index(headers=self.headers)
        if not self.is_http:
            return [(item.name, item.state, item.reason) for item in index.models]
        return [(item["name"], item["state"], item.get("reason", "")) for item in index]

    def infer(self, name, version="") -> float:
        tensor = self._module.InferInput("x", [1, 1], "FP32")
        tensor.set_data_from_numpy(ONE)
        return self.client.infer(name, [tensor], version).as_numpy("y").item()


@pytest.fixture(scope="module")
def ports():
    return new_ports()


@pytest.fixture(scope="module")
def triton(ports):
    with Triton(config=TritonConfig(**ports)) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def control(request, ports, triton):
    made = ControlClient(request.param, ports, triton.get_access_token())
    with contextlib.closing(made.client):
        yield made


@pytest.fixture
def double(triton):
    triton.bind("double", lambda requests: [{"y": it["x"] * 2} for it in requests], [X], [Y])
    yield "double"
    triton.unbind("double")


def error(action, *arguments, **options) -> str:
    with pytest.raises(InferenceServerException) as failure:
        action(*arguments, **options)
    return failure.value.message()


def test_model_leaves_service_and_comes_back(control, double, ports):
    assert control.index() == [("double", "READY", "")]
    assert control.infer(double) == 2

    control.unload(double)

    assert eventually(lambda: control.index() == [("double", "UNAVAILABLE", "unloaded")])
    assert not control.client.is_model_ready(double)
    assert control.client.is_server_ready()
    assert error(control.infer, double) == (
        "Request for unknown model: 'double' has no available versions"
    )
    assert error(control.infer, double, "1") == (
        "Request for unknown model: 'double' version 1 is not at ready state"
    )
    assert is_server_ready(ports["http_port"])

    control.load(double)

    assert control.index() == [("double", "READY", "")]
    assert control.client.is_model_ready(double)
    assert control.infer(double) == 2


def test_models_of_another_process_are_controlled_as_well(control, triton, ports):
    url = f"http://127.0.0.1:{ports['http_port']}"
    with RemoteTriton(url=url, access_token=triton.get_access_token()) as remote:
        remote.bind("far", lambda requests: [{"y": it["x"] * 5} for it in requests], [X], [Y])
        control.unload("far")
        assert not control.client.is_model_ready("far")
        control.load("far")

        assert control.infer("far") == 5

    assert eventually(lambda: control.index() == [])


def test_control_needs_the_token(control, double):
    control.headers = {}

    for action in (control.load, control.unload):
        assert "is restricted, expecting header" in error(action, double)
    assert control.infer(double) == 2
