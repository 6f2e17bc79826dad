# SPDX-License-Identifier: Apache-2.0
"""What a load may make reachable, if its sender has rights to some models only.

A model is code, and code can call every model. So such a sender loads models as they are in their
repositories: it may change how they run, and not what runs.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytriton.base.errors import PermissionDeniedError

# Members of a configuration that say how a model runs. All others may name files, programs,
# environments or models, or change what those that are named do.
_HOW_IT_RUNS = (
    "dynamic_batching",
    "instance_group",
    "max_batch_size",
    "response_cache",
    "version_policy",
)
_NEEDS_ALL = "this needs the right to all models"


class Reach:
    """The models that a sender has a right to.

    Args:
        patterns: of their names, as `fnmatch` has them.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(fnmatch.translate, patterns)) or "(?!)")

    def check_files(self, name: str, files: Mapping[str, bytes]) -> None:
        """Raise PermissionDeniedError if a load has files: they are code, or what code reads."""
        if files:
            raise PermissionDeniedError(
                f"the load of '{name}' has files, and code in them can call every model: "
                f"{_NEEDS_ALL}"
            )

    def check_steps(self, name: str, steps: Iterable[str]) -> None:
        """Raise PermissionDeniedError if a step of an ensemble is of another model."""
        for step in steps:
            if self._pattern.fullmatch(step) is None:
                raise PermissionDeniedError(
                    f"the ensemble '{name}' has a step of the model '{step}': its load needs the "
                    "right to that, too"
                )

    def check_config(self, name: str, own: Any, wanted: Any) -> None:
        """Raise PermissionDeniedError if a configuration says that something else runs."""
        if _without_how(own) != _without_how(wanted):
            raise PermissionDeniedError(
                f"the configuration in the load of '{name}' differs from that of its repository "
                f"in more than {', '.join(_HOW_IT_RUNS)}: {_NEEDS_ALL}"
            )


def _without_how(config: Any) -> Any:
    stripped = type(config)()
    stripped.CopyFrom(config)
    for member in _HOW_IT_RUNS:
        stripped.ClearField(member)
    return stripped
