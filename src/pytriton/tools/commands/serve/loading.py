# SPDX-License-Identifier: Apache-2.0
"""Imports the code of users and binds what it has; its errors are shown without our frames."""

from __future__ import annotations

import dataclasses
import pathlib
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytriton.base.package import PACKAGE_FOLDER
from pytriton.decorators.declaration import ModelDeclaration, declaration_of
from pytriton.exceptions import PyTritonError
from pytriton.model_config.ray_instances import Ray
from pytriton.runtime.signatures.served import instances_of
from pytriton.runtime.signatures.signature import read_signature
from pytriton.tools.commands.serve.targets import TargetError, contents_of, import_target

if TYPE_CHECKING:
    from pytriton.binding.triton_base import TritonBase
    from pytriton.tools.commands.serve.options import ServeOptions
    from pytriton.tools.commands.serve.targets import Found

_FOREIGN = ("site-packages", "dist-packages")


class ServeError(Exception):
    """The code cannot be served; the text is for the terminal."""


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The models of the code that was bound, and what was left out, with the reason."""

    names: list[str]
    skipped: list[str]


def load(options: ServeOptions, triton: TritonBase) -> Loaded:
    """Import the code and bind its models.

    Raises:
        LoadError: The code raised, or it has nothing that can be served.
    """
    found: list[Found] = []
    skipped: list[str] = []
    try:
        for target in options.targets:
            contents = contents_of(import_target(target), target)
            found += contents.found
            skipped += contents.skipped
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
    return Loaded(names, skipped)


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
