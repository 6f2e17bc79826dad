# SPDX-License-Identifier: Apache-2.0
"""`os`, `signal` and `resource` of simulated processes."""

from __future__ import annotations

import errno
import os as real_os
import pathlib
import resource as real_resource
import signal as real_signal
import stat
import types
from collections.abc import Sequence
from typing import Any

from tests.simulation.files import F_SEAL_SEAL, MemoryFile, NamedMemory, ProcessFile, system_error
from tests.simulation.machine import DESCRIPTORS_PER_PROCESS, Machine, SimulatedProcess
from tests.simulation.sockets import BorrowedSocket
from tests.simulation.stand_in import StandIn

_SHARED_MEMORY = "/dev/shm/"
_MFD_ALLOW_SEALING = 2


class Os(StandIn):
    """System calls on simulated descriptors and processes; others are real."""

    def __init__(self, real: types.ModuleType, machine: Machine) -> None:
        super().__init__(real, machine)
        self._random = machine.random_of("os.urandom")

    @property
    def environ(self) -> Any:
        current = self.machine.current
        return real_os.environ if current is None else current.process.environment

    def urandom(self, size: int) -> bytes:
        return bytes(int(self._random.random() * 256) for _ in range(size))

    def getpid(self) -> int:
        return self.machine.process.pid

    def getppid(self) -> int:
        parent = self.machine.process.parent
        return 1 if parent is None or parent.is_over else parent.pid

    def cpu_count(self) -> int:
        return 2

    def sched_getaffinity(self, pid: int) -> set[int]:
        return {0, 1}

    def close(self, descriptor: int) -> None:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            real_os.close(descriptor)
            return
        process = self.machine.process_of(descriptor)
        if not process.is_over:  # or one of its objects is freed, after all was closed
            process.close(descriptor)

    def closerange(self, low: int, high: int) -> None:
        process = self.machine.process
        for descriptor in [each for each in process.files if low <= each < high]:
            process.close(descriptor)

    def open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        if (
            flags & real_os.O_CREAT
            and self.machine.disk_is_full
            and not pathlib.Path(path).exists()
        ):
            raise system_error(errno.ENOSPC)
        if str(path).startswith(_SHARED_MEMORY) and not flags & real_os.O_CREAT:
            memory = self.machine.named_memory.get(str(path).removeprefix(_SHARED_MEMORY))
            if memory is None:
                raise system_error(errno.ENOENT)
            return self.machine.process.open(memory)
        return real_os.open(path, flags, mode, **options)

    def _named_memory(self, descriptor: int) -> NamedMemory:
        self.machine.pause_between_calls()
        file = self.machine.file_of(descriptor)
        if not isinstance(file, NamedMemory):
            raise system_error(errno.ESPIPE)
        return file

    def preadv(self, descriptor: int, parts: Sequence[memoryview], offset: int) -> int:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.preadv(descriptor, parts, offset)
        file = self._named_memory(descriptor)
        done = 0
        for part in parts:
            data = file.read(offset + done, len(part))
            part[: len(data)] = data
            done += len(data)
        return done

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.pwrite(descriptor, data, offset)
        self._named_memory(descriptor).write(offset, data)
        return len(data)

    def dup(self, descriptor: int) -> int:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.dup(descriptor)
        process = self.machine.process_of(descriptor)
        return process.open(self.machine.file_of(descriptor))

    def set_inheritable(self, descriptor: int, inheritable: bool) -> None:
        self.machine.file_of(descriptor)

    def set_blocking(self, descriptor: int, blocking: bool) -> None:
        self.machine.file_of(descriptor).is_blocking = blocking

    def get_blocking(self, descriptor: int) -> bool:
        return bool(self.machine.file_of(descriptor).is_blocking)

    def memfd_create(self, name: str, flags: int = 1) -> int:
        seals = 0 if flags & _MFD_ALLOW_SEALING else F_SEAL_SEAL
        return self.machine.process.open(MemoryFile(self.machine, seals))

    def ftruncate(self, descriptor: int, size: int) -> None:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            real_os.ftruncate(descriptor, size)
            return
        self.machine.file_of(descriptor).resize(size)

    def fstat(self, descriptor: int) -> Any:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.fstat(descriptor)
        file = self.machine.file_of(descriptor)
        is_memory = isinstance(file, MemoryFile)
        return types.SimpleNamespace(
            st_size=len(file.data) if is_memory else 0,
            st_ino=id(file),
            st_dev=0,
            st_mode=(stat.S_IFREG if is_memory else stat.S_IFSOCK) | 0o777,
        )

    def read(self, descriptor: int, size: int) -> bytes:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            return real_os.read(descriptor, size)
        return BorrowedSocket(self.machine, descriptor).recv(size)

    def write(self, descriptor: int, data: Any) -> int:
        if descriptor < DESCRIPTORS_PER_PROCESS:
            if self.machine.disk_is_full:
                raise system_error(errno.ENOSPC)
            return real_os.write(descriptor, data)
        return BorrowedSocket(self.machine, descriptor).send(data)

    def readv(self, descriptor: int, parts: Sequence[memoryview]) -> int:
        return BorrowedSocket(self.machine, descriptor).recvmsg_into(parts)[0]

    # Processes

    def _process(self, pid: int) -> SimulatedProcess:
        for process in self.machine.processes:
            if process.pid == pid and not is_gone(process):
                return process
        raise ProcessLookupError(errno.ESRCH, real_os.strerror(errno.ESRCH))

    def kill(self, pid: int, number: int) -> None:
        self._process(pid).signal(number)

    def killpg(self, group: int, number: int) -> None:
        # Models of the simulation start no processes, so a group has its leader only.
        self._process(group).signal(number)

    def setpgid(self, pid: int, group: int) -> None:
        pass

    def pidfd_open(self, pid: int, flags: int = 0) -> int:
        return self.machine.process.open(ProcessFile(self.machine, self._process(pid)))

    def _wait_for_child(self, pid: int, options: int) -> SimulatedProcess | None:
        """Returns a child that has ended and was not waited for; None if WNOHANG and there is none.

        Raises:
            ChildProcessError: There is no such child.
        """
        machine = self.machine
        thread, process = machine.current, machine.process
        watched: list[SimulatedProcess] = []

        def wake() -> None:
            machine.wake(thread)

        try:
            while True:
                children = [
                    each
                    for each in process.children
                    if not each.is_reaped and pid in (0, -1, each.pid)
                ]
                if not children:
                    raise ChildProcessError(errno.ECHILD, real_os.strerror(errno.ECHILD))
                for child in children:
                    if child.is_over:
                        return child
                if options & real_os.WNOHANG:
                    return None
                for child in children:
                    if child not in watched:
                        watched.append(child)
                        child.exit_watchers.append(wake)
                machine.wait()
        finally:
            for child in watched:
                child.exit_watchers.remove(wake)

    def waitid(self, kind: int, pid: int, options: int) -> Any:
        pid = pid if kind == real_os.P_PID else -1
        if options & real_os.WSTOPPED:
            for child in self.machine.process.children:
                if child.is_stopped and not child.is_over and pid in (-1, child.pid):
                    return _child_state(child, real_signal.SIGSTOP, real_os.CLD_STOPPED)
        child = self._wait_for_child(pid, options)
        if child is None:
            return None
        if not options & real_os.WNOWAIT:
            child.is_reaped = True
        status = child.status or 0
        code = real_os.CLD_EXITED if status >= 0 else real_os.CLD_KILLED
        return _child_state(child, abs(status), code)

    def waitpid(self, pid: int, options: int) -> tuple[int, int]:
        child = self._wait_for_child(pid, options)
        if child is None:
            return 0, 0
        child.is_reaped = True
        status = child.status or 0
        return child.pid, status << 8 if status >= 0 else -status

    def _exit(self, status: int) -> None:
        self.machine.process.end(status)

    def register_at_fork(self, **_: object) -> None:
        """A simulated process is not copied when it forks."""


def _child_state(child: SimulatedProcess, status: int, code: int) -> Any:
    return types.SimpleNamespace(
        si_pid=child.pid,
        si_uid=real_os.getuid(),
        si_signo=real_signal.SIGCHLD,
        si_status=status,
        si_code=code,
    )


def is_gone(process: SimulatedProcess) -> bool:
    if not process.is_over:
        return False
    return process.is_reaped or process.parent is None or process.parent.is_over


class Signal(StandIn):
    def signal(self, number: int, handler: Any) -> Any:
        if number in (real_signal.SIGKILL, real_signal.SIGSTOP):
            raise system_error(errno.EINVAL)
        handlers = self.machine.process.signal_handlers
        before = handlers.get(number, real_signal.SIG_DFL)
        handlers[int(number)] = handler
        return before

    def getsignal(self, number: int) -> Any:
        return self.machine.process.signal_handlers.get(number, real_signal.SIG_DFL)

    def set_wakeup_fd(self, descriptor: int, *, warn_on_full_buffer: bool = True) -> int:
        process = self.machine.process
        before, process.wakeup_descriptor = process.wakeup_descriptor, descriptor
        return before

    def pthread_sigmask(self, how: int, mask: Any) -> set[int]:
        return set()

    def pidfd_send_signal(self, descriptor: int, number: int, *_: object) -> None:
        process = self.machine.file_of(descriptor).process
        if is_gone(process):
            raise ProcessLookupError(errno.ESRCH, real_os.strerror(errno.ESRCH))
        process.signal(number)


class Resource(StandIn):
    def getrlimit(self, kind: int) -> tuple[int, int]:
        if kind != real_resource.RLIMIT_NOFILE:
            return real_resource.getrlimit(kind)
        process = self.machine.process
        return process.descriptor_limit, process.descriptor_limit

    def setrlimit(self, kind: int, limits: tuple[int, int]) -> None:
        if kind == real_resource.RLIMIT_NOFILE:
            self.machine.process.descriptor_limit = limits[0]
