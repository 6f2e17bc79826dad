# SPDX-License-Identifier: Apache-2.0
"""The requests and responses of inference callables."""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView, Iterator, KeysView, MutableMapping, ValuesView
from contextlib import AbstractContextManager
from typing import Any

from numpy.typing import NDArray

from pytriton.proxy.telemetry import traced_span

ParameterValue = str | int | bool | float


class _TensorMapping(MutableMapping[str, NDArray[Any]]):
    """Tensors by name. Only the methods that must be fast are here; the others are inherited."""

    data: dict[str, NDArray[Any]]

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.data[name]

    def __setitem__(self, name: str, tensor: NDArray[Any]) -> None:
        self.data[name] = tensor

    def __delitem__(self, name: str) -> None:
        del self.data[name]

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __contains__(self, name: object) -> bool:
        return name in self.data

    def items(self) -> ItemsView[str, NDArray[Any]]:
        return self.data.items()

    def keys(self) -> KeysView[str]:
        return self.data.keys()

    def values(self) -> ValuesView[NDArray[Any]]:
        return self.data.values()


@dataclasses.dataclass
class Request(_TensorMapping):
    """One request of a batch: a mapping of its inputs, with its parameters.

    Args:
        data: inputs by name.
        parameters: parameters and forwarded headers by name.
        span: OpenTelemetry span of the request; None if it is not traced.
        requested_output_names: outputs that the client wants; None if it wants all.
    """

    data: dict[str, NDArray[Any]]
    parameters: dict[str, ParameterValue] | None = None
    span: Any = None
    requested_output_names: list[str] | None = None

    def traced_span(self, span_name: str) -> AbstractContextManager[None]:
        """Open a span under the request's span; does nothing if the request is not traced.

        Args:
            span_name: name of the new span.

        Returns:
            A context manager that ends the span.
        """
        return traced_span(self, span_name)


@dataclasses.dataclass
class Response(_TensorMapping):
    """One response of a batch: a mapping of its outputs.

    Args:
        data: outputs by name.
    """

    data: dict[str, NDArray[Any]]


Requests = list[Request]
Responses = list[Response]
ResponsesOrError = Responses | Exception
ResponsesNoneOrError = Responses | None | Exception
Scope = dict[str, Any]
