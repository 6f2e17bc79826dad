# SPDX-License-Identifier: Apache-2.0
"""`pytriton package`: writes what runs a project elsewhere.

A Dockerfile with a list of pinned packages, a compose file, and the Helm chart with its values, all
from the project's pyproject.toml and this environment. No container is built or started here.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from packaging.utils import canonicalize_name

from pytriton.base.security import TOKEN_VARIABLE
from pytriton.base.settings import BY_KEY, Takes
from pytriton.exceptions import PyTritonError
from pytriton.serving.server.command.arguments import parse
from pytriton.tools.commands.project.lock import (
    CHART_IN_PACKAGE,
    CHART_IN_REPOSITORY,
    OURS,
    LockError,
    Pin,
    lock_text,
    pins_of,
    wheel_bytes,
    wheel_name,
)
from pytriton.tools.commands.project.new import TEMPLATES, replaced
from pytriton.tools.commands.serve.loading import ServeTarget, TargetError
from pytriton.tools.commands.serve.options import OptionsError, read_options
from pytriton.utils.option_parser import OptionParser

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The newest images of each Python that are known to exist.
_BASES = {
    "3.10": "python:3.10.19-slim-bookworm",
    "3.11": "python:3.11.14-slim-bookworm",
    "3.12": "python:3.12.12-slim-bookworm",
    "3.13": "python:3.13.9-slim-bookworm",
    "3.14": "python:3.14.0-slim-bookworm",
}
_SETTINGS = ("serve", "repository", "options", "include")
# As packages have them; images take the same characters, but for a `+`.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_OUTPUT = re.compile(r"[\w./-]+")  # also of files in the image: no character is a pattern there
_PRIVATE_KEYS = ("tls_key", "grpc_server_key")
_WRITTEN = ("log_file", "access_log")
# What the image does not miss: it is not told that they are left out.
_NO_CODE = ("*.md", "LICENSE*", "pyproject.toml", "uv.lock", "poetry.lock", "requirements*.txt")
_NOT_SENT = re.compile(r"\..*|__pycache__|tests|build|dist|venv|.*\.(egg-info|pyc|pyo)")
_SUFFIX = ".template"
_LOCK = "lock"
_MOST_NAMES = 5
_APP = "/app"  # the folder of the project in the image
_EXAMPLE = '[tool.pytriton]\nserve = "service.py"  # or: repository = "models"'


class PackageError(Exception):
    """The project cannot be packaged; the text says what was expected and what was found."""


@dataclasses.dataclass(frozen=True, slots=True)
class Project:
    """What a pyproject.toml says about a project."""

    name: str
    version: str
    dependencies: tuple[str, ...]
    targets: tuple[str, ...]  # what `pytriton serve` serves; empty for a repository
    repository: str  # the folder of a model repository; empty for targets
    options: tuple[str, ...]  # further ones for the server
    include: tuple[str, ...] = ()  # folders that the image has besides
    files: tuple[str, ...] = ()  # files that it has besides, whatever they are

    @property
    def tag(self) -> str:
        """The version as the tag of an image, which has fewer characters."""
        return self.version.replace("+", "-")

    def entrypoint(self) -> list[str]:
        """Returns the program that serves the project in its image."""
        return ["pytriton", "serve"] if self.targets else ["tritonserver"]

    def arguments(self) -> list[str]:
        """Returns the arguments of the program."""
        if self.targets:
            return [*self.targets, "--host", "0.0.0.0", "--log-level", "info", *self.options]
        return [f"--model-repository={_APP}/{self.repository}", *self.options]


@dataclasses.dataclass(slots=True)
class Written:
    """What became of the files: their paths below the folder."""

    changed: list[str] = dataclasses.field(default_factory=list)
    kept: list[str] = dataclasses.field(default_factory=list)


def run(
    arguments: Sequence[str], show: Callable[[str], None], complain: Callable[[str], None]
) -> int:
    """Write the files that run a project in a container, with compose and with Helm."""
    options = _parser().parse_args(list(arguments))
    folder = pathlib.Path(options.project)
    try:
        project = read_project(folder)
        output = _output(folder, options.output)
        pins = pins_of([OURS, *project.dependencies])
        files = deployment_files(project, output, options.image or project.name, options.base)
        written = Written()
        _write_all(folder / output, files, written, overwrite=options.force)
        _write_lock(folder / output / _LOCK, pins, written)
    except (PackageError, LockError) as error:
        complain(str(error))
        return 1
    except OSError as error:
        complain(f"{folder} cannot be packaged: {error}")
        return 1
    for pin in pins:
        if pin.is_of_special_index:
            complain(
                f"{pin.name} {pin.version} is not in the usual index: build with "
                "--build-arg PIP_EXTRA_INDEX_URL=ADDRESS."
            )
    show(_next_steps(project, folder, output, options.image or project.name, pins, written))
    return 0


def read_project(folder: pathlib.Path) -> Project:
    """Read the pyproject.toml of a project.

    Raises:
        PackageError: There is none, or it does not say what is served.
    """
    path = folder / "pyproject.toml"
    if not path.is_file():
        raise PackageError(
            f"Expected the folder of a project, but {path} does not exist. "
            "`pytriton new` writes a project."
        )
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PackageError(f"{path} cannot be read: {error}") from error
    about = document.get("project", {})
    _check_texts(about, path)
    settings = document.get("tool", {}).get("pytriton", {})
    project = Project(
        canonicalize_name(about["name"]),
        about["version"],
        tuple(about.get("dependencies", ())),
        *_served(settings, path),
    )
    _check_files(folder, project)
    named = (*project.include, *_files_of_options(folder, project))
    return dataclasses.replace(
        project,
        include=tuple(name for name in named if (folder / name).is_dir()),
        files=tuple(name for name in named if not (folder / name).is_dir()),
    )


def _check_texts(about: dict[str, Any], path: pathlib.Path) -> None:
    """Refuse a name and a version that an image cannot have: both are in all files."""
    for name, form, example in (("name", _NAME, "my-shop"), ("version", _VERSION, "1.0.0")):
        value = about.get(name)
        if not isinstance(value, str):
            raise PackageError(f"Expected a {name} in [project] of {path}, got none.")
        if not form.fullmatch(value):
            raise PackageError(
                f"Expected a {name} such as {example} in [project] of {path}, got {value!r}."
            )


def _served(
    settings: dict[str, Any], path: pathlib.Path
) -> tuple[tuple[str, ...], str, tuple[str, ...], tuple[str, ...]]:
    """Returns the targets, the repository, the options and the files that the settings name."""
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise PackageError(
            f"Expected {', '.join(_SETTINGS)} in [tool.pytriton] of {path}, got {unknown[0]}."
        )
    if ("serve" in settings) == ("repository" in settings):
        raise PackageError(
            f"Expected either serve or repository in [tool.pytriton] of {path}. For "
            f"example:\n{_EXAMPLE}"
        )
    targets = settings.get("serve", ())
    targets = (targets,) if isinstance(targets, str) else tuple(targets)
    repository, options = settings.get("repository", ""), tuple(settings.get("options", ()))
    include = tuple(settings.get("include", ()))
    if not all(isinstance(each, str) for each in (*targets, repository, *options, *include)):
        raise PackageError(f"Expected texts in [tool.pytriton] of {path}, got {settings}.")
    return targets, repository, options, include


def _check_files(folder: pathlib.Path, project: Project) -> None:
    """Refuse a project that names something that it does not have."""
    for text in project.targets:
        try:
            target = ServeTarget.parse(text)
        except TargetError as error:
            raise PackageError(str(error)) from error
        if target.is_file and not _is_inside(folder, target.source).is_file():
            raise PackageError(f"Expected the file {folder / target.source}, which does not exist.")
    if project.repository:
        models = _is_inside(folder, project.repository)
        if not any(path.is_dir() for path in (models.iterdir() if models.is_dir() else ())):
            raise PackageError(f"Expected a folder with models, but {models} has none.")
    for name in project.include:
        if not _is_inside(folder, name).exists():
            raise PackageError(f"Expected {folder / name}, which include names.")
        if not _OUTPUT.fullmatch(name):
            raise PackageError(
                f"Expected a path of letters, digits, dots and hyphens in include, got {name!r}."
            )


def _files_of_options(folder: pathlib.Path, project: Project) -> tuple[str, ...]:
    """Returns the files of the project that its options name; refuses options that are wrong."""
    try:
        settings = (
            read_options(project.arguments(), ends=False).settings
            if project.targets
            else parse(project.arguments()).values
        )
    except (OptionsError, PyTritonError) as error:
        raise PackageError(f"The options of [tool.pytriton] are wrong: {error}") from error
    files = []
    for key, value in settings.items():
        setting = BY_KEY[key]
        if setting.takes is not Takes.PATH or setting.is_repeatable or key in _WRITTEN:
            continue
        path = pathlib.PurePosixPath(_APP, value)
        if not path.is_relative_to(_APP):  # it is mounted where the image runs
            continue
        name = str(path.relative_to(_APP))
        if key in _PRIVATE_KEYS:
            raise PackageError(
                f"Expected an absolute path for --{setting.name}, which is mounted where the image "
                f"runs, such as /etc/pytriton/tls/tls.key: whoever has an image has all that is in "
                f"it. Got {value}."
            )
        if not _is_inside(folder, name).exists() or not _OUTPUT.fullmatch(name):
            raise PackageError(
                f"Expected --{setting.name} to name a file of the project, or an absolute path "
                f"where it is mounted, such as /etc/pytriton/policy/auth.toml. Got {value}."
            )
        files.append(name)
    return tuple(files)


def _is_inside(folder: pathlib.Path, name: str) -> pathlib.Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise PackageError(f"Expected a path inside of {folder}, got {name}.")
    return path


def _output(folder: pathlib.Path, name: str) -> str:
    """Returns the folder of the files, relative to that of the project."""
    place = (folder / name).resolve()
    if not place.is_relative_to(folder.resolve()) or place == folder.resolve():
        raise PackageError(
            f"Expected a folder inside of {folder}, because the image is built there, got {name}."
        )
    output = place.relative_to(folder.resolve()).as_posix()
    if not _OUTPUT.fullmatch(output):  # it is a word in the Dockerfile
        raise PackageError(f"Expected a folder of letters, digits, dots and hyphens, got {name!r}.")
    return output


def default_base() -> str:
    """Returns the image of this Python, whose packages are pinned."""
    version = ".".join(map(str, sys.version_info[:2]))
    return _BASES.get(version, f"python:{version}-slim")


def deployment_files(project: Project, output: str, image: str, base: str) -> dict[str, bytes]:
    """Returns the files for a project by their paths below the output folder, without the lock."""
    words = {
        "project": project.name,
        "image": image,
        "tag": project.tag,
        "base": base,
        "output": output,
        "context": os.path.relpath(".", output).replace(os.sep, "/"),
        "entrypoint": json.dumps(project.entrypoint()),
        "command": json.dumps(project.arguments()),
        "token": TOKEN_VARIABLE if project.targets else "PYTRITON_PAGE_TOKEN",
        "served": _served_values(project),
        "sent": "\n".join(f"!{name}" for name in _sent(project)),
        "files": "\n".join(f"!{name}" for name in project.files),
    }
    folder = TEMPLATES / "deploy"
    files = {
        path.name.removesuffix(_SUFFIX): replaced(path.read_text(encoding="utf-8"), words).encode()
        for path in sorted(folder.glob(f"*{_SUFFIX}"))
    }
    chart = next(
        (place for place in (CHART_IN_PACKAGE, CHART_IN_REPOSITORY) if place.is_dir()), None
    )
    if chart is None:
        raise PackageError("This installation of pytriton has no chart. Install it again.")
    for path in sorted(chart.rglob("*")):
        if path.is_file():
            files[f"chart/{path.relative_to(chart).as_posix()}"] = path.read_bytes()
    return files


def _sent(project: Project) -> list[str]:
    """Returns the folders that reach the image, apart from secrets, as in an ignore file."""
    names = (*((project.repository,) if project.repository else ()), *project.include)
    return ["**" if name == "." else pathlib.PurePosixPath(name).as_posix() for name in names]


def left_out(folder: pathlib.Path, project: Project, output: str) -> list[str]:
    """Returns what of the project does not reach the image, though a program may read it.

    A folder stands for what is in it.
    """
    sent = {pathlib.PurePosixPath(name) for name in (*_sent(project), *project.files, output)}
    missing: dict[str, None] = {}
    for parent, folders, files in os.walk(folder):
        place = pathlib.PurePosixPath(pathlib.Path(parent).relative_to(folder).as_posix())
        folders[:] = sorted(
            each for each in folders if place / each not in sent and not _NOT_SENT.fullmatch(each)
        )
        for name in sorted(files):
            path = place / name
            is_code = name.endswith(".py") or any(path.match(each) for each in _NO_CODE)
            if not (is_code or path in sent or _NOT_SENT.fullmatch(name)):
                missing[path.parts[0] + ("/" if len(path.parts) > 1 else "")] = None
    return [] if pathlib.PurePosixPath("**") in sent else list(missing)


def _served_values(project: Project) -> str:
    """Returns the values of the chart that say what is served."""
    if project.targets:
        command = [*project.entrypoint(), *project.arguments()]
        return (
            "models:\n"
            "  # The image has the models.\n"
            '  claim: ""\n'
            f"command: {json.dumps(command)}\n"
            "# A pause before SIGTERM, in which the service forgets the server.\n"
            "exit:\n"
            "  preStopSeconds: 10\n"
            "  graceSeconds: 0"
        )
    return (
        "models:\n"
        "  # The image has the models.\n"
        '  claim: ""\n'
        f"  repositories: {json.dumps([f'{_APP}/{project.repository}'])}\n"
        f"options: {json.dumps(list(project.options))}"
    )


def _write_all(
    folder: pathlib.Path, files: dict[str, bytes], written: Written, *, overwrite: bool
) -> None:
    """Write files; those that somebody has changed are kept, unless they may be overwritten."""
    for name, content in files.items():
        path = folder / name
        if path.exists() and path.read_bytes() != content and not overwrite:
            written.kept.append(name)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        written.changed.append(name)


def _write_lock(folder: pathlib.Path, pins: Sequence[Pin], written: Written) -> None:
    """Write the list of packages and the wheels that it names; old wheels are removed."""
    files = {"requirements.txt": lock_text(pins).encode()}
    for pin in pins:
        if pin.is_local:
            name = wheel_name(importlib.metadata.distribution(pin.name))
            files[name] = wheel_bytes(pin.name)
    if folder.is_dir():
        for old in folder.glob("*.whl"):
            if old.name not in files:
                old.unlink()
    _write_all(folder, files, written, overwrite=True)


def _next_steps(
    project: Project,
    folder: pathlib.Path,
    output: str,
    image: str,
    pins: Sequence[Pin],
    written: Written,
) -> str:
    local = [f"{pin.name} {pin.version}" for pin in pins if pin.is_local]
    wheels = f", {', '.join(local)} as a wheel" if local else ""
    lines = [
        f"{folder / output} runs {project.name} {project.version}:",
        "  Dockerfile    the image, as user 10001",
        f"  lock          {len(pins)} packages of this environment{wheels}",
        "  compose.yaml  the image on this machine",
        "  values.yaml   the values of chart, for Kubernetes",
    ]
    lines += [
        f"Kept {name}, which differs from what would be written; --force writes it."
        for name in written.kept
    ]
    if missing := left_out(folder, project, output):
        more = ", …" if len(missing) > _MOST_NAMES else ""
        lines.append(
            f"Not in the image: {', '.join(missing[:_MOST_NAMES])}{more}. If the server needs it, "
            "name it in [tool.pytriton]: include = [...]"
        )
    lines += ["", "Next:"]
    if folder.resolve() != pathlib.Path.cwd():
        lines.append(f"  cd {folder}")
    lines += [
        f"  docker build -f {output}/Dockerfile -t {image}:{project.tag} .",
        f"  docker compose -f {output}/compose.yaml up",
        *([f"  docker push {image}:{project.tag}"] if "/" in image else []),
        f"  helm upgrade --install {project.name} {output}/chart --values {output}/values.yaml",
    ]
    if "/" not in image:
        lines.append(
            "A cluster needs the image in a registry: --image registry.example.com/NAME names it."
        )
    return "\n".join(lines)


def _parser() -> OptionParser:
    parser = OptionParser(
        prog="pytriton package",
        description="Write what runs a project elsewhere: a Dockerfile with the pinned packages of "
        "this environment, a compose file, and a Helm chart with values. [tool.pytriton] in its "
        "pyproject.toml says what is served; `pytriton new` writes such a project.",
        epilog="Nothing is downloaded, and no container is started. Files that you have changed "
        "are kept, unless there is --force; the list of packages is always written.",
    )
    add = parser.add_argument
    add(
        "project", nargs="?", default=".", metavar="PROJECT", help="its folder; default is this one"
    )
    add(
        "--output",
        default="deploy",
        metavar="FOLDER",
        help="where the files go, inside of the project; default %(default)s",
    )
    add(
        "--image",
        metavar="NAME",
        help="name of the image, with its registry; default is the name of the project",
    )
    add(
        "--base",
        default=default_base(),
        metavar="IMAGE",
        help="image with Python that it is built on; default %(default)s",
    )
    add("--force", action="store_true", help="overwrite files that you have changed")
    return parser
