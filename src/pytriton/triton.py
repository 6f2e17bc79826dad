# SPDX-License-Identifier: Apache-2.0
"""Serves Python callables that are bound to a `Triton` object."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any

from pytriton.base.announcement import Addresses, ways_to_end
from pytriton.base.lazy_module import LazyModule
from pytriton.base.security import (
    DEFAULT_PROTECTED_ENDPOINTS,
    TRITON_ACCESS_HEADER,
    VALID_TRITON_ENDPOINTS,
    TritonSecurityConfig,
)
from pytriton.base.settings import BY_KEY
from pytriton.base.triton_config import ENVIRONMENT_PREFIX, TritonConfig, TritonServerConfig
from pytriton.binding.remote_triton import RemoteTriton
from pytriton.binding.server_process import ServerProcess
from pytriton.binding.triton_base import (
    MODEL_TIMEOUT_S,
    MONITORING_PERIOD_S,
    TritonBase,
    check_start,
    import_binding,
)
from pytriton.constants import DEFAULT_TRITON_STARTUP_TIMEOUT_S
from pytriton.exceptions import PyTritonInvalidOperationError, PyTritonRuntimeError
from pytriton.model_config.generator import ModelConfigGenerator
from pytriton.utils.endpoint_utils import get_endpoint

if TYPE_CHECKING:
    import secrets
    from collections.abc import Sequence

    from typing_extensions import Self

    from pytriton.binding.triton_base import ModelServer
    from pytriton.runtime.functions.bound_config import AnyModel
    from pytriton.runtime.transport.control import Started
    from pytriton.utils.workspace import Workspace
else:
    secrets = LazyModule("secrets")  # not used here, but users import it

__all__ = [
    "DEFAULT_PROTECTED_ENDPOINTS",
    "GROWTH_BACKEND_SHM_SIZE",
    "INITIAL_BACKEND_SHM_SIZE",
    "MODEL_CONFIG_URL",
    "MODEL_INFER_URL",
    "MODEL_READY_URL",
    "MODEL_URL",
    "MONITORING_PERIOD_S",
    "TRITONSERVER_DIST_DIR",
    "TRITON_ACCESS_HEADER",
    "VALID_TRITON_ENDPOINTS",
    "WAIT_FORM_MODEL_TIMEOUT_S",
    "DefaultTritonLifecyclePolicy",
    "RemoteTriton",
    "Triton",
    "TritonBase",
    "TritonConfig",
    "TritonLifecyclePolicy",
    "TritonSecurityConfig",
    "VertextAILifecyclePolicy",
    "secrets",
]

logger = logging.getLogger(__name__)

WAIT_FORM_MODEL_TIMEOUT_S = MODEL_TIMEOUT_S

# Sizes of shared memory and paths of binaries in PyTriton. They are not used here, but users import
# them.
INITIAL_BACKEND_SHM_SIZE = 4194304
GROWTH_BACKEND_SHM_SIZE = 1048576
TRITONSERVER_DIST_DIR = pathlib.Path(__file__).parent / "tritonserver"

MODEL_URL = "/v2/models/{model_name}"
MODEL_READY_URL = f"{MODEL_URL}/ready/"
MODEL_CONFIG_URL = f"{MODEL_URL}/config/"
MODEL_INFER_URL = f"{MODEL_URL}/infer/"

_DEFAULT_EXIT_TIMEOUT_S = int(BY_KEY["exit_timeout_secs"].default)
_EXIT_MARGIN_S = 5.0
_PORT_IN_USE = re.compile(r"failed to start (HTTP|GRPC|Metrics) service: .* already in use")


class Triton(TritonBase):
    """A server for Python callables, in a separate process.

    Args:
        config: settings of the server; values that are None are taken from the environment.
        workspace: folder for files of the server, which must not exist yet; default is none,
            because the server needs no files.
        triton_lifecycle_policy: when the server starts.
        security_config: endpoints that need a token; by default the administrative ones.

    Examples:
        >>> with Triton() as triton:
        ...     triton.bind("Identity", lambda requests: requests, inputs, outputs)
        ...     triton.serve()
    """

    def __init__(
        self,
        *,
        config: TritonConfig | None = None,
        workspace: Workspace | str | pathlib.Path | None = None,
        triton_lifecycle_policy: TritonLifecyclePolicy | None = None,
        security_config: TritonSecurityConfig | None = None,
    ) -> None:
        super().__init__(workspace)
        self._config = TritonConfig.resolved(config)
        self._security_config = security_config or TritonSecurityConfig()
        self._policy = triton_lifecycle_policy or _default_policy(config)
        self._triton_server: ServerProcess | None = None  # kept after a stop, for is_alive()
        self._owner_pid = 0  # the process that started the server

    def __enter__(self) -> Self:
        """Start the server, unless the lifecycle policy starts it later."""
        if self._policy.launch_triton_on_startup:
            self.run()
        return self

    def run(self) -> None:
        """Start the server and serve the bound models; returns when they are ready.

        The server says that it is ready when all models are that were bound before.

        Raises:
            PyTritonValidationError: A setting or a model's configuration is wrong.
            PyTritonRuntimeError: The server could not start, for example because a port is in use.
            TimeoutError: The server did not start in time.
        """
        self._launch(awaits_models=bool(self._models))

    def _launch(self, *, awaits_models: bool) -> None:
        """Start the server and serve the bound models; it may not be ready before there are any."""
        check_start()
        self._stop_dead_server()
        with self._lock:
            if self._model_server is None:
                try:
                    self._start_server(awaits_models=awaits_models)
                except PyTritonRuntimeError as error:
                    service = _PORT_IN_USE.match(error.message)
                    if service is None:
                        raise
                    hint = self._port_hint(f"{service[1].lower()}_port")
                    raise PyTritonRuntimeError(f"{error.message.strip()}. {hint}") from None
            self.connect()

    def _stop_dead_server(self) -> None:
        """Cleans up after a server that died, if its monitoring thread has not done so yet."""
        with self._lock:  # a model that is being bound is not alive yet
            server = self._triton_server
            is_dead = not self.is_alive()  # its models often end before the end of it is heard
        if is_dead:
            self._stop(server)

    def connect(self) -> None:
        """Serve all bound models on the running server; does nothing if they are already served.

        Raises:
            PyTritonInvalidOperationError: The server does not run.
        """
        with self._lock:
            if self._is_connected:
                return
            if self._model_server is None:
                raise PyTritonInvalidOperationError("Expected a running server: call run() first")
            self._serve_models()
        self._log_endpoints()

    def _start_serving(self) -> None:
        self.run()

    def stop(self) -> bool:
        """Finish open requests, then stop the server and the instances of the models.

        The object may be used again: models stay bound, and the same names may be bound again.

        Returns:
            False if nothing was running.
        """
        if os.getpid() != self._owner_pid:
            return False  # a forked child exits; the server belongs to its parent
        with self._lock:  # waits for a start in progress
            server = self._triton_server
        return self._stop(server)

    def _stop(self, server: ModelServer | None) -> bool:
        with self._lock:
            process = self._triton_server
            if process is None or server is not process or self._model_server is not process:
                return False  # it was already stopped, and another one may be running
            self._model_server = None
            self._is_connected = False
            self._stop_finished.clear()
        with self._finishing_stop():
            atexit.unregister(self.stop)  # it would keep this object and its models alive
            logger.debug("stopping the server")
            timeout_s = self._config.exit_timeout_secs or _DEFAULT_EXIT_TIMEOUT_S
            process.stop(timeout_s + _EXIT_MARGIN_S)
        if self._config.log_verbose:
            self._warn_of_verbose_log()
        return True

    def is_alive(self) -> bool:
        """Whether the server runs and every instance of every model accepts requests.

        Returns:
            False before the start and after the stop.
        """
        server = self._triton_server
        return (
            self._model_server is not None
            and server is not None
            and server.is_alive()
            and (not self._is_connected or self._are_models_alive())
        )

    def get_access_token(self) -> str | None:
        """Return the token for protected endpoints.

        Returns:
            The token; None if nothing is protected and none was given.
        """
        return self._security_config.access_token

    @property
    def _triton_server_config(self) -> TritonServerConfig:
        """The settings as a command line; guides use it to show the configuration."""
        return TritonServerConfig(self._server_settings())

    def _start_server(self, *, awaits_models: bool) -> None:
        self._wait_for_stop()
        self._owner_pid = os.getpid()
        server = ServerProcess(self._on_server_exit)
        started = server.start(
            self._server_settings(),
            DEFAULT_TRITON_STARTUP_TIMEOUT_S,
            awaits_models=awaits_models,
            meanwhile=import_binding,
        )
        self._triton_server = self._model_server = server
        atexit.register(self.stop)
        self._use_ports(started)
        if self._config.log_verbose:
            self._warn_of_verbose_log()

    def _server_settings(self) -> dict[str, Any]:
        settings = {
            name: os.fspath(value) if isinstance(value, pathlib.Path) else value
            for name, value in self._config.to_dict().items()
            if value is not None
        }
        if self._config.model_repository is not None:
            settings |= {"model_control_mode": "explicit", "load_model": ["*"]}
        for name in ("http_restricted_api", "grpc_restricted_protocol"):
            if groups := self._security_config.restrictions(settings.get(name)):
                settings[name] = groups
        return settings

    def _use_ports(self, started: Started) -> None:
        """Stores the ports that the system chose for ports that were 0."""
        self._config = dataclasses.replace(
            self._config,
            http_port=started.http_port or self._config.http_port,
            grpc_port=started.grpc_port or self._config.grpc_port,
            metrics_port=started.metrics_port or self._config.metrics_port,
        )

    def _trace_config(self) -> Sequence[str]:
        return self._config.trace_config or ()

    def _record_model(self, model: AnyModel) -> None:
        if not self._policy.local_model_store or self._workspace is None:
            return
        folder = self._workspace.model_store_path / model.name
        path = folder / "config.pbtxt"
        if path.exists():
            logger.warning("The config file %s already exists and is overwritten", path)
        (folder / str(model.version)).mkdir(parents=True, exist_ok=True)
        ModelConfigGenerator(model.config).to_file(path)

    def _on_server_exit(self, server: ServerProcess) -> None:
        if self._model_server is server:  # ignore servers that were already stopped
            logger.error("the server process ended")
            self._stop(server)

    def _log_endpoints(self) -> None:
        endpoint = get_endpoint(
            self._config, "grpc" if self._config.allow_http is False else "http"
        )
        for model in self._models.values():
            url = endpoint + MODEL_URL.format(model_name=model.name)
            logger.info("Infer function available as model: `%s`", url)
            logger.info("  Status:         `GET  %s/ready`", url)
            logger.info("  Configuration:  `GET  %s/config`", url)
            logger.info("  Inference:      `POST %s/infer`", url)
        logger.info("(To quit: %s)", ways_to_end())

    @property
    def addresses(self) -> Addresses:
        """The addresses for clients on this machine; empty for a protocol that is not served.

        While the server runs, they have the ports that the system chose for ports that are 0.
        """
        return self._addresses()

    def _addresses(self) -> Addresses:
        config = self._config
        metrics = "" if config.allow_metrics is False else get_endpoint(config, "metrics")
        return Addresses(
            "" if config.allow_http is False else get_endpoint(config, "http"),
            "" if config.allow_grpc is False else get_endpoint(config, "grpc"),
            metrics,
            f"{metrics}/" if metrics and config.allow_page is not False else "",
        )

    @staticmethod
    def _port_hint(field: str) -> str:
        """Returns advice for a port that is in use."""
        return (
            "Stop the program that uses it, or choose another port with "
            f"TritonConfig({field}=...) or the environment variable "
            f"{ENVIRONMENT_PREFIX}{field.upper()}; 0 takes a free one."
        )

    @staticmethod
    def _warn_of_verbose_log() -> None:
        logger.warning(
            "Triton Inference Server is running with enabled verbose logs. "
            "It may affect inference performance."
        )


def _default_policy(config: TritonConfig | None) -> TritonLifecyclePolicy:
    if config is not None and config.allow_vertex_ai:
        return VertextAILifecyclePolicy
    return DefaultTritonLifecyclePolicy


@dataclasses.dataclass
class TritonLifecyclePolicy:
    """When the server starts and how it gets the bound models.

    Args:
        launch_triton_on_startup: start the server on entering the `Triton` context. Otherwise
            models are bound first, and `run` or `serve` starts it.
        local_model_store: write each bound model to the model store in the workspace, where the
            server finds it when it starts, instead of sending it over the repository API.
    """

    launch_triton_on_startup: bool = True
    local_model_store: bool = False


DefaultTritonLifecyclePolicy: TritonLifecyclePolicy = TritonLifecyclePolicy()

# Vertex AI checks the health of a container before a model could be sent to it. Users import the
# name with this spelling.
VertextAILifecyclePolicy: TritonLifecyclePolicy = TritonLifecyclePolicy(
    launch_triton_on_startup=False, local_model_store=True
)
