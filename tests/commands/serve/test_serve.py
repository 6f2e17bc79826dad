# SPDX-License-Identifier: Apache-2.0
"""`pytriton serve` with a file of all kinds of models, asked by curl and by clients."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import textwrap
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from rich.console import Console
from rich.text import Text

from pytriton.client import DecoupledModelClient, ModelClient
from tests.certificates import Authority
from tests.commands.serve.serving import FREE_PORTS, PROGRAM, TIMEOUT_S, serving
from tests.pictures import keep
from tests.snippets import snippets

REPOSITORY = pathlib.Path(__file__).parents[3]

pytestmark = pytest.mark.e2e

MODELS = """
    from __future__ import annotations

    import dataclasses
    from collections.abc import AsyncIterator, Iterator
    from typing import Annotated

    import numpy as np
    from numpy.typing import NDArray

    from pytriton.decorators import model


    @model
    def add(a: float, b: float = 2.0) -> float:
        return a + b


    @model(name="Scale", max_batch_size=8)
    def scale(x: Annotated[NDArray[np.float32], (3,)], factor: float) -> Annotated[
        NDArray[np.float32], (3,)
    ]:
        return x * factor[:, None]


    @model
    def words(text: str) -> Iterator[str]:
        yield from text.split()


    @model
    async def count(n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number


    @dataclasses.dataclass
    class Label:
        name: str
        scores: list[float]


    @model(instances=2)
    class Classifier:
        def __init__(self) -> None:
            self.names = ["cat", "dog"]

        def __call__(self, image: bytes, top: int = 1) -> Label:
            return Label(self.names[len(image) % 2], [float(top)])


    @model
    async def slow(a: bool) -> bool:
        return not a


    @model
    def wrong(a: float) -> int:
        return "text"
"""


HOLDING = """
import sys
import time


def hold(a: float) -> float:
    print("held", file=sys.stderr, flush=True)
    time.sleep(600)
    return a
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "models.py").write_text(textwrap.dedent(MODELS))
    return folder


@pytest.fixture(scope="module", params=["0", "1"], ids=["one process", "front end"])
def server(request, folder):
    with serving(
        "models.py", *FREE_PORTS, cwd=folder, PYTRITON_FRONTEND_PROCESSES=request.param
    ) as running:
        yield running.started()


def address_of(server, name):
    (line,) = [line for line in server.seen if line.startswith(f"  {name} ")]
    return line.split()[-1]


def test_models_are_announced_with_their_tensors(server):
    text = "\n".join(server.seen)

    assert "Serving 7 models" in text
    assert "add         a FP64 [1], b FP64 [1] (optional) -> output FP64 [1]" in text
    assert "words       text BYTES [1] -> a stream of output BYTES [1]" in text
    assert "\x1b" not in text


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_line_works_when_pasted(server):
    (line,) = [line for line in server.seen if line.startswith("  curl ")]
    done = subprocess.run(
        [*shlex.split(line), "--silent"], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout)["output"] == 3.0


def test_infer_line_works_when_pasted(server):
    (line,) = [line for line in server.seen if line.startswith("  pytriton infer ")]
    done = subprocess.run(
        [PROGRAM, *shlex.split(line)[1:], "--values"], capture_output=True, text=True, check=True
    )

    assert "3.0" in done.stdout


def test_link_to_the_page_has_the_token(server):
    page, _, token = address_of(server, "page").partition("#token=")

    assert page == address_of(server, "metrics").removesuffix("metrics")
    assert len(token) > 20


def test_every_kind_of_model_answers(server):
    assert server.answer("add", a=0.1, b=0.2) == 0.1 + 0.2
    assert server.answer("add", a=1) == 3.0
    assert server.answer("Scale", x=[1, 2, 3], factor=2) == [2.0, 4.0, 6.0]
    assert server.answer("slow", a=True) is False
    assert json.loads(server.ask("Classifier", image="abc"))["name"] == "dog"
    for model, members, outputs in (
        ("words", {"text": "one two"}, ["one", "two"]),
        ("count", {"n": 2}, [0, 1]),
    ):
        events = server.ask(model, "generate_stream", **members).split("\n\n")[:-1]
        assert [json.loads(event.removeprefix("data: "))["output"] for event in events] == outputs


def test_misspelt_input_is_refused_with_the_nearest(server):
    with pytest.raises(urllib.error.HTTPError) as refusal:
        server.ask("add", a=1, bb=2)

    assert refusal.value.code == 400
    assert json.load(refusal.value)["error"] == (
        "model 'add' has no input 'bb', did you mean 'b'? Its inputs are: a, b"
    )


def test_clients_ask_with_arrays(server):
    with ModelClient(address_of(server, "HTTP"), "Scale") as client:
        scaled = client.infer_batch(np.ones((2, 3), np.float32), np.array([[2.0], [3.0]]))
    with DecoupledModelClient(address_of(server, "gRPC"), "words") as client:
        streamed = [each["output"].tolist() for each in client.infer_sample(np.array([b"a b"]))]

    np.testing.assert_array_equal(scaled["output"], [[2, 2, 2], [3, 3, 3]])
    assert streamed == [[b"a"], [b"b"]]


@pytest.mark.parametrize(
    "module, name", [(tritonclient.http, "HTTP"), (tritonclient.grpc, "gRPC")], ids=["http", "grpc"]
)
def test_tritonclient_sees_the_inferred_tensors(server, module, name):
    with module.InferenceServerClient(address_of(server, name).split("//")[1]) as client:
        inputs = [module.InferInput("image", [1], "BYTES")]
        inputs[0].set_data_from_numpy(np.array([b"\xff\x00"], np.object_))
        result = client.infer("Classifier", inputs)

    assert result.as_numpy("name").tolist() == [b"cat"]
    assert result.as_numpy("scores").tolist() == [1.0]


def test_result_of_another_type_is_told_to_the_client(server):
    done = subprocess.run(
        ["curl", "-s", f"{server.http}/v2/models/wrong/generate", "-d", '{"a": 1}'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert "wrong returned for output `output`: expected int, got str 'text'" in done.stdout


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_signal_ends_it_in_order(folder, number, code):
    with serving("models.py:add", "--name=Sum", *FREE_PORTS, cwd=folder) as server:
        server.started()
        assert server.answer("Sum", a=1) == 3.0

        assert server.end(number) == code
        server.wait_for("Ended")


def test_end_tells_what_it_waits_for_and_a_second_signal_does_not_wait(tmp_path):
    (tmp_path / "holding.py").write_text(HOLDING)
    with serving("holding.py", *FREE_PORTS, cwd=tmp_path) as server:
        server.started()
        asking = threading.Thread(target=ask_in_vain, args=[server], daemon=True)
        asking.start()
        server.wait_for("held")
        server.process.send_signal(signal.SIGINT)
        server.wait_for("Waiting for requests that are under way. To end it at once: Ctrl-C")

        assert server.end(signal.SIGINT) == 130
        asking.join(TIMEOUT_S)


def ask_in_vain(server):
    with contextlib.suppress(OSError):
        server.ask("hold", a=1)


def failed(*arguments, cwd):
    done = subprocess.run(
        [PROGRAM, "serve", *arguments], cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_options_protect_the_server(tmp_path):
    (tmp_path / "models.py").write_text("def add(a: float) -> float: return a + 1")
    (tmp_path / "auth.toml").write_text('[principals.team]\napis = ["inference", "metadata"]\n')
    key = subprocess.run(
        [PROGRAM, "key", "create", "--auth-config", "auth.toml", "--principal", "team"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S,
    ).stdout.split()[-1]  # fmt: skip
    authority = Authority()
    certificate, private = authority.issue().write(tmp_path, "tls")
    arguments = ("models.py", *FREE_PORTS, "--secure", "--auth-config=auth.toml")
    files = (f"--tls-cert={certificate}", f"--tls-key={private}")
    with serving(*arguments, *files, cwd=tmp_path) as server:
        url = f"{server.started().http}/v2/models/add/generate"
        context = ssl.create_default_context(cadata=authority.pem.decode())

        def ask(**headers):
            request = urllib.request.Request(url, b'{"a": 1}', headers)
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

        assert url.startswith("https://")
        assert [ask(), ask(Authorization=f"Bearer {key}")] == [401, 200]


def test_error_of_the_code_is_shown_without_our_frames(tmp_path):
    (tmp_path / "broken.py").write_text("def load():\n    raise OSError('no weights')\n\nload()\n")

    code, text = failed("broken.py", cwd=tmp_path)

    assert code == 1
    assert text.splitlines()[-1] == "OSError: no weights"
    assert f'File "{tmp_path}/broken.py", line 4, in <module>' in text
    assert "pytriton" not in text.replace(str(tmp_path), "")
    assert "importlib" not in text


def test_port_in_use_names_the_option(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = failed(
            "models.py:add", f"--http-port={taken.getsockname()[1]}", "--grpc-port=0", cwd=folder
        )

    assert code == 1
    assert (
        "already in use. Stop the program that uses it, or choose another port with --http-port"
        in text
    )
    assert "Traceback" not in text


def test_announcement_is_coloured_on_a_terminal(tmp_path):
    source = snippets(REPOSITORY / "docs/serve.md", "python")[0].text
    (tmp_path / "models.py").write_text(source)
    parent, child = os.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with subprocess.Popen(
        [PROGRAM, "serve", "models.py", "--reload", *FREE_PORTS],
        cwd=tmp_path, stderr=child, env=environment | {"TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(child)
        text = b""
        while b"Changed files" not in text:
            text += os.read(parent, 4096)
        process.terminate()
        with contextlib.suppress(OSError):  # what Linux answers when the other end is closed
            while os.read(parent, 4096):
                pass
        assert process.wait(TIMEOUT_S) == 0
    os.close(parent)

    assert b"\x1b[1mServing 2 models\x1b[0m" in text
    keep("serve.svg", picture_of(text.decode(), process.pid))


def picture_of(text, pid):
    """The terminal as the page of the docs shows it, with the usual ports."""
    for name, port in (("HTTP", 8000), ("gRPC", 8001), ("metrics", 8002)):
        (taken,) = re.findall(rf"{name} +\S+127\.0\.0\.1:(\d+)", text)
        text = text.replace(f":{taken}", f":{port}")
    text = text.replace(" --url http://127.0.0.1:8000", "").replace(str(pid), "4711")
    text = re.sub(r"#token=[\w-]+", "#token=Xw3…", text)
    screen = Console(record=True, width=100, file=io.StringIO())
    screen.print(Text("$ pytriton serve models.py --reload"))
    screen.print(Text.from_ansi(text.replace("\r\n", "\n").rstrip()))
    picture = screen.export_svg(title="pytriton serve")
    # The fonts would come from another host; a system's own does as well.
    return re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", picture, flags=re.DOTALL).encode()
