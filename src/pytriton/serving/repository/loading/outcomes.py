# SPDX-License-Identifier: Apache-2.0
"""What came of the loads of a model's versions, and the texts that say so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytriton.base.errors import UnavailableError
from pytriton.serving.engine.model import UNLOADED, ModelState

if TYPE_CHECKING:
    from pytriton.serving.repository.loading.plans import LoadedVersion


class LackOfResources(str):
    """Why a version could not be loaded now: its machine had no resources for that."""

    __slots__ = ()


def outcome_of(load: asyncio.Future[LoadedVersion | str]) -> LoadedVersion | str:
    """Returns what a load that has ended came to: a version, or why there is none."""
    return UNLOADED if load.cancelled() else load.result()


def failure_of(outcome: LoadedVersion | str) -> str:
    """Returns why a version cannot serve: the load failed, or its instances died already."""
    if isinstance(outcome, str):
        return outcome
    is_alive = outcome.model.state is ModelState.LOADING
    return "" if is_alive else f"Internal: {outcome.model.reason}"


def list_failures(failures: Mapping[int, str], end: str = "\n") -> str:
    """Returns the text about versions that cannot serve, by version."""
    return "".join(
        f"version {version} is at UNAVAILABLE state: {reason};{end}"
        for version, reason in sorted(failures.items())
    )


def given_up(name: str) -> UnavailableError:
    """Returns the error for a load that was not finished."""
    return UnavailableError(
        f"load failed for model '{name}': it was given up, as the model was unloaded or its files "
        "changed"
    )
