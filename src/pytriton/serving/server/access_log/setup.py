# SPDX-License-Identifier: Apache-2.0
"""Opens the access log, if there is one; only then its code is imported, which takes 10 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.base.lazy_module import LazyModule

if TYPE_CHECKING:
    import asyncio

    from pytriton.serving.server.access.client_addresses import TrustedProxies
    from pytriton.serving.server.access_log import access_log, connections
    from pytriton.serving.server.access_log.connections import AccessLogUse
    from pytriton.serving.server.options.server_options import AccessLogOptions
else:
    access_log = LazyModule("pytriton.serving.server.access_log.access_log")
    connections = LazyModule("pytriton.serving.server.access_log.connections")


def open_access_log(
    options: AccessLogOptions,
    loop: asyncio.AbstractEventLoop,
    proxies: TrustedProxies | None = None,
) -> AccessLogUse | None:
    """Returns what logs the requests of a front end; None if they are not logged."""
    if options.file is None:
        return None
    return connections.AccessLogUse(options, loop, proxies)


def check_destination(options: AccessLogOptions) -> None:
    """Open the file once, so that a server whose access log cannot be written does not start.

    Raises:
        OSError: The file cannot be opened.
    """
    if options.file is not None:
        file = access_log.Destination(options.file)
        file.open()
        file.close()
