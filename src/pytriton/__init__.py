# SPDX-License-Identifier: Apache-2.0
"""pytriton: serve Python functions over Triton's HTTP and gRPC protocols.

Submodules are imported when they are first used, so that a process imports only those it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton import client, model_config, triton

__all__ = ["__version__", "client", "model_config", "triton"]

_SUBMODULES = ("client", "model_config", "triton")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"pytriton.{name}")
    if name == "__version__":
        from importlib import metadata  # noqa: PLC0415  takes 3 MiB and 50 ms

        return metadata.version("pytriton")
    raise AttributeError(f"module 'pytriton' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
