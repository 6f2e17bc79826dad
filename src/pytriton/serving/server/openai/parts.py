# SPDX-License-Identifier: Apache-2.0
"""A request of a client that becomes several requests for a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pytriton.serving.server.http.handler import HttpExchange
from pytriton.serving.server.http.infer import EngineExchange
from pytriton.serving.server.openai.responses import as_openai_error, respond_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferRequest, InferResponse
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.http.connection import HttpConnection
    from pytriton.serving.server.http.infer import EngineService
    from pytriton.serving.server.http.reader import RequestHead


class PartOwner(Protocol):
    """What the parts of a request tell."""

    def on_part(self, index: int, response: InferResponse | None, *, final: bool) -> bool:
        """Take a response; returns whether the part needs no more of them."""

    def fail(self, error: Exception) -> None:
        """End the whole request with an error."""


class ModelRequest(EngineExchange):
    """One request for the model; it passes everything on to its owner."""

    __slots__ = ("_index", "_owner")

    def __init__(
        self,
        service: EngineService,
        model: ServedModel,
        connection: HttpConnection,
        owner: PartOwner,
        index: int,
    ) -> None:
        super().__init__(service, model, "", connection)
        self._owner: PartOwner | None = owner
        self._index = index

    def start(self, head: RequestHead, request: InferRequest) -> None:
        """Pass the request to the engine."""
        super().start(head, request)
        if self._owner is None:  # it was answered at once, maybe before its end
            super().abandon()

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response of the model on."""
        owner = self._owner
        if owner is None:
            return
        is_done = owner.on_part(self._index, response, final=final)
        if final:
            self._owner = None
        elif is_done:
            self.abandon()

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """End the whole request."""
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.fail(error)

    def on_refused(self, error: ServerError) -> None:
        """End the whole request."""
        self.on_error(error)

    def abandon(self) -> None:
        """Cancel the request: nobody needs more responses."""
        self._owner = None
        super().abandon()


class PartsExchange(HttpExchange):
    """Answers a request when all its parts are answered, or one of them has failed."""

    __slots__ = ("_connection", "_left", "_parts", "_request_id")

    def __init__(self, connection: HttpConnection, request_id: str) -> None:
        self._connection = connection
        self._request_id = request_id
        self._parts: Sequence[ModelRequest] = ()
        self._left = 0  # parts that are not answered yet

    def start(
        self,
        service: EngineService,
        model: ServedModel,
        head: RequestHead,
        requests: Sequence[InferRequest],
        began_ns: int,
    ) -> None:
        """Pass all requests to the engine."""
        self._left = len(requests)
        self._parts = parts = [
            ModelRequest(service, model, self._connection, self, index)
            for index in range(len(requests))
        ]
        for part, request in zip(parts, requests, strict=True):
            if not self._left:  # an earlier one was refused
                return
            part.began_ns = began_ns
            request.id = self._request_id
            part.start(head, request)

    def on_part(self, index: int, response: InferResponse | None, *, final: bool) -> bool:
        """Take a response; returns whether the part needs no more of them."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """End the request with an error."""
        self.abandon()
        respond_error(self._connection, as_openai_error(error), self._request_id)

    def abandon(self) -> None:
        """Cancel all parts."""
        parts, self._parts = self._parts, ()  # they refer to this object
        self._left = 0
        for part in parts:
            part.abandon()

    def pause(self) -> None:
        """Pause the model, because the client reads too slowly."""
        for part in self._parts:
            part.pause()

    def resume(self) -> None:
        """Resume the model."""
        for part in self._parts:
            part.resume()
