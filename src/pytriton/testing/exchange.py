# SPDX-License-Identifier: Apache-2.0
"""The server's end of a request: takes its responses and plays the client that gives up."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from pytriton import dtypes
from pytriton.pb_utils.response import InferenceResponse
from pytriton.pb_utils.tensor import Tensor
from pytriton.testing.records import Request, Response


class Exchange:
    """One request, from the call of `execute` to its last response.

    Args:
        request: what the client wants.
        output_names: what it gets of a response; None for all that there is.
    """

    def __init__(self, request: Request, output_names: Sequence[str] | None) -> None:
        self.request = request
        self.responses: list[Response] = []
        self._output_names = output_names
        self._is_over = False
        self._news = threading.Condition()

    def send(self, response: InferenceResponse | None, *, is_final: bool) -> None:
        """Take a response, the bare end of them, or both."""
        with self._news:
            if response is not None:
                self.responses.append(self._as_received(response))
            self._is_over = is_final
            self._news.notify_all()

    def is_cancelled(self) -> bool:
        """Whether the client has as many responses as it waits for."""
        cancel_after = self.request.cancel_after
        return cancel_after is not None and len(self.responses) >= cancel_after

    def wait(self, timeout_s: float) -> list[Response]:
        """All responses, once the last one is there.

        Raises:
            TimeoutError: the model did not say in time which one is the last.
        """
        with self._news:
            if not self._news.wait_for(lambda: self._is_over, timeout_s):
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
        outputs = {
            tensor.name(): _copy(tensor)
            for tensor in response.tensors
            if names is None or tensor.name() in names
        }
        return Response(outputs, dict(response.parameter_values or {}))


def _copy(tensor: Tensor) -> NDArray[Any]:
    dtype, shape, array = tensor.to_wire()
    if dtype is dtypes.BYTES:
        return dtypes.bytes_elements_to_array(dtypes.array_to_bytes_elements(array), shape)
    copy: NDArray[Any] = array.copy()
    return copy
