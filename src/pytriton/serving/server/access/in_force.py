# SPDX-License-Identifier: Apache-2.0
"""The policy of a server in its core: read at the start, watched, and passed to front ends."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pytriton.base.errors import UnavailableError
from pytriton.serving.server.access.control import AccessControl
from pytriton.serving.server.access.files import PolicyFiles, PolicyWatch, read_policy
from pytriton.serving.server.access.policy import Policy, PolicyError

if TYPE_CHECKING:
    import asyncio

    from pytriton.serving.server.access.client_addresses import TrustedProxies

_NEEDED = ("jwt", "cryptography")
_INSTALL_HINT = "the tables oidc need PyJWT: pip install 'pytriton[auth]'"


def read_first(config: str) -> PolicyFiles:
    """Read the policy of a server that starts.

    Raises:
        UnavailableError: It cannot be read or is wrong, or a package is missing for it.
    """
    path = Path(config).absolute()
    try:
        files = read_policy(path)
    except PolicyError as error:
        raise UnavailableError(str(error)) from None
    if files.policy.issuers and not all(map(importlib.util.find_spec, _NEEDED)):
        raise UnavailableError(f"{path}: {_INSTALL_HINT}")
    return files


class PolicyInForce:
    """Decides in the core, and tells others about changes.

    Args:
        config: the file of the policy.
        own_key: of processes of the user who runs the server.
        proxies: finds the clients behind proxies; None: there are none that are believed.
    """

    def __init__(self, config: str, own_key: str, proxies: TrustedProxies | None = None) -> None:
        files = read_first(config)
        self.watch = PolicyWatch(Path(config).absolute(), files)
        self.control = AccessControl(files.policy, own_key, proxies=proxies)
        self.watch.add(self.control.use)
        self._elsewhere: Counter[str] = Counter()

    @property
    def policy(self) -> Policy:
        """The policy of now."""
        return self.watch.policy

    @property
    def packed(self) -> bytes:
        """The policy of now, for another process."""
        return msgspec.msgpack.encode(self.policy)

    def add(self, listener: Callable[[Policy], None]) -> None:
        """Call `listener` with every new policy."""
        self.watch.add(listener)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch the files, and fetch the keys of issuers."""
        self.watch.start(loop)
        self.control.start(loop)

    def stop(self) -> None:
        """Stop that."""
        self.watch.stop()
        self.control.stop()

    def count_elsewhere(self, counts: dict[str, int]) -> None:
        """Count what a front end has refused."""
        self._elsewhere.update(counts)

    @property
    def refusals(self) -> Counter[str]:
        """How many requests were refused, by reason."""
        return self.control.refusals + self._elsewhere
