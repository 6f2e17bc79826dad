# SPDX-License-Identifier: Apache-2.0
"""Reads files of traces in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.waiting import eventually


def objects(folder: Path) -> list[dict[str, Any]]:
    """All objects in the files of a folder, in the order of the files' names."""
    files = sorted(folder.glob("trace.json*"), key=lambda path: (len(path.name), path.name))
    return [each for path in files if path.suffix != ".part" for each in _read(path)]


def _read(path: Path) -> list[dict[str, Any]]:
    """The objects of a file; none while the server adds some."""
    try:
        found: list[dict[str, Any]] = json.loads(path.read_bytes())
    except json.JSONDecodeError:
        return []
    return found


class Traced:
    """A request in files: what is known of it, its times by name, and its tensors."""

    def __init__(self, of: list[dict[str, Any]]) -> None:
        self.id: int = of[0]["id"]
        self.model: dict[str, Any] = next((each for each in of if "model_name" in each), {})
        stamps = [stamp for each in of for stamp in each.get("timestamps", ())]
        self.names: list[str] = [stamp["name"] for stamp in stamps]
        self.ns: dict[str, int] = {stamp["name"]: stamp["ns"] for stamp in stamps}
        self.tensors = [(each["activity"], each["tensor"]) for each in of if "tensor" in each]


def requests(folder: Path) -> list[Traced]:
    """The requests in the files of a folder, in the order in which they came."""
    by_id: dict[int, list[dict[str, Any]]] = {}
    for each in objects(folder):
        by_id.setdefault(each["id"], []).append(each)
    return [Traced(by_id[number]) for number in sorted(by_id)]


def await_requests(folder: Path, count: int) -> list[Traced]:
    """The requests in the files of a folder, when there are as many as expected."""
    assert eventually(lambda: len(requests(folder)) >= count), objects(folder)
    found = requests(folder)
    assert len(found) == count
    return found
