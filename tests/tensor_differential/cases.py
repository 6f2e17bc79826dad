# SPDX-License-Identifier: Apache-2.0
"""What both servers are asked about the shapes of tensors, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from math import prod
from typing import Any

import numpy as np
import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.e2e.waiting import DEADLINE_S
from tests.recorded_suite import Observation, Server
from tests.tensor_differential.models import ENSEMBLES, GOOD, REFUSED, STRATEGY

Ask = Callable[[Server], Observation]
Tensor = dict[str, Any]


def post(server: Server, path: str, body: Any = None) -> Observation:
    """The status and the text of an answer over HTTP."""
    connection = HTTPConnection("127.0.0.1", server.http, timeout=DEADLINE_S)
    try:
        connection.request("POST", path, json.dumps(body or {}))
        answer = connection.getresponse()
        return [answer.status, answer.read().decode()]
    finally:
        connection.close()


def floats(*shape: int, name: str = "IN") -> Tensor:
    values = [float(number) for number in range(prod(shape))]
    return {"name": name, "shape": shape, "datatype": "FP32", "data": values}


def strings(*shape: int, name: str = "IN") -> Tensor:
    values = ["x" * number for number in range(prod(shape))]
    return {"name": name, "shape": shape, "datatype": "BYTES", "data": values}


def infer(model: str, *inputs: Tensor, **members: Any) -> Ask:
    body = {"inputs": inputs, **members}
    return lambda server: post(server, f"/v2/models/{model}/infer", body)


def together(model: str, *requests: list[Tensor]) -> Ask:
    """Requests sent at once; whichever comes first, each is answered in the same way."""

    def ask(server: Server) -> Observation:
        with ThreadPoolExecutor(len(requests)) as pool:
            futures = [pool.submit(infer(model, *inputs), server) for inputs in requests]
            return [future.result() for future in futures]

    return ask


def infer_grpc(model: str, *inputs: Tensor) -> Ask:
    """A request over gRPC: name, shape and bytes of each output."""

    def ask(server: Server) -> Observation:
        tensors = []
        for given in inputs:
            is_text = given["datatype"] == "BYTES"
            array = np.array(given["data"], object if is_text else np.float32)
            array = array.reshape(given["shape"])
            tensor = grpc_client.InferInput(
                given["name"], list(array.shape), np_to_triton_dtype(array.dtype)
            )
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        client = grpc_client.InferenceServerClient(f"127.0.0.1:{server.grpc}")
        try:
            answer = client.infer(model, tensors, client_timeout=DEADLINE_S).get_response()
        except InferenceServerException as error:
            return [error.status(), error.message()]
        finally:
            client.close()
        return [
            [output.name, list(output.shape), content.hex()]
            for output, content in zip(answer.outputs, answer.raw_output_contents, strict=True)
        ]

    return ask


def classes(model: str, *shape: int, names: tuple[str, str] = ("IN", "OUT")) -> Ask:
    values = [0.5, 3.0, 1.0, 2.0] * (prod(shape) // 4)
    tensor = {**floats(*shape, name=names[0]), "data": values}
    return infer(model, tensor, outputs=[{"name": names[1], "parameters": {"classification": 2}}])


def generate(kind: str, model: str, **members: Any) -> Ask:
    return lambda server: post(server, f"/v2/models/{model}/{kind}", members)


def load(model: str) -> Ask:
    return lambda server: post(server, f"/v2/repository/models/{model}/load")


def metadata(model: str) -> Ask:
    def ask(server: Server) -> Observation:
        connection = HTTPConnection("127.0.0.1", server.http, timeout=DEADLINE_S)
        connection.request("GET", f"/v2/models/{model}")
        described = connection.getresponse().read().decode()
        connection.request("GET", f"/v2/models/{model}/config")
        config = json.loads(connection.getresponse().read())
        connection.close()
        wanted = ("input", "output", "batch_input", "batch_output")
        return [described, {name: config[name] for name in wanted}]

    return ask


RESHAPED = {
    "batched": (floats(2, 4),),
    "batched, as the model sees it": (floats(2, 2, 2),),
    "unbatched": (floats(4),),
    "unbatched, as the model sees it": (floats(2, 2),),
    "scalars": (floats(6, 1),),
    "scalars, as the model sees it": (floats(6),),
    "variable": (floats(2, 3, 4, 2),),
    "variable, empty": (floats(1, 0, 4, 2),),
    "strings": (strings(2, 4),),
    "only_output": (floats(1, 4),),
    "only_output_unbatched": (floats(4),),
    "variable_output": (floats(2, 3, 4),),
    "ragged": (floats(4, 3),),
    "ragged_unbatched": (floats(3),),
    "ragged_reshaped": (floats(2, 3, 4),),
    "ragged_fixed, wrong": (floats(1, 3),),
    "batch_tensors": (floats(4, 2),),
}

CASES: dict[str, Ask] = {
    **{
        f"HTTP {name}": infer(name.partition(",")[0], *inputs) for name, inputs in RESHAPED.items()
    },
    **{
        f"gRPC {name}": infer_grpc(name.partition(",")[0], *inputs)
        for name, inputs in RESHAPED.items()
    },
    # Outputs of another size than their configuration says.
    "HTTP only_output, shorter": infer("only_output", floats(1, 3)),
    "HTTP only_output, longer": infer("only_output", floats(2, 5)),
    "HTTP only_output, not requested": infer(
        "only_output", floats(2, 5), outputs=[{"name": "SEEN"}]
    ),
    "HTTP only_output_unbatched, shorter": infer("only_output_unbatched", floats(3)),
    "HTTP variable_output, other dimensions": infer("variable_output", floats(1, 2, 3)),
    "gRPC only_output, shorter": infer_grpc("only_output", floats(1, 3)),
    "gRPC variable_output, other dimensions": infer_grpc("variable_output", floats(1, 2, 3)),
    "generate batched": generate("generate", "batched", IN=[1, 2, 3, 4]),
    "generate stream": generate("generate_stream", "stream", IN=[1, 2, 3, 4]),
    # Requests that share a batch or may not.
    "together scalars": together("scalars", [floats(2, 1)], [floats(1, 1)], [floats(3, 1)]),
    "together ragged": together("ragged", [floats(1, 3)], [floats(1, 2)], [floats(2, 1)]),
    "together ragged, one empty": together("ragged", [floats(3, 3)], [floats(1, 0)]),
    "together ragged_strings": together(
        "ragged_strings", [strings(1, 3, 2)], [strings(2, 2, 1)], [strings(1, 1, 1)]
    ),
    "together ragged_reshaped": together(
        "ragged_reshaped", [floats(1, 3, 4)], [floats(1, 1, 4)]
    ),
    "together ragged_optional, both": together(
        "ragged_optional",
        [floats(1, 3), strings(1, 2, name="MAY")],
        [floats(1, 2), strings(1, 3, name="MAY")],
    ),
    "together ragged_optional, one": together(
        "ragged_optional", [floats(1, 3)], [floats(1, 2), strings(1, 3, name="MAY")]
    ),
    "together ragged_fixed": together("ragged_fixed", [floats(1, 2)], [floats(2, 2)]),
    "together not_ragged": together("not_ragged", [floats(1, 3)], [floats(3, 2)]),
    "together batch_tensors": together("batch_tensors", [floats(1, 3)], [floats(3, 2)]),
    "classes labelled": classes("labelled", 2, 4),
    "classes labelled_unbatched": classes("labelled_unbatched", 4),
    **{
        f"classes {name}": classes(name, 2, 4, names=("X", "Y"))
        for name in ENSEMBLES
        if name.startswith("classified")
    },
    "HTTP reshaped_ensemble": infer("reshaped_ensemble", floats(2, 4, name="X")),
    "gRPC reshaped_ensemble": infer_grpc("reshaped_ensemble", floats(2, 4, name="X")),
    "HTTP reshaped_ensemble, as the steps see it": infer(
        "reshaped_ensemble", floats(2, 2, 2, name="X")
    ),
    "HTTP reshaped_in_steps": infer("reshaped_in_steps", floats(2, 4, name="X")),
    "HTTP reshaped_with_other_rank": infer("reshaped_with_other_rank", floats(1, 3, 4, name="X")),
    "together ragged_ensemble": together(
        "ragged_ensemble", [floats(1, 3, name="X")], [floats(3, 2, name="X")]
    ),
    **{f"metadata {name}": metadata(name) for name in (*GOOD, *ENSEMBLES)},
    **{f"load {name}": load(name) for name in (*REFUSED, *STRATEGY)},
}  # fmt: skip
