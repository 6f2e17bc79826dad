# SPDX-License-Identifier: Apache-2.0
"""Asks a server over HTTP or HTTPS; streams are the events of `generate_stream`.

`kserve_client` makes the client of either protocol.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.client.kserve.address import Address, Tls
from pytriton.client.kserve.errors import (
    AskError,
    ErrorWords,
    HttpReply,
    ServerRefusedError,
    UnansweredError,
    refusal,
)
from pytriton.client.kserve.http_messages import decode, encode, generate_body, generated
from pytriton.client.kserve.records import (
    HEADER_LENGTH,
    LOAD_TIMEOUT_S,
    Document,
    KserveClient,
    ModelAnswer,
    ModelQuery,
    model_path,
    quoted,
)

if TYPE_CHECKING:
    from pytriton.client.kserve import grpc_client
else:  # grpc takes as long to import as all the rest together
    grpc_client = LazyModule("pytriton.client.kserve.grpc_client")

_EVENT = b"data:"
_NEVER_TWICE = ("/infer", "/generate_stream")  # ends of paths that make a model work


class KserveHttpClient:
    """A server at an HTTP address; one connection that is opened when it is needed.

    Args:
        address: where it listens.
        headers: sent with every request.
        timeout_s: for connecting and for each wait for data.
        tls: settings of HTTPS; None for the defaults.
        words: makes the errors.
    """

    def __init__(
        self,
        address: Address,
        headers: Mapping[str, str],
        timeout_s: float,
        tls: Tls | None = None,
        words: ErrorWords | None = None,
    ) -> None:
        self._address = address
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._tls = tls or Tls()
        self._words = words or ErrorWords()
        self._connection: http.client.HTTPConnection | None = None

    def server_metadata(self) -> Document:
        return self._mapping("/v2")

    def is_model_ready(self, model: str, version: str) -> bool:
        with contextlib.suppress(ServerRefusedError):
            self._exchange("GET", f"{model_path(model, version)}/ready")
            return True
        return False

    def model_metadata(self, model: str, version: str = "") -> Document:
        return self._mapping(model_path(model, version))

    def model_config(self, model: str, version: str = "") -> Document:
        return self._mapping(f"{model_path(model, version)}/config")

    def index(self) -> list[Document]:
        models: list[Document] = self._document("POST", "/v2/repository/index", b"{}")
        return models

    def statistics(self, model: str = "", version: str = "") -> list[Document]:
        path = f"{model_path(model, version)}/stats" if model else "/v2/models/stats"
        return list(self._mapping(path).get("model_stats") or ())

    def load(self, model: str, config: str | None = None) -> None:
        self._manage(model, "load", {} if config is None else {"config": config})

    def unload(self, model: str) -> None:
        self._manage(model, "unload", {})

    def update_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        self._exchange("POST", "/v2/trace/setting", json.dumps(dict(settings)).encode())

    def register_memory(self, region: str, key: str, byte_size: int) -> None:
        members = {"key": key, "offset": 0, "byte_size": byte_size}
        self._exchange("POST", f"{_region_path(region)}/register", json.dumps(members).encode())

    def unregister_memory(self, region: str) -> None:
        self._exchange("POST", f"{_region_path(region)}/unregister", b"{}")

    def register_device_memory(
        self, region: str, handle: bytes, device: int, byte_size: int
    ) -> None:
        raw_handle = {"b64": base64.b64encode(handle).decode()}
        members = {"raw_handle": raw_handle, "device_id": device, "byte_size": byte_size}
        path = f"{_region_path(region, 'cuda')}/register"
        self._exchange("POST", path, json.dumps(members).encode())

    def unregister_device_memory(self, region: str) -> None:
        self._exchange("POST", f"{_region_path(region, 'cuda')}/unregister", b"{}")

    def infer(self, question: ModelQuery) -> ModelAnswer:
        request = encode(question, is_binary=self._takes_binary())
        path = f"{model_path(question.model, question.version)}/infer"
        headers = {"Content-Type": "application/json"}
        if request.head_length is not None:
            headers = {
                "Content-Type": "application/octet-stream",
                HEADER_LENGTH: str(request.head_length),
            }
        reply = self._exchange("POST", path, request.body, headers)
        try:
            return decode(reply.body, reply.head_length)
        except (ValueError, KeyError, TypeError) as error:
            raise self._words.unexpected(self._address, path, reply, error) from error

    def stream(self, question: ModelQuery) -> Iterator[ModelAnswer]:
        metadata = self.model_metadata(question.model, question.version)
        body = json.dumps(generate_body(question, metadata)).encode()
        path = f"{model_path(question.model, question.version)}/generate_stream"
        response = self._send("POST", path, body, {"Content-Type": "application/json"})
        try:
            if response.headers.get_content_type() != "text/event-stream":
                reply = HttpReply(response.status, response.read())
                raise self._words.refused(self._address, reply)
            while line := response.readline():
                if line.startswith(_EVENT):
                    yield _event(line, metadata, question)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            self.close()  # which cancels a request that still runs

    def get_text(self, path: str) -> str:
        """Returns the text at a path, such as that of metrics."""
        return self._exchange("GET", path).body.decode(errors="replace")

    def get_document(self, path: str) -> Any:
        """Returns the JSON document at a path."""
        return self._document("GET", path)

    def post(self, path: str, body: bytes, headers: Mapping[str, str] = {}) -> HttpReply:
        """Send any body to a path; returns the whole answer."""
        return self._exchange("POST", path, body, headers)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _takes_binary(self) -> bool:
        try:
            extensions = self.server_metadata().get("extensions", ())
        except UnansweredError:
            raise
        except AskError:
            return True
        return "binary_tensor_data" in extensions

    def _manage(self, model: str, action: str, parameters: Mapping[str, str]) -> None:
        path = f"/v2/repository/models/{quoted(model)}/{action}"
        body = json.dumps({"parameters": parameters}).encode()
        self._exchange("POST", path, body, timeout_s=LOAD_TIMEOUT_S)

    def _mapping(self, path: str) -> Document:
        document = self._document("GET", path)
        return document if isinstance(document, dict) else {}

    def _document(self, method: str, path: str, body: bytes | None = None) -> Any:
        reply = self._exchange(method, path, body)
        try:
            return json.loads(reply.body)
        except ValueError as error:
            raise self._words.unexpected(self._address, path, reply, error) from error

    def _exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},
        timeout_s: float | None = None,
    ) -> HttpReply:
        response = self._send(method, path, body, headers, timeout_s)
        try:
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from error
        length = response.getheader(HEADER_LENGTH, "")
        reply = HttpReply(response.status, content, int(length) if length.isdigit() else None)
        if response.status >= http.HTTPStatus.BAD_REQUEST:
            raise self._words.refused(self._address, reply)
        return reply

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None = None,
    ) -> http.client.HTTPResponse:
        # The server may have closed an idle connection. An inference is never sent twice.
        may_repeat = self._connection is not None and not path.endswith(_NEVER_TWICE)
        try:
            try:
                return self._send_once(method, path, body, headers, timeout_s)
            except (ConnectionError, http.client.HTTPException):
                if not may_repeat:
                    raise
                return self._send_once(method, path, body, headers, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _send_once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float | None,
    ) -> http.client.HTTPResponse:
        connection = self._connection = self._connection or self._connect()
        connection.timeout = timeout_s or self._timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        target = self._address.path + path
        try:
            connection.request(method, target, body, {**self._headers, **headers})
            return connection.getresponse()
        except BaseException:  # also Ctrl-C: the rest of the answer is not read
            self.close()
            raise

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._address.host, self._address.port
        if not self._address.uses_tls:
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            host, port, timeout=self._timeout_s, context=self._tls.context()
        )

    def _unreachable(self, error: Exception) -> Exception:
        return self._words.unreachable(self._address, error, self._timeout_s)


def _region_path(region: str, kind: str = "system") -> str:
    return f"/v2/{kind}sharedmemory/region/{quoted(region)}"


def _event(line: bytes, metadata: Document, question: ModelQuery) -> ModelAnswer:
    document = json.loads(line[len(_EVENT) :])
    if "error" in document:
        raise refusal(document["error"])
    return generated(document, metadata, question.outputs)


def kserve_client(
    address: Address,
    headers: Mapping[str, str],
    timeout_s: float,
    tls: Tls | None = None,
    words: ErrorWords | None = None,
) -> KserveClient:
    """Returns the client for the protocol of an address; nothing is sent yet.

    Raises:
        OSError: A file of the TLS settings cannot be read.
    """
    if address.protocol == "grpc":
        return grpc_client.KserveGrpcClient(address, headers, timeout_s, tls, words)
    return KserveHttpClient(address, headers, timeout_s, tls, words)
