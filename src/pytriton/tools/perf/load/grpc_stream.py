# SPDX-License-Identifier: Apache-2.0
"""One HTTP/2 connection with one call of ModelStreamInfer, which carries requests of many lanes."""

from __future__ import annotations

from pytriton.base.protos import service_pb2
from pytriton.client.kserve.messages import FINAL
from pytriton.protocol.http2 import frames
from pytriton.protocol.http2.frames import ConnectionViolation, Http2ErrorCode
from pytriton.tools.perf.load.grpc_session import CREDIT_BYTES, GrpcSession, Paced, unpadded
from pytriton.tools.perf.load.lane import LaneListener, RequestLane
from pytriton.tools.perf.load.link import Dialer, SocketPoller
from pytriton.tools.perf.load.requests import PREFIX, GrpcRequests

_STREAM = 1


class GrpcStreamSession(GrpcSession):
    """Responses are told apart by the ids of their requests."""

    def __init__(
        self,
        link: Dialer,
        requests: GrpcRequests,
        block: bytes,
        outcome: LaneListener,
        poller: SocketPoller,
        *,
        is_decoupled: bool,
    ) -> None:
        super().__init__(link, requests, block, outcome, poller)
        self._is_decoupled = is_decoupled
        self._learns = False
        self._by_id: dict[str, RequestLane] = {}
        self._number = 0
        self._data = b""
        self._stream_credit = 0
        self._out.append(frames.header_frames(_STREAM, block, 0, frames.DEFAULT_MAX_FRAME))
        self._windows.keep(_STREAM)

    def begin(self, lane: RequestLane) -> None:
        self._number += 1
        message = self._requests.with_id(lane.choice, self._number & 0xFFFFFFFF)
        self._by_id[f"{self._number & 0xFFFFFFFF:08x}"] = lane
        if self._windows.admits_on(_STREAM, len(message)):
            self._out.append(frames.frame(frames.DATA, 0, _STREAM, message))
            self._sending.append(lane)
        else:
            self._windows.wait(Paced(_STREAM, lane, memoryview(message), is_last=False))
            self._send_paced()
        if not self._is_reading:
            self.flush()

    @property
    def has_calls(self) -> bool:
        return bool(self._by_id)

    def close(self) -> None:
        super().close()
        self._by_id.clear()

    def _take_data(
        self, stream: int, flags: int, data: bytes, start: int, stop: int, now: int
    ) -> None:
        self._count(stop - start)
        self._stream_credit += stop - start
        if self._stream_credit >= CREDIT_BYTES:
            self._out.append(frames.window_update(_STREAM, self._stream_credit))
            self._stream_credit = 0
        payload = data[start:stop]
        if flags & frames.PADDED:
            payload = unpadded(payload, flags)
        if self._data:
            payload = self._data + payload
        at = 0
        while len(payload) - at >= PREFIX.size:
            is_compressed, size = PREFIX.unpack_from(payload, at)
            stop = at + PREFIX.size + size
            if stop > len(payload):
                break
            if is_compressed:
                text = "expected messages without compression, which was not offered"
                raise ConnectionViolation(Http2ErrorCode.PROTOCOL_ERROR, text)
            self._take_message(payload[at + PREFIX.size : stop], now)
            at = stop
        self._data = payload[at:]

    def _take_message(self, message: bytes, now: int) -> None:
        answer = service_pb2.ModelStreamInferResponse.FromString(message)
        response = answer.infer_response
        number = response.id
        if not number and answer.error_message and self._by_id:
            number = next(iter(self._by_id))  # older servers do not say whose error it is
        lane = self._by_id.get(number)
        if lane is None:
            return
        if answer.error_message:
            del self._by_id[number]
            self._outcome.finish(lane, now, answer.error_message)
            return
        # Decoupled models may end with an empty response, which only carries the parameter.
        is_final = not self._is_decoupled or response.parameters[FINAL].bool_param
        if not self._is_decoupled or not is_final or response.outputs:
            lane.responses += 1
            self._outcome.respond(lane, now)
            if self._looks:
                self._outcome.keep(lane, response.SerializeToString(), -1)
        if is_final:
            del self._by_id[number]
            self._outcome.finish(lane, now)

    def _end(self, stream: int, error: str, now: int) -> None:
        """The server ended the call, and with it all requests on it."""
        self.is_leaving = True
        self._fail(error or "the server ended the call before its answers were complete")

    def _take_reset(self, stream: int, code: int, now: int) -> None:
        self._end(stream, f"the server reset the call with code {code}", now)

    def _take_goaway(self, payload: bytes) -> None:
        """No new connection is needed for requests under way: the call goes on until it ends."""
        self.is_leaving = True

    def _fail(self, error: str) -> None:
        self._lanes = dict(enumerate(self._by_id.values()))
        super()._fail(error)
