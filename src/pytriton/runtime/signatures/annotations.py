# SPDX-License-Identifier: Apache-2.0
"""Reads annotations: one value as a `ValueType`, or a class with fields as a `Record` of several.

Such classes are dataclasses, TypedDicts, NamedTuples and pydantic models. An annotation that is not
a tensor raises `CannotInferError`, which says why in words.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union

import numpy as np

from pytriton.base.errors import InputValueError
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
MISSING: Any = inspect.Parameter.empty
_TYPED_DICT_MARKS = ("Required", "NotRequired", "ReadOnly")


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


@dataclasses.dataclass(frozen=True)
class RecordField:
    """An input or output.

    Args:
        name: name of the tensor.
        type: type of its value.
        is_optional: whether a request may leave it out.
        default: what the function gets then; `MISSING` to leave it out of the call, too.
        factory: makes the default anew for each request, so that none changes that of another.
    """

    name: str
    type: ValueType
    is_optional: bool = False
    default: Any = MISSING
    factory: Callable[[], Any] | None = None


@dataclasses.dataclass(frozen=True)
class Record:
    """A class with fields that are tensors.

    Args:
        name: name of the class.
        make: makes an object of values by field.
        fields: the tensors.
        is_mapping: whether objects are dictionaries.
        make_batch: makes an object of a whole batch without checks, if `make` checks values.
    """

    name: str
    make: Callable[..., Any]
    fields: tuple[RecordField, ...]
    is_mapping: bool = False
    make_batch: Callable[..., Any] | None = None

    def values_of(self, value: Any) -> dict[str, Any]:
        """Returns the values of an object by field.

        Raises:
            ValueError: It is an object of another type, or a field is missing.
        """
        names = [field.name for field in self.fields]
        if isinstance(value, dict):
            missing = [name for name in names if name not in value]
            unknown = [name for name in value if name not in names]
            if missing or unknown:
                got = ", ".join(map(str, value)) or "none"
                raise ValueError(f"expected the keys {', '.join(names)}, got {got}")
            return value
        if self.is_mapping or not all(hasattr(value, name) for name in names):
            hint = ": is a return missing?" if value is None else ""
            raise ValueError(f"expected {self.name}, got {type(value).__name__}{hint}")
        return {name: getattr(value, name) for name in names}

    def with_defaults(self, value: Any) -> Record:
        """Returns the record if a parameter has this default: its fields may all be left out."""
        fields = []
        for field in self.fields:
            if isinstance(value, dict):
                default = value.get(field.name, field.default)
            else:
                default = getattr(value, field.name, field.default)
            fields.append(
                dataclasses.replace(field, is_optional=True, default=default, factory=None)
            )
        return dataclasses.replace(self, fields=tuple(fields))


def record_of(annotation: Any, *, is_result: bool = False) -> Record | None:
    """Read a class with fields.

    Args:
        annotation: what may be such a class.
        is_result: whether objects are returned, and not made: then fields count that their
            class itself sets.

    Returns:
        The record; None for any other annotation.

    Raises:
        CannotInferError: A field is not a tensor.
    """
    if not inspect.isclass(annotation):
        return None
    if isinstance(getattr(annotation, "__pydantic_fields__", None), dict):
        return _pydantic_record(annotation)
    if dataclasses.is_dataclass(annotation):
        fields = [
            (field.name, _default_of_field(field))
            for field in dataclasses.fields(annotation)
            if field.init or is_result
        ]
        record = _record(annotation, fields)
        return dataclasses.replace(
            record, fields=tuple(_with_factory(each, annotation) for each in record.fields)
        )
    if issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        defaults = getattr(annotation, "_field_defaults", {})
        fields = [(name, defaults.get(name, MISSING)) for name in annotation._fields]
        return _record(annotation, fields)
    if issubclass(annotation, dict) and hasattr(annotation, "__optional_keys__"):
        optional = annotation.__optional_keys__
        fields = [(name, MISSING) for name in typing.get_type_hints(annotation)]
        record = _record(annotation, fields)
        return dataclasses.replace(
            record,
            make=dict,
            is_mapping=True,
            fields=tuple(
                dataclasses.replace(field, is_optional=field.is_optional or field.name in optional)
                for field in record.fields
            ),
        )
    return None


def field_of(name: str, annotation: Any, default: Any) -> RecordField:
    """Read the annotation of a parameter or field that is one tensor.

    Raises:
        CannotInferError: It is not a tensor.
    """
    annotation, is_optional = without_none(annotation)
    if is_optional and default is MISSING:
        default = None
    return RecordField(name, value_type(annotation), default is not MISSING, default)


def _pydantic_record(annotation: Any) -> Record:
    """Read a pydantic model, which checks the values of a request, and of each row of a batch."""
    fields, hints = [], {}
    for name, field in annotation.__pydantic_fields__.items():
        if field.validation_alias is not None and field.validation_alias != name:
            raise CannotInferError(
                f"is {annotation.__name__}, whose field `{name}` has an alias",
                "leave the alias out",
            )
        is_required = field.is_required()
        default = MISSING if is_required else field.get_default(call_default_factory=True)
        fields.append((name, default))
        hints[name] = field.annotation
        if field.metadata:
            parts = (field.annotation, *field.metadata)
            hints[name] = typing.cast(Any, Annotated)[parts]
    record = _record(annotation, fields, hints)
    return dataclasses.replace(
        record,
        make=_checked_by_pydantic(annotation),
        fields=tuple(_with_pydantic_factory(each, annotation) for each in record.fields),
        make_batch=annotation.model_construct,
    )


def _with_pydantic_factory(field: RecordField, annotation: Any) -> RecordField:
    declared = annotation.__pydantic_fields__[field.name]
    if declared.default_factory is None:
        return field
    factory = functools.partial(declared.get_default, call_default_factory=True)
    return dataclasses.replace(field, factory=factory)


def _checked_by_pydantic(annotation: Callable[..., Any]) -> Callable[..., Any]:
    def make(**values: Any) -> Any:
        try:
            return annotation(**values)
        except ValueError as error:
            if not hasattr(error, "errors"):
                raise
            problems = (
                f"input `{'.'.join(map(str, each['loc']))}`: {each['msg']}"
                for each in error.errors()
            )
            raise InputValueError("; ".join(problems)) from None

    return make


def _hints(annotation: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(annotation, include_extras=True)
    except NameError as error:
        raise CannotInferError(
            f"is {annotation.__name__}, whose field has the unknown type {error.name!r}",
            "import the type where the class is, not only for type checkers",
        ) from error


def _record(
    annotation: type, fields: list[tuple[str, Any]], hints: dict[str, Any] | None = None
) -> Record:
    hints = _hints(annotation) if hints is None else hints
    if not fields:
        raise CannotInferError(f"is {annotation.__name__}, which has no fields", "add a field")
    found = []
    for name, default in fields:
        try:
            found.append(field_of(name, _without_marks(hints.get(name, Any)), default))
        except CannotInferError as error:  # noqa: PERF203  each error names its field
            raise CannotInferError(
                f"is {annotation.__name__}, whose field `{name}` {error.problem}", error.advice
            ) from None
    return Record(annotation.__name__, annotation, tuple(found))


def _default_of_field(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return MISSING if field.default is dataclasses.MISSING else field.default


def _with_factory(field: RecordField, annotation: Any) -> RecordField:
    declared = annotation.__dataclass_fields__[field.name].default_factory
    if declared is dataclasses.MISSING:
        return field
    return dataclasses.replace(field, factory=declared)


def _without_marks(annotation: Any) -> Any:
    """Returns what `NotRequired[...]` and its like mark."""
    while getattr(typing.get_origin(annotation), "_name", None) in _TYPED_DICT_MARKS:
        (annotation,) = typing.get_args(annotation)
    return annotation
