# SPDX-License-Identifier: Apache-2.0
"""Whatever runs out in the server or in the process of bound functions: typed errors, no crash."""

from __future__ import annotations

import contextlib
import sys

import pytest

from tests.e2e.waiting import eventually
from tests.exhaustion import Clients, Exhaustion, lacks

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="limits of other processes are set on Linux only"
)
SERVE = """
config = ModelConfig(max_batch_size=8)
X = Tensor(name="X", dtype=np.float32, shape=(-1,))
Y = Tensor(name="Y", dtype=np.float32, shape=(-1,))

@batch
def plain(X):
    return {"Y": X.copy()}

@batch
def count(X):
    yield {"Y": X}
    yield {"Y": X + 1}

with Triton() as triton:
    triton.bind("plain", plain, [X], [Y], config=config)
    triton.bind("count", count, [X], [Y], config=ModelConfig(max_batch_size=8, decoupled=True))
    triton.serve()
"""
LARGE_KINDS = {"http_large", "grpc_large"}
# The kinds of requests that fail for each resource.
FAILING = {
    "descriptors": LARGE_KINDS,
    "address_space": LARGE_KINDS,
    "shared_memory": LARGE_KINDS,
    "processes": set(),
    "threads": set(),
    "disk": set(),
}
KINDS = ["http", "http_large", "grpc", "grpc_large", "stream"]


def failing_kinds(clients):
    return {kind for kind in KINDS if lacks(getattr(clients, kind))}


@pytest.mark.parametrize("front_ends", [0, 2])
@pytest.mark.parametrize("what", FAILING)
def test_resource_runs_out_and_comes_back(start_script, tmp_path, what, front_ends):
    exhaustion = Exhaustion(tmp_path / "exhaustion")
    script = start_script(
        SERVE,
        environment={
            **exhaustion.environment,
            "PYTRITON_TRITON_CONFIG_FRONTEND_PROCESSES": str(front_ends),
        },
    )
    script.await_ready("count")
    ports = (script.ports[name] for name in ("http_port", "grpc_port", "metrics_port"))
    with contextlib.ExitStack() as stack:
        clients = Clients(*ports, stack)
        failing = set()
        with exhaustion.of(what, script.family()):
            for _ in range(3):
                failing |= failing_kinds(clients)
                assert (clients.health(), clients.metrics()) == (200, 200)

        assert failing == FAILING[what]
        assert eventually(lambda: not failing_kinds(clients))
        assert clients.readiness() == 200
    assert script.process.poll() is None
