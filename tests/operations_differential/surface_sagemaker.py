# SPDX-License-Identifier: Apache-2.0
"""The endpoint that SageMaker asks, with one model and with many."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tests.operations_differential.asking import over_http
from tests.operations_differential.models import write_common, write_mirror, write_model
from tests.operations_differential.server import Observation, Server
from tests.operations_differential.surface import Case, Setup, Surface

INVOKE = "/invocations"
INPUT = {"name": "INPUT0", "shape": [2], "datatype": "INT32", "data": [1, 2]}
BODY = {"inputs": [INPUT]}
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
TEXT = (
    b'{"inputs":[{"name":"INPUT0","shape":[2],"datatype":"INT32",'
    b'"parameters":{"binary_data_size":8}}],'
    b'"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}'
)
BINARY_BODY = TEXT + struct.pack("<2i", 1, 2)
CONTENT_TYPE = ("Content-Type",)
ENSEMBLE = """
    platform: "ensemble"
    input { name: "INPUT0" data_type: TYPE_INT32 dims: -1 }
    output { name: "OUTPUT0" data_type: TYPE_INT32 dims: -1 }
    ensemble_scheduling {
      step {
        model_name: "step"
        model_version: -1
        input_map { key: "INPUT0" value: "INPUT0" }
        output_map { key: "OUTPUT0" value: "OUTPUT0" }
      }
    }
"""
OPTIONS = ("--allow-sagemaker=true", "--sagemaker-port={sagemaker}")
ENVIRONMENT = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "numbers"}


def write_archives(models: Path) -> None:
    """The folders into which SageMaker would unpack archives, beside those of the repository."""
    write_common(models)
    archives = models.parent / "archives"
    write_mirror(archives / "one" / "model", "mirror", "INT32")
    write_mirror(archives / "named" / "model", "mirror", "INT32", more='name: "mirror"')
    write_mirror(archives / "flat", "model", "INT32")
    pipeline = archives / "pipeline" / "model"
    write_mirror(pipeline, "step", "INT32")
    ensemble = write_model(pipeline, "whole", "", ENSEMBLE)
    (ensemble / "1" / "model.py").unlink()
    (archives / "empty" / "model").mkdir(parents=True)


MANY = Setup(
    options=(*OPTIONS, "--model-control-mode=explicit", "--load-model=numbers"),
    environment=ENVIRONMENT,
    models=write_archives,
    ports=("sagemaker",),
)


def ask(name: str, path: str, body: Any = None, setup: Setup | None = None, **more: Any) -> Case:
    """A case that asks the port of SageMaker."""

    def run(server: Server) -> Observation:
        return over_http(server, path, body, port="sagemaker", **more)

    return Case(name, run, setup)


def binary(name: str, length: str, body: bytes = BINARY_BODY) -> Case:
    headers = {"Content-Type": BINARY + length}
    return ask(f"binary_{name}", INVOKE, body, headers=headers, show=CONTENT_TYPE)


def many(name: str, path: str, body: Any = None, **more: Any) -> Case:
    return ask(f"many_{name}", path, body, MANY, **more)


def load(name: str, model: str, folder: str) -> Case:
    """A case that loads a model from an archive, and says what is served then."""

    def run(server: Server) -> Observation:
        url = f"{server.folder}/archives/{folder}"
        answer = over_http(server, "/models", {"model_name": model, "url": url}, port="sagemaker")
        return {"answer": answer, "index": over_http(server, "/v2/repository/index", b"")}

    return Case(f"many_load_{name}", run, MANY)


def listed(server: Server) -> Observation:
    """The models, sorted, as neither server promises an order."""
    models = over_http(server, "/models", port="sagemaker")["body"]["models"]
    return sorted(models, key=lambda model: model["modelName"])


SURFACE = Surface(
    "sagemaker",
    cases=(
        ask("ping", "/ping"),
        ask("ping_with_query", "/ping?x=1"),
        ask("ping_by_post", "/ping", b""),
        ask("ping_with_slash", "/ping/"),
        ask("ping_in_capitals", "/Ping"),
        ask("invoke", INVOKE, BODY, show=CONTENT_TYPE),
        ask("invoke_by_get", INVOKE),
        ask("invoke_with_slash", INVOKE + "/", BODY),
        ask("invoke_without_body", INVOKE, b""),
        ask("invoke_malformed", INVOKE, b"{"),
        ask("invoke_without_inputs", INVOKE, {"inputs": []}),
        ask("invoke_with_wrong_input", INVOKE, {"inputs": [{**INPUT, "name": "X"}]}),
        ask("invoke_accepting_gzip", INVOKE, BODY, headers={"Accept-Encoding": "gzip"}),
        ask("endpoint_of_the_http_port", "/v2/health/live"),
        ask("list_without_models", "/models"),
        ask("load_in_another_mode", "/models", {"model_name": "m", "url": "/none"}),
        binary("input", str(len(TEXT))),
        binary("length_with_more", f"{len(TEXT)};x=y"),
        binary("length_zero", "0", BINARY_BODY[-8:]),
        binary("length_negative", "-5"),
        binary("length_too_large", "99999"),
        binary("length_no_number", "x"),
        load("one", "one", "one/model"),
        load("again", "one", "one/model"),
        load("other_name", "other", "one/model"),
        load("named", "named", "named/model"),
        load("ensemble", "pipeline", "pipeline/model"),
        load("empty", "empty", "empty/model"),
        load("missing", "missing", "missing/model"),
        Case("many_list", listed, MANY),
        many("get", "/models/one"),
        many("get_unknown", "/models/none"),
        many("get_model_of_the_repository", "/models/numbers"),
        many("invoke", "/models/one/invoke", BODY),
        many("invoke_renamed", "/models/named/invoke", BODY),
        many("invoke_ensemble", "/models/pipeline/invoke", BODY),
        many("invoke_unknown", "/models/none/invoke", BODY),
        many(
            "invoke_with_archive",
            "/models/one/invoke",
            BODY,
            headers={"X-Amzn-SageMaker-Target-Model": "one.tar.gz"},
        ),
        many("invoke_malformed", "/models/one/invoke", b"{"),
        many("invoke_default", INVOKE, BODY),
        many("put", "/models", b"", method="PUT"),
        many("action_unknown", "/models/one/other", BODY),
        many("delete", "/models/one", method="DELETE"),
        many("delete_again", "/models/one", method="DELETE"),
        many("invoke_deleted", "/models/one/invoke", BODY),
        many("delete_ensemble", "/models/pipeline", method="DELETE"),
        load("after_delete", "one", "one/model"),
        load("flat", "flat", "flat/model"),
    ),
    setup=Setup(options=OPTIONS, environment=ENVIRONMENT, ports=("sagemaker",)),
)
