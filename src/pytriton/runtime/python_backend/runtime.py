# SPDX-License-Identifier: Apache-2.0
"""The environment of a model in a worker process: calls of other models, services, and the log."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytriton.base.device_copies import CopyReason
from pytriton.base.errors import ErrorCode, ServerError, sendable_text
from pytriton.base.failure_log import Failure, FailureLog, model_label
from pytriton.base.log_switches import JSON_FORMAT, LogSwitches
from pytriton.base.messages import DeviceWish
from pytriton.base.request_ids import current_request_ids, set_request_ids
from pytriton.base.user_frames import short_traceback
from pytriton.runtime.backend.connection import ServerConnection
from pytriton.runtime.backend.failure_text import RuleError, describe_fully, raised_at
from pytriton.runtime.backend.mailbox import MessageInbox, Waiter
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.response import InferenceResponse, TritonError
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.answers import add_tensor
from pytriton.runtime.python_backend.device_tensors import exports_of
from pytriton.runtime.python_backend.output import LabelledStream
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import (
    CallCredit,
    CancelCall,
    InferCallFrame,
    InferReply,
    ServiceCall,
    WorkerLogLine,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from pytriton.runtime.pb_utils.memory import PreferredMemory
    from pytriton.runtime.pb_utils.request import InferenceRequest
    from pytriton.runtime.pb_utils.runtime import InferenceCall
    from pytriton.runtime.python_backend.device_tensors import DeviceTensors
    from pytriton.runtime.transport.channel import Payload, Received
    from pytriton.runtime.transport.frames import LogChange

# Credit is sent for this number of consumed responses, a fraction of the server's window.
_CREDIT_STEP = RESPONSE_WINDOW // 4
_ALL = LogSwitches(verbose=1)
_ANY_DEVICE = DeviceWish()
_TAKING_S = 1.0  # how long it counts what the server says of models and GPU memory
_LEVELS = {
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "VERBOSE": logging.DEBUG,
}
# The batch for whose `execute` the current code runs. Tasks inherit it, and so do
# `asyncio.to_thread` and the default executor of the instance's loop; other threads of a model have
# none.
_batch: ContextVar[int] = ContextVar("pytriton_batch", default=0)


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """The batch whose `execute` makes a call, and the blocked threads; see `InferCallFrame`."""

    batch: int = 0
    blocked_batch: int = 0
    blocks_loop: bool = False


class BlsCall(MessageInbox):
    """A running call of another model."""

    __slots__ = (
        "_connection", "_device", "_is_abandoned", "_is_decoupled", "_number", "_on_failure",
        "_preferred", "_uncredited", "_wake", "is_over",
    )  # fmt: skip

    def __init__(
        self,
        connection: ServerConnection,
        *,
        is_decoupled: bool,
        device: DeviceTensors | None = None,
        preferred: PreferredMemory | None = None,
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        super().__init__()
        self._on_failure = on_failure  # called with each error that is received
        self._device = device  # None: this process does not use GPU memory of others
        self._preferred = preferred
        self.is_over = False
        self._connection = connection
        self._is_decoupled = is_decoupled
        self._is_abandoned = False
        self._uncredited = 0
        self._wake: Callable[[], None] | None = None
        self._number = connection.open_call(self)

    def start(
        self, request: InferenceRequest, origin: CallOrigin, inputs: Sequence[Tensor] | None = None
    ) -> None:
        """Send the request; raises ServerError if there is no memory for its tensors.

        `inputs` are those of the request, some of which stay in GPU memory; None: none does.
        """
        try:
            self._connection.outbox.send(functools.partial(self._frame, request, origin, inputs))
        except BaseException:
            self._connection.close_call(self._number)
            if inputs is not None and self._device is not None:
                self._device.take_back(inputs)
            raise

    def receive(self) -> InferenceResponse | None:
        """Wait for the next response; None after the last one."""
        if self.is_over:
            return None
        received = self._connection.receive(self)
        reply = received.frame
        assert isinstance(reply, InferReply)
        if reply.is_final:
            self._end()
        else:
            self._credit()
        if reply.error is not None and self._on_failure is not None:
            self._on_failure()
        response = _response(received, reply, self._device)
        if self._preferred is not None and self._device is not None:
            return self._device.moved(response, self._preferred)
        return response

    def notify(self, wake: Callable[[], None]) -> None:
        """Call `wake` once there is a response, or the connection to the server has ended."""
        self._connection.loop_reader.add(self)
        self._wake = wake
        if self.messages or self.is_over or self._connection.mailbox.is_over:
            self.on_delivered()

    def on_delivered(self) -> None:
        """Call the callback of `notify`, at most once."""
        wake, self._wake = self._wake, None
        if wake is not None:
            self._connection.loop_reader.remove(self)
            wake()

    def cancel(self) -> None:
        """Cancel the request; its end is still received."""
        if not self.is_over:
            self._connection.outbox.post(CancelCall(self._number))

    def abandon(self) -> None:
        """Drop all further responses. Takes no lock, because a finalizer may call this."""
        self._is_abandoned = True
        self._wake = None
        self._connection.loop_reader.remove(self)
        self._drop_all()

    def put(self, received: Received) -> Waiter:
        """Store a reply for `receive`."""
        self.messages.append(received)
        if self._is_abandoned:  # checked last, because another thread may set it meanwhile
            self._drop_all()
        return self

    def _drop_all(self) -> None:
        with contextlib.suppress(IndexError):  # two threads may do this
            while True:
                reply = self.messages.popleft().frame
                assert isinstance(reply, InferReply)
                if reply.device is not None and self._device is not None:
                    self._device.end_unopened(reply.device.values())
                if reply.is_final:
                    self._end()
                else:
                    self._credit()

    def _credit(self) -> None:
        self._uncredited += 1
        if self._uncredited >= _CREDIT_STEP and self._is_decoupled:
            self._connection.outbox.post(CallCredit(self._number, self._uncredited))
            self._uncredited = 0

    def _end(self) -> None:
        self.is_over = True
        self._connection.close_call(self._number)

    def _frame(
        self,
        request: InferenceRequest,
        origin: CallOrigin,
        inputs: Sequence[Tensor] | None,
        payload: Payload,
    ) -> InferCallFrame:
        tensors = request.inputs() if inputs is None else inputs
        return InferCallFrame(
            self._number,
            request.model_name,
            request.model_version,
            [add_tensor(payload, tensor) for tensor in tensors],
            list(request.output_names),
            request.request_id(),
            request.correlation_id(),
            request.flags(),
            request.timeout(),
            request.parameter_values or {},
            self._is_decoupled,
            origin.blocked_batch,
            request.trace_context,
            batch=origin.batch,
            blocks_loop=origin.blocks_loop,
            device={} if inputs is None else exports_of(inputs) or {},
            device_wish=self._wish(),
        )

    def _wish(self) -> DeviceWish | None:
        if self._device is None:
            return None
        is_host = self._preferred is not None and self._preferred.is_host
        return None if is_host else _ANY_DEVICE


class SharingCall:
    """A call with inputs in GPU memory, which is repeated if the called model cannot open it.

    `repeat` starts it again with inputs on the host; it returns None if that is not the reason.
    """

    def __init__(self, call: InferenceCall, repeat: Callable[[], InferenceCall | None]) -> None:
        self.is_over = False
        self._call = call
        self._repeat: Callable[[], InferenceCall | None] | None = repeat

    def receive(self) -> InferenceResponse | None:
        """See `InferenceCall`."""
        response = self._call.receive()
        repeat, self._repeat = self._repeat, None
        if repeat is not None and response is not None and response.has_error():
            call = repeat()
            if call is not None:
                self._call = call
                response = call.receive()
        self.is_over = self._call.is_over
        return response

    def notify(self, wake: Callable[[], None]) -> None:
        """See `InferenceCall`."""
        self._call.notify(wake)

    def cancel(self) -> None:
        """See `InferenceCall`."""
        self._call.cancel()

    def abandon(self) -> None:
        """See `InferenceCall`."""
        self._call.abandon()


class UnsentCall:
    """A call that could not be sent; its only response is the error."""

    def __init__(self, request: InferenceRequest, error: ServerError) -> None:
        self.is_over = False
        text = f"Model {request.model_name} - Error when running inference: {error.message}"
        self._response = InferenceResponse.received([], TritonError(text, error.code), None)

    def receive(self) -> InferenceResponse | None:
        """Returns the only response, then None."""
        if self.is_over:
            return None
        self.is_over = True
        return self._response

    def notify(self, wake: Callable[[], None]) -> None:
        """Call `wake` at once: the response is there."""
        wake()

    def cancel(self) -> None:
        """Do nothing: there is no request."""

    def abandon(self) -> None:
        """Do nothing: there are no further responses."""


def _response(
    received: Received, reply: InferReply, device: DeviceTensors | None
) -> InferenceResponse:
    failure = None
    places = reply.device or {}
    if reply.error is not None:
        failure = TritonError(reply.error, ErrorCode(reply.error_code))
    tensors: list[Tensor] = []
    try:
        tensors = [
            device.output(ref, places[ref.name])
            if device is not None and ref.name in places
            else Tensor.from_array(ref.name, received.array(ref))
            for ref in reply.outputs or ()
        ]
    except ServerError as error:  # there was no room for them, or GPU memory cannot be opened
        failure = TritonError(error.message, error.code)
        if device is not None:
            device.end_unopened(places.values())
    return InferenceResponse.received(tensors, failure, reply.parameters)


def worker_label(arguments: Mapping[str, str], instance_name: str) -> str:
    """Returns what the log calls the model of a worker."""
    name = arguments.get("model_name")
    if not name:
        return f"model '{instance_name}'"
    try:
        groups = json.loads(arguments.get("model_config", "{}")).get("instance_group", [])
        count = sum(int(group.get("count", 1)) for group in groups)
    except (ValueError, AttributeError, TypeError):  # a configuration of its own kind
        count = 1
    number = instance_name.rpartition("_")[2]
    instance = int(number) if number.isdecimal() else 0
    return model_label(name, arguments.get("model_version", "1"), instance, count)


class WorkerRuntime:
    """Connects the model of this process, and processes that it forks, to the server."""

    def __init__(
        self,
        connection: ServerConnection,
        fork_socket: socket.socket | None,
        *,
        instance_name: str,
        arguments: Mapping[str, str] | None = None,
        model_directory: str,
        backend_config: Mapping[str, str] | None = None,
        switches: LogSwitches | None = None,
    ) -> None:
        self.instance_name = instance_name
        self._model_name = (arguments or {}).get("model_name", instance_name)
        self.label = worker_label(arguments or {}, instance_name)  # of the model, in the log
        self.failures = FailureLog(self._write_failure)
        self.model_directory = model_directory
        self.backend_config = backend_config or {}
        self._use(_ALL if switches is None else switches)
        self.can_infer = False  # True from the end of `initialize` to the start of `finalize`
        self._model_thread = threading.get_ident()
        self._fork_socket = fork_socket
        self._connection: ServerConnection | None = connection
        self._own_connection = connection  # not that of a process that it has forked
        self.device: DeviceTensors | None = None  # None: calls have no tensors in GPU memory
        # Whether models take GPU memory: when that was asked for, on which device, or why not.
        self._takings: dict[tuple[str, int], tuple[float, bytes, str]] = {}
        self._connecting = threading.Lock()
        os.register_at_fork(after_in_child=self._on_fork)

    def set_batch(self, batch: int, ids: Mapping[int, str] | None = None) -> None:
        """Set the batch that this thread, and tasks that it starts, work for; 0: none."""
        _batch.set(batch)
        set_request_ids(ids)

    @property
    def current_batch(self) -> int:
        """The batch that this thread works for; 0: none, or unknown."""
        return _batch.get()

    def infer(
        self, request: InferenceRequest, *, decoupled: bool, is_awaited: bool = False
    ) -> InferenceCall:
        """See `Runtime.infer`."""
        if not self.can_infer:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        connection = self._connect()
        device = self.device if connection is self._own_connection else None
        preferred = request.preferred_memory
        inputs = None
        if device is not None and not all(tensor.is_cpu() for tensor in request.inputs()):
            inputs = self._shared_inputs(request, device)

        def start(tensors: list[Tensor] | None) -> InferenceCall:
            call = BlsCall(
                connection,
                is_decoupled=decoupled,
                device=device,
                preferred=preferred,
                # It may be that the model cannot open them, and does not take any more of them.
                on_failure=None if tensors is None else lambda: self._forget_taking(request),
            )
            try:
                call.start(request, self._origin(connection, is_awaited=is_awaited), tensors)
            except ServerError as error:
                return UnsentCall(request, error)
            return call

        call = start(inputs)
        if inputs is None or decoupled or is_awaited:
            return call
        return SharingCall(call, lambda: start(None) if self._is_closed(request) else None)

    def _is_closed(self, request: InferenceRequest) -> bool:
        """Returns whether a model takes GPU memory no more, as it could not open some."""
        return self._taking(request)[1] == CopyReason.CANNOT_OPEN

    def _shared_inputs(
        self, request: InferenceRequest, device: DeviceTensors
    ) -> list[Tensor] | None:
        """Returns inputs that stay in GPU memory where the called model takes them so."""
        gpu, reason = self._taking(request)
        if not reason:
            names = [tensor.name() for tensor in request.inputs()]
            return device.share(request.inputs(), names, gpu)
        for tensor in request.inputs():
            if not tensor.is_cpu():
                device.count_copy(reason)
        return None

    def _forget_taking(self, request: InferenceRequest) -> None:
        self._takings.pop((request.model_name, request.model_version), None)

    def _taking(self, request: InferenceRequest) -> tuple[bytes, str]:
        """Returns on which GPU a model takes inputs, or why it takes none there."""
        key = (request.model_name, request.model_version)
        now = time.monotonic()
        known = self._takings.get(key)
        if known is None or now - known[0] > _TAKING_S:
            version = "" if request.model_version < 0 else str(request.model_version)
            facts = self.call("device_taking", name=request.model_name, version=version)
            known = self._takings[key] = (now, facts["gpu"], facts["reason"])
        return known[1], known[2]

    def _origin(self, connection: ServerConnection, *, is_awaited: bool) -> CallOrigin:
        batch = _batch.get()
        thread = threading.get_ident()
        if not is_awaited:
            if thread == self._model_thread:
                return CallOrigin(blocked_batch=batch)
            if thread == connection.loop_reader.own_thread:
                return CallOrigin(blocked_batch=batch, blocks_loop=True)
        return CallOrigin(batch)

    @property
    def connection(self) -> ServerConnection:
        """The connection of this process to the server."""
        return self._connect()

    def call(self, action: str, **arguments: Any) -> Any:
        """See `Runtime.call`."""
        return self._connect().call_service(action, arguments)

    def notify(self, action: str, **arguments: Any) -> None:
        """See `Runtime.notify`."""
        connection = self._connection
        if connection is not None:  # a forked child without connection has nothing to release
            connection.outbox.post(ServiceCall(0, action, arguments))

    def logs_level(self, level: str) -> bool:
        """Returns whether the log has lines of a level."""
        return self.switches.wants(_LEVELS.get(level, logging.INFO))

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """See `Runtime.log`."""
        if not self.logs_level(level):
            return
        line_frame = WorkerLogLine(
            level,
            sendable_text(message),
            sendable_text(file),
            line,
            request_ids=current_request_ids(),
            model=self._model_name,
            process=os.getpid(),
        )
        if self._connection is None and self._fork_socket is None:
            sys.stderr.write(f"{level}: {message}\n")  # the best that such a process can do
            return
        self._connect().outbox.post(line_frame)

    def log_failure(self, error: BaseException) -> None:
        """Write to the log that a batch failed, or count it if that is known."""
        self.failures.add(self.label, error)

    def log_raised(self, error: BaseException, what: str, default_file: str = "") -> None:
        """See `Environment`."""
        file, line = raised_at(error)
        text = f"{self.label} {what}: {describe_fully(error)}"
        self.log("ERROR", text, file or default_file, line)

    def _write_failure(self, failure: Failure) -> None:
        text, error = failure.text, failure.error
        if error is not None and not isinstance(error, RuleError):
            text += f"\n{short_traceback(error)}"
        file, line = (failure.frame.file, failure.frame.line) if failure.frame else ("", 0)
        self.log("ERROR", text, file, line)

    def on_log_change(self, received: Received) -> None:
        """Follow a change of the log's settings."""
        frame: LogChange = received.frame  # type: ignore[assignment]  # registered for these only
        self._use(frame.switches)

    def _use(self, switches: LogSwitches) -> None:
        self.switches = switches
        LabelledStream.is_json = switches.format == JSON_FORMAT

    def _connect(self) -> ServerConnection:
        if self._connection is None:
            with self._connecting:
                if self._connection is None:
                    self._connection = self._connect_fork()
        return self._connection

    def _connect_fork(self) -> ServerConnection:
        if self._fork_socket is None:
            raise TritonModelException(
                f"A process that '{self.instance_name}' forked cannot use the server: it runs on "
                "another machine, where only the process of the instance itself has a connection."
            )
        return ServerConnection.of_forked_process(self._fork_socket)

    def _on_fork(self) -> None:
        self._connection = None
        self._connecting = threading.Lock()
        self._model_thread = 0
        _batch.set(0)  # the batch does not wait for this process
        self.switches = _ALL  # this process is not told of changes; the server drops lines
