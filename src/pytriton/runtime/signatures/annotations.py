# SPDX-License-Identifier: Apache-2.0
"""Reads one annotation as a `ValueType`, or says in words why it is not a tensor."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import re
import types
import typing
from typing import Annotated, Any, Literal, Union

import numpy as np

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.tensor import Tensor, triton_datatype
from pytriton.runtime.signatures.values import ValueForm, ValueType

_SCALARS = {
    bool: ValueType(np.bool_),
    int: ValueType(np.int64),
    float: ValueType(np.float64),
    str: ValueType(np.bytes_, is_text=True),
    bytes: ValueType(np.bytes_),
}
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_DTYPE_NAME = re.compile(r"(bool|u?int\d+|float\d+|bfloat16|bytes|str|object)")
_EMPTY = inspect.Parameter.empty
_ARRAY_ADVICE = "write `Annotated[np.ndarray, np.float32, (3,)]`, with -1 for a size that may vary"
_TYPES_ADVICE = (
    "use float, int, bool, str, bytes, a list of these, an array, or a dataclass of them"
)


class CannotInferError(Exception):
    """An annotation that does not say which tensor it is.

    Args:
        problem: what is there, as the end of a sentence.
        advice: what could be written instead.
    """

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.advice = advice


def value_type(annotation: Any) -> ValueType:
    """Read an annotation.

    Raises:
        CannotInferError: It does not say which tensor it is.
    """
    annotation = _plain(annotation)
    if annotation is _EMPTY:
        raise CannotInferError("has no type annotation", _TYPES_ADVICE)
    if inspect.isclass(annotation) and annotation in _SCALARS:
        return _SCALARS[annotation]
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        base, *metadata = typing.get_args(annotation)
        return _annotated(base, metadata)
    if annotation is np.ndarray or origin is np.ndarray:
        return _array(annotation, None, None)
    if origin in _LISTS or annotation in (list, tuple):
        return _list(annotation)
    if origin is Literal or (inspect.isclass(annotation) and issubclass(annotation, enum.Enum)):
        return _choices(annotation)
    if inspect.isclass(annotation) and issubclass(annotation, np.generic):
        return _with_dtype(ValueType(np.float64, form=ValueForm.NUMPY_SCALAR), annotation)
    raise _refusal(annotation, origin)


def without_none(annotation: Any) -> tuple[Any, bool]:
    """Returns an annotation without `| None`, and whether it had that."""
    annotation = _plain(annotation)
    if typing.get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    members = typing.get_args(annotation)
    rest = [member for member in members if member is not types.NoneType]
    if len(rest) != 1:
        return annotation, False
    return rest[0], len(rest) < len(members)


def text_of(annotation: Any) -> str:
    """Returns an annotation as one would write it."""
    if isinstance(annotation, str):
        return annotation
    if inspect.isclass(annotation) and not typing.get_args(annotation):
        return annotation.__name__
    return re.sub(r"\b(typing|collections\.abc|numpy\.typing)\.", "", repr(annotation)).replace(
        "numpy.", "np."
    )


def _plain(annotation: Any) -> Any:
    """Returns what an alias or a new type stands for."""
    while True:
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif _is_alias(annotation):
            annotation = annotation.__value__
        elif _is_alias(origin := typing.get_origin(annotation)):  # NDArray[...] since numpy 2.5
            annotation = origin.__value__[typing.get_args(annotation)]
        else:
            return annotation


def _is_alias(annotation: Any) -> bool:
    """Returns whether this is made by a `type` statement, which Python has since 3.12."""
    return type(annotation).__name__ == "TypeAliasType"


def _annotated(base: Any, metadata: list[Any]) -> ValueType:
    dtype, shape = None, None
    for item in metadata:
        if isinstance(item, Tensor):
            dtype, shape = item.dtype, item.shape
        elif isinstance(item, tuple | list):
            shape = _shape(item)
        elif _is_dtype(item):
            dtype = item
        elif isinstance(item, int):
            raise CannotInferError(f"has the shape {item!r}", f"write the shape as ({item},)")
    base = _plain(base)
    if base is np.ndarray or typing.get_origin(base) is np.ndarray:
        return _array(base, dtype, shape)
    declared = value_type(base)
    if shape is not None:
        declared = _with_shape(declared, shape)
    return declared if dtype is None else _with_dtype(declared, dtype)


def _is_dtype(item: Any) -> bool:
    if isinstance(item, str):
        return _DTYPE_NAME.fullmatch(item) is not None
    if not inspect.isclass(item):
        return isinstance(item, np.dtype)
    return issubclass(item, np.generic) or item is object or item in _SCALARS


def _shape(sizes: tuple[Any, ...] | list[Any]) -> tuple[int, ...]:
    try:
        return Tensor(shape=tuple(sizes), dtype=np.float32).shape
    except PyTritonValidationError:
        raise CannotInferError(
            f"has the shape {sizes!r}", "write positive sizes, and -1 for one that may vary"
        ) from None


def _array(annotation: Any, dtype: Any, shape: tuple[int, ...] | None) -> ValueType:
    shape_argument, dtype_argument = (*typing.get_args(annotation), Any, Any)[:2]
    (element,) = typing.get_args(dtype_argument) or (Any,)
    if dtype is None and inspect.isclass(element) and issubclass(element, np.generic):
        dtype = element
    if shape is None:
        shape = _generic_shape(shape_argument)
    if dtype is None or shape is None:
        missing = " and ".join(
            name for name, value in (("dtype", dtype), ("shape", shape)) if value is None
        )
        raise CannotInferError(f"is an array without {missing}", _ARRAY_ADVICE)
    return _with_dtype(ValueType(np.float64, shape, ValueForm.ARRAY), dtype)


def _generic_shape(argument: Any) -> tuple[int, ...] | None:
    """Returns the shape of `np.ndarray[tuple[int, Literal[3]], ...]`; None if it has none."""
    argument = _plain(argument)
    sizes = typing.get_args(argument)
    if typing.get_origin(argument) is not tuple or not sizes or Ellipsis in sizes:
        return None
    return tuple(
        typing.get_args(size)[0] if typing.get_origin(size) is Literal else -1 for size in sizes
    )


def _with_dtype(declared: ValueType, dtype: Any) -> ValueType:
    try:
        name = triton_datatype(dtype).name
    except PyTritonValidationError:
        raise CannotInferError(
            f"has the dtype {text_of(dtype)}, which tensors cannot have",
            "use a bool, integer, float, bytes or str dtype",
        ) from None
    is_string = name == "BYTES"
    if (
        declared.form not in (ValueForm.ARRAY, ValueForm.NUMPY_SCALAR)
        and is_string != declared.is_bytes
    ):
        raise CannotInferError(
            f"is {declared.described()} with the dtype {text_of(dtype)}",
            "leave the dtype out, or use one of the same kind",
        )
    is_text = is_string and dtype != "bfloat16" and np.dtype(dtype).kind == "U"
    return dataclasses.replace(
        declared,
        dtype=np.bytes_ if is_string else dtype,
        is_text=is_text or (declared.is_text and is_string),
    )


def _with_shape(declared: ValueType, shape: tuple[int, ...]) -> ValueType:
    if len(shape) != len(declared.shape):
        raise CannotInferError(
            f"is {declared.described()} with the shape {shape}",
            f"give it {len(declared.shape)} sizes" if declared.shape else "leave the shape out",
        )
    return dataclasses.replace(declared, shape=shape)


def _list(annotation: Any) -> ValueType:
    elements = typing.get_args(annotation)
    if not elements:
        name = text_of(annotation)
        raise CannotInferError(f"is a {name} of unknown elements", "write `list[float]`")
    (element,) = elements
    inner = value_type(element)
    if inner.form is ValueForm.NUMPY_SCALAR:
        raise CannotInferError(
            f"is {text_of(annotation)}", f"{_ARRAY_ADVICE}, or a list of float, int, bool or str"
        )
    if inner.form is ValueForm.ARRAY:
        raise CannotInferError(f"is {text_of(annotation)}, a list of arrays", _ARRAY_ADVICE)
    return dataclasses.replace(inner, shape=(-1, *inner.shape), form=ValueForm.LIST)


def _choices(annotation: Any) -> ValueType:
    if typing.get_origin(annotation) is Literal:
        choices = {value: value for value in typing.get_args(annotation)}
    else:
        choices = {member.value: member for member in annotation}
    kinds = {type(value) for value in choices}
    (kind,) = kinds if len(kinds) == 1 else (None,)
    if kind not in _SCALARS or kind is float:
        raise CannotInferError(
            f"is {text_of(annotation)}, whose values are {', '.join(map(repr, choices))}",
            "use values that are all str, or all int",
        )
    return dataclasses.replace(_SCALARS[kind], choices=choices)


def _refusal(annotation: Any, origin: Any) -> CannotInferError:
    text = text_of(annotation)
    if origin in (Union, types.UnionType):
        return CannotInferError(f"is {text}, one of several types", "choose one type")
    if annotation in (types.NoneType, None):
        return CannotInferError("is None", _TYPES_ADVICE)
    if origin is tuple:
        return CannotInferError(f"is {text}", "use a list, or a dataclass with a field for each")
    if annotation is dict or origin in (dict, collections.abc.Mapping):
        return CannotInferError(
            f"is {text}, which does not say the names of its tensors",
            "use a dataclass or a TypedDict with a field for each tensor",
        )
    return _class_refusal(annotation, text)


def _class_refusal(annotation: Any, text: str) -> CannotInferError:
    marks = ("__dataclass_fields__", "_fields", "__optional_keys__")
    if any(hasattr(annotation, mark) for mark in marks):
        return CannotInferError(
            f"is {text}, a class with fields inside of a list or of another class",
            "make a parameter or a field of each of its fields",
        )
    package = getattr(annotation, "__module__", "").split(".")[0]
    if package in ("torch", "tensorflow", "jax", "PIL"):
        return CannotInferError(f"is {package}'s {text}", f"{_ARRAY_ADVICE}, and convert it")
    return CannotInferError(f"is {text}, which is not a tensor", _TYPES_ADVICE)
