# SPDX-License-Identifier: Apache-2.0
"""The services that clients connect to, each on a port of its own."""

from __future__ import annotations

import enum


class ClientService(enum.Enum):
    """A service; the value is the letter with which its clients are passed to a front end."""

    HTTP = b"h"
    GRPC = b"g"
    SAGEMAKER = b"s"
    VERTEX_AI = b"v"
