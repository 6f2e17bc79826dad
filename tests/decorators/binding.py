# SPDX-License-Identifier: Apache-2.0
"""Gives callables their context as binding them does."""

import numpy as np

from pytriton.decorators import TritonContext
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig
from pytriton.models.model import _inject_triton_context


def bound(infer_func, *, inputs=("a", "b"), outputs=("x", "y"), context=None, **changes):
    """`infer_func` as if it was bound as a model with float32 tensors of any shape."""
    context = context or TritonContext()
    config = TritonModelConfig(
        model_name="model",
        inputs=[_spec(tensor) for tensor in inputs],
        outputs=[_spec(tensor) for tensor in outputs],
        **changes,
    )
    context.model_configs[infer_func] = config
    return _inject_triton_context(context, infer_func)


def _spec(tensor):
    return TensorSpec(tensor, (-1,), np.float32) if isinstance(tensor, str) else tensor
