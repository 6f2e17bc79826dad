# SPDX-License-Identifier: Apache-2.0
"""The names of actors and placement groups, and which of them nobody knows any more."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_RANK = re.compile(r"(.*)/([0-9]+)", re.DOTALL)


def actor_name(start: str, rank: int) -> str:
    """Returns the name of the actor with this rank; the first has the name of the start."""
    return f"{start}/{rank}" if rank else start


def read_actor_name(name: str) -> tuple[str, int]:
    """Returns the start and the rank of an actor."""
    match = _RANK.fullmatch(name)
    return (match[1], int(match[2])) if match else (name, 0)


def group_name(namespace: str, start: str) -> str:
    """Returns the name of a placement group, which has the namespace: Ray lists all of them."""
    return f"{namespace}/{start}"


def known_actors(names: Iterable[str], known: Collection[str]) -> dict[str, list[str]]:
    """Returns the actors of each known start, by rank; the list is empty if there are none."""
    found: dict[str, list[str]] = {start: [] for start in known}
    for name in sorted(names, key=read_actor_name):
        start, _ = read_actor_name(name)
        if start in found:
            found[start].append(name)
    return found


def unknown_actors(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Returns the actors of starts that nobody knows, which have to end."""
    return [name for name in names if read_actor_name(name)[0] not in known]


def unknown_groups(names: Iterable[str], namespace: str, known: Collection[str]) -> list[str]:
    """Returns the placement groups that belong to no known start."""
    wanted = {group_name(namespace, start) for start in known}
    return [name for name in names if name not in wanted]
