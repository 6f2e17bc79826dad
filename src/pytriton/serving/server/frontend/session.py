# SPDX-License-Identifier: Apache-2.0
"""The core's end of a front end: submits its requests, answers its questions, sends responses."""

from __future__ import annotations

import asyncio
import logging
import select
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pytriton.base.background_tasks import BackgroundTasks
from pytriton.base.dtypes import BY_NUMBER
from pytriton.base.errors import (
    NotFoundError,
    ServerError,
    UnavailableError,
    error_for_clients,
    error_from_code,
    sendable_text,
)
from pytriton.base.messages import (
    DeviceBytes,
    DeviceUse,
    InferRequest,
    InferTensor,
    RequestCost,
    RequestFields,
    RequestPath,
    lone_batch_key,
)
from pytriton.runtime.executor.batch_tensors import make_tensor
from pytriton.runtime.executor.inference import Inference
from pytriton.runtime.transport.credit import CreditWindow
from pytriton.runtime.transport.frontend_frames import (
    AccessRefusals,
    Connections,
    ConnectionsEnded,
    CoreQuestion,
    CredentialFailures,
    DefineSignature,
    Flow,
    KeysWithdrawn,
    LogEntries,
    LogEntry,
    Pong,
    QuestionReply,
    Refusals,
    RegionsTaken,
    RegionUpdate,
    Registry,
    RegistryTaken,
    Submit,
    TraceRefusal,
)
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.refs import TensorRef
from pytriton.serving.engine.client import question, question_of
from pytriton.serving.engine.model_state import VersionState
from pytriton.serving.engine.quotas import RequestGroups
from pytriton.serving.server.frontend.chunks import FrontEndChunks, read_signature
from pytriton.serving.server.frontend.records import as_batch_key, log_entry, unpacked
from pytriton.serving.server.frontend.regions import RegionFeed
from pytriton.serving.server.frontend.reply_outbox import ReplyOutbox
from pytriton.serving.server.process.log_lines import write_lines
from pytriton.serving.server.shared_memory.shared_memory import LocalRegions

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from pytriton.base.messages import InferResponse, ResponseBurst, TraceOrigin
    from pytriton.runtime.executor.columns import ChunkSignature
    from pytriton.runtime.transport.arena import MemoryTrimmer
    from pytriton.runtime.transport.channel import Received
    from pytriton.runtime.transport.frames import Frame
    from pytriton.runtime.transport.frontend_frames import ChunkItem, SubmitItem
    from pytriton.serving.engine.client import Answer
    from pytriton.serving.engine.engine import Engine
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.local_client import LocalClient
    from pytriton.serving.server.frontend.registry_feed import RegistryFeed
    from pytriton.serving.server.tracing.tracing import Tracing

logger = logging.getLogger(__name__)

_PATHS = {int(path): path for path in RequestPath}  # to call the enum takes 1 us
# How long such an answer waits at most for all front ends to know the models that it is about: one
# that hangs must not make the server look dead.
_REGISTRY_SYNC_TIMEOUT_S = 1.0


class SharedParts:
    """The parts of the core that all sessions use."""

    def __init__(
        self,
        engine: Engine,
        client: LocalClient,
        tracing: Tracing | None,
        registry: RegistryFeed,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        regions: RegionFeed | None = None,
    ) -> None:
        self.engine = engine
        self.client = client
        self.tracing = tracing
        self.registry = registry
        self.regions = RegionFeed(LocalRegions(), loop) if regions is None else regions
        # Those whose methods front ends may ask, by the names of their classes.
        self.answering = {
            type(each).__name__: each for each in (client, self.regions.regions, self)
        }
        self.memory = memory
        self.loop = loop
        self.tasks = BackgroundTasks(loop)  # a load continues if the front end has ended

    @question()
    def check_model(self, number: int) -> Answer[bool]:
        """Returns the result of a model's own readiness check."""
        model = self.registry.models.get(number)
        if model is None:
            raise NotFoundError("the model was unloaded")
        return model.check_ready()


class FrontEndSession:
    """The connection to one front end, and its requests.

    `on_event` gets messages about connections and answers to pings; `on_lost` is called once.
    """

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        shared: SharedParts,
        *,
        on_event: Callable[[Frame], None],
        on_lost: Callable[[Exception], None],
    ) -> None:
        self.known_models: set[int] = set()
        self.taken_epoch = 0
        self._name = name
        self._shared = shared
        self._on_event = on_event
        self._on_lost = on_lost
        self._requests: dict[int, FrontEndRequest] = {}
        self._signatures: dict[int, tuple[int, ChunkSignature]] = {}  # with the model's number
        self._groups = RequestGroups()
        self._handlers: dict[type, Callable[[Received, Any], None]] = {
            Submit: self._on_submit,
            Flow: self._on_flow,
            CoreQuestion: self._on_question,
            DefineSignature: self._on_signature,
            RegistryTaken: self._on_registry_taken,
            RegionsTaken: self._on_regions_taken,
            Connections: self._on_pool_event,
            ConnectionsEnded: self._on_pool_event,
            Pong: self._on_pool_event,
            AccessRefusals: self._on_pool_event,
            CredentialFailures: self._on_pool_event,
            KeysWithdrawn: self._on_pool_event,
            LogEntries: self._on_log_entries,
            LogEntry: self._on_log_entry,
            TraceRefusal: self._on_trace_refusal,
            Refusals: self._on_refusals,
        }
        self._channel = LoopChannel(
            MemoryChannel(sock, shared.memory.arena, to_front_end=True),
            shared.loop,
            shared.memory,
            name,
            on_message=self._on_message,
            on_lost=self._end,
        )
        self._channel.reads_ahead = True
        self.outbox = ReplyOutbox(self._channel, shared.loop)
        self._chunks = FrontEndChunks(self.outbox, shared.engine.observers)

    def start(self, first: Frame) -> None:
        """Send the first message and the registry, and start to read."""
        self._channel.start()
        self._channel.send(first)
        # Both feeds count what a front end has taken, so that changes can be waited for.
        self._shared.regions.add(self)  # first: it serves clients when it has the registry
        self._shared.registry.add(self)

    def send(self, frame: Frame) -> None:
        """Send a message now, after the replies that wait."""
        self.outbox.flush()
        if self._channel.is_open:
            self._channel.send(frame)

    def send_regions(self, frame: RegionUpdate, descriptors: Sequence[int]) -> None:
        """Send a change of regions, with the descriptors of those that were added."""
        self.outbox.flush()
        if self._channel.is_open:
            payload = self._channel.payload()
            payload.descriptors.extend(descriptors)
            self._channel.send(frame, payload)

    def send_registry(self, frame: Registry) -> None:
        """Send a registry, and forget the signatures of models that are gone."""
        self.send(frame)
        known = self.known_models
        # Their chunks are outdated anyway; without this, signatures of replaced models would stay.
        self._signatures = {
            number: (model, signature)
            for number, (model, signature) in self._signatures.items()
            if model in known
        }

    def close(self) -> None:
        """Close the connection, and cancel all requests of the front end."""
        if not self._channel.is_open:
            return
        self._channel.close()
        self.outbox.close()
        self._shared.registry.remove(self)
        self._shared.regions.remove(self)
        # Cancelling delivers ends, which the outbox drops, as it is closed.
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.cancel()
        self._chunks.cancel_all()

    @property
    def request_count(self) -> int:
        """The number of requests and of chunks without a final reply."""
        return len(self._requests) + len(self._chunks)

    @property
    def has_unread(self) -> bool:
        """Whether the front end has sent something that was not read yet."""
        channel = self._channel.channel
        # The loop reads sockets only between callbacks; this looks without reading.
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLIN)
        return channel.has_message or bool(poll.poll(0))

    def __repr__(self) -> str:
        return f"<FrontEndSession {self._name} requests={len(self._requests)}>"

    def _end(self, error: Exception) -> None:
        self.close()
        self._on_lost(error)

    # Messages

    def _on_message(self, received: Received) -> None:
        # The order of messages is the order of requests: nothing here waits.
        handler = self._handlers.get(type(received.frame))
        if handler is not None:  # other messages only release memory
            handler(received, received.frame)

    def _on_submit(self, received: Received, frame: Submit) -> None:
        # Chunks first: a front end relies on that order (see `CoreLink.submit_chunk`).
        for chunk in frame.chunks:
            self._submit_chunk(received, chunk)
        for item in frame.items:
            self._submit(received, item)

    def _on_registry_taken(self, received: Received, frame: RegistryTaken) -> None:
        self.taken_epoch = frame.epoch
        self._shared.registry.on_taken()
        self._on_event(frame)

    def _on_regions_taken(self, received: Received, frame: RegionsTaken) -> None:
        self._shared.regions.on_taken(self, frame.number)

    def _on_signature(self, received: Received, frame: DefineSignature) -> None:
        # The front end frees a signature when its last chunk is answered, so no chunk refers to it.
        for number in frame.forgotten:
            self._signatures.pop(number, None)  # None: its model is gone
        self._signatures[frame.number] = (frame.model, read_signature(frame))

    def _on_log_entry(self, received: Received, frame: LogEntry) -> None:
        log_entry(frame)

    def _on_log_entries(self, received: Received, frame: LogEntries) -> None:
        write_lines(frame.entries)

    def _on_pool_event(
        self,
        received: Received,
        frame: Connections
        | ConnectionsEnded
        | Pong
        | AccessRefusals
        | CredentialFailures
        | KeysWithdrawn,
    ) -> None:
        self._on_event(frame)

    def _submit(self, received: Received, item: SubmitItem) -> None:
        shared = self._shared
        model = shared.registry.models.get(item.model)
        sink = FrontEndRequest(self, item.call)
        if shared.engine.is_exiting:
            self._refuse(sink, item, model, UnavailableError("Server exiting"))
            return
        if model is None or model.state is not VersionState.READY:
            # The model was replaced while the request was on its way. The front end looks it up
            # again.
            shared.registry.push()  # first, so that the front end finds the current model
            self.outbox.add_outdated(item.call)
            return
        try:
            request = read_request(received, item, model)
            if item.group is not None:
                request.group = self._groups.take(*item.group)
        except Exception as error:  # noqa: BLE001  the client gets it
            reason = error_for_clients(error, f"it read a request of {self._name}")
            self._refuse(sink, item, model, reason)
            return
        self._requests[item.call] = sink
        # The front end has validated the request: its model only queues it.
        inference = sink.inference = Inference(request, sink, None, model)
        try:
            self._queue(item, inference, sink, model)
        except Exception as error:  # noqa: BLE001  the client gets it
            reason = error_for_clients(error, f"it queued a request of {self._name}")
            shared.engine.turn_away(inference, reason, model)

    def _queue(
        self, item: SubmitItem, inference: Inference, sink: FrontEndRequest, model: ServedModel
    ) -> None:
        """Let all who observe requests know of one, and give it to its model."""
        shared = self._shared
        sink.is_lone = item.device is not None
        if shared.engine.observers.are_there:
            sink.observe(item)
            shared.engine.observers.begin(inference, model)
        now_ns = time.monotonic_ns()
        if model.quotas is not None:
            model.quotas.admit(inference, now_ns)
        # One with GPU memory shares no batch, so that it waits for no others.
        model.submit(inference, now_ns, is_alone=sink.is_lone)

    def _refuse(
        self,
        sink: FrontEndRequest,
        item: SubmitItem,
        model: ServedModel | None,
        error: ServerError,
    ) -> None:
        """Refuse a request that cannot be read."""
        name = "" if model is None else model.spec.identifier
        self._shared.engine.report_refusal(name, item.model_version, item.fields.id, error)
        sink.on_refused(error)

    def _on_trace_refusal(self, received: Received, frame: TraceRefusal) -> None:
        """Record the trace of a request that the front end has refused."""
        tracing = self._shared.tracing
        model = self._shared.engine.find(frame.model_name, str(frame.version))
        if tracing is None or model is None:
            return
        fields = RequestFields(frame.id)
        request = InferRequest(frame.model_name, {}, "", fields, received_ns=frame.received_ns)
        error = error_from_code(frame.error_code, frame.error)
        tracing.refused(request, model.spec, frame.origin, error)

    def _on_refusals(self, received: Received, frame: Refusals) -> None:
        self._shared.engine.add_refusals(frame.groups)

    def _submit_chunk(self, received: Received, item: ChunkItem) -> None:
        shared = self._shared
        number, signature = self._signatures.get(item.signature, (0, None))
        model = shared.registry.models.get(number)
        # A front end that hears that its model is outdated looks it up again, and refuses the
        # requests itself if the server is exiting.
        if (
            model is None
            or signature is None
            or model.state is not VersionState.READY
            or shared.engine.is_exiting
        ):
            shared.registry.push()
            self.outbox.add_outdated(item.call)
            return
        try:
            self._chunks.submit(received, item, signature, model)
        except Exception as error:  # noqa: BLE001  the clients get it
            reason = error_for_clients(error, f"it read requests of {self._name}")
            for index in range(item.count):
                self.outbox.add_error(item.call, reason, is_refused=True, index=index)

    def _on_flow(self, received: Received, frame: Flow) -> None:
        for call in frame.cancelled:
            request = self._requests.get(call)
            if request is not None:
                request.cancel()
        # A request may have ended while its cancellation was on the way: then nothing is found.
        for call, index in frame.cancelled_members:
            self._chunks.cancel(call, index)
        for call, count in frame.consumed.items():
            request = self._requests.get(call)
            if request is not None:
                request.on_consumed(count)

    def end_request(self, call: int) -> None:
        """Forget a request that has its final reply."""
        self._requests.pop(call, None)

    # Questions

    def _on_question(self, received: Received, frame: CoreQuestion) -> None:
        try:
            answer = self._ask(frame.method, unpacked(frame.arguments))
        except Exception as error:  # noqa: BLE001  the front end gets it
            self._reply_error(frame, error)
            return
        if isinstance(answer, Coroutine):
            self._shared.tasks.start(self._answer_later(frame, answer))
        else:
            self._reply(frame, answer)

    def _reply(self, frame: CoreQuestion, value: Any) -> None:
        try:
            self.send(QuestionReply(frame.call, value))
        except Exception as error:  # noqa: BLE001  for example no memory for a long index
            self._reply_error(frame, error)

    def _ask(self, method: str, arguments: dict[str, Any]) -> Any:
        owner, _, name = method.partition(".")
        answering = self._shared.answering[owner]
        # Front ends run the same code as the core: another method is an error in ours.
        rules = question_of(getattr(type(answering), name))
        answer = getattr(answering, name)(**arguments)
        # Another front end may get the next request of this client: it has to know the model by
        # then.
        if rules.tells_readiness and not self._shared.registry.is_settled:
            return self._when_known(answer)
        return answer

    async def _when_known(self, answer: Any) -> Any:
        value = await answer if isinstance(answer, Coroutine) else answer
        await self._shared.registry.settled_within(_REGISTRY_SYNC_TIMEOUT_S)
        return value

    async def _answer_later(self, frame: CoreQuestion, answer: Coroutine[Any, Any, Any]) -> None:
        try:
            value = await answer
        except Exception as error:  # noqa: BLE001  the front end gets it
            self._reply_error(frame, error)
        else:
            self._reply(frame, value)

    def _reply_error(self, frame: CoreQuestion, error: Exception) -> None:
        error = error_for_clients(error, f"it answered {frame.method} of {self._name}")
        self.send(QuestionReply(frame.call, None, sendable_text(error.message), int(error.code)))


class FrontEndRequest:
    """One request of a front end: the sink of its responses, with flow control."""

    __slots__ = (
        "_call", "_is_paused", "_origin", "_session", "_window", "costs", "inference", "is_lone"
    )  # fmt: skip

    def __init__(self, session: FrontEndSession, call: int) -> None:
        self.inference: Inference | None = None
        # By the index of the request, which is 0; None: the front end does not want to know them.
        self.costs: dict[int, RequestCost] | None = None
        self.is_lone = False  # its answer does not wait for others
        self._session = session
        self._call = call
        self._window: CreditWindow | None = None  # of a request with several responses
        self._is_paused = False
        self._origin: TraceOrigin | None = None  # None: it is not traced

    def observe(self, item: SubmitItem) -> None:
        """Keep what those who observe it ask for."""
        self._origin = item.trace
        self.costs = {} if item.wants_cost else None

    def origin(self) -> TraceOrigin | None:
        """Returns where it came from; see `Members`."""
        return self._origin

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Send a response; raises ServerError if there is no memory for its tensors."""
        cost = self.costs.get(0) if self.costs and final else None
        size = self._session.outbox.add_response(
            self._call, response, is_final=final, cost=cost, at_once=self.is_lone
        )
        self._count(size, final=final)

    def on_burst(self, burst: ResponseBurst) -> None:
        """Send many responses; raises ServerError if there is no memory for their tensors."""
        self._session.outbox.add_burst(self._call, burst)
        self._spend(burst.sizes())

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        cost = self.costs.get(0) if self.costs and final else None
        self._session.outbox.add_error(self._call, error, is_final=final, cost=cost)
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
        self._spend([size])

    def _spend(self, sizes: list[int]) -> None:
        # Credit runs out with responses that the client has not read; the front end gives it back.
        if self._window is None:
            self._window = CreditWindow()
        self._window.spend_all(sizes)
        if not self._window.is_open and not self._is_paused and self.inference is not None:
            self._is_paused = True
            self.inference.pause()


def read_request(received: Received, item: SubmitItem, model: ServedModel) -> InferRequest:
    device = item.device
    if device is None:
        inputs = {ref.name: make_tensor(received, ref) for ref in item.inputs}
    else:
        inputs = {ref.name: _read_input(received, ref, device) for ref in item.inputs}
    return InferRequest(
        model_name=model.spec.identifier,
        inputs=inputs,
        model_version=item.model_version,
        fields=item.fields,
        outputs=item.outputs,
        received_ns=item.received_ns,
        operation=item.operation,
        rows=item.rows,
        batch_key=as_batch_key(item.batch_key) if device is None else lone_batch_key(),
        path=_PATHS[item.path],
        device=device,
    )


def _read_input(received: Received, ref: TensorRef, device: DeviceUse) -> InferTensor:
    if ref.name in device.inputs:
        data = DeviceBytes.of_size(ref.size)
        return InferTensor(ref.name, BY_NUMBER[ref.dtype], ref.shape, data)
    return make_tensor(received, ref)
