# SPDX-License-Identifier: Apache-2.0
"""What suites share that compare our server with recorded answers of the real Triton.

A suite's folder has the real answers in `golden.json`, and ours in `ours.json` where they differ on
purpose and where the real server cannot be asked. `python -m tests.FOLDER.recording [NAME ...]`
takes the real ones again, all or those of the cases that are named, for which it needs the peers of
`scripts/setup-peers`; `... recording ours` takes ours, for a person to read and to justify.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import http.client
import json
import operator
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from pytriton.binding.template import ForkedProcess
from tests import peers, recorded_json
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports
from tests.started_command import COMMAND, python_path, start

START_DEADLINE_S = 120.0
STOP_DEADLINE_S = 60.0
COMMON_OPTIONS = (
    "--model-repository={models}",
    *(f"--{name}-port={{{name}}}" for name in ("http", "grpc", "metrics")),
    *(f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")),
)

Observation = Any  # plain JSON


@dataclasses.dataclass(frozen=True)
class Server:
    """Where a server listens, and what it wrote."""

    http: int
    grpc: int
    metrics: int
    repository: Path
    log: Path
    is_real: bool
    process: subprocess.Popen[bytes] | ForkedProcess | None = dataclasses.field(
        default=None, kw_only=True
    )

    @property
    def folder(self) -> str:
        return str(self.repository.parent)

    @property
    def command(self) -> list[str]:
        """How it is called, without options."""
        if self.is_real:
            return peers.triton_command()
        return list(COMMAND)

    @property
    def places(self) -> dict[str, object]:
        """What texts of options and of the environment have in braces."""
        ports = {name: getattr(self, name) for name in ("http", "grpc", "metrics")}
        return {"models": self.repository, "folder": self.folder, **ports}

    def filled(self, text: str) -> str:
        """A text with folders and ports in it."""
        for name, value in self.places.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text


AnyServer = TypeVar("AnyServer", bound=Server)


@contextlib.contextmanager
def running(
    write: Callable[[Path], None],
    *,
    is_real: bool,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    models: Iterable[str] = (),
) -> Iterator[Server]:
    """A server with the repository that `write` made, which has loaded `models`."""
    with tempfile.TemporaryDirectory() as name:
        repository = Path(name, "models")
        working_folder = Path(name, "working_folder")  # a model tells its name
        for folder in (repository, working_folder):
            folder.mkdir()
        write(repository)
        server = Server(*free_ports(3), repository, Path(name, "log"), is_real)
        explicit = (*COMMON_OPTIONS, "--model-control-mode=explicit", *options)
        with started(server, explicit, environment or {}, working_folder) as process_of_it:
            for model in models:
                load(process_of_it, model)
            yield process_of_it


@contextlib.contextmanager
def started(
    server: AnyServer,
    options: Iterable[str],
    environment: Mapping[str, str],
    working_folder: Path,
    ready: tuple[int, str] | None = None,
) -> Iterator[AnyServer]:
    """The server with its process, which has said that it is ready; `ready` is port and path."""
    own = {name: server.filled(text) for name, text in environment.items()}
    ours = {} if server.is_real else {"PYTHONPATH": python_path()}
    with server.log.open("wb") as output:
        process = start(
            [*server.command, *map(server.filled, options)],
            working_folder,
            {**os.environ, **ours, **own},
            output.fileno(),
            output.fileno(),
        )
    server = dataclasses.replace(server, process=process)
    port, path = ready or (server.http, "/v2/health/ready")
    try:
        if not eventually(lambda: _is_ready(server, port, path), START_DEADLINE_S):
            raise TimeoutError(f"not ready: {server.log.read_text(errors='replace')}")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=STOP_DEADLINE_S)
        finally:
            process.kill()


def _is_ready(server: Server, port: int, path: str) -> bool:
    code = server.process.poll()
    if code is not None:
        raise RuntimeError(f"ended with {code}: {server.log.read_text(errors='replace')}")
    with contextlib.suppress(OSError, http.client.HTTPException):
        return _status_and_body("GET", port, path)[0] == http.HTTPStatus.OK
    return False


def load(server: Server, model: str) -> None:
    status, body = _status_and_body("POST", server.http, f"/v2/repository/models/{model}/load")
    if status != http.HTTPStatus.OK:
        raise RuntimeError(f"{model} is not loaded: {body!r}")


def _status_and_body(method: str, port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_DEADLINE_S)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that both servers are asked."""

    name: str
    ask: Callable[[Server], Observation]
    only_ours: bool = False  # what the real server does not survive, or never answers


def whole(case: Case, server: Server) -> Mapping[str, Observation]:
    """One observation with the name of the case."""
    return {case.name: case.ask(server)}


def grouped(case: Case, server: Server) -> Mapping[str, Observation]:
    """Each of the observations of a case that gives several by name."""
    return {f"{case.name}: {name}": seen for name, seen in case.ask(server).items()}


@dataclasses.dataclass(frozen=True)
class Suite:
    """What is asked of which servers, and where the answers are kept."""

    folder: Path
    start: Callable[..., AbstractContextManager[Server]]  # takes `is_real`
    cases: Sequence[Case]
    asked: Callable[[Case, Server], Mapping[str, Observation]] = whole
    real_lives: int = 1  # more where the real server dies now and then of what models do wrong
    # By the name of an observation. What was recorded of others is kept: the real server survives
    # them too rarely to be asked again.
    is_asked_again: Callable[[str], bool] = lambda _: True

    @property
    def golden(self) -> Path:
        return self.folder / "golden.json"

    @property
    def ours(self) -> Path:
        return self.folder / "ours.json"

    def recorded(self) -> tuple[dict[str, Observation], dict[str, Observation]]:
        """The real answers, and ours where they are kept."""
        return recorded_json.load(self.golden), recorded_json.load(self.ours)

    def asked_again(self) -> dict[str, Observation]:
        """The recorded answers that the real server still has to give."""
        real = recorded_json.load(self.golden)
        return {name: seen for name, seen in real.items() if self.is_asked_again(name)}

    def answers(
        self, names: Collection[str] = (), *, is_real: bool = False, **settings: Any
    ) -> dict[str, Observation]:
        """What a server answers to all cases, or to those that are named, as it is stored.

        Where the real server dies, the next one is asked for the rest.
        """
        seen: dict[str, Observation] = {}
        waiting = [
            case
            for case in self.cases
            if (not names or case.name in names) and not (is_real and case.only_ours)
        ]
        lives = self.real_lives if is_real else 1
        for life in range(lives):
            with self.start(is_real=is_real, **settings) as server:
                try:
                    while waiting:
                        found = self.asked(waiting[0], server)
                        if found.keys() & seen.keys():
                            raise ValueError(f"two cases tell {found.keys() & seen.keys()}")
                        seen.update(found)
                        waiting.pop(0)
                except (OSError, http.client.HTTPException):
                    if life == lives - 1:
                        raise
                    server.process.kill()
            if not waiting:
                break
        stored: dict[str, Observation] = json.loads(json.dumps(seen))
        return stored

    def record(self, arguments: Sequence[str]) -> int:
        """What the command of a suite does; its exit status."""
        if list(arguments) == ["ours"]:
            golden, seen = recorded_json.load(self.golden), self.answers()
            different = {name for name in seen if name not in golden or seen[name] != golden[name]}
            return recorded_json.write(self.ours, {name: seen[name] for name in different})
        if peers.missing():
            sys.stderr.write(f"{peers.missing()}\n")
            return 1
        real = recorded_json.load(self.golden)
        kept = {name: real[name] for name in real if arguments or not self.is_asked_again(name)}
        return recorded_json.write(self.golden, {**kept, **self.answers(arguments, is_real=True)})

    def mistakes(self, reasons: Mapping[str, str]) -> dict[str, list[str]]:
        """See below. What names the observations of a group have is known when they are asked."""
        real, different = self.recorded()
        if self.asked is not whole:
            return mistakes(real, different, reasons)
        names = [case.name for case in self.cases]
        only_ours = {case.name for case in self.cases if case.only_ours}
        return mistakes(real, different, reasons, names=names, only_ours=only_ours)


def mistakes(
    real: Mapping[str, Observation],
    different: Mapping[str, Observation],
    reasons: Mapping[str, str],
    *,
    names: Sequence[str] | None = None,
    only_ours: Collection[str] = (),
    are_same: Callable[[Observation, Observation], bool] = operator.eq,
) -> dict[str, list[str]]:
    """What does not fit together in recordings: names by what is wrong with them.

    `different` has our answers where they are not the real ones, and to what `only_ours` is asked,
    `reasons` why they differ. Cases whose `names` are not given may have any.
    """
    compared = different.keys() & real.keys()
    wrong: dict[str, Collection[str]] = {
        "different without a reason": compared - {name for name in reasons if reasons[name]},
        "reason without a difference": reasons.keys() - compared,
        "not different": {name for name in compared if are_same(real[name], different[name])},
    }
    if names is not None:
        wrong["named twice"] = {name for name, n in collections.Counter(names).items() if n > 1}
        wrong["not recorded"] = set(names) - set(only_ours) - real.keys()
        wrong["not recorded of ours"] = set(only_ours) - different.keys()
        wrong["recorded of the real one"] = real.keys() & set(only_ours)
        wrong["recorded without a case"] = {*real, *different} - set(names)
    return {kind: sorted(found) for kind, found in wrong.items() if found}
