# SPDX-License-Identifier: Apache-2.0
"""Lists, loads and unloads models for clients: the part that HTTP and gRPC share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.base.errors import UnavailableError
from pytriton.protocol.repository import check_model_name

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pytriton.protocol.repository import LoadOverrides
    from pytriton.serving.engine.client import Answer, EngineClient, IndexEntry


class RepositoryService:
    """Checks requests, refuses wrong ones at once, and passes the others on."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    def index(self, *, ready: bool) -> Answer[list[IndexEntry]]:
        """Returns every known model version, or only those that are ready."""
        return self._engine.index(ready=ready)

    def load(self, name: str, overrides: LoadOverrides) -> Coroutine[Any, Any, None]:
        """Load a model; the coroutine returns when it is ready.

        Raises:
            ServerError: At once, if the name is invalid or the server is stopping.
        """
        self._check(name, is_path=True)
        return self._engine.load(name, overrides.config, overrides.files)

    def unload(self, name: str, *, unload_dependents: bool) -> Coroutine[Any, Any, None]:
        """Unload a model; the coroutine returns when it gets no new requests any more.

        Raises:
            ServerError: At once, if the name is invalid or the server is stopping.
        """
        self._check(name, is_path=False)
        return self._engine.unload(name, unload_dependents=unload_dependents)

    def _check(self, name: str, *, is_path: bool) -> None:
        check_model_name(name, is_path=is_path)
        if self._engine.is_exiting:
            raise UnavailableError("Server exiting")
