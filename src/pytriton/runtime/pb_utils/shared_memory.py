# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the shared memory object that tests of Triton's Python backend use."""

from __future__ import annotations

import sys


class SharedMemory:
    """The shared memory for tensors; it grows and shrinks as needed and has no fixed size."""

    def free_memory(self) -> int:
        """Returns the number of free bytes; a constant, as there is no fixed region."""
        return sys.maxsize


shared_memory: SharedMemory = SharedMemory()
