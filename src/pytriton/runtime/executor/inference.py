# SPDX-License-Identifier: Apache-2.0
"""A request while it is served, and the interface between the engine and instances.

Batches go in, events come back. The thread of a bound callable, the process of a model.py and the
fakes of tests all are instances; the engine does not know which one it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    import asyncio
    from collections import Counter
    from collections.abc import Collection, Mapping, Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import (
        ExecutionTrace,
        InferRequest,
        InferResponse,
        ResponseBurst,
        ResponseSink,
    )
    from pytriton.base.model_spec import Reshape
    from pytriton.runtime.executor.columns import Chunk, ChunkRun


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
    responded_ns: int = 0  # when the last response of a stream came
    taken_count: int = 0  # responses that the sink accepted, without new credit for the instance
    is_paused: bool = False  # the sink accepts no more responses for now
    cache_key: Any = None  # set if the response is to be cached
    cache_ns: int = 0
    usage: Any = None  # a `TokenUsage`, once a response to a request of OpenAI's routes has come

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

        The handle drops its references to the sink and to the trace, which has the sink: the sink
        usually refers to the handle, and a cycle would keep large tensors in memory until the next
        garbage collection.
        """
        sink, self.sink, self.trace = self.sink, CLOSED_SINK, None
        self.is_over = True
        return sink if self.chunk is None else self.chunk.member_sink(self.index)


def trace_of(inference: Inference) -> ExecutionTrace | None:
    """Returns what is told of a request while it is executed: its own, or that of its chunk."""
    return inference.trace if inference.chunk is None else inference.chunk.trace


class _ClosedSink:
    """The sink of an inference that has ended."""

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        raise AssertionError("a response came after the end")

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        raise AssertionError(f"an error came after the end: {error}")

    def on_refused(self, error: ServerError) -> None:
        raise AssertionError(f"a refusal came after the end: {error}")


CLOSED_SINK = _ClosedSink()


class RunningBatch(msgspec.Struct, eq=False):
    """Requests that an instance executes together."""

    id: int
    inferences: list[Inference]
    started_ns: int  # when the engine passed it to the instance
    open_positions: set[int]  # positions of the requests that wait for their final response
    is_traced: bool = False  # at least one of the requests is traced
    is_rescheduled: bool = False  # the model asked to execute at least one of the requests again
    rows: int = 0  # of all its requests, if there are runs
    runs: Sequence[ChunkRun] = ()  # those of its requests that are members of chunks
    has_others: bool = True  # at least one of the requests is no member
    is_lost: bool = False  # its instance was lost: its last outcomes are errors that say so
    null_rows: int = 0  # of the answers to null requests, which no client has sent
    call_depth: int = -1  # the largest of its requests; -1: nobody has asked for it yet
    answered: Sequence[
        ChunkRun
    ] = ()  # the same, if columns answer them; they have no outcomes then
    # What it has cost since its model was told about it, if it is traced.
    processor_ns: int = 0
    bytes_in: int = 0  # of tensors
    bytes_out: int = 0
    leases: list[int] = []  # of inputs in GPU memory of other instances


class Outcome(msgspec.Struct, gc=False):
    """A response to one request of a batch, an error in its place, or an end without tensors."""

    position: int
    response: InferResponse | None = None
    error: ServerError | None = None
    is_final: bool = True
    is_rescheduled: bool = False  # there is no response: the request is to be executed again


def burst_outcomes(position: int, burst: ResponseBurst) -> list[Outcome]:
    """Returns an outcome for each response of a burst."""
    return [Outcome(position, response, None, is_final=False) for response in burst.responses()]


class BatchCosts(Protocol):
    """The sums of what batches have cost."""

    worker_ns: int  # processor time of instances
    bytes_in: int  # of tensors
    bytes_out: int
    to_gpu_bytes: int  # that the server's own code has copied in processes of instances
    to_host_bytes: int
    # Tensors in GPU memory between models, by why they were copied; see `device_blocks.SHARED`.
    gpu_tensors: Counter[str]


class InstanceEvents(Protocol):
    """Callbacks from an instance to its owner, always called on the event loop."""

    @property
    def costs(self) -> BatchCosts | None:
        """The sums to which the instance adds what its batches cost; None: nobody wants them."""

    def shown(self, error: ServerError, batch: RunningBatch) -> ServerError:
        """Returns what clients get of an error that an instance has reported."""

    def on_outcomes(
        self,
        instance: Instance,
        batch: RunningBatch,
        outcomes: list[Outcome],
        times_ns: tuple[int, int],
    ) -> None:
        """Called with responses; `times_ns` is when the model began and finished computing them.

        The runs in `batch.answered` have their responses, too. It never raises: whatever goes wrong
        is logged and answered, because other outcomes must still be reported.
        """

    def on_burst(
        self,
        instance: Instance,
        batch: RunningBatch,
        position: int,
        burst: ResponseBurst,
        times_ns: tuple[int, int],
    ) -> None:
        """Called with many responses to one request, which are no ends; like `on_outcomes`."""

    def on_unavailable(self, instance: Instance) -> None:
        """Called when the instance accepts no more batches; `on_died` follows with the reason."""

    def on_died(self, instance: Instance, reason: str) -> None:
        """Called when the instance has ended, after its open requests were failed."""


class Instance(Protocol):
    """A place where batches of a model run; all calls and events are on the event loop.

    It promises that each request of a batch ends exactly once, by an outcome that is final, also if
    the instance is lost or stopped; that no event comes from within `execute`, `cancel` or `grant`;
    and that a batch whose `execute` raised was not begun. It sets `instance`, `batch_id` and
    `position` of the inferences, and leaves all else of them, their requests and their sinks alone:
    its owner delivers the outcomes. It has no queue: giving it more batches than it has free slots
    breaks its contract.
    """

    name: str

    @property
    def free_slots(self) -> int:
        """The number of batches that the instance accepts now."""

    @property
    def is_idle(self) -> bool:
        """Whether no batch is executing."""

    @property
    def has_requests(self) -> bool:
        """Whether it has requests that are not answered to their end."""

    @property
    def executing_batches(self) -> Collection[int]:
        """The ids of the batches that occupy slots."""

    def start(self) -> None:
        """Begin to report events."""

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        """Run requests as one batch; outcomes are reported later as events.

        Raises:
            ServerError: There is no memory for their tensors, or the instance has ended.
        """

    def cancel(self, inference: Inference) -> None:
        """Tell the model that this request was cancelled; its final outcome still comes."""

    def grant(self, inference: Inference, count: int) -> None:
        """Allow a decoupled model to send `count` more responses to this request."""

    def stop(self) -> None:
        """Stop the instance and fail its open requests."""


class WorkerInstance(Instance, Protocol):
    """An instance with a process of its own, which may crash and be replaced."""

    node: str  # the node of a cluster that it runs on; "" on this machine
    pid: int
    concurrency: int  # the number of batches that it executes at the same time
    has_ready_check: bool  # the model has an `is_ready` method
    ended: asyncio.Future[None]  # done when the process has ended

    @property
    def is_to_blame(self) -> bool:
        """Whether the instance itself is the cause of its end, rather than another process."""

    async def check_ready(self) -> bool:
        """Returns whether the process is alive and the model, if it has a ready check, is ready."""

    def set_events(self, events: InstanceEvents) -> None:
        """Replace the receiver of events."""


class ModelLabels(msgspec.Struct, frozen=True):
    """The properties of a model by which instances make its batches and responses."""

    name: str
    version: str
    input_names: Sequence[str]  # the inputs in the order in which they are sent to instances
    batching: bool  # whether inputs have a batch dimension, along which requests are concatenated
    # Whether the model is a model.py. It gets more details of a request than a callable.
    is_model_file: bool = False
    # The outputs with the states of sequences, which are always returned.
    state_outputs: Sequence[str] = ()
    # For inputs that the model gets in another shape than clients send.
    input_reshapes: Mapping[str, Reshape] | None = None
    output_reshapes: Mapping[str, Reshape] | None = None  # the same for outputs
    ragged_inputs: Collection[str] = ()  # the inputs whose shapes may differ in a batch
    # Whether requests may be executed again, so that no instance may change their inputs.
    keeps_inputs: bool = False
    output_names: tuple[str, ...] = ()  # all outputs that clients may name; empty: not known

    def are_all_wanted(self, wanted: tuple[str, ...] | None) -> bool:
        """Returns whether an instance need not be told which outputs a request names.

        Official clients name all of them, in the order of the configuration.
        """
        return wanted is None or (wanted == self.output_names and not self.state_outputs)

    def returned_outputs(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the outputs that an instance returns to a request whose client wants these."""
        if not self.state_outputs:
            return wanted
        return tuple(dict.fromkeys((*wanted, *self.state_outputs)))
