# SPDX-License-Identifier: Apache-2.0
"""A client that speaks HTTP/2 with the `h2` package, many requests at once on one connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

import h2.config
import h2.connection
import h2.events
import h2.settings

from tests.e2e.http_client import Answer
from tests.e2e.waiting import DEADLINE_S

REFUSED_STREAM = 7
_READ_BYTES = 1 << 20
_HEADER_BYTES = 9  # of a frame
_GOAWAY = 7


class Http2Session:
    """One connection; every request ends in `answers`, `refused` or `resets`, or it is lost."""

    def __init__(self, port: int, window: int = 1 << 20, *, is_polite: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding="utf-8",
            validate_outbound_headers=is_polite,
            normalize_outbound_headers=is_polite,
        )
        self._h2 = h2.connection.H2Connection(config)
        self._h2.local_settings = h2.settings.Settings(
            client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self._h2.initiate_connection()
        self._authority = f"127.0.0.1:{port}"
        self._unsent: dict[int, bytes] = {}
        self._partial: dict[int, Answer] = {}
        self.answers: dict[int, Answer] = {}
        self.resets: dict[int, int] = {}
        self.refused: set[int] = set()  # those that the server says it has not looked at
        self.is_leaving = False  # the server has asked for no more requests
        self.is_closed = False
        self._received = b""
        self._send()

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def pending(self) -> set[int]:
        """The requests that have not ended."""
        return set(self._partial)

    def begin(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
    ) -> int:
        """Send a request; returns its stream."""
        stream_id: int = self._h2.get_next_available_stream_id()
        fields = [
            (":method", method or ("GET" if body is None else "POST")),
            (":scheme", "http"),
            (":path", path),
            (":authority", self._authority),
            *(headers or {}).items(),
        ]
        if body is not None:
            fields.append(("content-length", str(len(body))))
        self._h2.send_headers(stream_id, fields, end_stream=not body)
        self._partial[stream_id] = Answer(0, {}, b"")
        if body:
            self._unsent[stream_id] = body
        self._send()
        return stream_id

    def call(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
    ) -> Answer:
        """Send a request, and wait for its answer."""
        stream_id = self.begin(path, body, headers, method)
        while stream_id not in self.answers:
            assert not self.is_closed, "the connection has ended"
            assert stream_id not in self.resets, f"reset with code {self.resets[stream_id]}"
            self.read()
        return self.answers[stream_id]

    def await_all(self) -> None:
        """Wait until every request has ended, or the connection has."""
        while self._partial and not self.is_closed:
            self.read()

    def reset(self, stream_id: int) -> None:
        self._h2.reset_stream(stream_id, 8)
        self._partial.pop(stream_id, None)
        self._unsent.pop(stream_id, None)
        self._send()

    def read(self) -> None:
        """Read once, and do what that asks for."""
        try:
            received = self.socket.recv(_READ_BYTES)
        except ConnectionError:
            received = b""
        if not received:
            self.is_closed = True
            return
        for frame in self._frames(received):
            if frame[3] == _GOAWAY:
                self._on_goaway(int.from_bytes(frame[9:13], "big"))
            else:
                for event in self._h2.receive_data(frame):
                    self._on_event(event)
        self._send()

    def _frames(self, received: bytes) -> Iterator[bytes]:
        """Yields the whole frames of what was received until now."""
        self._received += received
        while len(self._received) >= _HEADER_BYTES:
            end = _HEADER_BYTES + int.from_bytes(self._received[:3], "big")
            if len(self._received) < end:
                break
            frame, self._received = self._received[:end], self._received[end:]
            yield frame

    def _on_goaway(self, last_stream_id: int) -> None:
        """Begin to leave. The package takes this frame for the end of everything."""
        self.is_leaving = True
        for late in [each for each in self._partial if each > last_stream_id]:
            del self._partial[late]
            self.refused.add(late)

    def _on_event(self, event: h2.events.Event) -> None:
        stream_id = getattr(event, "stream_id", None) or 0
        answer = self._partial.get(stream_id)
        if isinstance(event, h2.events.ResponseReceived) and answer is not None:
            fields = dict(event.headers or [])
            answer.status = int(fields.pop(":status"))
            answer.headers = fields
        elif isinstance(event, h2.events.DataReceived):
            if answer is not None:
                answer.body += event.data or b""
            self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream_id)
        elif isinstance(event, h2.events.StreamEnded) and answer is not None:
            self.answers[stream_id] = self._partial.pop(stream_id)
            self._unsent.pop(stream_id, None)
        elif isinstance(event, h2.events.StreamReset):
            self._unsent.pop(stream_id, None)
            if self._partial.pop(stream_id, None) is not None:
                code = int(event.error_code or 0)
                self.resets[stream_id] = code
                if code == REFUSED_STREAM:
                    self.refused.add(stream_id)

    def _send(self) -> None:
        for stream_id in list(self._unsent):
            self._send_body(stream_id)
        try:
            self.socket.sendall(self._h2.data_to_send())
        except ConnectionError:  # what the server has sent before may still be read
            self.is_leaving = True

    def _send_body(self, stream_id: int) -> None:
        """Send as much of a body as the server's windows allow."""
        body = self._unsent.pop(stream_id)
        while body:
            window = self._h2.local_flow_control_window(stream_id)
            size = min(window, self._h2.max_outbound_frame_size, len(body))
            if not size:
                self._unsent[stream_id] = body
                return
            part, body = body[:size], body[size:]
            self._h2.send_data(stream_id, part, end_stream=not body)
