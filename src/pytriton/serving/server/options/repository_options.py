# SPDX-License-Identifier: Apache-2.0
"""Settings of model repositories, of backends, and of the Ray cluster that models may run on."""

from __future__ import annotations

import importlib.util
import ipaddress
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.settings import RayOptions
from pytriton.exceptions import PyTritonValidationError
from pytriton.serving.engine.rate_limiter import RateLimitResource
from pytriton.serving.repository.reading.backend_choice import Executor
from pytriton.serving.repository.remote.location import is_remote, read_location
from pytriton.serving.repository.signing.signers import Signers, SigningSettings
from pytriton.serving.repository.signing.verifier import INSTALL, PACKAGE
from pytriton.serving.server.options.flags import FlagError, Flags, bad_value

logger = logging.getLogger(__name__)

ControlMode = Literal["none", "poll", "explicit"]

# As the only model to load, this name stands for all models.
ALL_MODELS = "*"

_DEFAULT_MAX_BATCH_SIZE = "default-max-batch-size"
_MEBIBYTE = 1 << 20
# The integer settings of the Python backend, with their minimums.
_PYTHON_INTEGERS = {
    "shm-default-byte-size": _MEBIBYTE,
    "shm-growth-byte-size": 1,
    "shm_message_queue_size": 1,
    "stub-timeout-seconds": 1,
    "thread-pool-size": 1,
}
_PYTHON_TEXTS = ("shm-region-prefix-name", "python-runtime")
_RESOURCE = re.compile(r"(?P<name>[^:]+):(?P<count>\d+)(?::(?P<device>\d+))?")
_AUTO = "auto"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class RepositoryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of model repositories; the defaults are Triton's."""

    paths: tuple[str, ...] = ()
    model_control_mode: ControlMode = "none"
    load_models: tuple[str, ...] = ()  # in explicit mode; `ALL_MODELS` stands for all
    repository_poll_s: int = 0  # 0: no polling
    model_config_name: str | None = None
    auto_complete: bool = True
    load_thread_count: int = 4
    load_retry_count: int = 0
    namespacing: bool = False  # models of several repositories may have the same name
    allow_links: bool = False  # links that point out of the repositories
    load_timeout_s: float = 0.0  # 0: no limit
    backend_directory: str = "/opt/tritonserver/backends"
    agent_directory: str = "/opt/tritonserver/repoagents"  # no agents are loaded from there
    signing: SigningSettings = SigningSettings()  # signatures of models
    # By backend, with an empty name for settings of all backends. The values are texts.
    backend_config: Mapping[str, Mapping[str, str]] = {}
    default_max_batch_size: int = 4
    min_compute_capability: float = 7.5
    rate_limit: bool = False
    rate_limit_resources: tuple[RateLimitResource, ...] = ()
    executor: Executor = "local"  # of models whose configuration does not choose it

    def backend_settings(self, backend: str) -> dict[str, str]:
        """Returns all settings of a backend, as the startup table and models show them."""
        settings = {
            "auto-complete-config": str(self.auto_complete).lower(),
            "backend-directory": self.backend_directory,
            "min-compute-capability": f"{self.min_compute_capability:f}",
            **self.backend_config.get("", {}),
            **self.backend_config.get(backend, {}),
        }
        ordered = {name: settings[name] for name in sorted(settings)}
        if _DEFAULT_MAX_BATCH_SIZE not in self.backend_config.get(backend, {}):
            # Triton appends it, except where the backend has its own.
            ordered.pop(_DEFAULT_MAX_BATCH_SIZE, None)
            ordered[_DEFAULT_MAX_BATCH_SIZE] = str(self.default_max_batch_size)
        return ordered


def read_repository_options(flags: Flags) -> RepositoryOptions:
    """Read the flags of repositories; PyTritonValidationError if they are wrong."""
    mode: ControlMode = flags.value("model_control_mode")
    backend_config = _backend_config(flags)
    max_batch_size = backend_config.get("", {}).get(_DEFAULT_MAX_BATCH_SIZE, "4")
    poll_s = flags.value("repository_poll_secs")
    is_strict = flags.value("strict_model_config")
    is_incomplete = flags.value("disable_auto_complete_config")
    return RepositoryOptions(
        **flags.record("repository"),
        paths=_paths(flags),
        load_models=_load_models(flags, mode),
        repository_poll_s=poll_s if mode == "poll" else 0,
        model_config_name=_model_config_name(flags),
        auto_complete=not (is_strict or is_incomplete),
        signing=_signing(flags),
        backend_config=backend_config,
        default_max_batch_size=int(max_batch_size),
        rate_limit=flags.value("rate_limit") == "execution_count",
        rate_limit_resources=_rate_limit_resources(flags),
    )


def _paths(flags: Flags) -> tuple[str, ...]:
    paths: tuple[str, ...] = flags.value("model_repository")
    for path in paths:
        if not path:  # as of a variable that is not set; it would mean the working folder
            raise FlagError("model-repository", "Expected a path for --model-repository, got ''")
        if is_remote(path):
            try:
                read_location(path)
            except InvalidArgumentError as error:
                raise FlagError("model-repository", error.message) from error
    return paths


def _load_models(flags: Flags, mode: ControlMode) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(flags.value("load_model")))
    if names and mode != "explicit":
        raise PyTritonValidationError(
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."
        )
    if ALL_MODELS in names and len(names) > 1:
        raise PyTritonValidationError(
            "Wildcard model name '*' must be the ONLY startup model if specified at all."
        )
    return names


def _model_config_name(flags: Flags) -> str | None:
    name: str | None = flags.value("model_config_name")
    if name is not None and re.search(r"[\s/]", name):
        raise bad_value("model_config_name", "a name without spaces and slashes", name)
    return name


def _signing(flags: Flags) -> SigningSettings:
    required = "require_signed_models"
    signers = Signers(
        keys=flags.value("model_signing_key"),
        certificates=flags.value("model_signing_certificates"),
        identity=flags.value("model_signing_identity", ""),
        issuer=flags.value("model_signing_issuer", ""),
        trust_root=flags.value("model_signing_trust_root", ""),
    )
    settings = SigningSettings(is_required=flags.value(required), signers=signers)
    files = {
        "model_signing_key": signers.keys,
        "model_signing_certificates": signers.certificates,
        "model_signing_trust_root": filter(None, [signers.trust_root]),
    }
    for name, paths in files.items():
        for path in paths:
            if not Path(path).is_file():
                raise bad_value(name, "a file", path)
    problem = signers.problem()
    if problem:
        raise FlagError("model-signing-identity", problem)
    if settings.is_required and signers.is_empty:
        raise FlagError(
            required,
            "--require-signed-models needs --model-signing-key, --model-signing-certificates or "
            "--model-signing-identity, which say who may sign models, got none of them",
        )
    if settings.is_required and importlib.util.find_spec(PACKAGE) is None:
        raise FlagError(
            required, f"--require-signed-models needs the package model-signing: {INSTALL}"
        )
    return settings


def _backend_config(flags: Flags) -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, str]] = {}
    for text in flags.value("backend_config"):
        # A comma after the first equals sign belongs to the value.
        place, equals, value = text.partition("=")
        backend, comma, setting = place.rpartition(",")
        if not (setting and equals) or (comma and not backend):
            raise FlagError(
                "backend-config",
                f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}",
            )
        groups.setdefault(backend, {})[setting] = value
    if _DEFAULT_MAX_BATCH_SIZE in groups.get("", {}):
        _check_integer(groups[""], _DEFAULT_MAX_BATCH_SIZE, 0)
    _check_python_settings(groups.get("python", {}))
    return groups


def _check_python_settings(settings: Mapping[str, str]) -> None:
    for setting, value in settings.items():
        if setting in _PYTHON_INTEGERS:
            _check_integer(settings, setting, _PYTHON_INTEGERS[setting])
        elif setting not in _PYTHON_TEXTS:
            logger.warning("--backend-config: the Python backend has no setting %s", setting)
        elif not value:
            raise bad_value("backend_config", f"a text as {setting}", value)


def _check_integer(settings: Mapping[str, str], setting: str, minimum: int) -> None:
    value = settings[setting]
    if not value.isdecimal() or int(value) < minimum:
        raise bad_value("backend_config", f"an integer of at least {minimum} as {setting}", value)


def _rate_limit_resources(flags: Flags) -> tuple[RateLimitResource, ...]:
    resources = []
    for text in flags.value("rate_limit_resource"):
        match = _RESOURCE.fullmatch(text)
        if match is None:
            raise FlagError(
                "rate-limit-resource",
                "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or "
                f"'<resource_name>:<count>'. Got {text}",
            )
        device = None if match["device"] is None else int(match["device"])
        count = int(match["count"])
        resources.append(RateLimitResource(name=match["name"], count=count, device=device))
    return tuple(resources)


def read_ray_options(flags: Flags) -> RayOptions:
    """Read the flags of the cluster; nothing is connected, and Ray need not be there."""
    return RayOptions(
        **flags.record("ray"),
        address=_address(flags),
        instance_address=_instance_address(flags),
        working_dir=_working_dir(flags),
    )


def _address(flags: Flags) -> str:
    name = "ray_address"
    address: str = flags.value(name, "")
    if address and address != _AUTO and "://" not in address and not _is_place(address):
        raise bad_value(name, "<host>:<port>, ray://<host>:<port> or auto", address)
    return address


def _is_place(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536


def _instance_address(flags: Flags) -> str:
    name = "ray_instance_address"
    address: str = flags.value(name, "")
    if address and not _is_host(address):
        raise bad_value(name, "the name or IP address of this machine, without a port", address)
    return address


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST.fullmatch(text) is not None
    return True


def _working_dir(flags: Flags) -> str:
    name = "ray_working_dir"
    folder: str = flags.value(name, "")
    if not folder or "://" in folder:  # Ray fetches an archive from such an address itself
        return folder
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise bad_value(name, "a folder of this machine", folder)
    return str(path.absolute())
