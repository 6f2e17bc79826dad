# SPDX-License-Identifier: Apache-2.0
"""Serves the calls that a worker makes over its channel: of other models and of services.

A worker has one call server for its own channel, and one for each process that it forked and that
has made a call. A forked child must not use its parent's channel. It creates a pair of sockets and
sends one of them over the worker's fork socket, which keeps messages whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import stat
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

from pytriton.base.errors import ServerError, error_for_clients, sendable_text
from pytriton.base.messages import DeviceBytes
from pytriton.runtime.executor.batch_tensors import make_input
from pytriton.runtime.executor.device_blocks import replace_data
from pytriton.runtime.transport.credit import RESPONSE_WINDOW
from pytriton.runtime.transport.frames import (
    STANDARD_ERROR,
    CallCredit,
    CancelCall,
    InferCallFrame,
    InferReply,
    MemoryFrame,
    ServiceCall,
    ServiceReply,
    WorkerLogLine,
)
from pytriton.runtime.transport.lines import LinePipe
from pytriton.runtime.transport.loop_channel import LoopChannel
from pytriton.runtime.transport.memory_channel import MemoryChannel
from pytriton.runtime.transport.peer_account import PeerAccount, ProtocolError
from pytriton.runtime.transport.refs import TensorRef

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pytriton.base.messages import InferResponse, InferTensor, ResponseSink
    from pytriton.runtime.executor.device_blocks import DeviceLedger
    from pytriton.runtime.transport.arena import MemoryTrimmer
    from pytriton.runtime.transport.channel import Payload, Received

logger = logging.getLogger(__name__)
_MESSAGE_BYTES = 4096  # contents do not matter, unless they begin with `STANDARD_ERROR`
_MAX_SOCKETS = 16  # per message
MAX_BREACHES = 16  # processes of one worker that were shown out, before it gets no more channels
MAX_CALLERS = 1024  # forked processes of one worker: each takes a descriptor of the server
_STDERR = 2


class CallServer:
    """Passes a worker's calls to the services of the server, and sends back the replies.

    `origin` says in the log where lines of this worker come from, such as `Add_0_1@node-7`; "" is
    for a worker on this machine, whose lines name a file only.
    """

    def __init__(
        self,
        channel: LoopChannel,
        services: WorkerServices,
        origin: str = "",
        ledger: DeviceLedger | None = None,
        account: PeerAccount | None = None,
    ) -> None:
        self._account = account or PeerAccount()  # counts the calls, of several processes perhaps
        self._ledger = ledger  # None: the caller has no tensors in GPU memory
        self._channel = channel
        self._services = services
        self._origin = origin
        self._calls: dict[int, _InferenceCall] = {}
        self._is_open = True

    def handle(self, received: Received) -> None:
        """Execute the call or command in a frame.

        Raises:
            ProtocolError: The frame is of another kind, or the caller has too many open calls.
        """
        frame = received.frame
        if isinstance(frame, InferCallFrame):
            self._infer(received, frame)
        elif isinstance(frame, CancelCall):
            if (call := self._calls.get(frame.call)) is not None:
                call.cancel()
        elif isinstance(frame, CallCredit):
            if (call := self._calls.get(frame.call)) is not None:
                call.on_credit(frame.count)
        elif isinstance(frame, ServiceCall):
            self._serve(received, frame)
        elif isinstance(frame, WorkerLogLine):
            if self._origin:
                # In place of the file; a line that was printed has no number.
                name = f" {PurePosixPath(frame.file).name}" if frame.line else ""
                frame.file = self._origin + name
            self._services.log(frame)
        elif not isinstance(frame, MemoryFrame):
            kind = type(frame).__name__
            raise ProtocolError(f"expected a call or a line of the log, got a frame {kind}")

    def close(self) -> None:
        """Cancel all calls because the caller has ended; nothing is sent afterwards."""
        self._is_open = False
        calls, self._calls = self._calls, {}
        for call in calls.values():
            self._account.end_call(call.size)
            call.cancel()

    def __repr__(self) -> str:
        return f"<CallServer calls={len(self._calls)} open={self._is_open}>"

    def _infer(self, received: Received, frame: InferCallFrame) -> None:
        if frame.call in self._calls:
            raise ProtocolError(f"expected a call with a new number, got {frame.call} again")
        size = len(received.message)  # its inputs are in there, or in memory of the worker
        self._account.add_call(size)
        call = _InferenceCall(self, frame.call, size)
        self._calls[frame.call] = call
        try:
            # First, so that they are released if there is an error.
            ledger = self._ledger
            taken = ledger.take_all(frame.device) if frame.device and ledger is not None else None
            if ledger is None or ledger.refusal or ledger.closed:
                frame.device_wish = None  # it cannot open what the answer has
            inputs = {ref.name: make_input(received, ref) for ref in frame.inputs}
            if taken is not None:
                replace_data(inputs.values(), taken)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001  see below
            reason = error_for_clients(error, f"it read a call of model {frame.model_name}")
            call.on_error(reason)
            return
        try:
            call.start(self._services.infer(frame, inputs, call))
        except Exception as error:  # noqa: BLE001  the caller waits for a reply, whatever happened
            call.on_error(error_for_clients(error, f"it began a call of model {frame.model_name}"))

    def _serve(self, received: Received, frame: ServiceCall) -> None:
        number, size = frame.call, len(received.message)
        if number:
            self._account.add_call(size)

        def reply(value: Any, error: str | None) -> None:
            self._account.end_call(size)
            if self._is_open:
                text = None if error is None else sendable_text(error)
                self._channel.send(ServiceReply(number, value, text))

        try:
            self._services.serve(frame.action, frame.arguments, reply if number else None)
        except Exception as error:  # noqa: BLE001  see `_infer`
            text = error_for_clients(error, f"it served {frame.action} to a model").message
        else:
            return
        if number:
            reply(None, text)

    def reply(self, number: int, response: InferResponse | None, *, is_final: bool) -> None:
        """Send a response; raises ServerError if there is no memory for its tensors."""
        if not self._is_open:
            return
        if response is None:
            self._channel.send(InferReply(number, None, is_final))
            return
        payload = self._channel.payload()
        frame = InferReply(number, [], is_final, parameters=response.parameters)
        try:
            self._add_outputs(frame, response.outputs, payload)
            self._channel.send(frame, payload)
        except BaseException:
            if self._ledger is not None and frame.device is not None:
                self._ledger.end_leases([place.lease for place in frame.device.values()])
            raise

    def _add_outputs(
        self, frame: InferReply, outputs: Sequence[InferTensor], payload: Payload
    ) -> None:
        refs = frame.outputs = []
        for tensor in outputs:
            if isinstance(tensor.data, DeviceBytes):
                assert self._ledger is not None, "only such a caller asks for GPU memory"
                if frame.device is None:
                    frame.device = {}
                frame.device[tensor.name] = self._ledger.lend(tensor.data.block)
                refs.append(TensorRef(tensor.name, tensor.dtype.number, tensor.shape, 0, 0))
                continue
            size = len(tensor.data)
            block, offset = payload.add((tensor.data,), size)
            refs.append(
                TensorRef(tensor.name, tensor.dtype.number, tensor.shape, offset, size, block)
            )

    def reply_error(self, number: int, error: ServerError, *, is_final: bool) -> None:
        """Send an error in place of a response."""
        if self._is_open:
            text, code = sendable_text(error.message), int(error.triton_code)
            self._channel.send(InferReply(number, None, is_final, text, code))

    def remove(self, number: int) -> None:
        """Remove a call that is over."""
        call = self._calls.pop(number, None)
        if call is not None:
            self._account.end_call(call.size)


class _InferenceCall:
    """A call of another model: the sink of its responses, with flow control."""

    def __init__(self, server: CallServer, number: int, size: int) -> None:
        self.size = size  # of its message
        self._running: RunningCall | None = None  # until the call is over
        self._server = server
        self._number = number
        self._is_over = False
        self._is_paused = False
        self._in_flight = 0  # responses that the caller has not consumed yet

    def start(self, running: RunningCall) -> None:
        """Set the inference, unless it has ended already."""
        if not self._is_over:
            self._running = running

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Send a response; None with `final` ends the call without tensors."""
        if not self._is_over:
            self._server.reply(self._number, response, is_final=final)
            self._count_sent(final=final)

    def _count_sent(self, *, final: bool) -> None:
        if final:
            self._end()
            return
        self._in_flight += 1
        if self._in_flight >= RESPONSE_WINDOW and not self._is_paused and self._running is not None:
            self._is_paused = True
            self._running.pause()

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Send an error in place of a response."""
        if self._is_over:
            return
        self._server.reply_error(self._number, error, is_final=final)
        self._count_sent(final=final)

    def on_refused(self, error: ServerError) -> None:
        """Send the error of a call that was rejected before it started."""
        self.on_error(error)

    def on_credit(self, count: int) -> None:
        """Count `count` more responses as consumed by the caller."""
        self._in_flight -= min(count, self._in_flight)  # which a caller must not widen
        if self._is_paused and self._in_flight < RESPONSE_WINDOW and self._running is not None:
            self._is_paused = False
            self._running.resume()

    def cancel(self) -> None:
        """Cancel the inference: the caller cancelled the call or has ended."""
        if self._running is not None:
            self._running.cancel()

    def _end(self) -> None:
        self._is_over = True
        self._running = None  # it refers to this object, and a cycle would keep its tensors
        self._server.remove(self._number)


class RunningCall(Protocol):
    """An inference that a worker waits for."""

    def cancel(self) -> None:
        """Cancel it: the worker does not wait for it any more."""

    def pause(self) -> None:
        """Hold responses back: the worker consumes them slower than they arrive."""

    def resume(self) -> None:
        """Continue after `pause`."""


class WorkerServices(Protocol):
    """The services that models call. Each worker has its own object, so the caller is known."""

    def infer(
        self, call: InferCallFrame, inputs: dict[str, InferTensor], sink: ResponseSink
    ) -> RunningCall:
        """Start an inference; the sink gets all results, possibly before this returns."""

    def serve(
        self,
        action: str,
        arguments: dict[str, Any],
        reply: Callable[[Any, str | None], None] | None,
    ) -> None:
        """Run an action; `reply` gets its value, or None and an error text, now or later."""

    def log(self, line: WorkerLogLine) -> None:
        """Write a line to the server's log."""

    def close(self) -> None:
        """Release everything that the worker had, because it has ended."""


class ForkListener:
    """The server's end of a worker's fork socket, and the channels that it received."""

    def __init__(
        self,
        sock: socket.socket,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
        *,
        is_enclosed: bool = False,
    ) -> None:
        self._socket = sock
        self._memory = memory
        self._loop = loop
        self._services = services
        self._account = PeerAccount()  # of all of them together
        self._is_enclosed = is_enclosed  # the worker, and so its processes, are in a sandbox
        self._has_refused = False
        self._breaches = 0
        self._callers: dict[ForkedCaller, None] = {}
        self._errors: list[ReturnedErrors] = []
        sock.setblocking(False)

    @property
    def callers(self) -> int:
        """The number of forked processes that have a channel now."""
        return len(self._callers)

    def open(self) -> None:
        """Start to accept channels."""
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def close(self) -> None:
        """Accept no more channels, and cancel the calls of the existing ones."""
        self._close_socket()
        for caller in list(self._callers):
            caller.close()
        for errors in self._errors:
            errors.close()

    def _close_socket(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def __repr__(self) -> str:
        return f"<ForkListener callers={len(self._callers)}>"

    def _on_readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MESSAGE_BYTES, _MAX_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            if data.startswith(STANDARD_ERROR):
                self._read_errors(descriptor, data[len(STANDARD_ERROR) :].decode(errors="replace"))
            else:
                self._accept(descriptor)
        if not data:  # the worker and all processes that it forked have ended
            self._close_socket()

    def _read_errors(self, descriptor: int, model: str) -> None:
        if self._errors or not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            self._refuse("more than one pipe as its standard error, or something else")
            return
        errors = ReturnedErrors(descriptor, model, self._loop, self._services)
        self._errors.append(errors)
        errors.start()

    def _accept(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            self._refuse("a file descriptor that is not a socket")
            return
        if (sock.family, sock.type) != (self._socket.family, self._socket.type):
            sock.close()
            self._refuse("a socket of another kind")
            return
        if len(self._callers) >= MAX_CALLERS:
            sock.close()
            self._refuse(f"more than {MAX_CALLERS} sockets")
            return
        account = self._account
        channel = MemoryChannel(
            sock, self._memory.arena, to_sandbox=self._is_enclosed, account=account
        )
        caller = ForkedCaller(
            channel,
            self._memory,
            self._loop,
            self._services,
            self._callers,
            account,
            self._on_breach,
        )
        caller.open()

    def _on_breach(self) -> None:
        """Count a process that broke a rule; a worker must not fill the log with them."""
        self._breaches += 1
        if self._breaches == MAX_BREACHES:
            logger.error(
                "%d processes of a worker have broken the rules of their channels; no more that it "
                "forks may call models",
                MAX_BREACHES,
            )
            self._close_socket()

    def _refuse(self, what: str) -> None:
        """Tell once what a worker has passed that it should not."""
        if not self._has_refused:
            self._has_refused = True
            logger.warning("a worker's fork socket passed %s; the server has closed it", what)


class ReturnedErrors:
    """The server's end of a worker's standard error: it writes that to its own and keeps lines.

    The worker of a compiled backend has a pipe there, as nobody in its process sees what code in C
    writes. What it wrote before a crash is still in the pipe.
    """

    def __init__(
        self, descriptor: int, model: str, loop: asyncio.AbstractEventLoop, services: WorkerServices
    ) -> None:
        self._model = model
        self._services = services
        self._lost_bytes = 0  # that were not written, as nobody read them
        self._pipe = pipe = LinePipe(
            os.fdopen(descriptor, "rb", buffering=0), loop, self._keep, on_data=self._write
        )
        self.start = pipe.start
        self.close = pipe.close

    def _write(self, data: bytes) -> None:
        """Write to the standard error of this process as much as somebody reads: never wait."""
        if self._lost_bytes:
            data = b"(%d bytes were lost here)\n" % self._lost_bytes + data
        poll = select.poll()
        poll.register(_STDERR, select.POLLOUT)
        with contextlib.suppress(OSError):  # as other lines of the log, they are lost then
            while data and any(event & select.POLLOUT for _, event in poll.poll(0)):
                data = data[os.write(_STDERR, data[: select.PIPE_BUF]) :]
                self._lost_bytes = 0
        self._lost_bytes += len(data)

    def _keep(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        if text.strip():
            frame = WorkerLogLine("INFO", text, "stderr", 0, model=self._model, is_printed=True)
            self._services.log(frame)


class ForkedCaller:
    """The channel of a process that a worker forked; it carries only that process's calls."""

    def __init__(
        self,
        channel: MemoryChannel,
        memory: MemoryTrimmer,
        loop: asyncio.AbstractEventLoop,
        services: WorkerServices,
        callers: dict[ForkedCaller, None],
        account: PeerAccount,
        on_breach: Callable[[], None],
    ) -> None:
        self._on_breach = on_breach
        self._channel = LoopChannel(
            channel,
            loop,
            memory,
            "a forked process",
            on_message=self._on_message,
            on_lost=self._on_lost,
        )
        self._call_server = CallServer(self._channel, services, account=account)
        self._callers = callers

    def open(self) -> None:
        """Start to serve calls."""
        self._callers[self] = None
        self._channel.start()

    def close(self) -> None:
        """Close the channel and cancel its calls."""
        if self not in self._callers:
            return
        self._callers.pop(self, None)
        self._call_server.close()
        self._channel.close()

    def _on_message(self, received: Received) -> None:
        self._call_server.handle(received)

    def _on_lost(self, error: Exception) -> None:
        self.close()
        if isinstance(error, ProtocolError):
            self._on_breach()
