# SPDX-License-Identifier: Apache-2.0
"""Where the symbolic links of an archive lead, before any of them is made."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.errors import InternalError

MAX_HOPS = 40  # the most that Linux follows; a longer chain, or a circle, leads nowhere
MAX_STEPS = 20_000_000  # of all links together; thousands are usual


class LinkCheck:
    """Follows links, given by name with their targets, within a folder that none may leave."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self._links = links
        self._steps = 0

    def require_inside(self, name: str) -> None:
        """Refuse a link that leads out of the folder, be it over others or on its way only.

        Raises:
            InternalError: It does, or too many lead through too many others.
        """
        place = name.split("/")[:-1]  # where a step starts from; never goes through a link
        pending = self._parts(name)
        hops = 1
        while pending:
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise InternalError("Its links lead through too many others")
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
        """The steps to a link's target, the last one first."""
        target = self._links[name]
        if target.startswith("/"):
            raise InternalError(f"'{name}' leads out of the environment, to '{target}'")
        return [part for part in reversed(target.split("/")) if part not in ("", ".")]
