# SPDX-License-Identifier: Apache-2.0
"""The interface to a cluster that runs instances, as a server sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytriton.runtime.executor.remote.cluster_status import ClusterStatus
    from pytriton.runtime.executor.worker import Launcher


class ClusterExecutor(Protocol):
    """Starts the processes of instances on a cluster. A server makes it when it is first needed."""

    async def launcher(self) -> Launcher:
        """Returns what starts processes there; the first call connects to the cluster.

        Raises:
            ServerError: The cluster cannot be reached, or a package is missing.
        """

    def status(self) -> ClusterStatus:
        """Returns what is known of the cluster, without asking it."""

    async def close(self) -> None:
        """End all processes that were started there, and the connection."""
