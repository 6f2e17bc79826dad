# SPDX-License-Identifier: Apache-2.0
"""Checks and converts the outputs that a bound callable returned.

Users of the binding API match on the texts of the errors. Outputs that were declared without a name
take the values in order.
"""
# ruff: noqa: TRY004  users catch ValueError for all wrong outputs

from __future__ import annotations

import logging
import reprlib
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.model_config.tensor import triton_datatype
from pytriton.proxy.types import Request

logger = logging.getLogger(__name__)

Outputs = Mapping[str, NDArray[Any]]
_SUPPORTED_KINDS = "biufOSU"


class OutputNames:
    """The names of the outputs of a model, in order. All instances of the model share this object.

    The `unnamed` were declared without a name. If `strict`, names must always be the declared ones.
    A response of a `decoupled` model may omit outputs.
    """

    def __init__(
        self,
        model_name: str,
        declared: Sequence[str],
        unnamed: Collection[str] = (),
        *,
        strict: bool = False,
        decoupled: bool = False,
    ) -> None:
        self._model_name = model_name
        self._declared = list(declared)
        self._unnamed = frozenset(unnamed)
        self._strict = strict
        self._decoupled = decoupled
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def assign(self, outputs: Outputs, wanted: Collection[str] | None = None) -> Outputs:
        """Returns outputs whose names are not exactly the declared ones, with these if possible.

        Raises:
            ValueError: An output that the client wants (None: all) is missing.
        """
        if isinstance(outputs, Request) and self._is_echo(outputs):
            return dict(zip(self._declared, outputs.values(), strict=True))
        missing = [name for name in self._declared if name not in outputs]
        undeclared = [name for name in outputs if name not in self._declared]
        if not all(isinstance(name, str) for name in undeclared) or (self._strict and undeclared):
            return outputs  # the check of the values refuses these names
        if undeclared and len(undeclared) == len(missing) and self._unnamed.issuperset(missing):
            return self._in_order(outputs, dict(zip(undeclared, missing, strict=True)))
        missing = [name for name in missing if wanted is None or name in wanted]
        if missing:
            self._refuse(outputs, missing, undeclared)
        return outputs

    def warn_once(self, topic: str, text: str, *arguments: object) -> None:
        """Log a warning once for each topic."""
        with self._lock:
            is_new = topic not in self._warned
            self._warned.add(topic)
        if is_new:
            logger.warning(text, *arguments)

    def _is_echo(self, request: Request) -> bool:
        """Whether a request was returned as result: its inputs are then the outputs, in order."""
        return len(request) == len(self._declared) and not any(
            name in request for name in self._declared
        )

    def _in_order(self, outputs: Outputs, names: Mapping[str, str]) -> Outputs:
        self.warn_once(
            "order",
            "Model `%s` declares outputs without names, so %s were taken in order for %s; "
            "name the tensors in `outputs` to get rid of this warning",
            self._model_name,
            list(names),
            list(names.values()),
        )
        return {names.get(name, name): array for name, array in outputs.items()}

    def _refuse(self, outputs: Outputs, missing: list[str], undeclared: list[str]) -> None:
        names_text = f"Returned: {list(outputs)}. Expected: {self._declared}."
        if self._decoupled and not undeclared:
            self.warn_once(
                "missing",
                "A response of model `%s` omits %s, without an error for its client. %s",
                self._model_name,
                missing,
                names_text,
            )
            return
        raise ValueError(
            f"Not all outputs of model `{self._model_name}` were returned: {missing} "
            f"{'is' if len(missing) == 1 else 'are'} missing. {names_text}"
        )


class DeclaredTensor(Protocol):
    """An output as the model declares it; `pytriton.model_config` has several such classes."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...


class OutputValidator:
    """Checks the results of one model; the shapes of `outputs` are without the batch dimension.

    If `strict`, names, types and shapes must be the declared ones; see also `OutputNames`.
    """

    def __init__(
        self,
        model_name: str,
        outputs: Sequence[DeclaredTensor],
        batching: bool,
        strict: bool,
        *,
        unnamed: Collection[str] = (),
        decoupled: bool = False,
    ) -> None:
        self._model_name = model_name
        self._declared = {spec.name: spec for spec in outputs}
        self._count = len(self._declared)
        self._names = OutputNames(
            model_name, list(self._declared), unnamed, strict=strict, decoupled=decoupled
        )
        self._datatypes = {spec.name: triton_datatype(spec.dtype) for spec in outputs}
        self._first_dimension = 1 if batching else 0
        self._strict = strict
        # The last dtype and row shape of each output: most outputs never change them, and comparing
        # two values costs less than checking them again.
        self._accepted: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}

    def validate(
        self,
        results: Any,
        request_count: int,
        wanted: Mapping[int, Collection[str]] | None = None,
    ) -> list[Mapping[str, NDArray[Any]]]:
        """Check the result of a callable; returns the outputs by name, for each request.

        `wanted` has the names of the requested outputs by position; the others want all.

        Raises:
            ValueError: A result is invalid.
        """
        if not isinstance(results, list):
            hint = " (is a return statement missing?)" if results is None else ""
            raise self._not_response_dicts(f"Got outputs={reprlib.repr(results)}{hint}")
        if len(results) != request_count:
            raise ValueError(
                f"Number of outputs returned by `{self._model_name}` inference callable "
                f"({len(results)}) does not match number of requests ({request_count}) "
                "received from Triton."
            )
        responses = []
        for position, response in enumerate(results):
            if type(response) is not dict and not isinstance(response, Mapping):
                raise self._not_response_dicts(f"Got response={reprlib.repr(response)}")
            responses.append(
                self.validate_batch(response, wanted.get(position) if wanted else None)
            )
        return responses

    def validate_batch(
        self, outputs: Mapping[str, NDArray[Any]], wanted: Collection[str] | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Returns the outputs of one request, or of a whole batch, by their declared names.

        Raises:
            ValueError: An output is invalid, or one that is wanted (None: all) is missing.
        """
        if len(outputs) == self._count:
            first, known = self._first_dimension, self._accepted
            for name, array in outputs.items():
                accepted = known.get(name)  # None for undeclared outputs
                if (
                    accepted is None
                    or type(array) is not np.ndarray
                    or array.dtype is not accepted[0]
                    or array.shape[first:] != accepted[1]
                ):
                    break
            else:
                return outputs
        if outputs.keys() != self._declared.keys():
            outputs = self._names.assign(outputs, wanted)
        self.check_values(outputs)
        return outputs

    def check_values(self, outputs: Mapping[str, NDArray[Any]]) -> None:
        """Raise ValueError if an output that was returned is invalid."""
        for name, array in outputs.items():
            self._check(name, array)
            # Objects may differ each time, and arrays of scalars have an empty row shape.
            first = self._first_dimension
            if name in self._declared and array.dtype.kind != "O" and array.ndim > first:
                self._accepted[name] = (array.dtype, array.shape[first:])

    def _check(self, name: Any, array: Any) -> None:
        model = self._model_name
        if not isinstance(name, str):
            raise ValueError(
                f"Not all keys returned by `{model}` model callable are string. Got {name!r}."
            )
        if not isinstance(array, np.ndarray):
            raise ValueError(
                f"Not all values returned by `{model}` model callable are numpy arrays. "
                f"Got {type(array)} for `{name}`."
            )
        kind = array.dtype.kind
        if kind not in _SUPPORTED_KINDS and dtypes.from_numpy(array.dtype) is None:
            raise ValueError(
                "Only bool, numeric, string, unicode and object arrays are supported by Triton "
                f"(dtype.kind: {_SUPPORTED_KINDS}). Returned `{name}` for model `{model}` has "
                f"`{kind}` dtype.kind."
            )
        if kind == "O":
            self._check_elements(name, array)
        if self._strict:
            self._check_declaration(name, array)
        elif name in self._declared and (problem := self._shape_problem(name, array)):
            self._names.warn_once(
                f"shape of {name}",
                "%s It is sent unchanged; bind with strict=True to refuse it",
                problem,
            )

    def _check_elements(self, name: str, array: NDArray[Any]) -> None:
        # All elements, because one that is not a byte string would be sent as something else.
        for kind in set(map(type, array.ravel().tolist())):
            if issubclass(kind, str):
                raise ValueError(
                    "Use string/byte-string instead of object for passing string in NumPy array "
                    f"from model `{self._model_name}`."
                )
            if not issubclass(kind, bytes):
                raise ValueError(
                    "Only bytes as objects dtype are supported by PyTriton. Returned "
                    f"`{name}` from `{self._model_name}` has `{kind}` type."
                )

    def _check_declaration(self, name: str, array: NDArray[Any]) -> None:
        declared = self._declared.get(name)
        model = self._model_name
        if declared is None:
            raise ValueError(
                f"Returned output `{name}` is not defined in model config for model `{model}`."
            )
        if dtypes.from_numpy(array.dtype) is not self._datatypes[name]:
            raise ValueError(
                f"Returned output `{name}` for model `{model}` has invalid type. "
                f"Returned: {array.dtype} ({array.dtype.kind}). Expected: {declared.dtype}."
            )
        problem = self._shape_problem(name, array)
        if problem:
            raise ValueError(problem)

    def _shape_problem(self, name: str, array: NDArray[Any]) -> str | None:
        first, expected = self._first_dimension, tuple(self._declared[name].shape)
        shape = array.shape[first:]
        if len(shape) != len(expected) or array.ndim < first:
            where = ""
        elif any(wanted not in (-1, size) for size, wanted in zip(shape, expected, strict=True)):
            where = " at one or more positions"
        else:
            return None
        return (
            f"Returned output `{name}` for model `{self._model_name}` has invalid shapes{where}. "
            f"Returned: {shape}. Expected: {expected}."
        )

    def _not_response_dicts(self, got: str) -> ValueError:
        return ValueError(
            f"Outputs returned by `{self._model_name}` model callable must be list of response "
            f"dicts with numpy arrays. {got}."
        )


def convert_output(name: str, array: NDArray[Any], datatype: dtypes.DataType) -> NDArray[Any]:
    """Returns an output that passed the checks in its declared type and byte order.

    Texts stay as they are, and so does an array that needs no conversion.

    Raises:
        ValueError: The elements cannot be converted.
    """
    if datatype is dtypes.BYTES:
        return array if array.dtype.kind in "OSU" else array.astype(np.str_)
    try:
        return array.astype(datatype.numpy, copy=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Returned output `{name}` cannot be converted. Returned: {array.dtype}. "
            f"Expected: {datatype.name}."
        ) from error
