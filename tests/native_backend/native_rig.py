# SPDX-License-Identifier: Apache-2.0
"""A compiled backend in a real worker process, with the server's end of its socket in the test."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import textwrap
from typing import Any

from pytriton.runtime.transport.frames import Finalize, Initialize
from tests.native_backend import building
from tests.native_backend.header_text import INCLUDE
from tests.python_backend.worker_rig import Peer, WorkerRig, ZygoteRig

# The values of the setting: functions of a compiled C part where there is one, those that are
# written as machine code at run time, and none but Python's.
COMPILED, WRITTEN, PYTHON = "1", "getters", "0"
HEADER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>
#include "triton/core/tritonbackend.h"
#define EXPORT TRITONSERVER_Error*
#define EXECUTE EXPORT TRITONBACKEND_ModelInstanceExecute( \\
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, const uint32_t count)
static void log_text(TRITONSERVER_LogLevel level, const char* text)
{
  TRITONSERVER_LogMessage(level, "/folder/source.c", 7, text);
}
"""


def compile_backend(folder: pathlib.Path, source: str, *flags: str, name: str = "x") -> str:
    """Compile C after `HEADER`; the path of the library."""
    file = folder / f"{name}.c"
    file.write_text(HEADER + textwrap.dedent(source))
    library = folder / f"libtriton_{name}.so"
    command = ["cc", "-shared", "-fPIC", "-pthread", f"-I{INCLUDE}", file, "-o", library, *flags]
    subprocess.run(command, check=True)
    return str(library)


def known_backend(name: str) -> str:
    """The library of a backend that all tests share."""
    return str(building.backend_directory() / name / f"libtriton_{name}.so")


def config_of(inputs: dict[str, str], outputs: dict[str, str], **fields: Any) -> dict[str, Any]:
    return {
        "name": "m",
        "input": [
            {"name": name, "data_type": f"TYPE_{kind}", "dims": [-1]}
            for name, kind in inputs.items()
        ],
        "output": [
            {"name": name, "data_type": f"TYPE_{kind}", "dims": [-1]}
            for name, kind in outputs.items()
        ],
        **fields,
    }


class NativeRig(WorkerRig):
    """A worker that the zygote forked, and its library."""

    def __init__(
        self,
        zygote: ZygoteRig,
        library: str,
        config: dict[str, Any],
        *,
        environment: dict[str, str] | None = None,
        **fields: Any,
    ):
        self.zygote = zygote
        self.pid, channel, self.fork_socket = zygote.fork("worker", environment)
        Peer.__init__(self, channel)
        self.is_over = False
        self._batches = 0
        arguments = {
            "model_config": json.dumps(config),
            "model_instance_kind": "CPU",
            "model_instance_name": "m_0_0",
            "model_instance_device_id": "0",
            "model_repository": "/models/m",
            "model_version": "1",
            "model_name": "m",
        }
        names = [each["name"] for each in config["output"]]
        is_batching = config.get("max_batch_size", 0) > 0
        self.say(
            Initialize(
                library, "", arguments, names, is_batching=is_batching, is_library=True, **fields
            )
        )

    def finish_quietly(self) -> int:
        """Like `finish`, whatever else the worker still sends."""
        self.say(Finalize())
        self.is_over = True
        with contextlib.suppress(EOFError):
            while True:
                self.hear()
        return self.zygote.wait(self.pid)
