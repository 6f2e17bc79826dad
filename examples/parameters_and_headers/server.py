# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def scale(requests):
    answers = []
    for request in requests:
        factor = float(request.parameters.get("factor", 1))
        client = request.parameters.get("x-client", "nobody")  # from a header
        answers.append(
            {
                "scaled": request["values"] * factor,
                "note": np.array([[f"{factor:g} times, for {client}".encode()]], dtype=np.object_),
            }
        )
    return answers


def bind(triton):
    triton.bind(
        model_name="Scale",
        infer_func=scale,
        inputs=[Tensor(name="values", dtype=np.float32, shape=(-1,))],
        outputs=[
            Tensor(name="scaled", dtype=np.float32, shape=(-1,)),
            Tensor(name="note", dtype=np.object_, shape=(1,)),
        ],
        config=ModelConfig(max_batch_size=16),
    )


if __name__ == "__main__":
    config = TritonConfig(
        http_header_forward_pattern="^x-client$", grpc_header_forward_pattern="^x-client$"
    )
    with Triton(config=config) as triton:
        bind(triton)
        triton.serve()
