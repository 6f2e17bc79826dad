# SPDX-License-Identifier: Apache-2.0
"""A server as our clients ask it over HTTP, synchronously and with asyncio."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pytriton.client.asyncio_connections import AsyncioHttpConnections
from pytriton.client.connections import HttpConnections
from pytriton.client.http_message import HttpAnswer
from pytriton.client.kserve.http_messages import decode, encode, read_json
from pytriton.client.kserve.records import HEADER_LENGTH, model_path, quoted
from pytriton.client.service import ServiceError, arrays_of, query_of
from pytriton.client.tensors import Array
from pytriton.protocol.json_text import dump_json

if TYPE_CHECKING:
    from typing_extensions import Self

_OK = 200
_REASON_BYTES = 300

Headers = Mapping[str, str] | None


class _HttpMethods:
    """The methods; each returns what `_ask` does, for asyncio something to await.

    `how` are the headers of a request.
    """

    _ask: Callable[..., Any]  # of a request and of what reads its answer
    _may_view = True  # arrays are sent before the caller goes on

    def __init__(self, connections: HttpConnections | AsyncioHttpConnections, address: str) -> None:
        # The name that it has in `tritonclient`: programs read the timeouts from it.
        self._client_stub: Any = connections
        self._pytriton_address = address

    def is_server_live(self, **how: Headers) -> Any:
        return self._ask(_is_ok, "GET", "/v2/health/live", **how)

    def is_server_ready(self, **how: Headers) -> Any:
        return self._ask(_is_ok, "GET", "/v2/health/ready", **how)

    def is_model_ready(self, model_name: str, model_version: str = "", **how: Headers) -> Any:
        return self._ask(_is_ok, "GET", f"{model_path(model_name, model_version)}/ready", **how)

    def get_model_config(self, model_name: str, model_version: str = "", **how: Headers) -> Any:
        return self._ask(_document, "GET", f"{model_path(model_name, model_version)}/config", **how)

    def get_model_repository_index(self, **how: Headers) -> Any:
        return self._ask(_document, "POST", "/v2/repository/index", **how)

    def load_model(
        self,
        model_name: str,
        config: str | None = None,
        files: Mapping[str, bytes] | None = None,
        **how: Headers,
    ) -> Any:
        parameters = {} if config is None else {"config": config}
        for path, content in (files or {}).items():
            parameters[path] = base64.b64encode(content).decode()
        body = dump_json({"parameters": parameters} if parameters else {})
        path = f"/v2/repository/models/{quoted(model_name)}/load"
        return self._ask(_check, "POST", path, body=[body], **how)

    def unload_model(self, model_name: str, **how: Headers) -> Any:
        body = dump_json({"parameters": {"unload_dependents": False}})
        path = f"/v2/repository/models/{quoted(model_name)}/unload"
        return self._ask(_check, "POST", path, body=[body], **how)

    def infer(self, *, headers: Headers = None, **request: Any) -> Any:
        """Ask for an inference; the request has the arguments of `query_of`."""
        question = query_of(**request)
        body = encode(question, is_binary=True, may_view=self._may_view)
        path = f"{model_path(question.model, question.version)}/infer"
        head = {HEADER_LENGTH: str(body.head_length), **(headers or {})}
        return self._ask(_arrays, "POST", path, head, body.parts)


class HttpService(_HttpMethods):
    """A server over HTTP.

    Args:
        connections: those to the server.
        address: the server's for messages.
    """

    def close(self) -> None:
        self._client_stub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self,
        read: Callable[[HttpAnswer], Any],
        method: str,
        path: str,
        headers: Headers = None,
        body: Sequence[bytes] = (),
    ) -> Any:
        return read(self._client_stub.ask(method, path, headers, body))


class AsyncioHttpService(_HttpMethods):
    """The same for asyncio."""

    _may_view = False

    async def close(self) -> None:
        await self._client_stub.close()

    async def _ask(
        self,
        read: Callable[[HttpAnswer], Any],
        method: str,
        path: str,
        headers: Headers = None,
        body: Sequence[bytes] = (),
    ) -> Any:
        return read(await self._client_stub.ask(method, path, headers, body))


def _is_ok(answer: HttpAnswer) -> bool:
    return answer.status_code == _OK


def _check(answer: HttpAnswer) -> None:
    """Raises `ServiceError` if the server answered with an error."""
    if answer.status_code == _OK:
        return
    text = f"HTTP status {answer.status_code}"
    try:
        text = read_json(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        reason = answer.body[:_REASON_BYTES].decode(errors="replace").strip()
        text = f"{text}: {reason}" if reason else text
    raise ServiceError(text, str(answer.status_code))


def _document(answer: HttpAnswer) -> Any:
    _check(answer)
    return read_json(answer.body)


def _arrays(answer: HttpAnswer) -> dict[str, Array]:
    _check(answer)
    length = answer.headers.get(HEADER_LENGTH.lower())
    try:
        return arrays_of(decode(answer.body, None if length is None else int(length)))
    except (AttributeError, KeyError, TypeError) as error:
        start = bytes(answer.body[:80])
        raise ValueError(f"expected an object with outputs, got {start!r}") from error
