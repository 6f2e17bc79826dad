# SPDX-License-Identifier: Apache-2.0
"""Rules on source text, checked on its syntax tree: which imports, calls and symbols it may use."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from typing import TypeVar

# What every floor may import.
LEAVES = frozenset({"base", "constants", "errors", "exceptions", "model_config", "utils"})
# Folders whose packages and modules have rules of their own.
FLOORS = frozenset({"binding", "runtime", "serving", "tools"})
CHAIN = ("transport", "functions", "executor", "engine", "repository", "server", "triton")
BESIDE_THE_CHAIN = {
    "protocol": LEAVES,
    "proxy": LEAVES,
    "decorators": LEAVES | {"proxy"},
    "models": LEAVES | {"decorators", "signatures", "functions"},
    # Tensors of annotated functions, and how these are called.
    "signatures": LEAVES | {"decorators", "proxy"},
    "client": LEAVES | {"protocol"},
    # What a model.py sees, and the process that runs it: neither knows the server.
    "pb_utils": LEAVES | {"cuda"},
    # What models of all kinds stand on, in the process that runs them.
    "backend": LEAVES | {"pb_utils", "transport"},
    "python_backend": LEAVES | {"backend", "pb_utils", "transport", "cuda"},
    "native_backend": LEAVES | {"backend", "pb_utils", "python_backend", "transport"},
    "worker_process": LEAVES
    | {"backend", "pb_utils", "python_backend", "native_backend", "transport", "sandbox", "cuda"},
    # CUDA's driver in processes that run models, and their memory that it knows.
    "cuda": LEAVES | {"transport"},
    # Confines worker processes; the system calls of that, and nothing of models.
    "sandbox": LEAVES,
    # Backends of ours, whose code is a model.py that the worker imports.
    "framework_backends": LEAVES | {"pb_utils"},
    # The library for programs in C: it has Python in it, and the C API around the engine.
    "c_library": LEAVES
    | {"native_backend", "inprocess", "protocol", "executor", "engine", "repository", "server"},
    # Runs models by the server's own rules on configurations, requests and metrics.
    "testing": LEAVES
    | {"backend", "pb_utils", "python_backend", "engine", "repository"}
    | {"functions", "client", "decorators", "models", "proxy", "triton"}
    | {"server_process", "template"},
    # Every run of pytest imports it: it imports what it needs when a test asks for a server.
    "pytest_plugin": frozenset({"base", "testing"}),
    "trace_summary": frozenset({"utils"}),
    # Instances on a Ray cluster: the process that starts their actors, and what the server knows.
    "cluster": LEAVES | {"transport", "executor"},
    # The load generator and what measures with it: a client of any server.
    "perf": LEAVES | {"client", "protocol", "plots", "cuda"},
    # Sends recorded requests again, and compares answers; its shadow is a process of the server.
    "replay": LEAVES | {"client", "protocol", "plots", "perf"},
    # Draws what it is given; the only package that knows matplotlib.
    "plots": frozenset(),
    # The user's process talks to the server over a channel and does not load it.
    "server_process": LEAVES | {"transport", "functions"},
    # Forks processes that have their imports already; nothing of what they do.
    "template": LEAVES | {"template_process", "transport"},
    "template_process": LEAVES | {"transport"},
    "remote_triton": LEAVES | {"client", "transport", "functions", "server_process", "triton_base"},
    "triton_base": LEAVES | {"functions", "decorators", "models", "proxy"},
    # The server in a program's own process, and tensors that it exchanges by DLPack.
    "inprocess": LEAVES | {"pb_utils", "transport", "executor", "engine", "repository", "server"},
}
EXTRA = {
    "functions": frozenset({"decorators", "proxy", "cuda", "pb_utils", "backend"}),
    "repository": frozenset({"sandbox"}),
    "server": frozenset({"protocol", "cluster"}),
    "triton": frozenset(
        {
            "client",
            "decorators",
            "proxy",
            "remote_triton",
            "server_process",
            "triton_base",
        }
    ),
}
# The packages of the server, each with those of its own layer that it may import. What lies beside
# them (the entry points, `server.server`, `server.serving`) puts them together and may import all.
SERVER_PACKAGES = {
    "tracing": frozenset[str](),
    "access": frozenset[str](),
    "api": frozenset({"access", "tracing"}),
    "options": frozenset({"access", "api"}),
    "process": frozenset({"api", "options"}),
    "codec": frozenset({"api"}),
    "shared_memory": frozenset({"api"}),
    "operations": frozenset({"access", "api", "shared_memory"}),
    "http": frozenset(
        {"access", "api", "codec", "operations", "options", "process", "shared_memory", "tracing"}
    ),
    "grpc": frozenset(
        {"access", "api", "operations", "options", "process", "shared_memory", "tracing"}
    ),
    "metrics": frozenset({"access", "api", "http", "options"}),
    "page": frozenset(
        {"access", "api", "http", "metrics", "operations", "options", "process", "tracing"}
    ),
    "openai": frozenset({"access", "api", "http"}),
    "landing": frozenset({"access", "api", "http", "operations", "options"}),
    "cloud": frozenset({"access", "api", "http", "options"}),
    "access_log": frozenset({"access", "api", "grpc", "http", "options", "process"}),
    "frontend": frozenset(
        {
            "access",
            "access_log",
            "api",
            "cloud",
            "codec",
            "grpc",
            "http",
            "landing",
            "openai",
            "options",
            "process",
            "shared_memory",
            "tracing",
        }
    ),
    "recording": frozenset({"metrics", "options", "process"}),
    "binding": frozenset({"api", "process"}),
    "command": frozenset({"access", "api", "options", "process"}),
}
# Modules of a layer that may import more than the others of it.
MODULES_WITH_MORE = {
    # A bound function in a worker: it is called as in the process that binds functions.
    "pytriton.runtime.worker_process.function_worker": frozenset(
        {"functions", "decorators", "models"}
    ),
    # Forks the process that runs workers before the rest of the server is imported.
    "pytriton.serving.server.worker_zygote": frozenset({"worker_process"}),
}
TOP = frozenset({"", "__main__", "check", "commands"})
# Modules that strings name for another process, which is started with them or imports them first.
NAMED_FOR_OTHER_PROCESSES = {
    "pytriton.binding.server_process": frozenset({"pytriton.serving.server"}),
    "pytriton.testing.server": frozenset(
        {
            "pytriton.serving.server",
            "pytriton.serving.server.main",
            "pytriton.serving.server.repository_main",
            "pytriton.serving.server.worker_zygote",
        }
    ),
    "pytriton.runtime.executor.python_process": frozenset(
        {"pytriton.runtime.worker_process.zygote"}
    ),
    "pytriton.serving.server.recording.shadow": frozenset({"pytriton.tools.replay.shadow"}),
    "pytriton.serving.repository.loading.python_loader": frozenset(
        {"pytriton.runtime.native_backend.worker"}
    ),
}
# Modules that texts name for people.
NAMED_FOR_PEOPLE = {
    "pytriton.base.announcement": frozenset({"pytriton.client"}),
    "pytriton.inprocess.errors": frozenset({"pytriton.inprocess"}),
    "pytriton.runtime.pb_utils.runtime": frozenset({"pytriton.testing.ModelHarness"}),
}

# They import their submodules when these are first used, and tell type checkers all of them.
PACKAGES_OF_LAZY_PARTS = frozenset({"pytriton", "pytriton.client"})
# A program of an interpreter that may not have this package, until its arguments say where it is.
BEFORE_THE_PACKAGE_IS_FOUND = frozenset({"pytriton.runtime.worker_process.__main__"})

_NAME_OF_MODULE = re.compile(r"\bpytriton(?:\.\w+)+")
UNSAFE_MODULES = frozenset({"cloudpickle", "dill", "marshal", "pickle", "shelve"})
UNSAFE_CALLS = frozenset({"eval", "exec"})
SHELLS = frozenset(
    {
        "asyncio.create_subprocess_shell",
        "os.popen",
        "os.system",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
    }
)
LINUX_ONLY = frozenset(
    {
        "os.MFD_CLOEXEC",
        "os.eventfd",
        "os.memfd_create",
        "os.pidfd_open",
        "os.sched_setaffinity",
        "select.epoll",
        "signal.pidfd_send_signal",
        "socket.SOCK_SEQPACKET",
    }
)
_SYMBOLS_OF_LINUX = re.compile("|".join(name.partition(".")[2] for name in sorted(LINUX_ONLY)))
Node = TypeVar("Node", bound=ast.AST)


def unit_of(module: str) -> str:
    """The layer a module belongs to: `pytriton.serving.server.http` is in `server`."""
    parts = module.split(".")
    is_deeper = parts[1:2] and (parts[1] in FLOORS or parts[1:3] == ["inprocess", "c_library"])
    return [*parts, "", ""][2 if is_deeper else 1]


def allowed_imports(unit: str) -> frozenset[str] | None:
    """The units that `unit` may import beside itself; None for those that may import all.

    Raises:
        KeyError: nobody has said yet where the unit belongs.
    """
    if unit in TOP:
        return None
    if unit in LEAVES:
        return LEAVES
    if unit in BESIDE_THE_CHAIN:
        return BESIDE_THE_CHAIN[unit]
    if unit not in CHAIN:
        raise KeyError(
            f"{unit} has no place in tests/source_rules.py: is it a leaf, or in a layer?"
        )
    below = CHAIN[: CHAIN.index(unit) + 1]
    return LEAVES.union(below, *(EXTRA.get(layer, frozenset()) for layer in below))


@functools.lru_cache(maxsize=1)  # all rules are asked of one source after the other
def syntax_tree(source: str) -> ast.Module:
    return ast.parse(source)


@functools.lru_cache(maxsize=1)
def nodes_by_kind(tree: ast.AST) -> dict[type[ast.AST], list[ast.AST]]:
    """All nodes of a tree; to find them takes longer than all that the rules ask of them."""
    found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
    left = [tree]
    while left:
        node = left.pop()
        found[type(node)].append(node)
        for value in vars(node).values():  # `ast.walk` takes three times as long
            if isinstance(value, ast.AST):
                left.append(value)
            elif isinstance(value, list):
                left += [each for each in value if isinstance(each, ast.AST)]
    return found


def nodes_of(tree: ast.AST, *kinds: type[Node]) -> list[Node]:
    """All nodes of these kinds."""
    found = nodes_by_kind(tree)
    return [node for kind in kinds for node in found[kind]]


def dotted_name(node: ast.AST) -> str:
    """`a.b.c` for just that; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted_name(node.value)):
        return f"{base}.{node.attr}"
    return ""


def imported_modules(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each imported module, with its line; `from a import b` counts as `a.b`, which may be one."""
    for node in nodes_of(tree, ast.Import, ast.ImportFrom):
        yield from ((name, node.lineno) for name in _names_of_import(node))


def _names_of_import(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if node.level:
        return ["." * node.level + (node.module or "")]
    return [f"{node.module}.{alias.name}" for alias in node.names]


def named_modules(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each module of ours that a string names, with its line; docstrings do not count.

    Such strings are lazy imports, tables of modules, modules that a process preloads, and programs
    for `python -m` and `python -c`.
    """
    docstrings = {node.value for node in nodes_of(tree, ast.Expr)}
    for node in nodes_of(tree, ast.Constant):
        if isinstance(node.value, str) and node not in docstrings:
            yield from ((name, node.lineno) for name in _NAME_OF_MODULE.findall(node.value))


def names_to_import(module: str, tree: ast.AST) -> list[tuple[str, int]]:
    """Those of the named modules that the process of `module` imports, with their lines."""
    others = NAMED_FOR_OTHER_PROCESSES.get(module, frozenset[str]())
    told = NAMED_FOR_PEOPLE.get(module, frozenset[str]())
    return [each for each in named_modules(tree) if each[0] not in others | told]


def upward_imports(module: str, source: str) -> list[str]:
    """Imports that point up or sideways, and relative ones, whose direction nobody can read.

    A module that a string names counts as imported.
    """
    unit = unit_of(module)
    allowed = allowed_imports(unit)
    problems = []
    tree = syntax_tree(source)
    for name, line in (*imported_modules(tree), *names_to_import(module, tree)):
        if name.startswith("."):
            problems.append(f"{module}:{line} imports {name} relatively")
        elif name.split(".")[0] == "pytriton" and allowed is not None:
            target = unit_of(name)
            if target not in allowed | MODULES_WITH_MORE.get(module, frozenset()) | {unit}:
                problems.append(f"{module}:{line} imports {name}, but {unit} is below {target}")
    return problems


def sideways_imports(module: str, source: str) -> list[str]:
    """Imports of one package of the server by another that must not know it."""
    parts = module.split(".")
    is_part = parts[:3] == ["pytriton", "serving", "server"] and len(parts) >= 5
    if not is_part or parts[3] not in SERVER_PACKAGES:
        return []
    allowed = SERVER_PACKAGES[parts[3]] | {parts[3]}
    return [
        f"{module}:{line} imports {name}, which server.{parts[3]} must not know"
        for name, line in imported_modules(syntax_tree(source))
        if name.split(".")[:3] == ["pytriton", "serving", "server"]
        and name.split(".")[3] not in allowed
    ]


def run_time_imports(module: str, source: str, known: Container[str]) -> Iterator[str]:
    """The known modules that a module imports when it runs, at its start or later."""
    tree = syntax_tree(source)
    by_name = [name for name, _ in names_to_import(module, tree)]
    for_type_checkers = {
        line
        for node in tree.body
        if _is_for_type_checkers(node)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    imported = [name for name, line in imported_modules(tree) if line not in for_type_checkers]
    for name in (*imported, *by_name):
        found = name if name in known else name.rpartition(".")[0]
        if found in known and found != module:
            yield found


def _is_for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def hidden_imports(module: str, source: str) -> list[str]:
    """Imports of our own modules inside functions, which usually hide a cycle."""
    tree = syntax_tree(source)
    functions = [
        range(node.lineno, node.end_lineno + 1)
        for node in nodes_of(tree, ast.FunctionDef, ast.AsyncFunctionDef)
    ]
    return [
        f"{module}:{line} imports {name} inside a function"
        for name, line in imported_modules(tree)
        if name.split(".")[0] == "pytriton" and any(line in lines for lines in functions)
    ]


def lazy_imports(nodes: Iterable[ast.AST]) -> Iterator[ast.Call]:
    """Each stand-in for a module; see `pytriton.base.lazy_module`."""
    for node in nodes:
        if isinstance(node, ast.Call) and dotted_name(node.func) == "LazyModule":
            yield node


def unseen_imports(module: str, source: str) -> list[str]:
    """Imports of our own modules that neither the other rules nor type checkers see.

    A lazy import has the same import for type checkers beside it.
    """
    tree = syntax_tree(source)
    told = [
        (statement, imported)
        for branch in nodes_of(tree, ast.If)
        if _is_for_type_checkers(branch)
        for imported in [_names_of_modules(branch.body)]
        for statement in branch.orelse
    ]
    seen = {
        call
        for statement, imported in told
        if isinstance(statement, ast.Assign)
        for call in lazy_imports(ast.walk(statement))
        if imported.get(ast.unparse(statement.targets[0])) == _text(call)
    }
    problems = [
        f"{module}:{call.lineno} expected the import of {_text(call)} for type checkers beside it"
        for call in lazy_imports(nodes_of(tree, ast.Call))
        if call not in seen
    ]
    if module in PACKAGES_OF_LAZY_PARTS or module in BEFORE_THE_PACKAGE_IS_FOUND:
        return problems
    return problems + [
        f"{module}:{node.lineno} imports {_text(node)} by its name, expected a LazyModule"
        for node in nodes_of(tree, ast.Call)
        if dotted_name(node.func).endswith("import_module") and _text(node).startswith("pytriton")
    ]


def _names_of_modules(body: list[ast.stmt]) -> dict[str, str]:
    """Returns each name that the statements import, with what it is."""
    return {
        alias.asname or alias.name: f"{package}{alias.name}"
        for statement in body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for package in [f"{statement.module}." if isinstance(statement, ast.ImportFrom) else ""]
        for alias in statement.names
    }


def _text(call: ast.Call) -> str:
    """The text of a call's first argument as far as the source has it."""
    argument = call.args[0]
    if isinstance(argument, ast.JoinedStr):
        argument = argument.values[0]
    return str(argument.value) if isinstance(argument, ast.Constant) else ""


def unsafe_uses(module: str, source: str) -> list[str]:
    """Ways for data to become code: unpickling, evaluating, and shells."""
    tree = syntax_tree(source)
    problems = [
        f"{module}:{line} imports {name}"
        for name, line in imported_modules(tree)
        if name.split(".")[0] in UNSAFE_MODULES
    ]
    renamed = {}  # `from os import system as s` and `import os as o` lead to the same functions
    for node in nodes_of(tree, ast.ImportFrom):
        renamed |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    for node in nodes_of(tree, ast.Import):
        renamed |= {each.asname: each.name for each in node.names if each.asname}
    for node in nodes_of(tree, ast.Call):
        called = dotted_name(node.func)
        first, dot, rest = called.partition(".")
        if called in UNSAFE_CALLS:
            problems.append(f"{module}:{node.lineno} calls {called}")
        elif (meant := renamed.get(first, first) + dot + rest) in SHELLS:
            problems.append(f"{module}:{node.lineno} runs a shell by {meant}")
        for keyword in node.keywords:
            is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == "shell" and not is_false:
                problems.append(f"{module}:{node.lineno} runs a shell")
    return problems


def linux_only_at_import(module: str, source: str) -> list[str]:
    """Linux-only names that are looked up when the module is imported and not behind a guard."""
    if not _SYMBOLS_OF_LINUX.search(source):
        return []
    problems = []
    for node in _run_at_import(syntax_tree(source)):
        if (used := dotted_name(node)) in LINUX_ONLY:
            problems.append(f"{module}:{node.lineno} uses {used} at import")
        elif isinstance(node, ast.ImportFrom):
            problems += [
                f"{module}:{node.lineno} imports {node.module}.{alias.name}"
                for alias in node.names
                if f"{node.module}.{alias.name}" in LINUX_ONLY
            ]
    return problems


def _run_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: no function bodies, nothing an `if` or `try` guards."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If | ast.IfExp | ast.Try):
            continue
        yield child
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for part in (*child.decorator_list, child.args):
                yield from _run_at_import(part)
        elif not isinstance(child, ast.Lambda):
            yield from _run_at_import(child)
