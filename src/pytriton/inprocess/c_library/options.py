# SPDX-License-Identifier: Apache-2.0
"""The settings of a server, kept as flags of the command line until the server is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson

from pytriton.base.errors import InvalidArgumentError
from pytriton.base.settings import BY_NAME, ServerSetting, Takes
from pytriton.exceptions import PyTritonValidationError
from pytriton.runtime.native_backend.callbacks import export, exported
from pytriton.runtime.native_backend.memory import Handles, put_word, required_text
from pytriton.serving.server.options.server_options import ServerOptions

_PREFIX = "TRITONSERVER_ServerOptions"
_NOUNS = {"model-control-mode": "control mode", "rate-limit": "rate limit mode"}
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


class OptionHandles:
    """The settings that the application has made."""

    def __init__(self) -> None:
        self._settings: Handles[Settings] = Handles("options of a server")

    def read(self, handle: int) -> ServerOptions:
        """Returns the settings of a server; InvalidArgumentError if they are not valid."""
        return self._settings.get(handle).read()

    def setters(self) -> dict[str, Callable[..., None]]:
        """Returns the functions that set one value of one setting, by their names in C.

        Functions with other arguments are exported below, those of the log in `c_library.log`.
        """
        rows = {f"{_PREFIX}{row.c_function}": row for row in BY_NAME.values() if row.c_function}
        others = exported(self)
        return {
            name: self._setter(row)
            for name, row in rows.items()
            if name not in others and not row.field.startswith("log.")
        }

    def _setter(self, row: ServerSetting) -> Callable[..., None]:
        is_text = row.takes in (Takes.TEXT, Takes.PATH)

        def set_value(handle: int, value: Any) -> None:
            settings = self._settings.get(handle)
            given = required_text(value) if is_text else value
            if row.is_repeatable:
                settings.append(row.key, given)
            else:
                settings.flags[row.key] = given

        def set_choice(handle: int, number: int) -> None:
            if not 0 <= number < len(row.choices):
                raise InvalidArgumentError(f"unknown {_NOUNS[row.name]} '{number}'")
            self._settings.get(handle).flags[row.key] = row.choices[number]

        def accept(handle: int, *_: Any) -> None:
            self._settings.get(handle)

        if row.is_repeatable and not row.has_effect:
            return accept
        return set_choice if row.choices else set_value

    @export("TRITONSERVER_ServerOptionsNew")
    def _new(self, place: int) -> None:
        put_word(place, self._settings.add(Settings()))

    @export("TRITONSERVER_ServerOptionsDelete")
    def _delete(self, handle: int) -> None:
        self._settings.pop(handle)

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


def _grouped(group: bytes | None, setting: bytes | None, value: bytes | None) -> str:
    place = f"{required_text(group)}," if group else ""
    return f"{place}{required_text(setting)}={required_text(value)}"
