# SPDX-License-Identifier: Apache-2.0
"""What a file is that a library could not read, for the most usual mistakes.

Libraries say that such a file is damaged, which sends people the wrong way.
"""

from __future__ import annotations

from pathlib import Path

_GIT_LFS = b"version https://git-lfs."


def explain_file(path: str | Path) -> str:
    """Returns a sentence to append to the error of a library, or nothing."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(len(_GIT_LFS))
    except OSError:
        return ""
    if start == _GIT_LFS:
        return " (the file is a pointer of Git LFS: fetch the model itself with 'git lfs pull')"
    return ""
