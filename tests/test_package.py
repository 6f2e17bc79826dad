# SPDX-License-Identifier: Apache-2.0
"""What `import pytriton` gives, and what it costs."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib import metadata

import pytest

import pytriton

quick = pytest.mark.part("quick")  # what programs import, without a process for each
# None of these is needed to serve a plain function, and each takes megabytes.
HEAVY = {"asyncio", "google.protobuf", "grpc", "orjson", "tritonclient", "uvloop", "wrapt"}
# What a program needs only after it has started its server, while that imports its own modules; and
# what only other systems or errors need.
LATER = {"pytriton.models.binding", "pytriton.runtime.transport.frames"}
RARE = {"difflib", "hashlib", "pytriton.runtime.signatures", "shutil", "tempfile"}
# What serves features that most servers do not use: together, it takes 60 ms to import.
RARELY_USED = {
    "pytriton.model_config",
    "pytriton.serving.server.access_log.connections",
    "pytriton.serving.server.openai.api",
    "pytriton.serving.server.page.api",
    "pytriton.protocol.openai",
}


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )
    return set(output.stdout.split())


def test_version_is_that_of_the_distribution() -> None:
    assert pytriton.__version__ == metadata.version("pytriton")


@pytest.mark.parametrize("name", ["client", "model_config", "triton"])
def test_submodules_are_there_without_an_import_of_their_own(name: str) -> None:
    code = f"import pytriton; print(pytriton.{name}.__name__)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True
    )

    assert output.stdout.strip() == f"pytriton.{name}"


@quick
def test_unknown_attribute_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'tritn'"):
        _ = pytriton.tritn


def test_names_of_most_programs_are_there_and_import_only_what_they_need() -> None:
    public = {name for name in pytriton.__all__ if not name.startswith("__")}
    code = "import pytriton, sys\nfor name in sorted({}): getattr(pytriton, name)"
    subprocess.run([sys.executable, "-c", code.format(public)], check=True)

    assert {name for name in modules_after("import pytriton") if "pytriton" in name} == {"pytriton"}
    assert not HEAVY & modules_after(
        "from pytriton import Triton, TritonConfig, ModelConfig, DynamicBatcher, Tensor, batch"
    )


@quick
@pytest.mark.parametrize(
    "name", [name for name, home in pytriton._MODULES.items() if home != "client"]
)
def test_name_is_that_of_its_module(name: str) -> None:
    home = importlib.import_module(f"pytriton.{pytriton._MODULES[name]}")

    assert getattr(pytriton, name) is getattr(home, name)


def test_process_that_serves_functions_stays_light() -> None:
    loaded = modules_after("import pytriton.triton, pytriton.decorators, pytriton.model_config")

    assert not (HEAVY | LATER | RARE) & loaded


def test_process_that_binds_functions_stays_light() -> None:
    loaded = modules_after("from pytriton.binding import triton_base; triton_base.import_binding()")

    assert loaded >= LATER
    assert not (HEAVY | RARE) & loaded


@pytest.mark.parametrize("program", ["main", "tritonserver"])
def test_server_starts_without_the_code_of_features_that_nobody_asked_for(program: str) -> None:
    assert not RARELY_USED & modules_after(f"import pytriton.serving.server.{program}")


# What workers get of their zygote, each of them: models that need more import it.
NOT_IN_WORKERS = {"asyncio", "google.protobuf", "numpy.random", "orjson", "ssl", "uvloop"}
FORK = """
from pytriton.serving.server import tritonserver, worker_zygote

def stop_here():
    print(*sys.modules)
    sys.exit()

worker_zygote.fork_worker_zygote = stop_here
tritonserver.command()
"""


def test_zygote_of_workers_is_forked_with_nothing_but_what_workers_need() -> None:
    loaded = modules_after(FORK)

    assert "pytriton.runtime.worker_process.zygote" in loaded
    assert not NOT_IN_WORKERS & loaded
    assert not {name for name in loaded if name.startswith("pytriton.serving.engine")}


def test_importing_the_package_loads_nothing_of_it() -> None:
    assert not {name for name in modules_after("import pytriton") if name.startswith("pytriton.")}
