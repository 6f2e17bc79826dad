# SPDX-License-Identifier: Apache-2.0
"""The parts of the suite: which files belong to each, what it installs, and which source it covers.

Without a part, `scripts/test` runs the quick one, which has all files that no other part names.
`python -m tests.parts ARGUMENTS` prints what `scripts/test ARGUMENTS` has to install, as variables
of a shell.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import shlex
import sys
from dataclasses import dataclass

QUICK = "quick"
ALL = "--all"
REPOSITORY = pathlib.Path(__file__).parent.parent


@dataclass(frozen=True)
class Part:
    """Tests that run together when somebody asks for them."""

    covers: tuple[str, ...]  # a change there makes an earlier green run old
    files: tuple[str, ...] = ()  # files and folders
    extra: str = "core"  # `test-EXTRA` of pyproject.toml
    tools: tuple[str, ...] = ()
    takes_torch: bool = False


# What users meet, with real servers and the official clients, beside what needs no server.
SMOKE = (
    *(
        f"tests/e2e/test_{name}.py"
        for name in (
            "access_log", "accounts", "batching", "binding", "callable_errors",
            "callable_trace_files", "callable_tracing", "client_paths", "client_shared_memory",
            "grpc_clients", "grpc_slow_readers", "grpc_streams", "http2", "http_clients",
            "http_restricted", "http_wire", "landing", "metrics_push",
            "model_control", "observed_columns", "policy", "queue_policies", "remote_features",
            "request_ids", "returned_names", "sequences", "server_spans", "trace_settings",
        )
    ),
    *(
        f"tests/repository_e2e/test_{name}.py"
        for name in (
            "broken_models", "calls", "configurations", "crashes", "ensemble_clients",
            "ensemble_columns", "explicit", "foreign_pages", "instances", "metrics", "namespaces",
            "policy_tls", "python_based_backends", "rate_limit_differential", "reload",
            "sequence_clients", "states", "trace_differential", "traces",
            "versions", "vllm_stand_in", "whole_batches",
        )
    ),
)  # fmt: skip

# What needs neither processes nor packages, beside tests of a long part that do.
PURE = tuple(
    f"tests/{folder}/test_{name}.py"
    for folder, names in {
        "benchmarks": (
            "generator_loads", "large_client", "profile_stations", "ray_loads", "reports",
            "servers", "shared_memory_loads", "stream_client", "stream_loads", "table", "turns",
        ),
        "chaos": ("chaos_parts",),
        "cluster": (
            "actor_starts", "child", "failures", "launcher", "launcher_output", "names", "room",
            "starter",
        ),
        "cuda": (
            "device_tensors", "exports", "instance_device", "open_regions", "registrar",
            "registration_book", "worker_memory",
        ),
        "framework_backends": ("batch_tensors", "file_hints", "wheels"),
        "framework_backends/onnxruntime": (
            "auto_complete", "config_check", "gpu_binding", "settings",
        ),
        "framework_backends/pytorch": (
            "configuration", "files", "naming", "parameters", "structure",
        ),
        "repository/remote": (
            "copies", "credentials", "imports_of_stores", "listing", "location",
        ),
        "sandbox": ("confinement", "enclosure", "grants", "places", "seccomp_program"),
    }.items()
    for name in names
)  # fmt: skip

# The most exact path decides. A test with the marker `part` belongs to the part that the marker
# names instead.
PARTS = {
    QUICK: Part(covers=("src", "tests"), files=(*SMOKE, *PURE)),
    "servers": Part(
        covers=("src/pytriton/serving", "src/pytriton/runtime", "src/pytriton/binding"),
        files=(
            "tests/c_library/test_programs.py",
            "tests/check/test_command.py",
            "tests/check/test_serving.py",
            "tests/client/test_processes.py",
            "tests/commands/serve/test_reload.py",
            "tests/commands/test_record_command.py",
            "tests/e2e",
            "tests/executor/remote/test_remote_workers.py",
            "tests/executor/test_workers.py",
            "tests/inprocess/test_lifecycle.py",
            "tests/native_backend/test_native_worker.py",
            "tests/python_backend/test_zygote.py",
            "tests/repository_e2e",
            "tests/test_package.py",
        ),
    ),
    "resilience": Part(
        covers=("src/pytriton/serving", "src/pytriton/runtime"),
        files=(
            "tests/chaos",
            "tests/e2e/test_backpressure.py",
            "tests/e2e/test_bound_exhaustion.py",
            "tests/e2e/test_life_kills.py",
            "tests/e2e/test_memory.py",
            "tests/e2e/test_remote_many.py",
            "tests/exactness/test_both_paths.py",
            "tests/executor/test_launcher.py",
            "tests/repository_e2e/test_exhaustion.py",
            "tests/repository_e2e/test_front_end_processes.py",
            "tests/repository_e2e/test_front_end_resources.py",
            "tests/repository_e2e/test_kills.py",
            "tests/repository_e2e/test_recording.py",
            "tests/repository_e2e/test_rolling_update.py",
            "tests/repository_e2e/test_sequence_deaths.py",
            "tests/repository_e2e/test_shared_throttle.py",
            "tests/repository_e2e/test_trusted_proxies.py",
            "tests/sandbox",
            "tests/workload/test_workload.py",
        ),
    ),
    "simulation": Part(
        covers=("src/pytriton/serving", "src/pytriton/runtime", "src/pytriton/protocol"),
        files=(
            "tests/simulation/test_campaigns.py",
            "tests/simulation/test_determinism.py",
            "tests/simulation/test_planted.py",
        ),
    ),
    "cluster": Part(
        covers=("src/pytriton/runtime/cluster", "src/pytriton/runtime/worker_process"),
        files=("tests/cluster", "tests/docs/test_scaling_walk.py"),
        extra="cluster",
    ),
    "page": Part(
        covers=("src/pytriton/serving/server/page",),
        files=("tests/page",),
        extra="page",
        tools=("page",),
    ),
    "docs": Part(
        covers=("docs", "examples", "README.md", "src/pytriton/tools"),
        files=(
            "tests/benchmarks/test_plots.py",
            "tests/docs/test_site.py",
            "tests/docs/test_walks.py",
            "tests/examples",
            "tests/perf/test_pictures.py",
            "tests/test_docs.py",
            "tests/typing",
        ),
        extra="docs",
        tools=("docs",),
        takes_torch=True,
    ),
    "backends": Part(
        covers=("src/pytriton/runtime/framework_backends", "src/pytriton/runtime/python_backend"),
        files=(
            "tests/framework_backends",
            "tests/inprocess/test_remote_models.py",
            "tests/repository_e2e/test_tabular_backends.py",
        ),
        extra="backends",
        takes_torch=True,
    ),
    "cuda": Part(
        covers=("src/pytriton/runtime/cuda", "src/pytriton/serving/server/shared_memory"),
        files=("tests/cuda", "tests/gpu"),
    ),
    "cloud": Part(
        covers=("src/pytriton/serving/repository",),
        files=(
            "tests/e2e/test_cloud_page.py",
            "tests/repository/remote",
            "tests/repository_e2e/test_cloud.py",
        ),
        extra="cloud",
    ),
    "deploy": Part(
        covers=("deploy", "src/pytriton/tools/commands/project"),
        files=(
            "tests/deploy",
            "tests/projects",
            "tests/test_containers.py",
        ),
        extra="deploy",
    ),
    "benchmarks": Part(
        covers=("benchmarks", "src/pytriton/tools/perf"),
        files=(
            "tests/benchmarks",
            "tests/commands/perf/test_perf_e2e.py",
            "tests/commands/tune/test_tune_e2e.py",
            "tests/perf/load/test_interrupts.py",
            "tests/perf/load/test_real_server.py",
            "tests/perf/load/test_tls.py",
        ),
    ),
    # Beside recorded answers, the real systems themselves.
    "peers": Part(covers=("src/pytriton/protocol", "src/pytriton/serving")),
}

# The part `servers` runs these again with front ends in processes of their own, which small
# machines do not use by themselves. The other contract tests start no server.
WITH_FRONT_ENDS = (
    "tests/e2e",
    "tests/openai",
    "tests/repository_e2e",
    "tests/security",
    "tests/contract/test_arrays.py",
    "tests/contract/test_callable_kinds.py",
    "tests/contract/test_kept_inputs.py",
)
# But not tests that would do the same again: they say how many front ends their servers have, or
# they are about buckets, commands of pages, and who may join a server, which are all in the core.
NOT_WITH_FRONT_ENDS = tuple(
    f"tests/{name}.py"
    for name in (
        "e2e/test_bound_cloud_endpoints",
        "e2e/test_bound_exhaustion",
        "e2e/test_front_ends",
        "e2e/test_remote_access",
        "e2e/test_remote_many",
        "e2e/test_tls",
        "repository_e2e/test_cloud_endpoints",
        "repository_e2e/test_exhaustion",
        "repository_e2e/test_foreign_pages",
        "repository_e2e/test_front_end_processes",
        "repository_e2e/test_limits",
        "repository_e2e/test_multi_model_endpoint",
        "repository_e2e/test_operations_page",
        "repository_e2e/test_policy_quotas",
        "repository_e2e/test_policy_tls",
        "repository_e2e/test_quotas",
        "repository_e2e/test_shared_memory",
        "repository_e2e/test_tracing_page",
    )
)

# What only some extras install, by the names of modules.
PACKAGES = {
    "boto3": {"cloud"},
    "cyclonedx": {"deploy"},
    "fsspec": {"cloud"},
    "helm_python": {"deploy"},
    "ipykernel": {"docs"},
    "kubernetes_validate": {"deploy"},
    "lightgbm": {"backends"},
    "matplotlib": {"docs"},
    "mkdocs": {"docs"},
    "moto": {"cloud"},
    "mypy": {"docs"},
    "nbclient": {"docs"},
    "onnx": {"backends"},
    "onnxruntime": {"backends"},
    "openvino": {"backends"},
    "pyright": {"docs"},
    "ray": {"cluster"},
    "selenium": {"docs", "page"},
    "sklearn": {"backends"},
    "torch": {"backends"},
    "xgboost": {"backends"},
}


OWNERS = {path: name for name, part in PARTS.items() for path in part.files}


@functools.cache
def part_of(file: str) -> str:
    """The part of a file, given by its path in the repository."""
    path = pathlib.PurePosixPath(file)
    places = map(str, (path, *path.parents))
    return next((OWNERS[place] for place in places if place in OWNERS), QUICK)


def marked_parts(file: str) -> set[str]:
    """The parts that markers name in a file, or in the fixtures beside it."""
    path = REPOSITORY / file
    sources = [each.read_text() for each in (path, path.with_name("conftest.py")) if each.exists()]
    return {part for source in sources for part in re.findall(r'mark\.part\("(\w+)"\)', source)}


def front_end_tests() -> list[str]:
    """What runs again with front ends in processes of their own, as arguments of pytest."""
    ignored = [f"--ignore={path}" for path in NOT_WITH_FRONT_ENDS]
    return [f"--parts={QUICK},servers,resilience", *WITH_FRONT_ENDS, *ignored]


def parts_under(place: str) -> set[str]:
    """The parts that have tests in a file or a folder."""
    path = REPOSITORY / place
    files = [path] if path.is_file() else path.rglob("test_*.py")
    return {part_of(file.relative_to(REPOSITORY).as_posix()) for file in files}


def choose(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The parts that arguments of `scripts/test` mean, and those arguments that pytest gets.

    Parts come first. Without one, files and folders say which parts run.
    """
    rest = list(arguments)
    chosen: set[str] = set()
    while rest and (rest[0] == ALL or rest[0] in PARTS):
        name = rest.pop(0)
        chosen |= set(PARTS) if name == ALL else {name}
    if not chosen:
        places = [argument.partition("::")[0] for argument in rest]
        for place in places:
            if place.startswith("tests") and (REPOSITORY / place).exists():
                chosen |= parts_under(place)
    return [name for name in PARTS if name in (chosen or {QUICK})], rest


def requirements(names: list[str], torch: str) -> dict[str, str]:
    """What `scripts/test` installs for parts, as variables of a shell."""
    chosen = [PARTS[name] for name in names]
    return {
        "extras": " ".join(sorted({f"test-{part.extra}" for part in chosen})),
        "tools": " ".join(sorted({"tests", *(tool for part in chosen for tool in part.tools)})),
        "torch": torch if any(part.takes_torch for part in chosen) else "",
        "peers": "peers" if "peers" in names else "",
    }


if __name__ == "__main__":
    needs = requirements(choose(sys.argv[1:])[0], os.environ.get("TORCH", ""))
    print("\n".join(f"{name}={shlex.quote(words)}" for name, words in needs.items()))  # noqa: T201
