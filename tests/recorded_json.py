# SPDX-License-Identifier: Apache-2.0
"""Files of recorded answers: a JSON object with one record in a line, sorted by name.

Names that differ in their last part alone share a line if their records are equal: what all clients
of a case get alike is written once, as `"case: one client | another client": record`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PART = ": "
OR = " | "


def load(path: Path) -> dict[str, Any]:
    """The records of a file, by name."""
    records = {}
    for names, record in json.loads(path.read_text()).items():
        common, part, ends = names.rpartition(PART)
        records.update({common + part + end: record for end in ends.split(OR)})
    return records


def text_of(records: Mapping[str, Any]) -> str:
    """What a file of these records has in it."""
    ends_of: dict[tuple[str, str], list[str]] = {}
    for name in sorted(records):
        if OR in name:
            raise ValueError(f"{name!r} would be read as several names")
        common, part, end = name.rpartition(PART)
        alike = (common + part or name, json.dumps(records[name], sort_keys=True))
        ends_of.setdefault(alike, []).append(end if part else "")
    lines = [
        f"{json.dumps(common + OR.join(ends))}: {record}"
        for (common, record), ends in ends_of.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(path: Path, records: Mapping[str, Any]) -> int:
    """Keep records in a file, and say how many. The result is the exit status of a command."""
    path.write_text(text_of(records))
    sys.stdout.write(f"{len(records)} records in {path}\n")
    return 0
