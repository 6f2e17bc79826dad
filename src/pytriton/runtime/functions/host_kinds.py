# SPDX-License-Identifier: Apache-2.0
"""Selects the kind of host for a callable.

Hosts for asynchronous callables are imported only if needed, because asyncio takes 4 MiB.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pytriton.base.lazy_module import LazyModule
from pytriton.runtime.functions.host import InstanceHost, StreamHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytriton.runtime.functions import async_host
else:
    async_host = LazyModule("pytriton.runtime.functions.async_host")


def host_for(infer_func: Callable[..., Any]) -> type[InstanceHost]:
    """Returns the host class for a callable of a model with one response to each request."""
    if not any(inspect.iscoroutinefunction(form) for form in _forms(infer_func)):
        return InstanceHost
    return async_host.AsyncInstanceHost


def stream_host_for(infer_func: Callable[..., Any]) -> type[InstanceHost]:
    """Returns the host class for a callable of a decoupled model."""
    if not any(
        inspect.iscoroutinefunction(form) or inspect.isasyncgenfunction(form)
        for form in _forms(infer_func)
    ):
        return StreamHost
    return async_host.AsyncStreamHost


def _forms(infer_func: Callable[..., Any]) -> tuple[Any, ...]:
    """Returns the function itself; for an object, also the `__call__` of its class."""
    return (
        (infer_func,) if inspect.isroutine(infer_func) else (infer_func, type(infer_func).__call__)
    )
