# SPDX-License-Identifier: Apache-2.0
"""A repository on disk, a loader without processes, and what decides between them."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

from pytriton.base.errors import ServerError
from pytriton.base.model_spec import ModelSpec
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.config import config_to_json
from pytriton.serving.engine.engine import Engine
from pytriton.serving.engine.model import Model
from pytriton.serving.repository.loading.ensemble_loader import StepModels
from pytriton.serving.repository.loading.plans import VersionPlan
from pytriton.serving.repository.model_repositories import ModelRepositories
from pytriton.serving.repository.reading.config_files import check_model_files
from pytriton.serving.repository.settings import ControlMode, RepositorySettings
from tests.e2e.loop_waiting import comes_true
from tests.e2e.waiting import DEADLINE_S
from tests.fakes import FakeInstance, RecordingSink, model_spec, request

CODE = "class TritonPythonModel:\n    def execute(self, requests): ...\n"
CONFIG = 'backend: "python"\n'
ALL_VERSIONS = CONFIG + "version_policy { all { } }"
_ticks = itertools.count(1)


def write_model(
    repository: Path, name: str = "m", config: str | None = CONFIG, versions=("1",)
) -> Path:
    """A model's directory; without a configuration where it is None."""
    directory = repository / name
    directory.mkdir(parents=True)
    if config is not None:
        (directory / "config.pbtxt").write_text(config)
    for version in versions:
        write_code(directory, version)
    return directory


def write_code(directory: Path, version: str = "1", code: str = CODE) -> None:
    """A version, newer than all that was written before."""
    path = directory / version / "model.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(code + f"# {next(_ticks)} {'x' * next(_ticks)}\n")


def write_config(directory: Path, text: str) -> None:
    (directory / "config.pbtxt").write_text(f"# {'x' * next(_ticks)}\n{text}")


def _spec_of(plan: VersionPlan) -> ModelSpec:
    return model_spec(batches=False, name=plan.name, version=plan.version, namespace=plan.namespace)


class FakeVersion:
    """A loaded version with one instance."""

    def __init__(self, plan: VersionPlan, loop: asyncio.AbstractEventLoop) -> None:
        self.plan = plan
        self.model = Model(
            _spec_of(plan),
            loop,
            config_json=config_to_json(plan.config),
        )
        self.instance = FakeInstance("i", self.model)
        self.model.add_instance(self.instance)
        self.is_retired = False
        self.is_current = True

    async def drain_and_stop(self, timeout_s: float | None = None) -> None:
        await self.model.drain(timeout_s)
        self.model.stop()
        self.is_retired = True


class FakeLoader:
    """Keeps what it was asked for; versions fail or wait as a test says."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.loaded: list[FakeVersion] = []
        self.asked: list[tuple[str, int]] = []
        self.failures: dict[tuple[str, int], list[Exception]] = {}  # one for each attempt
        self.gates: dict[str, asyncio.Event] = {}
        self.running: Counter[str] = Counter()
        self.most_at_once = 0
        self.most_of_one = 0
        self.on_load: Any = None

    async def load(self, plan: VersionPlan) -> FakeVersion:
        check_model_files(plan.config, (plan.version_directory, plan.model_directory))
        self.asked.append((plan.name, plan.version))
        self.running[plan.name] += 1
        self.most_at_once = max(self.most_at_once, self.running.total())
        self.most_of_one = max(self.most_of_one, *self.running.values())
        try:
            if self.on_load is not None:
                await self.on_load(plan)
            if plan.name in self.gates:
                await self.gates[plan.name].wait()
            if failures := self.failures.get((plan.name, plan.version)):
                raise failures.pop(0)
        finally:
            self.running[plan.name] -= 1
        self.loaded.append(FakeVersion(plan, self._loop))
        return self.loaded[-1]

    @property
    def alive(self) -> list[FakeVersion]:
        return [version for version in self.loaded if not version.is_retired]


class Scene:
    """Everything around `ModelRepositories`, driven from plain test functions."""

    def __init__(
        self, *repositories: Path, mode: str = "explicit", finder: Any = None, **settings: Any
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = Engine(namespacing="namespaces" in settings)
        self.loader = FakeLoader(self.loop)
        self.repository = repositories[0] if repositories else None
        self.settings = RepositorySettings(
            repositories=repositories, control_mode=ControlMode(mode), **settings
        )
        self.models = ModelRepositories(
            self.settings,
            self.engine,
            {"python": self.loader},
            self.loop,
            self._make_ensemble,
            finder,
        )
        self.ensembles: list[Model] = []

    def _make_ensemble(self, plan: VersionPlan, steps: StepModels) -> Model:
        """A model without instances: its requests stay in its queue."""
        spec = _spec_of(plan)
        self.ensembles.append(Model(spec, self.loop, config_json=config_to_json(steps.config)))
        return self.ensembles[-1]

    def close(self) -> None:
        self.run(self.models.stop(0.0))
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, DEADLINE_S))

    def task(self, work: Any) -> asyncio.Task[Any]:
        return self.loop.create_task(work)

    def until(self, condition: Any) -> None:
        assert self.loop.run_until_complete(comes_true(condition)), "it did not happen in time"

    def load(self, name: str = "m", config: str | None = None, files: Any = ()) -> None:
        self.run(self.models.load(name, config, dict(files)))

    def refusal(self, name: str = "m", config: str | None = None, files: Any = ()) -> ServerError:
        try:
            self.load(name, config, files)
        except ServerError as error:
            return error
        raise AssertionError(f"{name} was loaded")

    def unload(self, name: str = "m", **options: bool) -> None:
        self.run(self.models.unload(name, **options))

    def rows(self, name: str | None = None) -> list[IndexEntry]:
        return [row for row in self.models.index() if name is None or row.name == name]

    def submit(self, name: str = "m", version: str = "") -> RecordingSink:
        """A request; it runs until the version's instance is told to finish it."""
        sink = RecordingSink()
        self.engine.infer(request(model_name=name, model_version=version), sink)
        self.run(asyncio.sleep(0))
        return sink
