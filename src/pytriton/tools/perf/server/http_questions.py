# SPDX-License-Identifier: Apache-2.0
"""Questions over HTTP."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.tools.perf.load.plan import Tls
from pytriton.tools.perf.server.questions import QuestionError, ServerAddress
from pytriton.utils.metrics_port import metrics_port_hint

_TIMEOUT_S = 60.0
_LOAD_TIMEOUT_S = 600.0  # a model may take minutes to load


class HttpQuestions:
    """Asks over one connection, which is opened again when the server closed it."""

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._connection: http.client.HTTPConnection | None = None

    def server_metadata(self) -> Mapping[str, Any]:
        return self._document("GET", "/v2")

    def model_metadata(self, model: str, version: str = "") -> Mapping[str, Any]:
        return self._document("GET", _path(model, version))

    def model_config(self, model: str, version: str = "") -> Mapping[str, Any]:
        return self._document("GET", f"{_path(model, version)}/config")

    def statistics(self, model: str, version: str = "") -> Sequence[Mapping[str, Any]]:
        found = self._document("GET", f"{_path(model, version)}/stats")
        return list(found.get("model_stats") or [])

    def update_trace(self, settings: Mapping[str, Sequence[str]]) -> None:
        self._document("POST", "/v2/trace/setting", dict(settings))

    def load(self, model: str, config: str | None = None) -> None:
        parameters = {} if config is None else {"config": config}
        self._document(
            "POST",
            f"/v2/repository/models/{urllib.parse.quote(model, safe='')}/load",
            {"parameters": parameters},
            _LOAD_TIMEOUT_S,
        )

    def unload(self, model: str) -> None:
        name = urllib.parse.quote(model, safe="")
        self._document("POST", f"/v2/repository/models/{name}/unload", {}, _LOAD_TIMEOUT_S)

    def ready_models(self) -> list[str]:
        """The names of the models that are ready, from the repository's index."""
        index = self._ask_json("POST", "/v2/repository/index", {"ready": True}, _TIMEOUT_S)
        return sorted({str(each.get("name")) for each in index}) if isinstance(index, list) else []

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _document(
        self, method: str, path: str, body: Any = None, timeout_s: float = _TIMEOUT_S
    ) -> Mapping[str, Any]:
        document = self._ask_json(method, path, body, timeout_s)
        return document if isinstance(document, dict) else {}

    def _ask_json(self, method: str, path: str, body: Any, timeout_s: float) -> Any:
        try:
            status, raw = self._ask(method, path, body, timeout_s)
        except http.client.BadStatusLine as error:
            self.close()
            raise QuestionError(
                f"{self._address.host_and_port} does not speak HTTP; is it the port for gRPC? "
                "That needs -i grpc"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise QuestionError(
                f"the server at {self._address.host_and_port} cannot be reached: {error}"
            ) from error
        try:
            document = json.loads(raw or b"{}")
            is_document = bool(raw) or method == "POST"  # such as the answer to a load
        except ValueError:
            is_document = False
        if not is_document:
            raise QuestionError(self._unexpected(status, raw))
        if status != http.HTTPStatus.OK:
            text = document.get("error") if isinstance(document, dict) else None
            raise QuestionError(str(text or f"the server answered with status {status}"))
        return document

    def _unexpected(self, status: int, raw: bytes) -> str:
        """Returns what to say of an answer that is no document of the protocol."""
        address = self._address.host_and_port
        host, _, port = address.rpartition(":")
        hint = metrics_port_hint(host.strip("[]"), int(port)) if port.isdigit() else ""
        text = raw.decode(errors="replace").strip()[:500]
        return hint or (
            f"{address} does not answer as a KServe v2 server does: status {status}, {text!r}"
        )

    def _ask(self, method: str, path: str, body: Any, timeout_s: float) -> tuple[int, bytes]:
        content = None if body is None else json.dumps(body)
        headers = dict(self._address.headers)
        for is_last in (False, True):
            is_new = self._connection is None
            connection = self._connection = self._connection or self._connect()
            try:
                connection.timeout = timeout_s
                if connection.sock is not None:
                    connection.sock.settimeout(timeout_s)
                connection.request(method, path, content, headers)
                response = connection.getresponse()
                return response.status, response.read()
            except (ConnectionError, http.client.BadStatusLine):
                self.close()
                if is_new or is_last:  # an old one may just have been closed by the server
                    raise
        raise AssertionError("a second connection either answers or raises")

    def _connect(self) -> http.client.HTTPConnection:
        host, _, port = self._address.host_and_port.rpartition(":")
        if not port.isdigit():
            host, port = self._address.host_and_port, "443" if self._address.is_encrypted else "80"
        host = host.strip("[]")
        if not self._address.is_encrypted:
            return http.client.HTTPConnection(host, int(port), timeout=_TIMEOUT_S)
        context = tls_context(self._address.tls or Tls())
        return http.client.HTTPSConnection(host, int(port), timeout=_TIMEOUT_S, context=context)


def tls_context(tls: Tls) -> ssl.SSLContext:
    """The standard library's form of these settings."""
    context = ssl.create_default_context(cafile=tls.ca_file)
    context.check_hostname = tls.verify_host and tls.verify_peer
    if not tls.verify_peer:
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def _path(model: str, version: str) -> str:
    path = f"/v2/models/{urllib.parse.quote(model, safe='')}"
    return f"{path}/versions/{urllib.parse.quote(version, safe='')}" if version else path
