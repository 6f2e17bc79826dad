# SPDX-License-Identifier: Apache-2.0
"""Requests about the server and its models, and what HTTP itself allows."""

from __future__ import annotations

import gzip
import json
from typing import Any

from tests.differential.case import Case, error, get, infer, post, tensor
from tests.differential.exchange import chunked, request_bytes
from tests.differential.model_table import MODELS

ADD_SUB = {"inputs": [tensor("a", "FP32", [1, 1], [1]), tensor("b", "FP32", [1, 1], [2])]}
ADD_SUB_BODY = json.dumps(ADD_SUB).encode()
INFER = "/v2/models/add_sub/infer"


def server_view(document: Any) -> Any:
    return {"name": document["name"], "members": sorted(document)}


def config_view(document: Any) -> Any:
    """What does not depend on how the model was given to the server."""
    keys = ("name", "backend", "max_batch_size", "input", "output")
    view = {key: document[key] for key in keys}
    view["batches"] = "dynamic_batching" in document
    policy = document.get("model_transaction_policy", {})
    view["decoupled"] = policy.get("decoupled", False)
    return view


def stats_view(document: Any) -> Any:
    """Names and structure; counts and times differ from run to run."""
    return [
        {
            "name": entry["name"],
            "version": entry["version"],
            "members": sorted(set(entry) - {"response_stats", "memory_usage"}),
            "durations": sorted(entry["inference_stats"]),
        }
        for entry in sorted(document["model_stats"], key=lambda entry: entry["name"])
    ]


def index_view(document: Any) -> Any:
    return sorted([model["name"], model["version"], model["state"]] for model in document)


EVERY_MODEL = sorted([model.name, "1", "READY"] for model in MODELS)


HEALTH = [
    get("live", "/v2/health/live"),
    get("ready", "/v2/health/ready"),
    get("ready with a query", "/v2/health/ready?verbose=1"),
    get("ready with a slash", "/v2/health/ready/"),
    post("post to ready", "/v2/health/ready", b""),
    get("model ready", "/v2/models/add_sub/ready"),
    get("model version ready", "/v2/models/add_sub/versions/1/ready"),
    get("unknown version ready", "/v2/models/add_sub/versions/7/ready"),
    get("unknown model ready", "/v2/models/nobody/ready"),
    get("text version ready", "/v2/models/add_sub/versions/one/ready"),
]

METADATA = [
    get("server metadata", "/v2", view=server_view),
    get("server metadata with a slash", "/v2/"),
    get("unknown model", "/v2/models/nobody"),
    get("unknown version", "/v2/models/add_sub/versions/7"),
    get("version beyond 64 bits", "/v2/models/add_sub/versions/99999999999999999999"),
    get("known version", "/v2/models/add_sub/versions/1"),
    *(get(f"metadata of {model.name}", f"/v2/models/{model.name}") for model in MODELS),
    *(
        get(f"config of {model.name}", f"/v2/models/{model.name}/config", view=config_view)
        for model in MODELS
    ),
    get("config of a version", "/v2/models/add_sub/versions/1/config", view=config_view),
    get("config of an unknown model", "/v2/models/nobody/config"),
    get("config of an unknown version", "/v2/models/add_sub/versions/7/config"),
    get("stats of all", "/v2/models/stats", view=stats_view),
    get("stats of a model", "/v2/models/add_sub/stats", view=stats_view),
    get("stats of a version", "/v2/models/add_sub/versions/1/stats", view=stats_view),
    get("stats of an unknown model", "/v2/models/nobody/stats"),
    get("stats of an unknown version", "/v2/models/add_sub/versions/7/stats"),
]

ROUTES = [
    get("root", "/"),
    get("unknown path", "/v2/nothing"),
    get("models without a name", "/v2/models"),
    get("upper case path", "/V2/health/ready"),
    get("double slash", "//v2/health/ready"),
    get("path beyond metadata", "/v2/models/add_sub/nothing"),
    post("post to metadata", "/v2/models/add_sub", b""),
    post("post to config", "/v2/models/add_sub/config", b""),
    get("get of infer", INFER),
    Case("put to infer", request_bytes("PUT", INFER, ADD_SUB_BODY)),
    Case(
        "head of ready",
        request_bytes("HEAD", "/v2/health/ready"),
        ours=({"status": 200, "body": ""},),
        because="load balancers probe with HEAD, which HTTP asks for wherever there is a GET",
    ),
    Case("delete of ready", request_bytes("DELETE", "/v2/health/ready")),
    infer("infer, unknown model", "nobody", ADD_SUB),
    post("infer, known version", "/v2/models/add_sub/versions/1/infer", ADD_SUB),
    post("infer, unknown version", "/v2/models/add_sub/versions/7/infer", ADD_SUB),
    post("infer, text version", "/v2/models/add_sub/versions/x/infer", ADD_SUB),
    infer("infer, unknown model and bad JSON", "nobody", b"{"),
    infer("infer, decoupled model", "decoupled", {"inputs": [tensor("IN", "INT32", [1], [1])]}),
]

_CHUNKED = {"Transfer-Encoding": "chunked"}
TRANSPORT = [
    Case("body in one chunk", request_bytes("POST", INFER, chunked(ADD_SUB_BODY, 999), _CHUNKED)),
    Case("body in small chunks", request_bytes("POST", INFER, chunked(ADD_SUB_BODY, 7), _CHUNKED)),
    Case(
        "expect continue",
        request_bytes("POST", INFER, ADD_SUB_BODY, {"Expect": "100-continue"}),
    ),
    Case(
        "three requests in one packet",
        request_bytes("POST", INFER, b"{")
        + request_bytes("POST", INFER, ADD_SUB_BODY)
        + request_bytes("GET", "/v2/models/nobody"),
        answers=3,
    ),
    Case(
        "a get and another request in one packet",
        request_bytes("GET", "/v2/health/live") + request_bytes("GET", "/v2/health/live"),
        answers=2,
        only_ours=True,
        ours=({"status": 200, "body": ""}, {"status": 200, "body": ""}),
        because="the real server answers the first only",
    ),
    infer("body without a content type", "add_sub", ADD_SUB),
    infer(
        "body with another content type",
        "add_sub",
        ADD_SUB,
        headers={"Content-Type": "text/plain"},
    ),
]

INDEX = "/v2/repository/index"
LOAD = "/v2/repository/models/add_sub/load"
UNLOAD = "/v2/repository/models/nobody/unload"
NO_OBJECT = {
    "ours": error(500, "attempt to get members for non-object"),
    "because": "a body that is no object says nothing, so the client meant something else",
}


def parameters(name: str, path: str, value: Any, **options: Any) -> Case:
    return post(name, path, {"parameters": value}, **options)


REPOSITORY = [
    post("index", INDEX, b"", view=index_view),
    post("index, empty object", INDEX, {}, view=index_view),
    post("index of the ready", INDEX, {"ready": True}, view=index_view),
    post("index, other members", INDEX, {"x": 1}, view=index_view),
    post("index, bad JSON", INDEX, b"["),
    post("index, blank", INDEX, b"  "),
    post("index, array", INDEX, b"[]", view=index_view, **NO_OBJECT),
    post(
        "index, ready is a number",
        INDEX,
        {"ready": 1},
        ours=error(400, "Invalid value for 'ready': expected a boolean"),
        because="later releases answer so: the mistake is the client's",
    ),
    post(
        "index of a repository",
        "/v2/repository/r/index",
        b"",
        view=index_view,
        ours=error(501, "'repository_name' specification is not supported"),
        because="later releases answer so, and so do load and unload",
    ),
    post(
        "index, compressed",
        INDEX,
        gzip.compress(b'{"ready": true}', mtime=0),
        {"Content-Encoding": "gzip"},
        view=index_view,
        ours=({"status": 200, "body": EVERY_MODEL, "type": "application/json"},),
        because="a compressed body is read here as it is in an infer request",
    ),
    get("get of index", INDEX),
    get("index with a slash", f"{INDEX}/"),
    post("load", LOAD, b""),
    post("load, empty object", LOAD, {}),
    post("load, other members", LOAD, {"x": 1}),
    post("load, unknown model", "/v2/repository/models/nobody/load", b""),
    post("load of a repository", "/v2/repository/r/models/add_sub/load", b""),
    post("load without a name", "/v2/repository/models//load", b""),
    get("get of load", LOAD),
    post("load, bad JSON", LOAD, b"{"),
    post("load, array", LOAD, b"[]", **NO_OBJECT),
    parameters("load, no parameters", LOAD, {}),
    parameters("load, parameters are an array", LOAD, []),
    parameters("load, parameters are null", LOAD, None),
    parameters("load, unknown parameter", LOAD, {"x": "y"}),
    parameters("load, unknown number", LOAD, {"x": 1}),
    parameters("load, config is a number", LOAD, {"config": 1}),
    parameters("load, file is a number", LOAD, {"config": "{}", "file:1/model.py": 1}),
    post("unload, unknown model", UNLOAD, b""),
    parameters("unload, dependents", UNLOAD, {"unload_dependents": True}),
    parameters("unload, unknown parameter", UNLOAD, {"x": "y"}),
    parameters(
        "unload, dependents are a number",
        UNLOAD,
        {"unload_dependents": 1},
        ours=error(500, "attempt to access JSON non-boolean as boolean"),
        because="what is not understood is not done",
    ),
    post("unload of a repository", "/v2/repository/r/models/nobody/unload", b""),
    get("get of unload", UNLOAD),
]

CASES = [*HEALTH, *METADATA, *ROUTES, *TRANSPORT, *REPOSITORY]
