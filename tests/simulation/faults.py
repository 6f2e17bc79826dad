# SPDX-License-Identifier: Apache-2.0
"""Faults by seed: what goes wrong on the simulated machine, when, and for how long.

A fault is plain data, so that a schedule can be printed, shortened and kept as a test.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

from tests.simulation.machine import SECOND_NS, Machine, SimulatedProcess
from tests.simulation.network import Network
from tests.simulation.served import Served

# One that is stopped so long hangs, as far as the server knows.
HANG_S = 200.0
_HANGS = 0.5  # the share of front ends that are stopped for a shorter time

# By role: the word in the names of its processes.
ROLES = {
    "worker": "backend_stub",
    "front end": "pytriton front end",
    "zygote of workers": "zygote of workers",
    "zygote of front ends": "zygote of front ends",
    "server": "server",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    Args:
        kind: a name in `KINDS`.
        at_s: when, after the start of the clients.
        role: of the process that it hits.
        pick: chooses one of several processes or connections, from 0 to 1.
        for_s: how long it lasts.
        amount: of what it takes or leaves; its meaning depends on the kind.
        model: the model that it is about.
    """

    kind: str
    at_s: float
    role: str = ""
    pick: float = 0.0
    for_s: float = 0.0
    amount: float = 0.0
    model: str = ""

    def __str__(self) -> str:
        words = [f"at {self.at_s:.6f} s: {self.kind}"]
        if self.role:
            words.append(f"a {self.role}")
        if self.model:
            words.append(f"'{self.model}'")
        if self.for_s:
            words.append(f"for {self.for_s:.6f} s")
        if self.amount:
            words.append(f"({self.amount:g})")
        return " ".join(words)


@dataclasses.dataclass(slots=True)
class Happened:
    fault: Fault
    begin_s: float
    end_s: float
    process: str = ""


class Faults:
    """Lets the faults of a schedule happen, and keeps a record of them."""

    def __init__(self, machine: Machine, served: Served, network: Network) -> None:
        self.machine = machine
        self.served = served
        self.network = network
        self.happened: list[Happened] = []
        self.on_happened: Callable[[Happened], None] = lambda _: None
        self._open = 0

    def schedule(self, faults: list[Fault]) -> None:
        for fault in faults:
            self._open += 1
            self.machine.call_later(round(fault.at_s * SECOND_NS), self._begin, fault)

    @property
    def is_over(self) -> bool:
        return not self._open

    def _begin(self, fault: Fault) -> None:
        target = self._target(fault)
        process = "" if target is None else target.name
        now_s = self.machine.now_ns / SECOND_NS
        happened = Happened(fault, now_s, now_s + fault.for_s, process)
        self.happened.append(happened)
        self.machine.note("fault", str(fault), process)
        self.on_happened(happened)
        undo = KINDS[fault.kind](self, fault, target)
        if undo is None:
            self._open -= 1
            return

        def end() -> None:
            undo()
            self._open -= 1
            self.machine.note("fault", f"{fault.kind} ends", process)

        self.machine.call_later(round(fault.for_s * SECOND_NS), end)

    def _target(self, fault: Fault) -> SimulatedProcess | None:
        if not fault.role:
            return None
        found = self.served.processes(ROLES[fault.role])
        if fault.role == "server":
            found = [self.served.server]
        return found[int(fault.pick * len(found))] if found else None

    # Kinds; each returns what ends it, or None if nothing does

    def _kill(self, fault: Fault, target: SimulatedProcess | None) -> None:
        if target is not None:
            target.kill()

    def _stop(self, fault: Fault, target: SimulatedProcess | None) -> Callable[[], None] | None:
        if target is None:
            return None
        target.stop()
        return target.resume

    def _slow(self, fault: Fault, target: SimulatedProcess | None) -> Callable[[], None] | None:
        if target is None:
            return None
        target.slowness *= fault.amount

        def end() -> None:
            target.slowness /= fault.amount

        return end

    def _reset(self, fault: Fault, _: SimulatedProcess | None) -> None:
        connections = [each for each in self.network.connections if not each.is_lost]
        if connections:
            connections[int(fault.pick * len(connections))].break_off()

    def _no_memory(self, fault: Fault, _: SimulatedProcess | None) -> Callable[[], None]:
        machine = self.machine
        machine.shared_memory_limit = machine.shared_memory_bytes + int(fault.amount)

        def end() -> None:
            machine.shared_memory_limit = 1 << 40

        return end

    def _no_processes(self, fault: Fault, _: SimulatedProcess | None) -> Callable[[], None]:
        self.machine.process_limit = self.machine.live_count + int(fault.amount)

        def end() -> None:
            self.machine.process_limit = None

        return end

    def _no_threads(self, fault: Fault, _: SimulatedProcess | None) -> Callable[[], None]:
        self.machine.thread_limit = 1 + int(fault.amount)

        def end() -> None:
            self.machine.thread_limit = None

        return end

    def _no_descriptors(
        self, fault: Fault, target: SimulatedProcess | None
    ) -> Callable[[], None] | None:
        if target is None:
            return None
        target.descriptor_limit = max(8, len(target.files) + 3 + int(fault.amount))

        def end() -> None:
            for each in (target, *target.children):  # which have its limit if they are new
                each.descriptor_limit = self.served.plan.descriptor_limit

        return end

    def _fill_disk(self, fault: Fault, _: SimulatedProcess | None) -> Callable[[], None]:
        self.machine.disk_is_full = True

        def end() -> None:
            self.machine.disk_is_full = False

        return end

    def _bind_again(self, fault: Fault, _: SimulatedProcess | None) -> Callable[[], None] | None:
        self.served.bind_again(fault.model)
        return lambda: None  # it takes some time

    def _jump(self, fault: Fault, _: SimulatedProcess | None) -> None:
        self.machine.wall_offset_ns += round(fault.amount * SECOND_NS)


KINDS: dict[str, Callable[[Faults, Fault, SimulatedProcess | None], Callable[[], None] | None]] = {
    "kill": Faults._kill,
    "stop": Faults._stop,
    "slow down": Faults._slow,
    "reset a connection": Faults._reset,
    "leave no shared memory": Faults._no_memory,
    "start no process": Faults._no_processes,
    "start no thread": Faults._no_threads,
    "leave few descriptors to": Faults._no_descriptors,
    "let the wall clock jump": Faults._jump,
    "bind again": Faults._bind_again,
    "fill the disk": Faults._fill_disk,
}


def _stop_s(role: str, amount: float) -> float:
    """How long a process is stopped; front ends sometimes for so long that they count as hung."""
    return HANG_S if role == "front end" and amount > _HANGS else 0.01 + 5 * amount**3


def make_faults(
    source: random.Random,
    count: int,
    length_s: float,
    roles: list[str],
    bound: Sequence[str] = (),
) -> list[Fault]:
    """Make a schedule for a run of this length, for a system with these roles.

    `bound` are the models whose functions the program may bind again.
    """
    faults = []
    for _ in range(count):
        at_s = source.random() * length_s
        choice, pick, amount = source.random(), source.random(), source.random()
        role = roles[int(source.random() * len(roles))]
        if bound and choice < 0.25:
            model = bound[int(pick * len(bound))]
            faults.append(Fault("bind again", at_s, for_s=1.0, model=model))
        elif choice < 0.55 and role != "server":
            faults.append(_hit(at_s, role, choice, pick, amount))
        else:
            faults.append(_take_away(at_s, role, source.random(), pick, amount))
    return sorted(faults, key=lambda each: each.at_s)


def _hit(at_s: float, role: str, choice: float, pick: float, amount: float) -> Fault:
    if choice < 0.4:
        return Fault("kill", at_s, role, pick)
    if choice < 0.5:
        return Fault("stop", at_s, role, pick, _stop_s(role, amount))
    return Fault("slow down", at_s, role, pick, 0.5, 10 + 1000 * amount)


def _take_away(at_s: float, role: str, choice: float, pick: float, amount: float) -> Fault:
    """A fault of the machine or the network, or of what a process may have."""
    if choice < 0.35:
        return Fault("reset a connection", at_s, pick=pick)
    if choice < 0.5:
        return Fault("leave few descriptors to", at_s, role, pick, 0.5, int(8 * amount))
    made = {
        "slow down": Fault("slow down", at_s, role, pick, 0.5, 10 + 1000 * amount),
        "memory": Fault("leave no shared memory", at_s, for_s=0.5, amount=(1 << 20) * pick),
        "processes": Fault("start no process", at_s, for_s=1.0, amount=int(2 * pick)),
        "threads": Fault("start no thread", at_s, for_s=0.5, amount=int(4 * pick)),
        "disk": Fault("fill the disk", at_s, for_s=1.0),
        "clock": Fault("let the wall clock jump", at_s, amount=7200 * (amount - 0.5)),
    }
    return list(made.values())[int((choice - 0.5) * 2 * len(made))]
