# SPDX-License-Identifier: Apache-2.0
"""A policy of a server of bound functions: client certificates, the access log, our own clients."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from pytriton.model_config import Tensor
from pytriton.triton import RemoteTriton, Triton, TritonConfig
from tests.access_policies import PolicyFolder
from tests.e2e.grpc_server import add_sub_inputs, grpc_server
from tests.e2e.http_client import call
from tests.e2e.test_grpc_security import certificates, tls_client, tls_settings
from tests.e2e.waiting import eventually, whole_lines
from tests.free_ports import free_ports

pytestmark = pytest.mark.both_front_end_modes

__all__ = ["certificates"]  # a fixture

POLICY = """
[principals.client]
apis = ["inference", "health"]
models = ["add_sub"]

[principals.admin]
apis = ["*"]

[[certificates]]
subject = "CN=client"
principal = "client"
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return PolicyFolder(tmp_path_factory.mktemp("policy"), POLICY)


@pytest.fixture(scope="module")
def log(tmp_path_factory, front_end_mode):
    # One for each mode, so that no test finds lines of the other.
    return tmp_path_factory.mktemp("logs") / "access"


@pytest.fixture(scope="module")
def mutual_server(certificates, policy, log, front_end_mode):
    policy.admin_key = policy.key("admin")
    settings = tls_settings(certificates)
    settings.update(
        grpc_use_ssl_mutual=True,
        grpc_root_cert=str(certificates / "ca.pem"),
        auth_config=str(policy.path),
        access_log=str(log),
        access_log_format="json",
    )
    with grpc_server(**settings) as running:
        yield running


def failure_of(work):
    with pytest.raises(InferenceServerException) as caught:
        work()
    return caught.value


def test_certificate_has_the_rights_of_its_principal(mutual_server, certificates):
    with tls_client(mutual_server, certificates, with_certificate=True) as client:
        answer = client.infer("add_sub", add_sub_inputs()).as_numpy("add").item()
        other = failure_of(lambda: client.infer("identity", add_sub_inputs()))
        metadata = failure_of(client.get_server_metadata)

    assert answer == 3.0
    assert other.status() == metadata.status() == "StatusCode.PERMISSION_DENIED"
    assert "client has no right to metadata" in str(metadata)


def test_access_log_names_the_principal(mutual_server, certificates, policy, log):
    with tls_client(mutual_server, certificates, with_certificate=True) as client:
        client.infer("add_sub", add_sub_inputs(), request_id="by-certificate")
        failure_of(client.get_server_metadata)
    key = {"authorization": f"Bearer {policy.admin_key}"}

    def entries(name, value):
        return [each for each in map(json.loads, whole_lines(log)) if each.get(name) == value]

    assert eventually(lambda: entries("request_id", "by-certificate"))
    assert eventually(lambda: entries("grpc_status", "PERMISSION_DENIED"))
    (found,) = entries("request_id", "by-certificate")
    refused = entries("grpc_status", "PERMISSION_DENIED")
    assert found["principal"] == "client"
    assert {each["principal"] for each in refused} == {"client"}
    assert key["authorization"] not in log.read_text()


def double(x):
    return {"y": x * 2}


def test_bound_server_has_a_policy(tmp_path):
    policy = PolicyFolder(
        tmp_path, '[principals.a]\napis = ["inference", "metadata"]\nmodels = ["double"]\n'
    )
    key = policy.key("a")
    http, grpc_port, metrics = free_ports(3)
    access = tmp_path / "access"
    config = TritonConfig(
        http_port=http,
        grpc_port=grpc_port,
        metrics_port=metrics,
        http_address="127.0.0.1",
        grpc_address="127.0.0.1",
        metrics_address="127.0.0.1",
        auth_config=policy.path,
        access_log=access,
    )
    tensors = {"inputs": [Tensor(name="x", dtype=np.float32, shape=(1,))]}
    outputs = [Tensor(name="y", dtype=np.float32, shape=(1,))]
    x = triton_http.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), "f4"))
    with Triton(config=config) as triton:
        triton.bind("double", _batched, outputs=outputs, **tensors)
        triton.run()
        with RemoteTriton(url=f"http://127.0.0.1:{http}") as remote:
            remote.bind("other", _batched, outputs=outputs, **tensors)
            remote.connect()
            client = triton_http.InferenceServerClient(f"127.0.0.1:{http}")
            result = client.infer("double", [x], headers={"x-api-key": key})
            refusals = [
                failure_of(lambda: client.infer("other", [x], headers={"x-api-key": key})),
                failure_of(lambda: client.infer("double", [x])),
                failure_of(lambda: client.infer("double", [x], headers={"x-api-key": "no"})),
            ]
            client.close()
        page = call(metrics, "/metrics")

    assert result.as_numpy("y").item() == 2.0
    assert [refusal.status() for refusal in refusals] == ["403", "401", "401"]
    assert page.status == 401
    principals = [line.rpartition(" ")[2] for line in access.read_text().splitlines()]
    assert sorted(principals) == ["-", "@probe", "a", "a"]  # a wrong key, no key, and the right one
    assert key not in access.read_text()


def _batched(requests):
    return [double(request.data["x"]) for request in requests]
