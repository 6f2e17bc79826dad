# SPDX-License-Identifier: Apache-2.0
"""What tests of Triton's own Python backend ask about the memory that tensors travel in."""

from __future__ import annotations

import sys


class SharedMemory:
    """The memory that tensors travel in; it grows and shrinks with them, so nothing can run out."""

    def free_memory(self) -> int:
        """How many bytes are left in it: always the same, there is no fixed region."""
        return sys.maxsize


shared_memory = SharedMemory()
