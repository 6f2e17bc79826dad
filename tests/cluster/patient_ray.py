# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""The command `ray` for a busy machine, on which a node may take long to start.

A node gives up if the programs that it starts beside itself need more than 30 s until they have
told it their ports. Here the node is told the ports before it starts them.
"""

from __future__ import annotations

import pathlib
import sys

# By the parameter of Ray that has a port, what the file with the port is called in Ray.
_PORT_NAMES = {
    "metrics_agent_port": "METRICS_AGENT_PORT_NAME",
    "metrics_export_port": "METRICS_EXPORT_PORT_NAME",
    "dashboard_agent_listen_port": "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "runtime_env_agent_port": "RUNTIME_ENV_AGENT_PORT_NAME",
}


def start_nodes_without_waiting():
    """Let the nodes that this process starts know the ports of their programs."""
    # Here, as tests import no Ray, and as programs have no other module of the tests at first.
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[2]))
    from ray import _raylet  # noqa: PLC0415
    from ray._private import services  # noqa: PLC0415

    from tests.free_ports import free_ports  # noqa: PLC0415

    start_raylet = services.start_raylet

    def start_raylet_with_ports(*arguments, **named):
        node_id, folder = arguments[2], arguments[11]
        for (parameter, name), port in zip(_PORT_NAMES.items(), free_ports(4), strict=True):
            named[parameter] = port
            _raylet.persist_port(folder, node_id, getattr(_raylet, name), port)
        return start_raylet(*arguments, **named)

    services.start_raylet = start_raylet_with_ports


if __name__ == "__main__":
    from ray.scripts.scripts import main

    start_nodes_without_waiting()
    sys.exit(main())
