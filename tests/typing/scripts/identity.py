# SPDX-License-Identifier: Apache-2.0
# pyright: standard
"""A user's program with a lambda, whose parameters have no types; strict checkers want them."""

import numpy as np

from pytriton.model_config import Tensor
from pytriton.triton import Triton

TENSORS = [Tensor(dtype=np.float32, shape=(-1,))]

with Triton() as triton:
    triton.bind("Identity", lambda requests: requests, TENSORS, TENSORS)
