# SPDX-License-Identifier: Apache-2.0
"""pytriton: serve Python functions over Triton's HTTP and gRPC protocols.

Submodules, and the names that most programs use, are imported when they are first used, so that a
process imports only those it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton import client, model_config, triton
    from pytriton.client import AsyncioModelClient, FuturesModelClient, ModelClient
    from pytriton.decorators import batch, model
    from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
    from pytriton.triton import RemoteTriton, Triton, TritonConfig

    __version__: str

__all__ = [
    "AsyncioModelClient",
    "DynamicBatcher",
    "FuturesModelClient",
    "ModelClient",
    "ModelConfig",
    "RemoteTriton",
    "Tensor",
    "Triton",
    "TritonConfig",
    "__version__",
    "batch",
    "client",
    "model",
    "model_config",
    "triton",
]

_SUBMODULES = ("client", "model_config", "triton")
_MODULES = {
    "AsyncioModelClient": "client",
    "DynamicBatcher": "model_config",
    "FuturesModelClient": "client",
    "ModelClient": "client",
    "ModelConfig": "model_config",
    "RemoteTriton": "triton",
    "Tensor": "model_config",
    "Triton": "triton",
    "TritonConfig": "triton",
    "batch": "decorators",
    "model": "decorators",
}

if not TYPE_CHECKING:  # with it, type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name in _SUBMODULES:
            return importlib.import_module(f"pytriton.{name}")
        if name in _MODULES:
            return getattr(importlib.import_module(f"pytriton.{_MODULES[name]}"), name)
        if name == "__version__":
            from importlib import metadata  # noqa: PLC0415  takes 3 MiB and 50 ms

            return metadata.version("pytriton")
        raise AttributeError(f"module 'pytriton' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
