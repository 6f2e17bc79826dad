# SPDX-License-Identifier: Apache-2.0
"""Flaws of other servers in how they are controlled: models, settings, shared memory, paths."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import pathlib
import re
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2

from tests.e2e.http_client import call
from tests.e2e.waiting import DEADLINE_S, eventually
from tests.executor.tar_files import file_entry, link_entry, pack
from tests.repository_e2e.model_files import code, config, model
from tests.repository_e2e.test_broken_models import BROKEN
from tests.security.hostile import (
    BODY_LIMIT,
    COUNT,
    GRPC_TOKEN,
    HTTP_TOKEN,
    MIB,
    POSTS,
    Peak,
    X,
    config_override,
    grpc_error,
    grpc_request,
    head,
    processes,
    raw_answer,
    set_parameter,
    status_of,
    unchanged,
)

SHARED = pathlib.Path("/dev/shm")
SOURCE = code().encode()
FILES = {"file:1/model.py": SOURCE}
PROTOCOLS = ("http", "grpc")
needs_shared_memory = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="objects are files in /dev/shm on Linux only"
)


# Loading models


def load_error(server, grpc_stub, protocol, name, files, **changes):
    """The error of a load request with files; an empty text if there is none."""
    settings = config_override(**changes)
    if protocol == "http":
        texts = {key: base64.b64encode(content).decode() for key, content in files.items()}
        answer = server.load(name, config=settings, **texts)
        return "" if answer.status == 200 else answer.error
    request = service_pb2.RepositoryModelLoadRequest(model_name=name)
    request.parameters["config"].string_param = settings
    for key, content in files.items():
        request.parameters[key].bytes_param = content
    try:
        grpc_stub.RepositoryModelLoad(request, timeout=DEADLINE_S)
    except grpc.RpcError as error:
        return error.details()
    return ""


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "path",
    ["../../x", "../x", "/abs", "1/../../x", "1/../..", "1//../../x", "1/model.py/../../../x",
     "1/\0x", "..", ".", "", "1/..", "/", "./../x"],
)  # fmt: skip
def test_cve_2023_31036_load_with_file_overrides_writes_nothing_outside(
    server, grpc_stub, protocol, path
):
    files = {"file:1/model.py": SOURCE, f"file:{path}": b"written"}
    with unchanged(server.folder, server.temporary):
        error = load_error(server, grpc_stub, protocol, "sent", files)

    assert "must stay within model directory" in error
    assert not pathlib.Path("/abs").exists()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("path", ["~/x", "\\..\\..\\x", "%2e%2e/x", "$HOME/x", "1/...", " /x"])
def test_cve_2023_31036_odd_names_are_names_of_files_in_the_model(
    server, grpc_stub, protocol, path
):
    files = {"file:1/model.py": SOURCE, f"file:{path}": b"written"}
    with unchanged(server.folder, server.temporary):
        error = load_error(server, grpc_stub, protocol, "sent", files)
        files = [each for each in server.temporary.rglob("*") if each.is_file()]
        written = [each.read_bytes() for each in files if each.name != "model.py"]
        server.unload("sent")
        assert eventually(lambda: not list(server.temporary.iterdir()))

    assert error == ""
    assert written == [b"written"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cve_2023_31036_files_do_not_follow_links_of_a_repository(
    server, grpc_stub, protocol, tmp_path
):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text("victim")
    link = server.repository / "linked"
    link.symlink_to(tmp_path)
    try:
        with unchanged(tmp_path):
            load_error(server, grpc_stub, protocol, "linked", {"file:1/model.py": SOURCE})
            plain = server.load("linked")
        server.unload("linked")
    finally:
        link.unlink()

    assert "outside of the model repositories" in plain.error


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cve_2023_31036_files_are_taken_in_explicit_mode_only(guarded, guarded_stub, protocol):
    with unchanged(guarded.folder, guarded.temporary):
        if protocol == "http":
            body = {"parameters": {"config": config_override(), "file:1/model.py": ""}}
            text = json.dumps(body).encode()
            path = "/v2/repository/models/sent/load"
            error = call(guarded.http_port, path, text, HTTP_TOKEN).error
        else:
            request = service_pb2.RepositoryModelLoadRequest(model_name="sent")
            request.parameters["file:1/model.py"].bytes_param = SOURCE
            method = guarded_stub.RepositoryModelLoad
            error = grpc_error(method, request, metadata=GRPC_TOKEN).details()

    assert "explicit" in error


def test_cve_2024_53880_size_is_checked_before_a_file_is_decoded(server):
    path = "/v2/repository/models/sent/load"
    peak = Peak(server)
    announced = raw_answer(server.http_port, head(path, f"Content-Length: {2**31 + 8}"))
    in_time = raw_answer(server.http_port, head(path, f"Content-Length: {BODY_LIMIT + 1}"))
    content = "A" * (BODY_LIMIT - 1000)
    uneven = [
        server.load("sent", config="{}", **{"file:1/x": content[: len(content) - left]})
        for left in range(1, 4)
    ]

    assert status_of(announced) == status_of(in_time) == 400
    assert {answer.status for answer in uneven} <= {400, 500}
    assert peak.growth_bytes() < 8 * BODY_LIMIT


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "name",
    ["$(touch marker)", "`touch marker`", "x;touch marker;", "x|touch marker", "x&touch marker&",
     "*", "~", "x\ntouch marker\n", "' ; touch marker ; '", '" ; touch marker ; "', "-rf", "-h"],
)  # fmt: skip
def test_cve_2025_23316_names_of_models_reach_no_shell(server, grpc_stub, protocol, name):
    """Where Triton takes a name, a process serves its model; the others are refused."""
    escaped = quote(name, safe="")
    error = load_error(server, grpc_stub, protocol, escaped if protocol == "http" else name, FILES)
    served = server.post(f"/v2/models/{escaped}/infer", {"inputs": [X]}).status
    if protocol == "http":
        server.unload(escaped)
    else:
        grpc_stub.RepositoryModelUnload(service_pb2.RepositoryModelUnloadRequest(model_name=name))

    is_harmless = name.startswith(("x\n", "-"))
    assert "contains invalid characters" in error or is_harmless
    assert served == (200 if is_harmless else 404)
    # Unlike `rglob`, it goes on where a folder of the unloaded model vanishes meanwhile.
    assert not [files for _, _, files in os.walk(server.folder.parent) if "marker" in files]
    assert eventually(lambda: not list(server.temporary.iterdir()))


def test_cve_2025_23336_broken_models_break_nothing_else(start_module_server):
    names = [*BROKEN, "zero", "huge", "negative"]
    repository = {name: files for name, (files, _) in BROKEN.items()}
    repository["zero"] = model(settings=config().replace("dims: [ -1 ]", "dims: [ 0 ]"))
    repository["huge"] = model(
        settings=config("instance_group [{ count: 2000000000 kind: KIND_CPU }]")
    )
    repository["negative"] = model(settings=config(max_batch_size=-5))
    repository["echo"] = model()
    flags = ("--model-control-mode=explicit", "--load-model=echo")
    server = start_module_server(repository, flags).await_ready()
    before = processes(server)
    with ThreadPoolExecutor(8) as threads:
        answers = dict(zip(names, threads.map(server.load, names), strict=True))
    index = server.index()

    assert {name: answer.status for name, answer in answers.items() if answer.status == 200} == {}
    assert {index[name]["state"] for name in names if "state" in index[name]} == {"UNAVAILABLE"}
    assert all(index[name]["reason"] for name in names)
    assert before <= processes(server)
    assert server.infer("echo", 2.0) == [2.0]


def worker_counts(server, names):
    titles = " ".join(server.worker_titles())
    return [titles.count(f"{name}_0_0") for name in names]


def test_cve_2025_33238_models_are_loaded_unloaded_and_asked_at_once(server):
    """Also CVE-2025-33254."""
    names = ["race0", "race1"]
    for name in names:
        server.write(name, model())
    rounds = max(4, COUNT // 20)
    statuses: dict[str, set[int]] = {}

    def repeat(what, ask):
        for number in range(rounds):
            statuses.setdefault(what, set()).add(ask(names[number % 2]).status)

    actions = {
        "load": server.load,
        "reload": lambda name: server.load(name, config=config_override(max_batch_size=4)),
        "unload": server.unload,
        "infer": lambda name: server.post(f"/v2/models/{name}/infer", {"inputs": [X]}),
        "config": lambda name: server.get(f"/v2/models/{name}/config"),
        "stats": lambda name: server.get(f"/v2/models/{name}/stats"),
        "index": lambda name: server.post("/v2/repository/index"),
    }
    with ThreadPoolExecutor(2 * len(actions)) as threads:
        list(threads.map(lambda each: repeat(*each), [*actions.items(), *actions.items()]))
    loaded = [server.load(name).status for name in names]
    answers = [server.infer(name, 3.0) for name in names]
    # The process of the load before may still be ending.
    is_one_each = eventually(lambda: worker_counts(server, names) == [1, 1])
    for name in names:
        server.unload(name)

    assert statuses["index"] == {200}
    assert statuses["load"] | statuses["reload"] <= {200, 503}  # 503: it was unloaded meanwhile
    assert statuses["unload"] == {200}
    assert statuses["infer"] | statuses["config"] | statuses["stats"] <= {200, 400, 404, 503}
    assert loaded == [200, 200]
    assert answers == [[3.0], [3.0]]
    assert is_one_each
    assert eventually(lambda: not [each for each in server.worker_titles() if "race" in each])
    # What has ended has no title any more, a moment before its zygote takes note of it.
    assert eventually(lambda: server.zombies() == [])


# Settings


def settings_error(server, grpc_stub, protocol, kind, name, path):
    """The status and the text of a request that changes settings."""
    if protocol == "http":
        route = {"log": "/v2/logging", "trace": "/v2/trace/setting"}[kind]
        model_route = f"/v2/models/{name}/trace/setting" if name else route
        values = {"log_verbose_level": 0} if kind == "log" else {"trace_rate": "7"}
        answer = server.post(model_route, {**values, f"{kind}_file": path})
        return answer.status, answer.error
    if kind == "log":
        request = service_pb2.LogSettingsRequest()
        set_parameter(request.settings["log_file"], path)
        error = grpc_error(grpc_stub.LogSettings, request)
    else:
        request = service_pb2.TraceSettingRequest(model_name=name)
        request.settings["trace_file"].value.append(path)
        error = grpc_error(grpc_stub.TraceSetting, request)
    return error.code(), error.details()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("path", ["{}/x", "../x", "x", "/dev/null", "", "/proc/self/mem"])
def test_cve_2024_0087_no_client_says_where_the_log_is(server, grpc_stub, protocol, path, tmp_path):
    with unchanged(tmp_path, server.folder, server.temporary):
        status, text = settings_error(server, grpc_stub, protocol, "log", "", path.format(tmp_path))
    after = server.get("/v2/logging").json

    assert status in {501, grpc.StatusCode.UNIMPLEMENTED}
    assert text == "log file location can not be updated through network protocol"
    assert (after["log_file"], after["log_verbose_level"]) == ("", 1)  # nothing of it applies


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ["", "echo"])
@pytest.mark.parametrize("path", ["{}/x", "../x", "x", "/dev/null", "/proc/self/mem"])
def test_cve_2024_0100_no_client_says_where_traces_are(
    server, grpc_stub, protocol, name, path, tmp_path
):
    before = server.get("/v2/trace/setting").json
    with unchanged(tmp_path, server.folder, server.temporary):
        status, text = settings_error(
            server, grpc_stub, protocol, "trace", name, path.format(tmp_path)
        )

    assert status in {501, grpc.StatusCode.UNIMPLEMENTED}
    assert text == "trace file location can not be updated through network protocol"
    assert server.get("/v2/trace/setting").json == before


FORGED = 'x\r\nE0101 00:00:00.000000 1 a.py:1] "forged"\x1b[31m\x7f\x85\u2028\u2029\u202e\0'
LINE = re.compile(r'[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w.]+:\d+\] ".*"\Z')


def test_cve_2024_0095_texts_of_clients_forge_no_lines(server, grpc_stub):
    name, number = quote(FORGED, safe=""), len(server.stdout)
    error_number = len(server.stderr)
    input_of = {**X, "name": FORGED}
    bad_parameters = {FORGED: FORGED, "classification": FORGED}
    for path in (
        f"/v2/models/{name}/infer",
        f"/v2/models/{name}/generate",
        f"/v2/repository/models/{name}/load",
        f"/v2/repository/models/{name}/unload",
        f"/v2/systemsharedmemory/region/{name}/register",
        f"/v2/models/{name}/trace/setting",
    ):
        server.post(path, {"inputs": [X], "key": f"/{FORGED}", "byte_size": 1, "X": [1]})
    for document in (
        {"inputs": [input_of]},
        {"inputs": [{**X, "datatype": FORGED}]},
        {"inputs": [X], "id": FORGED, "parameters": bad_parameters},
        {"inputs": [X], "id": FORGED, "outputs": [{"name": FORGED}]},
        {"inputs": [X], "id": FORGED},
    ):
        server.post("/v2/models/echo/infer", document)
    server.load("echo", **{FORGED: FORGED, "config": FORGED})
    server.post("/v2/logging", {FORGED: FORGED})
    raw_answer(server.http_port, head("/v2", "X: \x1b[31m", method="G\x1b"))
    with contextlib.suppress(grpc.RpcError):
        grpc_stub.ModelInfer(grpc_request(FORGED))
    bad = grpc_request(outputs=[FORGED], **{FORGED: FORGED})
    bad.id = FORGED
    grpc_error(grpc_stub.ModelInfer, bad)
    load = service_pb2.RepositoryModelLoadRequest(model_name=FORGED)
    grpc_error(grpc_stub.RepositoryModelLoad, load)
    server.post("/v2/models/echo/infer", {"inputs": [X], "id": "the-last-one"})
    assert eventually(lambda: "the-last-one" in server.stdout)

    written = (
        server._stdout_path.read_bytes()[number:] + server._stderr_path.read_bytes()[error_number:]
    )
    lines = written.decode().split("\n")
    assert "forged" in written.decode()  # else nothing was tested
    assert [line for line in lines if line and not LINE.match(line)] == []
    assert not set(written.decode()) & set("\r\x1b\x7f\x85\u2028\u2029\0")


# Shared memory


@pytest.fixture
def region(server):
    """An object of 4096 bytes, and its key."""
    key = f"/pytriton-test-{uuid.uuid4().hex}"
    path = SHARED / key[1:]
    path.write_bytes(bytes(4096))
    yield key
    path.unlink(missing_ok=True)
    server.post("/v2/systemsharedmemory/unregister")


def register(server, key, size=4096, offset=0, name="r"):
    body = {"key": key, "byte_size": size, "offset": offset}
    return server.post(f"/v2/systemsharedmemory/region/{name}/register", body)


BAD_EXTENTS = [
    (4096, 1), (4097, 0), (0, 0), (2**63, 0), (2**63 - 1, 1), (2**64 - 1, 0), (2**64 - 1, 1),
    (1, 4096), (16, 2**63), (16, 2**64 - 16), (2**63, 2**63),
]  # fmt: skip


@needs_shared_memory
@pytest.mark.parametrize(
    "size, offset", [*BAD_EXTENTS, (-1, 0), (16, -1), (1.5, 0), ("16", 0), (True, 0), (2**64, 0)]
)
def test_cve_2024_0088_only_what_is_inside_of_an_object_is_registered(
    server, grpc_stub, region, size, offset
):
    assert register(server, region, size, offset).status in {400, 500}
    assert server.get("/v2/systemsharedmemory/status").json == []
    if (size, offset) in BAD_EXTENTS:
        request = service_pb2.SystemSharedMemoryRegisterRequest(
            name="r", key=region, byte_size=size, offset=offset
        )
        error = grpc_error(grpc_stub.SystemSharedMemoryRegister, request)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT


def in_region(size, offset):
    return {
        "shared_memory_region": "r",
        "shared_memory_byte_size": size,
        "shared_memory_offset": offset,
    }


OUTSIDE = [
    (8, 4089), (8, 4096), (8, 2**62), (8, -8), (2**63 - 1, 1), (2**63 - 1, 2**63 - 1), (4096, 1),
    (4097, 0), (0, 0),
]  # fmt: skip
TOO_LARGE_FOR_GRPC = [(8, 2**63), (8, 2**64 - 8), (2**64 - 1, 1), (2**63, 2**63)]


@needs_shared_memory
@pytest.mark.parametrize("size, offset", [*OUTSIDE, *TOO_LARGE_FOR_GRPC])
@pytest.mark.parametrize("kind", ["input", "output"])
def test_cve_2024_0088_tensors_are_inside_of_their_region(
    server, grpc_stub, region, kind, size, offset
):
    file = SHARED / region[1:]
    os.truncate(file, 8192)  # the region is its first half
    assert register(server, region, 4096).status == 200
    place = in_region(size, offset)
    document = {"inputs": [X], "outputs": [{"name": "Y", "parameters": place}]}
    if kind == "input":
        described = {key: value for key, value in X.items() if key != "data"}
        document = {"inputs": [{**described, "parameters": place}]}
    answer = server.post("/v2/models/echo/infer", document)
    if (size, offset) in OUTSIDE:
        request = grpc_request(data=None if kind == "input" else bytes(8), outputs=["Y"])
        tensor = request.inputs[0] if kind == "input" else request.outputs[0]
        for key, value in place.items():
            set_parameter(tensor.parameters[key], value)
        error = grpc_error(grpc_stub.ModelInfer, request)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

    assert answer.status in {400, 500}
    assert "Expected" not in answer.error  # it is refused for its place, not for its size
    assert file.read_bytes() == bytes(8192)


@needs_shared_memory
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("change", ["unregister", "shrink", "remove"])
def test_cve_2024_0116_region_that_goes_while_it_is_used_ends_nothing(
    server, grpc_stub, region, protocol, change
):
    count = MIB // 4  # elements: a tensor of this size is copied from and to mapped memory
    file = SHARED / region[1:]
    os.truncate(file, 2 * MIB)
    assert register(server, region, 2 * MIB).status == 200
    entered = server.repository / "held" / "1" / "entered"
    entered.unlink(missing_ok=True)
    server.hold("held")

    def ask():
        if protocol == "http":
            place, output = in_region(MIB, 0), in_region(MIB, MIB)
            x = {"name": "X", "shape": [1, count], "datatype": "FP32", "parameters": place}
            outputs = [{"name": "Y", "parameters": output}]
            return server.post("/v2/models/held/infer", {"inputs": [x], "outputs": outputs}).status
        request = grpc_request("held", (1, count), data=None, outputs=["Y"])
        for tensor, offset in ((request.inputs[0], 0), (request.outputs[0], MIB)):
            for key, value in in_region(MIB, offset).items():
                set_parameter(tensor.parameters[key], value)
        try:
            grpc_stub.ModelInfer(request, timeout=DEADLINE_S)
        except grpc.RpcError as error:
            return error.code()
        return 200

    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask)
        try:
            assert eventually(entered.exists)
            if change == "unregister":
                assert server.post("/v2/systemsharedmemory/region/r/unregister").status == 200
            elif change == "shrink":
                os.truncate(file, 0)
            else:
                file.unlink()
        finally:
            server.let_go("held")
        status = answer.result(DEADLINE_S)

    # What is mapped stays for the request; an object that has shrunk has no place for the output.
    assert (status == 200) is (change != "shrink")


def target_of(link):
    """Where a link leads; nowhere if it is gone."""
    try:
        return str(link.readlink())
    except OSError:
        return ""


@needs_shared_memory
def test_cve_2025_23318_memory_between_processes_has_no_name(server):
    """Also CVE-2025-23319, CVE-2025-23329, CVE-2025-23333 and CVE-2025-23334."""
    row = [1.0] * (MIB // 4)
    answer = server.infer("echo", *row)  # too large for a message between processes
    memory = [
        (pid, link.name)
        for pid in processes(server)
        for link in pathlib.Path(f"/proc/{pid}/fd").iterdir()
        if "memfd:" in target_of(link)
    ]
    mapped = {
        region.path for pid in processes(server) for region in psutil.Process(pid).memory_maps()
    }
    link = SHARED / f"pytriton-test-{uuid.uuid4().hex}"
    keys = []
    for pid, number in memory[:4]:
        path = f"/proc/{pid}/fd/{number}"
        keys += [path, f"..{path}", f"/../..{path}", f"//..//..{path}", f"/{path}"]
    refused = [register(server, key, 1) for key in keys]
    for pid, number in memory[:4]:
        link.symlink_to(f"/proc/{pid}/fd/{number}")
        refused.append(register(server, f"/{link.name}", 1))
        link.unlink()

    assert answer == row
    assert memory  # else nothing was tested
    named = {path for path in mapped if path.startswith(f"{SHARED}/")}
    # Regions of tests before this one may still be mapped.
    assert not [path for path in named if "/pytriton-test-" not in path]
    assert {each.status for each in refused} <= {400, 500}
    assert server.get("/v2/systemsharedmemory/status").json == []


@needs_shared_memory
@pytest.mark.parametrize(
    "key",
    ["/psm_0123", "psm_0123", "//psm_0123", "/triton_python_backend_shm_region_1",
     "/dev/shm/object", "/../etc/passwd", "../../etc/passwd", "/proc/self/mem", "/proc/self/fd/3",
     "/memfd:x", "/.", "/..", "/", "", "\0", "/object\0", "a" * 5000],
)  # fmt: skip
def test_cve_2025_23333_keys_of_other_memory_are_refused(server, grpc_stub, key):
    files = [SHARED / name for name in ("psm_0123", "triton_python_backend_shm_region_1", "object")]
    for file in files:
        file.write_bytes(bytes(16))
    try:
        answer = register(server, key, 16)
        request = service_pb2.SystemSharedMemoryRegisterRequest(name="r", key=key, byte_size=16)
        error = grpc_error(grpc_stub.SystemSharedMemoryRegister, request)
    finally:
        for file in files:
            file.unlink()

    assert answer.status in {400, 500}
    assert error.code() in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}


def test_cve_2025_23320_errors_tell_nothing_of_the_inside(server, grpc_stub):
    wrong = [
        ("/v2/models/echo/infer", {"inputs": [{**X, "data": [1] * 100_000}]}),
        ("/v2/models/echo/infer", {"inputs": [{**X, "shape": [1, 2**40]}]}),
        ("/v2/models/echo/infer", {"inputs": [{**X, "datatype": "INT64"}]}),
        ("/v2/models/echo/infer", {"inputs": [{**X, "name": "Z"}]}),
        ("/v2/models/echo/infer", {"inputs": []}),
        ("/v2/models/echo/infer", {"inputs": [X], "outputs": [{"name": "Z"}]}),
        ("/v2/models/echo/infer", {"inputs": [{**X, "parameters": in_region(8, 0)}]}),
        ("/v2/models/missing/infer", {"inputs": [X]}),
        ("/v2/models/echo/versions/9/infer", {"inputs": [X]}),
        ("/v2/models/count/infer", {"inputs": [X]}),
        ("/v2/systemsharedmemory/region/r/register", {"key": "/missing", "byte_size": 1 << 62}),
        ("/v2/cudasharedmemory/region/r/register", {"raw_handle": {"b64": "AAAA"}, "byte_size": 1}),
        ("/v2/repository/models/missing/load", {}),
        ("/v2/logging", {"log_file": "/x"}),
        ("/v1/chat/completions", {"model": "missing", "messages": []}),
        *((path, [1]) for path in POSTS),
    ]
    texts = [server.post(path, document).body.decode() for path, document in wrong]
    texts.append(
        call(server.http_port, "/v2/models/echo/infer", bytes(BODY_LIMIT + 1)).body.decode()
    )
    requests = (
        grpc_request(data=bytes(4 * MIB)),
        grpc_request(shape=(1, 2**40)),
        grpc_request("missing"),
        grpc_request(outputs=["Z"]),
    )
    texts += [grpc_error(grpc_stub.ModelInfer, request).details() for request in requests]
    pids = "|".join(map(str, processes(server)))
    inside = re.compile(
        rf"/dev/shm|/proc/|memfd|/tmp|{re.escape(str(server.folder))}|site-packages|\.py\b"
        rf"|Traceback|0x[0-9a-f]{{6}}|\bfd\b|pytriton/|\b({pids})\b|object at"
    )

    assert len([text for text in texts if "error" in text]) > 20
    assert [text for text in texts if inside.search(text)] == []


# Paths


@pytest.mark.parametrize(
    "name",
    ["..", "%2e%2e", "%2E%2E%2F%2E%2E", "..%2f..%2fetc", "a%2fb", "%00", ".", "a%5c..%5cb", "%ff"],
)
@pytest.mark.parametrize(
    "route", ["infer", "generate", "config", "ready", "stats", "load", "unload"]
)
def test_cve_2026_24208_names_of_models_are_no_paths(server, name, route):
    """Also CVE-2026-24209."""
    if route in ("load", "unload"):
        path, body = f"/v2/repository/models/{name}/{route}", b""
    else:
        path = f"/v2/models/{name}/{route}"
        body = b"{}" if route in ("infer", "generate") else None
    with unchanged(server.folder, server.temporary):
        answer = call(server.http_port, path, body)

    # As in Triton, there is nothing to do to unload a model that is not loaded.
    assert answer.status in ({200, 400} if route == "unload" else {400, 404, 500})


@pytest.mark.parametrize("file", ["../../secret.txt", "{}/secret.txt", "labels.txt"])
def test_core_fix_f2226c0_label_files_are_inside_of_their_model(server, tmp_path, file):
    (tmp_path / "secret.txt").write_text("secret\n" * 3)
    (server.repository.parent / "secret.txt").write_text("secret\n" * 3)
    name = f"labels_{uuid.uuid4().hex}"
    settings = config().replace('name: "Y"', f'name: "Y" label_filename: "{file.format(tmp_path)}"')
    server.write(name, model(settings=settings))
    if file == "labels.txt":
        (server.repository / name / file).symlink_to(tmp_path / "secret.txt")
    loaded = server.load(name)
    document = {"inputs": [X], "outputs": [{"name": "Y", "parameters": {"classification": 2}}]}
    asked = server.post(f"/v2/models/{name}/infer", document)

    assert "is outside model directory" in loaded.error
    assert b"secret\n" not in asked.body
    assert asked.status in {400, 404}


@pytest.mark.parametrize(
    "entry",
    [file_entry("../../victim", b"!"), file_entry("/tmp/victim", b"!"), link_entry("lib", "/"),
     file_entry("lib/../../../victim", b"!")],
    ids=["dots", "absolute", "link", "dots inside"],
)  # fmt: skip
def test_pyb_fix_3033a6b_environments_write_nothing_outside(server, tmp_path, entry):
    archive = pack(tmp_path / "env.tar.gz", [file_entry("bin/activate"), entry])
    name = f"packed_{uuid.uuid4().hex}"
    settings = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{archive}" }} }}'
    server.write(name, model(settings=config(settings)))
    with unchanged(tmp_path):
        answer = server.load(name)

    assert answer.status == 400
    files = {each.name for each in server.temporary.rglob("*") if each.is_file()}
    assert files <= {"owner.lock"}  # by which a later server finds what a killed one has left
    assert "env.tar.gz" in answer.error
    assert not list(server.folder.parent.rglob("victim"))
    assert not pathlib.Path("/tmp/victim").exists()


# Parameters that mean something


@pytest.mark.parametrize("key", ["triton_secret", "triton_final_response", "triton_"])
def test_server_fix_69987b7b0_reserved_parameters_are_refused(server, grpc_stub, key):
    answers = [
        server.post("/v2/models/echo/infer", {"inputs": [X], "parameters": {key: 1}}),
        server.post("/v2/models/echo/generate", {"X": [1], key: 1}),
        server.post("/v2/models/echo/generate", {"X": [1], "parameters": {key: 1}}),
        server.post("/v2/models/count/generate_stream", {"X": [1], key: "x"}),
    ]
    unary = grpc_error(grpc_stub.ModelInfer, grpc_request(**{key: 1}))
    (streamed,) = grpc_stub.ModelStreamInfer(iter([grpc_request("count", **{key: 1})]))

    assert {answer.status for answer in answers} == {400}
    assert all(b"are reserved for Triton usage" in answer.body for answer in answers)
    assert "are reserved for Triton usage" in unary.details()
    assert "are reserved for Triton usage" in streamed.error_message


@pytest.mark.parametrize(
    "name",
    ["triton_secret", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout",
     "headers", "binary_data_output"],
)  # fmt: skip
def test_server_fix_69987b7b0_reserved_headers_are_not_forwarded(server, grpc_stub, name):
    body = json.dumps({"inputs": [X]}).encode()
    answer = call(server.http_port, "/v2/models/echo/infer", body, {name: "1"})
    allowed = call(server.http_port, "/v2/models/echo/infer", body, {"forwarded_x": "1"})
    error = grpc_error(grpc_stub.ModelInfer, grpc_request(), metadata=[(name, "1")])

    assert (answer.status, allowed.status) == (400, 200)
    assert f"Header '{name}' is reserved" in answer.error
    assert f"Header '{name}' is reserved" in error.details()


@pytest.mark.parametrize("sent", ["forwarded_user", "Forwarded_User", "FORWARDED_USER"])
@pytest.mark.parametrize("header", ["forwarded_user", "Forwarded_User"])
def test_server_fix_69987b7b0_forwarded_headers_replace_what_clients_say(
    server, grpc_stub, sent, header
):
    """A gateway may say in a header who the client is."""
    document = {"inputs": [X], "parameters": {sent: "admin", "other": 1}}
    body = json.dumps(document).encode()
    path = "/v2/models/parameters/infer"
    answer = call(server.http_port, path, body, {header: "guest"}).json
    request = grpc_request("parameters", **{sent: "admin", "other": 1})
    message = grpc_stub.ModelInfer(request, metadata=[(header.lower(), "guest")])

    seen = json.loads(answer["outputs"][0]["data"][0])
    seen_over_grpc = json.loads(message.raw_output_contents[0][4:])
    assert seen == {"other": 1, header: "guest"}
    assert seen_over_grpc == {"other": 1, header.lower(): "guest"}


@pytest.mark.parametrize("name", ["priority", "timeout", "headers", "binary_data_output"])
def test_server_fix_69987b7b0_members_of_generate_mean_nothing_to_the_server(server, name):
    """They are texts for the model; the queue and the form of the answer do not depend on them."""
    answer = server.post("/v2/models/parameters/generate", {"X": [1], name: "x" * 10})

    assert answer.status == 200
    assert json.loads(answer.json["Y"]) == {name: "x" * 10}


# OpenAI's routes


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
def test_server_fix_8cb2b77c5_requests_of_openai_clients_have_a_limit(server, path):
    """Also c8d4d4cc1, whose other half does not apply."""
    peak = Peak(server)
    announced = raw_answer(server.http_port, head(path, f"Content-Length: {BODY_LIMIT + 1}"))
    chunk = b"100000\r\n" + bytes(MIB) + b"\r\n"
    chunked = raw_answer(
        server.http_port,
        head(path, "Transfer-Encoding: chunked"),
        *itertools.repeat(chunk, BODY_LIMIT // MIB + 2),
    )

    assert status_of(announced) in {400, 413}
    assert status_of(chunked) in {400, 413}
    assert peak.growth_bytes() < BODY_LIMIT + 32 * MIB
