# SPDX-License-Identifier: Apache-2.0
"""A server without ports for random clients, whose models answer at once."""

from __future__ import annotations

import time

from pytriton.base.log_switches import LogSwitches
from pytriton.base.messages import InferResponse
from pytriton.runtime.executor.inference import Inference, Outcome, RunningBatch
from pytriton.serving.server.process.logs import use_log_switches
from tests.server.control_fakes import ENTRIES, FakeControl
from tests.server.http_models import floats, text
from tests.server.openai.openai_service import OpenAIService, rows

# Longer than any timeout of a client.
PATIENCE_S = 10_000


class AnsweringService(OpenAIService):
    """Loads of models succeed, and inferences are answered by `answer`."""

    def __init__(self, **options) -> None:
        control = FakeControl(*ENTRIES)
        control.finish()
        super().__init__(control=control, **options)
        self._answered = dict.fromkeys(self.instances, 0)

    def answer(self) -> bool:
        """Answer what models were asked; returns whether there was something."""
        self.loop.run()
        was_asked = False
        for name, instance in self.instances.items():
            while self._answered[name] < len(instance.inferences):
                was_asked = True
                self._answer_one(name, instance.inferences[self._answered[name]])
                self._answered[name] += 1
        self.loop.run()
        return was_asked

    def _answer_one(self, name: str, inference: Inference) -> None:
        if name == "double":
            output = floats(1.0)
        elif name == "vectors":
            output = rows(*[[1.0, 2.0]] * inference.request.inputs["input"].shape[0])
        else:
            output = text("ok")
        response = InferResponse(name, "1", inference.request.fields.id, [output])
        now_ns = time.monotonic_ns()
        batch = RunningBatch(1, [inference], now_ns, {0})
        self.instances[name]._model.on_outcomes(
            self.instances[name], batch, [Outcome(0, response, None, True)], (now_ns, now_ns)
        )

    def check_idle(self) -> None:
        """Assert that no request is left in any model."""
        use_log_switches(LogSwitches())  # a client may have changed those of this process
        for model in self.engine.models():
            model.check_integrity()
            assert not model.is_busy, model
