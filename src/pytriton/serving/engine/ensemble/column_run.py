# SPDX-License-Identifier: Apache-2.0
"""Runs chunks of small requests through an ensemble whose steps follow one another.

The members that a batch of one step has answered are a slab: their tensors are rows of the columns
of batches, and the next step takes them together, without a record for each tensor. A member that
cannot go on in this way continues as an ordinary request.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton.base.columns import Column, ColumnKind
from pytriton.base.errors import CancelledError, ServerError, error_for_clients
from pytriton.base.messages import (
    InferRequest,
    InferResponse,
    InferTensor,
)
from pytriton.runtime.executor import device_regions
from pytriton.runtime.executor.columns import (
    Chunk,
    ChunkRun,
    ChunkSignature,
    make_members,
    shared_request,
)
from pytriton.runtime.executor.device_blocks import taking_of
from pytriton.serving.engine.delivery import deliver_run
from pytriton.serving.engine.validation import UncountedStringsError, validate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytriton.runtime.executor.columns import Buffer
    from pytriton.runtime.executor.inference import Inference
    from pytriton.serving.engine.ensemble.ensemble_model import EnsembleModel
    from pytriton.serving.engine.ensemble.graph import Plan, Step
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.engine.stats import BatchRecord


class Source(NamedTuple):
    """A tensor of the members of a client's chunk."""

    kind: ColumnKind
    pieces: Callable[[int, int], list[Buffer]]  # the bytes of some members, by index


def _input_source(chunk: Chunk, place: int) -> Source:
    """Returns an input of the ensemble, in the columns of the client's chunk."""
    return Source(chunk.signature.inputs[place], partial(chunk.pieces, place))


def _rows_source(column: Column, starts: Sequence[int], offset: int) -> Source:
    """Returns an output of a step, in a column of the batch that has computed it.

    `starts` are the first rows of the members of the client's chunk, and `offset` is what to add to
    them for the rows of the batch.
    """

    def pieces(first: int, end: int) -> list[Buffer]:
        return [column.part(starts[first] + offset, starts[end] + offset)]

    return Source(column, pieces)


class Slab:
    """Neighbours of a client's chunk that have the same step next, and their tensors."""

    __slots__ = ("chunk", "compute_ns", "end", "first", "plan", "position", "sources")

    def __init__(
        self,
        plan: Plan,
        chunk: Chunk,
        extent: tuple[int, int],
        sources: Mapping[str, Source],
        position: int = 0,
        compute_ns: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self.plan = plan
        self.chunk = chunk
        self.first, self.end = extent
        self.sources = sources
        self.position = position  # of the next step in the plan's chain
        self.compute_ns = compute_ns  # the times of the steps before it

    def after_step(self, extent: tuple[int, int], outputs: Sequence[Column], row: int) -> Slab:
        """Returns the slab of those members that a batch has answered."""
        plan, position, starts = self.plan, self.position, self.chunk.row_starts
        written = plan.chain[position].outputs
        live = plan.live[position]
        sources = {name: source for name, source in self.sources.items() if name in live}
        offset = row - starts[extent[0]]
        for output in outputs:
            tensor = written.get(output.name)
            if tensor is not None:
                sources[tensor] = _rows_source(output, starts, offset)
        return Slab(plan, self.chunk, extent, sources, position + 1, self.compute_ns)

    def part(self, first: int, end: int) -> Slab:
        extent = (first, end)
        return Slab(self.plan, self.chunk, extent, self.sources, self.position, self.compute_ns)

    def add_times(self, record: BatchRecord | None) -> None:
        """Add the compute times of the batch."""
        if record is not None:
            input_ns, infer_ns, output_ns = self.compute_ns
            self.compute_ns = (
                input_ns + record.infer_start_ns - record.input_start_ns,
                infer_ns + record.output_start_ns - record.infer_start_ns,
                output_ns + record.end_ns - record.output_start_ns,
            )

    def rows_of(self, index: int) -> int:
        """Returns the number of rows of a member."""
        starts = self.chunk.row_starts
        return starts[index + 1] - starts[index]

    @property
    def most_rows(self) -> int:
        """The number of rows of the largest member."""
        starts = self.chunk.row_starts
        if isinstance(starts, range):
            return starts.step
        return max(map(self.rows_of, range(self.first, self.end)))

    def tensors_of(self, index: int) -> dict[str, InferTensor]:
        """Returns the tensors of a member; it keeps the memory of the whole batch."""
        tensors = {}
        for name, source in self.sources.items():
            (data,) = source.pieces(index, index + 1)
            tensor = source.kind.with_data(self.rows_of(index), data, is_batched=self.plan.batches)
            tensor.name = name
            tensors[name] = tensor
        return tensors

    def output_columns(self) -> list[Column]:
        """Returns the outputs of the ensemble for these members, from their first row on."""
        columns = []
        for name in self.plan.outputs:
            source = self.sources.get(name)
            if source is not None:
                pieces = source.pieces(self.first, self.end)
                data = memoryview(pieces[0] if len(pieces) == 1 else b"".join(pieces))
                kind = source.kind
                columns.append(Column(name, kind.dtype, kind.shape, kind.row_bytes, data))
        return columns


_MAX_SIGNATURES = 256


class StepChunk(Chunk, kw_only=True, eq=False):
    """The members of a slab as requests to the model of a step."""

    slab: Slab
    model: ManagedModel
    sources: list[Source]  # of its inputs

    @classmethod
    def of(
        cls,
        sink: ColumnRuns,
        slab: Slab,
        signature: ChunkSignature,
        model: ManagedModel,
        step: Step,
    ) -> StepChunk:
        first, end, starts = slab.first, slab.end, slab.chunk.row_starts
        row_starts: Sequence[int]
        if isinstance(starts, range):
            row_starts = range(0, (end - first + 1) * starts.step, starts.step)
        else:
            row_starts = [starts[index] - starts[first] for index in range(first, end + 1)]
        sources = [slab.sources[each.tensor] for each in step.inputs if each.tensor in slab.sources]
        return cls(
            signature,
            sink,
            row_starts,
            open_count=end - first,
            slab=slab,
            model=model,
            sources=sources,
        )

    def pieces(self, column: int, first: int, end: int) -> list[Buffer]:
        offset = self.slab.first
        return self.sources[column].pieces(first + offset, end + offset)

    def cancel(self, index: int) -> None:
        """Cancel a member, given its index in the client's chunk, if it is here."""
        slab = self.slab
        if self.members and slab.first <= index < slab.end:
            self.members[index - slab.first].cancel()


class ColumnRuns:
    """The chunks that run through the steps of one ensemble; it is the sink of their steps."""

    def __init__(self, owner: EnsembleModel) -> None:
        self.running = 0  # members
        self._owner = owner
        # By step, rows and columns of inputs. None: such a request does not fit to the model.
        self._signatures: dict[object, tuple[ManagedModel, ChunkSignature | None]] = {}
        self._open: dict[int, list[StepChunk]] = {}  # by the `id` of the client's chunk
        self._cancelled: set[Inference] = set()  # members that have not ended yet

    def start(self, plan: Plan, members: Sequence[Inference], *, is_complete: bool) -> None:
        """Submit the members of a client's chunk to the first step."""
        chunk = members[0].chunk
        assert chunk is not None
        self.running += len(members)
        sources = {
            column.name: _input_source(chunk, index)
            for index, column in enumerate(chunk.signature.inputs)
        }
        try:
            for extent in _extents(members):
                self._submit(Slab(plan, chunk, extent, sources), is_complete=is_complete)
        except Exception as failure:  # noqa: BLE001  the clients get it
            error = error_for_clients(failure, "it started the first step of an ensemble")
            for member in members:
                if not member.is_over:
                    self._fail(member, error)

    def cancel(self, member: Inference) -> None:
        """Cancel a member at its step; it goes to no other step."""
        open_chunks = self._open.get(id(member.chunk))
        if open_chunks is None:
            return
        self._cancelled.add(member)
        for chunk in list(open_chunks):
            chunk.cancel(member.index)

    def _submit(self, slab: Slab, *, is_complete: bool = False) -> None:
        if not slab.plan.chain:  # the requested outputs are inputs
            self._continue_all(slab)
            return
        step = slab.plan.chain[slab.position]
        model = self._owner.find(step)
        signature = None
        if model is not None and takes_step_chunks(model) and not self._has_device_reader(slab):
            signature = self._signature(step, model, slab)
        if model is None or signature is None:
            self._continue_all(slab)
            return
        chunk = StepChunk.of(self, slab, signature, model, step)
        self._open.setdefault(id(slab.chunk), []).append(chunk)
        now_ns = time.monotonic_ns()
        requests = _step_requests(slab, step, signature, now_ns)
        model.submit_chunk(make_members(chunk, model, requests), now_ns, is_complete=is_complete)

    def _has_device_reader(self, slab: Slab) -> bool:
        """Returns whether the step after the next one takes its inputs in GPU memory.

        Outputs of a chunk are columns in host memory; those of a request can stay where they are.
        """
        chain, after = slab.plan.chain, slab.position + 1
        if not device_regions.has_keeping() or after >= len(chain):
            return False
        reader = self._owner.find(chain[after])
        return reader is not None and not taking_of(reader.spec, reader.instances).reason

    def _signature(self, step: Step, model: ManagedModel, slab: Slab) -> ChunkSignature | None:
        """Returns the signature of a step's requests; None if they do not fit to its model."""
        columns = tuple(
            ColumnKind(each.name, source.kind.dtype, source.kind.shape, source.kind.row_bytes)
            for each in step.inputs
            if (source := slab.sources.get(each.tensor)) is not None
        )
        rows = slab.most_rows
        described = [(each.name, each.dtype.number, each.shape, each.row_bytes) for each in columns]
        key = (step.index, rows, tuple(described))
        known = self._signatures.get(key)
        if known is not None and known[0] is model:
            return known[1]
        signature = _checked_signature(step, model, columns, rows)
        if len(self._signatures) >= _MAX_SIGNATURES:
            self._signatures.clear()
        self._signatures[key] = (model, signature)
        return signature

    # Called by the models of steps

    def on_rows(
        self, chunk: Any, first: int, end: int, outputs: Sequence[Column], row: int
    ) -> None:
        """Submit members that a batch has answered to the next step, or answer them."""
        slab, model = chunk.slab, chunk.model
        extent = (first + slab.first, end + slab.first)
        following = slab.after_step(extent, outputs, row)
        following.add_times(model.statistics.last_batch)
        self._end(chunk, end - first)
        for part in self._wanted_parts(following) if self._cancelled else (following,):
            if part.position < len(part.plan.chain):
                self._submit(part)
            else:
                self._finish(part)

    def _end(self, chunk: StepChunk, count: int) -> None:
        """Count members that a step has answered."""
        if chunk.end(count):
            key = id(chunk.slab.chunk)
            open_chunks = self._open[key]
            open_chunks.remove(chunk)
            if not open_chunks:
                del self._open[key]

    def _wanted_parts(self, slab: Slab) -> list[Slab]:
        """End the members of a slab that were cancelled; returns the others."""
        parts = []
        first = slab.first
        for index in range(slab.first, slab.end):
            member = slab.chunk.members[index]
            if member in self._cancelled:
                if first < index:
                    parts.append(slab.part(first, index))
                first = index + 1
                self._fail(member, CancelledError(""))
        if first < slab.end:
            parts.append(slab.part(first, slab.end))
        return parts

    def on_outcome(
        self,
        chunk: Any,
        index: int,
        response: InferResponse | None,
        error: ServerError | None,
        *,
        is_refused: bool,
    ) -> None:
        """End a member with an error, or let it continue with a response of its own."""
        slab = chunk.slab
        index += slab.first
        member = slab.chunk.members[index]
        self._end(chunk, 1)
        if member in self._cancelled:
            self._fail(member, CancelledError(""))
        elif error is not None:
            self._fail(member, error)
        else:
            self._continue(slab, index, response)

    def _fail(self, member: Inference, error: ServerError) -> None:
        self.running -= 1
        self._cancelled.discard(member)
        self._owner.fail_member(member, error)

    def _finish(self, slab: Slab) -> None:
        chunk, first, end = slab.chunk, slab.first, slab.end
        members = chunk.members[first:end]
        self.running -= end - first
        self._owner.on_members_answered(members, slab.compute_ns)
        deliver_run(members, ChunkRun(chunk, first, end, 0, 0, slab.output_columns()))

    def _continue_all(self, slab: Slab) -> None:
        for index in range(slab.first, slab.end):
            self._continue(slab, index)

    def _continue(self, slab: Slab, index: int, response: InferResponse | None = None) -> None:
        """Let a member go on as an ordinary request; `response` is that of the slab's step."""
        self.running -= 1
        values = slab.tensors_of(index)
        done = slab.position
        if response is not None:
            written = slab.plan.chain[done].outputs
            for output in response.outputs:
                tensor = written.get(output.name)
                if tensor is not None:
                    values[tensor] = output
            done += 1
        member = slab.chunk.members[index]
        self._owner.continue_member(member, slab.plan, values, done, slab.compute_ns)


def _extents(members: Sequence[Inference]) -> list[tuple[int, int]]:
    """Returns the indices of neighbours: some members of the chunk may have been refused."""
    first, last = members[0].index, members[-1].index
    if last - first + 1 == len(members):
        return [(first, last + 1)]
    extents = [(first, first + 1)]
    for member in members[1:]:
        if member.index == extents[-1][1]:
            extents[-1] = (extents[-1][0], member.index + 1)
        else:
            extents.append((member.index, member.index + 1))
    return extents


def takes_step_chunks(model: ManagedModel) -> bool:
    """Returns whether a model takes chunks as a step.

    A model with sequences needs the ids, and rows of strings have no fixed size.
    """
    spec = model.spec
    tensors = (*spec.inputs.values(), *spec.outputs.values())
    has_strings = not all(each.dtype.itemsize for each in tensors)
    return model.takes_columns and spec.sequence is None and not has_strings


def _step_requests(
    slab: Slab, step: Step, signature: ChunkSignature, now_ns: int
) -> InferRequest | list[InferRequest]:
    """Returns the record that all members share, or that of each if they differ."""

    def step_request(whole: InferRequest) -> InferRequest:
        fields, rows, version = whole.fields, whole.rows, step.version
        return shared_request(
            step.model_name, signature, now_ns, fields, rows=rows, version=version
        )

    wholes = [member.request for member in slab.chunk.members[slab.first : slab.end]]
    if wholes.count(wholes[0]) == len(wholes):
        return step_request(wholes[0])
    made = {id(whole): step_request(whole) for whole in wholes}
    return [made[id(whole)] for whole in wholes]


def _checked_signature(
    step: Step, model: ManagedModel, columns: tuple[ColumnKind, ...], rows: int
) -> ChunkSignature | None:
    """Validate a request with these inputs, and make a signature of it."""
    is_batched = model.spec.max_batch_size > 0
    inputs = {
        each.name: each.with_data(rows, bytes(each.row_bytes * rows), is_batched=is_batched)
        for each in columns
    }
    request = InferRequest(step.model_name, inputs, outputs=tuple(step.outputs))
    try:
        validate(request, model.spec)
    except (ServerError, UncountedStringsError):
        return None
    return ChunkSignature(columns, request.outputs, request.batch_key, is_batched)
