# SPDX-License-Identifier: Apache-2.0
"""Warnings of the clients."""

from __future__ import annotations


class PyTritonWarning(UserWarning):
    """Base of the clients' warnings."""


class NotSupportedTimeoutWarning(PyTritonWarning):
    """The connection in use cannot keep the time limit that was asked for."""
