# SPDX-License-Identifier: Apache-2.0
"""Decorated callables, and the context in which they find the configurations of their models.

The `wrapt` package can decorate callables too, but adds 124 modules and 7 MiB to every user's
process. Decorators that users write with `wrapt` work together with these, inside and outside.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.exceptions import PyTritonRuntimeError, PyTritonValidationError
from pytriton.model_config.triton_model_config import TritonModelConfig

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


CONTEXT_ATTRIBUTE = "__triton_context__"


class ModelConfigDict(MutableMapping[InferFunc, TritonModelConfig]):
    """Model configurations by the callable that serves the model.

    All layers of a decorated callable are one key, and so are an object and its `__call__`.
    """

    def __init__(self) -> None:
        # The callable is stored too, so that its id is not reused.
        self._entries: dict[tuple[int, str], tuple[InferFunc, TritonModelConfig]] = {}

    def __getitem__(self, infer_callable: InferFunc) -> TritonModelConfig:
        try:
            return self._entries[_key(infer_callable)][1]
        except KeyError:
            raise KeyError(infer_callable) from None

    def __setitem__(self, infer_callable: InferFunc, model_config: TritonModelConfig) -> None:
        self._entries[_key(infer_callable)] = (infer_callable, model_config)

    def __delitem__(self, infer_callable: InferFunc) -> None:
        del self._entries[_key(infer_callable)]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[InferFunc]:
        return (infer_callable for infer_callable, _ in self._entries.values())

    def __repr__(self) -> str:
        return f"ModelConfigDict({dict(self._entries.values())!r})"


def _key(infer_callable: Any) -> tuple[int, str]:
    function = getattr(infer_callable, "__func__", None)
    if function is None:
        return id(inspect.unwrap(infer_callable)), ""
    name = getattr(function, "__name__", "")
    return id(infer_callable.__self__), "" if name == "__call__" else name


@dataclasses.dataclass
class TritonContext:
    """Information of a `Triton` object for the callables bound to it.

    Args:
        model_configs: configurations of its models by callable.
    """

    model_configs: ModelConfigDict = dataclasses.field(default_factory=ModelConfigDict)

    @property
    def model_config(self) -> TritonModelConfig:
        """The configuration of the calling model.

        Raises:
            PyTritonRuntimeError: There are several models, and the calling one is unknown.
        """
        if len(self.model_configs) != 1:
            raise PyTritonRuntimeError(
                f"Expected a context of one model, got {len(self.model_configs)}: "
                "use model_configs[callable] to name one"
            )
        return next(iter(self.model_configs.values()))


@dataclasses.dataclass
class _CallableContext(TritonContext):
    """The context for one of several callables."""

    infer_callable: Any = None

    @property
    def model_config(self) -> TritonModelConfig:
        return self.model_configs[self.infer_callable]


def inject_triton_context(context: TritonContext, infer_callable: InferFunc) -> InferFunc:
    """Set the context of a callable: on all its decorator layers, or on the object of a method.

    Args:
        context: context of the `Triton` object.
        infer_callable: callable to bind.

    Returns:
        The same callable.

    Raises:
        PyTritonValidationError: Attributes cannot be set on the callable.
    """
    layer: Any = infer_callable
    if hasattr(layer, "__func__"):
        layer = layer.__self__
    while layer is not None:
        try:
            setattr(layer, CONTEXT_ATTRIBUTE, context)
        except (AttributeError, TypeError) as error:
            raise PyTritonValidationError(
                f"Expected a callable that attributes can be set on, got {infer_callable!r}"
            ) from error
        layer = getattr(layer, "__wrapped__", None)
    return infer_callable


def get_triton_context(wrapped: InferFunc, instance: Any) -> TritonContext:
    """Return the context inside a decorator.

    Args:
        wrapped: the callable that the decorator wraps.
        instance: object that the wrapped method belongs to, or None.

    Returns:
        The context that the callable was bound with.

    Raises:
        PyTritonValidationError: The callable was not bound.
    """
    caller = wrapped if instance is None else instance
    context: TritonContext | None = getattr(caller, CONTEXT_ATTRIBUTE, None)
    if context is None:
        raise PyTritonValidationError(
            f"Wrapped function or object must bound with triton to get  {CONTEXT_ATTRIBUTE}"
        )
    return context


def get_model_config(wrapped: InferFunc, instance: Any) -> TritonModelConfig:
    """Return the configuration of the calling model inside a decorator.

    Args:
        wrapped: the callable that the decorator wraps.
        instance: object that the wrapped method belongs to, or None.

    Returns:
        The configuration of the model.

    Raises:
        PyTritonValidationError: The callable was not bound.
    """
    return get_triton_context(wrapped, instance).model_configs[wrapped]


def triton_context(infer_func: InferFunc) -> InferFunc:
    """Pass the context as the keyword argument `triton_context`; must be the innermost decorator.

    Args:
        infer_func: callable that takes keyword arguments.

    Returns:
        The decorated callable.
    """
    return decorated(infer_func, call_with_context)


def call_with_context(
    wrapped: InferFunc, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    context = get_triton_context(wrapped, instance)
    if isinstance(context, TritonContext) and len(context.model_configs) > 1:
        context = _CallableContext(context.model_configs, wrapped)
    kwargs[TRITON_CONTEXT_FIELD_NAME] = context
    return wrapped(*args, **kwargs)
