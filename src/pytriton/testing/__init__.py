# SPDX-License-Identifier: Apache-2.0
"""Tests of `model.py` files without a server: `docs/testing_models.md` shows how."""

from __future__ import annotations

from pytriton.runtime.python_backend.failure_text import RuleError
from pytriton.testing.functions import FunctionHarness
from pytriton.testing.harness import ModelHarness
from pytriton.testing.records import LogLine, Request, Response, ResponseError
from pytriton.testing.server import RunningServer, StartServer

__all__ = [
    "FunctionHarness",
    "LogLine",
    "ModelHarness",
    "Request",
    "Response",
    "ResponseError",
    "RuleError",
    "RunningServer",
    "StartServer",
]
