# SPDX-License-Identifier: Apache-2.0
"""The settings of a server as flags of Triton's command line, to be shown to users."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from pytriton.base.settings import BY_NAME
from pytriton.exceptions import PyTritonError


class TritonServerConfig:
    """Flags by name, with dashes or underscores; flags that are not set are None.

    Args:
        settings: initial values.

    Example:
        >>> TritonServerConfig({"http_port": 8015}).to_cli_string()
        '--http-port=8015'
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        for name, value in (settings or {}).items():
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        """Returns the value of a flag, or None."""
        return self._values.get(_flag(name))

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a flag; None removes it."""
        flag = _flag(name)
        if value is None:
            self._values.pop(flag, None)
        else:
            self._values[flag] = value

    def __contains__(self, name: str) -> bool:
        """Returns whether a flag is set."""
        return name.replace("_", "-") in self._values

    def get(self, name: str, default: Any = None) -> Any:
        """Get the value of a flag, or a default.

        Args:
            name: name of the flag.
            default: the result if it is not set.

        Returns:
            The value.
        """
        return self._values.get(_flag(name), default)

    def to_args_list(self) -> list[str]:
        """Convert the flags to arguments of a command.

        Returns:
            `--flag` and its value for each flag, and for each element of a value that is a list.
        """
        return [part for flag, value in self._flat() for part in (f"--{flag}", str(value))]

    def to_cli_string(self) -> str:
        """Convert the flags to one line, quoted for a shell.

        Returns:
            `--flag=value` for each, joined by spaces.
        """
        return shlex.join(f"--{flag}={value}" for flag, value in self._flat())

    def _flat(self) -> Iterator[tuple[str, Any]]:
        for flag, value in self._values.items():
            for element in value if isinstance(value, (list, tuple)) else (value,):
                path = element.as_posix() if isinstance(element, pathlib.PurePath) else element
                yield flag, path


def _flag(name: str) -> str:
    flag = name.replace("_", "-")
    if flag not in BY_NAME:
        raise PyTritonError(f"Expected the name of a flag of the server, got {name!r}")
    return flag
