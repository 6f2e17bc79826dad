# SPDX-License-Identifier: Apache-2.0
"""What tests give to a harness and get from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pytriton.messages import ParameterValue
from pytriton.pb_utils.failures import TritonError


@dataclass(frozen=True)
class Request:
    """One request of a client.

    Attributes:
        inputs: arrays by name, or what numpy makes arrays of the configured type from.
        parameters: of the request.
        id: of the request.
        outputs: names of the outputs that the client asks for; None for all.
        correlation_id: of the sequence that the request belongs to.
        flags: 1 for the first request of a sequence, 2 for its last, added up.
        timeout_us: what the client allows the request to wait.
        cancel_after: the client gives the request up once it got so many responses; 0 before the
            model sees it, None never.
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
        outputs: arrays by name; BYTES tensors hold `bytes`.
        parameters: of the response.
        error: in the place of outputs, where the model answered with one.
    """

    outputs: dict[str, NDArray[Any]]
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    error: TritonError | None = None

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The output of that name.

        Raises:
            KeyError: there is none, perhaps because the response is an error.
        """
        if self.error is not None:
            raise KeyError(f"{name}: the response is the error '{self.error.message()}'")
        return self.outputs[name]


@dataclass(frozen=True)
class LogLine:
    """One line that the model logged; levels are INFO, WARNING, ERROR and VERBOSE."""

    level: str
    message: str
    file: str
    line: int
