# SPDX-License-Identifier: Apache-2.0
"""Dataclasses, TypedDicts, NamedTuples and pydantic models whose fields are tensors."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Annotated, Any

from pytriton.base.errors import InputValueError
from pytriton.runtime.signatures.annotations import CannotInferError, value_type, without_none
from pytriton.runtime.signatures.values import ValueType

MISSING: Any = inspect.Parameter.empty
_TYPED_DICT_MARKS = ("Required", "NotRequired", "ReadOnly")


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
        make_batch: makes an object of a whole batch, if that is another function.
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
    """Read a pydantic model, which checks the values of a request but not those of a batch."""
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
