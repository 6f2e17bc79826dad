# SPDX-License-Identifier: Apache-2.0
"""A user's serving script that says on its output when it has come to `serve()`.

Run as python -m tests.guides.serving_script, with the ports in the environment.
"""

from __future__ import annotations

import signal
import threading

import numpy as np

from pytriton.model_config import Tensor
from pytriton.triton import Triton
from tests.run_page import main_thread_is_in

SCALAR = Tensor(name="x", dtype=np.float32, shape=(1,))


def say_when_serving() -> None:
    never = threading.Event()
    while not main_thread_is_in("serve"):
        never.wait(0.01)
    print("serving", flush=True)  # noqa: T201  the test reads it


if __name__ == "__main__":
    # A test run in the background of a shell would otherwise hand its ignored SIGINT down.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Triton() as triton:
        triton.bind(
            model_name="Model",
            infer_func=lambda requests: [{"x": request["x"]} for request in requests],
            inputs=[SCALAR],
            outputs=[SCALAR],
        )
        threading.Thread(target=say_when_serving, daemon=True).start()
        triton.serve()
