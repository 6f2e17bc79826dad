# SPDX-License-Identifier: Apache-2.0
"""Which of all collected tests lie in a folder."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator

import pytest


def items_in(folder: pathlib.Path, items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """As texts: to compare paths one by one takes seconds for many thousand tests."""
    beginning = f"{folder}{os.sep}"
    return (item for item in items if str(item.path).startswith(beginning))
