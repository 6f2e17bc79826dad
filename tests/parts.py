# SPDX-License-Identifier: Apache-2.0
"""The parts of the suite, each of which has packages of its own.

`scripts/test PART` installs the extra `test-PART` of pyproject.toml and runs these tests alone.
"""

from __future__ import annotations

import pathlib

CORE = "core"

# Files and folders of the parts beside the core, which has all others. A test with the marker
# `part` belongs to the part that the marker names.
FOLDERS = {
    "backends": (
        "tests/framework_backends",
        "tests/inprocess/test_remote_models.py",
        "tests/repository_e2e/test_tabular_backends.py",
    ),
    "cloud": (
        "tests/e2e/test_cloud_page.py",
        "tests/repository/remote",
        "tests/repository_e2e/test_cloud.py",
    ),
    "cluster": (
        "tests/cluster",
        "tests/docs/test_scaling_walk.py",
    ),
    "deploy": (
        "tests/deploy",
        "tests/projects",
        "tests/test_containers.py",
        "tests/test_deploy.py",
    ),
    "docs": (
        "tests/benchmarks/test_plots.py",
        "tests/docs/test_site.py",
        "tests/docs/test_walks.py",
        "tests/examples",
        "tests/perf/test_pictures.py",
        "tests/test_docs.py",
        "tests/typing",
    ),
    "page": ("tests/page",),
}
PARTS = (CORE, *FOLDERS)

# What only some parts install, by the names of modules.
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


def part_of(file: str) -> str:
    """The part of a file, given by its path in the repository."""
    path = pathlib.PurePosixPath(file)
    names = {str(each) for each in (path, *path.parents)}
    return next((part for part, owned in FOLDERS.items() if names & set(owned)), CORE)
