# SPDX-License-Identifier: Apache-2.0
"""Checks headers for gRPC, whose own error does not say which header is invalid."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytriton.client.exceptions import PyTritonClientValueError

_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[ -~]*")  # the printable characters of ASCII


def as_metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns headers with lower-case names, as gRPC requires them.

    Raises:
        PyTritonClientValueError: A name or a value cannot be sent.
    """
    metadata = {name.lower(): value for name, value in headers.items()}
    for name, value in metadata.items():
        if not _NAME.fullmatch(name):
            raise PyTritonClientValueError(
                f"Headers: expected names of letters, digits and any of -_. for gRPC, got {name!r}"
            )
        if not _VALUE.fullmatch(value):
            raise PyTritonClientValueError(  # without the value, which may be a secret
                f"Headers: expected a value of printable ASCII characters for gRPC in {name!r}"
            )
    return metadata
