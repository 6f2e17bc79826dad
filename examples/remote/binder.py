# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton


@batch
def double(x):
    return {"doubled": 2 * x}


def bind(triton):
    triton.bind(
        model_name="Double",
        infer_func=double,
        inputs=[Tensor(name="x", dtype=np.float32, shape=(1,))],
        outputs=[Tensor(name="doubled", dtype=np.float32, shape=(1,))],
        config=ModelConfig(max_batch_size=64),
    )


if __name__ == "__main__":
    url = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000"
    with RemoteTriton(url) as triton:
        bind(triton)
        triton.serve()
