# SPDX-License-Identifier: Apache-2.0
"""A cluster of which one node is cut off from the network for some time, under load.

Run as a program in network and process namespaces of its own, whose first process it is: when it
ends, the kernel ends all that it has started. It prints what happened as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

from tests.cluster.loads import Load
from tests.cluster.ray_cluster import OBJECT_STORE_BYTES, SETTINGS
from tests.cluster.ray_server import RayServer, Watch, is_running
from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, config, model, write_model

NAMESPACES = [
    "unshare",
    "--map-root-user",
    "--net",
    "--pid",
    "--fork",
    "--mount-proc",
    "--kill-child",
]
NEAR, FAR = "10.77.0.1", "10.77.0.2"
PORT = 6379
START_S = 300.0
# The far node is the only one that has what they need: at first, and always.
NEEDS = {"moving": "any=1", "pinned": "only=1"}


@dataclasses.dataclass
class Nodes:
    """What a server has to know of the cluster."""

    address: str
    environment: dict[str, str]


def run(*command):
    subprocess.run(command, check=True)


def make_link():
    """Make a namespace with a link to this one; returns the process that holds it."""
    run("ip", "link", "set", "lo", "up")
    holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    ours = namespace("self")
    assert eventually(lambda: namespace(holder.pid) != ours)
    run("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
    run("ip", "link", "set", "far", "netns", str(holder.pid))
    run("ip", "address", "add", f"{NEAR}/24", "dev", "near")
    run("ip", "link", "set", "near", "up")
    for command in (f"address add {FAR}/24 dev far", "link set far up", "link set lo up"):
        run(*inside(holder), "ip", *command.split())
    return holder


def namespace(pid):
    return pathlib.Path(f"/proc/{pid}/ns/net").readlink()


def inside(holder):
    return ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]


def start_node(folder, name, address, resources, *options, before=()):
    """Start a node, and wait until it serves the cluster."""
    log = folder / f"{name}.log"
    with log.open("w") as output:
        node = subprocess.Popen(
            [
                *before,
                *(sys.executable, "-m", "tests.cluster.patient_ray", "start", "--block"),
                *(f"--node-name={name}", f"--node-ip-address={address}", "--num-cpus=2"),
                *(f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats"),
                *(f"--resources={json.dumps(resources)}", *options),
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    has_started = eventually(
        lambda: "runtime started" in log.read_text() or node.poll() is not None, START_S
    )
    assert has_started and node.poll() is None, log.read_text()  # noqa: PT018


def start_cluster(folder, holder):
    os.environ.update({**SETTINGS, "RAY_TMPDIR": str(folder)})
    head = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}/ray"]
    start_node(folder, "head", NEAR, {}, *head)
    join = f"--address={NEAR}:{PORT}"
    start_node(folder, "far", FAR, {"any": 1, "only": 1}, join, before=inside(holder))
    return Nodes(f"{NEAR}:{PORT}", {})


def start_server(folder, nodes):
    for name, need in NEEDS.items():
        settings = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
            for key, value in (
                ("RAY_RESOURCES", need),
                ("RAY_START_TIMEOUT_S", START_S),
                ("RAY_NO_INSTANCE_TIMEOUT_S", 5),
            )
        )
        write_model(
            folder / "models" / name,
            model(code("time.sleep(0.005)\ny = 2 * x + 1"), config(settings)),
        )
    return RayServer(folder / "server", folder / "models", nodes, is_near=True)


def main(folder, cut_s):
    holder = make_link()
    nodes = start_cluster(folder, holder)
    with start_server(folder, nodes) as server:
        assert eventually(lambda: all(server.serves(name) for name in NEEDS), START_S), (
            server.output
        )
        places = [server.places(name)[f"{name}_0_0"][0] for name in NEEDS]
        start_node(folder, "spare", NEAR, {"any": 1}, f"--address={nodes.address}")
        assert eventually(lambda: "nv_cluster_node_count 3" in server.metrics(), START_S)
        server.pids()
        with Load(server, "moving") as moving, Load(server, "pinned") as pinned:
            run("ip", "link", "set", "near", "down")
            began_s = time.monotonic()
            watch = Watch(server, "moving").wait()
            moving.wait_for_answers()
            if not pinned.tally.refusals:
                pinned.wait_for_refusals()
            refused_s = time.monotonic() - began_s
            eventually(lambda: time.monotonic() > began_s + cut_s)
            run("ip", "link", "set", "near", "up")
            healed_s = time.monotonic()
            server.await_instances("pinned", 1)
            rejoined_s = time.monotonic() - healed_s
            pinned.wait_for_answers()
        server.pids()
        places += [server.places(name)[f"{name}_0_0"][0] for name in NEEDS]
        exit_code = server.end()
        eventually(lambda: not any(map(is_running, server.pids())))
        left = [pid for pid in server.pids() if is_running(pid)]
        sys.stderr.write(server.output)
    story = {
        "moving": moving.tally.summary(),
        "pinned": pinned.tally.summary(),
        "nodes": [node for node, _ in places],
        "lost_after_s": watch.lost_after_s,
        "back_after_s": watch.back_after_s,
        "refused_after_s": refused_s,
        "rejoined_after_s": rejoined_s,  # after the link was there again
        "exit_code": exit_code,
        "left": left,
    }
    sys.stdout.write(json.dumps(story))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), float(sys.argv[2]))
