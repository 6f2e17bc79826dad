# SPDX-License-Identifier: Apache-2.0
"""Functions that replace the models that a model calls."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pytriton.runtime.pb_utils.failures import TritonError
from pytriton.runtime.pb_utils.request import InferenceRequest
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.runtime.python_backend.answers import failure_text

Outputs: TypeAlias = Mapping[str, NDArray[Any]]
# Takes the inputs and returns outputs, an error or, for a decoupled model, an iterator over those.
Target: TypeAlias = Callable[
    [dict[str, NDArray[Any]]], Outputs | TritonError | Iterator[Outputs | TritonError]
]

_NEEDS_DECOUPLED = (
    "Model {} is using the decoupled. The current BLS request call doesn't support models using the"
    " decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or"
    " 'async_exec' calls for decoupled models.'"
)


class TargetCall:
    """A call of such a function; implements `pytriton.runtime.pb_utils.runtime.InferenceCall`."""

    def __init__(
        self, request: InferenceRequest, target: Target | None, *, decoupled: bool
    ) -> None:
        self.is_over: bool = False
        self._name = request.model_name
        self._output_names = request.output_names
        self._responses = self._run(request, target, decoupled=decoupled)

    def receive(self) -> InferenceResponse | None:
        """Returns the next response; None after the last one."""
        response = next(self._responses, None)
        self.is_over = response is None
        return response

    def notify(self, wake: Callable[[], None]) -> None:
        """Do nothing: the function runs in `receive`, so no response arrives later."""
        wake()

    def cancel(self) -> None:
        """Close the generator; only the empty final response is left to receive."""
        self._responses.close()
        self._responses = (InferenceResponse() for _ in range(1))

    def abandon(self) -> None:
        """Close the generator."""
        self._responses.close()

    def _run(
        self, request: InferenceRequest, target: Target | None, *, decoupled: bool
    ) -> Generator[InferenceResponse, None, None]:
        if target is None:
            return self._refused(f"Request for unknown model: '{self._name}' is not found")
        try:
            result = target({tensor.name(): tensor.as_numpy() for tensor in request.inputs()})
        except Exception as error:  # noqa: BLE001  it becomes an error response, as in a server
            return self._failed(error)
        if not isinstance(result, Iterator):
            return (self._response(each) for each in (result,))
        if not decoupled:
            return self._refused(_NEEDS_DECOUPLED.format(self._name))
        return self._stream(result)

    def _stream(
        self, results: Iterator[Outputs | TritonError]
    ) -> Generator[InferenceResponse, None, None]:
        try:
            for result in results:
                yield self._response(result)
        except Exception as error:  # noqa: BLE001  as in `_run`
            yield from self._failed(error)
        else:
            yield InferenceResponse()  # decoupled models usually end with an empty response

    def _response(self, result: Outputs | TritonError) -> InferenceResponse:
        if isinstance(result, TritonError):
            return InferenceResponse(error=result)
        names = self._output_names or result
        return InferenceResponse(
            [Tensor(name, np.asarray(array)) for name, array in result.items() if name in names]
        )

    def _failed(self, error: Exception) -> Generator[InferenceResponse, None, None]:
        text = failure_text(f"{self._name}_0", error)
        yield InferenceResponse(error=TritonError(text))

    def _refused(self, reason: str) -> Generator[InferenceResponse, None, None]:
        text = f"Model {self._name} - Error when running inference: {reason}"
        yield InferenceResponse(error=TritonError(text))
