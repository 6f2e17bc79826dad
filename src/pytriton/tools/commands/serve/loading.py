# SPDX-License-Identifier: Apache-2.0
"""Imports the code of users, finds the callables to serve, and binds them.

A target is `FILE.py[:object]` or `package.module[:object]`. Errors are shown without our frames.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import pathlib
import sys
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytriton.base.package import PACKAGE_FOLDER
from pytriton.binding.triton_base import refusing_starts
from pytriton.decorators.declaration import ModelDeclaration, declaration_of, default_name
from pytriton.exceptions import PyTritonError
from pytriton.model_config.ray_instances import Ray
from pytriton.runtime.signatures.served import instances_of
from pytriton.runtime.signatures.signature import SignatureError, read_signature

if TYPE_CHECKING:
    from pytriton.binding.triton_base import TritonBase
    from pytriton.tools.commands.serve.options import ServeOptions

_FOREIGN = ("site-packages", "dist-packages")
_HAS_SERVER = (
    "This starts a server of its own, with its own ports and settings, while `pytriton serve` only "
    "looks for functions to serve. Run it as a program instead (python FILE.py); or let it start "
    'only there, below `if __name__ == "__main__":`, and its functions can be served.'
)


class TargetError(Exception):
    """There is nothing to serve; the text says what was expected and what was found."""


@dataclasses.dataclass(frozen=True)
class ServeTarget:
    """A file or module, and the names of the objects in it; none for all that can be served."""

    source: str
    objects: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> ServeTarget:
        """Read `SOURCE` or `SOURCE:object[,object...]`."""
        source, colon, names = text.rpartition(":")
        if not colon:
            return cls(text)
        if not all(name.isidentifier() for part in names.split(",") for name in part.split(".")):
            raise TargetError(f"Expected FILE.py:object with the name of an object, got {text!r}")
        return cls(source, tuple(names.split(",")))

    @property
    def is_file(self) -> bool:
        """Whether the source is a path, and not the name of a module."""
        return self.source.endswith(".py") or "/" in self.source or "\\" in self.source


@dataclasses.dataclass(frozen=True)
class Found:
    """A callable that is served, and the name of its model."""

    name: str
    function: Any


@dataclasses.dataclass(frozen=True)
class Contents:
    """The callables of a target to serve, and the reasons why others are not served.

    Those that were probably forgotten are told apart from helpers of the models.
    """

    found: list[Found]
    skipped: list[str]
    forgotten: list[str] = dataclasses.field(default_factory=list)


def import_target(target: ServeTarget) -> ModuleType:
    """Import the file or module; TargetError if there is none. Its code may raise anything."""
    if not target.is_file:
        sys.path.insert(0, str(pathlib.Path.cwd()))
        try:
            is_known = importlib.util.find_spec(target.source) is not None
        except (ImportError, ValueError):
            is_known = False
        if not is_known:
            hint = ""
            if pathlib.Path(f"{target.source}.py").exists():
                hint = f" Did you mean {target.source}.py?"
            raise TargetError(f"Expected a file or a module, got {target.source!r}.{hint}")
        return importlib.import_module(target.source)
    path = pathlib.Path(target.source).resolve()
    if not path.is_file():
        raise TargetError(f"Expected a file, but {target.source} does not exist.")
    return _import_file(path)


def _import_file(path: pathlib.Path) -> ModuleType:
    sys.path.insert(0, str(path.parent))
    name = path.stem
    if not name.isidentifier() or name in sys.modules:  # it would replace another module
        name = f"served_{name}".replace("-", "_").replace(".", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"Expected a Python file, got {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and annotations look it up there
    spec.loader.exec_module(module)
    return module


def contents_of(module: ModuleType, target: ServeTarget) -> Contents:
    """Find the callables of a module that are served; TargetError if there are none.

    These are the objects that the target names; else all models that the module declares with
    `@model`; else all its annotated functions and classes whose names are public.
    """
    if target.objects:
        found = [_named(module, name, target) for name in target.objects]
        return Contents(found, [])
    declared = _declared(module)
    if declared:
        found = [Found(default_name(each), each) for each in declared]
        return Contents(found, [], _undeclared(module, target))
    found, problems = [], []
    for name, member in _own_callables(module):
        try:
            read_signature(member)
        except SignatureError as error:  # noqa: PERF203  each reason is told
            problems.append(str(error))
        else:
            found.append(Found(name, member))
    if not found:
        raise TargetError(_nothing(target, problems))
    # Helpers of the models need no advice.
    return Contents(found, [each.split(". Instead, ")[0] for each in problems])


def _named(module: ModuleType, path: str, target: ServeTarget) -> Found:
    member: Any = module
    for name in path.split("."):
        if not hasattr(member, name):
            known = [name for name, _ in _own_callables(module)]
            raise TargetError(
                f"Expected an object `{path}` in {target.source}, which has "
                f"{', '.join(known) or 'no functions'}."
            )
        member = getattr(member, name)
    if not callable(member):
        raise TargetError(
            f"Expected a function, a class or an object that can be called, but `{path}` in "
            f"{target.source} is of type {type(member).__name__}."
        )
    declaration = declaration_of(member)
    has_name = declaration is not None and declaration.name
    return Found(default_name(member) if has_name else path.rsplit(".", maxsplit=1)[-1], member)


def _declared(module: ModuleType) -> list[Any]:
    """Returns the declared models that are defined here; else those that are imported here."""
    models: list[Any] = []
    for member in vars(module).values():
        if declaration_of(member) is not None and not any(member is each for each in models):
            models.append(member)
    return [each for each in models if _module_of(each) == module.__name__] or models


def _undeclared(module: ModuleType, target: ServeTarget) -> list[str]:
    """Returns a line on what would be served if nothing in the module had `@model`."""
    names = [
        name
        for name, member in _own_callables(module)
        if declaration_of(member) is None and _is_readable(member)
    ]
    if not names:
        return []
    advice = f"Write @model there, too, or name all that is to be served: {target.source}:NAME,NAME"
    return [f"{', '.join(names)}: without @model, which others in {target.source} have. {advice}"]


def _is_readable(member: Any) -> bool:
    try:
        read_signature(member)
    except SignatureError:
        return False
    return True


def _own_callables(module: ModuleType) -> list[tuple[str, Any]]:
    return [
        (name, member)
        for name, member in vars(module).items()
        if not name.startswith("_")
        and _module_of(member) == module.__name__
        and (inspect.isroutine(member) or _is_callable_class(member))
    ]


def _module_of(member: Any) -> str:
    return str(getattr(member, "__module__", ""))


def _is_callable_class(member: Any) -> bool:
    return inspect.isclass(member) and any(
        "__call__" in vars(base) for base in member.__mro__ if base.__module__ == member.__module__
    )


def _nothing(target: ServeTarget, skipped: list[str]) -> str:
    lines = [f"Expected functions with type annotations in {target.source}, found none."]
    if skipped:
        lines += ["What is there cannot be served:", *(f"  {each}" for each in skipped)]
    else:
        lines.append("For example: def double(x: float) -> float: return 2 * x")
    return "\n".join(lines)


class ServeError(Exception):
    """The code cannot be served; the text is for the terminal."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The models of the code that was bound, and what was left out, with the reason."""

    names: list[str]
    skipped: list[str]
    forgotten: list[str]


def load(options: ServeOptions, triton: TritonBase) -> Loaded:
    """Import the code and bind its models; ServeError if it raised or has nothing to serve."""
    found: list[Found] = []
    skipped: list[str] = []
    forgotten: list[str] = []
    try:
        with refusing_starts(_HAS_SERVER):
            for target in options.targets:
                contents = contents_of(import_target(target), target)
                found += contents.found
                skipped += contents.skipped
                forgotten += contents.forgotten
            _check_name(options, found)
            names = [_bind(each, options, triton) for each in found]
    except (TargetError, PyTritonError) as error:
        raise ServeError(f"{_place_of(error)}{error}") from error
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        raise ServeError(f"The code ended the program with exit code {error.code}.") from error
    except BaseException as error:
        raise ServeError(users_traceback(error)) from error
    return Loaded(names, skipped, forgotten)


def _check_name(options: ServeOptions, found: list[Found]) -> None:
    if options.name is not None and len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise TargetError(f"--name is for one model, but there are {len(found)}: {names}.")


def _bind(found: Found, options: ServeOptions, triton: TritonBase) -> str:
    declaration = declaration_of(found.function) or ModelDeclaration()
    read_signature(found.function)  # before objects are made, which may take long
    elsewhere = _elsewhere(declaration, options)
    function = found.function
    if elsewhere is None:
        function = instances_of(function, options.instances or declaration.local_instances)
    name = options.name or found.name
    triton.bind(
        name,
        function,
        model_version=declaration.version,
        config=options.model_config(declaration.model_config()),
        strict=declaration.strict,
        instances=elsewhere,
    )
    return name


def _elsewhere(declaration: ModelDeclaration, options: ServeOptions) -> Ray | None:
    """Returns the instances on a cluster, as many as the command says; None: they are here."""
    declared = declaration.instances
    if not isinstance(declared, Ray):
        return None
    if options.instances is None:
        return declared
    return dataclasses.replace(declared, count=options.instances, min=None, max=None)


def users_traceback(error: BaseException) -> str:
    """Returns the traceback of an exception without the frames of this package and of imports."""
    shown = traceback.TracebackException.from_exception(error)
    for each in _chain(shown):
        each.stack = traceback.StackSummary.from_list(
            [frame for frame in each.stack if not _is_ours(frame.filename)]
        )
    return "".join(shown.format()).rstrip()


def _place_of(error: Exception) -> str:
    """Returns the line of the user's code that raised, for the start of a message; or nothing."""
    frames = [
        each
        for each in traceback.extract_tb(error.__traceback__)
        if not _is_ours(each.filename) and not each.filename.startswith("<")  # made by dataclasses
    ]
    if not frames:
        return ""
    return f"{pathlib.Path(frames[-1].filename).name}, line {frames[-1].lineno}: "


def _chain(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    yield shown
    for other in (shown.__cause__, shown.__context__):
        if other is not None:
            yield from _chain(other)


def _is_ours(filename: str) -> bool:
    return filename.startswith((str(PACKAGE_FOLDER), "<frozen importlib")) or filename.endswith(
        "importlib/__init__.py"
    )


def watched_files(options: ServeOptions) -> list[str]:
    """Returns the files that a change of the code can be in.

    These are the targets, what is imported from their folders, and the other Python files beside
    them: a module that cannot be imported is not among those that are.
    """
    folders = {
        pathlib.Path(target.source).resolve().parent if target.is_file else pathlib.Path.cwd()
        for target in options.targets
    }
    files = {str(pathlib.Path(each.source).resolve()) for each in options.targets if each.is_file}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and any(pathlib.Path(path).is_relative_to(folder) for folder in folders):
            files.add(path)
    for folder in folders:
        files |= {str(path) for path in folder.glob("*.py")}
    return sorted(path for path in files if not _is_foreign(path))


def _is_foreign(path: str) -> bool:
    parts = pathlib.PurePath(path).parts
    return path.startswith(str(PACKAGE_FOLDER)) or any(name in parts for name in _FOREIGN)
