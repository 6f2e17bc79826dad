# SPDX-License-Identifier: Apache-2.0
"""Names of functions by which other processes find them: `module:function`.

A function that runs in another process has to be imported there. What cannot be imported, such as a
lambda, is refused here with the reason and what to write instead.
"""

from __future__ import annotations

import importlib
import inspect
import os
import site
import sys
import sysconfig
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytriton.exceptions import PyTritonValidationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MAIN = "__main__"
_LAMBDA = "<lambda>"
_LOCALS = "<locals>"
_WAY_OUT = (
    "Instances elsewhere import their function by its name. Write it as a function of a module and "
    "bind 'module:function'. If it needs data or a loaded model, bind 'module:factory': a function "
    "without arguments, which is called once in each instance and returns the function."
)


class Reference(NamedTuple):
    """The name of an object of a module."""

    module: str
    name: str  # may have dots

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


def parse_reference(text: str) -> Reference:
    """Read `module:function`.

    Raises:
        PyTritonValidationError: The text has another form, or names the script that is run.
    """
    module, colon, name = text.partition(":")
    is_path = module.endswith(".py") or "/" in module
    if not colon or is_path or not _is_dotted(module) or not _is_dotted(name):
        hint = ""
        if is_path:
            stem = Path(module).stem
            hint = f" A module is named without its folder and suffix, such as {stem!r}."
        elif not colon and "." in module and _is_dotted(module):
            hint = f" Did you mean '{':'.join(module.rsplit('.', 1))}'?"
        raise PyTritonValidationError(
            f"Expected 'module:function', as in 'package.module:function', got {text!r}.{hint}"
        )
    if module == _MAIN:
        raise _not_importable(_of_the_script(name))
    return Reference(module, name)


def reference_to(function: Any) -> Reference:
    """Returns the name of a function or class by which another process can import it.

    Raises:
        PyTritonValidationError: There is none; the text says why, and what to do.
    """
    reason = _reason_against(function)
    if reason is not None:
        raise _not_importable(reason)
    return Reference(function.__module__, function.__qualname__)


def _not_importable(reason: str) -> PyTritonValidationError:
    return PyTritonValidationError(
        f"Expected a function that another process can import, got {reason}. {_WAY_OUT}"
    )


def _of_the_script(name: str) -> str:
    return f"{name} of the script that is run, which other processes do not have as a module"


def _reason_against(function: Any) -> str | None:
    """Returns why a function cannot be imported elsewhere; None if it can."""
    name = getattr(function, "__qualname__", None)
    module = getattr(function, "__module__", None)
    reason = None
    if isinstance(function, MethodType):
        reason = f"the method {name} of an object, which is only in this process"
    elif not isinstance(name, str) or not isinstance(module, str):
        reason = f"an object of {type(function).__qualname__}, which is only in this process"
    elif name.endswith(_LAMBDA):
        reason = "a lambda, which has no name"
    elif _LOCALS in name:
        outer = name.split(f".{_LOCALS}")[0]
        reason = f"{name.rsplit('.', 1)[-1]}, which is made inside of the function {outer}"
    elif module == _MAIN:
        reason = _of_the_script(name)
    else:
        reason = _reason_against_name(function, Reference(module, name))
    return reason


def _reason_against_name(function: Any, reference: Reference) -> str | None:
    try:
        found = resolve(reference)
    except (ImportError, AttributeError):
        return f"{reference.name}, which the module {reference.module} does not have by this name"
    if found is not function:
        return f"another object than {reference}, although it has this name"
    return None


def resolve(reference: Reference) -> Any:
    """Import the module and return the object.

    Raises:
        ImportError: There is no such module, or AttributeError if it has no such object. Importing
            a module may raise anything.
    """
    found: Any = importlib.import_module(reference.module)
    for name in reference.name.split("."):
        found = getattr(found, name)
    return found


def is_maker(target: Any) -> bool:
    """Whether it is called once to get the function: a class, or what takes no arguments."""
    if inspect.isclass(target):
        return True
    try:
        return not inspect.signature(target).parameters
    except (TypeError, ValueError):  # it is not known what it takes
        return False


def make_function(target: Any, reference: Reference) -> Any:
    """Returns the function of an instance: the target, or what the target makes.

    Raises:
        PyTritonValidationError: It is no function, and makes none.
    """
    if not callable(target):
        raise PyTritonValidationError(
            f"Expected a function, a class or a factory, but {reference} is of type "
            f"{type(target).__name__}"
        )
    if not is_maker(target):
        return target
    if inspect.isclass(target):
        check_constructor(target, reference)
    made = target()
    if not callable(made):
        got = "None" if made is None else f"an object of {type(made).__name__}"
        what = "an object that can be called" if inspect.isclass(target) else "a function"
        raise PyTritonValidationError(f"Expected {reference} to make {what}, got {got}")
    return made


def check_constructor(kind: type, reference: Reference) -> None:
    """Refuse a class whose objects cannot be made without arguments."""
    try:
        signature = inspect.signature(kind)
    except (TypeError, ValueError):
        return
    try:
        signature.bind()
    except TypeError as error:
        raise PyTritonValidationError(
            f"Expected a class that is constructed without arguments, got {reference}{signature}: "
            f"{error}. Give defaults, or write a factory: a function without arguments that "
            "returns an object of it."
        ) from None


def import_paths() -> list[str]:
    """Returns where this process finds modules, other than installed ones: by this, others can."""
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None)
    candidates = [*sys.path, str(Path.cwd())]
    if script is not None:
        candidates.insert(0, str(Path(script).resolve().parent))
    installed = tuple(_installed_folders())
    paths = (str(Path(path or ".").resolve()) for path in candidates)
    return list(dict.fromkeys(path for path in paths if not _is_inside(path, installed)))


def add_import_paths(paths: Iterable[str]) -> None:
    """Search these folders for modules, too, after all others, as far as they exist here."""
    sys.path.extend(path for path in paths if path not in sys.path and Path(path).is_dir())


def _installed_folders() -> Sequence[str]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_paths()[name] for name in names]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    # An environment has the library of the Python that it was made of.
    folders.append(str(Path(os.__file__).parent))
    return [str(Path(folder).resolve()) for folder in folders]


def _is_inside(path: str, folders: Iterable[str]) -> bool:
    # Files named *.pth may add the packages of other environments.
    return path.endswith((".zip", "site-packages", "dist-packages")) or any(
        path == each or path.startswith(each + os.sep) for each in folders
    )


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
