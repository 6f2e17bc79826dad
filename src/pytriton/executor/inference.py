# SPDX-License-Identifier: Apache-2.0
"""A request while it is served: what the engine and the instance that runs it keep of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.errors import ServerError
    from pytriton.executor.base import Instance
    from pytriton.messages import InferRequest, InferResponse, RequestTrace, ResponseSink


class InferenceOwner(Protocol):
    """The model that serves an inference."""

    @property
    def instances(self) -> Sequence[Instance]:
        """What executes its batches; none where it has no such thing."""

    @property
    def missing_instances(self) -> int:
        """How many instances are gone and will be replaced."""

    def cancel(self, inference: Inference) -> None:
        """Give it up; its sink hears of that once, with an error."""

    def pause(self, inference: Inference) -> None:
        """Its sink takes no more responses for now."""

    def resume(self, inference: Inference) -> None:
        """Its sink takes responses again."""

    def when_dispatched(self, inference: Inference, callback: Callable[[], None]) -> None:
        """Call back once it was handed to an instance; never if it ends before that."""


class Inference(msgspec.Struct, eq=False):
    """The handle that `Engine.infer` gives back; its methods do nothing once it is over."""

    request: InferRequest
    sink: ResponseSink
    trace: RequestTrace | None = None  # None: it is not traced
    owner: InferenceOwner | None = None  # None until a model took it

    queued_ns: int = 0
    deadline_ns: int = 0  # in the queue; 0: none
    ticket: int = 0  # place in the order of arrival, where a model keeps it
    is_over: bool = False
    is_cancelled: bool = False
    instance: Instance | None = None  # that runs it, and as what: the batch and its position there
    batch_id: int = 0
    position: int = 0
    response_count: int = 0
    taken_count: int = 0  # responses that the sink took and the instance was not told of
    is_paused: bool = False  # the sink takes no more for now
    cache_key: Any = None  # set where the response is to be cached
    cache_ns: int = 0

    def cancel(self) -> None:
        """Give it up: nobody waits for the responses any more."""
        if self.owner is not None and not self.is_over:
            self.owner.cancel(self)

    def pause(self) -> None:
        """Have a decoupled model wait: its responses are not taken as fast as they come."""
        if self.owner is not None and not self.is_over:
            self.owner.pause(self)

    def resume(self) -> None:
        """Undo `pause`."""
        if self.owner is not None and not self.is_over:
            self.owner.resume(self)

    def end(self) -> ResponseSink:
        """Mark it as over; gives the sink, which is still to hear how it ended.

        The handle refers to the sink no longer: the sink usually holds the handle, and a cycle
        would keep large tensors until the next garbage collection.
        """
        sink, self.sink = self.sink, _CLOSED
        self.is_over = True
        return sink


class _ClosedSink:
    """The sink of an inference that is over."""

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        raise AssertionError("a response came after the end")

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        raise AssertionError(f"an error came after the end: {error}")

    def on_refused(self, error: ServerError) -> None:
        raise AssertionError(f"a refusal came after the end: {error}")


_CLOSED = _ClosedSink()
