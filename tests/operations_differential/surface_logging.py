# SPDX-License-Identifier: Apache-2.0
"""Log settings and what is logged."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from tests.operations_differential.asking import (
    both,
    int32_request,
    length_of_log,
    log_lines,
    over_grpc,
    over_http,
)
from tests.operations_differential.models import write_common, write_model
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface

PATH = "/v2/logging"
DEFAULTS = {
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
_TALKING = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Logs a line of each level."""

    def execute(self, requests):
        logger = pb_utils.Logger
        for request in requests:
            name = f"said {request.request_id()}"
            logger.log_verbose(f"{name} verbose")
            logger.log(f"{name} plain")
            logger.log(f"{name} as a warning", logger.WARNING)
            logger.log_info(f"{name} info")
            logger.log_warn(f"{name} warning")
            logger.log_error(f"{name} error")
            logger.log(f"{name} the end", logger.ERROR)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each.inputs()[0].as_numpy())])
            for each in requests
        ]
'''
_CONFIG = """
    backend: "python"
    input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
"""


def write_models(repository: Path) -> None:
    write_common(repository)
    write_model(repository, "talking", _TALKING, _CONFIG)


def settings(server: Server) -> Observation:
    return both(server, PATH, None, "LogSettings")


def posted(body: Any, server: Server) -> Observation:
    """The answer to a change over HTTP, what is set after it, and then the defaults again."""
    seen = {"answer": over_http(server, PATH, body), "after": over_http(server, PATH)["body"]}
    over_http(server, PATH, DEFAULTS)
    return seen


def called(values: dict[str, Any], server: Server) -> Observation:
    """The same over gRPC."""
    fields = {"settings": {name: _value(value) for name, value in values.items()}}
    seen = {"answer": over_grpc(server, "LogSettings", fields), "after": over_http(server, PATH)}
    over_http(server, PATH, DEFAULTS)
    return seen


def _value(value: Any) -> dict[str, Any]:
    kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
    return {} if value is None else {kinds[type(value)]: value}


def heard(changes: dict[str, Any], server: Server) -> Observation:
    """What a model's lines look like with settings; the last one is always wanted."""
    over_http(server, PATH, changes)
    position = length_of_log(server)
    path, document = int32_request("talking")
    over_http(server, path, {"id": "one", **document})
    over_http(server, PATH, DEFAULTS)
    over_http(server, path, {"id": "last", **document})
    lines: list[str] = log_lines(server, position, "said one", "said last the end")
    return sorted(line[: line.index("said")][:1] + line[line.index("said") :] for line in lines)


def asked(method: str, path: str, server: Server) -> Observation:
    return over_http(server, path, "{}" if method == "POST" else None, method=method)


def _http(name: str, body: Any) -> Case:
    return Case(f"HTTP: {name}", functools.partial(posted, body))


def _grpc(name: str, **values: Any) -> Case:
    return Case(f"gRPC: {name}", functools.partial(called, values))


def _heard(name: str, **changes: Any) -> Case:
    return Case(f"lines of a model: {name}", functools.partial(heard, changes))


FILE_SETUP = Setup(options=("--log-file={folder}/server.log", "--log-info=false"))
OTHER_SETUP = Setup(
    options=("--log-verbose=2", "--log-warning=false", "--log-error=0", "--log-format=ISO8601")
)

SURFACE = Surface(
    "logging",
    setup=Setup(models=write_models),
    cases=(
        Case("settings at the start", settings),
        Case("settings of a file", settings, FILE_SETUP),
        Case("settings of the command line", settings, OTHER_SETUP),
        _http("no changes", {}),
        _http("every setting", {**DEFAULTS, "log_info": False, "log_verbose_level": 2}),
        _http("format", {"log_format": "ISO8601"}),
        _http("nulls", dict.fromkeys((*DEFAULTS, "log_file"))),
        _http("unknown member", {"log_colour": "green"}),
        _http("array", []),
        _http("null as the document", "null"),
        _http("text as the document", '"log_info"'),
        _http("empty body", ""),
        _http("incomplete document", "{"),
        _http("text after the document", "{}x"),
        _http("repeated member", '{"log_info":true,"log_info":false}'),
        _http("file", {"log_file": "/tmp/x.log"}),
        _http("empty name of a file", {"log_file": ""}),
        _http("file of another type", {"log_file": 1}),
        _http("file and another setting", {"log_info": False, "log_file": "x"}),
        _http("number for a switch", {"log_info": 1}),
        _http("text for a switch", {"log_warning": "true"}),
        _http("array for a switch", {"log_error": [True]}),
        _http("negative level", {"log_verbose_level": -1}),
        _http("fraction as a level", {"log_verbose_level": 1.5}),
        _http("text as a level", {"log_verbose_level": "1"}),
        _http("boolean as a level", {"log_verbose_level": True}),
        _http("level of 33 bits", {"log_verbose_level": 2**32}),
        _http("level of 65 bits", {"log_verbose_level": 2**64}),
        _http("unknown format", {"log_format": "iso8601"}),
        _http("empty format", {"log_format": ""}),
        _http("number as a format", {"log_format": 8601}),
        _http("JSON lines", {"log_format": "json"}),
        _http("change before an unknown format", {"log_error": False, "log_format": "x"}),
        _http("two mistakes", {"log_format": 1, "log_info": 1}),
        *(
            Case(f"HTTP: {method} {path}", functools.partial(asked, method, path))
            for method, path in (
                ("PUT", PATH),
                ("DELETE", PATH),
                ("GET", f"{PATH}/"),
                ("GET", f"{PATH}/x"),
                ("POST", f"{PATH}/settings"),
            )
        ),
        _grpc("no changes"),
        _grpc("every setting", **{**DEFAULTS, "log_warning": False, "log_verbose_level": 3}),
        _grpc("format", log_format="ISO8601"),
        _grpc("unknown setting", log_colour="green"),
        _grpc("unknown setting without a value", log_colour=None),
        _grpc("file", log_file="/tmp/x.log"),
        _grpc("file without a value", log_file=None),
        _grpc("number for a switch", log_info=1),
        _grpc("text for a switch", log_warning="true"),
        _grpc("switch without a value", log_error=None),
        _grpc("boolean as a level", log_verbose_level=True),
        _grpc("text as a level", log_verbose_level="1"),
        _grpc("level without a value", log_verbose_level=None),
        _grpc("highest level", log_verbose_level=2**32 - 1),
        _grpc("unknown format", log_format="x"),
        _grpc("number as a format", log_format=1),
        _grpc("change before an unknown format", log_error=False, log_format="x"),
        _heard("as at the start"),
        _heard("verbose", log_verbose_level=1),
        _heard("no information", log_info=False),
        _heard("no warnings", log_warning=False),
        _heard("no errors", log_error=False),
        _heard("only verbose lines", log_info=False, log_verbose_level=1),
    ),
)
