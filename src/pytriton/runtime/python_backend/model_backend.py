# SPDX-License-Identifier: Apache-2.0
"""The backend of a `model.py`, and of frameworks, whose code is one: see `Backend`.

The main thread calls the model. Its coroutines run on an event loop with a thread of its own.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import os
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton.base.errors import InvalidArgumentError, ServerError
from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.backend.backend import Backend
from pytriton.runtime.backend.batch import cut
from pytriton.runtime.backend.coroutines import CoroutineThread
from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.cuda import driver as cuda_driver
from pytriton.runtime.cuda.device_array import usable_driver
from pytriton.runtime.cuda.driver import CudaError
from pytriton.runtime.pb_utils.model_config import ModelConfig
from pytriton.runtime.pb_utils.request import (
    RELEASE_RESCHEDULE,
    InferenceRequest,
    ReceivedFields,
)
from pytriton.runtime.pb_utils.runtime import set_runtime
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend import answers
from pytriton.runtime.python_backend.answers import failure_of
from pytriton.runtime.python_backend.batch_execution import (
    BatchExecution,
    declared_outputs,
    takes_whole_batches,
)
from pytriton.runtime.python_backend.device_tensors import (
    DeviceTensors,
    exports_of,
    keeps_inputs_on_device,
)
from pytriton.runtime.python_backend.loader import find_files, load_class
from pytriton.runtime.python_backend.replies import ModelReplies, place
from pytriton.runtime.python_backend.runtime import WorkerRuntime
from pytriton.runtime.transport.frames import (
    DropRegions,
    Execute,
    Initialize,
    Initialized,
    LogChange,
    ReleaseExports,
    RequestDetails,
)
from pytriton.runtime.transport.loop_spinner import DEVICE_SPIN_NS

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Iterable, Sequence

    from pytriton.runtime.backend.batch import Description, WorkerBatch
    from pytriton.runtime.backend.connection import GroupMember, ServerConnection
    from pytriton.runtime.backend.flow_control import OpenBatches
    from pytriton.runtime.pb_utils.response import InferenceResponse

    _Answered = Sequence[tuple[int, InferenceResponse | None]]
    from collections.abc import Mapping
else:
    asyncio = LazyModule("asyncio")

_RANK_FAILED = 1  # exit status

_NO_DETAILS = RequestDetails()

logger = logging.getLogger(__name__)

GPU = "GPU"
ANY_DEVICE = -1


class ModelBackend(Backend):
    """Runs a `model.py`: `initialize`, batches, `finalize`."""

    def __init__(
        self, connection: ServerConnection, fork_socket: socket.socket | None, frame: Initialize
    ) -> None:
        arguments = frame.arguments
        self._connection = connection
        self._model: Any = None
        self._is_loaded = False
        self.runtime = WorkerRuntime(
            connection,
            fork_socket,
            instance_name=arguments.get("model_instance_name") or arguments["model_name"],
            arguments=arguments,
            model_directory=frame.model_directory or str(Path(frame.model_path).parent),
            backend_config=frame.backend_config,
            switches=frame.log,
        )
        set_runtime(self.runtime)
        connection.handlers[LogChange] = self.runtime.on_log_change

    def complete_config(self, frame: Initialize) -> str:
        """See `Backend`; "" if the model has no function for it."""
        model_class = self._load_class(frame)
        complete = getattr(model_class, "auto_complete_config", None)
        if complete is None:
            return ""
        config = complete(ModelConfig(frame.arguments["model_config"]))
        if not isinstance(config, ModelConfig):
            raise RuleError(
                f"auto_complete_config function in model '{frame.arguments['model_name']}' must"
                " return a valid pb.ModelConfig object."
            )
        return json.dumps(config.as_dict())

    def load(self, frame: Initialize, batches: OpenBatches) -> Initialized:
        """See `Backend`."""
        self._model = model = self._load_class(frame)()
        device = self._make_device(frame)
        batches.replies = ModelReplies(device)
        batches.describe = self._describe
        self._coroutines = CoroutineThread(self._on_loop_thread)
        if hasattr(model, "initialize"):
            model.initialize(frame.arguments)
        self._execution = self._make_execution(frame, device)
        is_ready = getattr(model, "is_ready", None)
        if self._execution.is_async or inspect.iscoroutinefunction(is_ready):
            asyncio.events  # noqa: B018  imported now, while there are descriptors for that
        # A call less for each batch.
        self.run = self._execution.run  # type: ignore[method-assign]  # it is nothing else
        self._is_loaded = True
        return Initialized(
            has_ready_check=is_ready is not None,
            is_async=self._execution.is_async,
            takes_device_memory=self._execution.takes_device_memory,
            keeps_device_inputs=device.keeps_on_device,
            gpu=gpu_in_use(self._device),
        )

    def run(self, batch: WorkerBatch) -> None:
        """See `Backend`."""
        self._execution.run(batch)

    def is_ready(self) -> bool:
        """See `Backend`."""
        answer = self._model.is_ready()
        if isinstance(answer, Coroutine):
            answer = self._coroutines.run(answer)
        if not isinstance(answer, bool):
            raise RuleError(f"is_ready() must return a boolean value, got {answer!r}")
        return answer

    def close(self) -> None:
        """See `Backend`."""
        if not self._is_loaded:
            return
        self._coroutines.stop()
        if hasattr(self._model, "finalize"):
            try:
                self._model.finalize()
            except BaseException as error:  # noqa: BLE001  the process ends anyway
                self.runtime.log_raised(error, "raised in finalize")
        self.runtime.failures.close()

    def follow(self, member: GroupMember) -> None:
        """Run `run_rank` of the model on a process that gets no batches, until its end."""
        with ThreadPoolExecutor(1, "messages") as threads:
            end = threads.submit(member.wait_for_end)  # meanwhile it reads, say, changes of the log
            try:
                if hasattr(self._model, "run_rank"):
                    self._model.run_rank()
            except BaseException as error:  # noqa: BLE001  the process ends
                self.runtime.log_raised(error, f"raised in run_rank of rank {member.rank}")
                self._connection.outbox.flush()
                os._exit(_RANK_FAILED)  # which ends the group
            end.result()

    def _load_class(self, frame: Initialize) -> type[Any]:
        find_files(frame)
        self._device = device_of_instance(frame.arguments)
        make_current(self._device)
        return load_class(frame.model_path, frame.package)

    def _make_execution(
        self, frame: Initialize, device: DeviceTensors
    ) -> BatchExecution | ModelExecution:
        model = self._model
        if takes_whole_batches(
            model, is_backend=not frame.package, is_decoupled=frame.is_decoupled
        ):
            declared = declared_outputs(frame.arguments["model_config"], frame.output_names)
            return BatchExecution(model, self.runtime, device, declared)
        return ModelExecution(model, frame.model_path, self.runtime, device, self._coroutines)

    def _describe(self, batch: WorkerBatch, error: BaseException) -> Description:
        return failure_of(self.runtime.instance_name, error)

    def _on_loop_thread(self, thread: int) -> None:
        make_current(self._device)
        self._connection.loop_reader.own_thread = thread

    def _make_device(self, frame: Initialize) -> DeviceTensors:
        connection = self._connection
        cores = frame.device_polling_cores
        poll = functools.partial(connection.mailbox.poll_for_jobs, cores, DEVICE_SPIN_NS)
        outbox = connection.outbox
        device = DeviceTensors(
            keeps_on_device=keeps_inputs_on_device(frame.arguments.get("model_config", "{}")),
            allocate=outbox.allocate,
            post=outbox.post,
            on_first_use=poll if cores > 1 else None,
        )
        connection.handlers[DropRegions] = device.on_drop
        connection.handlers[ReleaseExports] = device.on_release
        self.runtime.device = device if frame.has_gpus else None
        return device


def make_requests(batch: WorkerBatch, device: DeviceTensors) -> list[InferenceRequest]:
    """Returns the requests of a batch, in order; from now on only they have its tensors."""
    execute = batch.execute
    try:
        columns = _columns(batch, device)
    except BaseException:
        device.end_unopened_inputs(execute.devices)
        raise
    del batch.received
    inputs: Iterable[Sequence[Tensor]]
    inputs = zip(*columns, strict=True) if columns else [()] * len(execute.rows)
    return InferenceRequest.received(
        batch, inputs, batch.batches.output_names, execute.outputs, _fields_of(execute)
    )


def _columns(batch: WorkerBatch, device: DeviceTensors) -> list[list[Tensor]]:
    """Returns each input as the tensors of all requests."""
    execute, received = batch.execute, batch.received
    rows = execute.rows
    is_cut = len(rows) > 1 and batch.batches.is_batching
    on_device = execute.devices[0].inputs if execute.devices else ()
    columns = []
    for ref in execute.inputs:
        if ref.name in on_device:
            columns.append(device.column(ref, execute.devices, rows))
            continue
        array = received.array(ref)
        parts = cut(array, rows, ref.shapes) if is_cut else [array]
        columns.append(Tensor.of_arrays(ref.name, parts))
    return columns


def _fields_of(execute: Execute) -> dict[int, ReceivedFields]:
    """Returns what requests have beside their tensors, by position; most have nothing."""
    ids, parameters, traces = execute.ids, execute.parameters, execute.traces
    all_details = execute.details
    fields = {}
    for position in {*ids, *parameters, *traces, *all_details}:
        details = all_details.get(position, _NO_DETAILS)
        fields[position] = ReceivedFields(
            ids.get(position, ""),
            details.correlation_id,
            details.flags,
            details.timeout_us,
            parameters.get(position),
            traces.get(position),
        )
    return fields


class ModelExecution:
    """Runs the batches of one model; the tensors of requests are views of the batch, not copies.

    Coroutines respond on the event loop's thread, others here.
    """

    takes_device_memory = True

    def __init__(
        self,
        model: Any,
        model_path: str,
        runtime: WorkerRuntime,
        device: DeviceTensors,
        coroutines: CoroutineThread,
    ) -> None:
        # Triton notices this only with the first request. Here such a model never becomes ready.
        if not hasattr(model, "execute"):
            raise RuleError(f"Python model {model_path} does not implement `execute` method.")
        self._execute = model.execute
        self.is_async = inspect.iscoroutinefunction(model.execute)
        self._runtime = runtime
        self._device = device
        self._coroutines = coroutines

    def run(self, batch: WorkerBatch) -> None:
        """Call the model with a batch; see `Backend`."""
        try:
            batch.requests = requests = make_requests(batch, self._device)
            # A copy of the list, because the model may change it.
            batch.result = self._execute(requests[:])
            del requests
        except BaseException as error:  # noqa: BLE001  all that a model raises is sent as an error
            self._fail(batch, error)
            return
        if type(batch.result) is list or not isinstance(batch.result, Coroutine):
            self._answer(batch)
        else:
            self._start(batch)

    def _start(self, batch: WorkerBatch) -> None:
        if batch.is_decoupled:
            self._send_responses(batch, (), batch.execute.batch)
            batch.mark_returned()
        self._coroutines.submit(self._finish(batch))

    async def _finish(self, batch: WorkerBatch) -> None:
        try:
            try:
                batch.result = await batch.result
            except BaseException as error:  # noqa: BLE001  see `run`
                self._fail(batch, error)
            else:
                self._answer(batch)
        except ConnectionError:
            pass  # the server has ended; the model's thread notices that, too

    def _answer(self, batch: WorkerBatch) -> None:
        try:
            if batch.is_decoupled:
                answers.check_decoupled_return(batch.result, self._runtime.instance_name)
                self._return(batch, [None] * len(batch.requests))
            else:
                self._answer_coupled(batch)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  invalid result, or tensors that cannot be sent
            self._fail(batch, error)

    def _answer_coupled(self, batch: WorkerBatch) -> None:
        execute, requests = batch.execute, batch.requests
        responses = answers.returned_responses(batch.result, requests)
        columns = None
        has_shared = False
        if execute.devices or execute.device_wishes:
            responses = [each for _, each in self._placed(batch, enumerate(responses))]
            has_shared = any(each is not None and exports_of(each.tensors) for each in responses)
        if not has_shared:  # else outputs are in several places
            columns = answers.batch_outputs(responses, requests, execute.rows)
        if columns is None:
            self._return(batch, responses)
            return
        # Now an output may be the only reference to an input's memory; then it needs no copy.
        del responses, requests
        batch.requests, batch.result = (), None
        times_ns = (batch.started_ns, time.monotonic_ns())
        batch.answer(
            functools.partial(
                answers.make_batch_result, execute.batch, execute.rows, times_ns, columns
            )
        )

    def _return(self, batch: WorkerBatch, responses: Sequence[InferenceResponse | None]) -> None:
        """Send the responses, and notify the server that `execute` returned."""
        requests = batch.requests
        answered = [
            (position, response)
            for position, (request, response) in enumerate(zip(requests, responses, strict=True))
            if response is not None
            or (request.release_flags == RELEASE_RESCHEDULE and batch.is_open(position))
        ]
        returned_batch = 0 if batch.is_returned else batch.execute.batch
        if answered or returned_batch:
            self._send_responses(batch, answered, returned_batch)
        for position, _ in answered:
            _close(requests[position])
        batch.requests, batch.result = (), None
        batch.mark_returned([position for position, _ in answered])

    def _placed(
        self, batch: WorkerBatch, responses: Iterable[tuple[int, InferenceResponse | None]]
    ) -> list[tuple[int, InferenceResponse | None]]:
        """Leave outputs of responses in GPU memory that belong there."""
        placed: list[tuple[int, InferenceResponse | None]] = []
        try:
            for position, response in responses:
                there = None if response is None else place(batch, position, response, self._device)
                placed.append((position, there))
        except BaseException:
            self._device.take_back_responses([response for _, response in placed])
            raise
        return placed

    def _send_responses(self, batch: WorkerBatch, answered: _Answered, returned_batch: int) -> None:
        """Send responses; if that fails, what others were to get of them is given up."""
        times_ns = (batch.started_ns, time.monotonic_ns())
        make = functools.partial(answers.make_responses, batch, times_ns, answered, returned_batch)
        try:
            batch.batches.outbox.send(make)
        except BaseException:
            if batch.execute.device_wishes:
                self._device.take_back_responses([response for _, response in answered])
            raise

    def _fail(self, batch: WorkerBatch, error: BaseException) -> None:
        """Fail the open requests of a batch; responses that senders hold are sent before."""
        if not isinstance(error, InvalidArgumentError):  # else it is the client's region
            self._runtime.log_failure(error)
        held = []
        for position, request in enumerate(batch.requests):
            if request.sender is not None:
                response = request.sender.take_held()
                if response is not None and batch.is_open(position):
                    held.append((position, response))
            _close(request)
        batch.requests, batch.result = (), None
        if held:
            self._send_held(batch, held)
        batch.fail(error)

    def _send_held(self, batch: WorkerBatch, held: _Answered) -> None:
        try:
            if batch.execute.devices or batch.execute.device_wishes:
                held = self._placed(batch, held)
            self._send_responses(batch, held, 0)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001  these requests then fail like the others
            self._runtime.log_failure(error)


def _close(request: InferenceRequest) -> None:
    if request.sender is not None:
        request.sender.mark_closed()


def device_of_instance(arguments: Mapping[str, str]) -> int:
    """Returns the GPU of an instance with these arguments of `initialize`; -1 if it has none."""
    if arguments.get("model_instance_kind") != GPU:
        return ANY_DEVICE
    number = arguments.get("model_instance_device_id", "0")
    return int(number) if number.isdecimal() else ANY_DEVICE


def gpu_in_use(device: int) -> bytes:
    """Returns what the GPU that this process uses is known by in others; empty if that is open.

    Loads nothing and makes nothing active. `device` is that of the instance, if it has one.
    """
    driver = cuda_driver.find_loaded()
    try:
        active = [] if driver is None else driver.active_devices()
        if driver is None or (device not in active and len(active) != 1):
            return b""
        return driver.uuid_of(device if device in active else active[0])
    except CudaError:  # it is loaded, but nobody has initialised it
        return b""


def make_current(device: int) -> None:
    """Make a GPU current on this thread. If the driver cannot, that is logged, and no error.

    Libraries of CUDA use device 0 on a thread where none is current. So nothing is done for it, and
    a model that does not use CUDA costs no context there.
    """
    if device <= 0:
        return
    try:
        usable_driver().make_current(device)
    except (CudaError, ServerError) as error:
        logger.warning("GPU %d cannot be made current for the model: %s", device, error)
