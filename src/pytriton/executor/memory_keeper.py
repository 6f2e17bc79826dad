# SPDX-License-Identifier: Apache-2.0
"""The memory that a model's instances share, under the name that they know it by."""

from __future__ import annotations

from pytriton.transport.memory_trimmer import (
    MAX_DIRECT_BODY_BYTES,
    MAX_DIRECT_RESERVED_BYTES,
    MemoryTrimmer,
)

__all__ = ["MAX_DIRECT_BODY_BYTES", "MAX_DIRECT_RESERVED_BYTES", "MemoryKeeper"]

MemoryKeeper = MemoryTrimmer
