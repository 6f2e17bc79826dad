# SPDX-License-Identifier: Apache-2.0
"""How front ends list, load and unload models, whoever keeps them: a repository, or a binder."""

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


class ModelControl(Protocol):
    """Lists, loads and unloads models. All on the event loop; errors are ServerErrors."""

    def index(self, *, ready: bool = False) -> list[IndexEntry]:
        """Every known model version, or only those that serve."""

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Load or reload a model; returns when it is ready. `files` are by path: `1/model.py`."""

    async def unload(self, name: str, *, unload_dependents: bool = False) -> None:
        """Take a model out of service; returns when new requests do not reach it any more."""

    def is_ready(self) -> bool:
        """Whether every model that should serve does."""
