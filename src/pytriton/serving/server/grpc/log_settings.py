# SPDX-License-Identifier: Apache-2.0
"""The gRPC method that shows and changes the settings of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.protocol.log_settings import log_settings_response, read_log_settings_pb
from pytriton.serving.server.grpc.documents import respond_when_known

if TYPE_CHECKING:
    from pytriton.serving.engine.client import EngineClient
    from pytriton.serving.server.grpc.documents import Method


class GrpcLogSettings:
    """Turns request messages into response messages, or into coroutines that return them."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def answers(self) -> dict[str, tuple[str, Method]]:
        """Returns, for the method, its group for authorisation and the function that answers."""
        return {"LogSettings": ("logging", self.log_settings)}

    def log_settings(self, request: Any) -> Any:
        """Apply the changes in the request, and report all settings."""
        settings = self._engine.change_log_settings(read_log_settings_pb(request))
        return respond_when_known(settings, log_settings_response)
