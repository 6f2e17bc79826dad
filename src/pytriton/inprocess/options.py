# SPDX-License-Identifier: Apache-2.0
"""The settings of an in-process server, their types, and the server's settings made of them."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, NamedTuple

from pytriton.base.settings import BY_NAME, DEFAULT_START_TIMEOUT_S, ServerSetting
from pytriton.inprocess.enums import (
    InstanceGroupKind,
    LogFormat,
    ModelControlMode,
    RateLimitMode,
)
from pytriton.inprocess.errors import InvalidArgumentError

_NEVER_S = 10**9  # between two polls: a program polls when it wants to


class RateLimiterResource(NamedTuple):
    """A resource that instances use while they execute, and how much of it there is.

    Attributes:
        name: Its name in configurations.
        count: How much of it there is.
        device: The device that it belongs to; None: each device has as much.
    """

    name: str
    count: int  # type: ignore[assignment]  # a field of Triton's name, which tuples have, too
    device: int | None = None


class ModelLoadDeviceLimit(NamedTuple):
    """The part of a device's memory up to which models are loaded; it has no effect here."""

    kind: InstanceGroupKind
    device: int
    fraction: float


@dataclass(slots=True)
class Options:
    """The settings of a server. Their types are checked when the server starts.

    Those of memory pools, devices, thread counts of buffers and caches' folders have no effect:
    this server has no such parts.

    Attributes:
        model_repository: A path, or a list of them; also addresses of object stores.
        server_id: The server's name in its metadata.
        model_control_mode: Which models are loaded.
        startup_models: In mode EXPLICIT, the models to load at the start; `*` stands for all.
        strict_model_config: Whether every model must have a complete configuration.
        rate_limiter_mode: Whether instances wait for resources.
        rate_limiter_resources: Those of which there is more or less than configurations ask for.
        pinned_memory_pool_size: Has no effect, but is shown in the metrics.
        cuda_memory_pool_sizes: Has no effect.
        cache_config: `{"local": {"size": <bytes>}}` for a response cache of this size.
        cache_directory: Has no effect.
        min_supported_compute_capability: Told to backends.
        exit_on_error: Whether `Server.start` fails if a model cannot be loaded.
        strict_readiness: Whether the server is ready only if all models are.
        exit_timeout: Seconds that `Server.stop` gives models to finish their requests.
        buffer_manager_thread_count: Has no effect.
        model_load_thread_count: How many versions are loaded at a time.
        model_load_retry_count: How often a load that failed is tried again.
        model_namespacing: Whether models of several repositories may have the same name.
        enable_peer_access: Has no effect.
        log_file: The file for the log; None: standard error.
        log_info: Whether information is logged; then warnings are, too.
        log_warn: Whether warnings are logged; then errors are, too.
        log_error: Whether errors are logged.
        log_format: The format of lines in the log.
        log_verbose: The level of verbose lines; above 0, everything is logged.
        metrics: Whether latencies are recorded for `Server.metrics`.
        gpu_metrics: Whether metrics include GPUs.
        cpu_metrics: Whether metrics include the processor.
        metrics_interval: How old metrics of the machine may be, in milliseconds.
        backend_directory: The folder of backends.
        repo_agent_directory: The folder of repository agents, of which none are loaded.
        model_load_device_limits: Has no effect.
        backend_configuration: Settings by backend and name; the backend "" stands for all.
        host_policies: Has no effect.
        metrics_configuration: Settings of metrics, by group and name; the group "" has most.
        executor: `local`, or `ray`: where models run that do not choose it. This and the following
            are not options of Triton.
        ray_address: The address of the Ray cluster; None: that of the variable RAY_ADDRESS, or the
            cluster that this machine is part of.
        ray_instance_address: The name or IP address of this machine for the actors; None: the one
            that Ray uses.
        ray_instance_port: The port for the connections of actors; 0: a free one.
        ray_working_dir: A folder with modules that models import, which Ray copies to all nodes.
        ray_start_timeout: Seconds until an actor has to run, if its model does not say it.
    """

    model_repository: str | list[str] = field(default_factory=list)
    server_id: str = "triton"
    model_control_mode: ModelControlMode = ModelControlMode.NONE
    startup_models: list[str] = field(default_factory=list)
    strict_model_config: bool = False
    rate_limiter_mode: RateLimitMode = RateLimitMode.OFF
    rate_limiter_resources: list[RateLimiterResource] = field(default_factory=list)
    pinned_memory_pool_size: int = 1 << 28
    cuda_memory_pool_sizes: dict[int, int] = field(default_factory=dict)
    cache_config: dict[str, dict[str, Any]] = field(default_factory=dict)
    cache_directory: str = "/opt/tritonserver/caches"
    min_supported_compute_capability: float = 6.0
    exit_on_error: bool = True
    strict_readiness: bool = True
    exit_timeout: int = 30
    buffer_manager_thread_count: int = 0
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_namespacing: bool = False
    enable_peer_access: bool = True
    log_file: str | None = None
    log_info: bool = False
    log_warn: bool = False
    log_error: bool = False
    log_format: LogFormat = LogFormat.DEFAULT
    log_verbose: int = 0
    metrics: bool = True
    gpu_metrics: bool = True
    cpu_metrics: bool = True
    metrics_interval: int = 2000
    backend_directory: str = "/opt/tritonserver/backends"
    repo_agent_directory: str = "/opt/tritonserver/repoagents"
    model_load_device_limits: list[ModelLoadDeviceLimit] = field(default_factory=list)
    backend_configuration: dict[str, dict[str, Any]] = field(default_factory=dict)
    host_policies: dict[str, dict[str, str]] = field(default_factory=dict)
    metrics_configuration: dict[str, dict[str, Any]] = field(default_factory=dict)
    executor: str = "local"
    ray_address: str | None = None
    ray_instance_address: str | None = None
    ray_instance_port: int = 0
    ray_working_dir: str | None = None
    ray_start_timeout: float = DEFAULT_START_TIMEOUT_S


def _is_text(value: Any) -> bool:
    return isinstance(value, str | PathLike)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _is_list(*kinds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Returns a check for lists of texts, or of tuples whose members pass these checks."""

    def check(value: Any) -> bool:
        if not isinstance(value, list | tuple):
            return False
        if not kinds:
            return all(map(_is_text, value))
        return all(
            isinstance(each, tuple)
            and len(each) == len(kinds)
            and all(is_kind(member) for is_kind, member in zip(kinds, each, strict=True))
            for each in value
        )

    return check


def _is_grouped(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(settings, dict) and all(map(_is_text, settings))
        for name, settings in value.items()
    )


# By the annotation of a field.
_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a str", _is_text),
    "str | None": ("a str or None", lambda v: v is None or _is_text(v)),
    "str | list[str]": ("a str or a list of them", lambda v: _is_text(v) or _is_list()(v)),
    "list[str]": ("a list of str", _is_list()),
    "int": ("an int", _is_whole),
    "float": ("a float", _is_number),
    "bool": ("a bool", lambda v: isinstance(v, bool)),
    "dict[int, int]": (
        "a dict of int by int",
        lambda v: isinstance(v, dict) and all(map(_is_whole, (*v, *v.values()))),
    ),
    "dict[str, dict[str, Any]]": ("a dict of dicts by name", _is_grouped),
    "dict[str, dict[str, str]]": ("a dict of dicts by name", _is_grouped),
    "ModelControlMode": ("a ModelControlMode", lambda v: isinstance(v, ModelControlMode)),
    "RateLimitMode": ("a RateLimitMode", lambda v: isinstance(v, RateLimitMode)),
    "LogFormat": ("a LogFormat", lambda v: isinstance(v, LogFormat)),
    "list[RateLimiterResource]": (
        "a list of (name, count, device)",
        _is_list(_is_text, _is_whole, lambda v: v is None or _is_whole(v)),
    ),
    "list[ModelLoadDeviceLimit]": (
        "a list of (kind, device, fraction)",
        _is_list(lambda v: isinstance(v, InstanceGroupKind), _is_whole, _is_number),
    ),
}
# True is level 1: the other settings of the log are switches, and people take it for one.
_VERBOSE_CHECK: tuple[str, Callable[[Any], bool]] = ("an int", lambda v: isinstance(v, int))


def check_types(options: Options) -> None:
    """Check the types of all settings.

    Raises:
        InvalidArgumentError: There is no repository.
        TypeError: A setting has another type.
    """
    if options.model_repository is None:
        raise InvalidArgumentError("Model repository must be specified.")
    for each in fields(options):
        is_verbose = each.name == "log_verbose"
        expected, is_right = _VERBOSE_CHECK if is_verbose else _CHECKS[str(each.type)]
        value = getattr(options, each.name)
        if not is_right(value):
            raise TypeError(
                f"Options.{each.name} must be {expected}, got {type(value).__name__}: {value!r}"
            )


def server_settings(options: Options) -> dict[str, Any]:
    """Returns the settings as `ServerOptions.from_triton_config` reads them; no port is opened."""
    settings: dict[str, Any] = {
        row.key: _setting(row, getattr(options, row.inprocess))
        for row in BY_NAME.values()
        if row.inprocess and row.has_effect
    }
    if options.model_control_mode is not ModelControlMode.EXPLICIT:
        settings["load_model"] = []
    info = options.log_info or options.log_verbose > 0
    warning = options.log_warn or info
    return settings | {
        "repository_poll_secs": _NEVER_S,
        "log_info": info,
        "log_warning": warning,
        "log_error": options.log_error or warning,
        "log_verbose": int(options.log_verbose),
        "metrics_config": _setting_texts({"": _joined(options.metrics_configuration)}),
    }


def _setting(row: ServerSetting, value: Any) -> Any:
    """Returns a value as the command line has it."""
    if isinstance(value, enum.IntEnum):
        return row.choices[value]
    if isinstance(value, dict):
        return _setting_texts(value)
    if row.is_repeatable and not _is_text(value):
        return [_joined_text(each) for each in value]
    return value


def _joined_text(value: Any) -> Any:
    """Returns the parts of a tuple with colons between them."""
    if not isinstance(value, tuple):
        return value
    return ":".join(str(part) for part in value if part is not None)


def _setting_texts(groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns settings as a command line has them, as `<group>,<setting>=<value>`."""
    return [
        f"{group},{setting}={_value_text(value)}" if group else f"{setting}={_value_text(value)}"
        for group, settings in groups.items()
        for setting, value in settings.items()
    ]


def _joined(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for settings in groups.values() for name, value in settings.items()}


def _value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
