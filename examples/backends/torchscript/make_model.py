# SPDX-License-Identifier: Apache-2.0
import sys

import torch

path = sys.argv[1] if len(sys.argv) > 1 else "model.pt"
network = torch.nn.Sequential(
    torch.nn.Linear(2, 2),
    torch.nn.ReLU(),
    torch.nn.Linear(2, 1),
)
weights = {
    "0.weight": [[1, 1], [1, 1]],
    "0.bias": [0, -1],
    "2.weight": [[1, -2]],
    "2.bias": [0],
}
network.load_state_dict({name: torch.tensor(values) for name, values in weights.items()})
torch.jit.save(torch.jit.script(network.eval()), path)
