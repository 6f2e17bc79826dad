# SPDX-License-Identifier: Apache-2.0
"""Calls in chunks that end in another way than by rows of a batch."""

from __future__ import annotations

from pytriton.base.errors import ResourceExhaustedError, UnavailableError
from pytriton.protocol.grpc import CallHead
from pytriton.serving.server.grpc.columns import ColumnCall


class Recorder:
    """A connection, its HTTP/2 and a gatherer, which keep what they are told."""

    def __init__(self) -> None:
        self.http2 = self
        self.blocks: list[bytes] = []
        self.removed: list[ColumnCall] = []
        self.cancelled: list[int] = []

    def send_headers(self, stream_id: int, block: bytes, *, end_stream: bool) -> None:
        assert end_stream
        self.blocks.append(block)

    def remove_call(self, call: ColumnCall) -> None:
        self.removed.append(call)

    def flush_soon(self) -> None:
        pass

    def cancel(self, chunk: object, index: int) -> None:
        self.cancelled.append(index)


def column_call(recorder: Recorder) -> ColumnCall:
    call = ColumnCall(recorder, 1, CallHead("/inference.GRPCInferenceService/ModelInfer"))
    call.chunk, call.index, call.gatherer = object(), 7, recorder
    return call


def test_call_in_a_chunk_is_answered_with_its_error():
    recorder = Recorder()
    call = column_call(recorder)
    call.fail(UnavailableError("the queue is full"))

    assert b"the queue is full" in recorder.blocks[0]
    assert recorder.removed == [call]


def test_refusal_of_a_call_in_a_chunk_says_when_to_try_again():
    recorder = Recorder()
    column_call(recorder).fail(ResourceExhaustedError("too many", 7))

    assert recorder.blocks[0].endswith(b"\x0f\x26\x017")  # RFC 7541: 53 is retry-after


def test_call_in_a_chunk_whose_client_has_left_is_cancelled():
    recorder = Recorder()
    column_call(recorder).abandon()

    assert recorder.cancelled == [7]


def test_call_in_a_chunk_holds_no_memory_of_its_client():
    call = column_call(Recorder())

    assert (call.upload_bytes, call.held_bytes) == (0, 0)
