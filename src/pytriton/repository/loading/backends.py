# SPDX-License-Identifier: Apache-2.0
"""Which loader runs a model: a table by the name of its backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytriton.engine.config_rules import ENSEMBLE
from pytriton.errors import InvalidArgumentError, UnsupportedError
from pytriton.repository.loading.plans import VersionLoader

Loaders = Mapping[str, VersionLoader]


def find_loader(loaders: Loaders, config: Any) -> VersionLoader:
    """The loader of the backend that a configuration names.

    Args:
        loaders: All that this server has, by the names of their backends.
        config: The ModelConfig message, normalised.

    Raises:
        UnsupportedError: It is an ensemble.
        InvalidArgumentError: There is no such backend here.
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
