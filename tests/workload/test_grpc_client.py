# SPDX-License-Identifier: Apache-2.0
"""The gRPC client of the workload: what it writes, reads, refuses, and does to a connection."""

from __future__ import annotations

import struct

import pytest

from pytriton.base.protos import service_pb2 as pb
from tests.wire.http2.frame_client import parse_frames
from tests.workload import models
from tests.workload.calls import (
    Call,
    Conduct,
    End,
    Form,
    Kind,
    Place,
    Port,
    Region,
    SequenceStep,
    decompress,
)
from tests.workload.grpc_client import GrpcClient
from tests.workload.http2_connection import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
)
from tests.workload.scripted import HEAD, Scripted, data, head, infer_response, trailers


def scripted_grpc(**settings):
    return Scripted(GrpcClient, **settings)


def live(number=1, **settings):
    return Call(number, Kind.LIVE, Port.GRPC, **settings)


def double(number=1, **settings):
    return Call(number, Kind.INFER, Port.GRPC, "double", models.rows_of(number), **settings)


def stream(number=1, **settings):
    inputs = models.stream_inputs(number, 2)
    return Call(number, Kind.STREAM, Port.GRPC, "stream", inputs, lane=1, **settings)


def goaway(last, code=0, text=b""):
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code) + text)


def right_answer(call):
    (outputs,) = models.ANSWERS[call.model](call)
    return infer_response(call, *outputs).SerializeToString()


def stream_answer(call, *outputs, final, error=""):
    inner = infer_response(call, *outputs)
    inner.parameters["triton_final_response"].bool_param = final
    message = pb.ModelStreamInferResponse(error_message=error, infer_response=inner)
    return data(1, message.SerializeToString())


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_answers_are_read_in_pieces_of_any_size(size):
    scripted = scripted_grpc()
    calls = [double(1), double(2), live(3)]
    scripted.submit(*calls)
    text = b"".join(
        (
            head(1), data(1, right_answer(calls[0])), trailers(1),
            head(5), data(5, pb.ServerLiveResponse(live=True).SerializeToString()),
            frame(HEADERS, END_HEADERS | END_STREAM, 3, HEAD + b"\x00\x0bgrpc-status\x0214"),
            trailers(5),
        )
    )  # fmt: skip
    scripted.receive(*(text[at : at + size] for at in range(0, len(text), size)))

    assert scripted.violations == []
    assert [call.number for call in scripted.ended] == [1, 2, 3]
    assert calls[0].outcome.responses[0].outputs == models.ANSWERS["double"](calls[0])[0]
    assert (calls[1].outcome.end, calls[1].outcome.status) == (End.ERROR, 14)
    assert calls[2].outcome.responses[0].document.live


@pytest.mark.parametrize("form", list(Form))
def test_messages_are_those_of_the_protocol(form):
    scripted = scripted_grpc()
    step = SequenceStep("abc", 0, is_start=True, is_end=False)
    calls = [double(1, form=form), double(2, form=form, sequence=step, priority=2, timeout_us=5)]
    scripted.submit(*calls)
    sent = [each for each in parse_frames(scripted.written()) if each.kind == DATA]
    requests = [pb.ModelInferRequest.FromString(each.payload[5:]) for each in sent]

    assert [request.id for request in requests] == ["0000000001", "0000000002"]
    for call, request in zip(calls, requests, strict=True):
        assert request.model_name == "double"
        assert [(each.name, list(each.shape)) for each in request.inputs] == [("IN", [1, 4])]
        if form is Form.BINARY:
            assert list(request.raw_input_contents) == [call.inputs[0].raw]
        else:
            assert list(request.inputs[0].contents.int_contents) == call.inputs[0].values()
    parameters = requests[1].parameters
    assert parameters["sequence_id"].string_param == "abc"
    assert parameters["sequence_start"].bool_param is True
    assert parameters["priority"].int64_param == 2
    assert parameters["timeout"].int64_param == 5


@pytest.mark.parametrize("form", list(Form))
def test_tensors_in_shared_memory_are_named_and_not_sent(form):
    scripted = scripted_grpc()
    places = {"IN": Place("region", 3, 16), "OUT": Place("region", (1 << 64) - 1, 16)}
    call = double(form=form, places=places)
    scripted.submit(call)
    (sent,) = [each for each in parse_frames(scripted.written()) if each.kind == DATA]
    request = pb.ModelInferRequest.FromString(sent.payload[5:])
    (output,) = models.ANSWERS["double"](call)[0]
    answer = infer_response(call, output._replace(raw=b"")).SerializeToString()
    scripted.receive(head(1), data(1, answer), trailers(1))

    assert list(request.raw_input_contents) == []
    assert request.inputs[0].parameters["shared_memory_region"].string_param == "region"
    assert request.inputs[0].parameters["shared_memory_offset"].int64_param == 3
    assert request.inputs[0].parameters["shared_memory_byte_size"].int64_param == 16
    assert request.outputs[0].name == "OUT"
    assert request.outputs[0].parameters["shared_memory_offset"].int64_param == -1
    assert call.outcome.responses[0].outputs[0].raw == b""


def test_regions_are_registered_listed_and_given_up_by_their_names():
    scripted = scripted_grpc()
    register = Call(1, Kind.REGISTER, Port.GRPC, text="a b", region=Region("/key", 1, 2))
    others = (Kind.REGIONS, Kind.UNREGISTER)
    more = [Call(n, kind, Port.GRPC, text="a b") for n, kind in enumerate(others, 2)]
    scripted.submit(register, *more)
    frames = parse_frames(scripted.written())
    sent = [each.payload[5:] for each in frames if each.kind == DATA]

    message = pb.SystemSharedMemoryRegisterRequest.FromString(sent[0])
    assert (message.name, message.key, message.offset, message.byte_size) == ("a b", "/key", 1, 2)
    assert pb.SystemSharedMemoryStatusRequest.FromString(sent[1]).name == "a b"
    assert pb.SystemSharedMemoryUnregisterRequest.FromString(sent[2]).name == "a b"


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_message_is_compressed_as_its_head_says(coding):
    scripted = scripted_grpc()
    call = double(coding=coding)
    scripted.submit(call)
    first, second = parse_frames(scripted.written())

    assert b"grpc-encoding" + bytes((len(coding),)) + coding.encode() in first.payload
    assert second.payload[0] == 1
    message = decompress(second.payload[5:], coding)
    assert pb.ModelInferRequest.FromString(message).raw_input_contents == [call.inputs[0].raw]


def test_stream_goes_on_after_a_response_without_room_in_shared_memory():
    scripted = scripted_grpc()
    call = stream(1, closes_lane=True, places={"OUT": Place("region", 0, 7)})
    scripted.submit(call)
    scripted.receive(head(1), stream_answer(call, final=False, error="should be at least 8"))
    assert scripted.ended == []
    scripted.receive(stream_answer(call, final=True))

    assert scripted.violations == []
    assert (call.outcome.end, call.outcome.error) == (End.ERROR, "should be at least 8")


def test_deadline_is_a_field_of_the_head():
    scripted = scripted_grpc()
    scripted.submit(double(deadline_s=0.25))
    (sent,) = [each for each in parse_frames(scripted.written()) if each.kind == HEADERS]

    assert b"\x0cgrpc-timeout\x07250000u" in sent.payload


@pytest.mark.parametrize(
    "text",
    [
        data(1, b""),  # before the head
        frame(HEADERS, END_HEADERS, 1, b"\x8d"),  # 404
        frame(HEADERS, END_HEADERS, 1, b"\x88"),  # without a content type
        frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
        frame(HEADERS, END_HEADERS, 2, HEAD),
        frame(HEADERS, END_HEADERS, 3, HEAD),
        frame(HEADERS, 0, 1, HEAD) + frame(PING, 0, 0, bytes(8)),
        frame(CONTINUATION, END_HEADERS, 1, b""),
        head(1) + head(1),
        head(1) + trailers(1),  # success without a message
        head(1) + data(1, b"") + data(1, b"") + trailers(1),
        head(1) + data(1, b"") + frame(DATA, END_STREAM, 1, b""),
        head(1) + data(1, b"") + trailers(1, 13),  # an error with a message
        head(1) + data(1, b"\xff") + trailers(1),
        head(1) + data(1, b"\x98\x06\x01") + trailers(1),  # an unknown field
        head(1) + frame(DATA, 0, 1, b"\1\0\0\0\0"),  # compressed
        head(1) + frame(DATA, 0, 1, b"\0\0\0\0\7abc") + trailers(1),
        head(1) + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x0bgrpc-status\x01x"),
        head(1) + data(1, b"") + trailers(1) + trailers(1),
        head(1) + data(1, b"") + trailers(1) + data(1, b""),
        head(1) + data(1, b"") + trailers(1) + frame(RST_STREAM, 0, 1, b"\0\0\0\x02"),
        frame(SETTINGS, ACK, 0, b"") * 2,
        frame(SETTINGS, 0, 0, b"\0\x02\0\0\0\1"),
        frame(SETTINGS, 0, 0, b"odd"),
        frame(SETTINGS, 0, 1, b""),
        frame(PING, ACK, 0, bytes(8)),
        frame(WINDOW_UPDATE, 0, 0, bytes(4)),
        frame(WINDOW_UPDATE, 0, 1, b"\x7f\xff\xff\xff"),
        goaway(1) + goaway(3),
        frame(5, 0, 1, b""),  # a push
        frame(DATA, 0, 1, bytes(16_385)),
    ],
)  # fmt: skip
def test_what_http2_or_grpc_does_not_allow_is_a_violation(text):
    scripted = scripted_grpc()
    scripted.submit(live())
    scripted.receive(text)

    assert len(scripted.violations) == 1
    assert scripted.transport.is_aborted


def test_first_frame_has_to_be_settings():
    scripted = Scripted(GrpcClient)
    fresh = GrpcClient(scripted.loop.time, scripted.loop.call_later, scripted.ended.append)
    fresh.connection_made(scripted.transport)
    fresh.data_received(frame(PING, 0, 0, bytes(8)))

    assert scripted.transport.is_aborted


@pytest.mark.parametrize("limited", ["stream", "connection"])
def test_more_data_than_a_window_allows_is_a_violation(limited):
    scripted = scripted_grpc(window_bytes=100 if limited == "stream" else (1 << 31) - 1)
    scripted.submit(live())
    scripted.receive(head(1))
    if limited == "stream":
        scripted.receive(frame(DATA, 0, 1, b"\0\0\0\1\0" + bytes(96)))
    else:
        scripted.client._receive_left = 100
        scripted.receive(frame(DATA, 0, 1, b"\0\0\1\0\0" + bytes(96)))

    assert "exceeds the window" in scripted.violations[0]


def test_windows_grow_as_data_is_read():
    scripted = scripted_grpc(window_bytes=100)
    scripted.submit(live())
    scripted.receive(head(1), frame(DATA, 0, 1, b"\0\0\0\1\0" + bytes(45)))
    updates = [each for each in parse_frames(scripted.written()) if each.kind == WINDOW_UPDATE]

    assert [(each.stream_id, each.payload) for each in updates] == [(1, b"\0\0\0\x32")]


def test_large_message_waits_for_the_windows_of_the_server():
    scripted = scripted_grpc()
    call = Call(1, Kind.INFER, Port.GRPC, "large", models.large_inputs(1, 50_000))
    scripted.submit(call)
    sent = [each for each in parse_frames(scripted.written()) if each.kind == DATA]
    assert sum(len(each.payload) for each in sent) == 65_535
    assert call.outcome.sent_s is None
    scripted.receive(frame(WINDOW_UPDATE, 0, 0, b"\0\x0f\0\0"))
    assert scripted.written() == b""
    scripted.receive(frame(WINDOW_UPDATE, 0, 1, b"\0\x0f\0\0"))
    sent += parse_frames(scripted.written())
    message = b"".join(each.payload for each in sent)

    assert pb.ModelInferRequest.FromString(message[5:]).raw_input_contents == [call.inputs[0].raw]
    assert [each.flags for each in sent] == [0] * (len(sent) - 1) + [END_STREAM]
    assert call.outcome.sent_s is not None


def test_calls_wait_for_a_stream_that_the_server_allows():
    scripted = scripted_grpc()
    scripted.receive(frame(SETTINGS, 0, 0, b"\0\x03\0\0\0\x01"))
    scripted.written()
    scripted.submit(live(1), live(2))
    assert len(parse_frames(scripted.written())) == 2
    scripted.receive(head(1), data(1, b""), trailers(1))
    sent = parse_frames(scripted.written())

    assert [(each.kind, each.stream_id) for each in sent] == [(HEADERS, 3), (DATA, 3)]


def test_requests_of_a_stream_end_with_their_final_responses():
    scripted = scripted_grpc()
    first, second = stream(1), stream(2, closes_lane=True)
    scripted.submit(first, second)
    (one, _), (two, _) = models.ANSWERS["stream"](first), models.ANSWERS["stream"](second)
    scripted.receive(
        head(1),
        stream_answer(first, *one, final=False),
        stream_answer(second, *two, final=True),
        stream_answer(first, final=True),
        trailers(1),
    )

    assert scripted.violations == []
    assert [call.number for call in scripted.ended] == [2, 1]
    assert first.outcome.responses[0].outputs == one
    assert second.outcome.responses[0].outputs == two


def test_error_of_a_stream_ends_its_request_only():
    scripted = scripted_grpc()
    first, second = stream(1), stream(2, closes_lane=True)
    scripted.submit(first, second)
    scripted.receive(head(1), stream_answer(first, final=False, error="odd"))

    assert [call.number for call in scripted.ended] == [1]
    assert (first.outcome.end, first.outcome.error) == (End.ERROR, "odd")


def test_response_after_the_final_one_is_a_violation():
    scripted = scripted_grpc()
    first = stream(1)
    scripted.submit(first)
    scripted.receive(head(1), stream_answer(first, final=True), stream_answer(first, final=True))

    assert "which is not open on the stream" in scripted.violations[0]


def test_stream_that_ends_before_its_requests_is_a_violation():
    scripted = scripted_grpc()
    scripted.submit(stream(1, closes_lane=True))
    scripted.receive(head(1), trailers(1))

    assert "the stream ended, but not call 1" in scripted.violations[0]


def test_cancelled_call_may_get_frames_until_the_server_knows():
    scripted = scripted_grpc()
    scripted.submit(double(1, conduct=Conduct(cancel_after_s=1.0)), double(2))
    scripted.loop.advance(1.1)
    sent = parse_frames(scripted.written())
    scripted.receive(head(1), data(1, b""))

    assert [each.kind for each in sent[-2:]] == [RST_STREAM, SETTINGS]
    assert scripted.ended[0].outcome.end is End.CANCELLED
    assert scripted.violations == []
    scripted.receive(frame(SETTINGS, ACK, 0, b""), frame(SETTINGS, ACK, 0, b""), data(1, b""))
    assert "after its end" in scripted.violations[0]


def test_reset_stream_ends_its_call():
    scripted = scripted_grpc()
    scripted.submit(double(1), double(2))
    scripted.receive(frame(RST_STREAM, 0, 1, b"\0\0\0\x02"))

    (call,) = scripted.ended
    assert (call.outcome.end, call.outcome.status) == (End.RESET, 2)


def test_calls_beyond_a_goaway_were_not_sent():
    scripted = scripted_grpc()
    scripted.submit(double(1), double(2))
    scripted.receive(goaway(1))
    scripted.submit(double(3))

    ends = {call.number: call.outcome.end for call in scripted.ended}
    assert ends == {2: End.UNSENT, 3: End.UNSENT}
    assert not scripted.client.is_usable


def test_frames_of_others_follow_a_request_that_is_sent_in_pieces():
    scripted = scripted_grpc()
    scripted.submit(double(1, conduct=Conduct(piece_bytes=50, piece_pause_s=1.0)), double(2))
    scripted.receive(frame(PING, 0, 0, b"12345678"))
    scripted.loop.advance(60.0)
    sent = parse_frames(scripted.written())

    assert [(each.kind, each.stream_id) for each in sent] == [
        (HEADERS, 1), (DATA, 1), (PING, 0), (HEADERS, 3), (DATA, 3),
    ]  # fmt: skip


def test_call_that_ends_while_it_is_sent_leaves_the_connection_usable():
    scripted = scripted_grpc()
    scripted.submit(double(1, conduct=Conduct(piece_bytes=50, piece_pause_s=1.0)), double(2))
    refusal = HEAD + b"\x00\x0bgrpc-status\x0214"
    scripted.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, refusal))
    sent = parse_frames(scripted.written())

    assert [call.outcome.end for call in scripted.ended] == [End.ERROR]
    assert [(each.kind, each.stream_id) for each in sent][:2] == [(HEADERS, 1), (DATA, 1)]
    assert (HEADERS, 3) in [(each.kind, each.stream_id) for each in sent]


def test_bytes_that_make_no_sense_wait_for_the_end_of_the_connection():
    scripted = scripted_grpc()
    scripted.submit(Call(1, Kind.INVALID, Port.GRPC, payload=b"\xff" * 9))
    assert scripted.written() == b"\xff" * 9
    scripted.receive(goaway(0, 6, b"too long"))
    scripted.transport.lose()
    scripted.loop.run()

    (call,) = scripted.ended
    assert call.outcome.end is End.LOST
    assert "GOAWAY 6: too long" in call.outcome.error
