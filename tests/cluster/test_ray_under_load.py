# SPDX-License-Identifier: Apache-2.0
"""Servers on a real Ray with three nodes, under load, while parts of all this are killed.

Whatever happens: each request is answered or refused in words, no answer is that of another
request, and nothing is left when a server has ended.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from tests.cluster.loads import Load
from tests.cluster.ray_cluster import RayNodes
from tests.cluster.ray_server import RayServer, Watch, is_running
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, config, model, write_model

logger = logging.getLogger(__name__)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.gpu,  # nodes that claim to have GPUs need an environment that hides none
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]

NODES = {
    "head": {"num_cpus": 4, "resources": {"first": 1}},
    "gpus": {"num_cpus": 4, "num_gpus": 1, "resources": {"slot": 1}},
    "disks": {"num_cpus": 4, "resources": {"fast_disk": 2}},
}
# The same as usual, in less time: a node that is not there is dead after 5 s in place of 15 s, and
# what is left of a cluster without a head ends after 5 s in place of a minute.
QUICK = {
    "RAY_health_check_period_ms": "1000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}
EXECUTE = "time.sleep(0.005)\ny = 2 * x + 1"
# Both ranks work on each request; as a collective operation does, it hangs without the other.
GROUP = code(
    "y = x + self.exchange(x)",
    initialize="""
self.rank = int(args["model_group_rank"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if self.rank == 0:
    with socket.create_server(address) as listener:
        self.peer = listener.accept()[0]
else:
    while not hasattr(self, "peer"):
        try:
            self.peer = socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.01)
""",
    methods="""
def exchange(self, x):
    answer = b""
    with contextlib.suppress(OSError):
        self.peer.send(x.tobytes())
        answer = self.peer.recv(4)
    while not answer:
        time.sleep(1)
    return np.frombuffer(answer, np.float32)

def run_rank(self):
    while data := self.peer.recv(4):
        self.peer.send((np.frombuffer(data, np.float32) + 1).tobytes())
""",
    top="import contextlib, socket",
)


def environment_of(pid):
    return psutil.Process(pid).environ()


def parameters(**values):
    return "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n'
        for name, value in values.items()
    )


def settings(count=1, kind="KIND_CPU", **values):
    group = f"instance_group [ {{ count: {count} kind: {kind} }} ]\n"
    values = {
        "RAY_NUM_CPUS": 0.5,
        "RAY_NO_INSTANCE_TIMEOUT_S": 20,
        "RAY_START_TIMEOUT_S": 300,
        **values,
    }
    return config(group + parameters(**values), max_batch_size=4)


MODELS = {
    "calc": model(code(EXECUTE), settings(3, RAY_SPREAD="true")),
    "again": model(code(EXECUTE), settings(2, "KIND_GPU", RAY_NUM_GPUS=0.5, IDEMPOTENT="true")),
    "ranks": model(GROUP, settings(RAY_GROUP_SIZE=2, RAY_RESOURCES="fast_disk=1")),
    "scaled": model(
        code("time.sleep(0.02)\ny = 2 * x + 1"),
        settings(
            RAY_MIN_INSTANCES=1,
            RAY_MAX_INSTANCES=2,
            RAY_RESOURCES="slot=1",
            RAY_UP_AFTER_S=0.5,
            RAY_DOWN_AFTER_S=3,
        ),
    ),
}
NO_ROOM = settings(RAY_GROUP_SIZE=2, RAY_RESOURCES="fast_disk=1", RAY_START_TIMEOUT_S=30)
ONE = model(code(EXECUTE), settings(RAY_RESOURCES="first=0.1"))


@pytest.fixture(scope="module")
def nodes():
    cluster = RayNodes(NODES)
    cluster.environment |= QUICK
    cluster.start()
    yield cluster
    cluster.stop()


@contextlib.contextmanager
def servers(nodes, folder, **models):
    """Start servers side by side, each with its models; does not wait for them."""
    with contextlib.ExitStack() as stack:
        made = []
        for name, files in models.items():
            for each in files:
                write_model(folder / name / "models" / each, files[each])
            made.append(
                stack.enter_context(
                    RayServer(
                        folder / name, folder / name / "models", nodes, is_near=name == "killed"
                    )
                )
            )
        yield made


@pytest.fixture(scope="module")
def server(nodes, tmp_path_factory):
    """The server of most tests; its instances are connected over TCP."""
    with servers(nodes, tmp_path_factory.mktemp("server"), many=MODELS) as (server,):
        yield server.await_ready()


@pytest.fixture(scope="module")
def later(server, nodes, tmp_path_factory):
    """Two more servers on the same cluster, with a model each that has the server's name."""
    models = {"killed": {"killed": ONE}, "last": {"last": ONE}}
    with servers(nodes, tmp_path_factory.mktemp("later"), **models) as made:
        yield made


def show(case, tally, watch=None):
    """Tell what happened, for the table of the documentation; --log-cli-level=INFO shows it."""
    times = f"lost {watch.lost_after_s:.2f} back {watch.back_after_s:.2f}" if watch else ""
    logger.info("%s: %s %s", case, times, tally.summary())


def is_fine(*loads):
    """Whether each request was answered, or refused in words."""
    return all(load.tally.is_complete() and load.tally.cut == 0 for load in loads)


def test_instances_are_where_their_resources_are(server):
    nodes = {name: [node for (node, _), *_ in server.places(name).values()] for name in MODELS}
    devices = [environment_of(pid) for ((_, pid),) in server.places("again").values()]

    assert len(nodes["calc"]) == 3  # on any nodes: those that are slow to start one are left out
    assert nodes["again"] == ["gpus", "gpus"]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in devices] == ["0", "0"]
    assert nodes["scaled"] == ["gpus"]
    assert {node for node, _ in server.places("ranks")["ranks_0_0"]} == {"disks"}


@pytest.fixture(scope="module")
def killed(server):
    """Loads of three models of which a process was killed, all at the same time."""
    names = ["calc", "again", "ranks"]
    server.pids()
    with contextlib.ExitStack() as stack:
        loads = [stack.enter_context(Load(server, name)) for name in names]
        watches = [Watch(server, name) for name in names]
        os.kill(server.places("calc")["calc_0_1"][0][1], signal.SIGKILL)  # the model's process
        actor = psutil.Process(server.places("again")["again_0_1"][0][1]).parent()
        actor.kill()
        os.kill(server.places("ranks")["ranks_0_0"][1][1], signal.SIGKILL)  # rank 1
        with ThreadPoolExecutor() as threads:
            list(threads.map(Watch.wait, watches))
        for load in loads:
            load.wait_for_answers()
    for load, watch in zip(loads, watches, strict=True):
        show(f"killed a process of {load.model}", load.tally, watch)
    return {load.model: load.tally for load in loads}


def test_killed_process_costs_the_requests_that_it_had(killed):
    tally = killed["calc"]

    assert (tally.is_complete(), tally.cut) == (True, 0), tally
    assert tally.refusals <= 6  # of six clients
    assert all("calc_0_1" in text for text in tally.refused)


def test_killed_actor_of_an_idempotent_model_costs_no_request(killed):
    tally = killed["again"]

    assert tally.answered == tally.sent, tally


def test_killed_rank_ends_its_group_which_comes_back(killed):
    tally = killed["ranks"]

    assert (tally.is_complete(), tally.cut) == (True, 0), tally


def test_killed_launcher_process_costs_no_request(server):
    with Load(server, "calc") as first, Load(server, "again") as second:
        watch = Watch(server, "calc")
        launcher = server.launcher()
        launcher.kill()
        assert eventually(lambda: "connected to the Ray cluster again" in server.output)
        watch.on_back()
        first.wait_for_answers()
        second.wait_for_answers()
    show("killed the launcher process", first.tally, watch)

    assert is_fine(first, second)
    assert first.tally.refusals == second.tally.refusals == 0
    assert server.losses("calc") == 1


def test_reload_with_room_costs_no_request(server):
    before = server.places("calc")
    with Load(server, "calc") as load:
        server.write("calc", {"1/model.py": code("y = x + x + 1")})
        answer = server.load("calc")
        load.wait_for_answers()
    show("reload", load.tally)

    assert answer.status == 200
    assert is_fine(load)
    assert load.tally.refusals == 0
    assert all(places != server.places("calc")[name] for name, places in before.items())


def test_reload_without_room_says_so_and_what_was_loaded_serves_on(server):
    server.write("ranks", {"config.pbtxt": NO_ROOM})
    with Load(server, "ranks") as load:
        answer = server.load("ranks")
        load.wait_for_answers()
    show("reload without room", load.tally)

    assert answer.status == 400
    assert "it needs 2 times 0.5 CPU, 1 fast_disk" in answer.error
    assert is_fine(load)
    assert load.tally.refusals == 0


def test_instances_follow_the_load_onto_a_node_that_is_added(server, nodes):
    with Load(server, "scaled") as load:
        server.await_instances("scaled", 1, "pending")
        nodes.add_node("added", num_cpus=1, resources={"slot": 1})
        began_s = time.monotonic()
        server.await_instances("scaled", 2)
        up_s = time.monotonic() - began_s
        places = server.places("scaled")
        load.wait_for_answers()
    with Load(server, "scaled", clients=1, pause_s=0.1) as little:
        server.await_instances("scaled", 1)
    show(f"scaled up {up_s:.2f} s after the node", load.tally)
    show("scaled down", little.tally)

    assert [node for ((node, _),) in places.values()] == ["gpus", "added"]
    assert is_fine(load, little)
    assert load.tally.refusals == little.tally.refusals == 0


@pytest.mark.usefixtures("later")  # they start while this waits
def test_lost_node_costs_the_requests_that_it_had(server, nodes):
    """Its instances serve until Ray knows of it, and are replaced where there is room."""
    server.pids()
    with (
        Load(server, "calc") as calc,
        Load(server, "ranks") as ranks,
        Load(server, "again") as again,
    ):
        lost = sum(node == "disks" for ((node, _),) in server.places("calc").values())
        watch = Watch(server, "calc")
        nodes.kill_node("disks")
        watch.wait(lost)
        ranks.wait_for_refusals()
        calc.wait_for_answers()
        again.wait_for_answers()
    show(f"killed a raylet with {lost}", calc.tally, watch)
    show("killed a raylet, no room", ranks.tally)

    assert is_fine(calc, ranks, again)
    assert again.tally.refusals == 0
    assert "disks" not in [node for ((node, _),) in server.places("calc").values()]


def test_nothing_is_left_of_a_server_that_is_stopped(server, nodes):
    pids = server.pids()
    with Load(server, "calc") as load, Load(server, "again") as again:
        code = server.end()
        load.wait_for_cuts()
    server.await_end(nodes, MODELS)
    show("stopped", load.tally)

    assert code == 0
    assert load.tally.is_complete()
    assert again.tally.is_complete()
    assert len(pids) > 10
    assert server.files() == []


def test_nothing_is_left_of_a_server_that_is_killed(later, nodes):
    server = later[0].await_ready()
    server.pids()
    with Load(server, "killed") as load:
        server.signal(signal.SIGKILL)
        load.wait_for_cuts()
    took_s = server.await_end(nodes, ["killed"])
    show(f"server killed, {took_s:.2f} s", load.tally)

    assert load.tally.is_complete()
    assert server.files() == []


def test_without_its_head_a_cluster_serves_until_its_actors_end(later, nodes):
    server = later[1].await_ready()
    server.pids()
    with Load(server, "last") as load:
        began_s = time.monotonic()
        nodes.kill_head()
        load.wait_for_answers()
        load.wait_for_refusals(20)
        ended_s = time.monotonic() - began_s
    show(f"head killed, {ended_s:.2f} s", load.tally)
    code = server.end()
    eventually(lambda: not any(map(is_running, server.pids())))

    assert is_fine(load)
    assert code == 0
    assert [pid for pid in server.pids() if is_running(pid)] == []
    assert server.files() == []
