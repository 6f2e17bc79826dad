# SPDX-License-Identifier: Apache-2.0
"""docs/operations.md: its commands, its probes, its expressions, and the messages it explains."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest
import yaml
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from pytriton.base.settings import BY_NAME
from pytriton.runtime.functions.bound_config import batch_hint
from pytriton.serving.engine.stats import ModelStatistics
from pytriton.serving.server.command.arguments import parse
from pytriton.serving.server.core import FIRST_STALL_REPORT_S, StallWatch
from pytriton.serving.server.metrics.page import server_family_names
from tests.e2e.waiting import eventually
from tests.fakes import model_spec
from tests.free_ports import free_ports
from tests.repository_e2e.model_files import HELD, HOLD, code, config, model
from tests.repository_e2e.page_session import PageSession, steps
from tests.snippets import snippets

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations.md"
TEXT = PAGE.read_text()
COMMANDS = steps(PAGE)[1:]
PATHS = ["/v2/health/live", "/v2/health/ready", "/v2/models/add_sub/ready"]


def section(title):
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title):
    """The last table of a section, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


# The commands


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """What the page's commands printed, and how its server answered before and after its end."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "examples").symlink_to(ROOT / "examples")
    page = PageSession(PAGE, folder, free_ports(3))
    with page.serving() as process:
        page.run()
        before = {path: page.status(path) for path in PATHS}
        with InferenceServerClient(f"127.0.0.1:{page.ports[1]}") as client:
            client.get_log_settings(headers={"triton-grpc-protocol-admin-key": "secret"})
        process.terminate()  # SIGTERM
        assert eventually(lambda: page.status("/v2/health/ready") == 400)
        live = page.status("/v2/health/live")
        exit_code = process.wait()
    return SimpleNamespace(page=page, before=before, live=live, exit_code=exit_code)


@pytest.mark.parametrize("number", range(len(COMMANDS)), ids=lambda n: f"line {COMMANDS[n].line}")
def test_command_prints_what_the_page_shows(session, number):
    step = session.page.steps[number]

    assert step.fits, step.printed


def test_moved_log_is_made_again(session):
    folder = session.page.folder
    messages = [
        json.loads(line)["message"] for line in (folder / "server.log").read_text().splitlines()
    ]

    assert "Waiting for in-flight requests to complete." in messages
    assert "loading: add_sub:1" in (folder / "server.log.1").read_text()


def test_server_of_the_page_is_ready_until_it_is_told_to_end(session):
    assert session.before == dict.fromkeys(PATHS, 200)
    assert session.live == 200
    assert session.exit_code == 0


# What is only written down


def test_every_option_of_the_page_exists():
    named = set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]+)", TEXT))

    assert len(named) > 30
    assert sorted(named - set(BY_NAME)) == []


def test_page_has_a_list_of_its_sections():
    titles = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    listed = re.findall(r"\]\(#([\w-]+)\)", TEXT.split("\n## ")[0])

    assert [title.lower().replace(" ", "-") for title in titles] == listed
    assert len(TEXT.splitlines()) <= 350


def test_headings_that_the_page_links_to_exist():
    for page, anchor in re.findall(r"\]\((\w+\.md)?#([\w-]+)\)", TEXT):
        text = (PAGE.parent / page).read_text() if page else TEXT
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert anchor in [
            re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings
        ]


def test_deployment_fits_the_server():
    (block,) = snippets(PAGE, "yaml")
    pod = yaml.safe_load(block.text)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    line = parse(container["args"])
    probes = [container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe")]

    assert container["command"] == ["tritonserver"]
    exit_s = sum(int(line.values[f"exit_{name}_secs"]) for name in ("grace", "timeout"))
    assert pod["terminationGracePeriodSeconds"] > exit_s == 15 + 30
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "http": 8000,
        "grpc": 8001,
        "metrics": 8002,
    }
    assert [probe["httpGet"]["path"] for probe in probes] == [PATHS[0], PATHS[0], PATHS[1]]
    assert {probe["httpGet"]["port"] for probe in probes} == {"http"}


def test_paths_of_the_table_are_those_that_were_asked():
    assert [row[1].strip("`") for row in rows("Health")[:3]] == PATHS


@pytest.mark.parametrize("name", ["prometheus.yml", "alerts.yml"])
def test_files_for_prometheus_are_yaml(name):
    path = f"deploy/prometheus/{name}"
    document = yaml.safe_load((ROOT / path).read_text())

    assert path in TEXT
    assert set(document) <= {"scrape_configs", "rule_files", "groups"}


def test_expressions_ask_for_metrics_that_exist():
    named = set(re.findall(r"nv_\w+", section("Metrics")))
    series = r"_bucket$|(?<=batch_size)_(count|sum)$"  # of histograms
    families = {re.sub(series, "", name) for name in named} - {"nv_inference_"}

    assert len(families) > 7
    assert families <= server_family_names()
    for row in rows("Metrics"):
        assert row[1].count("(") == row[1].count(")")


# The messages

X = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [1]}]}
REGION = {"key": "/x", "offset": 0, "byte_size": 4}
BROKEN = model(code(initialize="raise ValueError('no weights')"))
FULL_QUEUE = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
TIMEOUT = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 100000 } }"


def busy(name, policy):
    """A model of one instance that says when it begins a request, and does not end it at first."""
    return model(
        code(f"print('{name} is busy')\n{HOLD}\ny = x"), config(policy, max_batch_size=1), **HELD
    )


TROUBLED = {
    "m": model(),
    "broken": BROKEN,
    "crashing": model(code("os._exit(3)")),
    "full": busy("full", FULL_QUEUE),
    "late": busy("late", TIMEOUT),
}
FLAGS = (
    "--exit-on-error=false",
    "--exit-timeout-secs=1",
    "--http-max-input-size=1000",
    "--http-restricted-api=statistics:admin-key=secret",
    "--grpc-restricted-protocol=statistics:admin-key=secret",
    "--grpc-infer-thread-count=4",
    "--trace-config=triton,file=/missing/trace.json",
    "--trace-config=level=TIMESTAMPS",
    "--trace-config=rate=1",
)


def asked(server):
    """What a server answers to clients that do what does not work."""
    yield server.get("/v2/health/ready")
    yield server.post("/v2/models/missing/infer", X)
    yield server.post("/v2/models/m/infer", {**X, "id": 1000 * "x"})
    yield server.load("m")
    yield server.get("/v2/models/m/stats")
    yield server.post("/v2/systemsharedmemory/region/x/register", REGION)
    for _ in range(6):
        yield server.post("/v2/models/crashing/infer", X)


def asked_over_grpc(server):
    for port in (server.grpc_port, server.http_port):
        with InferenceServerClient(f"127.0.0.1:{port}") as client:
            with pytest.raises(InferenceServerException) as refusal:
                client.get_inference_statistics()
            yield str(refusal.value)


def are_done(requests, count):
    return sum(request.done() for request in requests) == count


def asked_while_busy(server):
    """What three requests get that meet an instance which does not finish the first one."""
    with ThreadPoolExecutor() as pool:
        for name, refused_count in (("full", 1), ("late", 2)):
            requests = [pool.submit(server.post, f"/v2/models/{name}/infer", X)]
            assert eventually(lambda name=name: f"{name} is busy" in server.stdout)
            requests += [pool.submit(server.post, f"/v2/models/{name}/infer", X) for _ in range(2)]
            assert eventually(partial(are_done, requests, refused_count))
            server.let_go(name)
            yield from (request.result() for request in requests)


def forgotten_decorator():
    """What the log says of a function that takes its list of requests for an array."""

    def double(data):
        return [2 * data.astype("f4")]

    return batch_hint(double, ["data"], AttributeError("'list' object has no attribute 'astype'"))


def stalled():
    fake = type("Fake", (SimpleNamespace,), {"__hash__": object.__hash__})
    busy = fake(spec=model_spec(name="m"), statistics=ModelStatistics(), running_count=1)
    watch = StallWatch()
    return [*watch.check([busy], 0.0), *watch.check([busy], FIRST_STALL_REPORT_S)]


@pytest.fixture(scope="module")
def said(start_module_server):
    """Everything that servers in trouble answered and logged."""
    start = start_module_server
    server = start(TROUBLED, flags=FLAGS)
    others = [
        start({"broken": BROKEN}),
        start({"m": model()}, {"m": model()}),
        start({"m": model()}, flags=["--http-prot=1"]),
    ]
    full_disk = start({"m": model()}, flags=["--log-file=/dev/full"])
    # A way to write 127.0.0.1 that is not known as such: nobody else reaches this server.
    open_to_all = ["--model-control-mode=explicit", "--http-address=127.1"]
    explicit = start({}, flags=open_to_all).await_ready()
    server.await_ports()
    others.append(start({"m": model()}, ports=server.ports))
    exit_codes = {each.exit_code() for each in others}
    texts = [answer.body.decode() for answer in asked(server)]
    texts += [answer.body.decode() for answer in asked_while_busy(server)]
    assert eventually(lambda: "Traces cannot be written" in server.stderr)
    assert eventually(lambda: "cannot be written" in full_disk.stderr)
    texts += [*asked_over_grpc(server), *stalled(), forgotten_decorator()]
    server.hold("full")
    with ThreadPoolExecutor() as pool:
        late = pool.submit(server.post, "/v2/models/full/infer", X)
        assert eventually(lambda: server.stdout.count("full is busy") == 3)
        server.signal()
        with contextlib.suppress(OSError):
            late.result()
    exit_codes.add(server.exit_code())
    texts += [each.output for each in (*others, server, full_disk, explicit)]
    return SimpleNamespace(text="\n".join(texts), exit_codes=exit_codes)


@pytest.mark.parametrize("message", [row[0].strip("`") for row in rows("Troubleshooting")])
def test_message_is_one_that_a_server_says(said, message):
    pattern = re.escape(message).replace(r"\.\.\.", "[^\n]*")

    assert re.search(pattern, said.text), said.text


def test_servers_that_fail_end_with_the_exit_code_of_the_page(said):
    assert said.exit_codes == {1}
    assert [row[0] for row in rows("Signals and exit codes")] == ["0", "1", "143"]
