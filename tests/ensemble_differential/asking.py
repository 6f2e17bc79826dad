# SPDX-License-Identifier: Apache-2.0
"""What is seen of a server: responses in one form for all protocols, states, counts and log."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.request
from typing import Any

import numpy as np
from tritonclient.utils import triton_to_np_dtype

from tests.e2e.waiting import DEADLINE_S
from tests.python_backend_differential import clients
from tests.python_backend_differential.clients import Arrays, normalised
from tests.recorded_suite import Observation, Server

POLL_FAILED = re.compile(r'Poll failed for model directory (.*?)"?$', re.MULTILINE)


def numbers(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


def rows(*values: int) -> np.ndarray[Any, Any]:
    """A batch with one number in each row."""
    return np.array(values, np.int32).reshape(-1, 1)


def by_http(
    server: Server, model: str, inputs: Arrays, *outputs: str, **options: Any
) -> Observation:
    """An answer over HTTP."""
    return _sorted(clients.infer_over_http(server, model, inputs, outputs, **options))


def by_grpc(
    server: Server, model: str, inputs: Arrays, *outputs: str, **options: Any
) -> Observation:
    """An answer over gRPC."""
    return _sorted(clients.infer_over_grpc(server, model, inputs, outputs, **options))


def by_both(
    server: Server, model: str, inputs: Arrays, *outputs: str, **options: Any
) -> Observation:
    """The answers over HTTP and gRPC."""
    return {
        "HTTP": by_http(server, model, inputs, *outputs, **options),
        "gRPC": by_grpc(server, model, inputs, *outputs, **options),
    }


def _sorted(answer: Observation) -> Observation:
    """The real server gives outputs in the order of a hash table."""
    if "outputs" in answer:
        answer["outputs"].sort(key=lambda output: output[0])
    return answer


def by_stream(server: Server, model: str, *inputs: Arrays, **fields: Any) -> Observation:
    """The responses to each of these requests of one stream, in order."""
    seen = clients.infer_over_stream(server, model, *inputs, **fields)
    if seen["status"] != "OK":
        return seen
    return {
        request: [_response(one) for one in answers]
        for request, answers in seen["responses"].items()
    }


def by_stream_with_followers(server: Server, model: str, *inputs: Arrays) -> Observation:
    """The same, where the final flag may come with the last response or after it.

    It comes after it where the step that follows a decoupled one is the quicker of the two.
    """
    seen = by_stream(server, model, *inputs)
    for answers in seen.values():
        if len(answers) > 1 and answers[-1] == {"final": True}:
            answers.pop()
            answers[-1]["final"] = True
    return seen


def last_by_stream(server: Server, model: str, *inputs: Arrays) -> Observation:
    """The last response to each request: those that an error overtakes may come or not."""
    return {request: answers[-1] for request, answers in by_stream(server, model, *inputs).items()}


def _response(message: Observation) -> Observation:
    response = message.get("infer_response", {})
    parameters = dict(response.get("parameters", {}))
    final = parameters.pop("triton_final_response", {}).get("bool_param")
    seen = {
        "error": message.get("error_message"),
        "outputs": _outputs(response),
        "parameters": {key: next(iter(value.values())) for key, value in parameters.items()},
        "final": final,
    }
    return {key: value for key, value in seen.items() if value}


def _outputs(response: Observation) -> Observation:
    contents = [base64.b64decode(content) for content in response.get("raw_output_contents", [])]
    return sorted(
        [output["name"], output["datatype"], output["shape"], _values(output["datatype"], content)]
        for output, content in zip(response.get("outputs", []), contents, strict=True)
    )


def _values(datatype: str, content: bytes) -> Observation:
    if datatype == "BYTES":
        return content[4:].decode()  # one text, after its length
    return np.frombuffer(content, triton_to_np_dtype(datatype)).tolist()


def call(server: Server, path: str, body: Observation = None) -> Observation:
    """The status and the JSON of an HTTP call: GET, or POST with `body`."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.http}/v2{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            status, content = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, content = error.code, error.read()
    text = normalised(content.decode(), server)
    return [status, json.loads(text) if text.startswith(("{", "[")) else text]


def load(server: Server, name: str, **parameters: Any) -> Observation:
    return call(server, f"/repository/models/{name}/load", {"parameters": parameters})


def unload(server: Server, name: str, **parameters: Any) -> Observation:
    return call(server, f"/repository/models/{name}/unload", {"parameters": parameters})


def states(server: Server, *names: str) -> Observation:
    """The rows of the index for these models, without their names."""
    rows_of_index = call(server, "/repository/index", {})[1]
    return {
        name: [
            [row.get("version"), row.get("state"), normalised(row.get("reason", ""), server)]
            for row in rows_of_index
            if row["name"] == name
        ]
        for name in names
    }


def counts(server: Server, *names: str) -> Observation:
    """What was counted of each model: inferences, executions, good and failed requests."""
    return {name: _counted(call(server, f"/models/{name}/stats")[1]) for name in names}


def _counted(answer: Observation) -> Observation:
    stats = answer["model_stats"][-1]
    found = stats["inference_stats"]
    return {
        "inferences": stats["inference_count"],
        "executions": stats["execution_count"],
        **{key: found[key]["count"] for key in found if found[key]["count"]},
        "batches": {
            row["batch_size"]: row["compute_infer"]["count"] for row in stats["batch_stats"]
        },
    }


def gained(before: Observation, after: Observation) -> Observation:
    """How counts have grown, without what has not."""
    if not isinstance(after, dict):
        return after - (before or 0)
    grown = {key: gained((before or {}).get(key), value) for key, value in after.items()}
    return {key: value for key, value in grown.items() if value}


def polls_failed(server: Server, position: int) -> Observation:
    """What the log says after a position of configurations that are wrong."""
    text = server.log.read_text(errors="replace")[position:]
    return [normalised(message, server) for message in POLL_FAILED.findall(text)]


def length_of_log(server: Server) -> int:
    return len(server.log.read_text(errors="replace"))
