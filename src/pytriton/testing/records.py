# SPDX-License-Identifier: Apache-2.0
"""The records that tests pass to a harness and get from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pytriton.base.messages import ParameterValue
from pytriton.runtime.pb_utils.failures import TritonError


@dataclass(frozen=True)
class Request:
    """One request of a client.

    Attributes:
        inputs: arrays by name, or values that numpy can convert to the configured type.
        parameters: parameters of the request.
        id: id of the request.
        outputs: names of the outputs that the client wants; None for all.
        correlation_id: id of the sequence that the request belongs to.
        flags: 1 for the first request of a sequence, 2 for the last, 3 for both.
        timeout_us: how long the request may wait in the queue.
        cancel_after: the client cancels the request after this number of responses; with 0 before
            the model gets it, with None never.
    """

    inputs: Mapping[str, Any]
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    id: str = ""
    outputs: Sequence[str] | None = None
    correlation_id: int | str = 0
    flags: int = 0
    timeout_us: int = 0
    cancel_after: int | None = None


@dataclass(frozen=True)
class Response:
    """One response, as a client gets it.

    Attributes:
        outputs: arrays by name; BYTES tensors contain `bytes`.
        parameters: parameters of the response.
        error: the model's error instead of outputs, if it returned one.
    """

    outputs: dict[str, NDArray[Any]]
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    error: TritonError | None = None

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Returns the output of that name.

        Raises:
            KeyError: there is no such output, perhaps because the response is an error.
        """
        if self.error is not None:
            raise KeyError(f"{name}: the response is the error '{self.error.message()}'")
        if name not in self.outputs:
            raise KeyError(f"{name}: the outputs of the response are {', '.join(self.outputs)}")
        return self.outputs[name]


class ResponseError(Exception):
    """The model answered a request with an error.

    Args:
        responses: the responses, the first of which with an error is the cause.

    Attributes:
        error: the model's error, with its code and message.
        responses: all responses to the request, as a stream may have others before and after it.
    """

    def __init__(self, responses: Sequence[Response]) -> None:
        self.responses: list[Response] = list(responses)
        self.error: TritonError = next(each.error for each in responses if each.error is not None)
        super().__init__(self.error.message())


@dataclass(frozen=True)
class LogLine:
    """One line that the model logged; levels are INFO, WARNING, ERROR and VERBOSE."""

    level: str
    message: str
    file: str
    line: int
