# SPDX-License-Identifier: Apache-2.0
"""ModelStreamInfer with the official client and with bare gRPC: ends, cancels, slow readers."""

from __future__ import annotations

import queue
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from pytriton.base.protos import service_pb2
from tests.differential.grpc_case import SERVICE
from tests.e2e.grpc_server import add_sub_inputs, grpc_server, number_input
from tests.e2e.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.both_front_end_modes


@pytest.fixture(scope="module")
def server(front_end_mode):
    with grpc_server() as running:
        yield running


@pytest.fixture
def client(server):
    with triton_grpc.InferenceServerClient(server.address) as connected:
        yield connected


@pytest.fixture
def answers(client):
    """The results and errors of a stream that is open."""
    received: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: received.put((result, error)))
    yield received
    client.stop_stream()


@pytest.fixture
def bare_stream(server):
    """ModelStreamInfer on a channel of its own."""
    with grpc.insecure_channel(server.address) as channel:
        yield channel.stream_stream(
            f"{SERVICE}/ModelStreamInfer",
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelStreamInferResponse.FromString,
        )


def number_request(model: str, value: int, **fields):
    request = service_pb2.ModelInferRequest(model_name=model, **fields)
    request.inputs.add(name="x", datatype="INT32", shape=[1])
    request.raw_input_contents.append(np.int32(value).tobytes())
    return request


def byte_request(model: str, size: int):
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="UINT8", shape=[size])
    request.raw_input_contents.append(bytes(size))
    return request


def take(answers, count):
    results = []
    for _ in range(count):
        result, error = answers.get(timeout=DEADLINE_S)
        assert error is None
        results.append(result)
    return results


def is_final(response) -> bool:
    return response.parameters["triton_final_response"].bool_param


def test_coupled_responses_come_in_the_order_of_requests(client, answers):
    for number in range(50):
        client.async_stream_infer("add_sub", add_sub_inputs(number), request_id=str(number))

    results = take(answers, 50)
    assert [result.get_response().id for result in results] == [str(n) for n in range(50)]
    assert all(is_final(result.get_response()) for result in results)


def test_decoupled_responses_come_one_after_another_and_then_the_end(client, answers):
    client.async_stream_infer("count", number_input(5), enable_empty_final_response=True)

    *results, last = take(answers, 6)
    assert [result.as_numpy("y").item() for result in results] == list(range(5))
    assert not any(is_final(result.get_response()) for result in results)
    assert is_final(last.get_response())
    assert not last.get_response().outputs


def test_error_of_one_request_leaves_the_stream_open(client, answers):
    client.async_stream_infer("nobody", add_sub_inputs(), request_id="bad")
    client.async_stream_infer("add_sub", add_sub_inputs(), request_id="good")

    _, error = answers.get(timeout=DEADLINE_S)
    (result,) = take(answers, 1)
    assert "unknown model" in str(error)
    assert result.get_response().id == "good"


def test_half_close_waits_for_what_was_asked(bare_stream):
    requests = [number_request("count", 100, id="a"), number_request("count", 100, id="b")]

    responses = list(bare_stream(iter(requests), timeout=DEADLINE_S))

    assert len(responses) == 200
    for name in "ab":
        mine = [item for item in responses if item.infer_response.id == name]
        values = [
            np.frombuffer(item.infer_response.raw_output_contents[0], "<i4")[0] for item in mine
        ]
        assert values == list(range(100))


def test_slow_decoupled_model_does_not_hold_others_up(server, client, answers):
    ended = len(server.ended)
    client.async_stream_infer("endless", number_input(0), request_id="endless")
    client.async_stream_infer("count", number_input(3), request_id="count")

    seen = []
    while seen.count("count") < 3 or "endless" not in seen:  # it must have begun to be ended
        seen += [result.get_response().id for result in take(answers, 1)]
    client.stop_stream(cancel_requests=True)

    assert seen.count("count") == 3
    assert eventually(lambda: len(server.ended) > ended)


def test_cancelled_stream_ends_the_model(server, bare_stream):
    ended = len(server.ended)
    call = bare_stream(iter([number_request("endless", 0)]))
    next(call)

    call.cancel()

    assert eventually(lambda: len(server.ended) > ended)


def test_deadline_ends_the_stream_and_the_model(server, bare_stream):
    ended = len(server.ended)
    done = threading.Event()

    def requests():
        yield number_request("endless", 0)
        done.wait()

    received, timeout_s = [], 0.25
    while not received:  # on a busy machine the model may begin too late for the first deadlines
        timeout_s *= 2
        with pytest.raises(grpc.RpcError) as failure:
            received.extend(bare_stream(requests(), timeout=timeout_s))
        assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    done.set()

    assert eventually(lambda: len(server.ended) > ended)


def test_client_that_does_not_read_makes_the_model_wait(server, client, bare_stream):
    server.yielded = 0
    call = bare_stream(iter([byte_request("flood", 256 << 10)]))
    next(call)

    # While other requests are served, the model could run far ahead of its client.
    for number in range(300):
        client.infer("add_sub", add_sub_inputs(number))

    assert server.yielded < 1000
    assert sum(1 for _ in call) == 1999
