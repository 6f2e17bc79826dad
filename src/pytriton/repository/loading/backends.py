# SPDX-License-Identifier: Apache-2.0
"""Finds the loader of a model by the name of its backend, or that of ensembles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton.engine.config_rules import ENSEMBLE
from pytriton.errors import InvalidArgumentError
from pytriton.repository.loading.plans import VersionLoader

Loaders = Mapping[str, VersionLoader]


def find_loader(loaders: Loaders, config: Any) -> VersionLoader:
    """Returns the loader of the backend that a configuration names.

    Args:
        loaders: The loaders of this server, by backend name; that of ensembles by their platform.
        config: The ModelConfig message, normalised.

    Raises:
        InvalidArgumentError: This server has no such backend.
    """
    if config.platform == ENSEMBLE:
        return loaders[ENSEMBLE]
    names = ", ".join(f"'{name}'" for name in loaders if name != ENSEMBLE)
    loader = loaders.get(config.backend)
    if loader is None or config.backend == ENSEMBLE:
        raise InvalidArgumentError(
            f"unable to find backend library for backend '{config.backend or config.platform}', "
            f"this server runs models of backend {names}"
        )
    return loader
