# SPDX-License-Identifier: Apache-2.0
"""The runtime of a model in a harness: functions for other models, logs, and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytriton.base.errors import ServerError
from pytriton.runtime.pb_utils.failures import TritonModelException
from pytriton.runtime.pb_utils.request import InferenceRequest
from pytriton.serving.repository.services.custom_metrics import CustomMetrics, WorkerMetrics
from pytriton.testing.records import LogLine
from pytriton.testing.targets import Target, TargetCall


class HarnessRuntime:
    """The runtime of a model in a test, which records the model's calls."""

    def __init__(
        self,
        instance_name: str,
        model_directory: str,
        models: Mapping[str, Target],
        backend_config: Mapping[str, str],
    ) -> None:
        self.instance_name = instance_name
        self.model_directory = model_directory
        self.backend_config = backend_config
        self.can_infer = False  # True between `initialize` and `finalize`
        self.logs: list[LogLine] = []
        self.calls: list[InferenceRequest] = []
        self._models = dict(models)
        self._ready = set(models)
        self._metrics = CustomMetrics()
        own = WorkerMetrics(self._metrics)
        self._actions: dict[str, Callable[..., Any]] = {
            "load_model": self._load_model,
            "unload_model": self._unload_model,
            "is_model_ready": self._is_model_ready,
            "new_family": own.new_family,
            "delete_family": own.delete_family,
            "new_metric": own.new_metric,
            "delete_metric": own.delete_metric,
            "increment": own.increment,
            "set": own.set,
            "observe": own.observe,
            "value": own.value,
        }

    def infer(
        self, request: InferenceRequest, *, decoupled: bool, is_awaited: bool = False
    ) -> TargetCall:
        """See `Runtime.infer`."""
        if not self.can_infer:
            raise TritonModelException("BLS is only supported during the 'execute' function.")
        self.calls.append(request)
        name = request.model_name
        target = self._models[name] if name in self._ready else None
        return TargetCall(request, target, decoupled=decoupled)

    def call(self, action: str, **arguments: Any) -> Any:
        """See `Runtime.call`."""
        try:
            return self._actions[action](**arguments)
        except ServerError as error:
            raise TritonModelException(error.message) from error

    def notify(self, action: str, **arguments: Any) -> None:
        """See `Runtime.notify`."""
        self.call(action, **arguments)

    def log(self, level: str, message: str, file: str, line: int) -> None:
        """See `Runtime.log`."""
        self.logs.append(LogLine(level, message, file, line))

    def metrics(self) -> dict[str, float]:
        """Returns all values, by name and labels as on the metrics page."""
        return {
            f"{family.name}{suffix}{_label_text(labels)}": value
            for family in self._metrics.families()
            for suffix, labels, value in family.readings()
        }

    def _load_model(self, name: str, config: str, files: dict[str, bytes]) -> None:
        if name not in self._models:
            raise TritonModelException(
                f"failed to load '{name}', the harness was given no function of this name, only"
                f" {sorted(self._models)}"
            )
        self._ready.add(name)

    def _unload_model(self, name: str, unload_dependents: bool) -> None:
        self._ready.discard(name)

    def _is_model_ready(self, name: str, version: str) -> bool:
        return name in self._ready


def _label_text(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
