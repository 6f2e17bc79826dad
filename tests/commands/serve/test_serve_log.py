# SPDX-License-Identifier: Apache-2.0
"""`pytriton serve`: the log of the page has what models print and raise, also after a reload."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import pytest

from tests.commands.serve.serving import FREE_PORTS, TIMEOUT_S, serving
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.e2e

SOURCE = """
def scale(x: float) -> float:
    print("WORD", x)
    if x < 0:
        raise ValueError(f"{x} is too small")
    return x
"""


def write(folder, word="", source=SOURCE):
    """Replace the code in one step: nobody sees a file that is empty for a moment."""
    part = folder.with_name(f"{folder.name}.part")
    part.write_text(source.replace("WORD", word))
    part.replace(folder / "code.py")


def read_log(server, **wanted):
    """The texts of the log, which the link to the page opens."""
    (page,) = re.findall(r"^  page +(\S+)$", "\n".join(server.seen), re.MULTILINE)
    url, _, token = page.partition("#token=")
    query = "&".join(f"{name}={value}" for name, value in wanted.items())
    headers = {"triton-access-token": token}
    request = urllib.request.Request(f"{url}page/api/log?{query}", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return [line["text"] for line in json.load(answer)["lines"]]


def fail(server):
    with pytest.raises(urllib.error.HTTPError):
        server.ask("scale", x=-1)


@pytest.mark.parametrize("front_ends", ["0", "2"])
def test_log_has_prints_failures_and_the_start_of_the_server(tmp_path, front_ends):
    write(tmp_path, "scaling")
    variables = {"PYTRITON_FRONTEND_PROCESSES": front_ends}
    with serving("code.py", *FREE_PORTS, cwd=tmp_path, **variables) as server:
        server.started()
        server.ask("scale", x=2)
        fail(server)

        assert eventually(lambda: len(read_log(server, model="scale")) == 3)
        first, second, failure = read_log(server, model="scale")
        assert (first, second) == ("scaling 2.0", "scaling -1.0")
        assert failure.startswith("model 'scale': ValueError: -1.0 is too small at code.py:5 in")
        assert any("Started HTTPService" in text for text in read_log(server))
        server.wait_for("ValueError: -1.0 is too small")  # also on the terminal


def test_log_goes_on_with_the_new_code(tmp_path):
    write(tmp_path, "old")
    with serving("code.py", "--reload", *FREE_PORTS, cwd=tmp_path) as server:
        server.started()
        server.ask("scale", x=1)
        assert eventually(lambda: "old 1.0" in read_log(server, model="scale"))
        write(tmp_path, "new")
        server.wait_for("Serving the new code")
        server.ask("scale", x=2)

        assert eventually(lambda: "new 2.0" in read_log(server, model="scale"))
        assert "old 1.0" in read_log(server, model="scale")
        assert "Serving the new code: scale" in read_log(server)
        write(tmp_path, source="import nothing_like_it")
        server.wait_for("The new code cannot be served")
        assert eventually(lambda: read_log(server, level="ERROR"))
        (failure,) = read_log(server, level="ERROR")
        assert failure.startswith("The code cannot be served\n")
        assert "No module named 'nothing_like_it'" in failure
