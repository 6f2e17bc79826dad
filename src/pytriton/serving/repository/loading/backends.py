# SPDX-License-Identifier: Apache-2.0
"""Finds the loader of a model: that of ensembles, or the one that starts workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton.serving.engine.config_rules import ENSEMBLE
from pytriton.serving.repository.loading.plans import VersionLoader

WORKERS = "python"  # the loader of all models that run in worker processes, whatever their backend

Loaders = Mapping[str, VersionLoader]


def find_loader(loaders: Loaders, config: Any) -> VersionLoader:
    """Returns the loader of a model. Which file a worker runs is in the plan that it gets.

    Args:
        loaders: The loaders of this server: `WORKERS`, and that of ensembles by their platform.
        config: The ModelConfig message, normalised.
    """
    return loaders[ENSEMBLE if config.platform == ENSEMBLE else WORKERS]
