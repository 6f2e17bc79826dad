# SPDX-License-Identifier: Apache-2.0
"""The maximum batch size of models that can batch and whose configuration has none."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.base.errors import InvalidArgumentError

SETTING = "default-max-batch-size"
_DEFAULT = 4


def default_max_batch_size(backend_config: Mapping[str, str]) -> int:
    """Returns what the server's settings for a backend say; a negative number counts as 0.

    Raises:
        InvalidArgumentError: The setting is not a number.
    """
    value = backend_config.get(SETTING, str(_DEFAULT))
    try:
        return max(int(value), 0)
    except ValueError as error:
        raise InvalidArgumentError(f"expected a number as {SETTING}, got '{value}'") from error
