# SPDX-License-Identifier: Apache-2.0
"""Finds the loader of a model by the name of its backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton.engine.config_rules import ENSEMBLE
from pytriton.errors import InvalidArgumentError, UnsupportedError
from pytriton.repository.loading.plans import VersionLoader

Loaders = Mapping[str, VersionLoader]


def find_loader(loaders: Loaders, config: Any) -> VersionLoader:
    """Returns the loader of the backend that a configuration names.

    Args:
        loaders: The loaders of this server, by backend name.
        config: The ModelConfig message, normalised.

    Raises:
        UnsupportedError: The model is an ensemble.
        InvalidArgumentError: This server has no such backend.
    """
    names = ", ".join(f"'{name}'" for name in loaders)
    if config.platform == ENSEMBLE:
        raise UnsupportedError(
            f"model '{config.name}' is an ensemble, this server runs models of backend {names}"
        )
    loader = loaders.get(config.backend)
    if loader is None:
        raise InvalidArgumentError(
            f"unable to find backend library for backend '{config.backend or config.platform}', "
            f"this server runs models of backend {names}"
        )
    return loader
