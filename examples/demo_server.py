# SPDX-License-Identifier: Apache-2.0
"""demo_server.py [HTTP_PORT]: all example models; gRPC and metrics take the next two ports."""

import importlib.util
import pathlib
import signal
import sys

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.triton import Triton, TritonConfig


def example(name):
    path = pathlib.Path(__file__).parent / name / "server.py"
    spec = importlib.util.spec_from_file_location(f"{name}_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    config = TritonConfig(http_port=port, grpc_port=port + 1, metrics_port=port + 2)
    triton = Triton(config=config)
    for name in ("add_sub", "identity", "linear"):
        example(name).bind(triton)
    # SIGTERM ends the server, too, before this script ends: the ports are free again then.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        triton.run()
        triton.serve()
    except KeyboardInterrupt:  # before it serves
        triton.stop()
    except PyTritonRuntimeError as error:
        sys.exit(f"{error}\nFor the demo: PORT={port + 1000} scripts/demo")
