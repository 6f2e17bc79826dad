# SPDX-License-Identifier: Apache-2.0
"""Runs one instance of a compiled backend in its own process, from loading to its end.

The main thread both reads the channel and calls the backend.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pytriton.base.errors import ErrorCode, ServerError
from pytriton.runtime.native_backend.execution import BatchExecution, BatchRuns
from pytriton.runtime.native_backend.host import Host
from pytriton.runtime.pb_utils.runtime import set_runtime
from pytriton.runtime.python_backend.loader import find_files
from pytriton.runtime.python_backend.output import end_output
from pytriton.runtime.python_backend.runtime import WorkerRuntime
from pytriton.runtime.python_backend.worker import CoroutineThread, ReadyCheck
from pytriton.runtime.transport.frames import (
    Cancel,
    CheckReady,
    Credit,
    Execute,
    Finalize,
    Initialize,
    Initialized,
    LogChange,
    ReadyReport,
)

if TYPE_CHECKING:
    import socket

    from pytriton.runtime.python_backend.connection import ServerConnection
    from pytriton.runtime.python_backend.mailbox import Waiter
    from pytriton.runtime.transport.channel import Received


class NativeWorker:
    """Runs a compiled backend over a connection until the server ends it."""

    def __init__(self, connection: ServerConnection, fork_socket: socket.socket | None) -> None:
        self._connection = connection
        self._fork_socket = fork_socket

    def run(self, frame: Initialize) -> NoReturn:
        """Run the model. The process ends with it, because threads of the backend may be left.

        Raises:
            EOFError: The server has ended, or ConnectionError.
        """
        self._runtime = self._make_runtime(frame)
        with_instance = not frame.completes_config
        try:
            report = self._initialize(frame)
        except ServerError as error:
            report = Initialized(error=error.message, error_code=int(error.code))
        except Exception as error:  # noqa: BLE001  a fault of ours, or a broken configuration
            text = f"{type(error).__name__}: {error}"
            report = Initialized(error=text, error_code=int(ErrorCode.INTERNAL))
        self._connection.outbox.send(lambda _: report)
        if report.is_failure:
            self._end()
        if with_instance:
            self._runtime.can_infer = True
            self._serve()
        self._finalize(with_instance=with_instance)

    def _make_runtime(self, frame: Initialize) -> WorkerRuntime:
        arguments = frame.arguments
        repository = arguments.get("model_repository", "")
        runtime = WorkerRuntime(
            self._connection,
            self._fork_socket,
            instance_name=arguments.get("model_instance_name") or arguments["model_name"],
            model_directory=str(Path(repository, arguments.get("model_version", "1"))),
            switches=frame.log,
        )
        set_runtime(runtime)
        self._connection.handlers[LogChange] = self._on_log_change
        return runtime

    def _on_log_change(self, received: Received) -> None:
        self._runtime.on_log_change(received)
        self._host.logs.update()

    def _initialize(self, frame: Initialize) -> Initialized:
        find_files(frame)
        self._host = host = Host(frame, self._runtime)
        host.load()
        connection = self._connection
        runs = BatchRuns(
            connection.outbox,
            connection.mailbox,
            is_decoupled=frame.is_decoupled,
            is_batching=frame.is_batching,
        )
        connection.handlers[Cancel] = runs.on_cancel
        connection.handlers[Credit] = runs.on_credit
        connection.handlers[Finalize] = functools.partial(self._on_finalize, runs)
        self._prepare_ready_check()
        self._execution = BatchExecution(
            host.execute, runs, host.requests, host.responses, host.errors, host.statistics
        )
        host.initialize(with_instance=not frame.completes_config)
        if frame.completes_config:
            models = host.models
            return Initialized(config=json.dumps(models.config) if models.changed_config else "")
        return Initialized(has_ready_check=host.has_ready_check)

    def _on_finalize(self, runs: BatchRuns, received: Received) -> Waiter:
        # A backend may wait for its threads at its end, and they may wait for clients.
        runs.cancel_all()
        return self._connection.mailbox.jobs.put(received)

    def _serve(self) -> None:
        while True:
            received = self._connection.next_job()
            frame = received.frame
            if not isinstance(frame, Execute):
                return
            self._runtime.set_batch(frame.batch, frame.ids or None)
            try:
                self._execution.run(received)
            finally:
                self._runtime.set_batch(0)
            # Free memory that the backend does not keep now, before this thread waits again.
            del received

    def _prepare_ready_check(self) -> None:
        handlers = self._connection.handlers
        if not self._host.has_ready_check:
            handlers[CheckReady] = self._report_ready
            return
        coroutines = CoroutineThread(lambda _: None)  # a C function never returns one to run
        check = ReadyCheck(
            self._host.check_ready, self._connection, coroutines, self._log_not_ready
        )
        handlers[CheckReady] = check.on_check
        check.start()

    def _report_ready(self, received: Received) -> None:
        frame = received.frame
        assert isinstance(frame, CheckReady)
        self._connection.outbox.post(ReadyReport(frame.call, True))

    def _log_not_ready(self, error: BaseException) -> None:
        name = self._runtime.instance_name
        self._runtime.log("ERROR", f"instance '{name}' is not ready: {error}", __file__, 0)

    def _finalize(self, *, with_instance: bool) -> NoReturn:
        self._runtime.can_infer = False
        self._host.finalize(with_instance=with_instance)
        self._connection.outbox.flush()
        self._end()

    def _end(self) -> NoReturn:
        """End the process without the interpreter's end, during which no thread may call it."""
        end_output()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)  # what the backend has printed
        os._exit(0)
