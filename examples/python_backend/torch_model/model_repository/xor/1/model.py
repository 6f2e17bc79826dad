# SPDX-License-Identifier: Apache-2.0
"""The smallest network that needs a hidden layer: exclusive or."""

from __future__ import annotations

import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        on_gpu = args["model_instance_kind"] == "GPU"
        self.device = f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu"
        torch.set_num_threads(1)  # more instances are the better use of more cores
        hidden, output = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
        self.network = torch.nn.Sequential(hidden, torch.nn.ReLU(), output).to(self.device)
        self.network.load_state_dict(
            {
                "0.weight": torch.tensor([[1.0, 1.0], [1.0, 1.0]]),
                "0.bias": torch.tensor([0.0, -1.0]),
                "2.weight": torch.tensor([[1.0, -2.0]]),
                "2.bias": torch.tensor([0.0]),
            }
        )
        self.network.eval()

    def execute(
        self, requests: list[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse]:
        """Run the network once for the rows of all requests, and give each its own back."""
        rows = [from_dlpack(request.inputs()[0]) for request in requests]
        with torch.inference_mode():
            results = self.network(torch.cat(rows).to(self.device)).cpu()
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("Y", part)])
            for part in results.split([len(part) for part in rows])
        ]
