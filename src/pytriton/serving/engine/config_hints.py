# SPDX-License-Identifier: Apache-2.0
"""What the writer of a `config.pbtxt` may have meant by a name that protobuf does not know."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pytriton.base.protos import model_config_pb2

_UNKNOWN_FIELD = re.compile(r'Message type "([\w.]+)" has no field named "(\w+)"')
_UNKNOWN_VALUE = re.compile(r'Enum type "([\w.]+)" has no value named (\w+)')
_CUTOFF = 0.75  # names that are less alike are no misspellings


def hint(problem: str) -> str:
    """Returns the sentence that helps with a problem that protobuf names; "" if there is none."""
    pool: Any = model_config_pb2.DESCRIPTOR.pool
    if found := _UNKNOWN_FIELD.search(problem):
        fields = list(pool.FindMessageTypeByName(found[1]).fields_by_name)
        near = difflib.get_close_matches(found[2], fields, n=1, cutoff=_CUTOFF)
        return f' Did you mean "{near[0]}"?' if near else ""
    if found := _UNKNOWN_VALUE.search(problem):
        values = pool.FindEnumTypeByName(found[1]).values_by_name
        names = [name for name in values if not name.endswith("_INVALID")]
        return f" Expected one of {', '.join(names)}."
    return ""
