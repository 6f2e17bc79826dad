# SPDX-License-Identifier: Apache-2.0
"""The settings of a server about its Ray cluster, which its launcher process gets, too."""

from __future__ import annotations

import msgspec

DEFAULT_START_TIMEOUT_S = 120.0


class RayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the cluster is found, and how its actors find the server.

    Attributes:
        address: The cluster's address, as Ray takes it; "": that of the variable RAY_ADDRESS, or
            the cluster of this machine.
        instance_address: The address of the server as actors reach it; "": that of this machine, as
            Ray knows it.
        instance_port: The port of the server that actors connect to; 0: a free one.
        working_dir: A folder with modules, which Ray copies to its nodes; "": none.
        start_timeout_s: How long the start of an instance may take, unless its model says it.
    """

    address: str = ""
    instance_address: str = ""
    instance_port: int = 0
    working_dir: str = ""
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
