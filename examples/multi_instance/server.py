# SPDX-License-Identifier: Apache-2.0
import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

try:
    import torch
except ImportError:
    torch = None

SIZE, INSTANCES = 64, 4


class NumpyModel:
    def __init__(self, weights):
        self.weights = weights

    @batch
    def __call__(self, image):
        return {"score": np.maximum(image @ self.weights, 0).sum(axis=1, keepdims=True)}


class TorchModel:
    def __init__(self, weights):
        # One device for each instance where there are several: "cuda:0", "cuda:1" and so on.
        self.weights = torch.from_numpy(weights).to("cpu")

    @batch
    def __call__(self, image):
        with torch.inference_mode():
            hidden = torch.relu(torch.from_numpy(image) @ self.weights)
            return {"score": hidden.sum(dim=1, keepdim=True).numpy()}


def bind(triton):
    model = NumpyModel if torch is None else TorchModel
    if torch is not None:
        torch.set_num_threads(1)  # the instances run side by side, each on a core of its own
    weights = np.eye(SIZE, dtype=np.float32)
    triton.bind(
        model_name="Score",
        infer_func=[model(weights) for _ in range(INSTANCES)],
        inputs=[Tensor(name="image", dtype=np.float32, shape=(SIZE,))],
        outputs=[Tensor(name="score", dtype=np.float32, shape=(1,))],
        config=ModelConfig(max_batch_size=8),
    )


if __name__ == "__main__":
    with Triton() as triton:
        bind(triton)
        triton.serve()
