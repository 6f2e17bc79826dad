# SPDX-License-Identifier: Apache-2.0
"""A worker process as `pytriton.pb_utils` sees it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from pytriton.errors import ServerError
from pytriton.pb_utils.failures import TritonModelException
from pytriton.python_backend.bls import BlsCall, RefusedCall
from pytriton.python_backend.connection import Connection
from pytriton.transport.worker_frames import LogLine, ServiceCall

if TYPE_CHECKING:
    import socket

    from pytriton.pb_utils.request import InferenceRequest
    from pytriton.pb_utils.runtime import InferenceCall


class WorkerRuntime:
    """What the model of this process can reach; processes that it forks reach the same."""

    def __init__(
        self,
        connection: Connection,
        door: socket.socket,
        *,
        instance_name: str,
        model_directory: str,
    ) -> None:
        self.instance_name = instance_name
        self.model_directory = model_directory
        self.can_infer = False  # between the end of `initialize` and the beginning of `finalize`
        self.running_batch = 0  # whose `execute` runs on the model's thread
        self._model_thread = threading.get_ident()
        self._door = door
        self._connection: Connection | None = connection
        self._connecting = threading.Lock()
        os.register_at_fork(after_in_child=self._on_fork)

    def infer(self, request: InferenceRequest, *, decoupled: bool) -> InferenceCall:
        """See `Runtime.infer`."""
        if not self.can_infer:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        is_blocking = threading.get_ident() == self._model_thread
        call = BlsCall(self._connect(), is_decoupled=decoupled)
        try:
            call.start(request, blocked_batch=self.running_batch if is_blocking else 0)
        except ServerError as error:
            return RefusedCall(request, error)
        return call

    def call(self, action: str, **arguments: Any) -> Any:
        """See `Runtime.call`."""
        return self._connect().call_service(action, arguments)

    def notify(self, action: str, **arguments: Any) -> None:
        """See `Runtime.notify`."""
        connection = self._connection
        if connection is not None:  # a forked child that made none has nothing to release, either
            connection.outbox.post(ServiceCall(0, action, arguments))

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """See `Runtime.log`."""
        self._connect().outbox.post(LogLine(level, message, file, line))

    def _connect(self) -> Connection:
        if self._connection is None:
            with self._connecting:
                if self._connection is None:
                    self._connection = Connection.through(self._door)
        return self._connection

    def _on_fork(self) -> None:
        self._connection = None
        self._connecting = threading.Lock()
        self._model_thread = 0
