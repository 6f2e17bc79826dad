# SPDX-License-Identifier: Apache-2.0
"""Runs one instance of a model in its own process: `initialize`, batches, `finalize`.

The main thread both reads the channel and calls the model.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton.pb_utils.model_config import ModelConfig
from pytriton.pb_utils.runtime import set_runtime
from pytriton.python_backend.batch_run import BatchRegistry
from pytriton.python_backend.connection import Connection
from pytriton.python_backend.coroutines import CoroutineThread
from pytriton.python_backend.execution import Execution
from pytriton.python_backend.failure_text import RuleError, describe, describe_fully, raised_at
from pytriton.python_backend.loader import load_class
from pytriton.python_backend.readiness import ReadyCheck
from pytriton.python_backend.runtime import WorkerRuntime
from pytriton.transport.frames import Cancel, Credit, Execute
from pytriton.transport.log_frames import LogChange
from pytriton.transport.worker_frames import (
    CheckReady,
    Finalize,
    Initialize,
    Initialized,
    ReadyReport,
)

if TYPE_CHECKING:
    import socket

    from pytriton.transport.channel import Received

_SERVER_GONE = 1  # exit status


class Worker:
    """Runs a model over a channel until the server ends it or the connection is lost."""

    def __init__(self, channel: socket.socket, fork_socket: socket.socket) -> None:
        self._connection = Connection(channel)
        self._fork_socket = fork_socket
        self._model: Any = None
        jobs = self._connection.mailbox.jobs
        for kind in (Initialize, Execute, Finalize):
            self._connection.handlers[kind] = jobs.put

    def run(self) -> None:
        """Run the model; returns after `finalize`."""
        try:
            self._serve()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            # Without a server the model's work is of no use, so the process ends at once.
            os._exit(_SERVER_GONE)
        self._connection.close()
        self._fork_socket.close()

    def _next(self) -> Received:
        mailbox = self._connection.mailbox
        mailbox.wait(mailbox.jobs)
        return mailbox.jobs.messages.popleft()

    def _serve(self) -> None:
        frame = self._next().frame
        assert isinstance(frame, Initialize), f"expected Initialize first, got {frame}"
        self._runtime = self._make_runtime(frame)
        try:
            report = self._initialize(frame)
        except BaseException as error:  # noqa: BLE001  all that a model raises is reported
            self._log_raised(error, "could not be loaded")
            report = Initialized(error=describe(error))
        self._connection.outbox.send(lambda _: report)
        if report.error or frame.completes_config:
            return
        self._runtime.can_infer = True
        while True:
            received = self._next()
            if isinstance(received.frame, Finalize):
                break
            self._execution.run(received)
            # Free arrays that the model does not keep now, before this thread waits again.
            del received
        self._finalize()

    def _make_runtime(self, frame: Initialize) -> WorkerRuntime:
        arguments = frame.arguments
        directory = Path(frame.model_path).parent
        if not frame.package:  # the code of a backend, which is not in the model's own folder
            directory = Path(arguments["model_repository"], arguments["model_version"])
        runtime = WorkerRuntime(
            self._connection,
            self._fork_socket,
            instance_name=arguments.get("model_instance_name") or arguments["model_name"],
            model_directory=str(directory),
            switches=frame.log,
        )
        set_runtime(runtime)
        self._connection.handlers[LogChange] = runtime.on_log_change
        return runtime

    def _initialize(self, frame: Initialize) -> Initialized:
        model_class = load_class(frame.model_path, frame.package)
        if frame.completes_config:
            return Initialized(config=_complete_config(model_class, frame.arguments))
        self._model = model = model_class()
        runs = self._make_runs(frame)
        self._coroutines = CoroutineThread(functools.partial(self._on_loop_thread, runs))
        if hasattr(model, "initialize"):
            model.initialize(frame.arguments)
        self._execution = Execution(model, frame.model_path, runs, self._runtime, self._coroutines)
        return Initialized(
            has_ready_check=self._prepare_ready_check(),
            is_async=inspect.iscoroutinefunction(model.execute),
        )

    def _on_loop_thread(self, runs: BatchRegistry, thread: int) -> None:
        runs.set_loop_thread(thread)
        self._connection.loop_reader.own_thread = thread

    def _make_runs(self, frame: Initialize) -> BatchRegistry:
        connection = self._connection
        runs = BatchRegistry(
            connection.outbox,
            connection.mailbox,
            frame.output_names,
            is_decoupled=frame.is_decoupled,
            is_batching=frame.is_batching,
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
        self._connection.outbox.flush()

    def _log_raised(self, error: BaseException, what: str) -> None:
        name = self._runtime.instance_name
        self._runtime.log(
            "ERROR", f"Model '{name}' {what}: {describe_fully(error)}", *raised_at(error)
        )


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
