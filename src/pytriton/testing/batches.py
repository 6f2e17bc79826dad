# SPDX-License-Identifier: Apache-2.0
"""Joins the requests of a test to batches, as a server with requests in its queue does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from pytriton.base.model_spec import ModelSpec
from pytriton.testing.records import Request


@dataclass(frozen=True, eq=False)
class Member:
    """A request, with the arrays of its inputs."""

    request: Request
    arrays: dict[str, NDArray[Any]]

    @property
    def rows(self) -> int:
        """The number of rows in a batch."""
        return next((len(array) for array in self.arrays.values()), 1)

    @property
    def structure(self) -> dict[str, tuple[Any, ...]]:
        """What requests of a batch have in common."""
        return {name: (array.dtype, array.shape[1:]) for name, array in self.arrays.items()}


def batches(members: Sequence[Member], spec: ModelSpec) -> Iterator[list[Member]]:
    """Join requests in their order: up to the maximum batch size, with equal inputs.

    Requests of the same sequence are never together, because one may need the states of the other.
    """
    batch: list[Member] = []
    for member in members:
        if batch and not _fits(batch, member, spec):
            yield batch
            batch = []
        batch.append(member)
    if batch:
        yield batch


def _fits(batch: list[Member], member: Member, spec: ModelSpec) -> bool:
    joins = spec.batcher is not None or spec.sequence is not None
    if not joins or not spec.max_batch_size:
        return False
    if sum(each.rows for each in batch) + member.rows > spec.max_batch_size:
        return False
    if spec.sequence is not None:
        ids = {each.request.correlation_id for each in batch}
        if member.request.correlation_id in ids:
            return False
    return batch[0].structure == member.structure
