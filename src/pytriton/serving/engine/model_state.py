# SPDX-License-Identifier: Apache-2.0
"""The states of a model version and the transitions between them."""

from __future__ import annotations

import enum

UNLOADED = "unloaded"  # the reason of a version that was unloaded on purpose


class ModelState(enum.Enum):
    """The state of a model version; the values are Triton's names."""

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
