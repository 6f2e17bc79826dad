# SPDX-License-Identifier: Apache-2.0
"""The one place where requests are observed: traces, costs, recordings, access log, verbose lines.

An observer has one method, `begun`: it looks at requests that are about to be queued, a lone one or
the members of a chunk, and returns a `Watcher` if it wants to know what becomes of them. A watcher
is told once about all that end together (`answered`); the outcome of a lone request is a run of
one. So nobody who watches has one way for requests and another one for chunks.

Which requests:
    Those of clients, in the process that reads them and, if that is a front end, in the core, too:
    each engine has observers of its own. What the core has to know travels in the frame of the
    request (`Watcher.sent`), what the front end has to know in the last reply (`Watcher.charged`).
    Calls of models and steps of ensembles are parts of them: an observer sees them with
    `call_depth`, or not at all. Who makes them begins their traces, under the whole request.

When `begun` is called:
    Once for each request, before it is looked up, validated, admitted by quotas and queued. So a
    refusal is seen like any other end, and so is an answer from the cache. Requests that are
    submitted again were begun before: their strings were counted, or their model was replaced.

What may end a request, each once:
    an answer, alone or in the rows of a batch; an error; a refusal; the end of a stream, after any
    number of responses, of which a burst comes as one. One that is cancelled is told of first, and
    ends with an error like others, or with the answer that was on its way. A member of a chunk that
    is submitted alone keeps the watchers of its chunk, and its index.
    If a sink cannot take an answer, watchers do not see it: an error follows, which is the end.

What goes wrong in an observer:
    It is logged, and this observer sees no more of these requests. No request is harmed by it.

What it costs:
    An engine without observers asks one bit for each request or chunk. With some, a `Watch` is the
    sink between engine and client, and the instance knows it only if a watcher wants executions.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.base.columns import Column
from pytriton.base.messages import InferTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pytriton.base.errors import ServerError
    from pytriton.base.messages import (
        ChunkOrigins,
        ExecutionTimes,
        InferRequest,
        InferResponse,
        RequestCost,
        ResponseBurst,
        ResponseSink,
        TraceContext,
        TraceOrigin,
    )
    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.costs import TokenUsage
    from pytriton.serving.engine.served_model import ServedModel

logger = logging.getLogger(__name__)

# All that observe, in the order in which they see requests and their ends. None depends on another.
ORDER = ("tracing", "costs", "recording", "access log", "verbose lines")

_monotonic_ns = time.monotonic_ns


class Observer:
    """Looks at requests before they are queued."""

    # Whether it needs to know when requests began and what their clients say about traces, and has
    # to be asked by `passes` which of them may travel in chunks.
    reads_origins = False

    def begun(self, members: Members) -> Watcher | None:
        """Look at requests; returns what wants to know more of them, if anything does."""
        raise NotImplementedError

    def called(
        self, request: InferRequest, spec: ModelSpec, parent: TraceContext
    ) -> Watcher | None:
        """Look at a request that a model or an ensemble makes for one with this parent."""
        return None

    def passes(self, spec: ModelSpec) -> bool:
        """Returns whether the next request for a model may travel in a chunk.

        One that may is counted with its chunk. One that may not has to be begun by itself.
        """
        return True


class Members:
    """Requests that begin together; observers keep what they read, and not this object.

    Attributes:
        requests: The records of all of them; members of a chunk may share one, without inputs.
        sink: Who is told of their ends.
        chunk: The chunk; None for a lone request.
    """

    __slots__ = ("_find", "chunk", "requests", "sink")

    def __init__(
        self,
        requests: Sequence[InferRequest],
        sink: Any,
        chunk: Any,
        find: Callable[[], ServedModel | None],
    ) -> None:
        self.requests = requests
        self.sink = sink
        self.chunk = chunk
        self._find = find

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def spec(self) -> ModelSpec | None:
        """The specification of their model; None if there is none."""
        model = self._find()
        return None if model is None else model.spec

    def origin(self) -> TraceOrigin | ChunkOrigins | None:
        """Returns where they came from; None if no client has sent them."""
        origin = getattr(self.sink if self.chunk is None else self.chunk, "origin", None)
        return None if origin is None else origin()

    @property
    def callers(self) -> Sequence[Any]:
        """Whom the sink answers, for each of them."""
        return (self.sink,) if self.chunk is None else getattr(self.chunk, "callers", ())

    @property
    def watched(self) -> list[Any]:
        """What a port notes about each of them, as the property `watched` of its caller says.

        None for those that no client has sent, and if nobody wants notes.
        """
        return [getattr(caller, "watched", None) for caller in self.callers]

    def inputs(self, index: int) -> list[InferTensor]:
        """Returns the inputs of one of them; their memory is used again after its end."""
        chunk, request = self.chunk, self.requests[index]
        inputs = request.inputs if chunk is None else chunk.inputs_of(index, request.rows)
        return list(inputs.values())


class Run(msgspec.Struct):
    """What members get together, from `first` to `end` (without `end`); mostly it ends them."""

    first: int
    end: int
    answered_ns: int  # before their sink was told
    response: InferResponse | None = None  # the next ones are of a run of one
    burst: ResponseBurst | None = None
    error: ServerError | None = None
    is_final: bool = True
    is_refused: bool = False  # no model has seen it
    # Of the batch, if its columns answer them; see `ChunkSink.on_rows`.
    outputs: Sequence[Column] = ()
    row: int = 0
    row_starts: Sequence[int] = ()
    is_batched: bool = False

    def answers(self, index: int) -> Iterator[tuple[list[InferTensor], dict[str, Any]]]:
        """Yields the outputs and the parameters of each response to a member."""
        if self.row_starts:
            starts = self.row_starts
            row, end = (self.row + starts[each] - starts[self.first] for each in (index, index + 1))
            yield [each.tensor(row, end, is_batched=self.is_batched) for each in self.outputs], {}
        for response in (self.response,) if self.burst is None else self.burst.responses():
            if response is not None:
                yield response.outputs, response.parameters or {}


class Watcher:
    """What an observer wants to know of members; what it leaves out is nothing to it."""

    sees_executions = False  # whether it has one of the methods below `answered`

    def answering(self, run: Run) -> None:
        """Called before members get something; an answer's memory may be written to after that."""

    def answered(self, run: Run) -> None:
        """Called when members got an answer, an error or their end."""

    def contexts(
        self, first: int, end: int, *, is_model_file: bool
    ) -> Iterable[tuple[int, TraceContext]]:
        """Returns the parents for what the executing process adds to traces, by index."""
        return ()

    def trace_id(self, index: int) -> str:
        """Returns the id by which users find the trace of a member; empty if it has none."""
        return ""

    def add_execution(self, first: int, end: int, times_ns: ExecutionTimes) -> None:
        """Called with an execution of members, or with one more of its responses."""

    def add_usage(self, index: int, usage: TokenUsage) -> None:
        """Called with the tokens of a request of OpenAI's routes, which is about to end."""

    def on_cancelled(self, index: int) -> None:
        """Called when the client has cancelled a member."""

    def sent(self, item: Any, index: int | None = None) -> None:
        """Called with the frame by which a member goes to the core, or all if there is no index."""

    def taken_back(self, index: int) -> None:
        """Called if the core has not taken a member, which is submitted again."""

    def charged(self, first: int, end: int, cost: RequestCost) -> None:
        """Called with what the core says that each of these members has cost."""


class Watch:
    """The watchers of requests: their sink, which passes everything on, and their trace.

    See `ResponseSink` and `ChunkSink` for the one, `ExecutionTrace` for the other.
    """

    __slots__ = ("_is_batched", "_sink", "_watchers", "sees_executions")

    def __init__(self, sink: Any, watchers: Iterable[Watcher], *, is_batched: bool = False) -> None:
        self._sink = sink
        self._watchers = list(watchers)
        self._is_batched = is_batched
        self.sees_executions = any(each.sees_executions for each in self._watchers)

    def _tell(self, tell: Callable[[Watcher], Any]) -> list[Any]:
        """Tell all watchers, and forget those that fail; returns what they say."""
        answers = []
        for watcher in tuple(self._watchers):
            try:
                answers.append(tell(watcher))
            except Exception:  # noqa: PERF203  the others are told
                self._watchers.remove(watcher)
                logger.exception("%s could not observe a request", type(watcher).__name__)
        return answers

    def _pass(self, run: Run, pass_on: Callable[[], None]) -> None:
        """Pass on what members get. What is no error and cannot be passed on has not come."""
        self._tell(lambda each: each.answering(run))
        try:
            pass_on()
        except Exception:
            if run.error is not None:
                self._tell(lambda each: each.answered(run))
            raise
        self._tell(lambda each: each.answered(run))

    # A lone request

    def on_response(self, response: InferResponse | None, *, final: bool) -> None:
        """Pass a response on."""
        run = Run(0, 1, _monotonic_ns(), response, is_final=final)
        self._pass(run, lambda: self._sink.on_response(response, final=final))

    def on_burst(self, burst: ResponseBurst) -> None:
        """Pass many responses on, as the sink takes them."""
        run = Run(0, 1, _monotonic_ns(), burst=burst, is_final=False)
        self._pass(run, partial(_pass_burst, self._sink, burst))

    def on_error(self, error: ServerError, *, final: bool = True) -> None:
        """Pass an error on."""
        run = Run(0, 1, _monotonic_ns(), error=error, is_final=final)
        self._pass(run, lambda: self._sink.on_error(error, final=final))

    def on_refused(self, error: ServerError) -> None:
        """Pass a refusal on."""
        run = Run(0, 1, _monotonic_ns(), error=error, is_refused=True)
        self._pass(run, lambda: self._sink.on_refused(error))

    # A chunk

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[Column], row: int
    ) -> None:
        """Pass on the answers of members."""
        run = Run(first, end, _monotonic_ns(), outputs=outputs, row=row)
        run.row_starts, run.is_batched = chunk.row_starts, self._is_batched
        self._pass(run, lambda: self._sink.on_rows(chunk, first, end, outputs, row))

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """Pass on the end of one member."""
        run = Run(index, index + 1, _monotonic_ns(), response, error=error, is_refused=is_refused)
        tell = partial(self._sink.on_outcome, chunk, index, response, error, is_refused=is_refused)
        self._pass(run, tell)

    # What is on the way between the two

    def contexts(
        self, first: int, end: int, *, is_model_file: bool
    ) -> list[tuple[int, TraceContext]]:
        """See `Watcher`, as all of these."""
        found = self._tell(
            lambda each: list(each.contexts(first, end, is_model_file=is_model_file))
        )
        return [context for each in found for context in each]

    def trace_id(self, index: int) -> str:
        return "".join(self._tell(lambda each: each.trace_id(index)))

    def add_execution(self, first: int, end: int, times_ns: ExecutionTimes) -> None:
        self._tell(lambda each: each.add_execution(first, end, times_ns))

    def add_usage(self, index: int, usage: TokenUsage) -> None:
        self._tell(lambda each: each.add_usage(index, usage))

    def on_cancelled(self, index: int) -> None:
        self._tell(lambda each: each.on_cancelled(index))

    def sent(self, item: Any, index: int | None = None) -> None:
        self._tell(lambda each: each.sent(item, index))

    def taken_back(self, index: int) -> None:
        self._tell(lambda each: each.taken_back(index))

    def charged(self, first: int, end: int, cost: RequestCost) -> None:
        self._tell(lambda each: each.charged(first, end, cost))


def _pass_burst(sink: Any, burst: ResponseBurst) -> None:
    if hasattr(sink, "on_burst"):
        sink.on_burst(burst)
    else:
        for response in burst.responses():
            sink.on_response(response, final=False)


class Observers:
    """Those who observe the requests of one engine.

    `find` returns the model that a name and a version mean.

    Attributes:
        are_there: Whether there are any: what submits requests asks it, and then calls `begin`.
        reads_origins: See `Observer`.
    """

    __slots__ = ("_by_name", "_find", "are_there", "reads_origins")

    def __init__(self, find: Callable[[str, str], ServedModel | None]) -> None:
        self._find = find
        self._by_name: dict[str, Observer] = {}
        self.are_there = self.reads_origins = False

    def add(self, name: str, observer: Observer) -> None:
        """Show requests to an observer from now on; its name is one of `ORDER`."""
        known = {**self._by_name, name: observer}
        self._use({each: known[each] for each in sorted(known, key=ORDER.index)})

    def remove(self, name: str) -> None:
        """Show an observer no more requests; those that it has seen still end."""
        self._use({each: found for each, found in self._by_name.items() if each != name})

    def _use(self, by_name: dict[str, Observer]) -> None:
        self._by_name = by_name
        self.are_there = bool(by_name)
        self.reads_origins = any(each.reads_origins for each in by_name.values())

    def passes(self, spec: ModelSpec) -> bool:
        """Returns whether the next request for a model may travel in a chunk; see `Observer`."""
        return all(each.passes(spec) for each in self._by_name.values() if each.reads_origins)

    def begin(self, inference: Inference, model: ServedModel | None = None) -> None:
        """Show a request that is about to be queued or refused; `model` is its model, if known."""
        request = inference.request

        def find() -> ServedModel | None:
            return model or self._find(request.model_name, request.model_version)

        watch = self._begin(Members((request,), inference.sink, None, find))
        if watch is not None:
            inference.sink = watch
            if watch.sees_executions:
                inference.trace = watch

    def begin_chunk(self, chunk: Any, model: ServedModel) -> None:
        """Show the members of a chunk that are about to be queued."""
        requests = [member.request for member in chunk.members]
        watch = self._begin(Members(requests, chunk.sink, chunk, lambda: model))
        if watch is not None:
            chunk.sink = watch
            if watch.sees_executions:
                chunk.trace = watch

    def begin_call(
        self, request: InferRequest, spec: ModelSpec, parent: TraceContext, sink: ResponseSink
    ) -> Watch | None:
        """Show a request that a model or an ensemble makes; see `Observer.called`."""
        watchers = self._ask(lambda each: each.called(request, spec, parent))
        return Watch(sink, watchers) if watchers else None

    def _begin(self, members: Members) -> Watch | None:
        watchers = self._ask(lambda each: each.begun(members))
        if not watchers:
            return None
        spec = members.spec if members.chunk is not None else None
        is_batched = spec is not None and spec.max_batch_size > 0
        return Watch(members.sink, watchers, is_batched=is_batched)

    def _ask(self, ask: Callable[[Observer], Watcher | None]) -> list[Watcher]:
        watchers = []
        for name, observer in self._by_name.items():
            try:
                watcher = ask(observer)
            except Exception:  # noqa: PERF203  the others see it
                logger.exception("a request could not be observed for %s", name)
            else:
                if watcher is not None:
                    watchers.append(watcher)
        return watchers
