# SPDX-License-Identifier: Apache-2.0
"""The message about changed settings of the log."""

from __future__ import annotations

import msgspec

from pytriton.base.log_switches import LogSwitches
from pytriton.runtime.transport.refs import MemoryUpdate


class LogChange(msgspec.Struct, tag="log_change", array_like=True):
    """Server to a worker, or core to a front end: what the log has from now on."""

    switches: LogSwitches
    memory: MemoryUpdate | None = None
