# SPDX-License-Identifier: Apache-2.0
"""run_page.py PAGE RESULTS: runs a page's Python blocks, unchanged and in order, in one namespace.

It takes a process of its own because blocks start servers, and one of them serves until Ctrl-C.
RESULTS becomes a JSON object: for each block's line its error, or null.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import signal
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from typing import Any

import numpy as np

SERVE_TIMEOUT_S = 60.0


def stand_in_model(*inputs: np.ndarray, **named: np.ndarray) -> np.ndarray:
    """For blocks that call a `model` which the page leaves to the reader."""
    first = next(iter((*inputs, *named.values())))
    return np.zeros((first.shape[0], 1), np.float32)


def provide_torch() -> None:
    """Real torch where it is installed, with "cuda" meaning the CPU where there is no GPU."""
    if importlib.util.find_spec("torch") is None:
        from tests import torch_stand_in  # noqa: PLC0415  only where torch is missing

        sys.modules["torch"] = torch_stand_in  # type: ignore[assignment]
        return
    import torch  # noqa: PLC0415  heavy

    if not torch.cuda.is_available():
        for kind in (torch.nn.Module, torch.Tensor):
            kind.to = lambda self, _device: self  # type: ignore[method-assign,assignment]


def main_thread_is_in(function: str) -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/v2/health/ready", timeout=5
        ) as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def press_ctrl_c_once_served(port: int, done: threading.Event) -> None:
    deadline = time.monotonic() + SERVE_TIMEOUT_S
    while not (main_thread_is_in("serve") and is_ready(port)):
        if done.wait(0.05) or time.monotonic() > deadline:
            return
    os.kill(os.getpid(), signal.SIGINT)


def run_block(text: str, name: str, namespace: dict[str, Any]) -> str | None:
    done = threading.Event()
    port = int(os.environ["PYTRITON_TRITON_CONFIG_HTTP_PORT"])
    watcher = threading.Thread(target=press_ctrl_c_once_served, args=(port, done))
    if "serve()" in text:
        watcher.start()
    try:
        exec(compile(text, name, "exec"), namespace)
    except BaseException:  # noqa: BLE001  whatever a block raises is its result
        return traceback.format_exc()
    finally:
        done.set()
        if watcher.ident is not None:
            watcher.join()
    return None


def main() -> None:
    page, results_path = map(pathlib.Path, sys.argv[1:3])
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    from tests.snippets import snippets  # noqa: PLC0415  needs the path above

    signal.signal(signal.SIGINT, signal.default_int_handler)
    provide_torch()
    namespace: dict[str, Any] = {"__name__": "__main__", "model": stand_in_model}
    results: dict[int, str | None] = {}
    for block in snippets(page, "python"):
        results[block.line] = run_block(block.text, str(block), namespace)
        results_path.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
