# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.decorators import batch, fill_optionals, first_value, group_by_values
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton


@fill_optionals(exponent=np.array([2], dtype=np.float32))
@batch
@group_by_values("exponent")
@first_value("exponent")
def power(base, exponent):
    # All rows of this call agree on the exponent, so it comes as one number.
    return {"power": base**exponent}


def bind(triton):
    triton.bind(
        model_name="Power",
        infer_func=power,
        inputs=[
            Tensor(name="base", dtype=np.float32, shape=(-1,)),
            Tensor(name="exponent", dtype=np.float32, shape=(1,), optional=True),
        ],
        outputs=[Tensor(name="power", dtype=np.float32, shape=(-1,))],
        config=ModelConfig(max_batch_size=32),
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
