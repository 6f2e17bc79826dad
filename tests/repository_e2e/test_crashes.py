# SPDX-License-Identifier: Apache-2.0
"""Instances that die: requests hear why, readiness tells, they come back, and loops end."""

from __future__ import annotations

import re

import grpc
import numpy as np
import pytest

from tests.e2e.http_client import InferFailedError, infer
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.model_files import (
    HOLD,
    code,
    config,
    model,
)

CAUSES = {
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "Killed by SIGKILL (9)."),
    "segfault": ("os.kill(os.getpid(), signal.SIGSEGV)", "Killed by SIGSEGV (11)."),
    "exit": ("os._exit(0)", "Exited with code 0."),
}
POISON = 666.0
IDEMPOTENT = 'parameters { key: "IDEMPOTENT" value { string_value: "true" } }'
PATIENCE = 'parameters { key: "RAY_NO_INSTANCE_TIMEOUT_S" value { string_value: "0.2" } }'
# Spoils its input and dies, the first time; the poison always dies.
DIES_ONCE = """
died = os.path.join(os.path.dirname(__file__), "died")
if x[0, 0] == 666.0 or not os.path.exists(died):
    open(died, "w").close()
    x[:] = -1
    os._exit(3)
y = x.sum(axis=1, keepdims=True)
"""


TWO = "instance_group [{ kind: KIND_CPU count: 2 }]"
ALLOCATE = "np.ones(1 << 31, np.uint8)"
# Little more memory than the process has by now.
LIMIT = """
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + {spare}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
"""
LIMITED = LIMIT.format(spare=64 << 20)
TIGHT = LIMIT.format(spare=1 << 20)


def dying(how, **settings):
    return code(f"if x[0, 0] == {POISON}: {how}\ny = x", **settings)


@pytest.fixture(scope="module")
def server(start_module_server):
    repository = {
        **{
            name: model(dying(how, initialize=HOLD), config(TWO))
            for name, (how, _) in CAUSES.items()
        },
        "lonely": model(dying("os._exit(3)", initialize=HOLD), config(PATIENCE)),
        "again": model(code(DIES_ONCE), config(IDEMPOTENT)),
        "limited": model(dying(ALLOCATE, initialize=LIMITED)),
        "tight": model(code(initialize=TIGHT)),
        "other": model(),
    }
    return start_module_server(repository).await_ready()


@pytest.fixture(scope="module")
def explicit_server(start_module_server):
    repository = {
        "m": model(dying("os._exit(3)")),
    }
    return start_module_server(repository, flags=["--model-control-mode=explicit"]).await_ready()


def is_healthy(server):
    """What the health protocol says of the server: 1 serves, 2 does not."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        return check(b"", timeout=DEADLINE_S) == b"\x08\x01"


@pytest.mark.parametrize("name", CAUSES)
def test_death_fails_the_request_and_readiness_until_the_instance_is_back(server, name):
    server.hold(name)
    with server.grpc_client() as client:
        assert client.is_model_ready(name)
        assert is_healthy(server)

        with pytest.raises(InferFailedError) as failed:
            server.infer(name, POISON)

        assert failed.value.status == 500
        assert failed.value.text.startswith(f"Stub process '{name}_0_")
        assert failed.value.text.endswith(f"' is not healthy. {CAUSES[name][1]}")
        assert server.get(f"/v2/models/{name}/ready").status == 400
        assert not client.is_model_ready(name)
        assert not client.is_server_ready()
        assert not is_healthy(server)
        assert server.infer(name, 5.0) == [5.0]  # by the other instance
        assert server.infer("other", 5.0) == [5.0]
        server.let_go(name)
        assert eventually(lambda: client.is_model_ready(name))
        assert client.is_server_ready()
        assert is_healthy(server)
    assert eventually(lambda: server.zombies() == [])
    not_ready = f"Model '{name}' version 1 is not ready until it is started again"
    assert re.search(rf"Stub process '{name}_0_\d' is not healthy: .*\. {not_ready}", server.stderr)


def test_idempotent_model_answers_a_request_whose_instance_died_with_its_first_execution(server):
    x = np.ones((1, 100_000), np.float32)  # it is read into shared memory of the model

    y = infer(server.http_port, "again", {"X": x})["Y"]

    assert y.tolist() == [[100_000.0]]
    with pytest.raises(InferFailedError) as failed:
        server.infer("again", POISON)
    assert failed.value.text == "Stub process 'again_0_0' is not healthy. Exited with code 3."
    assert eventually(lambda: server.serves("again"))


def test_requests_wait_for_an_instance_only_as_long_as_the_model_says(server):
    server.hold("lonely")
    with pytest.raises(InferFailedError):
        server.infer("lonely", POISON)

    for _ in range(2):  # the second one is refused at once
        with pytest.raises(InferFailedError) as failed:
            server.infer("lonely", 5.0)
        assert failed.value.status == 503
        assert re.fullmatch(
            r"model 'lonely' version 1 has had no instance for \d+\.\d s, and requests wait at "
            r"most 0\.2 s for one: instance lonely_0_0 is gone, exited with code 3",
            failed.value.text,
        )
    server.let_go("lonely")

    assert eventually(lambda: server.serves("lonely"))
    assert server.infer("lonely", 5.0) == [5.0]


def test_crash_loop_makes_the_model_unavailable_until_it_is_loaded_again(explicit_server):
    server = explicit_server
    assert server.load("m").status == 200
    descriptor_count = server.descriptor_count()

    def crash():
        with pytest.raises(InferFailedError):
            server.infer("m", POISON)
        return server.index()["m"]["state"] == "UNAVAILABLE"

    assert eventually(crash)

    row = server.index()["m"]
    assert row["reason"].startswith("its instances ended 5 times within ")
    assert row["reason"].endswith("the last time: exited with code 3")
    assert server.get("/v2/models/m/ready").status == 400
    assert eventually(lambda: server.workers() == [])
    assert server.load("m").status == 200
    assert server.infer("m", 2.0) == [2.0]
    assert eventually(lambda: server.zombies() == [])
    assert eventually(lambda: server.descriptor_count() <= descriptor_count)


def test_model_out_of_memory_fails_its_request_only(server):
    with pytest.raises(InferFailedError, match="MemoryError"):
        server.infer("limited", POISON)

    assert server.infer("limited", 2.0) == [2.0]
    assert server.infer("other", 2.0) == [2.0]


def test_request_that_does_not_fit_into_the_model_is_answered(server):
    x = np.zeros((1, 8 << 20), np.float32)

    with pytest.raises(InferFailedError) as failed:
        infer(server.http_port, "tight", {"X": x})

    assert failed.value.text == (
        "a tensor in shared memory could not be read: the server has no memory left"
    )
    assert server.serves("tight")
    assert server.infer("other", 2.0) == [2.0]
    assert server.infer("tight", 2.0) == [2.0]
