# SPDX-License-Identifier: Apache-2.0
"""The real system and the simulated one, each as a namespace with the same modules.

Contract tests run on both. A test with the fixture `system` runs inside a process of that system.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import inspect
import mmap
import os
import pathlib
import queue
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from pytriton.serving.server.shared_memory.region_file import GuardedMapping
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.files import NamedMemory, TcpFile, connect
from tests.simulation.machine import SECOND_NS, Machine
from tests.simulation.system import stand_ins
from tests.workload import asyncio_world

_LONGEST_S = 60  # of a test
_MODULES = (
    fcntl,
    mmap,
    os,
    queue,
    resource,
    select,
    signal,
    socket,
    subprocess,
    threading,
    time,
)


class System(types.SimpleNamespace):
    """Modules, and what a test needs to use them."""

    fcntl: Any
    mmap: Any
    os: Any
    queue: Any
    resource: Any
    select: Any
    signal: Any
    socket: Any
    subprocess: Any
    threading: Any
    time: Any
    futures: Any
    kept: list[Any]  # sockets

    def run(self, body: Callable[[], object]) -> None:
        """Run the body of a test in a process of this system."""
        raise NotImplementedError

    def start(self, main: Callable[..., object], *descriptors: int) -> int:
        """Start a child process, which has only these descriptors; returns its pid.

        It calls `main` with the numbers that they have there.
        """
        raise NotImplementedError

    def popen(self, main: Callable[[System], object]) -> Any:
        """Start a program as `subprocess.Popen`; it calls `main` with its system."""
        raise NotImplementedError

    def tcp_pair(self) -> tuple[Any, Any]:
        """Returns the ends of a TCP connection."""
        raise NotImplementedError

    def named_memory(self, key: str, size: int) -> Any:
        """Make an object of shared memory as a client does."""
        raise NotImplementedError

    def guarded_mapping(self, descriptor: int, size: int) -> Any:
        """Map memory that a client may make smaller."""
        raise NotImplementedError

    def new_event_loop(self) -> Any:
        """Returns an event loop as the server has it."""
        raise NotImplementedError

    # The same for both

    def call_in_child(self, main: Callable[..., object], *descriptors: int) -> None:
        """Call a function in a child process; fails if it raises."""
        _, status = self.os.waitpid(self.start(main, *descriptors), 0)
        assert status == 0, f"the child ended with status {status}"

    def pair(self, kind: int = socket.SOCK_STREAM) -> tuple[Any, Any]:
        """Returns two connected Unix sockets, which are closed after the test."""
        return self.keep(self.socket.socketpair(socket.AF_UNIX, kind))

    def keep(self, ends: tuple[Any, Any]) -> tuple[Any, Any]:
        """Close sockets after the test."""
        self.kept.extend(ends)
        return ends

    def poll_one(self, sock: Any, mask: int, timeout_ms: float = 0) -> int:
        """Returns what poll reports of one descriptor."""
        poll = self.select.poll()
        poll.register(sock, mask)
        found = poll.poll(timeout_ms)
        return found[0][1] if found else 0

    def unread_bytes(self, sock: Any) -> int:
        """Returns what TIOCOUTQ says of a socket."""
        answer = self.fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
        return int(struct.unpack("i", answer)[0])

    def fill(self, sock: Any, size: int) -> int:
        """Send messages of a size until the socket takes no more; returns their number."""
        sock.setblocking(False)
        count = 0
        try:
            while True:
                assert sock.send(bytes(size)) == size
                count += 1
        except BlockingIOError:
            sock.setblocking(True)
        return count

    def in_thread(self, work: Callable[[], object]) -> Any:
        thread = self.threading.Thread(target=work, daemon=True)
        thread.start()
        return thread


class RealSystem(System):
    """The machine that the tests run on."""

    def __init__(self) -> None:
        super().__init__(futures=futures, kept=[], **{each.__name__: each for each in _MODULES})

    def run(self, body: Callable[[], object]) -> None:
        def on_alarm(*_: object) -> None:
            raise TimeoutError(f"the test took longer than {_LONGEST_S} s")

        before = signal.signal(signal.SIGALRM, on_alarm)
        signal.alarm(_LONGEST_S)
        try:
            body()
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            for sock in self.kept:
                with contextlib.suppress(OSError):  # the test has closed its descriptor
                    sock.close()

    def start(self, main: Callable[..., object], *descriptors: int) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            pid = os.fork()
        if pid == 0:
            self._run_child(main, descriptors)
        return pid

    def _run_child(self, main: Callable[..., object], descriptors: Sequence[int]) -> None:
        status = 1
        try:
            gc.disable()  # objects of the parent would close descriptors that others have here
            signal.alarm(0)
            signal.set_wakeup_fd(-1)
            for each in [int(path.name) for path in pathlib.Path("/proc/self/fd").iterdir()]:
                if each > 2 and each not in descriptors:
                    with contextlib.suppress(OSError):  # it was that of the folder
                        os.close(each)
            main(*descriptors)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001  the parent must not run twice
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def popen(self, main: Callable[[System], object]) -> Any:
        # A new program cannot be passed a function, so it is found by its name.
        code = f"import {main.__module__} as module\nfrom {__name__} import RealSystem\n"
        code += f"module.{main.__qualname__}(RealSystem())"
        return subprocess.Popen([sys.executable, "-c", code])

    def tcp_pair(self) -> tuple[Any, Any]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            return self.keep((client, listener.accept()[0]))

    def named_memory(self, key: str, size: int) -> Any:
        return asyncio_world.NamedMemory(key, size)

    def guarded_mapping(self, descriptor: int, size: int) -> Any:
        return GuardedMapping(descriptor, size)

    def new_event_loop(self) -> Any:
        try:
            import uvloop  # noqa: PLC0415  it is optional
        except ImportError:
            return asyncio.new_event_loop()
        return uvloop.new_event_loop()


class SimulatedSystem(System):
    """A simulated machine."""

    def __init__(self, seed: int = 1) -> None:
        machine = Machine(seed)
        table = stand_ins(machine)
        super().__init__(
            futures=types.SimpleNamespace(
                Future=table[futures.Future],
                ThreadPoolExecutor=table[futures.ThreadPoolExecutor],
                TimeoutError=futures.TimeoutError,
                CancelledError=futures.CancelledError,
            ),
            kept=[],
            **{each.__name__: table[each] for each in _MODULES},
        )
        self.machine = machine
        self.mapping_type = table[GuardedMapping]

    def run(self, body: Callable[[], object]) -> None:
        machine = self.machine
        process = machine.start_process("test", body)
        try:
            machine.run(lambda: process.is_over, machine.now_ns + _LONGEST_S * SECOND_NS)
            for _, error in machine.errors:
                raise error
            if not process.is_over:
                raise TimeoutError(f"the test took longer than {_LONGEST_S} s of virtual time")
        finally:
            machine.close()

    def start(self, main: Callable[..., object], *descriptors: int) -> int:
        machine = self.machine
        files = [machine.file_of(each) for each in descriptors]

        def run_main() -> None:
            try:
                main(*(child.files_by_order[each] for each in range(len(files))))
            except SystemExit:
                raise
            except Exception:  # noqa: BLE001  the real child prints it, and its parent sees the status
                traceback.print_exc()
                raise SystemExit(1) from None

        child: Any = machine.start_process("child", run_main, machine.process)
        child.files_by_order = [child.open(file) for file in files]
        return int(child.pid)

    def popen(self, main: Callable[[System], object]) -> Any:
        kind = self.subprocess.Popen
        kind.programs = staticmethod(lambda _: ("child", lambda _: main(self)))
        return kind(["child"])

    def tcp_pair(self) -> tuple[Any, Any]:
        machine = self.machine
        number = machine.next_socket()
        ends = connect(machine, TcpFile(machine, f"{number}a"), TcpFile(machine, f"{number}b"))
        first, second = (self.socket.socket(fileno=machine.process.open(each)) for each in ends)
        return self.keep((first, second))

    def named_memory(self, key: str, size: int) -> Any:
        return NamedMemory(self.machine, key, size)

    def guarded_mapping(self, descriptor: int, size: int) -> Any:
        return self.mapping_type(descriptor, size)

    def new_event_loop(self) -> Any:
        return SimulatedLoop(self.machine)


def on_loop(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a coroutine function as a test, on a loop of the system, which is its second argument."""

    def run(system: System, **values: Any) -> None:
        loop = system.new_event_loop()
        try:
            loop.run_until_complete(test(system, loop, **values))
        finally:
            loop.close()

    signature = inspect.signature(test)
    kept = [each for name, each in signature.parameters.items() if name != "loop"]
    run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    run.__name__, run.__module__ = test.__name__, test.__module__
    return run


async def turns(count: int = 10) -> None:
    """Let the loop look at its descriptors so often, whatever time that takes."""
    for _ in range(count):
        await asyncio.sleep(0)


__all__ = ["RealSystem", "SimulatedSystem", "System", "on_loop", "turns"]
