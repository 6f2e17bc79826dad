# SPDX-License-Identifier: Apache-2.0
"""The core's side of an ordinary request of a front end, with any number of responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.messages import InferRequest
from pytriton.runtime.executor.batch_tensors import make_tensor
from pytriton.runtime.transport.credit import CreditWindow
from pytriton.serving.server.frontend.records import as_batch_key

if TYPE_CHECKING:
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import InferResponse
    from pytriton.runtime.executor.inference import Inference
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frontend_frames import SubmitItem
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.frontend.session import FrontEndSession


class FrontEndRequest:
    """One request of a front end: the sink of its responses, with flow control."""

    __slots__ = ("_call", "_is_paused", "_session", "_window", "inference")

    def __init__(self, session: FrontEndSession, call: int) -> None:
        self.inference: Inference | None = None
        self._session = session
        self._call = call
        self._window: CreditWindow | None = None  # of a request with several responses
        self._is_paused = False

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Send a response; raises ServerError if there is no memory for its tensors."""
        size = self._session.outbox.add_response(self._call, response, is_final=final)
        self._count(size, final=final)

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        self._session.outbox.add_error(self._call, error, is_final=final)
        self._count(0, final=final)

    def on_refused(self, error: ServerError) -> None:
        """Send the error of a request that no model has seen."""
        self._session.outbox.add_error(self._call, error, is_refused=True)
        self._count(0, final=True)

    def on_consumed(self, count: int) -> None:
        """Let a paused model continue once its client has taken enough responses."""
        window, inference = self._window, self.inference
        if window is None or inference is None:
            return
        window.add(count)
        if self._is_paused and window.is_open:
            self._is_paused = False
            inference.resume()

    def cancel(self) -> None:
        if self.inference is not None:
            self.inference.cancel()

    def _count(self, size: int, *, final: bool) -> None:
        if final:
            self.inference = None  # it refers to this object, and a cycle would keep its tensors
            self._session.end_request(self._call)
            return
        if self._window is None:
            self._window = CreditWindow()
        self._window.spend(size)
        if not self._window.is_open and not self._is_paused and self.inference is not None:
            self._is_paused = True
            self.inference.pause()


class RefusedRequest:
    """The sink of a request that was refused in the front end already."""

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Never called."""

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Never called."""

    def on_refused(self, error: ServerError) -> None:
        """Do nothing."""


def read_request(received: Received, item: SubmitItem, model: ServedModel) -> InferRequest:
    return InferRequest(
        model_name=model.spec.name,
        inputs={ref.name: make_tensor(received, ref) for ref in item.inputs},
        model_version=item.model_version,
        id=item.id,
        outputs=item.outputs,
        parameters=item.parameters,
        priority=item.priority,
        timeout_us=item.timeout_us,
        correlation_id=item.correlation_id,
        flags=item.flags,
        received_ns=item.received_ns,
        rows=item.rows,
        batch_key=as_batch_key(item.batch_key),
    )
