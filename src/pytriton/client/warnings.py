# SPDX-License-Identifier: Apache-2.0
"""Warnings of the clients."""

from __future__ import annotations


class PyTritonWarning(UserWarning):
    """Base class of the clients' warnings."""


class NotSupportedTimeoutWarning(PyTritonWarning):
    """The connection cannot keep the requested timeout."""
