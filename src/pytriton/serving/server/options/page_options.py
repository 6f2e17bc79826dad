# SPDX-License-Identifier: Apache-2.0
"""The settings of the page on the metrics port."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pytriton.base.security import TRITON_ACCESS_HEADER
from pytriton.serving.server.api.authorization import RestrictedGroup
from pytriton.serving.server.options.flags import Flags, bad_value

PAGE_TOKEN_VARIABLE = "PYTRITON_PAGE_TOKEN"  # noqa: S105  the name of a variable


class PageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there is a page, and the token for its log and its actions."""

    allow: bool = True
    token: str = ""  # a secret: it must appear in no log; empty: nobody has these rights

    def __repr__(self) -> str:
        return f"PageOptions(allow={self.allow}, token={'<hidden>' if self.token else 'None'})"


def read_page_options(
    flags: Flags, variables: Mapping[str, str], restricted: Iterable[RestrictedGroup]
) -> PageOptions:
    """Read the settings of the page.

    Args:
        flags: The flags.
        variables: Those of the environment. A token there is seen by fewer people than one on the
            command line.
        restricted: The restricted APIs of HTTP. Their access token is that of the page, too, if it
            has none of its own.
    """
    token = flags.value("page_token") or variables.get(PAGE_TOKEN_VARIABLE, "")
    if not token:
        headers = {group.header.lower(): group.value for group in restricted}
        token = headers.get(TRITON_ACCESS_HEADER, "")
    elif not (token.isascii() and token.isprintable()):  # it travels in a header
        raise bad_value("page_token", "ASCII characters", "others")
    return PageOptions(**flags.record("page"), token=token)
