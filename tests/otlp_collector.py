# SPDX-License-Identifier: Apache-2.0
"""A receiver of spans over OTLP/HTTP, for tests to look at what was sent."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import itertools
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.waiting import DEADLINE_S, eventually

ERROR = 2  # the code of a status
_IDS = {"traceId", "spanId", "parentSpanId"}


@dataclasses.dataclass(frozen=True)
class Span:
    """A span as it was received; ids are hexadecimal, empty for none."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    tracestate: str
    start_ns: int
    end_ns: int
    events: tuple[str, ...]
    attributes: dict[str, Any]
    error: str | None  # the text of its status, None where that is no error
    scope: str
    resource: dict[str, Any]


class Collector:
    """Listens on a port of its own. One that hangs takes spans and never answers."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.spans: list[Span] = []
        self.request_count = 0
        self._is_ending = threading.Event()
        if not hangs:
            self._is_ending.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.collector = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    @property
    def settings(self) -> list[str]:
        """The settings of a server that traces everything and sends spans here at once."""
        return [
            "mode=opentelemetry",
            f"opentelemetry,url={self.url}",
            "opentelemetry,bsp_schedule_delay=20",
            "rate=1",
            "level=TIMESTAMPS",
        ]

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, body: bytes, *, is_json: bool) -> None:
        """Keep the spans of a request."""
        self.request_count += 1
        request = _from_json(body) if is_json else ExportTraceServiceRequest.FromString(body)
        self.spans += _read(request)
        self._is_ending.wait(DEADLINE_S)

    def trace(self, trace_id: str, count: int) -> dict[str, Span]:
        """So many spans of a trace, by name; fails where there are fewer or more."""
        return {span.name: span for span in self.trace_list(trace_id, count)}

    def trace_list(self, trace_id: str, count: int) -> list[Span]:
        """Like `trace`, where several spans may have one name."""
        assert eventually(lambda: len(self._of(trace_id)) >= count), self._of(trace_id)
        spans = self._of(trace_id)
        assert len(spans) == count, [span.name for span in spans]
        return spans

    def new_trace(self, count: int) -> dict[str, Span]:
        """The spans of the only trace that was received."""
        assert eventually(lambda: len(self.spans) >= count)
        (trace_id,) = {span.trace_id for span in self.spans}
        return self.trace(trace_id, count)

    def _of(self, trace_id: str) -> list[Span]:
        return [span for span in self.spans if span.trace_id == trace_id]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        is_json = "json" in self.headers["Content-Type"]
        self.server.collector.take(body, is_json=is_json)  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _from_json(body: bytes) -> Any:
    """OTLP's JSON is that of protobuf, but for the ids, which are hexadecimal."""
    document = json.loads(body)
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in _IDS & span.keys():
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=True)


def _read(request: Any) -> Iterator[Span]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    name=span.name,
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    kind=span.kind,
                    tracestate=span.trace_state,
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    events=tuple(event.name for event in span.events),
                    attributes=_values(span.attributes),
                    error=span.status.message if span.status.code == ERROR else None,
                    scope=scope.scope.name,
                    resource=_values(resource.resource.attributes),
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


_trace_numbers = itertools.count(1)


def new_trace_id() -> str:
    """The id of a trace that no other request of these tests belongs to."""
    return f"{next(_trace_numbers):032x}"
