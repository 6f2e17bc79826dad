# SPDX-License-Identifier: Apache-2.0
"""Responses: those that a model makes, and those that it gets from other models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.base.messages import ParameterValue
from pytriton.runtime.pb_utils.arguments import sequence
from pytriton.runtime.pb_utils.failures import TritonError, TritonModelException
from pytriton.runtime.pb_utils.parameters import as_json, checked_parameters
from pytriton.runtime.pb_utils.tensor import Tensor

__all__ = ["InferenceResponse", "TritonError", "TritonModelException"]


class InferenceResponse:
    """The response to one request: tensors, or an error in their place.

    Args:
        output_tensors: The outputs; those that the client did not request are dropped.
        error: The reason why there are no outputs.
        parameters: Additional values for the client, of type bool, int or str.

    Raises:
        TypeError: An argument has the wrong type.
        TritonModelException: An output is None, or the parameters cannot be sent.
    """

    __slots__ = ("__weakref__", "failure", "parameter_values", "tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, bool | int | str] | None = None,
    ) -> None:
        if type(output_tensors) is list:
            tensors = output_tensors[:]
        else:
            tensors = sequence(output_tensors, "output_tensors")
        for tensor in tensors:
            if type(tensor) is not Tensor:
                _refuse_output(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a TritonError or None, got {type(error)}")
        self.tensors: list[Tensor] = tensors
        self.failure: TritonError | None = error
        self.parameter_values: dict[str, ParameterValue] | None = (
            None if parameters is None else checked_parameters(parameters)
        )

    @classmethod
    def received(
        cls,
        tensors: list[Tensor],
        failure: TritonError | None,
        parameters: dict[str, ParameterValue] | None,
    ) -> InferenceResponse:
        """Make a response of another model, without checks."""
        response = cls.__new__(cls)
        response.tensors = tensors
        response.failure = failure
        response.parameter_values = parameters
        return response

    def output_tensors(self) -> list[Tensor]:
        """Returns the outputs; empty if there is an error."""
        return list(self.tensors)

    def has_error(self) -> bool:
        """Returns whether the request failed."""
        return self.failure is not None

    # `Any` stands for None, so that code that asks `has_error` first passes type checkers.
    def error(self) -> TritonError | Any:
        """Returns the error of the request; None if there is none."""
        return self.failure

    def parameters(self) -> str:
        """Returns the parameters as JSON text; `{}` if there are none."""
        return as_json(self.parameter_values)

    def __repr__(self) -> str:
        if self.failure is not None:
            return f"InferenceResponse(error={self.failure!r})"
        return f"InferenceResponse({self.tensors!r})"


def _refuse_output(tensor: object) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    if not isinstance(tensor, Tensor):
        raise TypeError(f"output_tensors must hold Tensor objects, got {type(tensor)}")
