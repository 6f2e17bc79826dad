# SPDX-License-Identifier: Apache-2.0
"""Binds models to a server that another process on the same machine runs."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from pytriton.base.announcement import Addresses
from pytriton.base.lazy_module import LazyModule
from pytriton.binding.server_process import ServerGoneError, ServerLink
from pytriton.binding.triton_base import MODEL_TIMEOUT_S, TritonBase
from pytriton.client.exceptions import PyTritonClientTimeoutError
from pytriton.client.url import TritonUrl
from pytriton.constants import DEFAULT_TRITON_STARTUP_TIMEOUT_S
from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonValidationError
from pytriton.runtime.transport import rendezvous

if TYPE_CHECKING:
    import pathlib

    from typing_extensions import Self

    from pytriton.binding.triton_base import ModelServer
    from pytriton.runtime.transport import control
    from pytriton.utils.workspace import Workspace
else:  # most programs import this module for `Triton`, which imports it later
    control = LazyModule("pytriton.runtime.transport.control")

logger = logging.getLogger(__name__)

_RETRY_S = 0.1


class RemoteTriton(TritonBase):
    """Serves Python callables on a server that is already running on this machine as this user.

    Its models are removed from the server when it is closed or its process ends. A model with the
    name of a model that is already bound replaces that model.

    Args:
        url: address of the server, `[scheme://]host[:port]`.
        workspace: folder for files, which must not exist yet; default is none.
        access_token: token of the server, see `Triton.get_access_token`; default is none, because
            the same user needs no token. A wrong token is refused.

    Raises:
        PyTritonValidationError: The address is not an address of this machine.

    Examples:
        >>> with RemoteTriton(url="localhost") as triton:
        ...     triton.bind("Identity", lambda requests: requests, inputs, outputs)
        ...     triton.serve()
    """

    def __init__(
        self,
        url: str,
        workspace: Workspace | str | pathlib.Path | None = None,
        access_token: str | None = None,
    ) -> None:
        super().__init__(workspace)
        self._url = TritonUrl.from_url(url)
        if not rendezvous.is_local(self._url.hostname):
            raise PyTritonValidationError(
                f"Expected the address of a server on this machine, got {self._url.hostname!r}: "
                "models are bound over memory that both processes share"
            )
        self._access_token = access_token
        self._link: ServerLink | None = None
        self._ports = control.Started(0, 0, 0)  # ports of the server
        self._owner_pid = 0  # the process that connected
        self._stop_requested = threading.Event()  # ends a wait for the server

    def __enter__(self) -> Self:
        """Connect to the server."""
        self.connect()
        return self

    def connect(self) -> None:
        """Connect to the server and serve all bound models; does nothing if already connected.

        Raises:
            PermissionError: The server belongs to another user.
            PyTritonRuntimeError: The server refuses, for example because the token is wrong.
            PyTritonValidationError: A model's configuration is wrong.
            PyTritonInvalidOperationError: `stop` was called while this waited for the server.
            TimeoutError: No server of this user uses that port, or it does not answer.
        """
        with self._lock:
            if self._is_connected:
                return
            self._stop_requested.clear()  # first: another stop may come during the wait
            self._wait_for_stop()
            deadline_s = time.monotonic() + DEFAULT_TRITON_STARTUP_TIMEOUT_S
            while not self._is_connected:
                try:
                    self._join(deadline_s)
                except ServerGoneError as error:  # noqa: PERF203  each attempt takes a while
                    self._wait_for_server(deadline_s, error)

    def _wait_for_server(self, deadline_s: float, error: ServerGoneError) -> None:
        """Waits before the next attempt; raises an error after the deadline or a stop."""
        address = self._url.without_scheme
        if time.monotonic() > deadline_s:
            raise PyTritonClientTimeoutError(
                f"no server of this user served {address} within "
                f"{DEFAULT_TRITON_STARTUP_TIMEOUT_S} s"
            ) from error
        if self._stop_requested.wait(_RETRY_S):
            raise PyTritonInvalidOperationError(
                f"stopped while it waited for a server at {address}"
            ) from error

    def _start_serving(self) -> None:
        self.connect()

    def _join(self, deadline_s: float) -> None:
        """Serves the models on the current server; raises NoServerError if there is none."""
        try:
            sock = rendezvous.connect(self._url.port, DEFAULT_TRITON_STARTUP_TIMEOUT_S)
        except (ConnectionError, BlockingIOError) as error:
            raise ServerGoneError(str(error)) from error
        link = ServerLink(sock, lambda: self._on_end(link))
        self._owner_pid = os.getpid()
        atexit.register(self.stop)
        try:
            limit_s = max(_RETRY_S, deadline_s - time.monotonic())
            self._ports = link.open(control.Join(self._access_token or ""), limit_s)
            self._link = self._model_server = link
            if link.has_ended:  # before `_on_end` knew that it is ours
                raise ServerGoneError("the server ended")  # noqa: TRY301
            self._serve_models()
        except BaseException:
            self._link = self._model_server = None
            atexit.unregister(self.stop)
            link.close()
            raise

    def stop(self) -> bool:
        """Remove the models from the server; their open requests are finished first.

        Returns:
            False if it was not connected.
        """
        if self._owner_pid not in (0, os.getpid()):
            return False  # a forked child exits; the models belong to its parent
        self._stop_requested.set()  # otherwise `connect` could hold the lock for minutes
        with self._lock:
            link = self._link
        return self._stop(link)

    def _stop(self, server: ModelServer | None) -> bool:
        with self._lock:
            link = self._link
            if link is None or server is not link:
                return False  # it was already stopped, and there may be a new one
            self._link = self._model_server = None
            self._is_connected = False
            self._stop_finished.clear()
        with self._finishing_stop():
            atexit.unregister(self.stop)
            link.unbind_all(list(self._models.values()), MODEL_TIMEOUT_S)
            link.close()
        return True

    def is_alive(self) -> bool:
        """Whether every bound model is served; True while none is bound.

        Returns:
            False if models are bound but not connected, or the server has ended.
        """
        if not self._models:
            return True
        link = self._link
        return link is not None and not link.has_ended and self._are_models_alive()

    def _addresses(self) -> Addresses:
        ports = (self._ports.http_port, self._ports.grpc_port, self._ports.metrics_port)
        places = zip(("http", "grpc", "http"), ports, self._ports.uses_tls, strict=True)
        host = self._url.hostname
        return Addresses(
            *(
                TritonUrl(scheme, host, port, uses_tls).with_scheme if port else ""
                for scheme, port, uses_tls in places
            )
        )

    def _on_end(self, link: ServerLink) -> None:
        if self._link is link:  # ignore links that were already stopped
            logger.error("the server ended")
            self._stop(link)
