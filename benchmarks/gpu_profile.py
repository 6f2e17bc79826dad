# SPDX-License-Identifier: Apache-2.0
"""Where the time of one request with CUDA shared memory goes, in all processes that it passes.

    python -m benchmarks.gpu_profile --seconds 3                          on a machine with a GPU
    python -m benchmarks.gpu_profile --stand-in --kib 4 --front-ends 2    on any other

One client sends one request at a time. Each process writes down when it passes a station (a
function of the server, named in `STATIONS`), by a clock that all processes of a machine share. The
table has the stations of the usual request in their order, with the time since the one before it.
`--calls` counts calls of Python functions instead, and `--system-calls` those of the system with
strace. Nothing of that is in the product: functions are replaced when their modules are imported.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import functools
import importlib.abc
import importlib.util
import json
import mmap
import os
import pathlib
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator, Sequence

FOLDER = "BENCHMARKS_GPU_PROFILE"  # set in processes that write to this folder
CALLS = "BENCHMARKS_GPU_PROFILE_CALLS"  # set where calls are counted
POLL_NS = "BENCHMARKS_GPU_PROFILE_POLL_NS"  # how long processes poll, in place of what they would
BARE = "BENCHMARKS_GPU_PROFILE_BARE"  # set where nothing is noted
_SPINNER = "pytriton.runtime.transport.loop_spinner"
_FILE_BYTES = 32 << 20
_ENTER, _EXIT, _FAILED = 0, 1, 2  # _FAILED: polling that was given up
_RUNTIME, _SERVER = "pytriton.runtime.", "pytriton.serving.server."


class Station(NamedTuple):
    """A function whose calls are written down."""

    module: str
    function: str
    name: str


STATIONS = [
    Station("benchmarks.gpu_profile", "request", "client: request"),
    Station(
        _SERVER + "http.http1_connection", "Http1Connection.buffer_updated", "front: HTTP read"
    ),
    Station(_SERVER + "grpc.connection", "GrpcConnection.data_received", "front: gRPC read"),
    Station(_SERVER + "shared_memory.region_request", "RegionRequest.start", "front: regions"),
    Station(_SERVER + "frontend.core_link", "CoreLink._send_items", "front: send to core"),
    Station(_SERVER + "frontend.core_link", "CoreLink._on_message", "front: core answers"),
    Station(_SERVER + "http.http1_connection", "Http1Connection.respond", "front: HTTP answer"),
    Station(
        _SERVER + "http.http1_connection", "Http1Connection.respond_small", "front: HTTP answer"
    ),
    Station(_SERVER + "frontend.session", "FrontEndSession._on_submit", "core: front end sends"),
    Station(_RUNTIME + "executor.channel_instance", "FramedInstance.execute", "core: send batch"),
    Station(_RUNTIME + "executor.batch_tracker", "BatchTracker.handle", "core: batch answered"),
    Station(_SERVER + "frontend.reply_outbox", "ReplyOutbox.flush", "core: send to front end"),
    Station(_RUNTIME + "transport.memory_channel", "MemoryChannel.receive", "all: receive"),
    Station(_RUNTIME + "transport.loop_spinner", "spin", "all: poll"),
    Station(_RUNTIME + "python_backend.model_backend", "ModelExecution.run", "worker: batch"),
    Station(_RUNTIME + "python_backend.model_backend", "make_requests", "worker: make requests"),
    Station(_RUNTIME + "python_backend.replies", "place", "worker: write outputs"),
    Station(_RUNTIME + "cuda.driver", "LibraryDriver.push_context", "driver: push context"),
    Station(_RUNTIME + "cuda.driver", "LibraryDriver.copy_on_device", "driver: copy on device"),
    Station(_RUNTIME + "cuda.driver", "LibraryDriver.synchronize_default", "driver: wait"),
    Station(_RUNTIME + "cuda.driver", "LibraryDriver.synchronize", "driver: wait for all"),
    Station(_RUNTIME + "transport.response_outbox", "ResponseOutbox.send", "worker: send answer"),
]
_CLIENT = 0
_POLL = next(number for number, each in enumerate(STATIONS) if each.function == "spin")
_RECEIVE = next(number for number, each in enumerate(STATIONS) if "receive" in each.name)


# In the processes that are watched


class Recorder:
    """Writes times into a file of this process, which needs no end: it may be killed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # Never closed: a mapping has a descriptor, which a forked process may use for another file.
        self._mappings: list[mmap.mmap] = []
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        path = pathlib.Path(self._folder) / f"{os.getpid()}.times"
        with path.open("w+b") as file:
            file.truncate(_FILE_BYTES)
            self._mappings.append(mmap.mmap(file.fileno(), _FILE_BYTES))
        self._memory = memoryview(self._mappings[-1]).cast("Q")
        self._end = len(self._memory) - 2
        self._at = 0

    def note(self, station: int, kind: int) -> None:
        """Note that this process is at a station."""
        at = self._at
        if at < self._end:
            self._memory[at] = time.perf_counter_ns()
            self._memory[at + 1] = station << 2 | kind
            self._at = at + 2

    def watched(self, function: Callable[..., Any], station: int) -> Callable[..., Any]:
        """Returns a function that notes when it is called and when it returns."""
        note = self.note

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            note(station, _ENTER)
            try:
                return function(*arguments, **named)
            finally:
                note(station, _EXIT)

        return call

    def watched_poll(self, function: Callable[..., Any], station: int) -> Callable[..., Any]:
        """Returns `loop_spinner.spin`, with a note of whether there was an event."""
        note = self.note

        @functools.wraps(function)
        def spin(machine: Any, policy: Any, *arguments: Any, **named: Any) -> None:
            before_ns = policy.resume_ns
            note(station, _ENTER)
            function(machine, policy, *arguments, **named)
            note(station, _EXIT if policy.resume_ns == before_ns else _FAILED)

        return spin

    def watch(self, module: types.ModuleType) -> None:
        """Replace the functions of a module that are stations."""
        for number, station in enumerate(STATIONS):
            if station.module != module.__name__:
                continue
            *classes, name = station.function.split(".")
            owner = functools.reduce(getattr, classes, module)
            wrap = self.watched_poll if number == _POLL else self.watched
            setattr(owner, name, wrap(getattr(owner, name), number))


class CallCounter:
    """Counts calls in the thread that passes stations, from the 100th to the 1,100th request."""

    FIRST, LAST = 100, 1100

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._profile = cProfile.Profile()
        self._count = 0

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that is called once for each request, and counts that."""

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            self._count += 1
            if self._count == self.FIRST:
                self._profile.enable()
            if self._count == self.LAST:
                self._profile.disable()
                path = pathlib.Path(self._folder) / f"{os.getpid()}.{function.__qualname__}.calls"
                self._profile.dump_stats(path)
            return function(*arguments, **named)

        return call

    def watch(self, module: types.ModuleType) -> None:
        """Replace the functions of a module that see each request once in their process."""
        for name, function in (
            ("http.http1_connection", "Http1Connection.buffer_updated"),
            ("grpc.connection", "GrpcConnection.data_received"),
            ("executor.channel_instance", "FramedInstance.execute"),
            ("python_backend.model_backend", "ModelExecution.run"),
        ):
            if module.__name__.endswith("." + name):
                owner_name, function_name = function.split(".")
                owner = getattr(module, owner_name)
                setattr(owner, function_name, self.watched(getattr(owner, function_name)))


class _Finder(importlib.abc.MetaPathFinder):
    """Lets somebody see modules when they have been imported."""

    def __init__(self, watch: Callable[[types.ModuleType], None]) -> None:
        self._watch = watch

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """See `importlib.abc.MetaPathFinder`."""
        if not name.startswith("pytriton."):
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                self._watch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def watch_process() -> None:
    """Begin in a process of the server; called before anything of it is imported."""
    folder = os.environ[FOLDER]
    watches: list[Callable[[types.ModuleType], None]] = []
    if POLL_NS in os.environ:
        watches.append(_set_polling)  # before other modules take it from there
    if CALLS in os.environ:
        watches.append(CallCounter(folder).watch)
    elif BARE not in os.environ:
        watches.append(Recorder(folder).watch)

    def watch(module: types.ModuleType) -> None:
        for each in watches:
            each(module)

    sys.meta_path.insert(0, _Finder(watch))


def _set_polling(module: types.ModuleType) -> None:
    if module.__name__ == _SPINNER:
        vars(module)["DEVICE_SPIN_NS"] = int(os.environ[POLL_NS])


# The benchmark


def request(send: Callable[[], Any]) -> None:
    """Send a request and wait for its answer: the first and the last station."""
    send()


class Event(NamedTuple):
    """A station that was passed."""

    time_ns: int
    process: int
    station: int
    kind: int


def read_events(folder: pathlib.Path) -> list[Event]:
    """Returns what all processes have noted, in the order of time."""
    events = []
    for path in folder.glob("*.times"):
        process = int(path.stem)
        values = memoryview(path.read_bytes()).cast("Q")
        for at in range(0, len(values), 2):
            if not values[at]:
                break
            events.append(Event(values[at], process, values[at + 1] >> 2, values[at + 1] & 3))
    return sorted(events)


def requests_of(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Yields the events of each request, from the client's first station to its last."""
    current: list[Event] | None = None
    for event in events:
        if event.station == _CLIENT and event.kind == _ENTER:
            current = []
        if current is not None:
            current.append(event)
            if event.station == _CLIENT and event.kind == _EXIT:
                yield current
                current = None


def print_table(requests: Sequence[Sequence[Event]]) -> None:
    """Print the stations of the usual request, with medians in microseconds."""
    kinds: dict[tuple[tuple[int, int], ...], list[list[Event]]] = defaultdict(list)
    for each in requests:
        stations = [event for event in each if event.station not in (_POLL, _RECEIVE)]
        kinds[tuple((event.station, event.kind) for event in stations)].append(stations)
    way, alike = max(kinds.items(), key=lambda item: len(item[1]))
    print(f"{len(requests)} requests, {len(alike)} of them like this (us, medians):")
    print(f"{'since the request':>18} {'since the last':>15}  station")
    for position, (station, kind) in enumerate(way):
        total = statistics.median(each[position].time_ns - each[0].time_ns for each in alike)
        last = max(0, position - 1)
        step = statistics.median(each[position].time_ns - each[last].time_ns for each in alike)
        end = "ends" if kind == _EXIT else ""
        print(f"{total / 1e3:>18.1f} {step / 1e3:>15.1f}  {STATIONS[station].name} {end}".rstrip())


def print_polling(requests: Sequence[Sequence[Event]], events: Sequence[Event]) -> None:
    """Print for each process how often it polled, and what that came to."""
    names = process_names(events)
    table: dict[int, Counter[str]] = defaultdict(Counter)
    began: dict[int, int] = {}
    for event in (event for each in requests for event in each if event.station == _POLL):
        counts = table[event.process]
        if event.kind == _ENTER:
            began[event.process] = event.time_ns
        elif event.process in began:
            counts["failed" if event.kind == _FAILED else "useful"] += 1
            counts["ns"] += event.time_ns - began.pop(event.process)
    for process, counts in table.items():
        polls = counts["failed"] + counts["useful"]
        spent = counts["ns"] / max(1, polls) / 1e3
        share = polls / max(1, len(requests))
        print(
            f"{names.get(process, '')} ({process}) polled {share:.2f} times in a request, "
            f"{spent:.0f} us each; {counts['failed']} of {polls} in vain"
        )


def process_names(events: Sequence[Event]) -> dict[int, str]:
    """Returns what each process is, by the stations that only it has."""
    names: dict[int, str] = {}
    for event in events:
        name = STATIONS[event.station].name.partition(":")[0]
        if name not in ("all", "driver"):
            known = names.get(event.process)
            names[event.process] = "server" if known not in (None, name) else name
    return names


def print_calls(folder: pathlib.Path, lines: int) -> None:
    """Print how many functions each process has called for a request, and which."""
    count = CallCounter.LAST - CallCounter.FIRST
    for path in sorted(folder.glob("*.calls")):
        table = pstats.Stats(str(path))
        calls: int = table.total_calls  # type: ignore[attr-defined]
        process, _, station = path.stem.partition(".")
        print(f"\n{station} of process {process}: {calls / count:.1f} calls for a request")
        rows = table.stats.items()  # type: ignore[attr-defined]
        for (file, _, name), row in sorted(rows, key=lambda item: -item[1][2])[:lines]:
            print(f"{row[1] / count:>8.2f} {row[2] / count * 1e6:>8.2f} us  {_short(file)}:{name}")


def _short(file: str) -> str:
    return "/".join(pathlib.Path(file).parts[-2:])


def print_system_calls(server: Any, sends: Callable[[], Any], count: int) -> None:
    """Print the system calls of each process of the server, for one request."""
    pids = [server.process.pid, *_descendants(server.process.pid)]
    with tempfile.TemporaryDirectory() as folder:
        command = ["strace", "-ff", "-qq", "-o", f"{folder}/trace"]
        for pid in pids:
            command += ["-p", str(pid)]
        with subprocess.Popen([*command, "-f"]) as tracer:
            time.sleep(1)
            for _ in range(count):
                sends()
            tracer.terminate()
        for path in sorted(pathlib.Path(folder).glob("trace.*")):
            names = Counter(line.partition("(")[0] for line in path.read_text().splitlines())
            total = sum(names.values())
            if total >= count:
                shares = ", ".join(f"{name} {n / count:.2f}" for name, n in names.most_common(8))
                print(f"thread {path.suffix[1:]}: {total / count:.1f} for a request: {shares}")


def _descendants(pid: int) -> list[int]:
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").iterdir():
        for child in (path / "children").read_text().split():
            found += [int(child), *_descendants(int(child))]
    return found


@contextlib.contextmanager
def _customized(folder: str, environment: dict[str, str]) -> Iterator[None]:
    """Let processes that are started meanwhile begin with `watch_process`."""
    code = "import benchmarks.gpu_profile as profile\nprofile.watch_process()\n"
    (pathlib.Path(folder) / "sitecustomize.py").write_text(code)
    root = str(pathlib.Path(__file__).parent.parent)
    paths = [folder, root, *filter(None, sys.path)]
    more = {FOLDER: folder, "PYTHONPATH": os.pathsep.join(paths), **environment}
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _sender(options: argparse.Namespace, server: Any, size: int, names: Any) -> Callable[[], Any]:
    """Returns a function that sends one request and waits for its answer."""
    if options.protocol == "http" and not options.tritonclient:
        return _raw_sender(server.http_port, size, names)
    if options.protocol == "http":
        import tritonclient.http as library  # noqa: PLC0415
    else:
        import tritonclient.grpc as library  # noqa: PLC0415
    x = library.InferInput("X", (size // 4,), "FP32")
    x.set_shared_memory(names[0], size)
    y = library.InferRequestedOutput("Y")
    y.set_shared_memory(names[1], size)
    port = server.http_port if options.protocol == "http" else server.grpc_port
    client = library.InferenceServerClient(f"127.0.0.1:{port}")
    return lambda: client.infer("region", [x], outputs=[y])


def _raw_sender(port: int, size: int, names: Any) -> Callable[[], Any]:
    """Returns a sender that does as little as a client can."""
    import socket  # noqa: PLC0415

    shared = [{"shared_memory_region": name, "shared_memory_byte_size": size} for name in names]
    x = {"name": "X", "datatype": "FP32", "shape": [size // 4], "parameters": shared[0]}
    body = json.dumps({"inputs": [x], "outputs": [{"name": "Y", "parameters": shared[1]}]})
    head = "POST /v2/models/region/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
    message = (head.format(len(body)) + body).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send() -> None:
        connection.sendall(message)
        answer = connection.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200"), answer

    return send


def profile(options: argparse.Namespace) -> None:
    """Start a server, send requests, and print what was asked for."""
    # They need packages that watched processes do not.
    from benchmarks import gpu, gpu_setup  # noqa: PLC0415

    size = options.kib << 10
    models = {"region": gpu.MODELS["region" if options.plain else "region_torch"]}
    flags = [] if options.front_ends is None else [f"--frontend-processes={options.front_ends}"]
    with tempfile.TemporaryDirectory() as folder:
        variables = {CALLS: "1"} if options.calls else {BARE: "1"} if options.bare else {}
        if options.poll_us is not None:
            variables[POLL_NS] = str(1000 * options.poll_us)
        path = pathlib.Path(folder)
        watches = contextlib.nullcontext()
        if not options.system_calls:
            watches = _customized(folder, variables)  # type: ignore[assignment]
        with watches:
            server = gpu_setup.Server(path, models, stand_in=options.stand_in, flags=flags)
        try:
            server.await_ready()
            with gpu_setup.regions(server, size) as (first, second, _, _):
                send = _sender(options, server, size, (first, second))
                for _ in range(50):
                    send()
                if options.system_calls:
                    print_system_calls(server, send, 200)
                else:
                    _send_for(path, send, options)
        finally:
            server.stop()
        if options.calls:
            print_calls(path, options.lines)


def _send_for(folder: pathlib.Path, send: Callable[[], Any], options: argparse.Namespace) -> None:
    if options.calls:
        for _ in range(CallCounter.LAST + 10):
            send()
        return
    watched = Recorder(str(folder)).watched(request, _CLIENT)
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < options.seconds:
        watched(send)
        count += 1
    print(f"{count / spent:,.0f} requests/s, {spent / count * 1e6:.0f} us each")
    if options.bare:
        return
    events = read_events(folder)
    requests = list(requests_of(events))
    print_table(requests)
    print_polling(requests, events)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_profile")
    add = parser.add_argument
    add("--seconds", type=float, default=3.0)
    add("--kib", type=int, default=16 << 10, help="of input and output")
    add("--protocol", choices=("http", "grpc"), default="http")
    add("--tritonclient", action="store_true", help="over HTTP, too; else a plain socket")
    add("--front-ends", type=int, help="processes of their own; the server decides without it")
    add("--plain", action="store_true", help="a model without torch")
    add("--calls", action="store_true", help="count calls of Python functions")
    add("--bare", action="store_true", help="only requests a second, with nothing noted")
    add("--poll-us", type=int, help="how long processes poll for such requests; 0: they do not")
    add("--lines", type=int, default=25, help="of the functions that take most time")
    add("--system-calls", action="store_true", help="count them with strace")
    add("--stand-in", action="store_true", help="without a GPU, with the library of tests/cuda")
    options = parser.parse_args(arguments)
    if options.stand_in:
        from benchmarks import gpu_setup  # noqa: PLC0415

        options.plain = True
        if gpu_setup.STAND_IN not in os.environ:
            gpu_setup.run_with_stand_in("benchmarks.gpu_profile", has_torch=False)
    profile(options)


if __name__ == "__main__":
    main()
