# SPDX-License-Identifier: Apache-2.0
"""The interface by which front ends list, load and unload repository models and bound models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


class IndexEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the repository index; a model that was never loaded has only a name."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
    namespace: str = ""  # its repository, if models of several may have the same name


class ModelRegistrations(Protocol):
    """Loads models from folders that are in no repository. Called on the event loop."""

    def listed(self) -> dict[str, str]:
        """Returns the folders of all models that were added, by name."""

    async def register(self, name: str, url: str) -> None:
        """Load a model from a folder; returns when it is ready."""

    async def unregister(self, name: str) -> None:
        """Unload a model that was added; returns when it has stopped."""


class ModelControl(Protocol):
    """Lists, loads and unloads models. Called on the event loop; raises ServerErrors."""

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """Returns every known model version, or only those that are ready."""

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model; returns when it is ready. `files` has paths like `1/model.py`."""

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Unload a model; returns when it gets no new requests any more."""

    def is_ready(self) -> bool:
        """Returns whether every model that should be ready is ready."""
