# SPDX-License-Identifier: Apache-2.0
"""The state of a request while the engine and an instance serve it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from pytriton.base.errors import ServerError
    from pytriton.base.messages import ExecutionTrace, InferRequest, InferResponse, ResponseSink
    from pytriton.runtime.executor.base import Instance
    from pytriton.runtime.executor.columns import Chunk


class InferenceOwner(Protocol):
    """The model that serves an inference."""

    def cancel(self, inference: Inference) -> None:
        """Cancel an inference; its sink gets exactly one error."""

    def pause(self, inference: Inference) -> None:
        """Hold responses back; the sink cannot accept more for now."""

    def resume(self, inference: Inference) -> None:
        """Continue after `pause`; the sink accepts responses again."""


class Inference(msgspec.Struct, eq=False):
    """The handle that `Engine.infer` returns; its methods do nothing once it has ended."""

    request: InferRequest
    sink: ResponseSink
    trace: ExecutionTrace | None = None  # None: the request is not traced
    owner: InferenceOwner | None = None  # None until a model has accepted the request
    chunk: Chunk | None = None  # the chunk that the request is a member of, and whose sink is told
    index: int = 0  # in this chunk

    queued_ns: int = 0
    deadline_ns: int = 0  # the end of its queue timeout; 0: none
    ticket: int = 0  # its number in the order of arrival, if the model preserves order
    is_over: bool = False
    is_cancelled: bool = False
    is_put_back: bool = False  # an instance was lost with it, and it was queued again: once only
    instance: Instance | None = None  # the instance that runs it
    batch_id: int = 0
    position: int = 0  # of this request in that batch
    response_count: int = 0
    taken_count: int = 0  # responses that the sink accepted, without new credit for the instance
    is_paused: bool = False  # the sink accepts no more responses for now
    cache_key: Any = None  # set if the response is to be cached
    cache_ns: int = 0

    def cancel(self) -> None:
        """Cancel the request: nobody waits for its responses any more."""
        if self.owner is not None and not self.is_over:
            self.owner.cancel(self)

    def pause(self) -> None:
        """Make a decoupled model wait: the client reads responses slower than they arrive."""
        if self.owner is not None and not self.is_over:
            self.owner.pause(self)

    def resume(self) -> None:
        """Undo `pause`."""
        if self.owner is not None and not self.is_over:
            self.owner.resume(self)

    def end(self) -> ResponseSink:
        """Mark the inference as ended; returns the sink, which must still be notified of the end.

        The handle drops its reference to the sink: the sink usually refers to the handle, and a
        cycle would keep large tensors in memory until the next garbage collection.
        """
        sink, self.sink = self.sink, CLOSED_SINK
        self.is_over = True
        return sink if self.chunk is None else self.chunk.member_sink(self.index)


class _ClosedSink:
    """The sink of an inference that has ended."""

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        raise AssertionError("a response came after the end")

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        raise AssertionError(f"an error came after the end: {error}")

    def on_refused(self, error: ServerError) -> None:
        raise AssertionError(f"a refusal came after the end: {error}")


CLOSED_SINK = _ClosedSink()
