# SPDX-License-Identifier: Apache-2.0
"""The error of the load generator."""

from __future__ import annotations


class GeneratorError(Exception):
    """The load cannot be made: its message says what was expected and what came."""
