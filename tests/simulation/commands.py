# SPDX-License-Identifier: Apache-2.0
"""`subprocess` of simulated processes."""

from __future__ import annotations

import errno
import os as real_os
import signal as real_signal
import subprocess as real_subprocess
from collections.abc import Callable, Iterable, Sequence

from tests.simulation.machine import Machine
from tests.simulation.stand_in import deadline

_SPAWN_NS = 20_000_000


class Popen:
    """As `subprocess.Popen`; what a command runs is found in the table of programs."""

    machine: Machine
    programs: Callable[[Sequence[str]], tuple[str, Callable[[list[str]], object]]]

    def __init__(
        self,
        args: Sequence[str],
        *,
        pass_fds: Iterable[int] = (),
        env: dict[str, str] | None = None,
        **_: object,
    ) -> None:
        machine = self.machine
        parent = machine.process
        if machine.process_limit is not None and machine.live_count >= machine.process_limit:
            raise BlockingIOError(errno.EAGAIN, real_os.strerror(errno.EAGAIN))
        name, main = type(self).programs(args)
        arguments: list[str] = []
        delay_ns = _SPAWN_NS + int(parent.random.random() * 4 * _SPAWN_NS)
        process = machine.start_process(name, lambda: main(arguments), parent, delay_ns)
        if env is not None:
            process.environment = dict(env)
        passed = {str(each): str(process.open(machine.file_of(each))) for each in pass_fds}
        arguments += [passed.get(each, each) for each in args]
        self._process = process
        self.args = args
        self.pid = process.pid
        self.returncode: int | None = None
        self.stdout = self.stderr = self.stdin = None

    def poll(self) -> int | None:
        process = self._process
        if self.returncode is None and process.is_over:
            # As the real one: somebody else waited for it, and its status is not known.
            self.returncode = 0 if process.is_reaped else process.status
            process.is_reaped = True
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        machine, process = self.machine, self._process
        deadline_ns = deadline(machine, timeout)
        thread = machine.current

        def wake() -> None:
            machine.wake(thread)

        process.exit_watchers.append(wake)
        try:
            while self.poll() is None:
                if deadline_ns is not None and machine.now_ns >= deadline_ns:
                    raise real_subprocess.TimeoutExpired(self.args, timeout or 0)
                machine.wait(deadline_ns)
        finally:
            process.exit_watchers.remove(wake)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            self._process.signal(number)

    def kill(self) -> None:
        self.send_signal(real_signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(real_signal.SIGTERM)
