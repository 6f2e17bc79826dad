# SPDX-License-Identifier: Apache-2.0
"""Models whose requests may take the fast path, and twins of theirs whose requests may not.

A batch of the fast path has one shape for each input, so a model that takes ragged batches does not
use it. For a `model.py`, which gets requests one by one, nothing else is different.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from tests.repository_e2e.model_files import Files

# Gives all inputs back, doubled if they are numbers; refuses what begins with 13.
CODE = """
import numpy as np
import triton_python_backend_utils as pb_utils

def answer(request):
    outputs = []
    for tensor in request.inputs():
        name = tensor.name().replace("in", "out")
        if IS_BRAIN:
            outputs.append(pb_utils.Tensor.from_dlpack(name, tensor.to_dlpack()))
            continue
        array = tensor.as_numpy()
        if array.size and array.ravel()[0] in (13, b"13"):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("no 13, please"))
        outputs.append(pb_utils.Tensor(name, array if array.dtype == object else array + array))
    names = request.requested_output_names()
    return pb_utils.InferenceResponse([output for output in outputs if output.name() in names])

class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]
"""
PRIORITIES = """dynamic_batching {
    priority_levels: 3 default_priority_level: 2
    default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 600000000 }
}"""


@dataclass(frozen=True)
class ModelUnderTest:
    """A model with as many inputs as dims; `dtype` is a name of the protocol."""

    name: str
    dtype: str
    dims: tuple[int, ...] = (-1, -1)
    batching: str = "dynamic_batching { }"
    max_batch_size: int = 8

    @property
    def inputs(self) -> list[str]:
        return [f"in{number}" for number in range(len(self.dims))]

    @property
    def outputs(self) -> list[str]:
        return [f"out{number}" for number in range(len(self.dims))]

    @property
    def numpy(self) -> np.dtype:
        """The type of its elements; that of texts is object."""
        return NUMPY_TYPES[self.dtype]

    def files(self, *, takes_fast_path: bool) -> Files:
        ragged = "" if takes_fast_path else "allow_ragged_batch: true"
        kind = f"data_type: TYPE_{self.dtype.replace('BYTES', 'STRING')}"
        tensors = list(zip(self.inputs, self.outputs, self.dims, strict=True))
        inputs = ", ".join(f'{{ name: "{n}" {kind} dims: {d} {ragged} }}' for n, _, d in tensors)
        outputs = ", ".join(f'{{ name: "{n}" {kind} dims: {d} }}' for _, n, d in tensors)
        config = f"""name: "{self.name}" backend: "python" max_batch_size: {self.max_batch_size}
            {self.batching} input [ {inputs} ] output [ {outputs} ]"""
        code = f"IS_BRAIN = {self.dtype == 'BF16'}\n" + CODE
        return {"config.pbtxt": config, "1/model.py": code}


NUMPY_TYPES = {
    "FP32": np.dtype(np.float32),
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "INT64": np.dtype(np.int64),
    "UINT8": np.dtype(np.uint8),
    "BOOL": np.dtype(bool),
    "BYTES": np.dtype(object),
}
MODELS = [
    ModelUnderTest("numbers", "FP32"),
    ModelUnderTest("fixed", "FP32", (2, 1)),
    ModelUnderTest("texts", "BYTES", (-1,)),
    ModelUnderTest("half", "FP16", (2,)),
    ModelUnderTest("brain", "BF16", (1,)),
    ModelUnderTest("whole", "INT64", (1, 3)),
    ModelUnderTest("bytes", "UINT8", (-1,)),
    ModelUnderTest("flags", "BOOL", (2,)),
    ModelUnderTest("urgent", "FP32", (1, 1), PRIORITIES),
]


def repository(*, takes_fast_path: bool) -> dict[str, Files]:
    return {model.name: model.files(takes_fast_path=takes_fast_path) for model in MODELS}
