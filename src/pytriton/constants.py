# SPDX-License-Identifier: Apache-2.0
"""Ports, time limits and names that several parts of the package share."""

from __future__ import annotations

import os
import pathlib

DEFAULT_HTTP_PORT = 8000
DEFAULT_GRPC_PORT = 8001
DEFAULT_METRICS_PORT = 8002
TRITON_LOCAL_IP = "127.0.0.1"

DEFAULT_TRITON_STARTUP_TIMEOUT_S = 120
CREATE_TRITON_CLIENT_TIMEOUT_S = 10

TRITON_CONTEXT_FIELD_NAME = "triton_context"
TRITON_PYTHON_BACKEND_INTERPRETER_DIRNAME = "python_backend_interpreter"


def _pytriton_home() -> pathlib.Path:
    cache_home = os.environ.get("XDG_CACHE_HOME") or "$HOME/.cache"
    home = os.environ.get("PYTRITON_HOME") or f"{cache_home}/pytriton"
    return pathlib.Path(os.path.expandvars(home)).expanduser()


PYTRITON_HOME = _pytriton_home()
