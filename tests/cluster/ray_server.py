# SPDX-License-Identifier: Apache-2.0
"""A `tritonserver` whose models run on a Ray cluster, and what may be left when it has ended."""

from __future__ import annotations

import contextlib
import re
import time

import psutil

from pytriton.runtime.transport.memory import PORTABLE_SETTING
from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.repository_e2e.server_process import ServerProcess

STARTED = re.compile(r"Instance '(\w+)' is started on (.*) and loads its model")
PLACE = re.compile(r"node '([^']*)' \(process (\d+)\)")
SAMPLE = re.compile(r"(nv_\w+)\{(.*)\} (\S+)")
_LONG = 100  # longer than a path of a Unix socket may be


class RayServer(ServerProcess):
    """A server, the processes of its instances on all nodes, and its own folder for files.

    If it is near, its instances share memory with it, and its front ends are processes.

    Attributes:
        host: Where its ports are.
    """

    host = "127.0.0.1"

    def __init__(self, folder, repository, nodes, flags=(), *, is_near=False):
        for name in ("work", "files"):
            (folder / name).mkdir(parents=True)
        self._files = folder / "files"
        if not is_near:
            self._files /= "x" * _LONG
            self._files.mkdir()
        self._seen: set[int] = set()
        environment = {**nodes.environment, "TMPDIR": str(self._files)}
        if is_near:
            environment["PYTRITON_FRONTEND_PROCESSES"] = "2"
        else:
            # No Unix socket has such a long path, so that instances come over TCP, as those of
            # other machines do.
            environment[PORTABLE_SETTING] = "1"
        options = [
            "--executor=ray",
            f"--ray-address={nodes.address}",
            f"--ray-start-timeout={DEADLINE_S}",
            "--model-control-mode=explicit",
            "--load-model=*",
            *flags,
        ]
        super().__init__(folder / "work", [repository], options, environment)

    def await_ready(self):
        """Wait until all models are loaded, which takes long on a busy machine."""
        eventually(
            lambda: self.process.poll() is not None or "Started Met" in self.stdout, 2 * DEADLINE_S
        )
        return super().await_ready()

    def places(self, model):
        """Where the processes of each instance were started last: (node, process) of each rank."""
        found = {}
        for instance, text in STARTED.findall(self.output):
            places = [(node, int(pid)) for node, pid in PLACE.findall(text)]
            if instance.startswith(f"{model}_0_"):
                found[instance] = places
        return found

    def pids(self):
        """Every process that belongs to it now, and that did when this was called before."""
        roots = [pid for text in STARTED.findall(self.output) for _, pid in PLACE.findall(text[1])]
        for pid in (self.pid, *map(int, roots)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                self._seen.add(pid)
                self._seen.update(each.pid for each in process.children(recursive=True))
                if pid != self.pid:
                    self._seen.add(process.ppid())  # the actor
        return self._seen

    def launcher(self):
        (found,) = [
            each
            for each in psutil.Process(self.pid).children(recursive=True)
            if each.cmdline()[0] == "pytriton launcher"
        ]
        return found

    def metric(self, name, model, **labels):
        """The sum of the samples of a model, with these labels."""
        wanted = {"model": model, **labels}
        total = 0.0
        for family, text, value in SAMPLE.findall(self.metrics()):
            found = dict(re.findall(r'(\w+)="([^"]*)"', text))
            if family == name and wanted.items() <= found.items():
                total += float(value)
        return total

    def metrics(self):
        return call(self.metrics_port, "/metrics").body.decode()

    def instances(self, model, state="running"):
        return self.metric("nv_model_instance_count", model, state=state)

    def losses(self, model):
        return self.metric("nv_model_instance_loss_count", model)

    def await_instances(self, model, count, state="running"):
        assert eventually(lambda: self.instances(model, state) == count), self.output

    def await_end(self, nodes, models):
        """Wait until nothing of it is left, nowhere; returns how long that took."""
        began_s = time.monotonic()
        pids = self._seen
        eventually(lambda: not any(map(is_running, pids)))
        assert [pid for pid in pids if is_running(pid)] == []
        eventually(lambda: not _of(nodes.left(), models))
        assert _of(nodes.left(), models) == []
        return time.monotonic() - began_s

    def files(self):
        """What is in its folder for temporary files."""
        return sorted(path.name for path in self._files.rglob("*") if not path.is_dir())


class Watch:
    """Watches a model whose instance is about to be lost, for the times that people ask for."""

    def __init__(self, server, model):
        self._server = server
        self._model = model
        self._count = server.instances(model)
        self._losses = server.losses(model)
        self._began_s = time.monotonic()
        self.lost_after_s = 0.0
        self.back_after_s = 0.0

    def wait(self, losses=1):
        """Wait until instances are lost and all of them are back."""
        server, model = self._server, self._model
        assert eventually(lambda: server.losses(model) >= self._losses + losses), server.output
        self.lost_after_s = time.monotonic() - self._began_s
        server.await_instances(model, self._count)
        self.on_back()
        return self

    def on_back(self):
        self.back_after_s = time.monotonic() - self._began_s


def _of(left, models):
    """Those of what is left on a cluster that are of these models."""
    names = [name for names in left.values() for name in names]
    return [name for name in names if any(f"{model}_0_" in name for model in models)]


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
