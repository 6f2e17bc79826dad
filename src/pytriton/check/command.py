# SPDX-License-Identifier: Apache-2.0
"""The commands of `pytriton`: what each looks at, and where its logs and its report are left."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from pytriton.check.environment import environment_sections, installed_packages
from pytriton.check.monitoring import DEFAULT_LOG_FORMAT
from pytriton.check.report import Section, failures
from pytriton.check.serving import example_add_sub, example_add_sub_script

logger = logging.getLogger(__name__)

TEMPORARY_PREFIX = "pytriton_workspace_"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a command found, and where it lies."""

    sections: tuple[Section, ...]
    workspace: pathlib.Path | None  # None where it was temporary and is packed up
    archive: pathlib.Path | None

    @property
    def is_ok(self) -> bool:
        """Whether nothing failed."""
        return not failures(self.sections)

    def to_text(self) -> str:
        """The last lines for a person."""
        count = len(failures(self.sections))
        lines = ["Everything works." if self.is_ok else f"{count} of the checks failed, see above."]
        lines += [f"Report and logs: {path}" for path in (self.workspace, self.archive) if path]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The whole outcome for a machine."""
        return {
            "pytriton": metadata.version("pytriton"),
            "ok": self.is_ok,
            "sections": [section.to_json() for section in self.sections],
            "workspace": self.workspace and str(self.workspace),
            "archive": self.archive and str(self.archive),
        }


def run_command(
    name: str, workspace: pathlib.Path | None, *, packs: bool, show: Callable[[Section], None]
) -> Outcome:
    """Run a command and keep its logs.

    Args:
        name: name of the command.
        workspace: folder to make for the logs; a temporary one where it is None.
        packs: whether to make a zip file of the folder: beside it, or here where it is temporary.
        show: called with each section as soon as it is there.

    Returns:
        What was found.

    Raises:
        FileExistsError: The workspace is there already.
        OSError: The logs or the zip file cannot be written.
    """
    is_temporary = workspace is None
    if workspace is None:
        folder = pathlib.Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
    else:
        folder = workspace.resolve()
        folder.mkdir(parents=True)
    sections = []
    for section in COMMANDS[name].run(folder):
        show(section)
        sections.append(section)
    text = "\n".join(section.to_text() for section in sections)
    (folder / "report.txt").write_text(text + "\n", encoding="utf-8")
    if not packs:
        return Outcome(tuple(sections), folder, None)
    target = pathlib.Path.cwd() / folder.name if is_temporary else folder
    archive = pathlib.Path(shutil.make_archive(str(target), "zip", folder))
    if is_temporary:
        shutil.rmtree(folder)
    return Outcome(tuple(sections), None if is_temporary else folder, archive)


def _environment(folder: pathlib.Path) -> Iterator[Section]:
    with _logged(folder / "env_log.txt"):
        (folder / "packages.txt").write_text(installed_packages() + "\n", encoding="utf-8")
        for section in environment_sections():
            yield _recorded(section)


def _add_sub(folder: pathlib.Path) -> Iterator[Section]:
    with _logged(folder / "example_add_sub_log.txt"):
        yield _recorded(example_add_sub(folder))


def _add_sub_script(folder: pathlib.Path) -> Iterator[Section]:
    with _logged(folder / "example_add_sub_script_log.txt"):
        yield _recorded(example_add_sub_script(folder))


def _examples(folder: pathlib.Path) -> Iterator[Section]:
    yield from _add_sub(_made(folder / "example_add_sub"))
    yield from _add_sub_script(_made(folder / "example_add_sub_script"))


def _check(folder: pathlib.Path) -> Iterator[Section]:
    yield from _environment(_made(folder / "env"))
    yield from _examples(_made(folder / "examples"))


def _recorded(section: Section) -> Section:
    logger.info("%s", section.to_text())
    return section


def _made(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir()
    return folder


@contextlib.contextmanager
def _logged(path: pathlib.Path) -> Iterator[None]:
    """Write everything that is logged meanwhile to a file."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(DEFAULT_LOG_FORMAT))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()


@dataclasses.dataclass(frozen=True, slots=True)
class Command:
    """What a name on the command line stands for."""

    help: str
    run: Callable[[pathlib.Path], Iterator[Section]]


COMMANDS = {
    "check": Command("env, then examples; what is done without a name", _check),
    "env": Command("report on this machine, its Python and its packages", _environment),
    "example-add-sub": Command("serve a model from this process and ask it", _add_sub),
    "example-add-sub-script": Command("the same with the server in a script", _add_sub_script),
    "examples": Command("both examples", _examples),
}
