# SPDX-License-Identifier: Apache-2.0
"""Clients of models served by this package or by any Triton server.

Each client is imported when it is first used, because asyncio alone takes 4 MiB.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.client import asyncio_utils as asyncio_utils
    from pytriton.client import auth as auth
    from pytriton.client import client as client
    from pytriton.client import exceptions as exceptions
    from pytriton.client import utils as utils
    from pytriton.client import warnings as warnings
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


if not TYPE_CHECKING:  # with it, type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name in __all__:
            module = "kserve.address" if name == "Tls" else "client"
            return getattr(importlib.import_module(f"pytriton.client.{module}"), name)
        if name in _SUBMODULES:
            return importlib.import_module(f"pytriton.client.{name}")
        raise AttributeError(f"module 'pytriton.client' has no attribute {name!r}")
