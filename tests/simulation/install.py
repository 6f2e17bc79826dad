# SPDX-License-Identifier: Apache-2.0
"""Puts the simulated system into the modules of the project, and takes it out again.

Every name in a module of pytriton that is a real module, class or function of the system becomes
the simulated one, and so do default values of arguments. Code of the project runs unchanged.
"""

from __future__ import annotations

import asyncio as real_asyncio
import contextlib
import fcntl
import gc as real_gc
import importlib
import logging
import os as real_os
import pkgutil
import random
import subprocess
import sys
import threading as real_threading
import types
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import pytriton
from pytriton.runtime.executor import python_process
from pytriton.runtime.pb_utils import runtime
from pytriton.runtime.python_backend import loader, output
from pytriton.runtime.transport import zygote
from pytriton.runtime.transport.zygote import Fork, ForkServer
from pytriton.runtime.worker_process import process as worker_process
from pytriton.runtime.worker_process.process import run_worker
from pytriton.serving.repository.reading import instances
from pytriton.serving.server import server
from pytriton.serving.server.binding.binder_port import BinderPort
from pytriton.serving.server.frontend import records
from pytriton.serving.server.frontend.process import run_front_end
from pytriton.serving.server.process import event_loop, logs, resources
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.machine import Machine, SimulatedProcess
from tests.simulation.stand_in import StandIn
from tests.simulation.system import stand_ins

# Packages that are not simulated, or need what is not installed everywhere.
_LEFT_OUT = (
    "pytriton.check",
    "pytriton.inprocess",
    "pytriton.pytest_plugin",
    "pytriton.runtime.c_library",
    "pytriton.runtime.cluster",
    "pytriton.runtime.framework_backends",
    "pytriton.runtime.native_backend",
    "pytriton.serving.repository.remote",
    "pytriton.serving.server.tritonserver",
    "pytriton.server",
    "pytriton.testing",
    "pytriton.tools",
)
_import_file = loader._import_file
_programs: dict[str, Any] = {}


def _import_all() -> None:
    """Import what a server uses, so that nothing is imported while the system is simulated."""
    if _programs:
        return
    for found in pkgutil.walk_packages(pytriton.__path__, "pytriton."):
        is_left_out = found.name.startswith(_LEFT_OUT) and found.name not in _NEEDED
        if not is_left_out and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    for name in _NEEDED:
        importlib.import_module(name)
    _programs["imported"] = True
    # What is there now stays: collections of runs need not look at it again.
    real_gc.collect()
    real_gc.freeze()


_NEEDED = (
    "pytriton.serving.repository.remote.finder",
    "pytriton.serving.repository.remote.location",
    "triton_python_backend_utils",
)


class Asyncio(StandIn):
    def new_event_loop(self) -> SimulatedLoop:
        return SimulatedLoop(self.machine)

    def set_event_loop(self, loop: Any) -> None:
        """A simulated thread knows its loop while that runs."""

    def run(self, main: Any, **_: object) -> Any:
        loop = self.new_event_loop()
        try:
            return loop.run_until_complete(main)
        finally:
            loop.close()

    def run_coroutine_threadsafe(self, coroutine: Any, loop: SimulatedLoop) -> Any:
        future = self.future()

        def start() -> None:
            task = loop.create_task(coroutine)

            def finish(done: Any) -> None:
                if future.cancelled():
                    return
                if done.cancelled():
                    future.cancel()
                elif done.exception() is not None:
                    future.set_exception(done.exception())
                else:
                    future.set_result(done.result())

            task.add_done_callback(finish)

        loop.call_soon_threadsafe(start)
        return future


class Garbage(StandIn):
    """The collector is not switched by simulated processes: it is one for all of them."""

    def collect(self, *_: object) -> int:
        return 0

    def freeze(self) -> None:
        pass

    enable = disable = freeze


def _nothing(*_: object, **__: object) -> None:
    """Stands for what a process does to itself, such as its title and its output."""


def _replaced_functions(machine: Machine, os: Any) -> dict[Any, Any]:
    """Returns what replaces functions of the project that reach beyond the simulated system."""
    client_limit = resources.client_limit

    def client_limit_of_process(**options: bool) -> int:
        # Descriptors of a simulated process do not begin at zero.
        return machine.process.base + client_limit(**options)

    def die_with_parent() -> None:
        machine.process.dies_with_parent = True

    def read_activity(pid: int) -> Any:
        process = next((each for each in machine.processes if each.pid == pid), None)
        if process is None or process.is_over:
            return None
        return event_loop.Activity(0.0, is_runnable=False)

    nothing: list[Any] = [
        event_loop.freeze_memory,
        logs.set_up_logging,
        logs.keep_lines,
        output.label_output,
        output.end_output,
        worker_process._seed_numpy,
        worker_process.add_to_log_records,
        worker_process.remove_first_path,
        records.set_up_logging,
        resources.open_missing_streams,
        server.prepare_front_ends,
        zygote.set_process_title,
    ]
    return {
        **dict.fromkeys(nothing, _nothing),
        event_loop.new_event_loop: lambda: SimulatedLoop(machine),
        event_loop.end_process: os._exit,
        event_loop.read_activity: read_activity,
        instances.visible_gpu_ids: list,
        worker_process._die_with_parent: die_with_parent,
        python_process.can_fork_workers: lambda: True,
        resources.client_limit: client_limit_of_process,
        resources.usable_cores: lambda: 2,
    }


def _replace_members(machine: Machine) -> list[tuple[Any, str, Any]]:
    """Returns methods of classes to replace, as (class, name, method)."""

    def fork_process(server: ForkServer, fork: Fork) -> int:
        parent = machine.process
        if machine.process_limit is not None and machine.live_count >= machine.process_limit:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        files = [machine.file_of(fork.channel_descriptor), machine.file_of(fork.fork_descriptor)]
        is_front_end = "front ends" in parent.name

        def main() -> None:
            if is_front_end:
                run_front_end(*descriptors)
            else:
                run_worker(*descriptors, fork.title, fork.environment)

        child = machine.start_process(fork.title, main, parent, 1_000_000)
        descriptors = [child.open(file) for file in files]
        return child.pid

    return [
        (ForkServer, "fork_process", fork_process),
        # Processes that join a server find it by files, which a simulated disk does not have.
        (BinderPort, "start", _nothing),
        (BinderPort, "stop_listening", _nothing),
    ]


def _find_program(machine: Machine) -> Callable[..., tuple[str, Callable[[list[str]], object]]]:
    """Returns a function that finds what a command line runs."""

    def find(arguments: Any) -> tuple[str, Callable[[list[str]], object]]:
        code = arguments[2]
        if "importlib" in code:  # a zygote
            name = arguments[4]
            module = importlib.import_module(name)
            title = "zygote of front ends" if "frontend" in name else "zygote of workers"
            return title, lambda passed: module.main(passed[5:])
        entry = "repository_main" if "repository_main" in code else "main"
        module = importlib.import_module(f"pytriton.serving.server.{entry}")
        return "server", lambda passed: module.main(passed[4:])

    return find


class _Changes:
    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        before = owner.__dict__[name] if name in owner.__dict__ else getattr(owner, name)
        self._undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def undo(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()


def _functions_of(module: types.ModuleType) -> Iterator[Any]:
    for value in list(vars(module).values()):
        if isinstance(value, types.FunctionType):
            yield value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for member in list(vars(value).values()):
                function = getattr(member, "__func__", member)
                if isinstance(function, types.FunctionType):
                    yield function


@contextlib.contextmanager
def installed(machine: Machine) -> Iterator[None]:
    """Run code of the project on a simulated machine."""
    _import_all()
    table = stand_ins(machine)
    asyncio = table[real_asyncio] = Asyncio(real_asyncio, machine)
    asyncio.future = table[futures.Future]
    table[real_gc] = Garbage(real_gc, machine)
    table[subprocess].Popen.programs = staticmethod(_find_program(machine))
    table.update(_replaced_functions(machine, table[real_os]))
    changes = _Changes()
    try:
        for name, module in list(sys.modules.items()):
            is_ours = name.startswith(("pytriton", "tests.workload"))
            if is_ours and isinstance(module, types.ModuleType):
                _replace_in(module, table, changes, table[real_threading])
    except BaseException:
        changes.undo()  # or whatever runs next in this process would meet the simulated system
        raise

    def import_file(name: str, path: str) -> types.ModuleType:
        module = _import_file(name, path)
        _replace_in(module, table, changes, table[real_threading])
        # Errors of models say where they were raised: not in a folder of this machine.
        shown = "/".join(("/models", *path.split("/")[-3:]))
        for function in _functions_of(module):
            function.__code__ = function.__code__.replace(co_filename=shown)
        return module

    changes.set(loader, "_import_file", import_file)
    for owner, name, value in _replace_members(machine):
        changes.set(owner, name, value)
    sys.modules["fcntl"] = table[fcntl]
    machine.process_variables.append((runtime, "_current", runtime._current))
    path, argv, handlers = list(sys.path), list(sys.argv), list(logging.getLogger().handlers)
    random_state = random.getstate()
    random.seed(machine.seed)
    real_gc.disable()
    real_gc.freeze()  # the scenario: collections of the run need not look at all its calls
    try:
        yield
    finally:
        random.setstate(random_state)
        machine.close()
        real_gc.collect()  # what is left would close descriptors of the next machine
        changes.undo()
        sys.modules["fcntl"] = fcntl
        runtime._current = machine.process_variables[0][2]
        sys.path[:], sys.argv[:] = path, argv
        logging.getLogger().handlers[:] = handlers
        real_gc.enable()


_Place = tuple[Any, str, Any]  # whose attribute it is, its name, and its real value
_places: dict[types.ModuleType, list[_Place]] = {}


def _replace_in(
    module: types.ModuleType, table: dict[Any, Any], changes: _Changes, threading: Any
) -> None:
    # Where something is replaced is the same for every machine, unless somebody changed a module.
    places = _places.get(module)
    if places is None or any(getattr(owner, name) is not real for owner, name, real in places):
        places = _places[module] = _find_places(module, table, threading)
    for owner, name, real in places:
        if name not in ("__defaults__", "__kwdefaults__"):
            changes.set(owner, name, _replacement(real, table, threading))
        elif isinstance(real, dict):
            found = {k: _replacement(v, table, threading) for k, v in real.items()}
            changes.set(
                owner, name, {k: v if found[k] is None else found[k] for k, v in real.items()}
            )
        else:
            values = [(value, _replacement(value, table, threading)) for value in real]
            changes.set(owner, name, tuple(v if new is None else new for v, new in values))


def _find_places(module: types.ModuleType, table: dict[Any, Any], threading: Any) -> list[_Place]:
    places: list[_Place] = [
        (module, name, value)
        for name, value in vars(module).items()
        if not name.startswith("__") and _replacement(value, table, threading) is not None
    ]
    for function in _functions_of(module):
        for part in ("__defaults__", "__kwdefaults__"):
            values = getattr(function, part) or ()
            members = values.values() if isinstance(values, dict) else values
            if any(_replacement(each, table, threading) is not None for each in members):
                places.append((function, part, values))
    return places


def _replacement(value: Any, table: dict[Any, Any], threading: Any) -> Any:
    try:
        if value in table:
            return table[value]
    except (TypeError, ValueError):  # it cannot be hashed
        return None
    kind = type(value).__name__
    if kind == "lock":
        return threading.Lock()
    if type(value).__module__ == "_thread" and kind == "_local":
        return threading.local()
    if kind == "LazyModule" and object.__getattribute__(value, "_name") == "asyncio":
        return table[real_asyncio]
    return None


__all__ = ["SimulatedProcess", "installed"]
