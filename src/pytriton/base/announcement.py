# SPDX-License-Identifier: Apache-2.0
"""The lines that `serve` prints: models, addresses, example requests, and how to stop it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pytriton.base.openai_routes import OpenAI
from pytriton.constants import DEFAULT_HTTP_PORT
from pytriton.model_config.tensor import triton_datatype
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.utils.terminal import Colour, has_colours, paint

QUIET_SETTING = "PYTRITON_QUIET"

_END_PATIENCE_S = 1.0
_MOST_MODELS = 20
_MOST_ELEMENTS = 8  # of a tensor in an example
_MOST_INPUTS = 4  # of an example, beside those that every request has
# The servers that `pytriton infer` tries without an address.
_DEFAULT_SERVERS = tuple(
    f"http://{host}:{DEFAULT_HTTP_PORT}" for host in ("127.0.0.1", "localhost")
)
_NOT_IN_JSON = ("FP16", "BF16")

Painter = Callable[[str, Colour], str]


class Addresses(NamedTuple):
    """The addresses of a server for clients on the same machine; empty if it is not served."""

    http: str
    grpc: str
    metrics: str = ""
    page: str = ""


class Announced(NamedTuple):
    """A model that is announced."""

    config: TritonModelConfig
    examples: Mapping[str, Any] = {}  # values for its inputs that it certainly takes


def say(lines: Iterable[str]) -> None:
    """Write lines to standard error, unless the environment asks for silence or it is closed."""
    if os.environ.get(QUIET_SETTING, "0").lower() not in ("", "0", "false", "no", "off"):
        return
    with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed or does not exist
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


@contextlib.contextmanager
def slow_end_is_told(patience_s: float = _END_PATIENCE_S) -> Iterator[None]:
    """Say what an end waits for, if the block takes longer than a moment."""
    line = f"Waiting for requests that are under way. To end it at once: {ways_to_end()}"
    teller = threading.Timer(patience_s, say, [[line]])
    teller.daemon = True
    teller.start()
    try:
        yield
    finally:
        teller.cancel()


def says_in_colour() -> bool:
    """Whether `say` writes to a terminal that shows colours."""
    return sys.stderr is not None and not sys.stderr.closed and has_colours(sys.stderr)


def announcement(
    addresses: Addresses, models: Sequence[Announced], *, colours: bool = False, end: str = ""
) -> list[str]:
    """Returns the lines to print; `end` says how to end it, by default how to end this process."""
    painted: Painter = paint if colours else _unpainted
    lines = ["", painted(_heading(len(models)), Colour.BOLD), ""]
    lines += _described([model.config for model in models[:_MOST_MODELS]], painted)
    if len(models) > _MOST_MODELS:
        lines.append(f"  and {len(models) - _MOST_MODELS} more models")
    lines += ["", *_places(addresses, models, painted), ""]
    if models:
        lines += [*_examples(addresses, models[0], painted), ""]
    return [*lines, f"To end it: {end or ways_to_end()}", ""]


def _heading(count: int) -> str:
    if not count:
        return "Serving no models yet"
    return "Serving 1 model" if count == 1 else f"Serving {count} models"


def _unpainted(text: str, _colour: Colour) -> str:
    return text


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


def _described(models: Sequence[TritonModelConfig], painted: Painter) -> list[str]:
    width = max((len(model.model_name) for model in models), default=0)
    lines = []
    for model in models:
        inputs, outputs = (
            ", ".join(_tensor(spec, painted) for spec in specs or ()) or "nothing"
            for specs in (model.inputs, model.outputs)
        )
        name = painted(f"{model.model_name:<{width}}", Colour.GREEN)
        stream = "a stream of " if model.decoupled else ""
        lines.append(f"  {name}  {inputs} -> {stream}{outputs}")
    return lines


def _tensor(spec: TensorSpec, painted: Painter) -> str:
    shape = ", ".join(map(str, spec.shape))
    kind = painted(f"{triton_datatype(spec.dtype).name} [{shape}]", Colour.DIM)
    return f"{spec.name} {kind}" + (" (optional)" if spec.optional else "")


def _places(addresses: Addresses, models: Sequence[Announced], painted: Painter) -> list[str]:
    has_openai = any(model.config.openai is not None for model in models)
    places = {
        "HTTP": addresses.http,
        "OpenAI": _openai_url(addresses.http) if has_openai and addresses.http else "",
        "gRPC": addresses.grpc,
        "metrics": addresses.metrics and f"{addresses.metrics}/metrics",
        "page": addresses.page,
    }
    return [
        f"  {name:<7}  {painted(address, Colour.CYAN)}"
        for name, address in places.items()
        if address
    ]


def _examples(addresses: Addresses, model: Announced, painted: Painter) -> list[str]:
    """Returns example requests to a model, for the shell and for Python."""
    config = model.config
    lines = ["To ask it:"]
    if addresses.http and config.openai is not None:
        curl = _openai_line(addresses.http, config.model_name, config.openai)
        client = f'openai.OpenAI(base_url="{_openai_url(addresses.http)}", api_key="none")'
        return [
            *lines,
            f"  {painted(curl, Colour.YELLOW)}",
            f"  {painted(client, Colour.YELLOW)} in Python",
        ]
    if addresses.http:
        lines += [
            f"  {painted(line, Colour.YELLOW)}" for line in _shell_lines(addresses.http, model)
        ]
    client = "DecoupledModelClient" if config.decoupled else "ModelClient"
    address = addresses.grpc if config.decoupled or not addresses.http else addresses.http
    if address:
        line = f'pytriton.client.{client}("{address}", "{config.model_name}")'
        lines.append(f"  {painted(line, Colour.YELLOW)} in Python")
    return lines


def _shell_lines(http: str, model: Announced) -> list[str]:
    """Returns lines for a shell that ask a model, or for its inputs if an example is too large."""
    url = f"{http}/v2/models/{model.config.model_name}"
    values = _example_values(model)
    if values is None or not _answers_in_json(model.config):
        return [f"curl {url}"]
    if all(len(spec.shape) <= 1 for spec in _asked(model)):
        return [_generate_line(url, model.config, values), _infer_command(http, model, values)]
    if model.config.decoupled:
        return [f"curl {url}"]
    body = {"inputs": [_infer_input(spec, model.config, values) for spec in _asked(model)]}
    return [f"curl {url}/infer -d {shlex.quote(json.dumps(body))}"]


def _openai_url(http: str) -> str:
    return f"{http}/v1"


def _openai_line(http: str, name: str, openai: OpenAI) -> str:
    """Returns a line for a shell that asks a model as OpenAI's clients do."""
    if openai.chat:
        route = "chat/completions"
        members: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
    elif openai.completions:
        route, members = "completions", {"prompt": "Hello"}
    else:
        route, members = "embeddings", {"input": "Hello"}
    body = shlex.quote(json.dumps({"model": name, **members}, ensure_ascii=False))
    return f"curl {_openai_url(http)}/{route} -d {body}"


def _generate_line(url: str, config: TritonModelConfig, values: Mapping[str, Any]) -> str:
    members = dict(values)
    if config.sequence is not None:
        members |= {"sequence_id": 1, "sequence_start": True}
    body = shlex.quote(json.dumps(members, ensure_ascii=False))
    if config.decoupled:
        return f"curl -N {url}/generate_stream -d {body}"
    return f"curl {url}/generate -d {body}"


def _infer_command(http: str, model: Announced, values: Mapping[str, Any]) -> str:
    command = ["pytriton", "infer", model.config.model_name]
    if http not in _DEFAULT_SERVERS:
        command += ["--url", http]
    for name, value in values.items():
        # The command reads files and standard input for texts that begin like these.
        is_plain = isinstance(value, str) and not value.startswith(("-", "@", "[", '"'))
        text = value if is_plain else json.dumps(value, ensure_ascii=False)
        command.append(f"{name}={text}")
    if model.config.sequence is not None:
        command += ["--sequence-id", "1", "--start"]
    return shlex.join(command)


def _infer_input(
    spec: TensorSpec, config: TritonModelConfig, values: Mapping[str, Any]
) -> dict[str, Any]:
    shape = [1] * (config.max_batch_size > 0 and config.batching)
    shape += [abs(size) for size in spec.shape]
    datatype = triton_datatype(spec.dtype).name
    value = values[spec.name]
    data = value if isinstance(value, list) else [value]
    return {"name": spec.name, "shape": shape, "datatype": datatype, "data": data}


def _asked(model: Announced) -> list[TensorSpec]:
    """Returns the inputs of the example: the required ones, and some that have defaults."""
    inputs = model.config.inputs or []
    asked = [spec for spec in inputs if not spec.optional]
    asked += [spec for spec in inputs if spec.optional and spec.name in model.examples][
        : max(0, _MOST_INPUTS - len(asked))
    ]
    return asked


def _example_values(model: Announced) -> dict[str, Any] | None:
    """Returns small values for the inputs; None if they would be large or impossible in JSON."""
    values: dict[str, Any] = {}
    for spec in _asked(model):
        datatype = triton_datatype(spec.dtype).name
        count = math.prod(abs(size) for size in spec.shape)  # any size may be 1
        if count > _MOST_ELEMENTS or datatype in _NOT_IN_JSON:
            return None
        value: Any = model.examples.get(spec.name)
        if value is None:
            value = {"BYTES": "text", "BOOL": True}.get(datatype, 1)
        is_single = tuple(spec.shape) in ((), (1,))
        values[spec.name] = value if is_single or isinstance(value, list) else [value] * count
    return values


def _answers_in_json(config: TritonModelConfig) -> bool:
    return all(
        triton_datatype(spec.dtype).name not in _NOT_IN_JSON for spec in config.outputs or ()
    )
