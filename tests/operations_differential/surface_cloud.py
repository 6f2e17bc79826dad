# SPDX-License-Identifier: Apache-2.0
"""Model repositories in a bucket, and what is said of addresses that do not work."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.waiting import eventually
from tests.operations_differential.asking import both, int32_request, over_grpc, over_http
from tests.operations_differential.command_line import ended
from tests.operations_differential.models import write_mirror, write_model
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.servers import running
from tests.operations_differential.surface import Case, Setup, Surface
from tests.s3_server import ENVIRONMENT, S3Server

Answers = dict[str, Observation]
EXPLICIT = "--model-control-mode=explicit"
_ENSEMBLE = """
    platform: "ensemble"
    input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
    ensemble_scheduling { step {
      model_name: "numbers" model_version: -1
      input_map { key: "INPUT0" value: "INPUT0" }
      output_map { key: "OUTPUT0" value: "OUTPUT0" }
    } }
"""


def files(folder: Path) -> dict[str, bytes]:
    """The files of a model on the disk."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}


def mirror(**settings: Any) -> dict[str, bytes]:
    """The files of a model that gives numbers back."""
    with tempfile.TemporaryDirectory() as name:
        return files(write_mirror(Path(name), "any", "INT32", **settings))


def adding(number: int) -> bytes:
    """Code that adds a number."""
    with tempfile.TemporaryDirectory() as name:
        folder = write_model(Path(name), "any", _ADDING.format(number), "")
        return (folder / "1" / "model.py").read_bytes()


_ADDING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy() + {})]
            )
            for request in requests
        ]
"""


def fill(s3: S3Server) -> None:
    """The models of most runs."""
    good = mirror()
    s3.put("numbers", good)
    s3.put("versions", {**mirror(), "1/model.py": adding(1), "2/model.py": adding(2)})
    policy = "version_policy { all { } }"
    s3.put("all", {**mirror(more=policy), "1/model.py": adding(1), "3/model.py": adding(3)})
    policy = "version_policy { specific { versions: [ 1, 9 ] } }"
    s3.put("specific", {**mirror(more=policy), "1/model.py": adding(1), "2/model.py": adding(2)})
    s3.put("broken", {**good, "1/model.py": b"this is ( no Python"})
    s3.put("renamed", {**good, "config.pbtxt": b'name: "other"\n' + good["config.pbtxt"]})
    s3.put("unreadable", {**good, "config.pbtxt": b"no_such_field: 1"})
    s3.put("no_version", {"config.pbtxt": good["config.pbtxt"]})
    s3.put("zeros", {"config.pbtxt": good["config.pbtxt"], "01/model.py": good["1/model.py"]})
    s3.put("marked", {"config.pbtxt": _ENSEMBLE, "1/": b""})
    s3.put("kept", {"config.pbtxt": _ENSEMBLE, "1/keep.txt": b"x"})
    s3.put("labelled", {**good, "notes.txt": b"nothing", "configs/other.pbtxt": b"x: 1"})
    s3.client.put_object(Bucket="bucket", Key="models/readme.md", Body=b"no model")


class Asker:
    """Asks a server whose texts have the address of the bucket."""

    def __init__(self, server: Server, s3: S3Server) -> None:
        self._server = server
        self._s3 = s3

    def plain(self, seen: Observation) -> Observation:
        """The answer without the port of the bucket's server and without paths of copies."""
        return json.loads(json.dumps(seen).replace(self._s3.address, "<s3>"))

    def load(self, name: str, **parameters: Any) -> Observation:
        path = f"/v2/repository/models/{name}/load"
        return self.plain(over_http(self._server, path, {"parameters": parameters}))

    def load_grpc(self, name: str) -> Observation:
        fields = {"model_name": name}
        return self.plain(over_grpc(self._server, "RepositoryModelLoad", fields))

    def unload(self, name: str) -> Observation:
        return over_http(self._server, f"/v2/repository/models/{name}/unload", {})

    def infer(self, name: str, version: str = "") -> Observation:
        path, body = int32_request(f"{name}/versions/{version}" if version else name)
        return over_http(self._server, path, body)

    def index(self) -> Observation:
        seen = both(self._server, "/v2/repository/index", {}, "RepositoryIndex")
        for rows in (seen["HTTP"]["body"], seen["gRPC"].get("models", [])):
            rows.sort(key=lambda row: (row["name"], row.get("version", "")))
        return self.plain(seen)

    def states(self) -> Observation:
        """The models, and which versions are ready; the others may be about to be unloaded."""
        rows = over_http(self._server, "/v2/repository/index", {})["body"]
        ready = [[row["name"], row["version"]] for row in rows if row.get("state") == "READY"]
        return {"models": sorted({row["name"] for row in rows}), "ready": sorted(ready)}

    def ready(self, name: str) -> bool:
        return over_http(self._server, f"/v2/models/{name}/ready")["status"] == 200


def explicit_run(asker: Asker, s3: S3Server) -> Answers:
    """Clients load and unload models, and files change between."""
    seen: Answers = {}
    seen["index of a bucket before any load"] = asker.index()
    for name in ("numbers", "versions", "all", "specific", "labelled", "kept", "marked"):
        seen[f"load of {name}"] = asker.load(name)
        seen[f"inference of {name}"] = asker.infer(name)
    for name in ("no_version", "zeros", "renamed", "unreadable", "missing"):
        seen[f"load of {name}"] = asker.load(name)
        seen[f"load of {name} over gRPC"] = asker.load_grpc(name)
    seen["load of broken code"] = {"status": asker.load("broken")["status"]}
    seen["version that is not served"] = asker.infer("versions", "1")
    seen["states after loads"] = asker.states()
    s3.put("numbers", {"1/model.py": adding(5)})
    seen["inference after an upload without a load"] = asker.infer("numbers")
    seen["load after an upload"] = asker.load("numbers")
    seen["inference after that load"] = asker.infer("numbers")
    s3.put("numbers", {"2/model.py": adding(6)})
    seen["load of a new version"] = asker.load("numbers")
    seen["inference of the new version"] = asker.infer("numbers")
    s3.put("later", mirror())
    seen["states after an upload"] = asker.states()
    seen["load of a model that was uploaded later"] = asker.load("later")
    override = json.dumps({
        "backend": "python",
        "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [3]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [3]}],
    })  # fmt: skip
    seen["load with a configuration"] = asker.load("later", config=override)
    seen["load with a wrong configuration"] = asker.load("later", config="{")
    s3.remove("models/later/")
    seen["load of a model that was removed from the bucket"] = asker.load("later")
    seen["inference after that"] = asker.infer("later")
    seen["unload"] = asker.unload("all")
    seen["inference after an unload"] = asker.infer("all")
    return seen


def poll_run(asker: Asker, s3: S3Server) -> Answers:
    """The server looks for changes itself."""
    seen: Answers = {"inference in mode poll": asker.infer("numbers")}
    seen["load in mode poll"] = asker.load("numbers")
    s3.put("later", mirror())
    eventually(lambda: asker.ready("later"))
    seen["new model is found"] = asker.infer("later")
    s3.put("later", {"1/model.py": adding(7)})
    eventually(
        lambda: asker.infer("later")["body"].get("outputs", [{}])[0].get("data") != [1, 2, 3]
    )
    seen["changed model is found"] = asker.infer("later")
    s3.remove("models/later/")
    eventually(lambda: not asker.ready("later"))
    seen["removed model is unloaded"] = asker.infer("later")
    seen["states after a removal"] = asker.states()
    return seen


_RUNS: dict[str, tuple[tuple[str, ...], Callable[[S3Server], None], Any]] = {
    "explicit": ((EXPLICIT,), fill, explicit_run),
    "poll": (
        ("--model-control-mode=poll", "--repository-poll-secs=1"),
        lambda s3: s3.put("numbers", mirror()),
        poll_run,
    ),
}


@functools.cache
def run(name: str, *, is_real: bool) -> Answers:
    """All answers of a run."""
    options, prepare, ask = _RUNS[name]
    with tempfile.TemporaryDirectory() as folder, S3Server(Path(folder)) as s3:
        prepare(s3)
        setup = Setup(
            options=(f"--model-repository={s3.repository()}", *options), environment=ENVIRONMENT
        )
        with running(setup, is_real=is_real) as server:
            answers: Answers = ask(Asker(server, s3), s3)
            return answers


def refused_start(
    server: Server, address: str, environment: Mapping[str, str] | None = None
) -> Observation:
    """How a server ends that cannot read its repository."""
    return ended(
        server, f"--model-repository={address}", environment={**ENVIRONMENT, **(environment or {})}
    )


_EXPLICIT = (
    "index of a bucket before any load",
    *(
        f"{what} of {name}"
        for name in ("numbers", "versions", "all", "specific", "labelled", "kept", "marked")
        for what in ("load", "inference")
    ),
    *(
        f"load of {name}{protocol}"
        for name in ("no_version", "zeros", "renamed", "unreadable", "missing")
        for protocol in ("", " over gRPC")
    ),
    "load of broken code",
    "version that is not served",
    "states after loads",
    "inference after an upload without a load",
    "load after an upload",
    "inference after that load",
    "load of a new version",
    "inference of the new version",
    "states after an upload",
    "load of a model that was uploaded later",
    "load with a configuration",
    "load with a wrong configuration",
    "load of a model that was removed from the bucket",
    "inference after that",
    "unload",
    "inference after an unload",
)
_POLL = (
    "inference in mode poll",
    "load in mode poll",
    "new model is found",
    "changed model is found",
    "removed model is unloaded",
    "states after a removal",
)


def of_run(name: str, answer: str) -> Case:
    def ask(server: Server) -> Observation:
        return run(name, is_real=server.is_real)[answer]

    return Case(answer, ask)


def unknown_scheme(server: Server) -> Observation:
    return ended(server, "--model-repository={folder}/nowhere")


def missing_bucket(server: Server) -> Observation:
    with tempfile.TemporaryDirectory() as folder, S3Server(Path(folder)) as s3:
        seen = refused_start(server, f"s3://{s3.address}/nowhere/models")
        return {**seen, "says": [line.replace(s3.address, "<s3>") for line in seen["says"]]}


def empty_path(server: Server) -> Observation:
    with tempfile.TemporaryDirectory() as folder, S3Server(Path(folder)) as s3:
        seen = refused_start(server, s3.repository("nothing"))
        return {**seen, "says": [line.replace(s3.address, "<s3>") for line in seen["says"]]}


def without_bucket(server: Server) -> Observation:
    return refused_start(server, "s3://")


def wrong_file(text: str) -> Callable[[Server], Observation]:
    def ask(server: Server) -> Observation:
        path = Path(server.folder, "credentials.json")
        path.write_text(text)
        return refused_start(
            server, "s3://bucket/models", {"TRITON_CLOUD_CREDENTIAL_PATH": str(path)}
        )

    return ask


_NEED_S3 = (
    *(of_run("explicit", answer) for answer in _EXPLICIT),
    *(of_run("poll", answer) for answer in _POLL),
    Case("bucket that is not there", missing_bucket),
    Case("path with nothing below", empty_path),
)
SURFACE = Surface(
    "cloud",
    cases=(
        Case("repository that is not there", unknown_scheme),
        Case("address without a bucket", without_bucket),
        Case("credential file that is no JSON", wrong_file("{")),
        *_NEED_S3,
    ),
    setup=Setup(is_started=False),
)
