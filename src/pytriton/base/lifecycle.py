# SPDX-License-Identifier: Apache-2.0
"""When a server starts, and how it gets the models bound to it."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class TritonLifecyclePolicy:
    """When the server starts and how it gets the bound models.

    Args:
        launch_triton_on_startup: start the server on entering the `Triton` context. Otherwise
            models are bound first, and `run` or `serve` starts it.
        local_model_store: write each bound model to the model store in the workspace, where the
            server finds it when it starts, instead of sending it over the repository API.
    """

    launch_triton_on_startup: bool = True
    local_model_store: bool = False


DefaultTritonLifecyclePolicy: TritonLifecyclePolicy = TritonLifecyclePolicy()

# Vertex AI checks the health of a container before a model could be sent to it. Users import the
# name with this spelling.
VertextAILifecyclePolicy: TritonLifecyclePolicy = TritonLifecyclePolicy(
    launch_triton_on_startup=False, local_model_store=True
)
