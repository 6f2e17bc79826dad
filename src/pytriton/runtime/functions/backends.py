# SPDX-License-Identifier: Apache-2.0
"""The backends of functions that run on the thread of their instance: see `Backend`.

Generators of a decoupled model take turns of a few steps. Between two turns, the thread checks for
messages of the server: a new batch, a client that disconnected, credit for a slow client. A
generator whose client has no credit is not stepped.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytriton.base.request_ids import set_request_ids
from pytriton.runtime.backend.backend import Backend
from pytriton.runtime.functions.host import InstanceHost
from pytriton.runtime.functions.model_call import is_unrecoverable
from pytriton.runtime.transport.frames import Initialized

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pytriton.runtime.backend.batch import Description, WorkerBatch
    from pytriton.runtime.backend.flow_control import OpenBatches
    from pytriton.runtime.functions.model_call import FunctionCall, ResponsePacker
    from pytriton.runtime.transport.channel import Payload
    from pytriton.runtime.transport.frames import Initialize, ResponseItem

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


class FunctionBackend(Backend):
    """Calls a plain function. Those below do what other kinds of functions need."""

    host_class: type[InstanceHost] = InstanceHost
    concurrency = SYNC_CONCURRENCY
    is_decoupled = False
    holds_responses = False  # they wait until several can be sent together
    messages: InstanceHost  # reads the channel for a backend that has the thread

    def __init__(self, call: FunctionCall, on_unrecoverable: Callable[[], None]) -> None:
        self.call = call
        self._on_unrecoverable = on_unrecoverable

    def load(self, frame: Initialize, batches: OpenBatches) -> Initialized:
        """See `Backend`: the function is there."""
        self._batches = batches
        batches.describe = self._describe
        return Initialized(concurrency=self.concurrency)

    def run(self, batch: WorkerBatch) -> None:
        """See `Backend`."""
        make = None
        try:
            make = self.call.run(batch)
            batch.answer(make)
        except BaseException as error:
            if make is not None and isinstance(error, OSError):
                raise  # of the channel, as the server has ended
            self._fail(batch, error)
        else:
            if batch.execute.traces:
                self.call.end_spans(batch.execute)

    def _fail(self, batch: WorkerBatch, error: BaseException) -> None:
        """Answer a batch whose callable raised."""
        text = batch.fail(error)
        self.call.end_spans(batch.execute, text)
        if is_unrecoverable(error):
            self._on_unrecoverable()

    def _describe(self, batch: WorkerBatch, error: BaseException) -> Description:
        text, code = self.call.error(batch.execute, error)
        return text, int(code), self.call.origin(error)


class _Steps:
    """The generator that works on a batch."""

    __slots__ = ("is_slow", "packers", "responses")

    def __init__(
        self, responses: Generator[Any, None, None], packers: list[ResponsePacker]
    ) -> None:
        self.responses = responses
        self.packers = packers  # by position
        self.is_slow = True  # until the first step is measured


class GeneratorBackend(FunctionBackend):
    """Steps the generators of a plain decoupled callable in turn."""

    concurrency = ASYNC_CONCURRENCY
    is_decoupled = True
    holds_responses = True

    def load(self, frame: Initialize, batches: OpenBatches) -> Initialized:
        """See `Backend`."""
        self._outbox = batches.outbox
        self._is_stepping = False
        self._received_ns = 0
        self._stepped_ns = 0  # when the last step ended
        return super().load(frame, batches)

    def run(self, batch: WorkerBatch) -> None:
        """Step all generators until none is left; messages that come meanwhile begin others."""
        batch.open_windows()
        batch.result = _Steps(self._responses(batch), self.call.packers(batch.execute))
        batch.on_cancel = functools.partial(self._on_cancel, batch)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            self._step_all()
        finally:
            self._is_stepping = False

    def close(self) -> None:
        """See `Backend`."""
        for batch in list(self._batches.open.values()):
            self._close(batch)

    def _step_all(self) -> None:
        batches = self._batches.open
        self._read_available()
        while batches:
            ready = [batch for batch in batches.values() if batch.may_send]
            for batch in ready:
                if batch.is_abandoned:  # its clients went away since then
                    continue
                self._take_turn(batch)
                if self._stepped_ns - self._received_ns >= _RECEIVE_INTERVAL_NS:
                    self._read_available()
            if not ready:
                self._outbox.flush()
                self.messages.read_next()
                self._read_available()
        self._outbox.flush()

    def _read_available(self) -> None:
        self.messages.read_available()
        self._received_ns = time.monotonic_ns()

    def _on_cancel(self, batch: WorkerBatch, position: int) -> None:
        items = batch.give_up(position)
        if items:
            self._add(items, time.monotonic_ns())
        if batch.is_abandoned:
            self._close(batch)
            self._outbox.flush()

    def _responses(self, batch: WorkerBatch) -> Generator[Any, None, None]:
        results = self.call.infer_func(self.call.requests(batch))
        if isinstance(results, Iterator):
            yield from results
        else:
            yield results

    def _take_turn(self, batch: WorkerBatch) -> None:
        """Step a generator, as often as a turn has steps if it is quick."""
        until_ns = time.monotonic_ns() + _TURN_NS
        for _ in range(STEPS_PER_TURN):
            if not self._step(batch) or self._stepped_ns >= until_ns:
                break
        if self._outbox.is_full:
            self._outbox.flush()

    def _step(self, batch: WorkerBatch) -> bool:
        """Get the next response of a generator; returns whether it may be stepped again at once."""
        steps: _Steps = batch.result
        if steps.is_slow:
            self._outbox.flush()
        else:
            self._outbox.hold()  # nobody knows how long the step takes
        started_ns = time.monotonic_ns()
        set_request_ids(batch.execute.ids or None)
        goes_on = False
        results: Any = _NOTHING
        try:
            results = next(steps.responses, _END)
            if results is _END:
                self._add(batch.finish(), started_ns)
                self.call.end_spans(batch.execute)
            else:
                self._add_responses(batch, results, started_ns)
                goes_on = batch.may_send
        except BaseException as error:
            if isinstance(error, ConnectionError) and results is not _NOTHING:
                raise  # of the channel, as the server has ended: the generator is not to blame
            self._fail(batch, error)
        set_request_ids(None)
        self._stepped_ns = now_ns = time.monotonic_ns()
        steps.is_slow = now_ns - started_ns >= _SLOW_STEP_NS
        if steps.is_slow:
            self._outbox.flush()
            return False
        return goes_on

    def _add_responses(self, batch: WorkerBatch, results: Any, started_ns: int) -> None:
        """Add one response for each request, as rows if all of them are small."""
        outbox = self._outbox
        packed = self.call.pack(batch.execute, results, batch.result.packers)
        if packed is None:
            outbox.add(functools.partial(self._make_items, batch, results), started_ns)
            return
        number = batch.execute.batch
        for position, (structure, data, size) in enumerate(packed):
            if batch.spend(position, size):
                outbox.add_small((number, position), structure, data, size, started_ns)

    def _make_items(self, batch: WorkerBatch, results: Any, payload: Payload) -> list[ResponseItem]:
        items = self.call.response_items(batch.execute, results, payload, is_final=False)
        return batch.filter(items)

    def _add(self, items: list[ResponseItem], started_ns: int) -> None:
        self._outbox.add(lambda _: items, started_ns)

    def _fail(self, batch: WorkerBatch, error: BaseException) -> None:
        items = batch.finish(error)
        self._add(items, time.monotonic_ns())
        self.call.end_spans(batch.execute, items[0].error if items else ABANDONED)
        self._close(batch)
        if is_unrecoverable(error):
            self._outbox.flush()
            self._on_unrecoverable()

    def _close(self, batch: WorkerBatch) -> None:
        """Close a generator that no client waits for; its exceptions are logged."""
        set_request_ids(batch.execute.ids or None)
        try:
            batch.result.responses.close()
        except BaseException as error:  # noqa: BLE001  user code may raise anything
            self.call.log_raised_on_close(error)
        set_request_ids(None)
        self.call.end_spans(batch.execute, ABANDONED)
