# SPDX-License-Identifier: Apache-2.0
"""A scenario: a system, its clients and its faults, all made from a seed; and a run of it.

A run ends with findings: what the oracle says of the clients' calls, what is left behind when the
system rests, what was logged or raised that nobody expected, and whether it stops in time.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import gc
import hashlib
import io
import logging
import pathlib
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from typing import Any

from tests.simulation.costs import COUNTED, Costs
from tests.simulation.faults import ROLES, Fault, Faults, Happened, make_faults
from tests.simulation.files import STREAM_BYTES
from tests.simulation.install import installed
from tests.simulation.machine import SECOND_NS, Machine, StuckError
from tests.simulation.network import ClientWorld, Network
from tests.simulation.rest import Books, take_stock, what_is_left
from tests.simulation.served import PORTS, Served, ServedPlan
from tests.simulation.stopping import PROFILE as STOPPING
from tests.simulation.stopping import Stop, StopPlan, make_stop
from tests.workload import generator, models
from tests.workload.calls import POLITE, Call, End, Kind, Outcome, Port
from tests.workload.oracle import Bounds, Cause, Oracle
from tests.workload.sessions import ClientPlan, Session, Writers

PROFILES = tuple(generator.PROFILES)
_UNDER_WAY_S = 0.02  # until the server has read what was sent
_LATE_S = 0.05  # after its deadline, in virtual time: nothing else runs on the machine
_RECOVERY_S = 60.0  # after the last fault, until all models serve again
_REST_S = 90.0
_PROBE_S = 60.0
_FIRST_PROBE = 1 << 30  # above the numbers of clients' calls, and as long as these as a text
_HANG_S = 10.0  # until a front end that hangs is replaced, at the latest
_LONGEST_S = 3600.0  # of a run, after the last client should have ended
_WATCH_NS = SECOND_NS // 4
_CONNECTIONS_NS = SECOND_NS // 50
_HASHED_LINES = 256  # at once
_ENDS = {None: "", **{end: end.value for end in End}}
_ORDINARY_CLIENTS = 64
_ORDINARY_NS = 50_000  # what a server takes for a small request
_CALM_NS = 2 * SECOND_NS  # until a system with all its processes counts as recovered


@dataclasses.dataclass(frozen=True, slots=True)
class Length:
    """How long a scenario is.

    Args:
        calls: of each client, about.
        stretch: how many times longer clients pause, and faults are apart. Much of a long schedule
            is idle, so that it has timers of minutes in it.
    """

    calls: int = 24
    stretch: float = 1.0


USUAL_LENGTH = Length()


@dataclasses.dataclass(slots=True)
class Scenario:
    seed: int
    profile: str
    kept: Kept
    length: Length
    front_ends: int
    has_repository: bool
    writes_files: bool  # the access log, and traces of some requests
    split_share: float
    pause_share: float
    callback_ns: int  # what each call of an event loop takes
    client_buffer_bytes: int
    clients: list[ClientPlan]
    faults: list[Fault]
    stop: StopPlan | None = None  # while the clients go on

    @property
    def call_count(self) -> int:
        return sum(len(client.calls) for client in self.clients)

    @property
    def fingerprint(self) -> str:
        """Some digits that are others if the seed makes something else."""
        calls = [
            dataclasses.replace(call, outcome=Outcome(), memory=None)
            for client in self.clients
            for call in client.calls
        ]
        starts = [(client.number, client.start_s, client.window_bytes) for client in self.clients]
        parts = (
            self.front_ends,
            self.has_repository,
            self.writes_files,
            self.split_share,
            self.pause_share,
            self.callback_ns,
            *([] if self.stop is None else [self.stop]),
        )
        text = "\n".join(map(repr, (parts, starts, self.faults, calls)))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Kept:
    """What is kept of a scenario while it is made shorter; None keeps everything.

    Args:
        clients: numbers of clients.
        calls: numbers of calls.
        faults: indices of faults.
        conducts: numbers of calls whose clients are slow or rude, as the seed says.
        front_ends: whether front ends have processes of their own, if the seed says so.
        splits: whether bytes arrive in pieces, if the seed says so.
        pauses: whether threads lose their processors before system calls, if the seed says so.
        files: whether the server writes an access log and traces, if the seed says so.
    """

    clients: frozenset[int] | None = None
    calls: frozenset[int] | None = None
    faults: frozenset[int] | None = None
    conducts: frozenset[int] | None = None
    front_ends: bool = True
    splits: bool = True
    pauses: bool = True
    files: bool = True

    def __repr__(self) -> str:
        """As Python code, the same for the same content."""
        words = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                text = repr(value)
                if isinstance(value, frozenset):
                    text = f"frozenset({sorted(value)})"
                words.append(f"{field.name}={text}")
        return f"Kept({', '.join(words)})"


EVERYTHING = Kept()


def names_of_models(*, has_repository: bool) -> list[str]:
    if has_repository:
        return models.repository_models()
    return [each.name for each in models.bound_models()]


def make_scenario(
    seed: int, profile: str = "mixed", kept: Kept = EVERYTHING, length: Length = USUAL_LENGTH
) -> Scenario:
    """Make the scenario of a seed, or what is kept of it."""
    source = random.Random(f"{seed} {profile} scenario")
    has_repository = source.random() < 0.6
    front_ends = 2 if source.random() < 0.5 else 0
    writes_files = source.random() < 0.3
    split_share = 0.3 * source.random() if source.random() < 0.5 else 0.0
    pause_share = 0.02 * source.random() if source.random() < 0.5 else 0.0
    roles = ["server"]
    if has_repository:
        roles += ["worker", "worker", "zygote of workers"]
    if front_ends:
        roles += ["front end", "front end", "zygote of front ends"]
    count = 0 if profile == "quiet" else int(source.random() * 12)
    made = generator.Generator(
        random.Random(f"{seed} {profile} clients"),
        generator.PROFILES[profile],
        names_of_models(has_repository=has_repository),
    )
    length_s = 1.0 + 4.0 * source.random()
    if source.random() < 0.5:
        length_s /= 20  # all at once: requests wait for one another, and faults hit many of them
    length_s *= generator.PROFILES[profile].spread
    clients = made.plans(4 + int(40 * source.random() ** 2), length.calls, length_s)
    bound = () if has_repository else names_of_models(has_repository=False)
    faults = make_faults(random.Random(f"{seed} {profile} faults"), count, length_s, roles, bound)
    # Clients with small buffers make the server feel sooner that they read slowly.
    # Where servers take their time, requests wait for one another and travel together.
    callback_ns = (0, 0, 10_000, 50_000)[int(4 * source.random())]
    buffer_bytes = (STREAM_BYTES, STREAM_BYTES, 1 << 14, 1 << 12)[int(4 * source.random())]
    scenario = Scenario(
        seed=seed,
        profile=profile,
        kept=kept,
        length=length,
        front_ends=front_ends,
        has_repository=has_repository,
        writes_files=writes_files,
        split_share=split_share,
        pause_share=pause_share,
        callback_ns=callback_ns,
        client_buffer_bytes=buffer_bytes,
        clients=clients,
        faults=faults,
    )
    if profile == STOPPING:
        source = random.Random(f"{seed} {profile} stop")
        scenario.stop = make_stop(source, length_s, has_repository=has_repository)
    if length.stretch != 1.0:
        _stretch(scenario, length.stretch)
    _keep(scenario, kept)
    return scenario


def make_ordinary_scenario(calls: int, seed: int = 3) -> Scenario:
    """Many polite clients with so many small requests each, and no faults: a measure of speed."""
    profile = generator.Profile({"alike": 1}, longest_pause_s=0.0)
    source = random.Random(f"{seed} ordinary clients")
    made = generator.Generator(source, profile, names_of_models(has_repository=False))
    return Scenario(
        seed=seed,
        profile="ordinary",
        kept=Kept(),
        length=Length(calls),
        front_ends=0,
        has_repository=False,
        writes_files=False,
        split_share=0.0,
        pause_share=0.0,
        callback_ns=_ORDINARY_NS,
        client_buffer_bytes=STREAM_BYTES,
        clients=made.plans(_ORDINARY_CLIENTS, calls, 0.01),
        faults=[],
    )


def _stretch(scenario: Scenario, factor: float) -> None:
    for client in scenario.clients:
        client.start_s *= factor
        for call in client.calls:
            call.pause_s *= factor
    scenario.faults = [
        dataclasses.replace(fault, at_s=fault.at_s * factor) for fault in scenario.faults
    ]


def _keep(scenario: Scenario, kept: Kept) -> None:
    clients = scenario.clients
    if kept.clients is not None:
        clients = [client for client in clients if client.number in kept.clients]
    for client in clients:
        if kept.calls is not None:
            client.calls = [call for call in client.calls if call.number in kept.calls]
        if kept.conducts is not None:
            for call in client.calls:
                if call.number not in kept.conducts:
                    call.conduct = POLITE
    scenario.clients = [client for client in clients if client.calls]
    if kept.faults is not None:
        scenario.faults = [
            fault for index, fault in enumerate(scenario.faults) if index in kept.faults
        ]
    scenario.front_ends *= kept.front_ends
    scenario.split_share *= kept.splits
    scenario.pause_share *= kept.pauses
    scenario.writes_files &= kept.files


@dataclasses.dataclass(slots=True)
class Result:
    """What came of a run; `began_ns` is when the clients began."""

    scenario: Scenario
    findings: list[str]
    trace: str  # a hash of everything that clients saw, with the times
    calls: int
    virtual_s: float
    real_s: float
    story: list[tuple[int, str]]
    account: Any = None
    began_ns: int = 0
    ended_ns: int = 0
    processor_s: float = 0.0


class _Errors(logging.Handler):
    """Keeps what is logged with a traceback: an exception that nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            if isinstance(error, ValueError) and str(error).startswith("odd "):
                return  # of the model that refuses odd numbers
            where = "".join(traceback.format_tb(error.__traceback__)[-2:])
            self.texts.append(f"{record.getMessage()}: {error!r}\n{where}")


@contextlib.contextmanager
def _only_errors(handler: logging.Handler) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@functools.cache
def repository() -> pathlib.Path:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pytriton-simulation-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    models.write_repository(folder)
    return folder


class _TracingOracle(Oracle):
    """An oracle that also makes a hash of what it sees."""

    def __init__(
        self, machine: Machine, served: Collection[str], stop: StopPlan | None = None
    ) -> None:
        bounds = Bounds(late_s=_LATE_S, under_way_s=_UNDER_WAY_S)
        if stop is not None:
            bounds = dataclasses.replace(bounds, exit_timeout_s=stop.finishes_s)
        super().__init__(lambda: machine.now_ns / SECOND_NS, bounds, served)
        self._machine = machine
        self._hash = hashlib.sha256()
        self._lines: list[str] = []  # that are not in the hash yet
        self.calls = 0

    def finish(self, call: Call) -> None:
        outcome = call.outcome
        lines = self._lines
        lines.append(
            f"{self._machine.now_ns} {call.number} {_ENDS[outcome.end]} {outcome.status} "
            f"{len(outcome.responses)} {outcome.error}\n"
        )
        if len(lines) >= _HASHED_LINES:
            self._hash_lines()
        self.calls += 1
        super().finish(call)

    @property
    def trace(self) -> str:
        self._hash_lines()
        return self._hash.hexdigest()

    def _hash_lines(self) -> None:
        self._hash.update("".join(self._lines).encode())
        self._lines.clear()


# What a fault means to those that use the server.
_CAUSES = {
    ("kill", "worker"): Cause.WORKER_KILLED,
    ("kill", "zygote of workers"): Cause.WORKER_KILLED,
    ("kill", "front end"): Cause.FRONT_END_KILLED,
    ("kill", "zygote of front ends"): Cause.FRONT_END_KILLED,
    ("stop", "front end"): Cause.FRONT_END_KILLED,  # one that hangs for long is killed
    ("reset a connection", ""): Cause.NETWORK_CUT,
}
_CAUSES_OF_KINDS = {
    "bind again": Cause.MODEL_UNLOADED,
    "stop": Cause.STALLED,
    "slow down": Cause.STALLED,
    "leave no shared memory": Cause.EXHAUSTED,
    "start no process": Cause.EXHAUSTED,
    "start no thread": Cause.EXHAUSTED,
    "leave few descriptors to": Cause.EXHAUSTED,
}


class Run:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.machine = Machine(scenario.seed)
        self.books = Books(self.machine)
        self._costs = Costs(self.machine)
        self.findings: list[str] = []
        self.began_ns = self.ended_ns = 0  # when the clients did
        self._errors = _Errors()
        self._questions = 0
        self._has_wrong_connection = False

    def run(self) -> Result:
        scenario, machine = self.scenario, self.machine
        began_s, began_processor_s = time.perf_counter(), time.process_time()
        with contextlib.ExitStack() as stack:
            settings: dict[str, Any] = {}
            if scenario.writes_files:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                settings["access_log"] = f"{folder}/access.log"
                settings["trace_config"] = [
                    "level=TIMESTAMPS",
                    "rate=3",
                    f"triton,file={folder}/trace.json",
                    "triton,log-frequency=20",
                ]
            if scenario.stop is not None:
                settings |= scenario.stop.settings
            plan = ServedPlan(
                scenario.front_ends,
                repository() if scenario.has_repository else None,
                settings=tuple(settings.items()),
            )
            stack.enter_context(_only_errors(self._errors))
            # What servers print, as on a signal, is nothing that their users read here.
            stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
            stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
            stack.enter_context(installed(machine))
            stack.enter_context(self.books.watching())
            if scenario.profile in COUNTED:
                stack.enter_context(self._costs.counting())
            self.served = Served(machine, plan)
            names = names_of_models(has_repository=scenario.has_repository)
            self.oracle = _TracingOracle(machine, names, scenario.stop)
            try:
                self._go()
            except StuckError as error:
                self.findings.append(str(error))
                self._collect()
            virtual_s = (machine.now_ns - 1000 * SECOND_NS) / SECOND_NS
            story = [(when, " ".join(map(str, words))) for when, words in machine.story]
        return Result(
            scenario,
            self.findings,
            self.oracle.trace,
            self.oracle.calls,
            virtual_s,
            time.perf_counter() - began_s,
            story,
            self.oracle.account,
            self.began_ns,
            self.ended_ns,
            time.process_time() - began_processor_s,
        )

    def _go(self) -> None:
        machine, scenario, oracle = self.machine, self.scenario, self.oracle
        try:
            self.served.start()
        except RuntimeError as error:
            self.findings.append(str(error))
            return
        machine.run_for(_REST_S)
        before = take_stock(machine, self.books)
        machine.pause_share = scenario.pause_share
        machine.callback_ns = scenario.callback_ns
        network = Network(machine)
        faults = Faults(machine, self.served, network)
        faults.on_happened = functools.partial(self._tell, before)
        faults.schedule(scenario.faults)
        if scenario.stop is not None:
            self._stop_among(scenario.stop, network, faults)
            return
        self._work_through(network, faults)
        machine.pause_share = 0.0
        machine.callback_ns = 0
        # Garbage is only collected here, so that runs do not depend on when Python does it.
        gc.collect()
        self._load_again(network)
        self._probe(network)  # without a collection after it: no cycle may keep memory
        self._ask(network, (Kind.UNREGISTER, Port.HTTP, ""))
        machine.run_for(_REST_S)
        self._check_rest(before, network)
        oracle.close()
        stopping = oracle.fault(Cause.SERVER_STOPPING)
        machine.note("the server is stopped")
        if not self.served.stop():
            living = [each.name for each in machine.processes if not each.is_over]
            self.findings.append(f"the server did not stop: {', '.join(living)} still run")
        oracle.over(stopping)
        self._collect()

    def _stop_among(self, plan: StopPlan, network: Network, faults: Faults) -> None:
        """Stop the server while its clients go on; then nothing may be left."""
        machine, oracle = self.machine, self.oracle
        has_faults = bool(self.scenario.faults)
        stop = Stop(plan, machine, self.served, oracle, has_faults=has_faults)
        stop.schedule()
        sessions = self._work_through(network, faults, lambda: stop.has_begun)
        self.findings += stop.finish(sessions)
        self.ended_ns = machine.now_ns
        gc.collect()
        oracle.close()
        if network.connections:
            self.findings.append(f"{len(network.connections)} connections of clients are left")
        self._collect()

    def _work_through(
        self,
        network: Network,
        faults: Faults,
        is_enough: Callable[[], bool] | None = None,
    ) -> list[Session]:
        """Let the clients do what they plan, until all have ended, or until it is enough."""
        machine, oracle, scenario = self.machine, self.oracle, self.scenario
        writers = Writers()
        open_clients = len(scenario.clients)

        def on_done(_: Session) -> None:
            nonlocal open_clients
            open_clients -= 1

        self.began_ns = machine.now_ns
        sessions = []
        for plan in scenario.clients:
            world = ClientWorld(
                network, plan.number, PORTS, scenario.split_share, scenario.client_buffer_bytes
            )
            sessions.append(session := Session(plan, world, oracle, writers, on_done))
            session.start()
        end_ns = self.began_ns + round(_LONGEST_S * max(1.0, scenario.length.stretch) * SECOND_NS)

        def watch() -> None:
            oracle.check_waiting()
            if open_clients:
                machine.call_later(_WATCH_NS, watch)

        # In hours with few calls, as many looks find as much.
        between_ns = min(round(_CONNECTIONS_NS * max(1.0, scenario.length.stretch)), SECOND_NS)

        def watch_connections() -> None:
            self._check_connections()
            if open_clients:
                machine.call_later(between_ns, watch_connections)

        watch()
        watch_connections()

        def is_done() -> bool:
            return not open_clients and faults.is_over

        machine.run(is_enough or is_done, end_ns)
        self.ended_ns = machine.now_ns
        return sessions

    def _check_connections(self) -> None:
        wrong = self.books.check_connections()
        if wrong and not self._has_wrong_connection:
            self._has_wrong_connection = True
            self.findings += [f"a connection is wrong: {each}" for each in wrong]

    def _tell(self, before: Any, happened: Happened) -> None:
        """Tell the oracle of a fault, and later that the system is as before."""
        fault, machine, oracle = happened.fault, self.machine, self.oracle
        cause = _CAUSES.get((fault.kind, fault.role)) or _CAUSES_OF_KINDS.get(fault.kind)
        if cause is None:
            return
        causes = [cause]
        if fault.kind == "bind again":
            causes.append(Cause.MODEL_RELOADED)
        if fault.kind == "stop" and fault.role == "front end":
            causes.append(Cause.STALLED)
        if cause is Cause.EXHAUSTED:
            causes += [Cause.WORKER_KILLED, Cause.FRONT_END_KILLED, Cause.STALLED]
        told = [oracle.fault(each, fault.model) for each in causes]
        end_s = happened.end_s
        if fault.kind == "stop" and fault.role == "front end":
            end_s = min(end_s, happened.begin_s + _HANG_S)
        wanted = {role: before[f"{role}: processes"] for role in _roles(before)}
        calm_since = 0

        def look() -> None:
            nonlocal calm_since
            stock = [each.name for each in machine.processes if not each.is_over]
            is_whole = not self.served.is_binding and all(
                stock.count(role) >= count for role, count in wanted.items()
            )
            if machine.now_ns / SECOND_NS < end_s or not is_whole:
                calm_since = machine.now_ns
            if machine.now_ns - calm_since >= _CALM_NS:
                for each in told:
                    oracle.over(each)
                return
            machine.call_later(_WATCH_NS, look)

        calm_since = machine.now_ns
        look()

    def _check_rest(self, before: Any, network: Network) -> None:
        machine = self.machine
        left = what_is_left(before, take_stock(machine, self.books))
        self.findings += [f"left behind: {each}" for each in left]
        self.findings += [f"books are wrong: {each}" for each in self.books.check()]
        self.findings += self.books.under_way()
        if network.connections:
            self.findings.append(f"{len(network.connections)} connections of clients are left")
        statistics, metrics = self._ask(
            network, (Kind.STATISTICS, Port.HTTP, ""), (Kind.METRICS, Port.METRICS, "")
        )
        self.oracle.compare(statistics, metrics or "")
        self.oracle.check_memory()

    def _load_again(self, network: Network) -> None:
        """Load the models that clients unloaded, or could not load; all others have to be ready."""
        self.machine.run_for(_RECOVERY_S)
        managed = {
            call.model
            for client in self.scenario.clients
            for call in client.calls
            if call.kind in (Kind.LOAD, Kind.UNLOAD)
        }
        (index,) = self._ask(network, (Kind.INDEX, Port.HTTP, ""))
        for entry in index or ():
            name = entry["name"]
            if entry.get("state") == "READY":
                continue
            if name in managed or name in models.ENSEMBLES:
                self._ask(network, (Kind.LOAD, Port.HTTP, name))
            else:
                self.findings.append(f"'{name}' is not ready after the faults: {entry}")

    def _probe(self, network: Network) -> None:
        """Use every model once more: each has to answer, as nothing goes wrong any more."""
        names = names_of_models(has_repository=self.scenario.has_repository)
        source = random.Random(f"{self.scenario.seed} probe")
        made = generator.Generator(source, "quiet", names, first_number=_FIRST_PROBE)
        for number, port in enumerate((Port.HTTP, Port.GRPC), _FIRST_PROBE):
            plan = ClientPlan(number, port, 0.0, made.each_model(port))
            Session(plan, ClientWorld(network, number, PORTS), self.oracle, Writers()).start()
        self.machine.run_for(_PROBE_S)
        self.oracle.check_waiting()

    def _ask(self, network: Network, *questions: tuple[Kind, Port, str]) -> list[Any]:
        """Ask the server something about itself; returns the documents, None for a refusal."""
        calls = []
        for kind, port, model in questions:
            self._questions += 1
            call = Call((1 << 40) + self._questions, kind, port, model)
            calls.append(call)
            world = ClientWorld(network, call.number, PORTS)
            plan = ClientPlan(call.number, port, 0.0, [call])
            Session(plan, world, self.oracle, Writers()).start()
        self.machine.run_for(5.0)
        return [
            call.outcome.responses[0].document if call.outcome.responses else None for call in calls
        ]

    def _collect(self) -> None:
        machine = self.machine
        self.findings += [str(finding) for finding in self.oracle.findings]
        self.findings += self.books.wrong_credit + self._costs.findings
        for thread, error in machine.errors:
            where = "".join(traceback.format_tb(error.__traceback__)[-2:])
            self.findings.append(f"a thread of {thread.process.name} ended with {error!r}\n{where}")
        for context in machine.unhandled:
            error = context.get("exception")
            where = "" if error is None else "".join(traceback.format_tb(error.__traceback__)[-2:])
            self.findings.append(
                f"an event loop reported {context.get('message')}: {error!r}\n{where}"
            )
        self.findings += [f"logged: {text}" for text in self._errors.texts]


def _roles(stock: Any) -> list[str]:
    return [name.removesuffix(": processes") for name in stock if name.endswith(": processes")]


__all__ = [
    "EVERYTHING",
    "PROFILES",
    "ROLES",
    "USUAL_LENGTH",
    "Kept",
    "Length",
    "Result",
    "Run",
    "Scenario",
    "make_scenario",
    "repository",
]
