# SPDX-License-Identifier: Apache-2.0
"""Receives spans over OTLP, as Jaeger and other collectors do, and shows those of a trace."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """Listens on a port of its own until its process ends."""

    def __init__(self):
        self._spans = []
        spans = self._spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        spans.extend(scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass  # the log is the server's

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def tree(self, trace_id, parent_id, indent=""):
        """The names of the spans under another one, each below its parent, in order of time."""
        lines = []
        for span in sorted(self._spans, key=lambda span: span.start_time_unix_nano):
            if span.trace_id.hex() == trace_id and span.parent_span_id.hex() == parent_id:
                lines.append(indent + span.name)
                lines += self.tree(trace_id, span.span_id.hex(), indent + "  ")
        return lines
