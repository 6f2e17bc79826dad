# SPDX-License-Identifier: Apache-2.0
"""One request on its way through a server: the sink that the engine tells, and the callbacks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pytriton.base.errors import ServerError
from pytriton.base.messages import InferResponse
from pytriton.inprocess.c_library.engine_requests import engine_request, is_scattered, join_inputs
from pytriton.runtime.executor.inference import Inference
from pytriton.runtime.native_backend.caller_responses import CallerResponse, CallerResponses

if TYPE_CHECKING:
    from pytriton.inprocess.c_library.servers import CallerServer
    from pytriton.inprocess.c_library.traces import Trace
    from pytriton.runtime.native_backend.caller_requests import CallerRequest
    from pytriton.runtime.native_backend.caller_responses import Allocator
    from pytriton.serving.engine.served_model import ServedModel

# So many responses may wait for the application; then the model waits for it, too.
_MOST_WAITING = 16


class CallerExchange:
    """The sink of a request. The engine calls it on its thread; callbacks are made on another.

    Args:
        request: The request.
        allocator: Gives memory for its outputs.
        server: The server.
        model: The model that serves it.
        responses: Where responses are for the application.
        trace: Gets the times of the request; None: it is not traced.
    """

    def __init__(
        self,
        request: CallerRequest,
        allocator: Allocator,
        server: CallerServer,
        model: ServedModel,
        responses: CallerResponses,
        trace: Trace | None = None,
    ) -> None:
        self._request = request
        self._allocator = allocator
        self._server = server
        self._model = model
        self._responses = responses
        self._trace = trace
        self._inference: Inference | None = None
        self._added_count = 0  # written by the engine's thread
        self._delivered_count = 0  # written by the thread of callbacks
        self._is_paused = False

    # On the application's threads

    def send(self) -> None:
        """Check the request and give it to the engine; raises ServerError if it is refused."""
        request, engine = self._request, self._server.engine
        record = engine_request(request, self._model)
        engine.validate(record, self._model)
        if self._trace is not None:
            self._trace.begin(record, self._model.spec.version)
        inference = self._inference = Inference(record, self, self._trace)
        request.sent, request.was_sent, request.is_cancelled = self, True, False
        self._server.exchanges.add(self)
        try:
            if is_scattered(record):
                engine.post(self._join_and_submit)
            else:
                engine.submit(self._model, inference)
        except ServerError:  # the server ends at this moment
            try:
                self._server.exchanges.remove(self)
            except KeyError:
                return  # the thread that ends the server answers it
            request.sent = None
            raise

    def _join_and_submit(self) -> None:
        assert self._inference is not None
        try:
            join_inputs(self._inference.request, self._model)
        except ServerError as error:  # no room; the engine has not counted the request
            self._pass_on(None, error, final=True)
        else:
            self._server.engine.submit(self._model, self._inference)

    def cancel(self) -> None:
        """Cancel the request, which is still answered."""
        inference = self._inference
        if inference is not None:
            self._server.engine.post(inference.cancel)

    # ResponseSink, on the engine's thread

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """See `ResponseSink`."""
        waiting = self._added_count - self._delivered_count
        if not final and waiting >= _MOST_WAITING and not self._is_paused:
            self._is_paused = True  # before the response is added whose delivery ends the pause
            if self._inference is not None:
                self._inference.pause()
        self._add(response, None, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """See `ResponseSink`."""
        self._add(None, error, final=final)

    def on_refused(self, error: ServerError) -> None:
        """See `ResponseSink`."""
        self._add(None, error, final=True)

    def _add(
        self, response: InferResponse | None, error: ServerError | None, *, final: bool
    ) -> None:
        if final:
            self._server.engine.end_request()
        self._pass_on(response, error, final=final)

    def _pass_on(
        self, response: InferResponse | None, error: ServerError | None, *, final: bool
    ) -> None:
        self._added_count += 1
        if final:
            self._server.exchanges.discard(self)
            self._inference = None  # they refer to each other, which would keep large tensors
        self._server.delivery.add(partial(self._deliver, response, error, final=final))

    # On the thread of callbacks

    def _deliver(
        self, response: InferResponse | None, error: ServerError | None, *, final: bool
    ) -> None:
        self._delivered_count += 1
        if self._is_paused and self._delivered_count == self._added_count:
            self._is_paused = False
            inference = self._inference
            if inference is not None:
                self._server.engine.post(inference.resume)
        handle = 0
        if response is not None or error is not None:
            handle = self._responses.handles.add(self._made(response, error))
        try:
            self._request.deliver(handle, final=final)
        finally:
            if final:
                if self._trace is not None:
                    self._trace.end()
                self._request.give_back()

    def _made(self, response: InferResponse | None, error: ServerError | None) -> CallerResponse:
        spec, request = self._model.spec, self._request
        made = CallerResponse(self._allocator, spec.name, spec.version, request.id)
        made.labels = spec.labels
        made.fill(partial(_outcome, response, error), request.allocator_userp)
        return made


def _outcome(response: InferResponse | None, error: ServerError | None) -> InferResponse:
    if error is not None:
        raise error
    assert response is not None
    return response
