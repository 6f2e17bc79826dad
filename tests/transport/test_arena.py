# SPDX-License-Identifier: Apache-2.0
"""Views of blocks tell in which block they are, and where."""

from __future__ import annotations

import pytest

from pytriton.runtime.transport.arena import Arena, block_bytes, find_block


@pytest.mark.parametrize("kind", ["writable", "read-only", "empty"])
def test_place_of_a_view_in_its_block_is_found(kind: str) -> None:
    block = Arena().allocate(4096)
    view = block_bytes(block).data[192:1024]
    if kind == "read-only":
        view = view.toreadonly()
    elif kind == "empty":
        view = view[:0]

    assert find_block(view) == (block, 192)


def test_integrity_check_finds_a_block_that_is_free_and_used() -> None:
    arena = Arena()
    first, second = arena.allocate(4096), arena.allocate(4096)
    arena.check_integrity([first, second])
    with pytest.raises(AssertionError, match="free and used are"):
        arena.check_integrity([first])
    first.__del__()

    with pytest.raises(AssertionError, match="overlap"):
        arena.check_integrity([first, second])


def test_other_memory_is_in_no_block() -> None:
    assert find_block(memoryview(bytes(8))) is None
    assert find_block(bytes(8)) is None
