# SPDX-License-Identifier: Apache-2.0
"""A model of the core as a front end in another process sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.serving.engine.model_state import UNLOADED, ModelState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytriton.base.model_spec import ModelSpec
    from pytriton.runtime.executor.inference import Inference
    from pytriton.runtime.transport.frontend_frames import ModelRecord, ModelStateRecord
    from pytriton.serving.server.frontend.core_link import CoreLink


class RemoteModel:
    """Passes requests to the core, which decides on its lifecycle. See `ServedModel`."""

    prefers_columns = True  # two processes have less to write and to read

    def __init__(self, link: CoreLink, description: ModelRecord, spec: ModelSpec) -> None:
        self.number = description.number
        self.spec = spec
        self.is_bound = description.is_bound
        self.config_json = description.config_json
        self.has_ready_check = description.has_ready_check
        self.takes_columns = description.takes_columns
        self.state = ModelState.LOADING
        self.reason = ""
        self.is_ready = False
        self.on_changed: Callable[[], None] = lambda: None
        self._link = link
        self.version_text = str(spec.version)
        self.cancel = link.cancel
        self.pause = link.pause
        self.resume = link.resume

    def update(self, status: ModelStateRecord) -> None:
        """Apply a state that the core has sent."""
        self.state = ModelState(status.state)
        self.reason = status.reason
        self.is_ready = status.is_ready
        self.on_changed()

    @property
    def is_withdrawn(self) -> bool:
        """Whether it was unloaded on purpose, so that readiness does not wait for it."""
        return self.state is ModelState.UNLOADING or self.reason == UNLOADED

    async def check_ready(self) -> bool:
        """Returns the result of the model's own readiness check."""
        answer: bool = await self._link.ask("check_model", number=self.number)
        return answer

    # Requests

    def body_memory(self, size: int, header_bytes: int) -> memoryview | None:
        """Allocate shared memory of this process, which the core passes on to instances."""
        return self._link.memory.body_memory(size, header_bytes)

    def submit(self, inference: Inference, now_ns: int, *, is_alone: bool = False) -> None:
        """Send a request to the core; raises UnavailableError if there is no memory for it."""
        self._link.submit(self, inference)

    def submit_chunk(
        self, inferences: Sequence[Inference], now_ns: int, *, is_complete: bool = False
    ) -> None:
        """Send the members of a chunk to the core; at once if nothing is gathered any more."""
        self._link.submit_chunk(self, inferences)
        if is_complete:
            self._link.flush()

    def is_start_due(self, count: int) -> bool:
        """Returns False: the core decides, and messages with many requests are best."""
        return False

    def __repr__(self) -> str:
        return f"<RemoteModel {self.spec.name} version {self.spec.version} {self.state.value}>"
