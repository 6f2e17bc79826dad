# SPDX-License-Identifier: Apache-2.0
"""Opens the access log, if there is one; only then its code is imported, which takes 10 ms."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from pytriton.server.access_log.use import AccessLogUse
    from pytriton.server.options.access_log_options import AccessLogOptions


def open_access_log(
    options: AccessLogOptions, loop: asyncio.AbstractEventLoop
) -> AccessLogUse | None:
    """Returns what logs the requests of a front end; None if they are not logged."""
    if options.file is None:
        return None
    use: type[AccessLogUse] = importlib.import_module("pytriton.server.access_log.use").AccessLogUse
    return use(options, loop)


def check_destination(options: AccessLogOptions) -> None:
    """Open the file once, so that a server whose access log cannot be written does not start.

    Raises:
        OSError: The file cannot be opened.
    """
    if options.file is not None:
        module = importlib.import_module("pytriton.server.access_log.destination")
        destination = module.Destination(options.file)
        destination.open()
        destination.close()
