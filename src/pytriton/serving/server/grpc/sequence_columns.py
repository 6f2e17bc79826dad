# SPDX-License-Identifier: Apache-2.0
"""Small requests of sequences that travel as columns, because many like them came before.

They differ in their ids, in the flags of their sequences and in the bytes of their tensors. All
others take the ordinary way, after those that came before them: the requests of a sequence keep
their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pytriton.protocol.kserve_pb_sequence import SequencePattern, sequence_layout_of
from pytriton.serving.server.api.gatherer import ColumnSink, Iterations, can_be_columns

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.kserve_pb_sequence import SequenceLayout, SequenceRequest
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.tracing.tracing import TraceBeginner

MAX_MESSAGE_BYTES = 4096
LEARN_EVERY = 16  # how many requests of a layout take the ordinary way
MAX_LAYOUTS = 256


_Columns = TypeVar("_Columns", bound=ColumnSink[Any])
_Key = TypeVar("_Key")
_Reader = TypeVar("_Reader", bound="SizedPattern")


class SizedPattern(Protocol):
    """Reads messages of one layout, which all have the same size."""

    @property
    def size(self) -> int: ...


class LayoutTable(Generic[_Key, _Reader, _Columns]):
    """The layouts that were learned: how each is read, and where its requests are gathered."""

    def __init__(self) -> None:
        self._learned: dict[_Key, tuple[_Reader, _Columns]] = {}
        # The size of a message is known before any of it is read, and tells most layouts apart.
        self._by_size: dict[int, list[tuple[_Reader, _Columns]]] = {}

    def of_size(self, size: int) -> Sequence[tuple[_Reader, _Columns]]:
        """Returns the layouts of messages of this size."""
        return self._by_size.get(size, ())

    def is_known(self, layout: _Key, spec: ModelSpec) -> bool:
        """Returns whether a layout was learned for this model, and not for one before it."""
        known = self._learned.get(layout)
        return known is not None and known[1].spec is spec

    def keep(self, layout: _Key, pattern: _Reader, columns: _Columns) -> bool:
        """Learn a layout; returns whether the others were forgotten, because there are too many."""
        is_full = len(self._learned) >= MAX_LAYOUTS
        if is_full:
            self._learned.clear()
        self._learned[layout] = (pattern, columns)
        self._by_size = {}
        for each in self._learned.values():
            self._by_size.setdefault(each[0].size, []).append(each)
        return is_full


def gathering_model(
    engine: EngineClient, columns: ColumnSink[Any], tracing: TraceBeginner | None
) -> ServedModel | None:
    """Count a request; returns the model that it is gathered for, or None.

    None means that it takes the ordinary way, which also finds the error, if there is one: the
    model was replaced or is gone, the server exits, the request is alone, or it is to be traced.
    """
    spec = columns.spec
    model = engine.find(spec.name, columns.version)
    if (
        model is None
        or model.spec is not spec
        or engine.is_exiting
        or columns.gatherer.is_alone(model)
        or (tracing is not None and not tracing.passes(spec.name))
    ):
        return None
    return model


class SequenceColumnTable(Generic[_Columns]):
    """The layouts of requests of sequences that repeat.

    Args:
        engine: The engine.
        loop: The event loop.
        make_columns: Makes what gathers requests like a valid one.
        tracing: Traces requests, if the server does.
    """

    def __init__(
        self,
        engine: EngineClient,
        loop: asyncio.AbstractEventLoop,
        make_columns: Callable[[Iterations, ModelSpec, InferRequest], _Columns],
        tracing: TraceBeginner | None = None,
    ) -> None:
        self._engine = engine
        self._tracing = tracing
        self._make_columns = make_columns
        self._iterations = Iterations(engine, loop)
        self._counts: dict[int, int] = {}  # of requests in the ordinary way, by size
        self._layouts: LayoutTable[SequenceLayout, SequencePattern, _Columns] = LayoutTable()
        # By what the requests of a chunk have in common: several layouts may share one.
        self._columns: dict[Any, _Columns] = {}
        self._last: _Columns | None = None  # to which a request was added

    def has_size(self, size: int) -> bool:
        """Returns whether a message of this size may have a layout that was learned."""
        return bool(self._layouts.of_size(size))

    def find(self, message: bytes) -> tuple[ServedModel, _Columns, SequenceRequest] | None:
        """Read a request that has to be added to its columns now; None: by the ordinary way."""
        for pattern, columns in self._layouts.of_size(len(message)):
            request = pattern.read(message)
            if request is not None:
                model = gathering_model(self._engine, columns, self._tracing)
                if model is None:
                    return None
                # Requests of one sequence may differ in their layouts, but must keep their order.
                if self._last is not columns:
                    self.submit()
                    self._last = columns
                return model, columns, request
        return None

    def submit(self) -> None:
        """Submit what was gathered, because a request takes another way."""
        if self._last is not None:
            self._last.gatherer.submit()

    def learn(
        self, model: ServedModel, request: InferRequest, message: Buffer, raw: Sequence[Buffer]
    ) -> None:
        """Count a request that takes the ordinary way; after some, learn its layout."""
        size = len(message)
        if size > MAX_MESSAGE_BYTES or not isinstance(message, bytes):
            return
        count = self._counts[size] = self._counts.get(size, 0) + 1
        if count % LEARN_EVERY or not model.takes_columns:
            return
        layout = sequence_layout_of(message, raw)
        if layout is None or not can_be_columns(request, model.spec):
            return
        if self._layouts.is_known(layout, model.spec):
            return
        pattern = SequencePattern(layout)
        read = pattern.read(message)
        if read is not None and _agrees(read, request):
            columns = self._columns_for(model.spec, request)
            if self._layouts.keep(layout, pattern, columns):
                self._columns.clear()

    def _columns_for(self, spec: ModelSpec, request: InferRequest) -> _Columns:
        """Returns the columns of requests that may share a chunk with this one."""
        tensors = [(each.name, each.dtype, each.shape) for each in request.inputs.values()]
        key = (spec.name, request.model_version, tuple(tensors), request.outputs)
        columns = self._columns.get(key)
        if columns is None or columns.spec is not spec:
            columns = self._columns[key] = self._make_columns(self._iterations, spec, request)
        return columns


def _agrees(read: SequenceRequest, request: InferRequest) -> bool:
    """Returns whether the pattern of a layout reads the same in a message as the parser does."""
    return (
        read.id == request.id.encode()
        and read.correlation_id == request.correlation_id
        and read.flags == request.flags
        and list(read.inputs) == [tensor.data for tensor in request.inputs.values()]
        and not (request.parameters or request.priority or request.timeout_us)
    )
