# SPDX-License-Identifier: Apache-2.0
"""The lines that `serve` prints: models, addresses, example requests, and how to stop it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pytriton.model_config.tensor import triton_datatype
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

QUIET_SETTING = "PYTRITON_QUIET"

_MOST_MODELS = 20
_MOST_ELEMENTS = 8  # of a tensor in an example
_NOT_IN_JSON = ("FP16", "BF16")


class Addresses(NamedTuple):
    """The addresses of a server for clients on the same machine; empty if it is not served."""

    http: str
    grpc: str
    metrics: str = ""


def say(lines: Iterable[str]) -> None:
    """Write lines to standard error, unless the environment asks for silence or it is closed."""
    if os.environ.get(QUIET_SETTING, "0").lower() not in ("", "0", "false", "no", "off"):
        return
    with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed or does not exist
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def announcement(addresses: Addresses, models: Sequence[TritonModelConfig]) -> list[str]:
    """Returns the lines to print."""
    where = " and ".join(address for address in (addresses.http, addresses.grpc) if address)
    metrics = f", metrics at {addresses.metrics}/metrics" if addresses.metrics else ""
    lines = [f"Serving at {where}{metrics}", *map(_described, models[:_MOST_MODELS])]
    if not models:
        lines.append("  no models yet")
    elif len(models) > _MOST_MODELS:
        lines.append(f"  and {len(models) - _MOST_MODELS} more models")
    if models:
        lines += _examples(addresses, models[0])
    return [*lines, f"To end it: {ways_to_end()}"]


def ways_to_end() -> str:
    """Returns how the user can stop this process.

    A shell starts background jobs with SIGINT ignored, and the first process of a container does
    not get signals that it has no handler for.
    """
    ways = []
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        ways.append("Ctrl-C")
    if os.getpid() != 1 or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        ways.append(f"`kill {os.getpid()}`")
    return " or ".join(ways) or f"`kill -KILL {os.getpid()}` from outside of the container"


def _described(model: TritonModelConfig) -> str:
    inputs, outputs = (
        ", ".join(map(_tensor, specs or ())) or "nothing" for specs in (model.inputs, model.outputs)
    )
    return f"  {model.model_name}: {inputs} -> {outputs}"


def _tensor(spec: TensorSpec) -> str:
    shape = ", ".join(map(str, spec.shape))
    return f"{spec.name} {triton_datatype(spec.dtype).name} [{shape}]"


def _examples(addresses: Addresses, model: TritonModelConfig) -> list[str]:
    """Returns example requests to a model, for the shell and for Python."""
    lines = []
    body = None if model.decoupled else _request(model)
    if addresses.http:
        url = f"{addresses.http}/v2/models/{model.model_name}"
        lines.append(f"To ask it: curl {url}" + (f"/infer -d '{body}'" if body else ""))
    client = "DecoupledModelClient" if model.decoupled else "ModelClient"
    address = addresses.grpc if model.decoupled or not addresses.http else addresses.http
    lines.append(f'In Python: pytriton.client.{client}("{address}", "{model.model_name}")')
    return lines


def _request(model: TritonModelConfig) -> str | None:
    """Returns a request with small inputs as JSON; None if they would be large or impossible."""
    inputs = []
    for spec in model.inputs or ():
        datatype = triton_datatype(spec.dtype).name
        shape = [1] * (model.max_batch_size > 0 and model.batching)
        shape += [abs(size) for size in spec.shape]  # any size may be 1
        count = math.prod(shape)
        if count > _MOST_ELEMENTS or datatype in _NOT_IN_JSON:
            return None
        value: Any = {"BYTES": "text", "BOOL": True}.get(datatype, 1)
        inputs.append(
            {"name": spec.name, "shape": shape, "datatype": datatype, "data": [value] * count}
        )
    return json.dumps({"inputs": inputs})
