# SPDX-License-Identifier: Apache-2.0
"""Why a run or its load cannot go on, with the exit codes that perf_analyzer has."""

from __future__ import annotations

SUCCESS = 0
UNSTABLE = 2
WRONG_OPTIONS = 3
FAILED = 99


class PerfError(Exception):
    """A run cannot go on; the text is for the person who started it.

    Attributes:
        code: The exit code.
    """

    code = FAILED


class OptionError(PerfError):
    """An option, or a pair of options, that makes no sense."""

    code = WRONG_OPTIONS


class DataError(PerfError):
    """Input data that does not fit the model; the text has the file and the place."""


class GeneratorError(Exception):
    """The load cannot be made: its message says what was expected and what came."""
