# SPDX-License-Identifier: Apache-2.0
"""Runs instances in the user's process: one thread each, which alone reads its channel.

A host hands batches to the backend of its function, and tells it what else comes for them. What
kind of function that is, it does not know: see `backends.py`, and `async_backends.py` for those
that need an event loop.
"""

from __future__ import annotations

import logging
import socket
import threading
from typing import TYPE_CHECKING

from pytriton.base.log_capture import set_line_source
from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.cuda import registration
from pytriton.runtime.transport.arena import IDLE_SECONDS
from pytriton.runtime.transport.channel import IdleReader
from pytriton.runtime.transport.frames import Cancel, Credit, Execute, Initialize
from pytriton.runtime.transport.response_outbox import ProcessorMeter, ResponseOutbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.functions.backends import FunctionBackend
    from pytriton.runtime.transport.channel import Channel, Payload, Received
    from pytriton.runtime.transport.frames import Answer, Frame

logger = logging.getLogger(__name__)

_FUNCTION = Initialize("", "", {}, [])  # it is loaded already


def _ignore(frame: Frame) -> None:
    """Do nothing: other messages only release memory."""


class ThreadOutbox(ResponseOutbox):
    """Sends what one thread makes, at once: without a lock, and without waiting for more."""

    def send(self, make: Callable[[Payload], Frame]) -> None:
        """See `ResponseOutbox`."""
        payload = self.channel.payload()
        answer: Answer = make(payload)  # type: ignore[assignment]  # functions send nothing else
        meter = self._meter
        if answer.finished_ns >= meter.due_ns:
            meter.stamp(answer)
        answer.copied = meter.copies.take()
        self.channel.send(answer, payload)


class InstanceHost:
    """Runs one instance of a model in its own thread until the channel is closed."""

    is_over = False  # the server has ended the instance

    def __init__(self, backend: FunctionBackend, channel: Channel) -> None:
        self.backend = backend
        self._channel = channel
        # Called with messages that are not about batches; an EOFError of it ends the instance.
        self.on_other: Callable[[Frame], None] = _ignore
        self._thread = threading.Thread(
            target=self._run, name=f"pytriton-{backend.call.instance_name}", daemon=True
        )

    def start(self) -> None:
        """Start to accept batches."""
        registration.install()
        self._thread.start()

    def run(self) -> None:
        """Accept batches on this thread, until the server has ended the instance.

        Raises:
            EOFError: The server has closed the channel, or ConnectionError, unless the callable
                runs on an event loop: then it returns.
        """
        self._meter = ProcessorMeter()  # the process has nothing else to do
        self._serve()

    def is_alive(self) -> bool:
        """Whether batches are accepted."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait until the instance ends; the server ends it by closing its channel."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def read_next(self) -> None:
        """Wait for a message, and handle it."""
        self._on_message(self._reader.receive())

    def read_available(self) -> None:
        """Handle the messages that came meanwhile."""
        while (received := self._channel.receive(socket.MSG_DONTWAIT)) is not None:
            self._on_message(received)

    def _run(self) -> None:
        set_line_source(
            self.backend.call.line_source
        )  # of this thread, and of tasks that it starts
        try:
            self._meter = ProcessorMeter(of_thread=True)
            self._serve()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            logger.debug("%s: the server closed the channel", self.backend.call.instance_name)
        except Exception:
            logger.exception("%s: the instance ended", self.backend.call.instance_name)
        finally:
            self._channel.close()

    def _serve(self) -> None:
        channel = self._channel
        outbox: ResponseOutbox
        if self.backend.holds_responses:
            outbox = ResponseOutbox(channel, self._meter)
            trim = outbox.trim
        else:
            outbox, trim = ThreadOutbox(channel, self._meter), channel.trim
        self._reader = reader = IdleReader(
            channel, lambda: channel.has_idle_memory, lambda: trim(IDLE_SECONDS)
        )
        self._load(outbox)
        backend, batches = self.backend, self.batches
        try:
            while True:
                received = reader.receive()
                execute = received.frame
                if type(execute) is not Execute:
                    self._on_message(received)
                    continue
                batch = batches.begin(received)
                # Its memory is released when nobody keeps it, also while others are answered.
                del received
                set_request_ids(execute.ids or None)
                backend.run(batch)
                set_request_ids(None)
                # Release arrays that the callable did not keep before this thread waits again.
                del batch
        finally:
            backend.close()
            outbox.close()

    def _load(self, outbox: ResponseOutbox) -> None:
        backend = self.backend
        self.batches = batches = OpenBatches(
            outbox, None, [], is_decoupled=backend.is_decoupled, is_batching=True
        )
        self._handlers = {Cancel: batches.on_cancel, Credit: batches.on_credit}
        backend.messages = self
        backend.load(_FUNCTION, batches)

    def _on_message(self, received: Received) -> None:
        frame = received.frame
        kind = type(frame)
        if kind is Execute:
            self.backend.run(self.batches.begin(received))
        elif kind in self._handlers:
            self._handlers[kind](received)
        else:
            self.on_other(frame)
