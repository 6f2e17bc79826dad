# SPDX-License-Identifier: Apache-2.0
"""The settings of a server, kept as flags of the command line until the server is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson

from pytriton.base.errors import InvalidArgumentError
from pytriton.exceptions import PyTritonValidationError
from pytriton.runtime.native_backend.callbacks import export
from pytriton.runtime.native_backend.memory import Handles, put_word, required_text
from pytriton.serving.server.options.server_options import ServerOptions

_CONTROL_MODES = ("none", "poll", "explicit")
_RATE_LIMITS = ("off", "execution_count")
_NEVER_S = 10**9  # the application polls, the server does not
# An application listens for itself, if at all.
_WITHOUT_PORTS = {"allow_http": False, "allow_grpc": False, "frontend_processes": 0}
# `c_library.log` writes for all servers of the process.
_WITHOUT_LOG = {"log_info": False, "log_warning": False, "log_error": False}


@dataclasses.dataclass(slots=True)
class Settings:
    """Values by the names of flags."""

    flags: dict[str, Any] = dataclasses.field(
        default_factory=lambda: {
            "strict_model_config": True,  # unlike on the command line
            "repository_poll_secs": _NEVER_S,
        }
    )

    def append(self, flag: str, value: str) -> None:
        """Add a value of a flag that may be repeated."""
        self.flags.setdefault(flag, []).append(value)

    def read(self) -> ServerOptions:
        """Returns the settings; InvalidArgumentError if they are not valid."""
        try:
            return ServerOptions.from_triton_config(self.flags | _WITHOUT_PORTS | _WITHOUT_LOG)
        except PyTritonValidationError as error:
            raise InvalidArgumentError(error.message) from None


_TEXTS = {
    "ServerId": "id",
    "ModelConfigName": "model_config_name",
    "CacheDirectory": "cache_directory",
    "BackendDirectory": "backend_directory",
    "RepoAgentDirectory": "repoagent_directory",
}
_NUMBERS = {
    "StrictModelConfig": "strict_model_config",
    "PinnedMemoryPoolByteSize": "pinned_memory_pool_byte_size",
    "EnablePeerAccess": "enable_peer_access",
    "ResponseCacheByteSize": "response_cache_byte_size",
    "MinSupportedComputeCapability": "min_supported_compute_capability",
    "ExitOnError": "exit_on_error",
    "StrictReadiness": "strict_readiness",
    "ExitTimeout": "exit_timeout_secs",
    "BufferManagerThreadCount": "buffer_manager_thread_count",
    "ModelLoadThreadCount": "model_load_thread_count",
    "ModelLoadRetryCount": "model_load_retry_count",
    "ModelNamespacing": "model_namespacing",
    "Metrics": "allow_metrics",
    "GpuMetrics": "allow_gpu_metrics",
    "CpuMetrics": "allow_cpu_metrics",
    "MetricsInterval": "metrics_interval_ms",
}


class Options:
    """The settings that the application has made."""

    def __init__(self) -> None:
        self._settings: Handles[Settings] = Handles("options of a server")

    def read(self, handle: int) -> ServerOptions:
        """Returns the settings of a server; InvalidArgumentError if they are not valid."""
        return self._settings.get(handle).read()

    def setters(self) -> dict[str, Callable[[int, Any], None]]:
        """Returns the functions that set one flag to one value, by their names in C."""
        return {
            f"TRITONSERVER_ServerOptionsSet{name}": setter
            for name, setter in (
                *((name, self._setter(flag, required_text)) for name, flag in _TEXTS.items()),
                *((name, self._setter(flag, _same)) for name, flag in _NUMBERS.items()),
            )
        }

    def _setter(self, flag: str, read: Callable[[Any], Any]) -> Callable[[int, Any], None]:
        def set_flag(handle: int, value: Any) -> None:
            self._settings.get(handle).flags[flag] = read(value)

        return set_flag

    @export("TRITONSERVER_ServerOptionsNew")
    def _new(self, place: int) -> None:
        put_word(place, self._settings.add(Settings()))

    @export("TRITONSERVER_ServerOptionsDelete")
    def _delete(self, handle: int) -> None:
        self._settings.pop(handle)

    @export("TRITONSERVER_ServerOptionsSetModelControlMode")
    def _set_control_mode(self, handle: int, number: int) -> None:
        mode = _one_of("control mode", _CONTROL_MODES, number)
        self._settings.get(handle).flags["model_control_mode"] = mode

    @export("TRITONSERVER_ServerOptionsSetRateLimiterMode")
    def _set_rate_limit(self, handle: int, number: int) -> None:
        mode = _one_of("rate limit mode", _RATE_LIMITS, number)
        self._settings.get(handle).flags["rate_limit"] = mode

    @export("TRITONSERVER_ServerOptionsSetModelRepositoryPath")
    def _add_repository(self, handle: int, path: bytes | None) -> None:
        self._settings.get(handle).append("model_repository", required_text(path))

    @export("TRITONSERVER_ServerOptionsSetStartupModel")
    def _add_startup_model(self, handle: int, name: bytes | None) -> None:
        self._settings.get(handle).append("load_model", required_text(name))

    @export("TRITONSERVER_ServerOptionsAddRateLimiterResource")
    def _add_resource(self, handle: int, name: bytes | None, count: int, device: int) -> None:
        place = f":{device}" if device >= 0 else ""
        resource = f"{required_text(name)}:{count}{place}"
        self._settings.get(handle).append("rate_limit_resource", resource)

    @export("TRITONSERVER_ServerOptionsSetCacheConfig")
    def _set_cache(self, handle: int, cache: bytes | None, json: bytes | None) -> None:
        try:
            settings = orjson.loads(required_text(json))
        except orjson.JSONDecodeError as error:
            raise InvalidArgumentError(f"expected settings of a cache as JSON: {error}") from None
        if not isinstance(settings, dict):
            raise InvalidArgumentError(f"expected settings of a cache as JSON, got {settings!r}")
        for setting, value in settings.items():
            entry = f"{required_text(cache)},{setting}={value}"
            self._settings.get(handle).append("cache_config", entry)

    @export("TRITONSERVER_ServerOptionsSetBackendConfig")
    def _set_backend_config(self, handle: int, *words: bytes | None) -> None:
        self._settings.get(handle).append("backend_config", _grouped(*words))

    @export("TRITONSERVER_ServerOptionsSetMetricsConfig")
    def _set_metrics_config(self, handle: int, *words: bytes | None) -> None:
        self._settings.get(handle).append("metrics_config", _grouped(*words))

    @export(
        "TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize",
        "TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize",
        "TRITONSERVER_ServerOptionsSetHostPolicy",
        "TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit",
    )
    def _without_effect(self, handle: int, *_: Any) -> None:
        """Accept settings of pools and devices that this server leaves to its models."""
        self._settings.get(handle)


def _same(value: Any) -> Any:
    return value


def _one_of(noun: str, words: tuple[str, ...], number: int) -> str:
    if not 0 <= number < len(words):
        raise InvalidArgumentError(f"unknown {noun} '{number}'")
    return words[number]


def _grouped(group: bytes | None, setting: bytes | None, value: bytes | None) -> str:
    place = f"{required_text(group)}," if group else ""
    return f"{place}{required_text(setting)}={required_text(value)}"
