# SPDX-License-Identifier: Apache-2.0
"""The life of a model version, as one table."""

from __future__ import annotations

import enum

UNLOADED = "unloaded"  # the reason of what is out of service because somebody wanted it so


class ModelState(enum.Enum):
    """Where a model version is in its life; the values are Triton's words."""

    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


TRANSITIONS: dict[ModelState, frozenset[ModelState]] = {
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.UNAVAILABLE}),
    ModelState.READY: frozenset({ModelState.UNLOADING, ModelState.UNAVAILABLE}),
    ModelState.UNLOADING: frozenset({ModelState.UNAVAILABLE}),
    ModelState.UNAVAILABLE: frozenset({ModelState.LOADING}),
}
