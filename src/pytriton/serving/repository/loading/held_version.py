# SPDX-License-Identifier: Apache-2.0
"""A loaded version that keeps the local copy of its model until it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytriton.serving.engine.served_model import ManagedModel
    from pytriton.serving.repository.loading.plans import LoadedVersion
    from pytriton.serving.repository.reading.layout import Holder


class HeldVersion:
    """Passes everything on to a version. Implements `LoadedVersion`."""

    def __init__(self, version: LoadedVersion, holder: Holder) -> None:
        self._version = version
        self._holder: Holder | None = holder
        holder.retain()

    @property
    def model(self) -> ManagedModel:
        """See `LoadedVersion`."""
        return self._version.model

    @property
    def is_current(self) -> bool:
        """See `LoadedVersion`."""
        return self._version.is_current

    async def drain_and_stop(self, timeout_s: float | None = None) -> None:
        """See `LoadedVersion`."""
        try:
            await self._version.drain_and_stop(timeout_s)
        finally:
            holder, self._holder = self._holder, None  # this may be called twice
            if holder is not None:
                holder.release()

    def __repr__(self) -> str:
        return f"<HeldVersion {self._version!r}>"


def hold(version: LoadedVersion, holder: Holder | None) -> LoadedVersion:
    """Returns a version that keeps its files, if somebody has to know that."""
    return version if holder is None else HeldVersion(version, holder)
