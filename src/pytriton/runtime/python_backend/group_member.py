# SPDX-License-Identifier: Apache-2.0
"""A worker as one process of an instance that is made of several.

Rank 0 gets the batches. The others load the model, too, and then do what the model does on them.
The end of any process is the end of all. So each says when its model is finalized, and waits until
the server ends the whole group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.runtime.transport.frames import Finalize, Finalized

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytriton.runtime.python_backend.connection import Connection


class GroupMember:
    """The place of this process in its group; a group of one is no group."""

    def __init__(self, arguments: Mapping[str, str], connection: Connection) -> None:
        self.rank = int(arguments.get("model_group_rank", "0"))
        self.size = int(arguments.get("model_group_size", "1"))
        self._connection = connection

    @property
    def is_follower(self) -> bool:
        """Whether another process gets the batches."""
        return self.rank > 0

    def wait_for_end(self) -> None:
        """Wait until the model is to be finalized; raises EOFError if the server has ended."""
        while not isinstance(self._connection.next_job().frame, Finalize):
            pass

    def leave(self) -> None:
        """Say that the model is finalized, and wait for the others; returns if there are none.

        Raises:
            EOFError: The server has ended the group.
        """
        if self.size == 1:
            return
        self._connection.outbox.send(lambda _: Finalized())
        while True:
            self._connection.next_job()

    def __repr__(self) -> str:
        return f"<GroupMember {self.rank} of {self.size}>"
