# SPDX-License-Identifier: Apache-2.0
"""run_page.py RESULTS PAGE...: runs the Python blocks of pages, one namespace for each page.

It takes a process of its own because blocks start servers, and one of them serves until Ctrl-C.
Blocks run as they stand, except that addresses with a default port get the port of this process.
RESULTS becomes a JSON object: for each block, "PAGE:LINE", its error, or null.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import signal
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from typing import Any

import numpy as np

SERVE_TIMEOUT_S = 180.0
DEFAULT_PORTS = {8000: "HTTP_PORT", 8001: "GRPC_PORT", 8002: "METRICS_PORT"}


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
    return thread_is_in(threading.main_thread(), function)


def thread_is_in(thread: threading.Thread, function: str) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
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
        exec(compile(text, name, "exec", dont_inherit=True), namespace)
    except BaseException:  # noqa: BLE001  whatever a block raises is its result
        return traceback.format_exc()
    finally:
        done.set()
        if watcher.ident is not None:
            watcher.join()
    return None


def on_our_ports(text: str) -> str:
    for default, name in DEFAULT_PORTS.items():
        port = os.environ[f"PYTRITON_TRITON_CONFIG_{name}"]
        text = re.sub(rf"(localhost|127\.0\.0\.1):{default}\b", rf"\g<1>:{port}", text)
    return text


def main() -> None:
    results_path, *pages = map(pathlib.Path, sys.argv[1:])
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
    from tests.snippets import snippets  # noqa: PLC0415  needs the path above

    signal.signal(signal.SIGINT, signal.default_int_handler)
    results: dict[str, str | None] = {}
    for page in pages:
        blocks = snippets(page, "python")
        if any("torch" in block.text for block in blocks):  # it takes two seconds to import
            provide_torch()
        namespace: dict[str, Any] = {"__name__": "__main__", "model": stand_in_model}
        for block in blocks:
            error = run_block(on_our_ports(block.text), str(block), namespace)
            results[f"{page}:{block.line}"] = error
            results_path.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
