# SPDX-License-Identifier: Apache-2.0
"""Tests of models, with and without a server: `docs/testing_models.md` shows how."""

from __future__ import annotations

from pytriton.runtime.backend.failure_text import RuleError
from pytriton.testing.clock import FakeClock, FakeEventLoop, FakeTimer
from pytriton.testing.functions import FunctionHarness
from pytriton.testing.harness import ModelHarness
from pytriton.testing.records import LogLine, Request, Response, ResponseError
from pytriton.testing.server import RunningServer, StartServer, forked_servers

__all__ = [
    "FakeClock",
    "FakeEventLoop",
    "FakeTimer",
    "FunctionHarness",
    "LogLine",
    "ModelHarness",
    "Request",
    "Response",
    "ResponseError",
    "RuleError",
    "RunningServer",
    "StartServer",
    "forked_servers",
]
