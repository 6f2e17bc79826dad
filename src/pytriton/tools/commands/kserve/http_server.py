# SPDX-License-Identifier: Apache-2.0
"""Asks a server over HTTP or HTTPS; streams are the events of `generate_stream`."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

from pytriton.tools.commands.kserve import http_tensors
from pytriton.tools.commands.kserve.address import Address
from pytriton.tools.commands.kserve.errors import AskError, NoServerError, RefusedError, refusal
from pytriton.tools.commands.kserve.records import Answer, Document, Question
from pytriton.utils.metrics_port import metrics_port_hint

_HEADER_LENGTH = "Inference-Header-Content-Length"
_EVENT = b"data:"
_QUESTIONS = ("/infer", "/generate_stream")  # how the paths end that make a model work


class HttpServer:
    """A server at an HTTP address; one connection that is opened when it is needed.

    Args:
        address: where it listens.
        headers: sent with every request.
        timeout_s: for connecting and for each wait for data.
        ca_file: certificates to trust, for HTTPS; None for those of the system.
    """

    def __init__(
        self, address: Address, headers: Mapping[str, str], timeout_s: float, ca_file: str | None
    ) -> None:
        self._address = address
        self._headers = dict(headers)
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._connection: http.client.HTTPConnection | None = None

    def server_metadata(self) -> Document:
        return self._mapping("/v2")

    def is_model_ready(self, model: str, version: str) -> bool:
        with contextlib.suppress(RefusedError):
            self._exchange("GET", f"{_path(model, version)}/ready")
            return True
        return False

    def model_metadata(self, model: str, version: str) -> Document:
        return self._mapping(_path(model, version))

    def model_config(self, model: str, version: str) -> Document:
        return self._mapping(f"{_path(model, version)}/config")

    def index(self) -> list[Document]:
        models: list[Document] = self._document("POST", "/v2/repository/index", b"{}")
        return models

    def statistics(self) -> list[Document]:
        models: list[Document] = self._document("GET", "/v2/models/stats")["model_stats"]
        return models

    def infer(self, question: Question) -> Answer:
        request = http_tensors.encode(question, is_binary=self._takes_binary())
        path = f"{_path(question.model, question.version)}/infer"
        headers = {"Content-Type": "application/json"}
        if request.head_length is not None:
            headers = {
                "Content-Type": "application/octet-stream",
                _HEADER_LENGTH: str(request.head_length),
            }
        response, body = self._exchange("POST", path, request.body, headers)
        length = response.getheader(_HEADER_LENGTH)
        try:
            return http_tensors.decode(body, int(length) if length else None)
        except (ValueError, KeyError, TypeError) as error:
            raise self._unexpected(path, error) from error

    def stream(self, question: Question) -> Iterator[Answer]:
        metadata = self.model_metadata(question.model, question.version)
        body = json.dumps(http_tensors.generate_body(question, metadata)).encode()
        path = f"{_path(question.model, question.version)}/generate_stream"
        response = self._send("POST", path, body, {"Content-Type": "application/json"})
        try:
            if not response.headers.get_content_type() == "text/event-stream":
                raise self._refused(response.status, response.read())
            while line := response.readline():
                if line.startswith(_EVENT):
                    yield _event(line, metadata, question)
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            self.close()  # which cancels a request that still runs

    def get_text(self, path: str) -> str:
        """Returns the text at a path, such as that of metrics."""
        return self._exchange("GET", path)[1].decode(errors="replace")

    def get_document(self, path: str) -> Any:
        """Returns the JSON document at a path."""
        return self._document("GET", path)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _takes_binary(self) -> bool:
        try:
            extensions = self.server_metadata().get("extensions", ())
        except NoServerError:
            raise
        except AskError:
            return True
        return "binary_tensor_data" in extensions

    def _mapping(self, path: str) -> Document:
        document: Document = self._document("GET", path)
        return document

    def _document(self, method: str, path: str, body: bytes | None = None) -> Any:
        _, answer = self._exchange(method, path, body)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise self._unexpected(path, error) from error

    def _exchange(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> tuple[http.client.HTTPResponse, bytes]:
        response = self._send(method, path, body, headers)
        try:
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._lost(error) from error
        if response.status >= 400:
            raise self._refused(response.status, answer)
        return response, answer

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        # An idle connection may have been closed by the server; a question is never sent twice.
        may_repeat = self._connection is not None and not path.endswith(_QUESTIONS)
        try:
            try:
                return self._send_once(method, path, body, headers)
            except (ConnectionError, http.client.HTTPException):
                if not may_repeat:
                    raise
                return self._send_once(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error

    def _send_once(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        connection = self._connection or self._connect()
        target = self._address.path + path
        try:
            connection.request(method, target, body, {**self._headers, **headers})
            return connection.getresponse()
        except BaseException:  # also Ctrl-C: the rest of the answer is not read
            self.close()
            raise

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._address.host, self._address.port
        if self._address.uses_tls:
            context = ssl.create_default_context(cafile=self._ca_file)
            self._connection = http.client.HTTPSConnection(
                host, port, timeout=self._timeout_s, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        return self._connection

    def _lost(self, error: Exception) -> NoServerError:
        where = str(self._address)
        if isinstance(error, ConnectionRefusedError):
            return NoServerError(f"No server answers at {where}: the connection was refused.")
        if isinstance(error, TimeoutError):
            return NoServerError(f"{where} gave no answer within {self._timeout_s:g} seconds.")
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is not trusted ({error.verify_message})"
            return NoServerError(f"{where} was not asked: {why}; --ca-file names one to trust.")
        if isinstance(error, ssl.SSLError):
            return NoServerError(f"{where} does not speak TLS; is it an address for http?")
        if isinstance(error, http.client.BadStatusLine):
            return NoServerError(f"{where} does not speak HTTP; is it the port for gRPC?")
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return NoServerError(f"No server answers at {where}: {reason}.")

    def _unexpected(self, path: str, error: Exception) -> NoServerError:
        return self._of_metrics() or NoServerError(
            f"{self._address}{path} does not answer as a KServe v2 server does: {error}."
        )

    def _refused(self, status: int, body: bytes) -> AskError:
        text = body.decode(errors="replace").strip()
        is_odd = status == http.HTTPStatus.METHOD_NOT_ALLOWED
        try:
            text = json.loads(text)["error"]
        except (ValueError, KeyError, TypeError):
            text, is_odd = text[:300], True
        hint = self._of_metrics() if is_odd else None
        return hint or refusal(text or f"HTTP status {status}")

    def _of_metrics(self) -> NoServerError | None:
        """Returns what to say if this is the port of the metrics."""
        hint = metrics_port_hint(self._address.host, self._address.port)
        return NoServerError(f"{hint}.") if hint else None


def _path(model: str, version: str) -> str:
    path = f"/v2/models/{urllib.parse.quote(model, safe='')}"
    return f"{path}/versions/{urllib.parse.quote(version, safe='')}" if version else path


def _event(line: bytes, metadata: Document, question: Question) -> Answer:
    document = json.loads(line[len(_EVENT) :])
    if "error" in document:
        raise refusal(document["error"])
    return http_tensors.generated(document, metadata, question.outputs)
