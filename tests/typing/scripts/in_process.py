# SPDX-License-Identifier: Apache-2.0
"""A user's program with a server in its own process, under both names."""

import numpy as np

import tritonserver
from pytriton.inprocess import InferenceRequest, Model, NotFoundError, Options, Server, TritonError


def run(repository: str) -> None:
    server = Server(Options(model_repository=repository, log_verbose=False))
    server.start(wait_until_ready=True)
    print(server.ready(), server.live(), server.metadata(), server.metrics())
    model: Model = server.model("scale")
    try:
        for response in model.infer(inputs={"IN": np.ones((1,), np.float32)}):
            print(response.outputs["OUT"].to_numpy().tolist())
    except NotFoundError:
        raise
    except TritonError as error:
        print(error)
    request: InferenceRequest = model.create_request()
    request.inputs["IN"] = np.ones((1,), np.float32)
    for response in model.infer(request):
        print(response.model.name, response.request_id)
    server.stop()


async def run_asynchronously(repository: str) -> None:
    server = tritonserver.Server(model_repository=repository)
    server.start()
    async for response in server.model("scale").async_infer(inputs={"IN": [1.0]}):
        print(response.outputs["OUT"].to_bytes_array())
    server.stop()
