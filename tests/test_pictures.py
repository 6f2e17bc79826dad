# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests import pictures

_PNG = b"\x89PNG\r\n\x1a\n and the rest"


@pytest.fixture(autouse=True)
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pictures, "FOLDER", tmp_path / "images")
    monkeypatch.delenv("PYTRITON_PICTURES", raising=False)
    return tmp_path / "images"


def test_picture_is_written_if_asked(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTRITON_PICTURES", "1")
    pictures.keep("a.png", _PNG)

    assert (images / "a.png").read_bytes() == _PNG


def test_picture_of_the_docs_is_left_as_it_is(images: Path, tmp_path: Path) -> None:
    images.mkdir()
    (images / "a.svg").write_text("<svg>old</svg>")
    (tmp_path / "new.svg").write_text("<svg>new</svg>")
    pictures.keep("a.svg", tmp_path / "new.svg")

    assert (images / "a.svg").read_text() == "<svg>old</svg>"


def test_picture_that_the_docs_lack_fails(images: Path) -> None:
    with pytest.raises(AssertionError, match=r"docs/images has no a\.png"):
        pictures.keep("a.png", _PNG)


@pytest.mark.parametrize(
    "name, content, problem",
    [
        ("a.png", b"GIF", "is no PNG"),
        ("a.png", _PNG + bytes(200_000), "more than 150,000"),
        ("a.svg", b"text", "is no SVG"),
        ("a.gif", b"GIF", "expected a .png or a .svg"),
        ("../a.png", _PNG, "expected the name of a file"),
    ],
)
def test_picture_that_is_wrong_fails(name: str, content: bytes, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        pictures.keep(name, content)
