# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""A real Ray cluster whose nodes are processes of this machine, for the tests of a module.

It is a process of its own (`RayNodes`), so that tests import no Ray, and everything of it is in a
folder of its own. Processes are ended by their ids only: never with `ray stop`, which ends those of
other clusters, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping

import psutil

OBJECT_STORE_BYTES = 80_000_000
ATTEMPTS = 4
ANSWER_S = 300.0  # if there is no answer for so long, Ray hangs
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}


class RayNodes:
    """A cluster as its tests see it. The first node is the head.

    Attributes:
        address: What `ray.init` and `--ray-address` take.
        environment: Variables that a process needs that connects to this cluster.
        raylets: The process of each node, by the node's name.
        gcs: The process that the whole cluster depends on.
    """

    def __init__(
        self, nodes: Mapping[str, Mapping[str, float]], client_port: int | None = None
    ) -> None:
        self._nodes = nodes
        self._client_port = client_port
        # Short, as sockets are in it; and Ray notes there which cluster runs on this machine.
        self._folder = tempfile.mkdtemp(prefix="r-", dir="/tmp")
        self.environment: dict[str, str] = {**SETTINGS, "RAY_TMPDIR": self._folder}
        self.address = ""
        self._process = None

    def start(self) -> RayNodes:
        # Ray has several limits of 30 s for a start, which a busy machine may exceed.
        for _ in range(ATTEMPTS):
            line = self._try_start()
            if line:
                told = json.loads(line)
                self.address, self.gcs, self.raylets = told["address"], told["gcs"], told["raylets"]
                return self
            self.stop()
        raise RuntimeError("no Ray cluster could be started, and its output says why")

    def _try_start(self) -> str:
        pathlib.Path(self._folder).mkdir(exist_ok=True)
        arguments = {"nodes": self._nodes, "client_port": self._client_port}
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(arguments)],
            env={**os.environ, **self.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self._read()

    @property
    def pid(self) -> int:
        """The process that all others of the cluster descend from."""
        return self._process.pid

    def kill_node(self, name: str) -> None:
        """Kill a node's raylet, as if its machine had no power any more; its workers go on."""
        os.kill(self.raylets.pop(name), signal.SIGKILL)

    def kill_head(self) -> None:
        os.kill(self.gcs, signal.SIGKILL)

    def add_node(self, name: str, **resources: float) -> None:
        """Start one more node, as an autoscaler does."""
        self.raylets[name] = self._ask({"name": name, "resources": resources})

    def left(self) -> dict[str, list[str]]:
        """The names of actors and placement groups that the cluster has, of all servers."""
        return self._ask(None)

    def _ask(self, question):
        self._process.stdin.write(f"{json.dumps(question)}\n")
        self._process.stdin.flush()
        answer = self._read()
        if not answer:
            raise RuntimeError(f"the cluster has ended, or has not answered for {ANSWER_S:g} s")
        return json.loads(answer)

    def _read(self) -> str:
        """Returns a line, which is empty if there will be none."""
        stdout = self._process.stdout
        return stdout.readline() if select.select([stdout], [], [], ANSWER_S)[0] else ""

    def stop(self) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
            self._process.stdout.close()
            try:
                self._process.wait(ANSWER_S)
            except subprocess.TimeoutExpired:
                self._kill()
        # Here, as this file is also a program, which has no other module of the tests.
        from tests.e2e.waiting import remove_folder  # noqa: PLC0415

        remove_folder(pathlib.Path(self._folder))

    def _kill(self) -> None:
        process = psutil.Process(self._process.pid)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self._process.wait()


def main():
    import ray  # noqa: PLC0415  tests import no Ray

    # A program has the modules of its folder, and no others of the tests.
    from patient_ray import start_nodes_without_waiting  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    start_nodes_without_waiting()
    arguments = json.loads(sys.argv[1])
    # Ray writes the address there of the cluster that was started last.
    (pathlib.Path(os.environ["RAY_TMPDIR"]) / "ray").mkdir()
    common = {"object_store_memory": OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster()
    raylets = {}
    for index, (name, resources) in enumerate(arguments["nodes"].items()):
        head = {"ray_client_server_port": arguments["client_port"]} if index == 0 else {}
        node = cluster.add_node(node_name=name, **common, **head, **resources)
        raylets[name] = _process_of(node, "raylet")
    told = {
        "address": cluster.address,
        "gcs": _process_of(cluster.head_node, "gcs_server"),
        "raylets": raylets,
    }
    sys.stdout.write(f"{json.dumps(told)}\n")
    sys.stdout.flush()
    for line in sys.stdin:  # until the tests are over
        if node := json.loads(line):
            added = cluster.add_node(node_name=node["name"], **common, **node["resources"])
            answer = _process_of(added, "raylet")
        else:
            answer = _left(ray, cluster.address)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    for node in cluster.list_all_nodes():
        node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)
    os._exit(0)


def _left(ray, address):
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    groups = ray.util.placement_group_table().values()
    return {
        "actors": [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)],
        "groups": [group["name"] for group in groups if group["state"] != "REMOVED"],
    }


def _process_of(node, kind):
    return node.all_processes[kind][0].process.pid


if __name__ == "__main__":
    main()
