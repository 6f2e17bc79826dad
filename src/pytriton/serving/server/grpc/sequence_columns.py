# SPDX-License-Identifier: Apache-2.0
"""Small requests of sequences that travel as columns, because many like them came before.

They differ in their ids, in the flags of their sequences and in the bytes of their tensors. All
others take the ordinary way, after those that came before them: the requests of a sequence keep
their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pytriton.base import dtypes
from pytriton.base.errors import ServerError
from pytriton.protocol.kserve_pb_sequence import SequencePattern, sequence_layout_of
from pytriton.serving.engine.validation import validate
from pytriton.serving.server.api.gatherer import Iterations

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from pytriton.base.dtypes import Buffer
    from pytriton.base.messages import InferRequest
    from pytriton.base.model_spec import ModelSpec
    from pytriton.protocol.kserve_pb_sequence import SequenceLayout, SequenceRequest
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.engine.served_model import ServedModel
    from pytriton.serving.server.api.gatherer import Gatherer
    from pytriton.serving.server.tracing.tracing import TraceBeginner

MAX_MESSAGE_BYTES = 4096
LEARN_EVERY = 16  # how many requests of a layout take the ordinary way
MAX_LAYOUTS = 256


class SequenceColumns(Protocol):
    """Gathers requests with one set of inputs for a model."""

    spec: ModelSpec
    version: str  # of the model, as in the requests
    gatherer: Gatherer


_Columns = TypeVar("_Columns", bound=SequenceColumns)


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
        self._learned: dict[SequenceLayout, _Columns] = {}
        self._by_size: dict[int, list[tuple[SequencePattern, _Columns]]] = {}
        # By what the requests of a chunk have in common.
        self._columns: dict[Any, _Columns] = {}
        self._last: _Columns | None = None  # to which a request was added

    def has_size(self, size: int) -> bool:
        """Returns whether a message of this size may be one of those."""
        return size in self._by_size

    def find(self, message: bytes) -> tuple[ServedModel, _Columns, SequenceRequest] | None:
        """Read a request that has to be added to its columns now; None: by the ordinary way."""
        for pattern, columns in self._by_size.get(len(message), ()):
            request = pattern.read(message)
            if request is not None:
                model = self._model_for(columns)
                return None if model is None else (model, columns, request)
        return None

    def _model_for(self, columns: _Columns) -> ServedModel | None:
        """Returns the model that gets a request; None if the request is better not gathered."""
        engine, spec = self._engine, columns.spec
        model = engine.find(spec.name, columns.version)
        if (
            model is None
            or model.spec is not spec
            or engine.is_exiting
            or columns.gatherer.is_alone(model)
            or (self._tracing is not None and not self._tracing.passes(spec.name))
        ):
            return None
        if self._last is not columns:
            self.submit()
            self._last = columns
        return model

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
        if layout is None or not _is_valid(request, model.spec):
            return
        known = self._learned.get(layout)
        if known is not None and known.spec is model.spec:
            return
        pattern = SequencePattern(layout)
        read = pattern.read(message)
        if read is not None and _says(read, request):
            self._keep(layout, pattern, self._columns_for(model.spec, request))

    def _columns_for(self, spec: ModelSpec, request: InferRequest) -> _Columns:
        """Returns the columns of requests that may share a chunk with this one."""
        tensors = [(each.name, each.dtype, each.shape) for each in request.inputs.values()]
        key = (spec.name, request.model_version, tuple(tensors), request.outputs)
        columns = self._columns.get(key)
        if columns is None or columns.spec is not spec:
            columns = self._columns[key] = self._make_columns(self._iterations, spec, request)
        return columns

    def _keep(self, layout: SequenceLayout, pattern: SequencePattern, columns: _Columns) -> None:
        if len(self._learned) >= MAX_LAYOUTS:
            self._learned.clear()
            self._by_size.clear()
            self._columns.clear()
        if layout in self._learned:  # of a model that was replaced
            others = self._by_size[pattern.size]
            before = self._learned[layout]
            self._by_size[pattern.size] = [each for each in others if each[1] is not before]
        self._learned[layout] = columns
        self._by_size.setdefault(pattern.size, []).append((pattern, columns))


def _is_valid(request: InferRequest, spec: ModelSpec) -> bool:
    """Returns whether requests like this one may be in columns."""
    try:
        validate(request, spec)
    except ServerError:
        return False
    return not any(tensor.dtype is dtypes.BYTES for tensor in request.inputs.values())


def _says(read: SequenceRequest, request: InferRequest) -> bool:
    """Returns whether the pattern of a message has read what the parser has."""
    return (
        read.id == request.id.encode()
        and read.correlation_id == request.correlation_id
        and read.flags == request.flags
        and list(read.inputs) == [tensor.data for tensor in request.inputs.values()]
        and not (request.parameters or request.priority or request.timeout_us)
    )
