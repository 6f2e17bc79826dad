# SPDX-License-Identifier: Apache-2.0
"""ModelStreamInfer without sockets: order, flags, errors, ends, slow readers and hasty writers."""

from __future__ import annotations

import numpy as np
import pytest

from pytriton.base.errors import UNEXPECTED, CancelledError, InternalError, InvalidArgumentError
from pytriton.base.protos import service_pb2
from pytriton.protocol.grpc import GrpcStatus
from pytriton.protocol.http2 import frames
from pytriton.serving.server.api.turns import REQUEST_UNITS, TURN_UNITS
from pytriton.serving.server.grpc import call as grpc_call
from pytriton.serving.server.grpc import stream as grpc_stream
from pytriton.serving.server.grpc.call import MESSAGES_PER_TURN
from tests.server.grpc_fakes import SERVICE, GrpcClient, framed, infer_request
from tests.wire.http2.frame_client import data, rst_stream, window_update

STRICT = ("triton_grpc_error", "true")


@pytest.fixture
def client():
    return GrpcClient()


@pytest.fixture
def stream(client):
    """An open call."""
    return client.open("ModelStreamInfer")


def answers(client, stream):
    client.run()
    return [
        service_pb2.ModelStreamInferResponse.FromString(message)
        for message in client.response(stream).messages
    ]


def ids(client, stream):
    return [answer.infer_response.id for answer in answers(client, stream)]


def flags(client, stream):
    return [
        answer.infer_response.parameters["triton_final_response"].bool_param
        for answer in answers(client, stream)
    ]


def ask(client, stream, model, *names, end=False, **fields):
    client.send(stream, *(infer_request(model, name, **fields) for name in names), end=end)


def wants_empty_final(request: bytes) -> bytes:
    message = service_pb2.ModelInferRequest.FromString(request)
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    content: bytes = message.SerializeToString()
    return content


def test_coupled_answers_wait_for_their_turn(client, stream):
    ask(client, stream, "coupled", "1", "2", "3")

    client.engine.answer("3")
    client.engine.answer("2")
    assert ids(client, stream) == []
    client.engine.answer("1")

    assert ids(client, stream) == ["1", "2", "3"]
    assert flags(client, stream) == [True] * 3


def test_decoupled_answers_go_as_they_come(client, stream):
    ask(client, stream, "stream", "a", "b")

    for name in "baab":
        client.engine.answer(name, final=False)

    assert ids(client, stream) == ["b", "a", "a", "b"]
    assert flags(client, stream) == [False] * 4


def numbers(client, stream):
    return [answer.infer_response.raw_output_contents[0] for answer in answers(client, stream)]


def test_many_decoupled_answers_are_sent_in_one_frame(client, stream):
    ask(client, stream, "stream", "a", "b")

    client.engine.answer_burst("b", b"123")
    client.engine.answer_burst("a", b"45")

    assert ids(client, stream) == ["b", "b", "b", "a", "a"]
    assert numbers(client, stream) == [b"1", b"2", b"3", b"4", b"5"]
    assert flags(client, stream) == [False] * 5


def test_many_decoupled_answers_are_classified_one_by_one(client, stream):
    message = service_pb2.ModelInferRequest.FromString(infer_request("stream", "a"))
    message.outputs.add(name="y").parameters["classification"].int64_param = 1
    client.send(stream, message.SerializeToString(), end=False)

    client.engine.answer_burst("a", b"123")

    datatypes = [each.infer_response.outputs[0].datatype for each in answers(client, stream)]
    assert datatypes == ["BYTES"] * 3


def test_slow_reader_of_many_answers_makes_its_model_wait():
    client = GrpcClient(window=0)
    stream = client.open("ModelStreamInfer")
    ask(client, stream, "stream", "a")
    while not client.engine.flow:
        client.engine.answer_burst("a", b"1" * 64)
    client.run()
    assert client.engine.flow == [("pause", "a")]

    client.receive(window_update(stream, 4 << 20))

    assert client.engine.flow[1:] == [("resume", "a")]
    assert set(numbers(client, stream)) == {b"1"}


def test_many_answers_to_a_stream_that_was_reset_are_dropped(client, stream):
    ask(client, stream, "stream", "a")
    client.reset(stream)
    sent = len(client.response(stream).messages)
    client.engine.answer_burst("a", b"123")
    client.run()

    assert len(client.response(stream).messages) == sent


def test_decoupled_answers_do_not_wait_for_coupled_ones(client, stream):
    ask(client, stream, "coupled", "slow")
    ask(client, stream, "stream", "quick")

    client.engine.answer("quick", final=True)
    client.engine.answer("slow")

    assert ids(client, stream) == ["quick", "slow"]
    assert flags(client, stream) == [True, True]


def test_bare_end_is_sent_only_where_it_is_wanted(client, stream):
    ask(client, stream, "stream", "plain")
    client.send(stream, wants_empty_final(infer_request("stream", "wanted")), end=False)

    client.engine.end("plain")
    client.engine.end("wanted")

    (answer,) = answers(client, stream)
    assert answer.infer_response.id == "wanted"
    assert not answer.infer_response.outputs
    assert flags(client, stream) == [True]


def test_refused_request_keeps_its_place_in_the_order(client, stream):
    ask(client, stream, "coupled", "1")
    ask(client, stream, "nobody", "2")
    client.engine.refusal = InvalidArgumentError("it does not fit")
    ask(client, stream, "coupled", "3")

    client.engine.answer("1")

    first, unknown, misfit = answers(client, stream)
    assert not first.error_message
    assert "unknown model" in unknown.error_message
    assert unknown.infer_response == service_pb2.ModelInferResponse(id="2")
    assert misfit.error_message == "it does not fit"


def test_failure_names_the_request_and_leaves_the_stream(client, stream):
    ask(client, stream, "coupled", "bad", "good", model_version="1")

    client.engine.fail(InternalError("broken"), "bad")
    client.engine.answer("good")

    failure, answer = answers(client, stream)
    assert failure.error_message == "broken"
    assert failure.infer_response.id == "bad"
    assert failure.infer_response.model_version == "1"
    assert failure.infer_response.parameters["triton_final_response"].bool_param
    assert answer.infer_response.id == "good"


def test_decoupled_failure_ends_only_its_request(client, stream):
    ask(client, stream, "stream", "bad", "good", end=True)
    client.engine.answer("bad", final=False)
    client.engine.fail(InternalError("broken"), "bad")
    client.engine.answer("good", final=True)
    client.run()

    assert ids(client, stream) == ["bad", "bad", "good"]
    assert client.response(stream).status == "0"


def test_request_that_is_cancelled_with_its_sequence_has_an_error_with_a_text(client, stream):
    ask(client, stream, "coupled", "failed")
    client.engine.fail(CancelledError(""), "failed")
    client.engine.refusal = CancelledError("")
    ask(client, stream, "coupled", "refused")

    texts = [answer.error_message for answer in answers(client, stream)]

    assert texts == ["the request was cancelled"] * 2


def test_answer_that_cannot_be_encoded_holds_up_no_later_one(client, stream):
    ask(client, stream, "coupled", "bad", "good", end=True)
    client.engine.answer("bad", None)
    client.engine.answer("good")
    client.run()

    failure, answer = answers(client, stream)
    assert failure.error_message == UNEXPECTED
    assert answer.infer_response.id == "good"
    assert client.response(stream).status == "0"


def test_decoupled_failure_may_be_followed_by_more(client, stream):
    ask(client, stream, "stream", "one", end=True)
    client.engine.inference("one").sink.on_error(InternalError("broken"), final=False)
    client.engine.answer("one", final=True)
    client.run()

    assert [answer.error_message for answer in answers(client, stream)] == ["broken", ""]
    assert flags(client, stream) == [False, True]
    assert client.response(stream).status == "0"


def test_strict_stream_ends_with_the_first_failure(client):
    stream = client.open("ModelStreamInfer", STRICT)
    ask(client, stream, "nobody", "refused")
    ask(client, stream, "stream", "bad", "other")

    client.engine.fail(InternalError("broken"), "bad")
    client.engine.answer("other")

    assert ids(client, stream) == ["refused"]
    assert client.response(stream).status == str(int(GrpcStatus.INTERNAL))
    assert client.response(stream).text == "broken"
    assert client.engine.inference("other") in client.engine.cancelled


def test_coupled_model_without_a_response_is_a_failure(client, stream):
    ask(client, stream, "coupled", "1")
    client.engine.end("1")

    assert answers(client, stream)[0].error_message == "expected a single response, got 0"


def test_half_close_waits_for_open_requests(client, stream):
    ask(client, stream, "coupled", "1", end=True)
    client.run()
    assert client.response(stream).trailers is None

    client.engine.answer("1")
    client.run()

    assert client.response(stream).status == "0"


def test_half_close_without_requests_ends_the_call(client, stream):
    client.send(stream)

    assert client.response(stream).status == "0"
    assert client.response(stream).messages == []


def test_reset_gives_all_requests_up(client, stream):
    ask(client, stream, "coupled", "1", "2")
    ask(client, stream, "stream", "3")

    client.reset(stream)
    for name in "123":
        client.engine.fail(CancelledError(""), name)

    assert len(client.engine.cancelled) == 3
    assert ids(client, stream) == []


def test_deadline_gives_all_requests_up(client):
    stream = client.open("ModelStreamInfer", ("grpc-timeout", "1S"))
    ask(client, stream, "stream", "1")
    client.engine.answer("1", final=False)
    client.loop.advance(1.1)

    assert ids(client, stream) == ["1"]
    assert client.response(stream).status == str(int(GrpcStatus.DEADLINE_EXCEEDED))
    assert len(client.engine.cancelled) == 1


def test_message_that_cannot_be_read_ends_the_call(client, stream):
    ask(client, stream, "stream", "1")
    client.send(stream, b"\xff", end=False)

    assert client.response(stream).status == str(int(GrpcStatus.INTERNAL))
    assert len(client.engine.cancelled) == 1


def test_requests_at_shutdown_are_refused_in_the_stream(client, stream):
    client.engine.refuse()
    ask(client, stream, "coupled", "late")

    (answer,) = answers(client, stream)
    assert answer.error_message.startswith("GRPC server is shutting down")


def test_slow_reader_makes_decoupled_models_wait():
    client = GrpcClient(window=0)
    stream = client.open("ModelStreamInfer")
    ask(client, stream, "stream", "a")
    ask(client, stream, "coupled", "b")
    client.engine.answer("a", bytes(2 << 20), final=False)
    client.run()
    assert client.engine.flow == [("pause", "a")]
    ask(client, stream, "stream", "new")
    assert len(client.engine.inferences) == 2

    client.receive(window_update(stream, 4 << 20))

    assert client.engine.flow[1:] == [("resume", "a")]
    assert client.engine.inference("new")
    assert (
        np.frombuffer(
            answers(client, stream)[0].infer_response.raw_output_contents[0], np.uint8
        ).size
        == 2 << 20
    )


def test_slow_reader_gets_no_more_window_to_write():
    client = GrpcClient(window=0)
    stream = client.open("ModelStreamInfer")
    ask(client, stream, "stream", "a")
    client.engine.answer("a", bytes(2 << 20), final=False)
    client.run()

    send_megabytes(client, stream, 9)
    assert window_updates(client, stream) == 0
    client.receive(window_update(stream, 4 << 20))

    assert window_updates(client, stream) == 1


def test_hasty_writer_gets_no_more_window_until_requests_are_answered(client, stream, monkeypatch):
    monkeypatch.setattr(grpc_stream, "MAX_IN_FLIGHT", 2)
    ask(client, stream, "stream", "1", "2")

    send_megabytes(client, stream, 9)
    assert window_updates(client, stream) == 0
    for inference in client.engine.inferences:  # which grows meanwhile
        inference.sink.on_response(None, final=True)
    client.run()

    assert len(client.engine.inferences) == 11
    assert window_updates(client, stream) == 1


@pytest.mark.parametrize("model", ["coupled", "stream"])
def test_requests_beyond_the_limit_wait_outside_the_engine(client, stream, model, monkeypatch):
    monkeypatch.setattr(grpc_stream, "MAX_IN_FLIGHT", 200)
    count = 300
    messages = [infer_request(model, str(at)) for at in range(count)]
    client.send(stream, *messages)

    assert len(client.engine.inferences) == 200
    for at in range(count):
        assert len(client.engine.inferences) == min(count, at + 200)
        client.engine.answer(str(at))
        client.loop.run()  # the next request may have to wait for its turn
    client.run()
    assert len(client.engine.inferences) == count
    assert [answer.infer_response.id for answer in answers(client, stream)] == [
        str(at) for at in range(count)
    ]
    assert client.response(stream).status == "0"


def test_end_of_a_stream_waits_with_the_requests_before_it(client, stream, monkeypatch):
    monkeypatch.setattr(grpc_stream, "MAX_IN_FLIGHT", 1)
    ask(client, stream, "coupled", "1", "2")
    client.send(stream)  # nothing, and the end
    client.engine.answer("1")
    client.run()
    assert not client.response(stream).status
    client.engine.answer("2")
    client.run()

    assert client.response(stream).status == "0"


def test_damaged_message_among_those_that_wait_ends_the_call(client, stream, monkeypatch):
    monkeypatch.setattr(grpc_stream, "MAX_IN_FLIGHT", 1)
    ask(client, stream, "coupled", "1")
    client.receive(frames.frame(frames.DATA, 0, stream, b"\2\0\0\0\0"))
    client.engine.answer("1")
    client.run()

    assert "compressed flag" in client.response(stream).text


def test_slow_reader_of_large_answers_has_its_requests_wait_outside_the_engine():
    client = GrpcClient(window=0)
    stream = client.open("ModelStreamInfer")
    ask(client, stream, "coupled", "1")
    client.engine.answer("1", bytes(2 << 20))
    ask(client, stream, "coupled", "2", "3")
    assert len(client.engine.inferences) == 1

    client.receive(window_update(stream, 4 << 20))
    assert len(client.engine.inferences) == 3


def test_answers_that_wait_for_their_turn_have_further_requests_wait(client, stream, monkeypatch):
    monkeypatch.setattr(grpc_stream, "MAX_ANSWER_BYTES", 1000)
    ask(client, stream, "coupled", "1", "2")
    client.engine.answer("2", bytes(1000))
    ask(client, stream, "coupled", "3")
    assert len(client.engine.inferences) == 2

    client.engine.answer("1")
    assert len(client.engine.inferences) == 3


def test_stream_whose_client_takes_nothing_of_very_much_is_reset(monkeypatch):
    monkeypatch.setattr(grpc_stream, "MAX_UNREAD_BYTES", 8 << 20)
    client = GrpcClient(window=0)
    stream = client.open("ModelStreamInfer")
    ask(client, stream, "coupled", *map(str, range(20)))
    for at in range(20):
        client.engine.answer(str(at), bytes(1 << 20))
    client.run()

    resets = [sent for sent in client.sent if sent.kind == frames.RST_STREAM]
    assert [sent.stream_id for sent in resets] == [stream]
    assert client.connection.http2.open_streams == 0
    assert len(client.engine.cancelled) > 0


def test_stream_of_reflection_waits_for_a_client_that_reads_slowly():
    client = GrpcClient(window=0)
    stream = client.open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    request = b"\x22\x1einference.GRPCInferenceService"  # file_containing_symbol
    client.send(stream, *[request] * 1000, end=False)
    assert client.connection.http2.queued_bytes(stream) < 2 << 20
    client.receive(window_update(stream, 64 << 20))
    assert len(client.response(stream).messages) == 1000


def test_answer_that_cannot_be_written_gives_the_request_up(client, stream):
    request = service_pb2.ModelInferRequest.FromString(infer_request("stream", "1"))
    request.outputs.add(name="y").parameters["classification"].int64_param = 1
    client.send(stream, request.SerializeToString(), end=False)

    client.engine.answer("1", bytes(4 * 1_000_001), final=False)

    assert "too large" in answers(client, stream)[0].error_message
    assert len(client.engine.cancelled) == 1


def send_megabytes(client, stream, count):
    """Requests to a stream that are a megabyte each."""
    request = service_pb2.ModelInferRequest.FromString(infer_request("stream", "big"))
    request.raw_input_contents[0] = bytes(1 << 20)
    content = request.SerializeToString()
    message = b"\0" + len(content).to_bytes(4, "big") + content
    for _ in range(count):
        for at in range(0, len(message), 1 << 20):
            client.receive(frames.frame(frames.DATA, 0, stream, message[at : at + (1 << 20)]))


def window_updates(client, stream) -> int:
    client.run()
    return sum(
        1 for sent in client.sent if sent.kind == frames.WINDOW_UPDATE and sent.stream_id == stream
    )


def test_many_small_messages_do_not_delay_other_calls(client, stream):
    count = 2 * MESSAGES_PER_TURN + 1
    client.connection.data_received(data(stream, framed(b"") * count, end_stream=True))
    client.connection.data_received(client.head(f"{SERVICE}/ServerLive"))
    other = client._next_stream - 2
    client.connection.data_received(data(other, framed(b""), end_stream=True))
    client.run()

    order = [sent.stream_id for sent in client.sent if sent.kind == frames.DATA]
    assert order.index(other) == TURN_UNITS // REQUEST_UNITS
    assert client.response(other).status == "0"
    assert client.response(stream).status == "0"
    assert len(client.response(stream).messages) == count


def test_messages_that_come_while_others_wait_for_their_turn_follow_them(client, stream):
    count = MESSAGES_PER_TURN + 1
    ids = [str(number) for number in range(2 * count)]
    messages = [framed(infer_request("nobody", request_id)) for request_id in ids]
    client.connection.data_received(data(stream, b"".join(messages[:count])))
    client.connection.data_received(data(stream, b"".join(messages[count:]), end_stream=True))
    client.run()

    answers = map(service_pb2.ModelStreamInferResponse.FromString, client.response(stream).messages)
    assert [answer.infer_response.id for answer in answers] == ids


def test_reset_drops_messages_that_wait_for_their_turn(client, stream, monkeypatch):
    monkeypatch.setattr(grpc_call, "MESSAGES_PER_TURN", 10)
    message = framed(infer_request("stream"))
    client.connection.data_received(data(stream, message * 30))
    client.connection.data_received(rst_stream(stream))
    client.run()

    assert len(client.engine.inferences) == len(client.engine.cancelled) == 10
