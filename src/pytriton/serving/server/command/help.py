# SPDX-License-Identifier: Apache-2.0
"""The page that `tritonserver --help` shows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pytriton.base.settings import SETTINGS, Setting
from pytriton.utils.terminal import Colour, paint

USAGE = "Usage: tritonserver --model-repository=<path> [options]"

_INTRODUCTION = (
    "Serves the models of a repository over Triton's HTTP and gRPC protocols. A value follows its "
    "option after a space or '='. Booleans are true, on, 1, false, off or 0."
)
_EXAMPLES = (
    "tritonserver --model-repository=/models",
    "tritonserver --model-repository=/models --http-port=9000 --allow-grpc=false",
    "tritonserver --model-repository=/models --model-control-mode=explicit --load-model=resnet",
)
_INDENT = " " * 6
_WIDEST = 100


def help_page(width: int | None = None, *, is_coloured: bool = False) -> str:
    """Make the help page: all options by group.

    Args:
        width: the number of columns; by default the widest that is easy to read.
        is_coloured: whether to use the colours of a terminal.

    Returns:
        Lines of text.
    """
    width = max(40, min(width or _WIDEST, _WIDEST))
    return "\n".join(_lines(width, is_coloured)) + "\n"


def _lines(width: int, is_coloured: bool) -> Iterator[str]:
    def heading(text: str) -> str:
        return paint(text, Colour.BOLD) if is_coloured else text

    yield heading(USAGE)
    yield ""
    yield from textwrap.wrap(_INTRODUCTION, width)
    yield ""
    yield heading("Examples:")
    yield from (f"  {example}" for example in _EXAMPLES)
    for group, options in SETTINGS.items():
        yield ""
        yield heading(f"{group}:")
        for option in options:
            yield _title(option, is_coloured)
            yield from textwrap.wrap(
                _description(option),
                width,
                initial_indent=_INDENT,
                subsequent_indent=_INDENT,
                break_long_words=False,
                break_on_hyphens=False,
            )


def _title(option: Setting, is_coloured: bool) -> str:
    name = f"--{option.name}"
    rest = f" {option.value}" if option.value else ""
    rest += f"  (default {option.default})" if option.default else ""
    if is_coloured:
        name, rest = paint(name, Colour.CYAN), paint(rest, Colour.DIM)
    return f"  {name}{rest}"


def _description(option: Setting) -> str:
    sentences = [option.help]
    if option.instead:
        sentences.append(f"Use {option.instead} instead.")
    if not option.has_effect:
        sentences.append("Taken for compatibility, without effect here.")
    return " ".join(sentences)
