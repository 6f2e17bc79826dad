# SPDX-License-Identifier: Apache-2.0
"""Checks where the symbolic links of an archive lead, before any of them is created."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.base.errors import InternalError

MAX_HOPS = 40  # Linux follows no more; opening a longer chain, or a cycle, fails
MAX_STEPS = 20_000_000  # for all links of an archive together; thousands are usual


class LinkCheck:
    """Follows links (a mapping from name to target) and checks that none leaves their folder."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self._links = links
        self._steps = 0

    def require_inside(self, name: str) -> None:
        """Refuse a link whose path leaves the folder at any step, also through other links.

        Raises:
            InternalError: The link leaves the folder, or following all links takes too many steps.
        """
        place = name.split("/")[:-1]  # the folder that the path has reached; contains no links
        pending = self._parts(name)
        hops = 1
        while pending:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise InternalError("Following its links takes too many steps")
            part = pending.pop()
            if part == ".." and not place:
                raise InternalError(
                    f"'{name}' leads out of the environment, to '{self._links[name]}'"
                )
            if part == "..":
                place.pop()
                continue
            place.append(part)
            if "/".join(place) in self._links:
                hops += 1
                if hops > MAX_HOPS:
                    return
                pending += self._parts("/".join(place))
                place.pop()

    def _parts(self, name: str) -> list[str]:
        """Returns the parts of a link's target, the last one first."""
        target = self._links[name]
        if target.startswith("/"):
            raise InternalError(f"'{name}' leads out of the environment, to '{target}'")
        return [part for part in reversed(target.split("/")) if part not in ("", ".")]
