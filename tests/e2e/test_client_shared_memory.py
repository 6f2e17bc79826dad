# SPDX-License-Identifier: Apache-2.0
"""Shared memory of clients with bound models: on, and guarded by the access token."""

from __future__ import annotations

import sys
import uuid

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig
from tests.e2e.conftest import new_ports

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="objects are files in /dev/shm on Linux only"
)
TOKEN = "a secret of the test"
HEADERS = {
    "http": {"triton-access-token": TOKEN},
    "grpc": {"triton-grpc-protocol-triton-access-token": TOKEN},
}
CLIENTS = {"http": triton_http, "grpc": triton_grpc}


def serve(**settings):
    ports = new_ports()
    triton = Triton(
        config=TritonConfig(**ports, **settings),
        security_config=TritonSecurityConfig(access_token=TOKEN),
    )
    triton.bind(
        "double",
        lambda requests: [{"y": 2 * request["x"]} for request in requests],
        [Tensor(name="x", dtype=np.float32, shape=(-1,))],
        [Tensor(name="y", dtype=np.float32, shape=(-1,))],
    )
    return triton, ports


@pytest.fixture(scope="module")
def ports():
    triton, ports = serve()
    with triton:
        yield ports


@pytest.fixture
def memory():
    """The key of an object with 300,000 numbers, and the handle."""
    key = f"pytriton-test-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region(key, key, 2 * 1_200_000)
    shm.set_shared_memory_region(handle, [np.arange(300_000, dtype=np.float32)])
    yield key, handle
    shm.destroy_shared_memory_region(handle)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_regions_need_the_token_and_requests_do_not(ports, memory, protocol):
    module, headers = CLIENTS[protocol], HEADERS[protocol]
    key, handle = memory
    x = module.InferInput("x", [1, 300_000], "FP32")
    x.set_shared_memory(key, 1_200_000)
    y = module.InferRequestedOutput("y")
    y.set_shared_memory(key, 1_200_000, 1_200_000)
    with module.InferenceServerClient(f"127.0.0.1:{ports[f'{protocol}_port']}") as client:
        with pytest.raises(InferenceServerException, match="restricted"):
            client.register_system_shared_memory(key, key, 2_400_000)
        with pytest.raises(InferenceServerException, match="restricted"):
            client.get_system_shared_memory_status()
        client.register_system_shared_memory(key, key, 2_400_000, headers=headers)
        client.infer("double", [x], outputs=[y])
        with pytest.raises(InferenceServerException, match="restricted"):
            client.unregister_system_shared_memory(key)
        client.unregister_system_shared_memory(key, headers=headers)

    written = shm.get_contents_as_numpy(handle, np.float32, (300_000,), 1_200_000)
    assert np.array_equal(written, 2 * np.arange(300_000, dtype=np.float32))


def test_shared_memory_can_be_turned_off():
    triton, ports = serve(allow_client_shm=False)
    with (
        triton,
        triton_http.InferenceServerClient(f"127.0.0.1:{ports['http_port']}") as client,
        pytest.raises(InferenceServerException, match="Client shared memory is disabled"),
    ):
        client.register_system_shared_memory("r", "/k", 1, headers=HEADERS["http"])
