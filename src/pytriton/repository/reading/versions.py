# SPDX-License-Identifier: Apache-2.0
"""Which of a model's versions are served, by its version policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def select_versions(policy: Any, available: Iterable[int]) -> list[int]:
    """The versions that a policy asks for and that are there, in ascending order.

    Args:
        policy: The ModelVersionPolicy message; where it says nothing, the newest version serves.
        available: The versions that have a directory.
    """
    versions = sorted(available)
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return versions
    if choice == "specific":
        return [version for version in versions if version in policy.specific.versions]
    count = policy.latest.num_versions if choice == "latest" else 1
    return versions[-count:] if count else []


def missing_versions(policy: Any, available: Iterable[int]) -> list[int]:
    """The versions that a policy names and that have no directory, in its order."""
    known = set(available)
    return [version for version in policy.specific.versions if version not in known]
