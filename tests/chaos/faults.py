# SPDX-License-Identifier: Apache-2.0
"""Does the faults of a schedule to the processes, files and clients of a server.

Each fault is an event of the time line, which has effects until the server has recovered. A server
that does not recover in time is a finding.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import http.client
import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.chaos.processes import Process, Role
from tests.chaos.schedule import Fault, Kind
from tests.chaos.servers import ChaosServer
from tests.chaos.timeline import Event, Timeline
from tests.e2e.http_client import Answer
from tests.e2e.waiting import DEADLINE_S
from tests.workload.oracle import Cause

RECOVERY_S = DEADLINE_S  # on a busy machine, with faults that overlap
_POLL_S = 0.05
# Five crashes within a minute would end the service of a version. Faults of other kinds may let
# a process end, too.
_KILLS_A_MINUTE = 3
_BROKEN = "raise RuntimeError('this file is broken on purpose')\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Catalogue:
    """What a schedule may do to the models of a server."""

    above: Mapping[str, frozenset[str]]  # models that fail with a model, itself included
    changeable: Sequence[str]  # may be unloaded and loaded

    def affected(self, *models: str) -> frozenset[str]:
        return frozenset().union(*(self.above.get(each, {each}) for each in models))


class FaultError(Exception):
    """A fault that the server should have survived, and did not."""


class Faults:
    """Does faults, each in a task of its own."""

    def __init__(self, server: ChaosServer, catalogue: Catalogue, line: Timeline) -> None:
        self._server = server
        self._catalogue = catalogue
        self._line = line
        self._clock = line.now
        self.hits: collections.Counter[str] = collections.Counter()
        self.problems: list[tuple[str, float, float]] = []
        self._kills: dict[str, collections.deque[float]] = collections.defaultdict(
            collections.deque
        )
        self._model_locks: dict[str, asyncio.Lock] = collections.defaultdict(asyncio.Lock)
        self._disk_lock = asyncio.Lock()
        self._zygote_lock = asyncio.Lock()  # of workers: who stops it lets it run again
        self._rotations = 0

    async def run(self, faults: Sequence[Fault]) -> None:
        """Do all of them at their times; returns when the server has recovered from each."""
        began_s = self._clock()
        tasks = []
        for fault in faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - self._clock()))
            tasks.append(asyncio.create_task(self._do(fault)))
        await asyncio.gather(*tasks)

    async def _do(self, fault: Fault) -> None:
        began_s = self._clock()
        actions = {
            Kind.KILL_WORKER: self._kill_worker,
            Kind.KILL_WORKER_ZYGOTE: self._kill_worker_zygote,
            Kind.KILL_FRONT_END: self._kill_front_end,
            Kind.KILL_FRONT_END_ZYGOTE: self._kill_front_end_zygote,
            Kind.KILL_CODEC: self._kill_codec,
            Kind.STOP_FRONT_END: self._stop_front_end,
            Kind.STOP_WORKER_ZYGOTE: self._stop_worker_zygote,
            Kind.KEEP_WORKER_DEAD: self._keep_worker_dead,
            Kind.KILL_LOADING_WORKER: self._kill_loading_worker,
            Kind.UNLOAD: self._unload,
            Kind.RELOAD: self._reload,
            Kind.RELOAD_BROKEN: self._reload_broken,
            Kind.TAKE_DESCRIPTORS: self._take_descriptors,
            Kind.FILL_DISK: self._fill_disk,
            Kind.ROTATE_LOGS: self._rotate_logs,
        }
        action = actions.get(fault.kind, self._stop)
        try:
            has_hit = await action(fault)
        except FaultError as error:
            self.problems.append((f"{fault.kind.value}: {error}", began_s, self._clock()))
            has_hit = True
        if has_hit:
            self.hits[fault.kind.value] += 1
        else:
            self._line.mark(f"{fault.kind.value}: nothing to hit")

    # Finding and waiting

    async def _pick(self, fault: Fault, *roles: Role) -> Process | None:
        found = await asyncio.to_thread(self._server.of_role, *roles)
        return found[int(fault.choice * len(found))] if found else None

    async def _until(self, condition: Callable[[], object], what: str) -> None:
        deadline_s = self._clock() + RECOVERY_S
        while not await asyncio.to_thread(condition):
            if self._clock() > deadline_s:
                raise FaultError(f"{what} took longer than {RECOVERY_S:.0f} s")
            await asyncio.sleep(_POLL_S)

    def _has_successor(self, old: Process) -> bool:
        """Whether another process is in the place of one that ended."""
        return not old.is_running() and any(
            each.key == old.key and not each.is_zombie for each in self._server.family()
        )

    # Processes

    def _may_kill(self, model: str) -> bool:
        now_s, kills = self._clock(), self._kills[model]
        while kills and kills[0] < now_s - 65.0:
            kills.popleft()
        if len(kills) >= _KILLS_A_MINUTE:
            return False
        kills.append(now_s)
        return True

    async def _kill_worker(self, fault: Fault) -> bool:
        worker = await self._pick(fault, Role.WORKER)
        if worker is None:
            return False
        async with self._model_locks[worker.model]:
            if not worker.is_running() or not self._may_kill(worker.model):
                return False
            text, models = f"kill {worker.key} ({worker.pid})", [worker.model]
            with self._line.event(text, Cause.WORKER_KILLED, models=models):
                if not worker.send(signal.SIGKILL):
                    return False
                await self._until(lambda: self._has_successor(worker), "its replacement")
                await self._until(lambda: self._server.is_ready(worker.model), "its readiness")
        return True

    async def _kill_worker_zygote(self, fault: Fault) -> bool:
        async with self._zygote_lock:
            zygote = await self._pick(fault, Role.WORKER_ZYGOTE)
            if zygote is None:
                return False
            with self._line.event(f"kill {zygote.key} ({zygote.pid})", Cause.WORKER_KILLED):
                if not zygote.send(signal.SIGKILL):
                    return False
                await self._until(lambda: self._has_successor(zygote), "its replacement")
                await self._until(self._all_ready_or_unloaded, "readiness")
        return True

    def _all_ready_or_unloaded(self) -> bool:
        """Whether all models serve but those that a fault has unloaded just now."""
        return all(
            self._model_locks[name].locked() or self._server.is_ready(name)
            for name in self._catalogue.above
        )

    async def _kill_front_end(self, fault: Fault) -> bool:
        return await self._kill_front_end_process(fault, Role.FRONT_END)

    async def _kill_front_end_zygote(self, fault: Fault) -> bool:
        return await self._kill_front_end_process(fault, Role.FRONT_END_ZYGOTE)

    async def _kill_front_end_process(self, fault: Fault, role: Role) -> bool:
        victim = await self._pick(fault, role)
        if victim is None:
            return False
        with self._line.event(f"kill {victim.key} ({victim.pid})", Cause.FRONT_END_KILLED):
            if not victim.send(signal.SIGKILL):
                return False
            await self._until(lambda: self._has_successor(victim), "its replacement")
        return True

    async def _kill_codec(self, fault: Fault) -> bool:
        codec = await self._pick(fault, Role.CODEC)
        if codec is None:
            return False
        with self._line.event(f"kill {codec.key} ({codec.pid})", Cause.EXHAUSTED):
            if not codec.send(signal.SIGKILL):
                return False
            await self._until(codec.has_ended, "its end")
        return True

    async def _stop_front_end(self, fault: Fault) -> bool:
        """One that is stopped for longer than the server's patience is replaced."""
        victim = await self._pick(fault, Role.FRONT_END)
        if victim is None:
            return False
        may_be_replaced = fault.lasts_s > 2.0
        cause = Cause.FRONT_END_KILLED if may_be_replaced else Cause.STALLED
        text = f"stop {victim.key} ({victim.pid}) for {fault.lasts_s:.1f} s"
        with self._line.event(text, cause) as event:
            await self._stop_for(victim, fault.lasts_s)
            if not victim.is_running():
                event.notes.append("it was replaced")
                await self._until(lambda: self._has_successor(victim), "its replacement")
        return True

    async def _stop(self, fault: Fault) -> bool:
        role = {
            Kind.STOP_WORKER: Role.WORKER,
            Kind.STOP_WORKER_ZYGOTE: Role.WORKER_ZYGOTE,
            Kind.STOP_CODEC: Role.CODEC,
            Kind.STOP_FRONT_END_ZYGOTE: Role.FRONT_END_ZYGOTE,
            Kind.STOP_SERVER: Role.SERVER,
            Kind.STOP_SCRIPT: Role.SCRIPT,
        }[fault.kind]
        victim = await self._pick(fault, role)
        if victim is None:
            return False
        text = f"stop {victim.key} ({victim.pid}) for {fault.lasts_s:.1f} s"
        with self._line.event(text, Cause.STALLED):
            await self._stop_for(victim, fault.lasts_s)
        return True

    async def _stop_for(self, victim: Process, seconds: float) -> None:
        victim.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            victim.send(signal.SIGCONT)

    async def _stop_worker_zygote(self, fault: Fault) -> bool:
        async with self._zygote_lock:
            return await self._stop(fault)

    async def _keep_worker_dead(self, fault: Fault) -> bool:
        """Kill the only worker of a model while none can be started; health has to say so."""
        zygote = await self._pick(fault, Role.WORKER_ZYGOTE)
        alone = await self._workers_alone()
        if zygote is None or not alone:
            return False
        worker = alone[int(fault.choice * len(alone))]
        async with self._zygote_lock, self._model_locks[worker.model]:
            # Until the locks were free, the model may have been loaded again. Then this is the
            # worker of the old version, which ends, and another one serves.
            is_alone = any(each.pid == worker.pid for each in await self._workers_alone())
            if not is_alone or not self._may_kill(worker.model):
                return False
            text = f"kill {worker.key} ({worker.pid}) with a stopped zygote ({zygote.pid})"
            models = [worker.model]
            with self._line.event(text, Cause.WORKER_KILLED, models=models) as event:
                try:
                    zygote.send(signal.SIGSTOP)
                    worker.send(signal.SIGKILL)
                    await self._until_not_ready(worker, zygote, fault.lasts_s, event)
                finally:
                    zygote.send(signal.SIGCONT)
                await self._until(lambda: self._has_successor(worker), "its replacement")
                await self._until(lambda: self._server.is_ready(worker.model), "its readiness")
        return True

    async def _workers_alone(self) -> list[Process]:
        """The workers whose models have no other one."""
        workers = await asyncio.to_thread(self._server.of_role, Role.WORKER)
        models = collections.Counter(each.model for each in workers)
        return [each for each in workers if models[each.model] == 1]

    async def _until_not_ready(
        self, worker: Process, zygote: Process, limit_s: float, event: Event
    ) -> None:
        end_s = self._clock() + limit_s
        while self._clock() < end_s:
            if not await asyncio.to_thread(self._server.is_ready, worker.model):
                event.notes.append(f"not ready at {self._clock():.3f}")
                return
            await asyncio.sleep(_POLL_S)
        # The zygote may be killed by another fault, and then the worker is replaced at once.
        if zygote.is_running() and not self._has_successor(worker):
            raise FaultError(f"{worker.model} was said to be ready without a process")

    # Models

    def _change(self, what: Callable[[str], Answer], name: str) -> Answer | None:
        """Load or unload; None if the connection was cut off before the answer."""
        try:
            return what(name)
        except (OSError, http.client.HTTPException):
            return None

    def _forget(self, model: str) -> None:
        """The statistics of a model that is loaded again, and of those above it, begin anew."""
        if self._line.oracle is not None:
            for each in self._catalogue.affected(model):
                self._line.oracle.account.forget(each)

    def _pick_model(self, fault: Fault) -> str | None:
        names = self._catalogue.changeable
        return names[int(fault.choice * len(names))] if names else None

    async def _until_loaded(self, name: str, event: Event) -> None:
        """Load until that succeeds: front ends and workers may end meanwhile."""
        deadline_s = self._clock() + RECOVERY_S
        while True:
            answer = await asyncio.to_thread(self._change, self._server.load, name)
            if answer is not None and answer.status == 200:
                return
            said = "cut off" if answer is None else f"{answer.status} {answer.body[:200]!r}"
            event.notes.append(f"load at {self._clock():.3f}: {said}")
            if self._clock() > deadline_s:
                raise FaultError(f"{name} could not be loaded again: {said}")
            await asyncio.sleep(0.2)

    async def _unload(self, fault: Fault) -> bool:
        name = self._pick_model(fault)
        if name is None:
            return False
        async with self._model_locks[name]:
            self._forget(name)
            text = f"unload {name} for {fault.lasts_s:.1f} s"
            with self._line.event(text, Cause.MODEL_UNLOADED, models=[name]) as event:
                answer = await asyncio.to_thread(self._change, self._server.unload, name)
                if answer is not None and answer.status != 200:
                    event.notes.append(f"unload: {answer.status} {answer.body[:200]!r}")
                await asyncio.sleep(fault.lasts_s)
                await self._until_loaded(name, event)
                await self._until(lambda: self._server.is_ready(name), "its readiness")
        return True

    def _code(self, name: str) -> Path:
        return self._server.repository / name / "1" / "model.py"

    async def _reload(self, fault: Fault) -> bool:
        """Load changed files beside the running ones; no call may fail because of that."""
        name = self._pick_model(fault)
        if name is None or not self._code(name).exists():
            return False
        async with self._model_locks[name]:
            self._forget(name)
            with self._line.event(
                f"reload {name} with changed files", Cause.MODEL_RELOADED, models=[name]
            ) as event:
                _replace(self._code(name), self._code(name).read_text() + "# changed\n")
                await self._until_loaded(name, event)
        return True

    async def _reload_broken(self, fault: Fault) -> bool:
        """Load files that cannot be loaded; what was in service stays there."""
        name = self._pick_model(fault)
        if name is None or not self._code(name).exists():
            return False
        # An instance of the old version that has to be started again would find the broken file.
        async with self._zygote_lock, self._model_locks[name]:
            self._forget(name)
            with self._line.event(
                f"reload {name} with a broken file", Cause.MODEL_RELOADED, models=[name]
            ) as event:
                whole = self._code(name).read_text()
                _replace(self._code(name), _BROKEN)
                answer = await asyncio.to_thread(self._change, self._server.load, name)
                event.notes.append("cut off" if answer is None else f"answered {answer.status}")
                _replace(self._code(name), whole + "# whole again\n")
                if answer is not None and answer.status == 200:
                    raise FaultError(f"the broken {name} was loaded")
                if answer is not None and not await asyncio.to_thread(self._server.is_ready, name):
                    event.notes.append("not ready after it")
                await self._until_loaded(name, event)
        return True

    async def _kill_loading_worker(self, fault: Fault) -> bool:
        """Kill a new worker while its model is loaded again; the old one stays in service."""
        name = self._pick_model(fault)
        if name is None or not self._code(name).exists():
            return False
        async with self._model_locks[name]:
            self._forget(name)
            with self._line.event(
                f"kill the worker with which {name} is reloaded",
                Cause.MODEL_RELOADED,
                models=[name],
            ) as event:
                old = {each.pid for each in self._server.family()}
                _replace(self._code(name), self._code(name).read_text() + "# killed\n")
                loading = asyncio.create_task(
                    asyncio.to_thread(self._change, self._server.load, name)
                )
                victim = await asyncio.to_thread(self._new_worker, name, old, loading)
                if victim is not None:
                    await asyncio.sleep(fault.choice * 0.05)
                    await self._kill_while(loading, victim, name)
                answer = await loading
                event.notes.append("cut off" if answer is None else f"answered {answer.status}")
                await self._until_loaded(name, event)
        return True

    async def _kill_while(
        self, loading: asyncio.Task[Answer | None], victim: Process, model: str
    ) -> None:
        """Kill a worker unless the load is answered; it may be in service a moment before that."""
        if loading.done():
            return
        text = f"kill worker {victim.pid} during the load of {model}"
        with self._line.event(text, Cause.WORKER_KILLED, models=[model]):
            victim.send(signal.SIGKILL)
            await loading
            await self._until(lambda: self._server.is_ready(model), "its readiness")

    def _new_worker(
        self, model: str, old: set[int], loading: asyncio.Task[Answer | None]
    ) -> Process | None:
        """Wait for a worker that was not there before; a start takes a few milliseconds."""
        while not loading.done():
            for each in self._server.of_role(Role.WORKER, Role.STARTING):
                if each.pid not in old and each.model in (model, ""):
                    return each
        return None

    # Descriptors and disks

    async def _take_descriptors(self, fault: Fault) -> bool:
        """Idle clients take all descriptors that the server leaves to clients."""
        text = f"idle clients for {fault.lasts_s:.1f} s"
        with self._line.event(text, Cause.EXHAUSTED, Cause.STALLED) as event:
            idle = await asyncio.to_thread(self._connect_idle_clients)
            event.notes.append(f"{len(idle)} connections")
            await asyncio.sleep(fault.lasts_s)
            for each in idle:
                each.close()
            # Requests that were refused meanwhile are served a second later at the latest.
            await asyncio.sleep(1.0)
        return True

    def _connect_idle_clients(self) -> list[socket.socket]:
        idle = []
        per_process = self._server.descriptors * max(1, self._server.scene.front_ends)
        for number in range(per_process + 32):
            one = socket.socket()
            one.setblocking(False)
            port = self._server.http_port if number % 2 else self._server.grpc_port
            with contextlib.suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
            idle.append(one)
        return idle

    async def _fill_disk(self, fault: Fault) -> bool:
        """Leave no space for the log, the access log and traces; no call may notice."""
        if not self._server.has_disk:
            return False
        async with self._disk_lock:
            filler = self._server.disk / "filler"
            with self._line.event(f"full disk for {fault.lasts_s:.1f} s"):
                await asyncio.to_thread(_fill, filler)
                await asyncio.sleep(fault.lasts_s)
                filler.unlink()
        return True

    async def _rotate_logs(self, fault: Fault) -> bool:
        """Move the files of the log and the access log away, as a program that rotates them."""
        async with self._disk_lock:
            self._rotations += 1
            with self._line.event("rotate logs"):
                old = self._server.folder / f"logs-{self._rotations}"
                old.mkdir()
                for path in (self._server.log, self._server.access_log):
                    if path.exists():
                        aside = path.with_name(f"{path.name}.old")
                        path.rename(aside)
                        await asyncio.to_thread(shutil.move, aside, old / path.name)
                for path in self._server.disk.glob("trace.*"):
                    path.unlink()
        return True


def _replace(path: Path, text: str) -> None:
    """Write a file as a whole, newer than it was."""
    before_ns = path.stat().st_mtime_ns
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)
    after_ns = max(path.stat().st_mtime_ns, before_ns + 1)
    os.utime(path, ns=(after_ns, after_ns))


def _fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        for exponent in range(20, -1, -1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << exponent))
