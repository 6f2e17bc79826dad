# SPDX-License-Identifier: Apache-2.0
"""A policy with keys and quotas on a real server: who sends a request, and how many it may send."""

from __future__ import annotations

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.access_policies import PolicyFolder
from tests.e2e.http_client import call, json_body
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import config, model

BODY = json_body({"X": np.ones((1, 1), np.float32)})
POLICY = """
[principals.shop]
apis = ["inference"]
quotas = [{{ requests_per_s = 0.001, burst = {burst} }}]
[principals.office]
apis = ["*"]
"""


class KeyedServer:
    """A server with a policy, and requests with its keys."""

    def __init__(self, folder, start, front_ends: int) -> None:
        self.policy = PolicyFolder(folder, POLICY.format(burst=4))
        self.shop, self.office = self.policy.key("shop"), self.policy.key("office")
        flags = [f"--auth-config={self.policy.path}", f"--frontend-processes={front_ends}"]
        repository = {"plain": model(settings=config("dynamic_batching { }"))}
        self.server = start(repository, flags=[*flags, "--access-log=access.txt"]).await_ready()

    def ask(self, key: str):
        path = "/v2/models/plain/infer"
        return call(self.server.http_port, path, BODY, {"x-api-key": key})

    def ask_by_grpc(self, key: str) -> None:
        tensor = triton_grpc.InferInput("X", [1, 1], "FP32")
        tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{self.server.grpc_port}") as client:
            client.infer("plain", [tensor], headers={"authorization": f"Bearer {key}"})


@pytest.fixture(params=[0, 2], ids=["one process", "two front ends"])
def keyed(request, tmp_path, start_server):
    return KeyedServer(tmp_path, start_server, request.param)


def test_principal_of_a_key_has_its_quota_over_both_protocols(keyed):
    statuses = [keyed.ask(keyed.shop).status for _ in range(2)]
    keyed.ask_by_grpc(keyed.shop)
    keyed.ask_by_grpc(keyed.shop)

    assert statuses == [200, 200]
    with pytest.raises(InferenceServerException, match=r"RESOURCE_EXHAUSTED.*'shop'"):
        keyed.ask_by_grpc(keyed.shop)
    refused = keyed.ask(keyed.shop)
    assert refused.status == 429
    assert int(refused.headers["retry-after"]) > 1
    assert [keyed.ask(keyed.office).status for _ in range(10)] == [200] * 10


def test_quota_that_the_policy_raises_counts_at_once(keyed):
    for _ in range(4):
        assert keyed.ask(keyed.shop).status == 200
    assert keyed.ask(keyed.shop).status == 429
    keyed.policy.write(POLICY.format(burst=100))

    assert eventually(lambda: keyed.ask(keyed.shop).status == 200)


def test_metrics_and_access_log_name_the_principal(keyed):
    for _ in range(5):
        keyed.ask(keyed.shop)
    metrics = call(keyed.server.metrics_port, "/metrics", headers={"x-api-key": keyed.office})
    lines = [line for line in metrics.body.decode().splitlines() if 'principal="shop"' in line]
    count = [line for line in lines if line.startswith("nv_principal_request_count")]
    log = keyed.server.folder / "access.txt"

    assert [line.rpartition(" ")[2] for line in count] == ["4"]
    assert any(line.startswith("nv_principal_refused_count") for line in lines)
    assert eventually(lambda: log.read_text().count(" shop\n") == 5)
    assert keyed.shop not in log.read_text() + keyed.server.output
