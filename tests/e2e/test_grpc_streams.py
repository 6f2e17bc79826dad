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
