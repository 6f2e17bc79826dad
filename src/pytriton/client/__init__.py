# SPDX-License-Identifier: Apache-2.0
"""Clients of models served by this package or by any Triton server.

Each client is imported when it is first used, because asyncio alone takes 4 MiB.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytriton.client.client import (
        AsyncioDecoupledModelClient,
        AsyncioModelClient,
        DecoupledModelClient,
        FuturesModelClient,
        ModelClient,
    )
    from pytriton.client.kserve.address import Tls

__all__ = [
    "AsyncioDecoupledModelClient",
    "AsyncioModelClient",
    "DecoupledModelClient",
    "FuturesModelClient",
    "ModelClient",
    "Tls",
]

_SUBMODULES = ("asyncio_utils", "auth", "client", "exceptions", "utils", "warnings")


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "kserve.address" if name == "Tls" else "client"
        return getattr(importlib.import_module(f"pytriton.client.{module}"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"pytriton.client.{name}")
    raise AttributeError(f"module 'pytriton.client' has no attribute {name!r}")
