# SPDX-License-Identifier: Apache-2.0
"""Files of recorded answers: a JSON object with one record in a line, sorted by name."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def load(path: Path) -> dict[str, Any]:
    """The records of a file, by name."""
    records: dict[str, Any] = json.loads(path.read_text())
    return records


def text_of(records: Mapping[str, Any]) -> str:
    """What a file of these records has in it."""
    lines = [
        f"{json.dumps(name)}: {json.dumps(records[name], sort_keys=True)}"
        for name in sorted(records)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path: Path, records: Mapping[str, Any]) -> int:
    """Keep records in a file, and say how many. The result is the exit status of a command."""
    path.write_text(text_of(records))
    sys.stdout.write(f"{len(records)} records in {path}\n")
    return 0
