# SPDX-License-Identifier: Apache-2.0
"""Unary calls on a connection without sockets: how requests come, how answers go, how calls end."""

from __future__ import annotations

import gzip
import logging

import msgspec
import pytest

from pytriton.base.errors import UNEXPECTED, CancelledError, InternalError, InvalidArgumentError
from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import GrpcStatus
from pytriton.protocol.http2 import frames
from pytriton.serving.server.options.server_options import ClientLimits, ServerOptions
from tests.server.grpc_fakes import GrpcClient, framed, infer_request
from tests.wire.http2.frame_client import data, ping, window_update


@pytest.fixture
def client():
    return GrpcClient()


def read(message: bytes):
    return service_pb2.ModelInferResponse.FromString(message)


def code(status: GrpcStatus) -> str:
    return str(int(status))


def test_request_goes_to_the_engine_and_its_response_back(client):
    stream = client.call("ModelInfer", infer_request(request_id="seven"))
    client.engine.answer("seven")
    client.run()

    response = client.response(stream)
    (message,) = response.messages
    assert response.head[":status"] == "200"
    assert response.head["content-type"] == "application/grpc"
    assert read(message).id == "seven"
    assert read(message).raw_output_contents == [b"\0\0\x80\x3f"]
    assert response.status == "0"


def test_request_in_pieces_is_put_together(client):
    content = framed(infer_request())
    stream = client.open("ModelInfer")
    for at in range(len(content)):
        client.receive(data(stream, content[at : at + 1], end_stream=at + 1 == len(content)))

    assert len(client.engine.inferences) == 1


def test_request_whose_end_comes_alone_is_served(client):
    stream = client.open("ModelInfer")
    client.send(stream, infer_request(), end=False)
    assert not client.engine.inferences

    client.receive(data(stream, b"", end_stream=True))

    assert len(client.engine.inferences) == 1


def test_trailers_end_a_request(client):
    stream = client.open("ModelInfer")
    client.send(stream, infer_request(), end=False)
    client.receive(
        frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, b"")
    )

    assert len(client.engine.inferences) == 1


@pytest.mark.parametrize("accepted, encoding", [("gzip", "gzip"), ("identity", None)])
def test_response_is_compressed_as_the_client_accepts(accepted, encoding):
    client = GrpcClient(ServerOptions(grpc_response_compression="high"))
    stream = client.call("ModelInfer", infer_request(), ("grpc-accept-encoding", accepted))
    client.engine.answer(content=bytes(4000))
    client.run()

    response = client.response(stream)
    (message,) = response.messages
    assert response.head.get("grpc-encoding") == encoding
    plain = gzip.decompress(message) if encoding else message
    assert read(plain).raw_output_contents == [bytes(4000)]


@pytest.mark.parametrize("messages, text", [([], "got none"), ([infer_request()] * 2, "got more")])
def test_unary_call_has_exactly_one_message(client, messages, text):
    stream = client.open("ModelInfer")
    client.send(stream, *messages)

    response = client.response(stream)
    assert response.status == code(GrpcStatus.INTERNAL)
    assert text in response.text


def test_error_of_the_engine_is_mapped_to_its_status(client):
    client.engine.refusal = InvalidArgumentError("it does not fit: \u00e9")
    refused = client.call("ModelInfer", infer_request())
    client.engine.refusal = None
    failed = client.call("ModelInfer", infer_request())
    client.engine.fail(InternalError("the model broke"))
    client.run()

    assert client.response(refused).status == code(GrpcStatus.INVALID_ARGUMENT)
    assert client.response(refused).text == "it does not fit: \u00e9"
    assert client.response(failed).status == code(GrpcStatus.INTERNAL)
    assert client.response(failed).text == "the model broke"


def test_unexpected_error_is_logged_and_not_shown(client, caplog):
    def infer(request, sink):
        raise ZeroDivisionError("secret")

    client.client.infer = infer
    with caplog.at_level(logging.ERROR):
        stream = client.call("ModelInfer", infer_request())

    assert client.response(stream).text == UNEXPECTED
    assert "ZeroDivisionError" in caplog.text


def test_call_for_which_there_is_no_memory_ends_as_unavailable(client, caplog):
    def infer(request, sink):
        raise MemoryError

    client.client.infer = infer
    stream = client.call("ModelInfer", infer_request())

    assert client.response(stream).status == code(GrpcStatus.UNAVAILABLE)
    assert client.response(stream).text == "the server has no memory left"
    assert "MemoryError" not in caplog.text


def test_response_that_cannot_be_encoded_is_answered_and_logged(client, caplog):
    stream = client.call("ModelInfer", infer_request())
    client.engine.answer(content=None)
    client.run()

    assert client.response(stream).text == UNEXPECTED
    assert "it delivered a response" in caplog.text


def test_coupled_model_without_a_response_is_an_error(client):
    stream = client.call("ModelInfer", infer_request())
    client.engine.end()
    client.run()

    assert client.response(stream).text == "expected a single response, got 0"


def test_output_that_cannot_be_classified_is_an_error(client):
    request = service_pb2.ModelInferRequest.FromString(infer_request())
    request.outputs.add(name="y").parameters["classification"].int64_param = 1
    stream = client.call("ModelInfer", request.SerializeToString())
    client.engine.answer(content=bytes(4 * 1_000_001))
    client.run()

    assert client.response(stream).status == code(GrpcStatus.INVALID_ARGUMENT)
    assert "too large" in client.response(stream).text


def test_reset_call_gives_its_request_up(client):
    stream = client.call("ModelInfer", infer_request())
    (inference,) = client.engine.inferences

    client.reset(stream)
    inference.sink.on_error(CancelledError(""))
    client.run()

    assert client.engine.cancelled == [inference]
    assert client.response(stream).trailers is None


def test_lost_connection_gives_all_requests_up(client):
    for number in range(3):
        client.call("ModelInfer", infer_request(request_id=str(number)))

    client.connection.connection_lost(None)
    client.engine.answer("1")

    assert len(client.engine.cancelled) == 3
    assert client.connection not in client.api.connections


def test_deadline_gives_the_request_up_and_says_so(client):
    stream = client.call("ModelInfer", infer_request(), ("grpc-timeout", "50m"))
    client.loop.advance(0.049)
    assert not client.engine.cancelled
    client.loop.advance(0.002)
    client.run()

    assert len(client.engine.cancelled) == 1
    assert client.response(stream).status == code(GrpcStatus.DEADLINE_EXCEEDED)


def test_answered_call_has_no_deadline_any_more(client):
    stream = client.call("ModelInfer", infer_request(), ("grpc-timeout", "50m"))
    client.engine.answer()
    client.loop.advance(1)
    client.run()

    assert client.response(stream).status == "0"
    assert not client.engine.cancelled


def test_calls_end_at_their_own_deadlines(client):
    timeouts = [30, 10, 50, 20, 10, 40]
    streams = [
        client.call("ModelInfer", infer_request(request_id=str(n)), ("grpc-timeout", f"{timeout}m"))
        for n, timeout in enumerate(timeouts)
    ]
    client.engine.answer("3")
    ended = []
    for _ in range(6):
        client.loop.advance(0.01)
        client.run()
        ended.append(sum(client.response(stream).status == "4" for stream in streams))

    assert ended == [2, 2, 3, 4, 5, 5]


def test_deadlines_of_calls_that_ended_are_forgotten(client):
    for number in range(500):
        client.call("ModelInfer", infer_request(request_id=str(number)), ("grpc-timeout", "1H"))
        client.engine.answer(str(number))

    assert len(client.connection._deadlines) < 100


def test_answers_of_one_round_are_one_write(client):
    streams = [client.call("ModelInfer", infer_request(request_id=str(n))) for n in range(5)]
    for number in range(5):
        client.engine.answer(str(number))
    before = client.transport.write_count
    client.loop.run()

    assert client.transport.write_count - before == 1
    client.run()
    assert [client.response(stream).status for stream in streams] == ["0"] * 5


def test_nothing_is_written_while_the_transport_is_full(client):
    stream = client.call("ModelInfer", infer_request())
    client.connection.pause_writing()
    client.engine.answer()
    client.run()
    assert client.response(stream).trailers is None

    client.connection.resume_writing()
    client.run()

    assert client.response(stream).status == "0"


def test_client_that_breaks_the_protocol_is_cut_off(client):
    client.call("ModelInfer", infer_request())
    client.receive(data(0, b"x"))

    assert client.goaways()
    assert client.transport.sent_eof
    assert len(client.engine.cancelled) == 1


def test_calls_of_a_client_that_is_cut_off_get_the_reason(client):
    unary = client.call("ModelInfer", infer_request())
    stream = client.open("ModelStreamInfer")
    client.receive(window_update(7, 1))

    for call in (unary, stream):
        assert client.response(call).status == code(GrpcStatus.UNAVAILABLE)
        assert "stream 7" in client.response(call).text


def test_calls_of_a_client_that_pings_too_often_get_the_words_of_grpc(client):
    stream = client.call("ModelInfer", infer_request())
    for _ in range(4):
        client.receive(ping())

    assert client.goaways()[0].payload.endswith(b"too_many_pings")
    assert client.response(stream).status == code(GrpcStatus.UNAVAILABLE)
    assert client.response(stream).text == "Too many pings"


def test_client_that_is_cut_off_may_still_send_for_a_while(client):
    client.receive(window_update(7, 1))
    client.receive(data(1, bytes(1000)))
    assert client.transport.is_reading
    assert not client.transport.is_closed
    client.loop.advance(5)

    assert client.transport.is_closed
    assert not client.transport.is_aborted


def test_client_that_is_cut_off_and_closes_its_side_is_forgotten(client):
    client.receive(window_update(7, 1))

    assert not client.connection.eof_received()
    client.connection.connection_lost(None)
    client.loop.advance(5)

    assert not client.transport.is_closed
    assert not client.api.connections


def test_end_does_not_wait_for_a_client_that_is_cut_off(client):
    client.receive(window_update(7, 1))

    done = client.connection.end()

    assert client.transport.is_aborted
    client.connection.connection_lost(None)
    assert done.is_done


def test_forwarded_metadata_become_parameters():
    client = GrpcClient(ServerOptions(grpc_header_forward_pattern="^x-"))
    client.call("ModelInfer", infer_request(), ("x-name", "value"), ("y-name", "other"))

    assert client.engine.inferences[0].request.fields.parameters == {"x-name": "value"}


def test_header_of_the_servers_own_is_not_forwarded():
    client = GrpcClient(ServerOptions(grpc_header_forward_pattern=".*"))
    stream = client.call("ModelInfer", infer_request(), ("priority", "1"))

    assert client.response(stream).status == code(GrpcStatus.INVALID_ARGUMENT)
    assert "Header 'priority' is reserved" in client.response(stream).text


def test_cuda_region_without_a_name_is_refused_as_one_with_a_name():
    client = GrpcClient(ServerOptions(allow_client_shared_memory=True))
    texts = {}
    for name in ("", "region"):
        request = service_pb2.CudaSharedMemoryRegisterRequest(name=name, byte_size=4)
        stream = client.call("CudaSharedMemoryRegister", request.SerializeToString())
        assert client.response(stream).status == code(GrpcStatus.INVALID_ARGUMENT)
        texts[name] = client.response(stream).text

    assert texts == {
        name: f"failed to register CUDA shared memory region: '{name}', GPUs not supported"
        for name in texts
    }


def test_stalled_client_is_cut_off():
    limits = ClientLimits(write_stall_timeout_s=5)
    client = GrpcClient(ServerOptions(limits=limits), window=1000)
    stream = client.call("ModelInfer", infer_request())
    client.engine.answer(content=bytes(100_000))
    client.run()

    for second in (0, 3, 6):
        client.connection.check(second * 1_000_000_000 + 10**15)
    client.run()

    resets = [sent for sent in client.sent if sent.kind == frames.RST_STREAM]
    assert [sent.stream_id for sent in resets] == [stream]


def test_two_shutdown_messages_end_the_connection_in_order(client):
    stream = client.call("ModelInfer", infer_request())
    client.connection.begin_shutdown()
    client.run()
    assert len(client.goaways()) == 1
    late = client.call("ModelInfer", infer_request(request_id="late"))

    client.engine.answer()
    client.engine.answer("late")
    done = client.connection.end()
    client.run()

    assert client.response(stream).status == client.response(late).status == "0"
    assert len(client.goaways()) == 2
    assert client.transport.is_closed
    client.connection.connection_lost(None)
    assert done.is_done


def test_calls_that_are_left_at_the_end_are_told(client):
    stream = client.call("ModelInfer", infer_request())
    client.connection.end()
    client.run()

    assert client.response(stream).status == code(GrpcStatus.UNAVAILABLE)
    assert len(client.engine.cancelled) == 1
    assert client.transport.is_closed


def test_requests_that_the_engine_never_gets_are_reported_to_it(client):
    client.call("ModelInfer", infer_request("nothing"))
    client.call("ModelInfer", b"\xff")
    client.call("ModelInfer", infer_request("stream"))
    client.engine.refusal = InvalidArgumentError("the engine notes this one itself")
    client.call("ModelInfer", infer_request())
    client.run()

    names = [name for name, _ in client.engine.unread]
    messages = [message for _, message in client.engine.unread]
    assert names == ["nothing", "", "stream"]
    assert messages[0] == "Request for unknown model: 'nothing' is not found"
    assert "decoupled" in messages[2]


def test_call_of_a_function_that_streams_names_the_right_method(client):
    model = client.engine.loaded["stream"]
    model.spec = msgspec.structs.replace(model.spec, takes_parameters=False)
    client.call("ModelInfer", infer_request("stream"))
    client.run()

    ((_, message),) = client.engine.unread
    assert message == (
        "ModelInfer RPC doesn't support models with decoupled transaction policy: model 'stream' "
        "streams its answers, use ModelStreamInfer"
    )


def test_requests_of_a_stream_that_the_engine_never_gets_are_reported_to_it(client):
    stream = client.open("ModelStreamInfer")
    client.send(stream, infer_request("nothing"), end=False)
    client.engine.refusal = InvalidArgumentError("the engine notes this one itself")
    client.send(stream, infer_request())
    client.run()

    assert [name for name, _ in client.engine.unread] == ["nothing"]
