# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""The command `ray` for a busy machine, on which a node may take long to start.

A node gives up if the programs that it starts beside itself need more than 30 s until they have
told it their ports. Here the node is told the ports before it starts them.

The first program that connects to a node waits until the processes run that the node starts in
advance, and waits for ever if these need more than a minute. Here it starts none in advance.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys

# By the parameter of Ray that has a port, what the file with the port is called in Ray.
_PORT_NAMES = {
    "metrics_agent_port": "METRICS_AGENT_PORT_NAME",
    "metrics_export_port": "METRICS_EXPORT_PORT_NAME",
    "dashboard_agent_listen_port": "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "runtime_env_agent_port": "RUNTIME_ENV_AGENT_PORT_NAME",
}
_SETTINGS = {"RAY_prestart_worker_first_driver": "0"}
# Neither tests nor Ray nor outgoing connections have these.
_FIRST, _COUNT = 61_000, 4_500
_offsets = itertools.count(os.getpid() * 7919)


def _free_port():
    for offset in itertools.islice(_offsets, _COUNT):
        port = _FIRST + offset % _COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise RuntimeError(f"expected a free port among {_COUNT}, found none")


def start_nodes_without_waiting():
    """Let the nodes that this process starts know the ports, and start nothing early."""
    os.environ.update(_SETTINGS)
    from ray import _raylet  # noqa: PLC0415  tests import no Ray
    from ray._private import services  # noqa: PLC0415

    start_raylet = services.start_raylet

    def start_raylet_with_ports(*arguments, **named):
        node_id, folder = arguments[2], arguments[11]
        for parameter, name in _PORT_NAMES.items():
            named[parameter] = port = _free_port()
            _raylet.persist_port(folder, node_id, getattr(_raylet, name), port)
        return start_raylet(*arguments, **named)

    services.start_raylet = start_raylet_with_ports


if __name__ == "__main__":
    from ray.scripts.scripts import main

    start_nodes_without_waiting()
    sys.exit(main())
