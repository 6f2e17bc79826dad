# SPDX-License-Identifier: Apache-2.0
"""What the process of an instance needs of a cluster."""

from __future__ import annotations

import msgspec


class Placement(msgspec.Struct, frozen=True):
    """The resources that a cluster has to give to one instance.

    Attributes:
        num_cpus: Processors, of each process.
        num_gpus: GPUs, of each process; fractions share one.
        resources: Resources that nodes declare by name, of each process.
        group_size: The number of processes that are one instance together.
        is_spread: Whether the instances of a model are spread over nodes, rather than packed.
        start_timeout_s: How long a start may take, in which it may have to wait for a free node.
    """

    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: dict[str, float] = {}
    group_size: int = 1
    is_spread: bool = True
    start_timeout_s: float = 120.0
