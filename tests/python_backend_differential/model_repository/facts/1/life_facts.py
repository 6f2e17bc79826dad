# SPDX-License-Identifier: Apache-2.0
"""How a model was imported and started."""

import json
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

import triton_python_backend_utils as pb_utils

seen_args = {}  # what initialize was given


def starting(_request):
    config = json.loads(seen_args["model_config"])
    return {
        "keys": lambda: sorted(seen_args),
        "types": lambda: sorted({type(value).__name__ for value in seen_args.values()}),
        **{
            key: lambda key=key: seen_args[key]
            for key in seen_args
            if key not in {"model_config", "model_repository"}
        },
        "repository": lambda: Path(seen_args["model_repository"]).name,
        "config keys": lambda: sorted(config),
        **{f"config {key}": lambda key=key: config[key] for key in config if key != "runtime"},
    }


def importing(_request):
    model = sys.modules[f"{__package__}.model"]
    folder = Path(model.__file__).parent
    places = [str(folder), str(folder.parent)]
    return {
        "module name": lambda: model.__name__,
        "package": lambda: model.__package__,
        "file": lambda: Path(model.__file__).name,
        "file is absolute": lambda: Path(model.__file__).is_absolute(),
        "own folders are last but one": lambda: sys.path[-3:-1] == places,
        "helper by its plain name": lambda: __import__("observing").__name__,
        "helper is another module": lambda: __import__("observing") is sys.modules["1.observing"],
        "second import": lambda: __import__("model") is model,
        "second import shares pb_utils": lambda: __import__("model").pb_utils is pb_utils,
        "model dir": lambda: pb_utils.get_model_dir() == str(folder),
        "module is in sys.modules": lambda: "1.model" in sys.modules,
        "main": lambda: hasattr(sys.modules["__main__"], "TritonPythonModel"),
    }


def process(_request):
    return {
        "main thread": lambda: threading.current_thread() is threading.main_thread(),
        "threads that run": lambda: threading.active_count() < 4,
        "environment": lambda: os.environ.get("PYTRITON_COMPARED"),
        "working folder": lambda: Path.cwd().name,
        "SIGINT is ignored": lambda: signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        "SIGTERM is ignored": lambda: signal.getsignal(signal.SIGTERM) is signal.SIG_IGN,
        "start method": lambda: multiprocessing.get_start_method(allow_none=False),
        "is a daemon": lambda: multiprocessing.current_process().daemon,
        "argv": lambda: isinstance(sys.argv, list),
        "standard output": lambda: print("printed by a model", flush=True),  # noqa: T201
    }


GROUPS = {"start": starting, "import": importing, "process": process}
