# SPDX-License-Identifier: Apache-2.0
"""Runs one instance of a model in its own process: `initialize`, batches, `finalize`.

The main thread both reads the channel and calls the model, except on processes without batches.
Coroutines of the model run on an event loop with a thread of its own, and so does `is_ready`.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import json
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pytriton.base.errors import ErrorCode, ServerError, resource_error, sendable_text
from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.cuda.instance_device import device_of_instance, gpu_in_use, make_current
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.model_config import ModelConfig
from pytriton.runtime.pb_utils.runtime import set_runtime
from pytriton.runtime.python_backend.batch_execution import (
    BatchExecution,
    declared_outputs,
    takes_whole_batches,
)
from pytriton.runtime.python_backend.batch_run import BatchRegistry
from pytriton.runtime.python_backend.connection import GroupMember
from pytriton.runtime.python_backend.device_tensors import DeviceTensors, keeps_inputs_on_device
from pytriton.runtime.python_backend.execution import ModelExecution
from pytriton.runtime.python_backend.failure_text import (
    RuleError,
    describe,
    describe_fully,
    raised_at,
)
from pytriton.runtime.python_backend.loader import find_files, load_class
from pytriton.runtime.python_backend.mailbox import MessageInbox, Waiter
from pytriton.runtime.python_backend.runtime import WorkerRuntime
from pytriton.runtime.transport.frames import (
    Cancel,
    CheckReady,
    Credit,
    DropRegions,
    Finalize,
    Initialize,
    Initialized,
    LogChange,
    ReadyReport,
    ReleaseExports,
)
from pytriton.runtime.transport.loop_spinner import DEVICE_SPIN_NS

if TYPE_CHECKING:
    import asyncio
    import socket

    from pytriton.base import background_tasks
    from pytriton.runtime.python_backend.connection import ServerConnection
    from pytriton.runtime.transport.channel import Received
else:  # most models have no coroutines, and asyncio takes 3 MiB of each worker
    asyncio = LazyModule("asyncio")
    background_tasks = LazyModule("pytriton.base.background_tasks")

_POOL_THREADS = 64  # for functions that coroutines pass to `run_in_executor`
_STOP_DEADLINE_S = 5.0

P = ParamSpec("P")
T = TypeVar("T")
_RANK_FAILED = 1  # exit status


class CoroutineThread:
    """Runs coroutines concurrently; the thread starts with the first one and runs until `stop`."""

    def __init__(self, on_start: Callable[[int], None]) -> None:
        self.is_stopped = False
        self._on_start = on_start  # called with the thread's id
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: background_tasks.BackgroundTasks | None = None

    def submit(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine without waiting; it must handle its own exceptions."""
        self._started_loop().call_soon_threadsafe(self._start, coroutine)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started_loop()).result()

    def stop(self) -> None:
        """Cancel running coroutines and end the thread, unless a coroutine blocks it."""
        self.is_stopped = True
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._cancel_tasks(), self._loop)
        self._thread.join(_STOP_DEADLINE_S)

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._tasks = background_tasks.BackgroundTasks(self._loop)
                self._loop.set_default_executor(
                    _ContextPool(_POOL_THREADS, thread_name_prefix="pytriton-pool")
                )
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="pytriton-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        self._on_start(threading.get_ident())
        loop.run_forever()
        loop.close()

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None
        self._tasks.start(coroutine)

    async def _cancel_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        asyncio.get_running_loop().stop()


class _ContextPool(ThreadPoolExecutor):
    """Threads that inherit the context of the submitting task, and with it the current batch."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        context = contextvars.copy_context()
        work = functools.partial(fn, *args, **kwargs)
        return super().submit(lambda: context.run(work))


class ReadyCheck:
    """Answers checks one at a time; checks that arrive during a call get its result."""

    def __init__(
        self,
        is_ready: Callable[[], Any],
        connection: ServerConnection,
        coroutines: CoroutineThread,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._is_ready = is_ready
        self._connection = connection
        self._coroutines = coroutines
        self._on_error = on_error
        self._inbox = MessageInbox(is_low_priority=True)

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="pytriton-ready", daemon=True).start()

    def on_check(self, received: Received) -> Waiter:
        """Queue a check."""
        return self._inbox.put(received)

    def _run(self) -> None:
        mailbox, checks = self._connection.mailbox, self._inbox.messages
        while True:
            try:
                mailbox.wait(self._inbox)
            except EOFError:
                return
            is_ready = self._call_is_ready()
            while checks:
                check = checks.popleft().frame
                assert isinstance(check, CheckReady)
                self._connection.outbox.post(ReadyReport(check.call, is_ready))

    def _call_is_ready(self) -> bool:
        try:
            answer = self._is_ready()
            if isinstance(answer, Coroutine):
                answer = self._coroutines.run(answer)
        except BaseException as error:  # noqa: BLE001  a model that raises anything is not ready
            if not self._coroutines.is_stopped:  # else the end of the model has cancelled it
                self._on_error(error)
            return False
        if not isinstance(answer, bool):
            self._on_error(RuleError(f"is_ready() must return a boolean value, got {answer!r}"))
            return False
        return answer


class ModelWorker:
    """Runs a model over a connection until the server ends it."""

    def __init__(self, connection: ServerConnection, fork_socket: socket.socket | None) -> None:
        self._connection = connection
        self._fork_socket = fork_socket
        self._model: Any = None

    def run(self, frame: Initialize) -> None:
        """Run the model; returns after `finalize`.

        Raises:
            EOFError: The server has ended, or ConnectionError.
        """
        self._runtime = self._make_runtime(frame)
        try:
            report = self._initialize(frame)
        except BaseException as error:  # noqa: BLE001  all that a model raises is reported
            report = self._load_failure(frame, error)
        self._connection.outbox.send(lambda _: report)
        if report.is_failure or frame.completes_config:
            return
        member = GroupMember(frame.arguments, self._connection)
        if member.is_follower:
            self._follow(member)
        else:
            self._runtime.can_infer = True
            self._run_batches()
        self._finalize()
        member.leave()

    def _run_batches(self) -> None:
        while True:
            received = self._connection.next_job()
            if isinstance(received.frame, Finalize):
                return
            self._execution.run(received)
            # Free arrays that the model does not keep now, before this thread waits again.
            del received

    def _follow(self, member: GroupMember) -> None:
        """Run `run_rank` of the model on a process that gets no batches, until its end."""
        with ThreadPoolExecutor(1, "messages") as threads:
            end = threads.submit(member.wait_for_end)  # meanwhile it reads, say, changes of the log
            try:
                if hasattr(self._model, "run_rank"):
                    self._model.run_rank()
            except BaseException as error:  # noqa: BLE001  the process ends
                self._log_raised(error, f"raised in run_rank of rank {member.rank}")
                self._connection.outbox.flush()
                os._exit(_RANK_FAILED)  # which ends the group
            end.result()

    def _load_failure(self, frame: Initialize, error: BaseException) -> Initialized:
        """Returns the report of a model that cannot be loaded; a foreseen error is not logged."""
        code = error.code if isinstance(error, ServerError | TritonModelException) else None
        if isinstance(code, ErrorCode):  # a model may have written anything
            return Initialized(error=sendable_text(str(error)), error_code=int(code))
        self._log_raised(error, "could not be loaded", frame.model_path)
        if resource_error(error) is not None:
            return Initialized(error=describe(error), error_code=int(ErrorCode.UNAVAILABLE))
        return Initialized(error=describe(error))

    def _make_runtime(self, frame: Initialize) -> WorkerRuntime:
        arguments = frame.arguments
        runtime = WorkerRuntime(
            self._connection,
            self._fork_socket,
            instance_name=arguments.get("model_instance_name") or arguments["model_name"],
            arguments=arguments,
            model_directory=frame.model_directory or str(Path(frame.model_path).parent),
            backend_config=frame.backend_config,
            switches=frame.log,
        )
        set_runtime(runtime)
        self._connection.handlers[LogChange] = runtime.on_log_change
        return runtime

    def _initialize(self, frame: Initialize) -> Initialized:
        find_files(frame)
        self._device = device_of_instance(frame.arguments)
        make_current(self._device)
        model_class = load_class(frame.model_path, frame.package)
        if frame.completes_config:
            return Initialized(config=_complete_config(model_class, frame.arguments))
        self._model = model = model_class()
        runs = self._make_runs(frame)
        self._coroutines = CoroutineThread(self._on_loop_thread)
        if hasattr(model, "initialize"):
            model.initialize(frame.arguments)
        self._execution = self._make_execution(frame, runs)
        is_ready = getattr(model, "is_ready", None)
        if self._execution.is_async or inspect.iscoroutinefunction(is_ready):
            asyncio.events  # noqa: B018  imported now, while there are descriptors for that
        return Initialized(
            has_ready_check=self._prepare_ready_check(),
            is_async=self._execution.is_async,
            takes_device_memory=self._takes_device_memory(runs),
            keeps_device_inputs=runs.device.keeps_on_device,
            gpu=gpu_in_use(self._device),
        )

    def _takes_device_memory(self, runs: BatchRegistry) -> bool:
        execution = self._execution
        if isinstance(execution, ModelExecution):
            return True
        runs.device.keeps_on_device = execution.takes_gpu
        return execution.takes_gpu

    def _make_execution(
        self, frame: Initialize, runs: BatchRegistry
    ) -> BatchExecution | ModelExecution:
        model = self._model
        if takes_whole_batches(
            model, is_backend=not frame.package, is_decoupled=frame.is_decoupled
        ):
            declared = declared_outputs(frame.arguments["model_config"], frame.output_names)
            return BatchExecution(model, runs, self._runtime, declared)
        return ModelExecution(model, frame.model_path, runs, self._runtime, self._coroutines)

    def _on_loop_thread(self, thread: int) -> None:
        make_current(self._device)
        self._connection.loop_reader.own_thread = thread

    def _make_runs(self, frame: Initialize) -> BatchRegistry:
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
        self._runtime.device = device if frame.has_gpus else None
        runs = BatchRegistry(
            connection.outbox,
            connection.loop_reader,
            frame.output_names,
            is_decoupled=frame.is_decoupled,
            is_batching=frame.is_batching,
            device=device,
        )
        connection.handlers[Cancel] = runs.on_cancel
        connection.handlers[Credit] = runs.on_credit
        os.register_at_fork(after_in_child=runs.on_fork)
        return runs

    def _prepare_ready_check(self) -> bool:
        handlers = self._connection.handlers
        if not hasattr(self._model, "is_ready"):
            handlers[CheckReady] = self._report_ready
            return False
        check = ReadyCheck(
            self._model.is_ready,
            self._connection,
            self._coroutines,
            lambda error: self._log_raised(error, "raised in is_ready"),
        )
        handlers[CheckReady] = check.on_check
        check.start()
        return True

    def _report_ready(self, received: Received) -> None:
        frame = received.frame
        assert isinstance(frame, CheckReady)
        self._connection.outbox.post(ReadyReport(frame.call, True))

    def _finalize(self) -> None:
        self._runtime.can_infer = False
        self._coroutines.stop()
        if hasattr(self._model, "finalize"):
            try:
                self._model.finalize()
            except BaseException as error:  # noqa: BLE001  the process ends anyway
                self._log_raised(error, "raised in finalize")
        self._runtime.failures.close()
        self._connection.outbox.flush()

    def _log_raised(self, error: BaseException, what: str, default_file: str = "") -> None:
        file, line = raised_at(error)
        text = f"{self._runtime.label} {what}: {describe_fully(error)}"
        self._runtime.log("ERROR", text, file or default_file, line)


def _complete_config(model_class: type[Any], arguments: dict[str, str]) -> str:
    """Returns the configuration that the model completed, as JSON; "" if it has no such method."""
    complete = getattr(model_class, "auto_complete_config", None)
    if complete is None:
        return ""
    config = complete(ModelConfig(arguments["model_config"]))
    if not isinstance(config, ModelConfig):
        raise RuleError(
            f"auto_complete_config function in model '{arguments['model_name']}' must return a"
            " valid pb.ModelConfig object."
        )
    return json.dumps(config.as_dict())
