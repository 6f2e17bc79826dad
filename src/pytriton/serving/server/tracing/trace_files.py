# SPDX-License-Identifier: Apache-2.0
"""Exports traced requests to files, in the mode `triton`.

`FileExporter` gathers the requests of each trace, `TraceCollection` decides when traces are
written and to which kind of file, and `TraceFileWriter` writes them in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import itertools
import logging
import os
import pathlib
import queue
import stat
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from pytriton.base import dtypes
from pytriton.base.threads import start_thread
from pytriton.serving.server.tracing.request_trace import TraceCost, cost_of, receiving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytriton.base.dtypes import DataType
    from pytriton.base.messages import ExecutionTimes
    from pytriton.serving.server.tracing.request_trace import TensorFact, TraceFacts
    from pytriton.serving.server.tracing.settings import TraceSampling

logger = logging.getLogger(__name__)

TimedEvent = tuple[str, int]
Trace = list["TraceFacts"]  # a request of a client, and the calls that were made for it

# Traces are not kept longer than until they have about this size.
MAX_KEPT_BYTES = 64 << 20
_FACTS_BYTES = 2048  # about the size of the facts of a request, without tensors
# How long a trace waits to be written, together with those that end in the meantime.
_WRITE_AFTER_S = 1.0
# Requests of one trace, with the calls that models make: a stream may make them without end.
_MAX_REQUESTS = 10_000
# Elements that are written without letting other threads run: 4096 take a millisecond.
_CHUNK = 4096
# Traces that wait for the disk; more are dropped.
_MAX_WAITING_BYTES = 256 << 20
_NUMBER = "\0"  # stands for the number of a request
_MODE = 0o666  # less what the process's mask takes away


class TraceTarget(enum.Enum):
    """Where traces are written to."""

    MAIN = "the file of the settings"
    NUMBERED = "the next file with a number"


class TraceBatch(NamedTuple):
    """Traces that are written together."""

    target: TraceTarget
    traces: list[Trace]
    size: int  # about the memory that they take


class TraceCollection:
    """The traces of one setting.

    With a log frequency they are written when there are that many. Without, they are written
    whenever somebody asks for it; but those of a limited number together, after the last one.
    """

    def __init__(self, sampling: TraceSampling) -> None:
        self._frequency = sampling.log_frequency
        self._count = sampling.count
        self._begun = 0
        self._open = 0
        self._kept: list[Trace] = []
        self._size = 0
        self.is_retired = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.is_retired and not self._open and not self._kept

    @property
    def is_written_soon(self) -> bool:
        """Whether its traces wait only for somebody who asks for them."""
        return bool(self._kept) and not self._frequency and self._count < 0

    def begin(self, count: int = 1) -> None:
        """Note that traces have begun."""
        self._begun += count
        self._open += count

    def end(self, trace: Trace) -> TraceBatch | None:
        """Add a trace that has ended, or nothing of it; returns traces to write."""
        self._open -= 1
        if trace:
            self._kept.append(trace)
            self._size += sum(map(facts_bytes, trace))
        return self._due()

    def end_all(self, traces: list[Trace]) -> TraceBatch | None:
        """Add traces that have ended; returns traces to write.

        Only for traces without a log frequency or a limit: those are written one after another.
        """
        self._open -= len(traces)
        self._kept += traces
        self._size += sum([facts_bytes(trace[0]) for trace in traces])
        return self._due()

    def retire(self) -> TraceBatch | None:
        """Note that no trace begins any more; returns traces to write."""
        self.is_retired = True
        return self._due()

    def take(self) -> TraceBatch | None:
        """Returns all kept traces."""
        if not self._kept:
            return None
        return self._batch(TraceTarget.NUMBERED if self._frequency else TraceTarget.MAIN)

    def _due(self) -> TraceBatch | None:
        if not self._kept:
            return None
        is_last = not self._open
        if self._frequency and len(self._kept) >= self._frequency:
            return self._batch(TraceTarget.NUMBERED)
        if is_last and self._begun == self._count:
            return self._batch(TraceTarget.NUMBERED)
        if (is_last and self.is_retired) or self._size > MAX_KEPT_BYTES:
            return self.take()
        return None

    def _batch(self, target: TraceTarget) -> TraceBatch:
        batch = TraceBatch(target, self._kept, self._size)
        self._kept, self._size = [], 0
        return batch


def facts_bytes(facts: TraceFacts) -> int:
    """Returns about the memory that the facts of a request take."""
    if not facts.tensors:
        return _FACTS_BYTES
    return _FACTS_BYTES + sum(len(tensor.data) for tensor in facts.tensors)


class _OpenTrace:
    """A request of a client that has not ended, or that made calls that have not."""

    __slots__ = ("collection", "numbers", "open_count", "requests", "root")

    def __init__(self, root: TraceFacts, collection: TraceCollection) -> None:
        self.root = root
        self.collection = collection
        self.requests: Trace = []
        self.numbers: dict[int, int] = {}  # of its requests, by the ids of their spans
        self.open_count = 0


class FileExporter:
    """Gathers the requests of each trace, and has whole traces written; see `TraceExporter`."""

    has_spans = False

    def __init__(
        self, writer: TraceFileWriter, call_later: Callable[[float, Callable[[], None]], Any]
    ) -> None:
        self._writer = writer
        self._call_later = call_later
        self._open: dict[int, _OpenTrace] = {}  # by their ids
        self._collections: dict[TraceSampling, TraceCollection] = {}
        self._numbers = itertools.count()
        self._is_writing_due = False

    def begin(self, facts: TraceFacts) -> bool:
        """Begin a request; False for a call of a trace that is over, or has very many calls."""
        if facts.is_call:
            trace = self._open.get(facts.trace_id)
            if trace is None or len(trace.requests) >= _MAX_REQUESTS:
                return False
            facts.parent_number = trace.numbers.get(facts.parent_id, trace.root.number)
        else:
            trace = self._open[facts.trace_id] = self._new_trace(facts)
        sampling = trace.root.sampling
        assert sampling is not None, "requests of clients are sampled"
        facts.has_timestamps = sampling.has_timestamps
        facts.tensors = [] if sampling.has_tensors else None
        trace.open_count += 1
        trace.requests.append(facts)
        trace.numbers[facts.model_id] = facts.number
        return True

    def _new_trace(self, root: TraceFacts) -> _OpenTrace:
        sampling = root.sampling
        assert sampling is not None, "requests of clients are sampled"
        collection = self._collection_of(sampling)
        collection.begin()
        return _OpenTrace(root, collection)

    def _collection_of(self, sampling: TraceSampling) -> TraceCollection:
        collection = self._collections.get(sampling)
        if collection is None:
            collection = self._collections[sampling] = TraceCollection(sampling)
        return collection

    def begin_members(self, members: Iterable[TraceFacts], sampling: TraceSampling) -> None:
        """Begin members of a chunk; their calls belong to them once `expect_calls` was called."""
        count = 0
        for facts in members:
            count += 1
            facts.has_timestamps = sampling.has_timestamps
            if sampling.has_tensors:
                facts.tensors = []
        self._collection_of(sampling).begin(count)

    def expect_calls(self, facts: TraceFacts) -> None:
        """Add the calls that are made for a member of a chunk to its trace."""
        assert facts.sampling is not None, "requests of clients are sampled"
        if facts.trace_id not in self._open:  # it may be executed again
            trace = _OpenTrace(facts, self._collection_of(facts.sampling))
            trace.open_count = 1
            trace.requests.append(facts)
            trace.numbers[facts.model_id] = facts.number
            self._open[facts.trace_id] = trace

    def end_members(self, members: list[TraceFacts], sampling: TraceSampling) -> None:
        """Have the traces of members of a chunk written, each with the last of its requests."""
        if self._open or sampling.log_frequency or sampling.count >= 0:
            for facts in members:
                if facts.trace_id in self._open:
                    self.end(facts)
                else:
                    self._end_trace(self._collection_of(sampling), sampling, [facts])
            return
        collection = self._collection_of(sampling)
        seen = [[facts] for facts in members if not facts.is_refused]
        for _ in range(len(members) - len(seen)):
            self._write(collection.end([]))
        self._write(collection.end_all(seen))
        self._write_later(collection, sampling)

    def end(self, facts: TraceFacts) -> None:
        """Have a trace written with the last of its requests."""
        trace = self._open[facts.trace_id]
        trace.open_count -= 1
        if trace.open_count:
            return
        del self._open[facts.trace_id]
        self._end_trace(trace.collection, trace.root.sampling, trace.requests)

    def _end_trace(
        self, collection: TraceCollection, sampling: TraceSampling | None, requests: Trace
    ) -> None:
        # As in Triton, requests that were refused before they were queued leave no trace.
        seen = [request for request in requests if not request.is_refused]
        self._write(collection.end(seen))
        self._write_later(collection, sampling)

    def _write_later(self, collection: TraceCollection, sampling: TraceSampling | None) -> None:
        if collection.is_written_soon and not self._is_writing_due:
            self._is_writing_due = True
            self._call_later(_WRITE_AFTER_S, self._write_soon)
        self._forget_if_over(collection, sampling)

    def retire(self, sampling: TraceSampling) -> None:
        """Have the traces of a setting written after the last one."""
        collection = self._collections.get(sampling)
        if collection is not None:
            self._write(collection.retire())
            self._forget_if_over(collection, sampling)

    def _forget_if_over(self, collection: TraceCollection, sampling: TraceSampling | None) -> None:
        if collection.is_over and sampling is not None:
            self._collections.pop(sampling, None)

    def _write_soon(self) -> None:
        self._is_writing_due = False
        for collection in self._collections.values():
            if collection.is_written_soon:
                self._write(collection.take())

    def _write(self, batch: TraceBatch | None) -> None:
        if batch is not None:
            number = next(self._numbers) if batch.target is TraceTarget.NUMBERED else None
            self._writer.write(batch.traces, batch.size, number)

    async def close(self, timeout_s: float) -> None:
        """Write what is left; requests that have not ended are left out."""
        for collection in self._collections.values():
            self._write(collection.take())
        self._collections.clear()
        await self._writer.close(timeout_s)


def tensor_text(dtype: DataType, data: bytes) -> str:
    """Returns the elements, separated by commas; strings are quoted as in JSON."""
    return ",".join(_parts(dtype, data))


def _parts(dtype: DataType, data: bytes) -> Iterator[str]:
    if dtype is dtypes.BYTES:
        elements = dtypes.decode_bytes(data)
        for start in range(0, len(elements), _CHUNK):
            yield ",".join([_quoted(element) for element in elements[start : start + _CHUNK]])
        return
    array = np.frombuffer(data, dtype.numpy)
    is_fraction = dtype.name in ("FP16", "BF16", "FP32", "FP64")
    for start in range(0, len(array), _CHUNK):
        values = array[start : start + _CHUNK]
        if is_fraction:
            yield ",".join([f"{value:g}" for value in values.astype(np.float64).tolist()])
        else:
            yield ",".join([str(int(value)) for value in values.tolist()])  # True is 1


def _quoted(element: bytes) -> str:
    return orjson.dumps(element.decode(errors="backslashreplace")).decode()


def trace_text(requests: Iterable[TraceFacts]) -> str:
    """Returns the objects of a traced request and of its calls, separated by commas."""
    ordered = sorted(requests, key=lambda facts: -facts.number)
    return ",".join([text for facts in ordered for text in _objects(facts)])


def _objects(facts: TraceFacts) -> list[str]:
    """Returns the objects of a request; some of the texts have several, separated by commas."""
    tensors = [_tensor(facts, tensor) for tensor in facts.tensors or ()]
    if not facts.has_timestamps:
        return tensors
    number = str(facts.number)
    texts = [_events_text((event,)).replace(_NUMBER, number) for event in receiving(facts)]
    texts.append(_model(facts))
    queued_ns = facts.executions[0].times_ns.queued_ns if facts.executions else facts.start_ns
    events: tuple[TimedEvent, ...] = (("REQUEST_START", facts.start_ns), ("QUEUE_START", queued_ns))
    if tensors:
        texts += [_events_text(events).replace(_NUMBER, number), *tensors]
        events = ()
    if not facts.is_ensemble:  # its steps have these times
        for execution in facts.executions:
            events += _computed(execution.times_ns)
    events += (("REQUEST_END", facts.answered_ns), *facts.events)
    texts.append(_events_text(events).replace(_NUMBER, number))
    return texts


def _model(facts: TraceFacts) -> str:
    text = (
        f'{{"id":{facts.number},"model_name":{_json_text(facts.model_name)},'
        f'"model_version":{facts.model_version}'
    )
    if facts.request_id:
        text += f',"request_id":{orjson.dumps(facts.request_id).decode()}'
    if facts.parent_number:
        text += f',"parent_id":{facts.parent_number}'
    cost = cost_of(facts)
    if cost is not None:  # not one of Triton's members; its readers do not look at it
        text += f',"cost":{_cost_text(cost)}'
    return text + "}"


# Requests of one batch have the same costs.
@functools.lru_cache(64)
def _cost_text(cost: TraceCost) -> str:
    return orjson.dumps(cost._asdict()).decode()


@functools.lru_cache(256)
def _json_text(text: str) -> str:
    return orjson.dumps(text).decode()


def _computed(times_ns: ExecutionTimes) -> tuple[TimedEvent, ...]:
    return (
        ("COMPUTE_START", times_ns.started_ns),
        ("COMPUTE_INPUT_END", times_ns.infer_start_ns),
        ("COMPUTE_OUTPUT_START", times_ns.output_start_ns),
        ("COMPUTE_END", times_ns.ended_ns),
    )


# Requests of one batch share nearly all their times: their text is made once, which takes 4 us.
@functools.lru_cache(64)
def _events_text(events: tuple[TimedEvent, ...]) -> str:
    """Returns the objects of events, with a mark in the place of the number of the request."""
    return ",".join(
        [
            f'{{"id":{_NUMBER},"timestamps":[{{"name":"{name}","ns":{at_ns}}}]}}'
            for name, at_ns in events
        ]
    )


def _tensor(facts: TraceFacts, tensor: TensorFact) -> str:
    described = {
        "name": tensor.name,
        "data": tensor_text(tensor.dtype, tensor.data),
        "shape": ",".join(map(str, tensor.shape)),
        "dtype": tensor.dtype.name,
    }
    fields = {"id": facts.number, "activity": tensor.activity, "tensor": described}
    return orjson.dumps(fields).decode()


class _Job(NamedTuple):
    traces: list[Trace]
    size: int
    number: int | None  # None: the file of the settings


class TraceFileWriter:
    """Writes the files of one server in a thread; those with numbers are beside the main file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()  # of the number of bytes
        self._thread: threading.Thread | None = None
        self._main = MainFile(path)
        self._has_failed = self._has_dropped = False
        self._on_closed: list[asyncio.Future[None]] = []

    def write(self, traces: list[Trace], size: int, number: int | None) -> None:
        """Write traces soon, unless too many wait already."""
        if self._thread is None:
            self._thread = start_thread(self._run, "trace files")
        if self._thread is None:
            self._report_loss("the server has no thread left to write them")
            return
        with self._lock:
            is_full = self._waiting_bytes > _MAX_WAITING_BYTES
            if not is_full:
                self._waiting_bytes += size
        if is_full:
            self._report_loss(f"{self._path} is not written as fast")
        else:
            self._jobs.put(_Job(traces, size, number))

    def _report_loss(self, reason: str) -> None:
        if not self._has_dropped:
            self._has_dropped = True
            logger.warning("Traces are lost: %s", reason)

    async def close(self, timeout_s: float) -> None:
        """Wait until everything is written, or for `timeout_s`."""
        if self._thread is None:
            return
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()
        self._on_closed.append(closed)
        self._jobs.put(None)
        await asyncio.wait([closed], timeout=timeout_s)
        if not closed.done():
            logger.warning("The last traces could not be written within %g s.", timeout_s)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._write(job)
            except OSError as error:
                if not self._has_failed:
                    logger.error("Traces cannot be written, and are lost: %s", error)  # noqa: TRY400  it is about the disk
                self._has_failed = True
            except Exception:
                logger.exception("Traces cannot be written")
            with self._lock:
                self._waiting_bytes -= job.size
        for closed in self._on_closed:
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                closed.get_loop().call_soon_threadsafe(closed.set_result, None)

    def _write(self, job: _Job) -> None:
        texts = [text for trace in job.traces if (text := trace_text(trace))]
        if not texts:
            return
        data = ",".join(texts).encode()
        if job.number is None:
            self._main.add(data)
        else:
            _write_whole(f"{self._path}.{job.number}", data)


class MainFile:
    """The file to which traces are added; an older file of that name is replaced."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: tuple[int, int, int] | None = None  # its device, number and size

    def add(self, data: bytes) -> None:
        """Add objects, separated by commas; raises OSError, and the file is as it was then."""
        path = os.path.realpath(self._path)  # a link stays a link
        try:
            found = pathlib.Path(path).stat()
        except FileNotFoundError:
            found = None
        if found is not None and not stat.S_ISREG(found.st_mode):
            _write_document(path, data)
            return
        if found is not None and self._known == _identity(found):
            self._append(path, data, found.st_size)
        else:  # there is none, it is not ours, or ours was moved away
            _write_whole(path, data)
        self._known = _identity(pathlib.Path(path).stat())

    def _append(self, path: str, data: bytes, size: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        start = size - 1  # in the place of the closing bracket
        try:
            os.lseek(descriptor, start, os.SEEK_SET)
            try:
                _write_all(descriptor, b",%b]" % data)
            except OSError:
                os.ftruncate(descriptor, start)
                os.lseek(descriptor, start, os.SEEK_SET)
                os.write(descriptor, b"]")
                raise
        finally:
            os.close(descriptor)


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_dev, found.st_ino, found.st_size


def _write_document(path: str, data: bytes) -> None:
    """Write to a pipe or a terminal, which gets documents one by one."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        _write_all(descriptor, b"[%b]\n" % data)
    finally:
        os.close(descriptor)


def _write_whole(path: str, data: bytes) -> None:
    """Write a file that appears when it is complete."""
    part = pathlib.Path(f"{path}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    descriptor = os.open(part, flags, _MODE)
    try:
        try:
            _write_all(descriptor, b"[%b]" % data)
        finally:
            os.close(descriptor)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
