# SPDX-License-Identifier: Apache-2.0
"""Decorated callables that look like the callable they wrap, as functions and as methods.

The `wrapt` package can do this too, but adds 124 modules and 7 MiB to every user's process.
Decorators that users write with `wrapt` work together with these, inside and outside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

InferFunc = Callable[..., Any]
# Implements a call of a decorator. The arguments are the wrapped callable (bound, for methods), its
# instance or None, and the arguments of the call.
Call = Callable[[InferFunc, Any, tuple[Any, ...], dict[str, Any]], Any]


class _Decorated:
    """A callable with a decorator. All other attributes are those of the wrapped callable."""

    # Slots, because functools.wraps copies __dict__, and its function would look like a decorator.
    __slots__ = ("__dict__", "__wrapped__", "_self_instance", "_self_wrapper")

    def __init__(self, wrapped: InferFunc, call: Call, instance: Any = None) -> None:
        functools.update_wrapper(self, wrapped, updated=())
        self._self_wrapper = call
        self._self_instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_wrapper(self.__wrapped__, self._self_instance, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> _Decorated:
        wrapped: Any = self.__wrapped__
        if instance is None or not hasattr(wrapped, "__get__"):
            return self
        return _Decorated(wrapped.__get__(instance, owner), self._self_wrapper, instance)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # not set yet
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    @property
    def __triton_context__(self) -> Any:
        """The context, which all layers share."""
        return self.__wrapped__.__triton_context__

    @__triton_context__.setter
    def __triton_context__(self, context: Any) -> None:
        self.__wrapped__.__triton_context__ = context

    @property  # type: ignore[misc]  # object.__class__ can be set, which is not used here
    def __class__(self) -> type:
        """The class for `isinstance` and `inspect`."""
        return type(self.__wrapped__)

    def __repr__(self) -> str:
        return f"<decorated {self.__wrapped__!r}>"


def decorated(infer_func: InferFunc, call: Call) -> InferFunc:
    """Returns a callable that looks like `infer_func` and runs `call`."""
    return _Decorated(infer_func, call)


def decorated_layers(infer_func: InferFunc) -> Iterator[tuple[Call, InferFunc, Any]]:
    """Yields call, wrapped callable and instance (or None) of each decorator, outermost first.

    An object is treated like its `__call__`.
    """
    layer: Any = infer_func
    if not hasattr(layer, "_self_wrapper"):
        layer = getattr(infer_func, "__call__", None)  # noqa: B004  a bound method, not a test
    while hasattr(layer, "_self_wrapper"):
        yield layer._self_wrapper, layer.__wrapped__, layer._self_instance  # noqa: SLF001
        layer = layer.__wrapped__
