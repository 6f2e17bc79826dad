# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for what the engine is given: a loop whose time a test moves, instances, sinks."""

from __future__ import annotations

import types
from collections import deque
from typing import Any

from pytriton.base.errors import InternalError, ServerError
from pytriton.base.messages import InferRequest, InferResponse, RequestFields
from pytriton.base.model_spec import BatcherSpec, ModelSpec, ModelTensor
from pytriton.runtime.executor.inference import Inference, Outcome, RunningBatch
from pytriton.serving.server.tracing.request_trace import TraceFacts, TraceWatcher
from pytriton.serving.server.tracing.settings import TraceSampling
from pytriton.testing import FakeClock, FakeTimer

SECOND_NS = 1_000_000_000


class FakeLoop:
    """The parts of an event loop that models and connections use; it runs when a test lets it."""

    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock or FakeClock()
        self.readers: dict[int, Any] = {}
        self._ready: deque[tuple[Any, tuple[Any, ...]]] = deque()

    def time(self) -> float:
        return self.clock()

    def call_soon(self, callback: Any, *arguments: Any) -> None:
        self._ready.append((callback, arguments))

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, callback: Any, *arguments: Any) -> FakeTimer:
        return self.clock.call_later(delay_s, callback, *arguments)

    def add_reader(self, fd: int, callback: Any) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: int) -> None:
        self.readers.pop(fd, None)

    def create_future(self) -> FakeFuture:
        return FakeFuture()

    def create_task(self, work: Any) -> FakeTask:
        """Run a coroutine that waits for nothing."""
        try:
            work.send(None)
        except StopIteration:
            return FakeTask()
        raise AssertionError(f"{work} waits for something")

    @property
    def timer_count(self) -> int:
        return self.clock.timer_count

    def run(self) -> None:
        """Run what is due, without letting time pass."""
        while True:
            while self._ready:
                callback, arguments = self._ready.popleft()
                callback(*arguments)
            if not self.clock.call_due():
                return

    def advance(self, seconds: float) -> None:
        """Let time pass, with everything at its time."""
        end_ns = self.clock.after_ns(seconds)
        self.run()
        while (timer_ns := self.clock.next_ns) is not None and timer_ns <= end_ns:
            self.clock.jump()
            self.run()
        self.clock.advance_to(end_ns)


class FakeTask:
    """A task that is done."""

    def add_done_callback(self, callback: Any) -> None:
        callback(self)

    def cancel(self) -> None:
        pass


class FakeFuture:
    def __init__(self) -> None:
        self.is_done = False

    def set_result(self, result: object) -> None:
        self.is_done = True


class RecordingSink:
    """Keeps what a request was answered; several may write one log, which shows their order."""

    def __init__(self, name: Any = None, log: list[Any] | None = None) -> None:
        self.name = name
        self.responses: list[InferResponse | None] = []
        self.errors: list[ServerError] = []
        self.refusals: list[ServerError] = []  # which are errors, too
        self.final_count = 0
        self._log = log

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        self.responses.append(response)
        self.final_count += final
        self._note()

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        self.errors.append(error)
        self.final_count += final
        self._note()

    def on_refused(self, error: ServerError) -> None:
        self.refusals.append(error)
        self.on_error(error)

    def _note(self) -> None:
        if self._log is not None:
            self._log.append(self.name)


class FakeInstance:
    """Keeps the batches that it was given until a test says how they end."""

    def __init__(self, name: str, events: Any, concurrency: int = 1) -> None:
        self.name = name
        self.batches: list[RunningBatch] = []  # in the order of arrival, also ended ones
        self.running: list[RunningBatch] = []
        self.cancelled: list[Inference] = []
        self.granted: list[tuple[Inference, int]] = []
        self.refusal: Exception | None = None  # raised by `execute`
        self.is_lost = False  # it is gone, and its owner has not heard of it yet
        self._events = events
        self._concurrency = concurrency
        self._is_open = True

    @property
    def free_slots(self) -> int:
        if self.is_lost or not self._is_open:
            return 0
        return self._concurrency - len(self.running)

    @property
    def is_idle(self) -> bool:
        return not self.running

    @property
    def has_requests(self) -> bool:
        return bool(self.running)

    @property
    def sizes(self) -> list[int]:
        return [len(batch.inferences) for batch in self.batches]

    @property
    def executing_batches(self) -> list[int]:
        return [batch.id for batch in self.running]

    def start(self) -> None:
        assert self._is_open

    def execute(self, inferences: list[Inference], now_ns: int) -> None:
        assert self.free_slots > 0, "given more than it takes"
        if self.refusal is not None:
            raise self.refusal
        batch = RunningBatch(len(self.batches), inferences, now_ns, set(range(len(inferences))))
        for each in inferences:
            each.instance = self
        self.batches.append(batch)
        self.running.append(batch)

    def cancel(self, inference: Inference) -> None:
        self.cancelled.append(inference)

    def grant(self, inference: Inference, count: int) -> None:
        self.granted.append((inference, count))

    def stop(self) -> None:
        self.die("the model was unloaded", is_lost=False)

    # What a test makes it do

    def finish(self, batch: RunningBatch | None = None) -> None:
        """Answer every request that is open, each with an empty response."""
        batch = batch or self.running[0]
        self.report(batch, [Outcome(p, response()) for p in sorted(batch.open_positions)])

    def fail(self, batch: RunningBatch | None = None, text: str = "failed") -> None:
        """Answer every request that is open with an error."""
        batch = batch or self.running[0]
        error = InternalError(text)
        self.report(batch, [Outcome(p, None, error) for p in sorted(batch.open_positions)])

    def report(self, batch: RunningBatch, outcomes: list[Outcome]) -> None:
        """Report outcomes, as an instance does: the batch is over before its owner hears."""
        batch.open_positions -= {outcome.position for outcome in outcomes if outcome.is_final}
        if not batch.open_positions:
            self.running.remove(batch)
        self._events.on_outcomes(self, batch, outcomes, (batch.started_ns, batch.started_ns))

    def lose(self) -> None:
        """Take no more batches; `die` follows."""
        self.is_lost = True
        self._events.on_unavailable(self)

    def die(self, reason: str = "its process ended", *, is_lost: bool = True) -> None:
        """End: open requests fail first, as the interface promises."""
        if not self._is_open:
            return
        self._is_open = False
        for batch in list(self.running):
            batch.is_lost = is_lost
            self.fail(batch, reason)
        self._events.on_died(self, reason)


class FakeSupervisor:
    """Has a model's word on its readiness, where a test gives it one, and replaces instances."""

    def __init__(self, check: Any = None, *, replaces: bool = False) -> None:
        self.check = check
        self.retired: list[Any] = []
        self._replaces = replaces

    @property
    def has_ready_check(self) -> bool:
        return self.check is not None

    async def check_ready(self) -> bool:
        return await self.check()

    def replaces(self, instance: Any, reason: str) -> bool:
        return self._replaces

    def on_retired(self, instance: Any) -> None:
        self.retired.append(instance)


class SelectiveTracing:
    """Traces every n-th request that comes alone, and keeps what it has traced."""

    reads_origins = True

    def __init__(self, rate: int) -> None:
        self.sampling = TraceSampling(rate, -1)
        self.origins: list[Any] = []

    def passes(self, model_name: str) -> bool:
        return self.sampling.passes_next()

    def begun(self, members: Any) -> Any:
        origin, spec = members.origin(), members.spec
        if members.chunk is not None:
            return None
        if not origin.traceparent and not self.sampling.takes_next():
            return None
        self.origins.append(origin)
        facts = TraceFacts(
            trace_id=1,
            number=1,
            model_name=spec.name,
            model_version=spec.version,
            request_id="",
            infer_id=1,
            model_id=2,
            start_ns=0,
        )
        return TraceWatcher(
            {0: facts}, types.SimpleNamespace(has_spans=True, end=lambda facts: None)
        )


def response() -> InferResponse:
    return InferResponse("m", "1", "", [])


def infer_request(*positional: Any, **fields: Any) -> InferRequest:
    """Returns a request with these fields, some of which may be those of `RequestFields`."""
    own = {name: fields.pop(name) for name in RequestFields.__struct_fields__ if name in fields}
    return InferRequest(*positional, fields=RequestFields(**own), **fields)


def request(rows: int = 1, **fields: Any) -> InferRequest:
    return infer_request(**{"model_name": "m", "inputs": {}, **fields}, rows=rows)


def inference(sink: RecordingSink | None = None, **fields: Any) -> Inference:
    """A request as the engine keeps it; fields are those of `InferRequest` and of `Inference`."""
    kept = {name: fields.pop(name) for name in Inference.__struct_fields__ if name in fields}
    return Inference(request(**fields), sink or RecordingSink(), **kept)


def model_spec(
    max_batch_size: int = 4,
    batcher: BatcherSpec | None = None,
    *,
    batches: bool = True,
    inputs: dict[str, ModelTensor] | None = None,
    **fields: Any,
) -> ModelSpec:
    """A model that batches dynamically, unless told otherwise."""
    inputs = inputs or {}
    return ModelSpec(
        **{"name": "m", "version": 1, "platform": "python", "outputs": {}, **fields},
        max_batch_size=max_batch_size,
        inputs=inputs,
        required_inputs=frozenset(inputs),
        batcher=(batcher or BatcherSpec()) if batches else None,
    )
