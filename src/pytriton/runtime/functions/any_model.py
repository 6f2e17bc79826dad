# SPDX-License-Identifier: Apache-2.0
"""What a server is told of a bound model, wherever its instances run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from pytriton.decorators.context import TritonContext
    from pytriton.model_config.triton_model_config import TritonModelConfig
    from pytriton.runtime.transport.control import RayInstances


class AnyModel(Protocol):
    """A bound model: `BoundModel`, whose instances are in this process, or `RayModel`."""

    name: str
    version: int
    config: TritonModelConfig
    examples: Mapping[str, Any]  # values for inputs that it certainly takes
    takes_parameters: bool  # whether its function gets the parameters of requests
    start_timeout_s: float  # how long its instances may take to start, beyond the usual

    @property
    def key(self) -> tuple[str, int]:
        """The unique key of the model in one server."""

    @property
    def ray(self) -> RayInstances | None:
        """What the server has to know to start its instances; None: they are in this process."""

    def message(self) -> dict[str, Any]:
        """Returns the ModelConfig message for the server."""

    def initial_states(self) -> dict[str, bytes]:
        """Returns the initial states of its sequences, by input, in the protocol's layout."""

    def prepare(self, context: TritonContext) -> None:
        """Prepare callables of this process."""

    def leave(self, context: TritonContext) -> None:
        """Forget callables of this process."""

    def open_instances(
        self, on_unrecoverable: Callable[[], None]
    ) -> tuple[list[socket.socket], list[int]]:
        """Start the instances of this process.

        Returns:
            The server's ends of their channels, and the number of concurrent batches of each.
        """

    def is_alive(self) -> bool:
        """Whether every instance of this process accepts batches."""

    def close(self, timeout_s: float) -> None:
        """Wait for instances of this process."""
