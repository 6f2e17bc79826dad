# SPDX-License-Identifier: Apache-2.0
"""Which kind of host a callable needs.

Those for asynchronous callables are loaded only where there is one: asyncio takes 4 MiB.
"""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from pytriton.backend.host import InstanceHost
from pytriton.backend.stream_host import StreamHost

if TYPE_CHECKING:
    from collections.abc import Callable


def host_for(infer_func: Callable[..., Any]) -> type[InstanceHost]:
    """The kind of host for a callable of a model that sends one response to each request."""
    if not any(inspect.iscoroutinefunction(form) for form in _forms(infer_func)):
        return InstanceHost
    return _load("async_host", "AsyncInstanceHost")


def stream_host_for(infer_func: Callable[..., Any]) -> type[InstanceHost]:
    """The kind of host for a callable of a decoupled model."""
    if not any(
        inspect.iscoroutinefunction(form) or inspect.isasyncgenfunction(form)
        for form in _forms(infer_func)
    ):
        return StreamHost
    return _load("async_stream_host", "AsyncStreamHost")


def _load(module: str, name: str) -> type[InstanceHost]:
    kind: type[InstanceHost] = getattr(importlib.import_module(f"pytriton.backend.{module}"), name)
    return kind


def _forms(infer_func: Callable[..., Any]) -> tuple[Any, ...]:
    """A function itself; for an object, what its class does when it is called, too."""
    return (
        (infer_func,) if inspect.isroutine(infer_func) else (infer_func, type(infer_func).__call__)
    )
