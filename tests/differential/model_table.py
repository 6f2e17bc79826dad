# SPDX-License-Identifier: Apache-2.0
"""The models that both servers offer.

From this one table a Python-backend repository is written and the same functions are bound.
"""

from __future__ import annotations

import dataclasses
import inspect
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.differential import model_functions

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    Arrays = dict[str, np.ndarray[Any, Any]]
    ModelFunction = Callable[[Arrays, dict[str, Any]], Arrays]

HERE = Path(__file__).parent
NUMERIC = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output; `datatype` as the protocol spells it."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class Model:
    """A model as both servers are told of it."""

    name: str
    function: ModelFunction
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    max_batch_size: int = 0
    decoupled: bool = False


def _identity(name: str, datatype: str, dims: tuple[int, ...], max_batch_size: int = 0) -> Model:
    ports = (Port("IN", datatype, dims),), (Port("OUT", datatype, dims),)
    return Model(name, model_functions.identity, *ports, max_batch_size)


MODELS: tuple[Model, ...] = (
    Model(
        "add_sub",
        model_functions.add_sub,
        (Port("a", "FP32", (1,)), Port("b", "FP32", (1,))),
        (Port("add", "FP32", (1,)), Port("sub", "FP32", (1,))),
        max_batch_size=8,
    ),
    *(_identity(f"id_{datatype.lower()}", datatype, (-1,)) for datatype in NUMERIC),
    _identity("id_bytes", "BYTES", (-1,)),
    _identity("batched_bytes", "BYTES", (-1,), max_batch_size=4),
    _identity("word", "BYTES", (1,), max_batch_size=4),
    _identity("fixed", "INT32", (2, 3)),
    _identity("matrix", "FP32", (-1, -1), max_batch_size=4),
    _identity("vector", "FP32", (2, -1), max_batch_size=4),
    Model(
        "optional",
        model_functions.sum_optional,
        (Port("required", "FP32", (1,)), Port("extra", "FP32", (1,), optional=True)),
        (Port("total", "FP32", (1,)),),
        max_batch_size=4,
    ),
    Model(
        "parameters",
        model_functions.echo_parameters,
        (Port("IN", "INT32", (1,)),),
        (Port("seen", "BYTES", (1,)),),
        max_batch_size=4,
    ),
    Model(
        "failing", model_functions.fail, (Port("IN", "FP32", (1,)),), (Port("OUT", "FP32", (1,)),)
    ),
    Model(
        "special", model_functions.special_values, (Port("IN", "FP32", (1,)),),
        (Port("OUT", "FP32", (-1,)),),
    ),
    Model(
        "raw_bytes", model_functions.raw_bytes, (Port("IN", "FP32", (1,)),),
        (Port("OUT", "BYTES", (-1,)),),
    ),
    Model(
        "decoupled", model_functions.identity, (Port("IN", "INT32", (-1,)),),
        (Port("OUT", "INT32", (-1,)),), decoupled=True,
    ),
)  # fmt: skip


def _port_text(port: Port) -> str:
    config_type = "TYPE_STRING" if port.datatype == "BYTES" else f"TYPE_{port.datatype}"
    dims = ", ".join(map(str, port.dims))
    optional = " optional: true" if port.optional else ""
    return f'  {{ name: "{port.name}" data_type: {config_type} dims: [ {dims} ]{optional} }}'


def config_text(model: Model) -> str:
    """The model's config.pbtxt."""
    lines = [f'name: "{model.name}"', 'backend: "python"']
    lines.append(f"max_batch_size: {model.max_batch_size}")
    lines += ["input [", ",\n".join(map(_port_text, model.inputs)), "]"]
    lines += ["output [", ",\n".join(map(_port_text, model.outputs)), "]"]
    lines.append("instance_group [ { kind: KIND_CPU count: 1 } ]")
    if model.max_batch_size:
        lines.append("dynamic_batching { }")
    if model.decoupled:
        lines.append("model_transaction_policy { decoupled: true }")
    lines.append(
        f'parameters {{ key: "function" value {{ string_value: "{model.function.__name__}" }} }}'
    )
    return "\n".join(lines) + "\n"


def write_repository(folder: Path) -> None:
    """Write every model as a Python-backend model under `folder`."""
    for model in MODELS:
        version = folder / model.name / "1"
        version.mkdir(parents=True)
        (folder / model.name / "config.pbtxt").write_text(config_text(model))
        shutil.copy(HERE / "python_backend_model.py", version / "model.py")
        shutil.copy(inspect.getfile(model_functions), version / "model_functions.py")
