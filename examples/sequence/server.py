# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, SequenceBatcher, SequenceState, Tensor
from pytriton.triton import Triton


@batch
def average(value, total, count):
    """Each row is a request of another sequence, with the states of that sequence."""
    total, count = total + value, count + 1
    return {"average": total / count, "next_total": total, "next_count": count}


def bind(triton):
    triton.bind(
        model_name="Average",
        infer_func=average,
        inputs=[Tensor(name="value", dtype=np.float32, shape=(1,))],
        outputs=[Tensor(name="average", dtype=np.float32, shape=(1,))],
        config=ModelConfig(
            max_batch_size=16,
            sequence=SequenceBatcher(
                states=[
                    SequenceState("total", "next_total", np.float32, (1,)),
                    SequenceState("count", "next_count", np.float32, (1,)),
                ]
            ),
        ),
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
