# SPDX-License-Identifier: Apache-2.0
"""The package's import directions and forbidden constructs, read from the source."""

from __future__ import annotations

import ast
import dataclasses
import graphlib
import itertools
import pathlib
import re
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests import source_rules

SOURCE = pathlib.Path(__file__).parent.parent / "src"


def module_name(path: pathlib.Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}
PACKAGE = {name: path for name, path in MODULES.items() if name.split(".")[0] == "pytriton"}


# Imported packages that the package does not ask for.
BROUGHT = {
    "PIL": "by matplotlib",
    "cryptography": "by PyJWT[crypto] and model-signing",
    "pytest": "by users of the plugin, which pytest imports",
    "typing_extensions": "by type checkers, for which alone it is",
}

# Each with the modules that it is for.
RULES = {
    source_rules.upward_imports: PACKAGE,
    source_rules.sideways_imports: PACKAGE,
    source_rules.hidden_imports: PACKAGE,
    source_rules.unseen_imports: PACKAGE,
    source_rules.unsafe_uses: MODULES,
    source_rules.linux_only_at_import: MODULES,
}


@dataclasses.dataclass
class Findings:
    """What is found in all modules. Each is read and parsed once, which takes several seconds."""

    problems: dict[str, list[str]]  # by the name of the rule
    named: dict[str, str]  # what strings of the package name, with a place
    graph: dict[str, set[str]]  # what modules of the package import when they run
    roots: set[str]  # the first parts of all imported names


@pytest.fixture(scope="module")
def findings() -> Findings:
    found = Findings({rule.__name__: [] for rule in RULES}, {}, {}, set())
    for name, path in MODULES.items():
        source = path.read_text()
        for rule, modules in RULES.items():
            if name in modules:
                found.problems[rule.__name__] += rule(name, source)
        imported = source_rules.imported_modules(source_rules.syntax_tree(source))
        found.roots |= {each.partition(".")[0] for each, _ in imported}
        if name in PACKAGE:
            named = source_rules.named_modules(source_rules.syntax_tree(source))
            found.named |= {each: f"{name}:{line}" for each, line in named}
            found.graph[name] = set(source_rules.run_time_imports(name, source, PACKAGE))
    return found


@pytest.fixture
def problems(findings) -> dict[str, list[str]]:
    return findings.problems


def test_modules_import_only_downwards(problems):
    assert problems["upward_imports"] == []


def test_modules_import_only_their_neighbours_in_the_server(problems):
    assert problems["sideways_imports"] == []


def test_modules_hide_no_import_of_ours_in_a_function(problems):
    assert problems["hidden_imports"] == []


def test_modules_import_nothing_of_ours_that_rules_and_type_checkers_do_not_see(problems):
    assert problems["unseen_imports"] == []


def test_modules_turn_no_data_into_code(problems):
    assert problems["unsafe_uses"] == []


def test_modules_import_on_other_systems_than_linux(problems):
    assert problems["linux_only_at_import"] == []


def test_every_package_of_the_server_has_its_rule():
    packages = {
        path.parent.name for path in (SOURCE / "pytriton/serving/server").glob("*/__init__.py")
    }

    assert packages == set(source_rules.SERVER_PACKAGES)


def test_server_rule_rejects_a_protocol_that_knows_the_other():
    source = "from pytriton.serving.server.http.infer import InferExchange"

    assert source_rules.sideways_imports("pytriton.serving.server.grpc.infer", source) != []
    assert source_rules.sideways_imports("pytriton.serving.server.metrics.api", source) == []
    assert source_rules.sideways_imports("pytriton.serving.server.server", source) == []


def test_one_module_loads_pickles_of_users_with_a_library_that_runs_them():
    named = [name for name in sorted(MODULES) if '"joblib"' in MODULES[name].read_text()]

    assert named == ["pytriton.runtime.framework_backends.sklearn.model"]


def test_modules_that_strings_name_exist(findings):
    names = dict(findings.named)
    library = SOURCE / "pytriton/inprocess/c_library/library.c"
    names[re.search(r"__import__\('([\w.]+)'", library.read_text())[1]] = library.name

    unknown = {
        name: place
        for name, place in names.items()
        if name not in PACKAGE and name.rpartition(".")[0] not in PACKAGE
    }
    assert unknown == {}


def test_package_declares_the_packages_that_it_imports(findings):
    project = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]
    extras = [
        needed
        for name, needed in project["optional-dependencies"].items()
        if name not in {"check", "dev", "docs"} and not name.startswith("test")
    ]
    texts = itertools.chain(project["dependencies"], *extras)
    declared = {canonicalize_name(Requirement(each).name) for each in texts}
    providers = metadata.packages_distributions()
    found = {
        root: {canonicalize_name(each) for each in providers[root]}
        for root in findings.roots - {name.partition(".")[0] for name in MODULES} - set(BROUGHT)
        if root in providers  # others are packages of users, or not installed for tests
    }

    assert {"google", "grpc", "hpack", "msgspec", "numpy"} <= set(found)
    assert {root: names for root, names in found.items() if not names & declared} == {}


def test_every_exception_for_named_modules_is_needed():
    for table in (source_rules.NAMED_FOR_OTHER_PROCESSES, source_rules.NAMED_FOR_PEOPLE):
        for module, names in table.items():
            tree = ast.parse(PACKAGE[module].read_text())

            assert names <= {name for name, _ in source_rules.named_modules(tree)}


def test_modules_import_each_other_without_a_cycle(findings):
    order = list(graphlib.TopologicalSorter(findings.graph).static_order())

    assert set(order) == set(PACKAGE)


@pytest.mark.parametrize(
    "importer,imported",
    [
        ("pytriton.base.dtypes", "pytriton.runtime.transport.frames"),
        ("pytriton.runtime.transport.channel", "pytriton.runtime.functions.worker"),
        ("pytriton.runtime.functions.worker", "pytriton.runtime.executor"),
        ("pytriton.runtime.executor.process", "pytriton.serving.engine.scheduler"),
        ("pytriton.serving.engine.engine", "pytriton.serving.server.http"),
        ("pytriton.serving.engine.engine", "pytriton.protocol.kserve_json"),
        ("pytriton.serving.server.server", "pytriton.triton"),
        ("pytriton.protocol.kserve_json", "pytriton.serving.engine.stats"),
        ("pytriton.decorators", "pytriton.runtime.functions"),
    ],
)
def test_import_rule_rejects_upward(importer, imported):
    assert source_rules.upward_imports(importer, f"import {imported}") != []
    parent, _, name = imported.rpartition(".")
    assert source_rules.upward_imports(importer, f"from {parent} import {name}") != []


@pytest.mark.parametrize(
    "source",
    [
        "ROWS = (Row('name', 'pytriton.serving.server.http.api'),)",
        "_PRELOADED = ('pytriton.serving.server.core',)",
        "subprocess.run([sys.executable, '-m', 'pytriton.serving.server'])",
        "_PROGRAM = 'from pytriton.serving.server import main; main()'",
        "import_module(f'pytriton.serving.{name}')",
        "MODULE = 'pytriton.serving.server'",
    ],
)
def test_import_rule_rejects_upward_names_in_strings(source):
    assert source_rules.upward_imports("pytriton.serving.engine.engine", source) != []


def test_import_rule_reads_no_docstrings():
    source = 'def f():\n    """See `pytriton.serving.server`."""'

    assert source_rules.upward_imports("pytriton.serving.engine.engine", source) == []


@pytest.mark.parametrize(
    "importer,imported",
    [
        ("pytriton.triton", "pytriton.serving.server.server"),
        ("pytriton.serving.server.http", "pytriton.protocol.kserve_json"),
        ("pytriton.serving.engine.engine", "pytriton.base.errors"),
        ("pytriton.protocol.kserve_json", "pytriton.base.model_spec"),
        ("pytriton.serving.engine.scheduler", "pytriton.serving.engine.batcher"),
    ],
)
def test_import_rule_accepts_downward(importer, imported):
    assert source_rules.upward_imports(importer, f"import {imported}") == []
    assert source_rules.upward_imports(importer, f"from {imported} import Name") == []


def test_import_rule_asks_for_a_place_for_every_new_module():
    with pytest.raises(KeyError, match="no place"):
        source_rules.upward_imports("pytriton.novelty", "import os")


LAZY = """
if TYPE_CHECKING:
    from pytriton.serving.server.page import {imported}
else:
    {name} = LazyModule("pytriton.serving.server.page.api")
"""
LAZY_OTHER = """
if TYPE_CHECKING:
    import {name}
else:
    {name} = LazyModule("asyncio")
"""


@pytest.mark.parametrize(
    "source",
    [
        LAZY.format(imported="routes", name="api"),
        LAZY.format(imported="api", name="routes"),
        LAZY_OTHER.format(name="ssl"),
        'api = LazyModule("pytriton.serving.server.page.api")',
        'api = importlib.import_module("pytriton.serving.server.page.api")',
        'api = importlib.import_module(f"pytriton.serving.server.{name}")',
    ],
)
def test_lazy_rule_finds(source):
    assert source_rules.unseen_imports("pytriton.sample", source) != []


@pytest.mark.parametrize(
    "source",
    [
        LAZY.format(imported="api", name="api"),
        LAZY.format(imported="api as page", name="page"),
        LAZY_OTHER.format(name="asyncio"),
        "module = importlib.import_module(name_of_a_user)",
    ],
)
def test_lazy_rule_accepts(source):
    assert source_rules.unseen_imports("pytriton.sample", source) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal",
        "eval('1')",
        "exec(text)",
        "os.system('ls')",
        "from os import system as start\nstart('ls')",
        "import os as system\nsystem.popen('ls')",
        "subprocess.getoutput('ls')",
        "asyncio.create_subprocess_shell('ls')",
        "subprocess.run('ls', shell=True)",
        "subprocess.run('ls', shell=flag)",
    ],
)
def test_unsafe_rule_finds(source):
    assert source_rules.unsafe_uses("sample", source) != []


@pytest.mark.parametrize(
    "source",
    [
        "flag = os.MFD_CLOEXEC",
        "from os import memfd_create",
        "def f(kind=socket.SOCK_SEQPACKET): ...",
        "class A:\n    epoll = select.epoll",
    ],
)
def test_linux_rule_finds(source):
    assert source_rules.linux_only_at_import("sample", source) != []


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return os.memfd_create('x')",
        "if hasattr(os, 'memfd_create'):\n    flag = os.MFD_CLOEXEC",
        "try:\n    from os import memfd_create\nexcept ImportError:\n    memfd_create = None",
    ],
)
def test_linux_rule_accepts_guarded(source):
    assert source_rules.linux_only_at_import("sample", source) == []
