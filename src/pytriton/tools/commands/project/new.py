# SPDX-License-Identifier: Apache-2.0
"""`pytriton new`: writes a small project that runs, from the templates of this package.

A template is a file whose name ends with `.template`. Words such as `__project__` in its name and
its text are replaced; there is no other rule.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from pytriton import __version__
from pytriton.utils.option_parser import OptionParser

TEMPLATES = pathlib.Path(__file__).with_name("templates")
_SUFFIX = ".template"
_COMMON = "common"  # the folder of files that every project has
_MAX_NAME = 50  # characters, as names of releases in the chart
_NAME = re.compile(r"[a-z](?:-?[a-z0-9])*")
# A project cannot have the name of a package that it needs.
_TAKEN = frozenset({"numpy", "pillow", "pytest", "pytriton", "tritonclient"})


class NewProjectError(Exception):
    """The project cannot be written; the text says what was expected and what was found."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of project: its folder of templates, and what they have in common with others."""

    name: str
    about: str  # for the list of kinds
    description: str  # a sentence of the project about itself
    start: str  # the command that serves it
    serves: str = 'serve = "service.py"'  # the line of `[tool.pytriton]`
    packages: tuple[str, ...] = ()  # beside pytriton


_SERVE = "pytriton serve service.py --reload"
KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "text",
            "a class that labels a text, with outputs from a dataclass",
            "Says whether a text is positive or negative.",
            _SERVE,
        ),
        Kind(
            "image",
            "a class that takes the bytes of a picture",
            "Describes pictures: size, brightness and main colour.",
            _SERVE,
            packages=("numpy>=1.25", "pillow>=10.0"),
        ),
        Kind(
            "chat",
            "a generator that streams answers to OpenAI's clients",
            "A chat model for OpenAI's clients.",
            _SERVE,
        ),
        Kind(
            "embeddings",
            "a function that turns batches of texts into vectors, for OpenAI's clients",
            "Turns texts into vectors, for OpenAI's clients and for search.",
            _SERVE,
            packages=("numpy>=1.25",),
        ),
        Kind(
            "repository",
            "a model repository with config.pbtxt and model.py, as Triton has it",
            "Scales rows of numbers.",
            "tritonserver --model-repository=models",
            serves='repository = "models"',
            packages=("numpy>=1.25",),
        ),
    )
}


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Write a project, or list the kinds of projects."""
    parser = _parser()
    options = parser.parse_args(list(arguments))
    if options.list:
        show(kinds_text())
        return 0
    try:
        place = options.name or _asked("Name of the project: ", parser, "NAME")
        folder = pathlib.Path(place)
        check_name(folder.resolve().name)
        kind = KINDS[options.kind] if options.kind else _asked_kind(parser, show)
        written = write_project(folder, kind)
    except NewProjectError as error:
        complain(str(error))
        return 1
    except EOFError:
        complain("Nothing was written: the input ended.")
        return 1
    show(_next_steps(folder, kind, written))
    return 0


def check_name(name: str) -> None:
    """Refuse a name that Python packages, images or Kubernetes would refuse.

    Raises:
        NewProjectError: It is refused.
    """
    if name in _TAKEN:
        raise NewProjectError(
            f"Expected a name of your own, got {name!r}, which is a package that it needs. "
            f"Try {name}-service."
        )
    if _NAME.fullmatch(name) and len(name) <= _MAX_NAME:
        return
    near = _valid_name(name)
    hint = f" Try {near}." if near else ""
    raise NewProjectError(
        f"Expected a name of lower-case letters, digits and single hyphens, which begins with a "
        f"letter and has at most {_MAX_NAME} characters, got {name!r}.{hint}"
    )


def _valid_name(name: str) -> str:
    """Returns the nearest valid name, or an empty text if nothing of it is left."""
    words = re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower())
    return "-".join(words).lstrip("0123456789-")[:_MAX_NAME].rstrip("-")


def write_project(folder: pathlib.Path, kind: Kind) -> list[pathlib.Path]:
    """Write all files of a project into a new or empty folder; returns their paths inside of it.

    Raises:
        NewProjectError: There is something already, or the folder cannot be written.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise NewProjectError(
            f"Expected a new folder, but {folder} has files. Nothing was written."
        )
    if folder.exists() and not folder.is_dir():
        raise NewProjectError(
            f"Expected a new folder, but {folder} is a file. Nothing was written."
        )
    words = words_of(folder.resolve().name, kind)
    written: list[pathlib.Path] = []
    try:
        for name, text in sorted(_templates(kind)):
            path = pathlib.Path(replaced(name, words))
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as file:  # never over something else
                file.write(replaced(text, words))
            written.append(path)
    except OSError as error:
        raise NewProjectError(f"{folder} cannot be written: {error}") from error
    return written


def replaced(text: str, words: dict[str, str]) -> str:
    """Returns a template with `__word__` replaced for each of these words."""
    return re.sub(r"__([a-z]+)__", lambda match: words.get(match[1], match[0]), text)


def words_of(name: str, kind: Kind) -> dict[str, str]:
    """Returns what the words of the templates stand for."""
    version = ".".join(__version__.split(".")[:2])
    packages = (f"pytriton>={version}", *kind.packages)
    return {
        "project": name,
        "model": name.replace("-", "_"),
        "description": kind.description,
        "dependencies": ", ".join(f'"{package}"' for package in packages),
        "serves": kind.serves,
    }


def _templates(kind: Kind) -> Iterator[tuple[str, str]]:
    """The paths and texts of the templates of a kind."""
    for folder in (TEMPLATES / _COMMON, TEMPLATES / kind.name):
        for path in folder.rglob(f"*{_SUFFIX}"):
            name = path.relative_to(folder).as_posix().removesuffix(_SUFFIX)
            # A file of this name here would be obeyed by the tools that build this package.
            yield ".gitignore" if name == "gitignore" else name, path.read_text(encoding="utf-8")


def kinds_text() -> str:
    """Returns the kinds of projects, a line each."""
    width = max(map(len, KINDS))
    return "\n".join(f"{kind.name:<{width}}  {kind.about}" for kind in KINDS.values())


def _next_steps(folder: pathlib.Path, kind: Kind, written: Sequence[pathlib.Path]) -> str:
    lines = [f"{folder} is a new project of the kind {kind.name}:"]
    lines += [f"  {path.as_posix()}" for path in written]
    lines += [
        "",
        "Next:",
        f"  cd {folder}",
        *(f'  pip install "{package}"' for package in kind.packages if not _is_installed(package)),
        f"  {kind.start}",
        "README.md says how to ask it, test it and deploy it.",
    ]
    return "\n".join(lines)


def _is_installed(requirement: str) -> bool:
    name = requirement.partition(">")[0]
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _asked(question: str, parser: OptionParser, what: str) -> str:
    """Returns what a person types; off a terminal, the command line has to say it."""
    if not sys.stdin.isatty():
        parser.error(f"expected {what}")
    return input(question).strip()


def _asked_kind(parser: OptionParser, show: Callable[[str], None]) -> Kind:
    names = ", ".join(KINDS)
    if not sys.stdin.isatty():
        parser.error(f"expected --kind with one of {names}")
    show(kinds_text())
    answer = _asked(f"Kind of project [{next(iter(KINDS))}]: ", parser, "--kind")
    name = answer or next(iter(KINDS))
    if name not in KINDS:
        raise NewProjectError(f"Expected one of {names}, got {name!r}. Nothing was written.")
    return KINDS[name]


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="pytriton new",
        description="Write a small project that runs: a model, a test, a README, and a "
        "pyproject.toml for `pytriton package`. Nothing is overwritten or downloaded.",
        epilog="On a terminal, it asks for what is left out.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the new folder")
    parser.add_argument("--kind", choices=tuple(KINDS), help="what the project serves")
    parser.add_argument("--list", action="store_true", help="list the kinds, and write nothing")
    return parser
