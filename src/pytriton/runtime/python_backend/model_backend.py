# SPDX-License-Identifier: Apache-2.0
"""The backend of a `model.py`, and of frameworks, whose code is one: see `Backend`.

The main thread calls the model. Its coroutines run on an event loop with a thread of its own.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.backend.backend import Backend
from pytriton.runtime.backend.coroutines import CoroutineThread
from pytriton.runtime.backend.failure_text import RuleError
from pytriton.runtime.cuda.instance_device import device_of_instance, gpu_in_use, make_current
from pytriton.runtime.pb_utils.model_config import ModelConfig
from pytriton.runtime.pb_utils.runtime import set_runtime
from pytriton.runtime.python_backend.answers import failure_of
from pytriton.runtime.python_backend.batch_execution import (
    BatchExecution,
    declared_outputs,
    takes_whole_batches,
)
from pytriton.runtime.python_backend.device_tensors import DeviceTensors, keeps_inputs_on_device
from pytriton.runtime.python_backend.execution import ModelExecution
from pytriton.runtime.python_backend.loader import find_files, load_class
from pytriton.runtime.python_backend.replies import ModelReplies
from pytriton.runtime.python_backend.runtime import WorkerRuntime
from pytriton.runtime.transport.frames import (
    DropRegions,
    Initialize,
    Initialized,
    LogChange,
    ReleaseExports,
)
from pytriton.runtime.transport.loop_spinner import DEVICE_SPIN_NS

if TYPE_CHECKING:
    import asyncio
    import socket

    from pytriton.runtime.backend.batch import Description, WorkerBatch
    from pytriton.runtime.backend.connection import GroupMember, ServerConnection
    from pytriton.runtime.backend.flow_control import OpenBatches
else:  # most models have no coroutines, and asyncio takes 3 MiB of each worker
    asyncio = LazyModule("asyncio")

_RANK_FAILED = 1  # exit status


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
