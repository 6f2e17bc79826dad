# SPDX-License-Identifier: Apache-2.0
"""The only place that knows wrapt: decorated callables that keep the face of what they wrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import wrapt

InferFunc = Callable[..., Any]
# What a decorator does with a call: the wrapped callable (bound, for methods), its instance or
# None, and the arguments.
Call = Callable[[InferFunc, Any, tuple[Any, ...], dict[str, Any]], Any]


def decorated(infer_func: InferFunc, call: Call) -> InferFunc:
    """A callable that looks like `infer_func`, as a function or as a method, and runs `call`."""
    wrapper: InferFunc = wrapt.FunctionWrapper(infer_func, call)
    return wrapper


def decorated_layers(infer_func: InferFunc) -> Iterator[tuple[Call, InferFunc, Any]]:
    """For each decorator from the outside in: its call, what it wraps, and the instance or None.

    An object counts as its `__call__`.
    """
    layer: Any = infer_func
    if not hasattr(layer, "_self_wrapper"):
        layer = getattr(infer_func, "__call__", None)  # noqa: B004  a bound method, not a test
    while hasattr(layer, "_self_wrapper"):
        yield layer._self_wrapper, layer.__wrapped__, layer._self_instance  # noqa: SLF001
        layer = layer.__wrapped__
