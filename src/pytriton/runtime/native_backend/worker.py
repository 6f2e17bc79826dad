# SPDX-License-Identifier: Apache-2.0
"""One instance of a compiled backend in its own process: see `Backend`.

`Host` loads the library and calls its entry points, `NativeBackend` makes a backend of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import (
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    ServerError,
)
from pytriton.runtime.backend.backend import Backend
from pytriton.runtime.native_backend import caller_requests, caller_responses
from pytriton.runtime.native_backend.api_table import ENTRY_POINTS, FUNCTIONS, prototype
from pytriton.runtime.native_backend.callbacks import Callbacks, exported
from pytriton.runtime.native_backend.caller_responses import Allocators
from pytriton.runtime.native_backend.calls import CalledModels, Calls
from pytriton.runtime.native_backend.compiled_code import CompiledCodeError, NoCompilerError
from pytriton.runtime.native_backend.foreign_threads import ForeignThreads
from pytriton.runtime.native_backend.machine_code import ProcessAddresses, machine_code
from pytriton.runtime.native_backend.memory import WordArray
from pytriton.runtime.native_backend.metrics import MetricFunctions
from pytriton.runtime.native_backend.models import BackendStatistics, Logs, MemoryManager, Models
from pytriton.runtime.native_backend.outputs import (
    CollectedAnswers,
    NativeReplies,
    batch_columns,
    describe,
    make_batch_result,
    make_single_item,
)
from pytriton.runtime.native_backend.plain_batches import PlainBatches
from pytriton.runtime.native_backend.requests import BackendRequests, RequestFunctions
from pytriton.runtime.native_backend.responses import BackendResponses, TensorQuestions
from pytriton.runtime.native_backend.server_objects import (
    BufferAttributes,
    Documents,
    Errors,
    ModelProperties,
    Names,
    Parameters,
)
from pytriton.runtime.native_backend.stub import (
    MACHINES,
    Library,
    NotALibraryError,
    load_stub,
    this_machine,
)
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.runtime import set_runtime
from pytriton.runtime.python_backend.loader import find_files
from pytriton.runtime.python_backend.output import (
    end_output,
    end_printed_lines,
    return_standard_error,
)
from pytriton.runtime.python_backend.runtime import WorkerRuntime
from pytriton.runtime.transport.frames import (
    Finalize,
    Initialize,
    Initialized,
    LogChange,
    ResponseItem,
    ResponsesFrame,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from pytriton.runtime.backend.batch import WorkerBatch
    from pytriton.runtime.backend.connection import ServerConnection
    from pytriton.runtime.backend.flow_control import OpenBatches
    from pytriton.runtime.backend.mailbox import Waiter
    from pytriton.runtime.native_backend.plain_batches import PlainReport
    from pytriton.runtime.native_backend.requests import BackendRequest
    from pytriton.runtime.transport.channel import Payload, Received

_SONAME = "libtritonserver.so"
# In the environment, for tests: which functions are not Python's.
CODE_SETTING = "PYTRITON_MACHINE_CODE"
_NO_CODE = "0"  # none: every call goes to Python, which is slower and easier to observe
_NO_COMPILER = "getters"  # those that are written here, as where there is no compiler
_EXECUTE = "TRITONBACKEND_ModelInstanceExecute"


class Host:
    """A compiled backend in this process, with one model and one instance of it."""

    def __init__(self, frame: Initialize, runtime: WorkerRuntime) -> None:
        self._path = frame.model_path
        self._runtime = runtime
        self.errors = Errors()
        documents = Documents()
        self.models = Models(frame, documents)
        config = self.models.config
        outputs = [each["name"] for each in config.get("output", [])]
        self.requests = BackendRequests(outputs, is_batching=frame.is_batching)
        self.statistics = BackendStatistics()
        self.responses = BackendResponses(
            self.requests,
            self.errors,
            outputs,
            _state_names(config),
            ForeignThreads(),
            frame.arguments["model_name"],
        )
        self._names = Names()
        self.logs = Logs(runtime.log, runtime.logs_level)
        parameters = Parameters()
        attributes = BufferAttributes()
        # Each implements the functions of the C API on one kind of object.
        groups = (
            self.errors,
            documents,
            self._names,
            self.logs,
            self.models,
            MemoryManager(),
            RequestFunctions(self.requests),
            self.responses,
            self.statistics,
            parameters,
            attributes,
            TensorQuestions(attributes, self.responses),
            MetricFunctions(self._ask, runtime.notify, parameters),
            *self._callers(documents, parameters, attributes),
        )
        self._callbacks = Callbacks(exported(*groups), self.errors, self._report)
        self.plain = self._load_plain(outputs, is_decoupled=frame.is_decoupled)
        self._entry_points: dict[str, Callable[..., int]] = {}

    def _callers(
        self, documents: Documents, parameters: Parameters, attributes: BufferAttributes
    ) -> Sequence[object]:
        """Returns the groups for backends that use other models."""
        models = CalledModels(self.models.server, self._ask, documents, parameters)
        allocators = Allocators(self.errors, attributes)
        requests = caller_requests.CallerRequests(models.find, allocators, attributes)
        responses = caller_responses.CallerResponses(self.errors)
        calls = Calls(self._runtime, requests, responses, models)
        return models, ModelProperties(models.properties), allocators, requests, responses, calls

    def _ask(self, action: str, **arguments: Any) -> Any:
        """Ask the server; raises InvalidArgumentError if it refuses."""
        try:
            return self._runtime.call(action, **arguments)
        except TritonModelException as error:
            raise InvalidArgumentError(str(error)) from None

    def load(self) -> None:
        """Load the library.

        Raises:
            ServerError: It cannot be loaded here; the text says why.
        """
        machine = this_machine()
        try:
            file = Library(self._path)
        except OSError as error:
            raise NotFoundError(f"unable to load shared library: {self._path}: {error}") from error
        except NotALibraryError as error:
            raise NotFoundError(f"unable to load shared library: {self._words(error)}") from error
        if file.machine_number != machine.number:
            names = {each.number: each.name for each in MACHINES.values()}
            found = names.get(file.machine_number, f"machine {file.machine_number}")
            raise NotFoundError(
                f"unable to load shared library: {self._path}: it was compiled for {found}, and"
                f" this machine is {machine.name}"
            )
        self._load_stub(file)
        try:
            library = ctypes.CDLL(self._path)
        except OSError as error:
            raise NotFoundError(f"unable to load shared library: {error}") from error
        for name, signature in ENTRY_POINTS.items():
            if hasattr(library, name):
                self._entry_points[name] = prototype(signature)((name, library))
        if _EXECUTE not in self._entry_points:
            raise NotFoundError(
                f"unable to find required entrypoint '{_EXECUTE}' in shared library:"
                f" {self._path}: undefined symbol: {_EXECUTE}"
            )
        if self.plain is not None:
            execute = self._entry_points[_EXECUTE]
            self.plain.connect(self.models.instance, execute, self._callbacks)

    def _words(self, error: NotALibraryError) -> str:
        """Returns the loader's message for a file that is not a library, or ours."""
        try:
            ctypes.CDLL(self._path)
        except OSError as refusal:
            return str(refusal)
        return f"{self._path}: {error}"

    def _load_stub(self, file: Library) -> None:
        soname = next((each for each in file.needed if "libtritonserver" in each), _SONAME)
        # A backend that was compiled for a newer API may need functions that are not known here.
        newer = [name for name in file.undefined if name.startswith("TRITON")]
        names = sorted({*FUNCTIONS, *newer} - ENTRY_POINTS.keys())
        code = self._machine_code() if os.environ.get(CODE_SETTING) != _NO_CODE else {}
        replaced = {} if self.plain is None else self.plain.addresses
        load_stub(soname, names, self._callbacks, code, replaced)

    def _load_plain(
        self, output_names: Sequence[str], *, is_decoupled: bool
    ) -> PlainBatches | None:
        if os.environ.get(CODE_SETTING) in (_NO_CODE, _NO_COMPILER):
            return None
        if not PlainBatches.serves(output_names, is_decoupled=is_decoupled):
            return None
        try:
            return PlainBatches(self.requests, self.responses, output_names)
        except NoCompilerError as lack:
            level, reason = "VERBOSE", str(lack)
        except CompiledCodeError as error:
            level, reason = "WARNING", str(error)
        text = f"calls of the backend for each request go to Python, which is slower: {reason}"
        self._runtime.log(level, text, __file__, 0)
        return None

    def _machine_code(self) -> dict[str, bytes]:
        addresses = ProcessAddresses(
            is_verbose=self.logs.verbose_address,
            computed_ns=self.statistics.computed_address,
            datatype_names=self._names.datatype_names,
            datatype_sizes=self._names.datatype_sizes,
            datatype_count=self._names.datatype_count,
        )
        return machine_code(this_machine().name, addresses)

    def _report(self, name: str, error: BaseException) -> None:
        self._runtime.log("ERROR", f"{name} failed: {type(error).__name__}: {error}", __file__, 0)

    def initialize(self, *, with_instance: bool) -> None:
        """Call the functions that prepare the backend, its model and its instance.

        Raises:
            ServerError: One of them returned this error.
        """
        models = self.models
        self._call("TRITONBACKEND_Initialize", models.backend)
        with contextlib.suppress(ServerError):  # Triton ignores it
            self._call("TRITONBACKEND_GetBackendAttribute", models.backend, models.attribute)
        self._call("TRITONBACKEND_ModelInitialize", models.model)
        if with_instance:
            self._call("TRITONBACKEND_ModelInstanceInitialize", models.instance)

    def finalize(self, *, with_instance: bool) -> None:
        """Call the functions that end the instance, the model and the backend; log their errors."""
        models = self.models
        if with_instance:
            self._finalize("TRITONBACKEND_ModelInstanceFinalize", models.instance, "model instance")
        self._finalize("TRITONBACKEND_ModelFinalize", models.model, "model")
        self._finalize("TRITONBACKEND_Finalize", models.backend, "backend")

    def _finalize(self, name: str, handle: int, noun: str) -> None:
        try:
            self._call(name, handle)
        except ServerError as error:
            text = f"failed finalizing {noun}: {error.kind} - {error.message}"
            self._runtime.log("ERROR", text, __file__, 0)

    def _call(self, name: str, *handles: int) -> None:
        function = self._entry_points.get(name)
        if function is not None:
            self.errors.raise_for(function(*handles))

    @property
    def has_ready_check(self) -> bool:
        """Whether the backend has a function that says whether its instance is ready."""
        return "TRITONBACKEND_ModelInstanceReady" in self._entry_points

    def check_ready(self) -> bool:
        """Ask the backend whether its instance is ready; it is not if this raises a ServerError."""
        self._call("TRITONBACKEND_ModelInstanceReady", self.models.instance)
        return True

    def execute(self, requests: int, count: int) -> int:
        """Execute an array of requests; returns an error of C, or 0."""
        return self._entry_points[_EXECUTE](self.models.instance, requests, count)


def _state_names(config: dict[str, Any]) -> list[str]:
    states = config.get("sequence_batching", {}).get("state", [])
    return [each["output_name"] for each in states]


class NativeBackend(Backend):
    """Runs a compiled backend. The process ends with it: threads of the backend may be left."""

    def __init__(
        self, connection: ServerConnection, fork_socket: socket.socket | None, frame: Initialize
    ) -> None:
        self._connection = connection
        self._finalize: Callable[[], None] | None = None  # once there is something to finalize
        arguments = frame.arguments
        repository = arguments.get("model_repository", "")
        self.runtime = WorkerRuntime(
            connection,
            fork_socket,
            instance_name=arguments.get("model_instance_name") or arguments["model_name"],
            arguments=arguments,
            model_directory=str(Path(repository, arguments.get("model_version", "1"))),
            switches=frame.log,
        )
        set_runtime(self.runtime)
        connection.handlers[LogChange] = self._on_log_change
        if frame.log.is_kept and fork_socket is not None:
            return_standard_error(fork_socket, arguments.get("model_name", ""))

    def complete_config(self, frame: Initialize) -> str:
        """See `Backend`."""
        models = self._start(frame, with_instance=False).models
        return json.dumps(models.config) if models.changed_config else ""

    def load(self, frame: Initialize, batches: OpenBatches) -> Initialized:
        """See `Backend`."""
        batches.replies, batches.describe = NativeReplies(), describe
        self._batches = batches
        self._connection.handlers[Finalize] = self._on_finalize
        host = self._start(frame, with_instance=True)
        self._execution = NativeExecution(
            host.execute, host.requests, host.responses, host.errors, host.statistics, host.plain
        )
        return Initialized(has_ready_check=host.has_ready_check)

    def run(self, batch: WorkerBatch) -> None:
        """See `Backend`."""
        self._execution.run(batch)

    def is_ready(self) -> bool:
        """See `Backend`."""
        try:
            return self._host.check_ready()
        except ServerError as error:
            text = f"{self.runtime.label} is not ready: {error}"
            self.runtime.log("ERROR", text, __file__, 0)
            return False

    def close(self) -> None:
        """End the process without the interpreter's end, during which no thread may call it."""
        if self._finalize is not None:
            self._finalize()
            self._connection.outbox.flush()
        end_printed_lines()
        end_output()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)  # output of the backend
        os._exit(0)

    def _start(self, frame: Initialize, *, with_instance: bool) -> Host:
        try:
            find_files(frame)
            self._host = host = Host(frame, self.runtime)
            host.load()
            host.initialize(with_instance=with_instance)
        except ServerError:
            raise
        except Exception as error:  # a fault of ours, or a broken configuration
            raise InternalError(f"{type(error).__name__}: {error}") from error
        self._finalize = functools.partial(host.finalize, with_instance=with_instance)
        return host

    def _on_log_change(self, received: Received) -> None:
        self.runtime.on_log_change(received)
        self._host.logs.update()

    def _on_finalize(self, received: Received) -> Waiter:
        # A backend may wait for its threads at its end, and they may wait for clients.
        self._batches.cancel_all()
        return self._connection.mailbox.jobs.put(received)


class NativeExecution:
    """Runs the batches of one instance.

    Args:
        call: The backend's function; gets the address of an array of requests and their number,
            and returns an error of C or 0.
        requests: Makes requests of batches.
        responses: The answers.
        errors: The errors of C.
        statistics: The reports of the backend.
        plain: Executes batches without Python, if that is possible here.
    """

    def __init__(
        self,
        call: Callable[[int, int], int],
        requests: BackendRequests,
        responses: BackendResponses,
        errors: Errors,
        statistics: BackendStatistics,
        plain: PlainBatches | None = None,
    ) -> None:
        self._call = call
        self._requests = requests
        self._responses = responses
        self._errors = errors
        self._statistics = statistics
        self._plain = plain
        self._handles = WordArray()

    def run(self, batch: WorkerBatch) -> None:
        """Call the backend with a batch; see `Backend`."""
        collected, received = CollectedAnswers(batch), batch.received
        self._statistics.begin_batch()
        try:
            report = None if self._plain is None else self._plain.execute(collected, received)
            requests = (
                self._requests.add_batch(collected, received) if report is None else report.requests
            )
        except (ValueError, struct.error) as fault:  # strings that do not fit their tensor
            self._fail(collected, (), InternalError(f"the batch cannot be read: {fault}"))
            return
        except ServerError as lack:  # there was no room for its tensors
            self._fail(collected, (), lack)
            return
        del received, batch.received  # the requests keep it until they are released
        if report is None:
            self._handles.fill([request.handle for request in requests])
            error = self._call(self._handles.address, len(requests))
        else:
            error = report.error
        if error:
            self._fail(collected, requests, self._errors.take(error))
            return
        try:
            if report is not None and report.outputs is not None:
                self._finish_plain(collected, report)
            else:
                self._finish(collected, requests)
        except OSError:
            raise
        except Exception as failure:  # noqa: BLE001  there is no memory, or a text cannot be sent
            self._fail(collected, requests, failure)

    def _times_ns(self, batch: WorkerBatch) -> tuple[int, int]:
        """Returns when the computation began and ended, as reported if that is possible."""
        now_ns = time.monotonic_ns()
        started_ns, ended_ns = self._statistics.computed_ns()
        if batch.started_ns <= started_ns <= ended_ns <= now_ns:
            return started_ns, ended_ns
        return batch.started_ns, now_ns

    def _finish_plain(self, collected: CollectedAnswers, report: PlainReport) -> None:
        assert self._plain is not None, "the report is its own"
        times_ns = self._times_ns(collected.batch)
        make = functools.partial(self._plain.make_result, collected, times_ns, report)
        collected.batch.answer(make)

    def _finish(self, collected: CollectedAnswers, requests: Sequence[BackendRequest]) -> None:
        batch = collected.batch
        times_ns = self._times_ns(batch)
        is_coupled = not batch.is_decoupled
        with collected.lock:
            collected.has_returned, collected.is_collecting = True, False
            answered = [
                each
                for each in requests
                if each.is_rescheduled or (is_coupled and (each.is_ended or not each.handles))
            ]
            for request in answered:
                request.is_over = True  # for this thread to end, also if others drop it meanwhile
        columns = batch_columns(answered) if len(answered) == len(requests) else None
        if columns is not None:
            make_result = functools.partial(make_batch_result, collected, times_ns, columns)
            batch.batches.outbox.send(make_result)
        else:
            make = functools.partial(_make_responses, batch, times_ns, answered)
            batch.batches.outbox.send(make)
        batch.mark_returned([request.position for request in answered])
        for request in answered:
            request.is_over = False
        for request in requests:
            self._responses.end_if_over(request)

    def _fail(
        self,
        collected: CollectedAnswers,
        requests: Sequence[BackendRequest],
        error: Exception,
    ) -> None:
        """Answer all requests with an error; they are not the backend's any more."""
        batch = collected.batch
        batch.fail(error, self._times_ns(batch))
        with collected.lock:
            collected.has_returned, collected.is_collecting = True, False
            for request in requests:
                if request.handle in self._requests.live:
                    self._requests.live.discard(request.handle)
                    request.owned = None
                    request.handles.pop()
                request.is_over = False
        for request in requests:
            self._responses.end_if_over(request)


def _make_responses(
    batch: WorkerBatch,
    times_ns: tuple[int, int],
    answered: Sequence[BackendRequest],
    payload: Payload,
) -> ResponsesFrame:
    items: list[ResponseItem] = [make_single_item(request, payload) for request in answered]
    return ResponsesFrame(*times_ns, items, returned_batch=batch.execute.batch)
