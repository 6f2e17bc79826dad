# SPDX-License-Identifier: Apache-2.0
"""Model repositories from texts: code that does one thing, and the configuration around it."""

from __future__ import annotations

import itertools
import os
import textwrap
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, str | bytes]  # by the path in the model's directory

# Code that waits as long as this file is beside it, and the file, for models that have it at first.
HOLD = "while os.path.exists(os.path.join(os.path.dirname(__file__), 'hold')): time.sleep(0.01)"
HELD = {"1/hold": ""}
# Code that calls the model `leaf`, within the trace of its own request if the input begins with 1.
TRACED_CALLER = """
call = pb_utils.InferenceRequest(
    model_name="leaf",
    inputs=request.inputs(),
    requested_output_names=["Y"],
    request_id="call",
    trace=request.trace() if x[0, 0] == 1 else None,
)
y = call.exec().output_tensors()[0].as_numpy()
"""

_ticks = itertools.count(1)


def code(
    execute: str = "y = x",
    *,
    initialize: str = "pass",
    finalize: str = "pass",
    methods: str = "",
    top: str = "",
) -> str:
    """A model.py; `execute` runs for each request, with x the input X, and sets y, the output Y."""
    return "\n".join(
        [
            "import os, resource, signal, sys, threading, time",
            "import numpy as np",
            "import triton_python_backend_utils as pb_utils",
            textwrap.dedent(top),
            "class TritonPythonModel:",
            _method("initialize(self, args)", initialize),
            _method("finalize(self)", finalize),
            textwrap.indent(textwrap.dedent(methods), "    "),
            "    def execute(self, requests):",
            "        responses = []",
            "        for request in requests:",
            '            tensor = pb_utils.get_input_tensor_by_name(request, "X")',
            "            x = tensor.as_numpy() if tensor is not None else None",
            textwrap.indent(textwrap.dedent(execute), " " * 12),
            '            outputs = [pb_utils.Tensor("Y", np.asarray(y, np.float32))]',
            "            responses.append(pb_utils.InferenceResponse(outputs))",
            "        return responses",
            "",
        ]
    )


def decoupled_code(execute: str) -> str:
    """A decoupled model.py; `execute` has x and `send(y)`, the final flag follows."""
    return "\n".join(
        [
            "import os, signal, threading, time",
            "import numpy as np",
            "import triton_python_backend_utils as pb_utils",
            "class TritonPythonModel:",
            "    def execute(self, requests):",
            "        for request in requests:",
            "            sender = request.get_response_sender()",
            '            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()',
            "            def send(y):",
            '                output = pb_utils.Tensor("Y", np.asarray(y, np.float32))',
            "                sender.send(pb_utils.InferenceResponse([output]))",
            textwrap.indent(textwrap.dedent(execute), " " * 12),
            "            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
            "",
        ]
    )


def config(extra: str = "", *, max_batch_size: int = 8, kind: str = "KIND_CPU") -> str:
    """A config.pbtxt with X in and Y out, both rows of floats."""
    return (
        f'backend: "python"\nmax_batch_size: {max_batch_size}\n'
        'input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }]\n'
        'output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]\n'
        + ("" if "instance_group" in extra else f"instance_group [{{ kind: {kind} }}]\n")
        + extra
        + "\n"
    )


DECOUPLED = "model_transaction_policy { decoupled: true }"


def model(source: str | None = None, settings: str | None = None, **files: str | bytes) -> Files:
    """A model's files: version 1, a configuration, and others whose paths are the keywords."""
    return {
        "1/model.py": code() if source is None else source,
        "config.pbtxt": config() if settings is None else settings,
        **files,
    }


def write_model(directory: Path, files: Files) -> None:
    """Write a model, or overwrite parts of it; what is written counts as changed."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole at once, as who replaces files of a running server should do it.
        fresh = path.with_name(f".{path.name}.{next(_ticks)}")
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        fresh.replace(path)
        # Clocks of file systems may be coarse: each file written is newer than the one before.
        now_ns = path.stat().st_mtime_ns + next(_ticks)
        os.utime(path, ns=(now_ns, now_ns))


def _method(signature: str, body: str) -> str:
    return f"    def {signature}:\n" + textwrap.indent(textwrap.dedent(body), " " * 8)


def ensemble(*models: str, extra: str = "", data_type: str = "TYPE_FP32") -> Files:
    """An ensemble's files: X goes through these models to Y; `m:2` is version 2 of model m."""
    tensors = ["X", *(f"t{number}" for number in range(1, len(models))), "Y"]
    steps = []
    for index, step in enumerate(models):
        name, _, version = step.partition(":")
        steps.append(
            f'step {{ model_name: "{name}" model_version: {version or -1} '
            f'input_map {{ key: "X" value: "{tensors[index]}" }} '
            f'output_map {{ key: "Y" value: "{tensors[index + 1]}" }} }}\n'
        )
    settings = (
        'platform: "ensemble"\nmax_batch_size: 8\n'
        f'input [{{ name: "X" data_type: {data_type} dims: [ -1 ] }}]\n'
        f'output [{{ name: "Y" data_type: {data_type} dims: [ -1 ] }}]\n'
        f"ensemble_scheduling {{ {''.join(steps)} }}\n{extra}\n"
    )
    return {"config.pbtxt": settings, "1/.keep": ""}
