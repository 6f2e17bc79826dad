# SPDX-License-Identifier: Apache-2.0
"""Pictures of the docs, which tests make.

A test makes its picture, checks that it shows what it should, and calls `keep`. With
`PYTRITON_PICTURES=1` in the environment that writes it to `docs/images`; otherwise it only checks
that the docs have a picture of this name, because two runs never draw exactly the same pixels.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "images"
MAX_PNG_BYTES = 150_000

_PNG_START = b"\x89PNG\r\n\x1a\n"


def keep(name: str, picture: str | Path | bytes) -> None:
    """Write a picture for the docs, or check that they have it.

    Args:
        name: the file's name in `docs/images`, with its suffix: `.png` or `.svg`.
        picture: its content, or the path of a file with it.
    """
    content = picture if isinstance(picture, bytes) else Path(picture).read_bytes()
    _check(name, content)
    path = FOLDER / name
    if os.environ.get("PYTRITON_PICTURES") == "1":
        FOLDER.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert path.is_file(), f"docs/images has no {name}: run this test with PYTRITON_PICTURES=1"


def _check(name: str, content: bytes) -> None:
    suffix = Path(name).suffix
    assert Path(name).name == name, f"expected the name of a file, got {name}"
    if suffix == ".png":
        assert content.startswith(_PNG_START), f"{name} is no PNG: {content[:16]!r}"
        size = len(content)
        assert size <= MAX_PNG_BYTES, f"{name} has {size:,} bytes, more than {MAX_PNG_BYTES:,}"
    elif suffix == ".svg":
        assert b"<svg" in content[:1000], f"{name} is no SVG: {content[:80]!r}"
    else:
        raise AssertionError(f"expected a .png or a .svg, got {name}")
