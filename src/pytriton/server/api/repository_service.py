# SPDX-License-Identifier: Apache-2.0
"""Listing, loading and unloading models for clients: what is the same over HTTP and gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytriton.errors import UnavailableError
from pytriton.wire.repository import check_model_name

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from pytriton.engine.control import IndexEntry, ModelControl
    from pytriton.engine.engine import Engine
    from pytriton.wire.repository import LoadForm


class RepositoryService:
    """Asks whoever keeps the models; a wrong request is refused before anything begins."""

    def __init__(self, engine: Engine, control: ModelControl) -> None:
        self._engine = engine
        self._control = control

    def index(self, *, ready: bool) -> list[IndexEntry]:
        """Every known model version, or only those that serve."""
        return self._control.index(ready=ready)

    def load(self, name: str, form: LoadForm) -> Coroutine[Any, Any, None]:
        """Load a model; done when it is ready.

        Raises:
            ServerError: At once, where the name cannot be one, or the server ends.
        """
        self._check(name, is_path=True)
        return self._control.load(name, form.config, form.files)

    def unload(self, name: str, *, unload_dependents: bool) -> Coroutine[Any, Any, None]:
        """Unload a model; done when new requests do not reach it any more.

        Raises:
            ServerError: At once, where the name cannot be one, or the server ends.
        """
        self._check(name, is_path=False)
        return self._control.unload(name, unload_dependents=unload_dependents)

    def _check(self, name: str, *, is_path: bool) -> None:
        check_model_name(name, is_path=is_path)
        if self._engine.is_exiting:
            raise UnavailableError("Server exiting")
