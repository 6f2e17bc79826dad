# SPDX-License-Identifier: Apache-2.0
"""Runs instances in the user's process: one thread each, which receives from its channel.

An instance of a decoupled model is a thread on which generators take turns of a few steps. Between
two turns, the thread checks for messages of the server: a new batch, a client that disconnected,
credit for a slow client. A generator whose client has no credit is not stepped.
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import ErrorCode
from pytriton.base.failure_records import FailureOrigin
from pytriton.base.log_capture import set_line_source
from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.cuda import registration
from pytriton.runtime.functions.model_call import is_unrecoverable
from pytriton.runtime.transport.arena import IDLE_SECONDS
from pytriton.runtime.transport.channel import IdleReader
from pytriton.runtime.transport.credit import CreditWindow
from pytriton.runtime.transport.frames import BatchFailure, Cancel, Credit, Execute, ResponseItem
from pytriton.runtime.transport.response_outbox import ProcessorMeter, ResponseOutbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.functions.model_call import FunctionCall
    from pytriton.runtime.functions.response_packing import ResponsePacker
    from pytriton.runtime.transport.channel import Channel, Payload, Received
    from pytriton.runtime.transport.frames import Answer, Frame

logger = logging.getLogger(__name__)

# The maximum number of batches that the server runs on one instance at the same time.
SYNC_CONCURRENCY = 1
ASYNC_CONCURRENCY = 256
# The error in the span of a request whose client disconnected.
ABANDONED = "the client went away"
# Maximum time between two checks for messages while generators are stepped, beside one turn.
_RECEIVE_INTERVAL_NS = 100_000
# After a slower step, the next one may be slow too: earlier responses are sent first.
_SLOW_STEP_NS = 100_000
# So often is a generator stepped before it is another one's turn, if its steps are quick: responses
# to one request that go in one message cost the server half as much as those of many requests.
STEPS_PER_TURN = 8
_TURN_NS = 100_000
_END = object()
_NOTHING = object()


def _ignore(frame: Frame) -> None:
    """Do nothing: other messages only release memory."""


class InstanceHost:
    """Runs one instance of a model in its own thread until the channel is closed."""

    concurrency = SYNC_CONCURRENCY

    def __init__(
        self, call: FunctionCall, channel: Channel, on_unrecoverable: Callable[[], None]
    ) -> None:
        self._call = call
        self._channel = channel
        self._on_unrecoverable = on_unrecoverable
        # Called with messages that are not about batches; an EOFError of it ends the instance.
        self.on_other: Callable[[Frame], None] = _ignore
        self._thread = threading.Thread(
            target=self._run, name=f"pytriton-{call.instance_name}", daemon=True
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

    def _run(self) -> None:
        set_line_source(self._call.line_source)  # of this thread, and of the tasks that it starts
        try:
            self._meter = ProcessorMeter(of_thread=True)
            self._serve()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            logger.debug("%s: the server closed the channel", self._call.instance_name)
        except Exception:
            logger.exception("%s: the instance ended", self._call.instance_name)
        finally:
            self._channel.close()

    def _serve(self) -> None:
        reader = self._make_reader()
        while True:
            received = reader.receive()
            if isinstance(received.frame, Execute):
                set_request_ids(received.frame.ids or None)
                self._answer(received, received.frame)
                set_request_ids(None)
            else:
                self.on_other(received.frame)
            # Release arrays that the callable did not keep before this thread waits again.
            del received

    def _make_reader(self) -> IdleReader:
        channel = self._channel
        return IdleReader(channel, lambda: channel.has_idle_memory, self._trim)

    def _trim(self) -> None:
        self._channel.trim(IDLE_SECONDS)

    def _answer(self, received: Received, execute: Execute) -> None:
        payload = self._channel.payload()
        started_ns = time.monotonic_ns()
        try:
            frame = self._call.run(received, payload)
        except BaseException as error:  # noqa: BLE001  every error of user code is answered
            self._fail_batch(execute, started_ns, error)
        else:
            self._send_answer(execute, started_ns, frame, payload)

    def _fail_batch(self, execute: Execute, started_ns: int, error: BaseException) -> None:
        """Answer a batch whose callable raised."""
        # A new payload, without the outputs that were added before the error.
        failure = self._call.failure(execute, started_ns, error)
        self._send_answer(execute, started_ns, failure, self._channel.payload())
        if is_unrecoverable(error):
            self._on_unrecoverable()

    def _send_answer(
        self, execute: Execute, started_ns: int, frame: Answer, payload: Payload
    ) -> None:
        try:
            self._send(frame, payload)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  no memory for a large response: send a short error
            frame = self._call.failure(execute, started_ns, error)
            self._send(frame, self._channel.payload())
        self._call.end_spans(execute, frame.error if isinstance(frame, BatchFailure) else None)

    def _send(self, frame: Answer, payload: Payload) -> None:
        if frame.finished_ns >= self._meter.due_ns:
            self._meter.stamp(frame)
        frame.copied = self._meter.copies.take()
        self._channel.send(frame, payload)


class StreamBatch:
    """A running batch of a decoupled model, without threads, sockets and clocks."""

    def __init__(self, execute: Execute) -> None:
        self.execute = execute
        self._windows = {position: CreditWindow() for position in range(len(execute.rows))}

    @property
    def is_abandoned(self) -> bool:
        """Whether no client waits for any of its requests."""
        return not self._windows

    @property
    def may_send(self) -> bool:
        """Whether every client has credit for another response."""
        for window in self._windows.values():  # noqa: SIM110  `all` takes 0.5 us more for each response
            if not window.is_open_after_first:
                return False
        return True

    def cancel(self, position: int) -> ResponseItem | None:
        """Cancel a request; returns its response if it was still open."""
        if self._windows.pop(position, None) is None:
            return None
        return ResponseItem(self.execute.batch, position, error="", error_code=ErrorCode.CANCELLED)

    def credit(self, position: int, count: int) -> None:
        """Add credit after a client has read responses."""
        window = self._windows.get(position)
        if window is not None:
            window.add(count)

    def spend(self, position: int, size: int) -> bool:
        """Use credit for a response of `size` bytes; returns False if no client waits for it."""
        window = self._windows.get(position)
        if window is None:
            return False
        window.spend(size)
        return True

    def filter(self, items: list[ResponseItem]) -> list[ResponseItem]:
        """Return the responses that a client waits for, and use credit for them."""
        return [
            item
            for item in items
            if self.spend(item.position, sum([ref.size for ref in item.outputs or ()]))
        ]

    def finish(
        self,
        error: str | None = None,
        error_code: int = 0,
        origin: FailureOrigin | None = None,
    ) -> list[ResponseItem]:
        """End all open requests; returns their final responses."""
        items = [
            ResponseItem(self.execute.batch, position, None, True, error, error_code, origin=origin)
            for position in self._windows
        ]
        self._windows.clear()
        return items


class _Stream:
    """A generator that works on a batch."""

    __slots__ = ("batch", "is_slow", "packers", "responses")

    def __init__(
        self,
        batch: StreamBatch,
        responses: Generator[Any, None, None],
        packers: list[ResponsePacker],
    ) -> None:
        self.batch = batch
        self.responses = responses
        self.packers = packers  # by position
        self.is_slow = True  # until the first step is measured


class StreamHost(InstanceHost):
    """Steps the generators of a plain decoupled callable in turn."""

    concurrency = ASYNC_CONCURRENCY

    def _serve(self) -> None:
        self._streams: dict[int, _Stream] = {}
        self._outbox = ResponseOutbox(self._channel, self._meter)
        self._reader = self._make_reader()
        self._received_ns = 0
        self._stepped_ns = 0  # when the last step ended
        try:
            while True:
                for stream in self._wait_for_streams():
                    if stream.batch.is_abandoned:  # its clients went away since then
                        continue
                    self._take_turn(stream)
                    if self._stepped_ns - self._received_ns >= _RECEIVE_INTERVAL_NS:
                        self._receive_available()
        finally:
            self._outbox.close()
            for stream in self._streams.values():
                self._close_stream(stream)

    def _wait_for_streams(self) -> list[_Stream]:
        """Returns the streams that can be stepped; waits for messages while there is none."""
        while not (streams := self._ready_streams()):
            self._outbox.flush()
            self._on_message(self._reader.receive())
            self._receive_available()
        return streams

    def _receive_available(self) -> None:
        """Handles the messages that came meanwhile."""
        while (received := self._channel.receive(socket.MSG_DONTWAIT)) is not None:
            self._on_message(received)
        self._received_ns = time.monotonic_ns()

    def _ready_streams(self) -> list[_Stream]:
        return [stream for stream in self._streams.values() if stream.batch.may_send]

    def _on_message(self, received: Received) -> None:
        frame = received.frame
        if isinstance(frame, Execute):
            self._streams[frame.batch] = _Stream(
                StreamBatch(frame), self._responses(received), self._call.packers(frame)
            )
        elif isinstance(frame, Cancel) and frame.batch in self._streams:
            stream = self._streams[frame.batch]
            item = stream.batch.cancel(frame.position)
            if item is not None:
                self._add([item], time.monotonic_ns())
            if stream.batch.is_abandoned:
                del self._streams[frame.batch]
                self._close_stream(stream)
                self._outbox.flush()
        elif isinstance(frame, Credit) and frame.batch in self._streams:
            self._streams[frame.batch].batch.credit(frame.position, frame.count)
        else:
            self.on_other(frame)

    def _responses(self, received: Received) -> Generator[Any, None, None]:
        results = self._call.infer_func(self._call.requests(received))
        if isinstance(results, Iterator):
            yield from results
        else:
            yield results

    def _take_turn(self, stream: _Stream) -> None:
        """Step a generator, as often as a turn has steps if it is quick."""
        until_ns = time.monotonic_ns() + _TURN_NS
        for _ in range(STEPS_PER_TURN):
            if not self._step(stream) or self._stepped_ns >= until_ns:
                break
        if self._outbox.is_full:
            self._outbox.flush()

    def _step(self, stream: _Stream) -> bool:
        """Get the next response of a generator; returns whether it may be stepped again at once."""
        if stream.is_slow:
            self._outbox.flush()
        else:
            self._outbox.hold()  # nobody knows how long the step takes
        started_ns = time.monotonic_ns()
        batch = stream.batch
        set_request_ids(batch.execute.ids or None)
        goes_on = False
        results: Any = _NOTHING
        try:
            results = next(stream.responses, _END)
            if results is _END:
                self._add(batch.finish(), started_ns)
                del self._streams[batch.execute.batch]
                self._call.end_spans(batch.execute)
            else:
                self._add_responses(stream, results, started_ns)
                goes_on = batch.may_send
        except BaseException as error:
            if isinstance(error, ConnectionError) and results is not _NOTHING:
                raise  # of the channel, as the server has ended: the generator is not to blame
            self._fail(stream, error)
        set_request_ids(None)
        self._stepped_ns = now_ns = time.monotonic_ns()
        stream.is_slow = now_ns - started_ns >= _SLOW_STEP_NS
        if stream.is_slow:
            self._outbox.flush()
            return False
        return goes_on

    def _add_responses(self, stream: _Stream, results: Any, started_ns: int) -> None:
        """Add one response for each request, as rows if all of them are small."""
        batch, outbox = stream.batch, self._outbox
        packed = self._call.pack(batch.execute, results, stream.packers)
        if packed is None:
            outbox.add(functools.partial(self._make_items, batch, results), started_ns)
            return
        number = batch.execute.batch
        for position, (structure, data, size) in enumerate(packed):
            if batch.spend(position, size):
                outbox.add_small((number, position), structure, data, size, started_ns)

    def _make_items(self, batch: StreamBatch, results: Any, payload: Payload) -> list[ResponseItem]:
        items = self._call.response_items(batch.execute, results, payload, is_final=False)
        return batch.filter(items)

    def _add(self, items: list[ResponseItem], started_ns: int) -> None:
        self._outbox.add(lambda _: items, started_ns)

    def _trim(self) -> None:
        self._outbox.trim(IDLE_SECONDS)

    def _fail(self, stream: _Stream, error: BaseException) -> None:
        text, code = self._call.error(stream.batch.execute, error)
        items = stream.batch.finish(text, code, self._call.origin(error))
        self._add(items, time.monotonic_ns())
        self._streams.pop(stream.batch.execute.batch, None)
        self._call.end_spans(stream.batch.execute, text)
        self._close_stream(stream)
        if is_unrecoverable(error):
            self._outbox.flush()
            self._on_unrecoverable()

    def _close_stream(self, stream: _Stream) -> None:
        """Closes a generator that no client waits for; its exceptions are logged."""
        set_request_ids(stream.batch.execute.ids or None)
        try:
            stream.responses.close()
        except BaseException as error:  # noqa: BLE001  user code may raise anything
            self._call.log_raised_on_close(error)
        set_request_ids(None)
        self._call.end_spans(stream.batch.execute, ABANDONED)
