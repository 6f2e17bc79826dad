# SPDX-License-Identifier: Apache-2.0
"""Fewer log lines of third-party libraries."""

from __future__ import annotations

import logging

_TALKATIVE_LOGGERS = ("asyncio", "geventhttpclient", "grpc", "urllib3")


def silence_3rd_party_loggers() -> None:
    """Let third-party libraries log warnings and errors only."""
    for name in _TALKATIVE_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
