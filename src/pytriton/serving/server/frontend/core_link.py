# SPDX-License-Identifier: Apache-2.0
"""A front end's connection to the core: sends requests and passes replies to their sinks.

Everything that is sent in one iteration of the event loop is gathered in few messages, because the
core's work per message is larger than its work per request.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton.base.errors import (
    CancelledError,
    ServerError,
    error_for_clients,
    error_from_code,
)
from pytriton.base.messages import InferResponse, ResponseBurst
from pytriton.runtime.executor.batch_tensors import make_tensor, split_rows
from pytriton.runtime.executor.inference import Outcome
from pytriton.runtime.transport.arena import MemoryTrimmer
from pytriton.runtime.transport.credit import is_grant_due
from pytriton.runtime.transport.frontend_frames import (
    CoreQuestion,
    Flow,
    QuestionReply,
    Replies,
    Submit,
    SubmitItem,
)
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.loop_spinner import (
    DEVICE_SPIN_NS,
    SPIN_NS,
    SpinPolicy,
    make_spinner,
)
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import TensorRef
from pytriton.serving.engine.batch_start import EarliestTimer
from pytriton.serving.engine.delivery import deliver, deliver_burst, dispatch_error, refuse
from pytriton.serving.server.frontend.chunks import ChunkSender
from pytriton.serving.server.frontend.records import packed

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from pytriton.base.messages import RequestCost
    from pytriton.runtime.executor.inference import Inference
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frames import Frame
    from pytriton.runtime.transport.frontend_frames import ChunkItem, DefineSignature, ReplyItem
    from pytriton.serving.server.frontend.remote_client import RemoteModel

_Answer = TypeVar("_Answer")

# A message is sent before the end of the iteration if it has this number of requests or of bytes.
_MAX_ITEMS = 128
_MAX_BYTES = 48 << 10

_MAX_WAIT_NS = 1_000_000  # for answers, after which gathered requests are sent


class CoreLink:
    """The connection of one front end to the core.

    Requests that are submitted end exactly once: by a reply, or with an error if they could not be
    sent. `on_frame` gets all messages that are not replies, and `on_lost` is called when the core
    has ended. `resubmit` looks up the model of a request again, `turn_away` refuses one.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        *,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[Exception], None],
        resubmit: Callable[[Inference], None],
        turn_away: Callable[[Inference, ServerError, RemoteModel], None],
    ) -> None:
        self._turn_away = turn_away
        self.memory = MemoryTrimmer(loop)
        self._thread = threading.get_ident()
        self._loop = loop
        self._on_frame = on_frame
        self._resubmit = resubmit
        self._channel = LoopChannel(
            MemoryChannel(sock, self.memory.arena),
            loop,
            self.memory,
            "the core",
            on_message=self._on_message,
            on_lost=on_lost,
        )
        self._channel.reads_ahead = True
        # Waking a process that sleeps costs the core time: polling gave a quarter more requests
        # with 4 front ends on 16 cores, a twentieth more with 8.
        self._spinner = make_spinner(loop, short_ns=0)
        self._spin_policy = SpinPolicy()
        self._request_policy = SpinPolicy()  # after the answer to a lone request with GPU memory
        self._spin_ns = SPIN_NS
        self._next_call = 1
        self._calls: dict[int, Inference] = {}
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._items: list[SubmitItem] = []
        self._chunk_items: list[ChunkItem] = []
        self._chunks = ChunkSender(self._define, self._submit_again)
        self._cancelled_members: list[tuple[int, int]] = []
        self._payload: Payload | None = None
        self._bytes = 0
        self._cancelled: list[int] = []
        self._consumed: dict[int, int] = {}
        self._is_flush_due = False
        self._after_answers: dict[Callable[[], None], None] = {}
        self._wait_until_ns = 0
        self._wait_timer = EarliestTimer(loop, self._on_wait_timer)

    def start(self) -> None:
        self._channel.start()

    def close(self) -> None:
        self._wait_timer.cancel()
        self._channel.close()
        self.memory.stop()

    def send(self, frame: Frame) -> None:
        """Send a message now, after the gathered requests."""
        self.flush()
        if self._channel.is_open:
            self._channel.send(frame)

    def send_from_any_thread(self, frame: Frame) -> None:
        """Send a message, from a thread that may not be the event loop's."""
        # Log records come from threads, too; the channel belongs to the event loop.
        if threading.get_ident() == self._thread:
            self.send(frame)
        else:
            self._loop.call_soon_threadsafe(self.send, frame)

    def take_descriptors(self, count: int) -> list[int]:
        """Returns the descriptors that came with the message that is being processed."""
        return self._channel.channel.take_descriptors(count)

    def limit_memory(self, limit_bytes: int) -> None:
        """Limit the shared memory that this process allocates."""
        self.memory.limit(limit_bytes)

    # Requests

    def submit(self, model: RemoteModel, inference: Inference) -> None:
        """Send a request at the end of this iteration; raises UnavailableError without memory."""
        request = inference.request
        # A cancelled request may have ended its sequence: the core has to hear of that first.
        if request.fields.correlation_id:
            self._send_cancellations()
        payload = self._payload
        if payload is None:
            payload = self._payload = self._channel.payload()
        refs = []
        device = request.device
        try:
            for tensor in request.inputs.values():
                size = len(tensor.data)
                block, offset = 0, 0
                if device is None or tensor.name not in device.inputs:
                    block, offset = payload.add((tensor.data,), size)
                    self._bytes += size if not block else 0
                refs.append(
                    TensorRef(tensor.name, tensor.dtype.number, tensor.shape, offset, size, block)
                )
        except ServerError:
            self._flush_soon()  # which frees the memory of the other tensors
            raise
        call = self._next_call
        self._next_call += 1
        # The number of the call is in the handle, so that cancelling needs no search.
        inference.batch_id = call
        self._calls[call] = inference
        group = request.group
        item = SubmitItem(
            call,
            model.number,
            refs,
            request.rows,
            request.received_ns,
            request.fields,
            request.batch_key,
            request.outputs,
            request.model_version,
            request.path,
            request.operation,
            device,
            None if group is None else (group.number, group.count, group.size),
        )
        if inference.trace is not None:
            inference.trace.sent(item, inference.index)
        self._items.append(item)
        if device is None:
            self._flush_when_due()
        else:
            self.flush()  # such requests do not come in crowds, and gain nothing by company

    def submit_chunk(self, model: RemoteModel, members: Sequence[Inference]) -> None:
        """Send small requests at the end of this iteration of the event loop."""
        spec = model.spec
        # Requests of one model must not overtake one another if it keeps their order.
        if self._items and (spec.is_ordered or spec.sequence is not None):
            self._send_items()  # the core submits the chunks of a message first
        if spec.sequence is not None:
            self._send_cancellations()
        call = self._next_call
        self._next_call += 1
        payload = self._payload
        if payload is None:
            payload = self._payload = self._channel.payload()
        try:
            item, size = self._chunks.make_item(call, model, members, payload)
        except Exception as failure:  # noqa: BLE001  for example there is no memory
            error = error_for_clients(failure, "it sent requests to the core")
            self._flush_soon()
            for member in members:
                self._turn_away(member, error, model)
            return
        self._chunk_items.append(item)
        self._bytes += size
        self._flush_when_due()

    def _define(self, frame: DefineSignature) -> None:
        self._channel.send(frame)

    def _flush_when_due(self) -> None:
        count = len(self._items) + len(self._chunk_items)
        if count >= _MAX_ITEMS or self._bytes >= _MAX_BYTES:
            self._send_items()
        else:
            self._flush_soon()

    def cancel(self, inference: Inference) -> None:
        """Tell the core that nobody waits for a request; its end is still reported."""
        if inference.is_cancelled:
            return
        inference.is_cancelled = True
        if inference.chunk is None:
            self._cancelled.append(inference.batch_id)
        # A chunk that was answered has no place: the end of the request is on its way.
        elif (place := self._chunks.place_of(inference)) is not None:
            self._cancelled_members.append(place)
        self._flush_soon()

    def pause(self, inference: Inference) -> None:
        """Report no more responses as consumed: the client reads slowly."""
        inference.is_paused = True

    def resume(self, inference: Inference) -> None:
        """Report consumed responses again."""
        inference.is_paused = False
        self._report_consumed(inference)

    def _report_consumed(self, inference: Inference) -> None:
        # While the client reads slowly, no credit goes back, and the model pauses in the core.
        if inference.taken_count and not inference.is_paused:
            call = inference.batch_id
            self._consumed[call] = self._consumed.get(call, 0) + inference.taken_count
            inference.taken_count = 0
            self._flush_soon()

    @property
    def is_behind(self) -> bool:
        """Whether the core has not read the last message yet."""
        return self._channel.channel.has_unread

    def call_after_answers(self, callback: Callable[[], None]) -> None:
        """Call back once the next answers were passed on, or after a millisecond."""
        if not self._after_answers:
            self._wait_until_ns = time.monotonic_ns() + _MAX_WAIT_NS
            self._wait_timer.set(self._wait_until_ns)
        self._after_answers[callback] = None

    def _end_wait(self) -> None:
        callbacks, self._after_answers = self._after_answers, {}
        for callback in callbacks:
            callback()

    def _on_wait_timer(self) -> None:
        # The timer of a wait that answers have ended goes on and is set again here, so that there
        # is one timer in a millisecond and not one for each wait.
        if not self._after_answers:
            return
        if time.monotonic_ns() < self._wait_until_ns:
            self._wait_timer.set(self._wait_until_ns)
        else:
            self._end_wait()

    # Questions

    def ask(self, method: str, **arguments: Any) -> asyncio.Future[_Answer]:
        """Call a method of the core's client; the future may get a ServerError."""
        call = self._next_call
        self._next_call += 1
        answer: asyncio.Future[Any] = self._loop.create_future()
        self.send(CoreQuestion(call, method, packed(arguments)))
        self._questions[call] = answer
        return answer

    def _on_question_reply(self, frame: QuestionReply) -> None:
        answer = self._questions.pop(frame.call)
        # The core does not hear of that: a load goes on, as over HTTP in one process.
        if answer.done():  # the client has disconnected
            return
        if frame.error is not None:
            answer.set_exception(error_from_code(frame.error_code, frame.error))
        else:
            answer.set_result(frame.value)

    # Sending

    def _flush_soon(self) -> None:
        # The callback runs after all reads of this iteration: their requests share a message.
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send the gathered requests, cancellations and credit."""
        self._is_flush_due = False
        if self._items or self._chunk_items:
            self._send_items()
        self._payload = None  # of a request for which there was not enough memory
        if self._cancelled or self._consumed or self._cancelled_members:
            cancelled, self._cancelled = self._cancelled, []
            consumed, self._consumed = self._consumed, {}
            members, self._cancelled_members = self._cancelled_members, []
            self._channel.send(Flow(cancelled, consumed, members))

    def _send_cancellations(self) -> None:
        """Send them before a request of a sequence, which one of them may have ended."""
        if self._cancelled or self._cancelled_members:
            self.flush()

    def _send_items(self) -> None:
        items, self._items = self._items, []
        chunks, self._chunk_items = self._chunk_items, []
        # A payload belongs to one message: the next request begins a new one.
        payload, self._payload = self._payload, None
        self._bytes = 0
        if self._spinner is not None:
            is_device = len(items) == 1 and items[0].device is not None
            self._spin_ns = DEVICE_SPIN_NS if is_device else SPIN_NS
            self._spinner.spin_soon(self._spin_policy, self._spin_ns)
        frame = Submit(items, chunks)
        try:
            self._channel.send(frame, payload)
        except Exception as error:  # noqa: BLE001  for example no memory for a long message
            for item in items:
                self._fail(item.call, error)
            for chunk in chunks:
                self._chunks.fail(chunk.call, dispatch_error("", error))

    def _fail(self, call: int, error: Exception) -> None:
        inference = self._calls.pop(call)
        failure = dispatch_error(inference.request.model_name, error)
        deliver(inference, Outcome(0, None, failure))

    # Receiving

    def _on_message(self, received: Received) -> None:
        frame = received.frame
        if isinstance(frame, Replies):
            # More replies are expected soon: polling is cheaper than sleeping and being woken.
            if self._spinner is not None and (self._calls or len(self._chunks)):
                policy = self._spin_policy
                if self._spin_ns == DEVICE_SPIN_NS and len(self._calls) == 1:
                    policy = self._request_policy  # what comes next is of the client
                self._spinner.spin_soon(policy, self._spin_ns)
            for rows in frame.rows:
                self._chunks.on_rows(received, rows)
            for item in frame.items:
                if item.cost is not None:
                    self._note_cost(item, item.cost)
                self._on_reply(received, item)
            if self._after_answers:
                # Later, because the clients get their answers first.
                self._loop.call_soon(self._end_wait)
        elif isinstance(frame, QuestionReply):
            self._on_question_reply(frame)
        else:
            self._on_frame(frame)

    def _note_cost(self, item: ReplyItem, cost: RequestCost) -> None:
        """Note what a request that is about to end has cost."""
        if item.index >= 0:
            self._chunks.note_cost(item, cost)
            return
        inference = self._calls.get(item.call)
        if inference is not None and inference.trace is not None:
            inference.trace.charged(inference.index, inference.index + 1, cost)

    def _on_reply(self, received: Received, item: ReplyItem) -> None:
        calls = self._calls
        # Members of chunks have an index; a chunk that is outdated as a whole has none.
        if item.index >= 0 or (item.is_outdated and item.call not in calls):
            self._on_chunk_reply(received, item)
            return
        inference = calls.pop(item.call, None) if item.is_final else calls.get(item.call)
        # A response that cannot be read here has ended the request for its client, not for the
        # core.
        if inference is None:  # it ended here because a response could not be sent
            if not item.is_final:
                self._cancelled.append(item.call)
                self._flush_soon()
            return
        if item.is_outdated:
            self._submit_again(inference)
            return
        if item.burst:
            self._on_burst(received, item, inference)
            return
        error = response = None
        if item.error is not None:
            error = error_from_code(item.error_code, item.error, retry_after_s=item.retry_after_s)
            if item.is_refused:
                refuse(inference, error)
                return
        elif item.outputs is not None:
            response, error = _response(received, item, item.outputs, inference)
        deliver(inference, Outcome(0, response, error, item.is_final))
        if not item.is_final:
            self._count_taken(inference, 1, sum(ref.size for ref in item.outputs or ()))

    def _on_burst(self, received: Received, item: ReplyItem, inference: Inference) -> None:
        model: Any = inference.owner
        try:
            (outputs,) = split_rows(received, item.outputs or (), [item.burst])
        except Exception as failure:  # noqa: BLE001  the client gets it
            error = error_for_clients(failure, "it read responses of the core")
            for _ in range(item.burst):
                deliver(inference, Outcome(0, None, error, is_final=False))
        else:
            name, version = model.spec.name, model.version_text
            request_id = inference.request.fields.id
            deliver_burst(inference, ResponseBurst(name, version, request_id, item.burst, outputs))
        self._count_taken(inference, item.burst, 0)

    def _count_taken(self, inference: Inference, count: int, size: int) -> None:
        """Count responses, none of which is larger than `size`, that a sink has taken."""
        inference.taken_count += count
        if inference.is_over or is_grant_due(inference.taken_count, size):
            self._report_consumed(inference)

    def _on_chunk_reply(self, received: Received, item: ReplyItem) -> None:
        response = error = None
        if item.outputs is not None:
            member = self._chunks.member(item)
            response, error = _response(received, item, item.outputs, member)
        self._chunks.on_reply(item, response, error)

    def _submit_again(self, inference: Inference) -> None:
        """Submit a request again whose model was replaced while the request was on its way."""
        chunk = inference.chunk
        if chunk is not None:  # it becomes a request of its own, with the same handle
            inference.request = chunk.request_of(inference.index)
            inference.sink, inference.chunk = chunk.member_sink(inference.index), None
            inference.trace = chunk.trace
        if inference.trace is not None:
            inference.trace.taken_back(inference.index)
        if inference.is_cancelled:
            deliver(inference, Outcome(0, None, CancelledError("")))
        else:
            inference.owner = None
            self._resubmit(inference)


def _response(
    received: Received, item: ReplyItem, outputs: list[TensorRef], inference: Inference
) -> tuple[InferResponse | None, ServerError | None]:
    """Returns the response, or the error in its place if its tensors cannot be read."""
    model: Any = inference.owner
    try:
        tensors = [make_tensor(received, ref) for ref in outputs]
    except Exception as error:  # noqa: BLE001  the client gets it
        return None, error_for_clients(error, "it read a response of the core")
    name, version = model.spec.name, model.version_text
    return InferResponse(name, version, inference.request.fields.id, tensors, item.parameters), None
