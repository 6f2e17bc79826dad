# SPDX-License-Identifier: Apache-2.0
"""The server's side of a request: receives its responses, and simulates a client that cancels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from pytriton.base import dtypes
from pytriton.base.model_spec import ModelSpec
from pytriton.runtime.pb_utils.failures import TritonError
from pytriton.runtime.pb_utils.response import InferenceResponse
from pytriton.runtime.pb_utils.tensor import Tensor
from pytriton.testing.records import Request, Response


class HarnessExchange:
    """One request, from the call of `execute` to its last response.

    Args:
        request: the client's request.
        output_names: the outputs that the client gets; None for all.
        spec: the model, whose outputs may have another shape for clients.
        keep_states: called with each response of a sequence.
    """

    def __init__(
        self,
        request: Request,
        output_names: Sequence[str] | None,
        spec: ModelSpec,
        keep_states: Callable[[int | str, InferenceResponse], None] | None = None,
    ) -> None:
        self.request = request
        self._spec = spec
        self.responses: list[Response] = []
        self._output_names = output_names
        self._keep_states = keep_states
        self._is_over = False
        self._changed = threading.Condition()

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Receive a response, the end of the responses, or both."""
        with self._changed:
            if response is not None:
                if self._keep_states is not None:
                    self._keep_states(self.request.correlation_id, response)
                self.responses.append(self._as_received(response))
            self._is_over = is_final
            self._changed.notify_all()

    def is_cancelled(self) -> bool:
        """Whether the client has got the number of responses after which it cancels."""
        cancel_after = self.request.cancel_after
        return cancel_after is not None and len(self.responses) >= cancel_after

    def wait(self, timeout_s: float) -> list[Response]:
        """Wait for the last response and return all.

        Raises:
            TimeoutError: the model did not send the last one in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_over, timeout_s):
                raise TimeoutError(
                    f"expected the final response to request '{self.request.id}' within"
                    f" {timeout_s:g} s, got {len(self.responses)} responses and no"
                    " TRITONSERVER_RESPONSE_COMPLETE_FINAL"
                )
        return self.responses

    def _as_received(self, response: InferenceResponse) -> Response:
        if response.failure is not None:
            return Response({}, {}, response.failure)
        names = self._output_names
        outputs = {}
        for tensor in response.tensors:
            name = tensor.name()
            if names is not None and name not in names:
                continue
            array = self._reshaped(name, _copy(tensor))
            if array is None:
                text = f"output tensor shape does not match size of output for '{name}'"
                return Response({}, {}, TritonError(text))
            outputs[name] = array
        return Response(outputs, dict(response.parameter_values or {}))

    def _reshaped(self, name: str, array: NDArray[Any]) -> NDArray[Any] | None:
        """Returns an output in the shape that clients get; None if it has another size."""
        expected = self._spec.outputs.get(name)
        if expected is None or expected.reshape is None:
            return array
        batching = self._spec.max_batch_size > 0
        shape = expected.reshape.convert(array.shape, batching=batching)
        return None if shape is None else array.reshape(shape)


def _copy(tensor: Tensor) -> NDArray[Any]:
    dtype, shape, array = tensor.to_wire()
    if dtype is dtypes.BYTES:
        return dtypes.bytes_elements_to_array(dtypes.array_to_bytes_elements(array), shape)
    copy: NDArray[Any] = array.copy()
    return copy
