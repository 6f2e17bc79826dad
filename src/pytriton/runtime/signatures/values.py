# SPDX-License-Identifier: Apache-2.0
"""One Python type as a tensor: its datatype and shape, and the conversion of values."""

from __future__ import annotations

import dataclasses
import enum
import functools
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.model_config.tensor import Tensor, triton_datatype

_KIND_WORDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "O": "text", "S": "text"}
# Kinds of arrays that may become an array of another kind without a loss of meaning.
_ACCEPTED_KINDS = {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}


class ValueForm(enum.Enum):
    """What a function gets for a tensor of one request."""

    SCALAR = "scalar"  # a plain Python value
    NUMPY_SCALAR = "numpy scalar"
    LIST = "list"  # nested, if there are several dimensions
    ARRAY = "array"


@dataclasses.dataclass(frozen=True)
class ValueType:
    """A type that an annotation declares.

    Args:
        dtype: numpy type of the elements; bytes for texts and byte strings.
        shape: dimensions of one value; empty for a single number or text.
        form: what functions get and return.
        is_text: whether the elements are str rather than bytes.
        choices: the allowed values, by what clients send; None if all are allowed.
    """

    dtype: Any
    shape: tuple[int, ...] = ()
    form: ValueForm = ValueForm.SCALAR
    is_text: bool = False
    choices: Mapping[Any, Any] | None = None

    def tensor(self, name: str, *, optional: bool = False) -> Tensor:
        """Returns the declaration for clients; a single value is a tensor with one element."""
        return Tensor(name=name, dtype=self.dtype, shape=self.shape or (1,), optional=optional)

    @functools.cached_property
    def is_bytes(self) -> bool:
        """Whether the elements are texts or byte strings."""
        return triton_datatype(self.dtype) is dtypes.BYTES

    @functools.cached_property
    def _is_plain_number(self) -> bool:
        return self.form is ValueForm.SCALAR and not self.is_bytes and self.choices is None

    @functools.cached_property
    def _numpy(self) -> np.dtype[Any]:
        return triton_datatype(self.dtype).numpy

    def from_array(self, array: NDArray[Any], *, batched: bool) -> Any:
        """Convert an input to what the function gets.

        Raises:
            ValueError: A text is not UTF-8, or a value is not one of the allowed ones.
        """
        if self._is_plain_number and not batched:
            return array.item()  # the most frequent case takes 0.1 us and not 2
        if not self.shape:
            array = array.reshape(array.shape[:1] if batched else ())
        if self.form is ValueForm.ARRAY:
            return _text_array(array) if self.is_text else array
        if self.form is ValueForm.NUMPY_SCALAR and not batched:
            return np.str_(_decoded(array.item())) if self.is_text else array[()]
        if batched and not self.is_bytes and self.choices is None:
            return array
        value = array.tolist()
        if self.is_text:
            value = _each(_decoded, value)
        return value if self.choices is None else _each(self._chosen, value)

    def _chosen(self, value: Any) -> Any:
        assert self.choices is not None
        try:
            return self.choices[value]
        except KeyError:
            allowed = ", ".join(map(repr, self.choices))
            raise ValueError(f"expected one of {allowed}, got {value!r}") from None

    def to_array(self, value: Any, rows: int | None) -> NDArray[Any]:
        """Convert what the function returned to an output.

        Args:
            value: the value; with rows, one for each of them along the first axis.
            rows: number of rows of the batch; None without batching.

        Raises:
            ValueError: The value has another type or shape; the text begins with "expected".
        """
        if type(value) is np.ndarray and value.dtype is self._numpy:
            row_shape = value.shape if rows is None else value.shape[1:]
            # Most results are just right: this comparison takes 0.2 us, the checks below 2.
            if row_shape == self.shape != () and (rows is None or len(value) == rows):
                return value
        elif rows is None and type(value) is float and self.dtype is np.float64 and not self.shape:
            return np.array((value,))
        if value is None:
            raise ValueError(f"expected {self.described()}, got None: is a return missing?")
        if self.choices is not None:
            value = _each(self._sent, value)
        array = self._bytes_array(value) if self.is_bytes else self._number_array(value)
        expected = (*(() if rows is None else (rows,)), *self.shape)
        if array.size == 0 and len(array.shape) < len(expected):
            # A list that is empty does not say how long the lists in it would be.
            array = array.reshape(*array.shape, *(max(s, 0) for s in expected[array.ndim :]))
        if not self.shape and array.shape == (*expected, 1):
            array = array.reshape(expected)  # single values may be arrays with one element
        if len(array.shape) != len(expected) or any(
            wanted not in (-1, size) for size, wanted in zip(array.shape, expected, strict=True)
        ):
            what = "" if rows is None else f", as the batch has {rows} rows"
            raise ValueError(f"expected shape {expected}{what}, got shape {array.shape}")
        return array if self.shape else array.reshape((*expected, 1))

    def _sent(self, value: Any) -> Any:
        sent = value.value if isinstance(value, enum.Enum) else value
        self._chosen(sent)
        return sent

    def _number_array(self, value: Any) -> NDArray[Any]:
        wanted = self._numpy
        if isinstance(value, np.ndarray) and value.dtype == wanted:
            return value
        try:
            array = np.asarray(value)
        except Exception as error:  # lists of different lengths, tensors of other frameworks
            raise self._unexpected(value, f": {error}") from error
        if array.dtype == wanted:
            return array
        if array.size == 0 and array.dtype == np.float64:
            return array.astype(wanted)  # an empty list has no type
        # bfloat16 has the kind of a record.
        if array.dtype.kind == "O" and wanted.kind in "iu" and _are_all_ints(array):
            raise self._out_of_range(value)
        if array.dtype.kind not in _ACCEPTED_KINDS.get(wanted.kind, "biuf"):
            raise self._unexpected(value)
        with np.errstate(over="ignore", invalid="ignore"):
            converted = array.astype(wanted)
        if wanted.kind in "iu" and not np.array_equal(converted, array):
            raise self._out_of_range(value)
        return converted

    def _out_of_range(self, value: Any) -> ValueError:
        return ValueError(f"expected numbers in the range of {self._numpy}, got {_short(value)}")

    def _bytes_array(self, value: Any) -> NDArray[Any]:
        if isinstance(value, str | bytes):
            array = np.empty((), np.object_)
            array[()] = value
        elif isinstance(value, np.ndarray):
            array = value.astype(np.object_)
        else:
            array = _object_array(value)
        flat = [self._encoded(element) for element in array.ravel().tolist()]
        encoded = np.empty(array.size, np.object_)
        encoded[:] = flat
        return encoded.reshape(array.shape)

    def _encoded(self, element: Any) -> bytes:
        if isinstance(element, str):
            return element.encode()
        if isinstance(element, bytes | bytearray | memoryview):
            return bytes(element)
        raise self._unexpected(element)

    def _unexpected(self, value: Any, more: str = "") -> ValueError:
        kind = type(value).__name__
        return ValueError(f"expected {self.described()}, got {kind} {_short(value)}{more}")

    def described(self) -> str:
        """Returns the type in words for messages."""
        word = (
            ("str" if self.is_text else "bytes")
            if self.is_bytes
            else _KIND_WORDS.get(self._numpy.kind, "float")
        )
        if self.form is ValueForm.LIST:
            return "list[" * len(self.shape) + word + "]" * len(self.shape)
        return f"an array of {word}" if self.form is ValueForm.ARRAY else word


def _are_all_ints(array: NDArray[Any]) -> bool:
    return all(isinstance(each, int) for each in array.ravel().tolist())


def _text_array(array: NDArray[Any]) -> NDArray[Any]:
    texts = [_decoded(element) for element in array.ravel().tolist()]
    return np.array(texts, np.str_).reshape(array.shape)


def _object_array(value: Any) -> NDArray[Any]:
    """Returns nested lists of texts as an array; numpy would take texts apart otherwise."""
    shape: list[int] = []
    level = value
    while isinstance(level, list | tuple):
        shape.append(len(level))
        level = level[0] if level else None
    flat: list[Any] = [value]
    for size in shape:
        if any(not isinstance(part, list | tuple) or len(part) != size for part in flat):
            raise ValueError(f"expected lists of the same length, got {_short(value)}")
        flat = [element for part in flat for element in part]
    array = np.empty(len(flat), np.object_)
    array[:] = flat
    return array.reshape(shape)


def _each(convert: Callable[[Any], Any], value: Any) -> Any:
    """Converts every element of nested lists."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple) and not isinstance(value, enum.Enum):
        return [_each(convert, element) for element in value]
    return convert(value)


def _decoded(element: Any) -> str:
    if isinstance(element, str):
        return element
    try:
        return str(element, "utf-8")
    except UnicodeDecodeError:
        raise ValueError(
            f"expected text in UTF-8, got the bytes {_short(element)}: annotate it as bytes if it "
            "is no text"
        ) from None


def _short(value: Any) -> str:
    return reprlib.repr(value)
