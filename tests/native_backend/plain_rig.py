# SPDX-License-Identifier: Apache-2.0
"""An instance in this process whose backend is a function of Python that calls the C API."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pytriton.base.dtypes import BY_NUMBER
from pytriton.runtime.backend.flow_control import OpenBatches
from pytriton.runtime.backend.mailbox import LoopReader
from pytriton.runtime.native_backend.api_table import ENTRY_POINTS, FUNCTIONS, prototype
from pytriton.runtime.native_backend.callbacks import Callbacks, exported
from pytriton.runtime.native_backend.foreign_threads import ForeignThreads
from pytriton.runtime.native_backend.memory import content, text, word, words
from pytriton.runtime.native_backend.models import BackendStatistics
from pytriton.runtime.native_backend.outputs import NativeReplies, describe
from pytriton.runtime.native_backend.plain_batches import PlainBatches
from pytriton.runtime.native_backend.records import INPUT_WORDS, InputWord, RequestWord
from pytriton.runtime.native_backend.requests import BackendRequests, RequestFunctions
from pytriton.runtime.native_backend.responses import BackendResponses
from pytriton.runtime.native_backend.server_objects import Errors, Names
from pytriton.runtime.native_backend.worker import NativeExecution
from pytriton.runtime.transport.frames import Execute
from pytriton.runtime.transport.payload import Payload, Received
from pytriton.runtime.transport.refs import TensorRef

FINAL = RELEASE_ALL = 1
OUTPUTS = ("y", "z")
_EXECUTE = "TRITONBACKEND_ModelInstanceExecute"


class Outbox:
    """Keeps the frames that are sent, with the bytes of their tensors."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, bytes]] = []
        self.lacks_memory = False

    def send(self, make: Callable[[Payload], Any]) -> None:
        payload = Payload(None)
        frame = make(payload)
        self.sent.append((frame, b"".join(payload.inline)))

    def respond(self, make: Callable[[Payload], Any], started_ns: int, *, at_once: bool) -> None:
        self.send(make)

    def flush(self) -> None:
        """Do nothing: all is sent."""

    def allocate(self, size: int) -> None:
        if self.lacks_memory:
            raise MemoryError(f"no memory for {size} bytes")


class PlainRig:
    """Runs batches; `execute` is the backend, and gets this rig and the handles of requests.

    Attributes:
        python_calls: How often each function of Python was called.
        outbox: Has what was sent.
    """

    def __init__(
        self,
        execute: Callable[[PlainRig, Sequence[int]], int | None],
        *,
        is_plain: bool = True,
        is_batching: bool = True,
    ) -> None:
        self.python_calls: Counter[str] = Counter()
        self.outbox = Outbox()
        self.errors = Errors()
        self.faults: list[BaseException] = []
        self.requests = BackendRequests(OUTPUTS, is_batching=is_batching)
        self.responses = BackendResponses(
            self.requests, self.errors, OUTPUTS, ["s"], ForeignThreads(), "m"
        )
        statistics, names = BackendStatistics(), Names()
        groups = (self.responses, self.errors, RequestFunctions(self.requests), statistics, names)
        functions = {
            name: self._counted(name, function) for name, function in exported(*groups).items()
        }
        callbacks = Callbacks(functions, self.errors, lambda name, error: self.faults.append(error))
        self._kept = callbacks
        reader = LoopReader(None)
        self._batches = OpenBatches(
            self.outbox, reader, OUTPUTS, is_decoupled=False, is_batching=is_batching
        )
        self._batches.replies, self._batches.describe = NativeReplies(), describe
        self.open = self._batches.open

        def call(instance: int, address: int, count: int) -> int:
            try:
                return execute(self, [word(address, index) for index in range(count)]) or 0
            except BaseException as fault:  # noqa: BLE001  raised by `run`
                self.faults.append(fault)
                return 0

        self._function = prototype(ENTRY_POINTS[_EXECUTE])(call)
        plain = PlainBatches(self.requests, self.responses, OUTPUTS) if is_plain else None
        replaced = {} if plain is None else plain.addresses
        self._api = {
            name: prototype(FUNCTIONS[name])(replaced.get(name) or callbacks.address(name))
            for name in functions
        }
        if plain is not None:
            plain.connect(1, self._function, callbacks)
        self._execution = NativeExecution(
            lambda address, count: self._function(1, address, count),
            self.requests, self.responses, self.errors, statistics, plain,
        )  # fmt: skip
        self._batch = 0

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.python_calls[name] += 1
            return function(*arguments)

        return counted

    def run(self, rows: Sequence[int], inputs: dict[str, Any], **fields: Any) -> list[Any]:
        """Run a batch with these inputs: datatype, shape and bytes; returns what was sent."""
        self._batch += 1
        del self.outbox.sent[:]
        message, refs = bytearray(), []
        for name, (dtype, shape, data) in inputs.items():
            refs.append(TensorRef(name, dtype.number, shape, len(message), len(data)))
            message += data
        frame = Execute(self._batch, list(rows), refs, **fields)
        received = Received(frame, message or bytearray(1), 0, {})
        self._execution.run(self._batches.begin(received))
        if self.faults:
            raise self.faults[0]
        return self.outbox.sent

    # Functions of the API: each returns its result, or the text of its error.

    def call(self, name: str, *arguments: Any) -> str | None:
        error = self._api[f"TRITONBACKEND_{name}"](*arguments)
        if not error:
            return None
        found = self.errors.take(error)
        return f"{found.kind}: {found.message}"

    def call_in_thread(self, name: str, *arguments: Any) -> str | None:
        """The same on a thread of the backend."""
        results: list[str | None] = []
        thread = threading.Thread(target=lambda: results.append(self.call(name, *arguments)))
        thread.start()
        thread.join()
        return results[0]

    def new_response(self, request: int) -> int:
        place = ctypes.c_uint64()
        assert self.call("ResponseNew", ctypes.addressof(place), request) is None
        return place.value

    def add_output(self, response: int, name: str, dtype: Any, shape: Sequence[int]) -> int:
        place, extents = ctypes.c_uint64(), (ctypes.c_int64 * max(1, len(shape)))(*shape)
        arguments = (name.encode(), dtype.number, ctypes.addressof(extents), len(shape))
        error = self.call("ResponseOutput", response, ctypes.addressof(place), *arguments)
        assert error is None, error
        return place.value

    def write(self, output: int, data: bytes) -> str | None:
        """Ask for the memory of an output, and write to it."""
        place = (ctypes.c_uint64 * 3)()
        first = ctypes.addressof(place)
        error = self.call("OutputBuffer", output, first, len(data), first + 8, first + 16)
        if error is None:
            ctypes.memmove(place[0], data, len(data))
        return error

    def send(self, response: int, flags: int = FINAL, error: int = 0) -> str | None:
        return self.call("ResponseSend", response, flags, error)

    def release(self, request: int, flags: int = RELEASE_ALL) -> str | None:
        return self.call("RequestRelease", request, flags)

    def answer(self, request: int, dtype: Any, shape: Sequence[int], data: bytes) -> None:
        """Answer a request with the output y, and release it."""
        response = self.new_response(request)
        output = self.add_output(response, "y", dtype, shape)
        for error in (self.write(output, data), self.send(response), self.release(request)):
            assert error is None, error


def facts(request: int) -> dict[str, Any]:
    """What machine code reads in the record of a request."""
    names = word(request, RequestWord.OUTPUT_NAMES)
    found: dict[str, Any] = {
        "id": text(word(request, RequestWord.ID)),
        "flags": word(request, RequestWord.FLAGS),
        "timeout": word(request, RequestWord.TIMEOUT_US),
        "parameters": word(request, RequestWord.PARAMETER_COUNT),
        "outputs": [
            text(word(names, index)) for index in range(word(request, RequestWord.OUTPUT_COUNT))
        ],
    }
    for index in range(word(request, RequestWord.INPUT_COUNT)):
        record = word(request, RequestWord.INPUTS) + 8 * INPUT_WORDS * index
        shape = words(word(record, InputWord.SHAPE), word(record, InputWord.DIMS_COUNT))
        data = content(word(record, InputWord.BUFFER), word(record, InputWord.SIZE))
        dtype = BY_NUMBER[word(record, InputWord.DATATYPE)].name
        found[text(word(record, InputWord.NAME))] = (dtype, shape, data)
    return found


def read_inputs(request: int, name: str = "x") -> bytes:
    """The bytes of an input, as machine code finds them."""
    data: bytes = facts(request)[name][2]
    return data
