# SPDX-License-Identifier: Apache-2.0
"""What is seen of a server's trace settings and of its trace files, without what varies."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.waiting import eventually
from tests.operations_differential.asking import over_grpc, over_http
from tests.operations_differential.server import Observation, Server

NAMES = ("trace_level", "trace_rate", "trace_count", "log_frequency")
MODEL = "numbers"  # with settings of its own, in some cases
# Written by other threads than the rest: their order among the others varies.
_OF_FRONT_ENDS = ("HTTP_", "GRPC_", "INFER_RESPONSE_COMPLETE")


def path_of(model: str = "") -> str:
    return f"/v2/models/{model}/trace/setting" if model else "/v2/trace/setting"


def over_http_with(server: Server, changes: Any, model: str = "") -> Observation:
    return over_http(server, path_of(model), changes)


def over_grpc_with(server: Server, changes: Mapping[str, Any], model: str = "") -> Observation:
    settings = {}
    for name, value in changes.items():
        values = [] if value is None else value if isinstance(value, list) else [value]
        settings[name] = {"value": values}
    return over_grpc(server, "TraceSetting", {"settings": settings, "model_name": model})


@contextlib.contextmanager
def restored(server: Server) -> Iterator[None]:
    """Put the settings of the start back after a case."""
    try:
        yield
    finally:
        for model in (MODEL, ""):
            over_http_with(server, dict.fromkeys(NAMES), model)


def changed(*steps: tuple[str, Mapping[str, Any]]) -> Callable[[Server], Observation]:
    """A case: changes of models or of all, over both protocols, and what is known then."""

    def ask(server: Server) -> Observation:
        seen: dict[str, Observation] = {}
        for protocol, change in (("HTTP", over_http_with), ("gRPC", over_grpc_with)):
            with restored(server):
                answers = [change(server, changes, model) for model, changes in steps]
                after = {
                    name or "all": over_http(server, path_of(name))["body"] for name in ("", MODEL)
                }
                seen[protocol] = {"answers": answers, "after": after}
        return seen

    return ask


def told(body: Any, model: str = "") -> Callable[[Server], Observation]:
    """A case: a body over HTTP that may be no object of settings."""

    def ask(server: Server) -> Observation:
        with restored(server):
            return {
                "answer": over_http_with(server, body, model),
                "after": over_http(server, path_of(model)),
            }

    return ask


def traced(
    settings: Mapping[str, Any],
    count: int,
    work: Callable[[Server], Any],
    *,
    count_at_once: int | None = None,
) -> Callable[[Server], Observation]:
    """A case: what is in the files that appear when a server with these settings does some work.

    `count_at_once` of the requests are in files before the settings change again; default: all.
    """
    at_once = count if count_at_once is None else count_at_once

    def ask(server: Server) -> Observation:
        folder = Path(server.folder)
        before = set(folder.glob("trace.json*"))
        with restored(server):
            over_http_with(server, settings)
            work(server)
            found = lambda: _files(folder, before)  # noqa: E731
            eventually(lambda: sum(len(_ids(each)) for each in found()) >= at_once)
            last = over_http(server, path_of())["body"]
        eventually(lambda: sum(len(_ids(each)) for each in found()) >= count)
        return {"files": _described(found()), "settings": last}

    return ask


def _files(folder: Path, before: set[Path]) -> list[list[dict[str, Any]]]:
    paths = {path for path in folder.glob("trace.json*") if path.suffix != ".part"} - before
    found = []
    for path in sorted(paths, key=lambda path: (len(path.name), path.name)):
        with contextlib.suppress(ValueError):  # it is being written
            found.append(json.loads(path.read_bytes()))
    return found


def _ids(objects: list[dict[str, Any]]) -> list[int]:
    return list(dict.fromkeys(each["id"] for each in objects))


def _described(files: list[list[dict[str, Any]]]) -> Observation:
    """The requests of each file, numbered from 1 on in the order in which they came."""
    came = sorted({each["id"] for objects in files for each in objects})
    numbers = {each: at for at, each in enumerate(came, 1)}

    def requests(objects: list[dict[str, Any]]) -> Iterator[Observation]:
        for number in _ids(objects):
            yield _request(number, [each for each in objects if each["id"] == number], numbers)

    return [list(requests(objects)) for objects in files]


def _request(number: int, objects: list[dict[str, Any]], numbers: dict[int, int]) -> Observation:
    made: dict[str, Any] = {"id": numbers[number]}
    stamps = [stamp["name"] for each in objects for stamp in each.get("timestamps", ())]
    for each in objects:
        if "model_name" in each:
            # Triton's files have no costs, whose numbers differ from run to run.
            made |= {key: value for key, value in each.items() if key not in ("id", "cost")}
    if "parent_id" in made:
        made["parent_id"] = numbers[made["parent_id"]]
    made["model"] = [name for name in stamps if not name.startswith(_OF_FRONT_ENDS)]
    made["front end"] = [name for name in stamps if name.startswith(_OF_FRONT_ENDS)]
    made["tensors"] = [[each["activity"], each["tensor"]] for each in objects if "tensor" in each]
    made["one stamp in an object"] = all(
        len(each["timestamps"]) == 1 for each in objects if "timestamps" in each
    )
    return made
