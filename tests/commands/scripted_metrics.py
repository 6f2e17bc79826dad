# SPDX-License-Identifier: Apache-2.0
"""A server of metrics whose numbers a test decides, which may go away and come back."""

from __future__ import annotations

import http.server
import json
import ssl
import threading


class ScriptedServer:
    """Answers as a Triton with the models of `index` and the metrics of `text`."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.port = port
        self._context = context  # for TLS
        self.text = ""
        self.index = []
        self.requests = []
        self._server = None

    def start(self) -> None:
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"  # no connection outlives its answer

            def do_GET(self) -> None:
                owner.requests.append(self.path)
                if self.path == "/metrics":
                    self._answer(200, owner.text.encode())
                elif self.path == "/v2":
                    self._answer(200, b'{"name": "scripted", "version": "1.0"}')
                else:
                    self._answer(404, b'{"error": "not found"}')

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                self._answer(200, json.dumps(owner.index).encode())

            def _answer(self, status, body) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True

            def handle_error(self, *arguments) -> None:
                """Print nothing: clients may refuse the certificate."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        if self._context is not None:
            self._server.socket = self._context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
