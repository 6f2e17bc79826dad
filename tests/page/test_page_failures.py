# SPDX-License-Identifier: Apache-2.0
"""Failures as the page's server side tells them: of every kind of model, and of refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
from tests.e2e.http_client import call
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.page.conftest import HEADERS
from tests.repository_e2e.model_files import code, model

FAILURES, INPUTS = "/page/api/failures", "/page/api/failures/inputs"
RAISES = code("""
def check(rows):
    raise ValueError(f"no room for {rows[0, 0]}")
if x[0, 0] == 7:
    responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("no sevens")))
    continue
check(x)
""")
VECTOR = {"name": "X", "datatype": "FP32", "shape": [1], "data": [1]}
ONE = [Tensor(name="X", dtype=np.float32, shape=(-1,))]


def body(value: float, name: str = "X", **more) -> bytes:
    tensor = {"name": name, "datatype": "FP32", "shape": [1, 1], "data": [value]}
    return json.dumps({"inputs": [tensor], **more}).encode()


class Served:
    """A server with a page, and what it tells of failures."""

    def __init__(self, http_port: int, metrics_port: int) -> None:
        self.http_port = http_port
        self.metrics_port = metrics_port

    def infer(self, name: str, content: bytes) -> str:
        answer = call(self.http_port, f"/v2/models/{name}/infer", content)
        assert answer.status >= 400
        return answer.json["error"]

    def groups(self, headers=HEADERS, **fields) -> list[dict]:
        """The groups with these fields."""
        answer = call(self.metrics_port, FAILURES, headers=headers).json
        return [each for each in answer["groups"] if fields.items() <= each.items()]

    def group(self, count: int, **fields) -> dict:
        """The only group with these fields, once it has so many failures."""
        found: list[dict] = []

        def is_there() -> bool:
            found[:] = self.groups(**fields)
            return len(found) == 1 and found[0]["count"] == count

        assert eventually(is_there), self.groups()
        return found[0]

    def errors(self, name: str) -> dict:
        """The counts of a model in a sample that is not older than a moment ago."""
        now = call(self.metrics_port, "/page/api/now").json["now"]
        entry = next((each for each in now["models"] if each["name"] == name), {})
        return {**entry, "unknown": now.get("refused", 0)}


@pytest.fixture(scope="module", params=[0, 2], ids=["one process", "two front ends"])
def server(start_server, request):
    started = start_server(
        {"raises": model(RAISES)},
        flags=[f"--frontend-processes={request.param}"],
        environment={"PYTRITON_PAGE_TOKEN": HEADERS["triton-access-token"]},
    ).await_ready()
    return Served(started.http_port, started.metrics_port)


@pytest.fixture(scope="module", params=["0", "2"], ids=["one process", "two front ends"])
def bound(request):
    """A server with a bound function that fails, and one that streams until it fails."""

    @batch
    def divide(**inputs):
        return {"Y": inputs["X"] / np.zeros(0)[0]}

    def forget(requests):
        """Return nothing."""

    def stream(requests):
        yield [{"Y": requests[0]["X"]}]
        raise KeyError("lost")

    http_port, grpc_port, metrics_port = free_ports(3)
    config = TritonConfig(
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        page_token=HEADERS["triton-access-token"],
    )
    with pytest.MonkeyPatch.context() as patch, Triton(config=config) as triton:
        patch.setenv("PYTRITON_FRONTEND_PROCESSES", request.param)
        outputs = [Tensor(name="Y", dtype=np.float32, shape=(-1,))]
        triton.bind("divide", divide, ONE, outputs, config=ModelConfig(max_batch_size=4))
        triton.bind("forget", forget, ONE, outputs, config=ModelConfig(batching=False))
        decoupled = ModelConfig(decoupled=True, batching=False)
        triton.bind("stream", stream, ONE, outputs, config=decoupled)
        triton.run()
        yield Served(http_port, metrics_port)


def test_exception_of_a_bound_function_is_shown_at_the_users_line(bound):
    message = bound.infer("divide", body(1, id="mine"))
    group = bound.group(1, model="divide")

    assert (group["kind"], group["reason"], group["version"]) == ("IndexError", "BACKEND", "1")
    assert group["place"].startswith(f"{__file__}:")
    assert group["place"].endswith(" divide")
    example = group["example"]
    assert (example["id"], example["message"]) == ("mine", message)
    assert example["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [1, 1]}]
    assert "divide" in example["traceback"]
    assert "pytriton/runtime" not in example["traceback"]
    assert "Traceback" not in message
    assert __file__ not in message


def test_wrong_answer_of_a_bound_function_is_shown_where_that_begins(bound):
    bound.infer("forget", json.dumps({"inputs": [VECTOR]}).encode())
    group = bound.group(1, model="forget")

    assert group["place"].startswith(f"{__file__}:")
    assert group["place"].endswith(" forget")
    assert "is a return statement missing?" in group["example"]["message"]


def test_exception_of_a_stream_is_shown_at_the_users_line(bound):
    tensor = json.dumps({"X": [1.0]}).encode()
    answer = call(bound.http_port, "/v2/models/stream/generate_stream", tensor)
    group = bound.group(1, model="stream")

    assert b"lost" in answer.body
    assert (group["kind"], group["place"].split()[-1]) == ("KeyError", "stream")


def test_exception_of_a_model_file_is_shown_at_the_users_line(server):
    for value in (1, 2, 3):
        message = server.infer("raises", body(value, id=f"r{value}"))
    group = server.group(3, model="raises", kind="ValueError")

    assert "message: ValueError: no room for 3.0" in message
    assert group["place"].endswith(" check")
    assert "/raises/1/model.py:" in group["place"]
    assert group["first"] <= group["last"]
    assert group["example"]["inputs"][0]["shape"] == [1, 1]
    assert "in check" in group["example"]["traceback"]


def test_inputs_are_kept_when_somebody_asks(server):
    server.infer("raises", body(11))
    number = server.groups(model="raises", kind="ValueError")[0]["group"]
    path = f"{INPUTS}?group={number}"
    before = call(server.metrics_port, path, headers=HEADERS)
    asked = call(server.metrics_port, INPUTS, b'{"group": %d}' % number, HEADERS)

    server.infer("raises", body(12, id="kept"))
    server.infer("raises", body(13))
    kept = call(server.metrics_port, path, headers=HEADERS)
    call(server.metrics_port, INPUTS, b'{"group": %d, "keep": false}' % number, HEADERS)

    assert before.status == 404
    assert asked.json == {"group": number, "awaits_inputs": True}
    (tensor,) = kept.json["inputs"]
    assert kept.json["id"] == "kept"
    assert (tensor["name"], tensor["data"], tensor["is_cut"]) == ("X", [12.0], False)
    assert call(server.metrics_port, path, headers=HEADERS).status == 404
