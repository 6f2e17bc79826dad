# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
"""The command `ray` for a busy machine: a node may take longer to start than Ray's 30 s."""

from __future__ import annotations

import sys
import time

LONGEST_START_S = 300.0
_POLL_S = 0.1


def wait_longer_for_nodes():
    """Let a look for a node that starts end only when the node is there, or after minutes."""
    from ray._private import services  # noqa: PLC0415  tests import no Ray

    get_node = services.get_node

    def get_node_patiently(*arguments):
        end = time.monotonic() + LONGEST_START_S
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:  # it has not registered yet
                if time.monotonic() > end:
                    raise
            time.sleep(_POLL_S)

    services.get_node = get_node_patiently


if __name__ == "__main__":
    from ray.scripts.scripts import main

    wait_longer_for_nodes()
    sys.exit(main())
