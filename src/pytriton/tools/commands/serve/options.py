# SPDX-License-Identifier: Apache-2.0
"""The options of `pytriton serve`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from pytriton.base.security import TOKEN_VARIABLE
from pytriton.base.settings import SETTINGS, ServerSetting, Takes
from pytriton.base.triton_config import ENVIRONMENT_PREFIX, TritonConfig
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config.model_config import ModelConfig
from pytriton.serving.server.options.flags import Flags
from pytriton.tools.commands.option_values import whole_number
from pytriton.tools.commands.serve.loading import ServeTarget, TargetError
from pytriton.utils.option_parser import OptionParser, closed

_PORTS = ("http-port", "grpc-port", "metrics-port")
# What the help shows of the other settings, by group; the rest is in the page of `tritonserver`.
_SHOWN = ("Logging", "Browsers", "Limits", "Access", "TLS")
_BESIDES = ("log-verbose",)  # --log-level says the same
_ABOUT_TRITON = re.compile(r" [^.]*\boptions? of Triton\b[^.]*\.")
_FIELDS = {field.name: field.type for field in dataclasses.fields(TritonConfig)}
_LOG_LEVELS = ("warning", "info", "verbose")
_DESCRIPTION = """\
Serve Python functions over HTTP and gRPC. Their type annotations say the inputs and outputs:

  def add(a: float, b: float = 1.0) -> float:
      return a + b

FILE.py serves all models that it declares with @model of pytriton.decorators, or else all its
functions and classes with annotations; FILE.py:add serves one of them."""
_EPILOG = """\
examples:
  pytriton serve models.py --reload
  pytriton serve models.py:Classifier --max-batch-size 16 --batch-delay-us 2000 --instances 2
  pytriton serve package.module:function --host 0.0.0.0 --auth-config auth.toml

The other options of `tritonserver` that are fields of TritonConfig are options here, too. What is
not given is taken from variables such as PREFIXTLS_CERT.

exit code: 0 after SIGTERM, 1 if it cannot be served, 2 if the command line is wrong, 130 after
Ctrl-C""".replace("PREFIX", ENVIRONMENT_PREFIX)


@dataclasses.dataclass(frozen=True)
class ServeOptions:
    """The options of the command line; None for those that are not given."""

    targets: tuple[ServeTarget, ...]
    host: str = "127.0.0.1"
    name: str | None = None
    max_batch_size: int | None = None
    batch_delay_us: int | None = None
    instances: int | None = None
    reload: bool = False
    access_token: str | None = None
    log_level: str = "warning"
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)  # of `TritonConfig`

    def server_config(self) -> TritonConfig:
        """Returns the settings of the server; the environment says what is left out."""
        settings = dict.fromkeys(("http_address", "grpc_address", "metrics_address"), self.host)
        if self.log_level == "verbose":
            settings["log_verbose"] = "1"
        return TritonConfig.from_dict(settings | self.settings)

    def model_config(self, config: ModelConfig) -> ModelConfig:
        """Returns the settings of a model with those of the command line."""
        if self.max_batch_size is not None:
            config = dataclasses.replace(config, batching=True, max_batch_size=self.max_batch_size)
        if self.batch_delay_us is None or config.batcher is None or not config.batching:
            return config
        batcher = dataclasses.replace(
            config.batcher, max_queue_delay_microseconds=self.batch_delay_us
        )
        return dataclasses.replace(config, batcher=batcher)

    def to_json(self) -> dict[str, Any]:
        """Returns a document for a process that serves the same."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ServeOptions:
        """Read what `to_json` has made."""
        targets = tuple(
            ServeTarget(each["source"], tuple(each["objects"])) for each in document["targets"]
        )
        return cls(**(document | {"targets": targets}))


class OptionsError(Exception):
    """The command line is wrong; the text says what was expected and what was given."""


class _CheckingParser(OptionParser):
    """A parser that raises OptionsError where others end the program."""

    def error(self, message: str) -> NoReturn:
        raise OptionsError(closed(message))


def read_options(arguments: Sequence[str], *, ends: bool = True) -> ServeOptions:
    """Read the command line; a wrong one ends the program with exit code 2.

    Raises:
        OptionsError: It is wrong, and `ends` is False.
    """
    parser = _parser(OptionParser if ends else _CheckingParser)
    values = vars(parser.parse_args(arguments))
    try:
        values["targets"] = tuple(ServeTarget.parse(text) for text in values["targets"])
    except TargetError as error:
        parser.error(str(error))
    settings = {name: values.pop(name) for name in _setting_names() & values.keys()}
    values["settings"] = {name: each for name, each in settings.items() if each is not None}
    objects = sum(max(1, len(target.objects)) for target in values["targets"])
    if values["name"] is not None and objects > 1:
        parser.error(f"--name is for one model, got {objects}")
    return ServeOptions(**values)


def _parser(kind: type[OptionParser]) -> OptionParser:
    parser = kind(
        prog="pytriton serve",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("targets", nargs="+", metavar="FILE.py[:object]", help="what to serve; also package.module")
    add("--reload", action="store_true", help="serve the new code when a file changes")
    _add_model_options(parser)
    _add_server_options(parser)
    _add_settings(parser)
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    models = parser.add_argument_group("models").add_argument
    models("--name", help="name of the model; default is that of the function")
    models(
        "--max-batch-size",
        type=whole_number(1),
        metavar="ROWS",
        help="pass whole batches of at most so many rows to the functions",
    )
    models(
        "--batch-delay-us",
        type=whole_number(0),
        metavar="MICROSECONDS",
        help="how long a request may wait for others to join its batch",
    )
    models(
        "--instances",
        type=whole_number(1),
        metavar="COUNT",
        help="how many calls run at the same time; a class gets an object for each",
    )


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server").add_argument
    server(
        "--host",
        default="127.0.0.1",
        help="address to listen on; 0.0.0.0 for other machines, too; default %(default)s",
    )
    server(
        "--access-token",
        metavar="TOKEN",
        default=os.environ.get(TOKEN_VARIABLE) or None,
        help="what the page's actions and administration need; default is that of the variable "
        f"{TOKEN_VARIABLE}, or a random one",
    )
    server(
        "--log-level",
        choices=_LOG_LEVELS,
        default="warning",
        help="what the server logs; default %(default)s",
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the settings of `TritonConfig` by their table, which explains them."""
    for group, settings in SETTINGS.items():
        add = parser.add_argument_group(group).add_argument
        for setting in settings:
            if not _is_option(setting):
                continue
            is_port = setting.name in _PORTS
            is_shown = is_port or (group in _SHOWN and setting.name not in _BESIDES)
            about = _ABOUT_TRITON.sub("", setting.help).replace("%", "%%")
            default = f" Default: {setting.default}." if setting.default else ""
            add(
                f"--{setting.name}",
                help=f"{about}{default}" if is_shown else argparse.SUPPRESS,
                **_form_of(setting),
            )


def _is_option(setting: ServerSetting) -> bool:
    return setting.in_config and setting.has_effect


def _setting_names() -> set[str]:
    return {each.key for group in SETTINGS.values() for each in group if _is_option(each)}


def _form_of(setting: ServerSetting) -> dict[str, Any]:
    """Returns how argparse reads the values of a setting; None is no value."""
    if setting.takes is Takes.NOTHING:
        return {"action": "store_true", "default": None}
    form: dict[str, Any] = {"metavar": setting.value}
    if setting.choices:
        return {"choices": setting.choices}
    if setting.is_repeatable and str(_FIELDS[setting.key]).startswith("list"):
        form["action"] = "append"
    elif setting.takes is Takes.INTEGER:
        form["type"] = whole_number(*setting.range)
    elif setting.takes in (Takes.BOOLEAN, Takes.NUMBER, Takes.PATTERN):
        form["type"] = functools.partial(_checked, setting)
    return form


def _checked(setting: ServerSetting, text: str) -> str:
    try:
        Flags({setting.key: text}).given(setting)
    except PyTritonValidationError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text
