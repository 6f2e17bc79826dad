# SPDX-License-Identifier: Apache-2.0
"""Real servers that require signed models: what they serve, refuse, and never execute."""

from __future__ import annotations

import base64

import pytest

from tests.e2e.waiting import eventually
from tests.repository_e2e.model_files import code, config, model, write_model
from tests.signing.authorities import DAY, NOW, CertificateSigner, KeySigner, Sigstore

EXPLICIT = ["--model-control-mode=explicit", "--load-model=*", "--exit-on-error=false"]
ALICE = "alice@example.com"
READS_WEIGHTS = """
directory = args["model_repository"]
open({started!r}, "w").close()
while not os.path.exists({go!r}): time.sleep(0.01)
self.weights = float(open(os.path.join(directory, "weights")).read())
"""


@pytest.fixture
def copies(tmp_path):
    """The folder in which servers make private copies."""
    folder = tmp_path / "copies"
    folder.mkdir()
    return folder


@pytest.fixture
def start(start_server, copies, tmp_path):
    """Starts servers that require signatures, with models that a function prepares."""

    def begin(prepare, *flags):
        repository = tmp_path / "prepared"
        repository.mkdir()
        prepare(repository)
        # The server's own repository stays empty: models are added as links would be refused.
        return start_server(
            {},
            flags=[f"--model-repository={repository}", "--require-signed-models=true", *flags],
            environment={"TMPDIR": str(copies)},
        )

    return begin


def copied(copies):
    return sorted(path.name for path in copies.glob("pytriton-models-*/copy*/*"))


def marked(marker, value=1):
    """A model whose code leaves a mark when it is imported, and when its configuration is asked."""
    touch = f"open({str(marker)!r}, 'a').close()"
    hook = f"@staticmethod\ndef auto_complete_config(config):\n    {touch}\n    return config\n"
    return model(code(f"y = x * 0 + {value}", top=touch, methods=hook))


def test_story_of_a_server_that_requires_signatures(start, copies, tmp_path):
    """One story, as each verification starts a process."""
    signer, marker = KeySigner(tmp_path), tmp_path / "marker"

    def prepare(repository):
        write_model(repository / "good", model(code("y = x + 1")))
        signer.sign(repository / "good")
        write_model(repository / "evil", marked(marker))
        signer.sign(repository / "evil")
        (repository / "evil" / "1" / "helper.py").write_text("not signed")

    server = start(prepare, *EXPLICIT, *signer.flags).await_ports()
    repository = tmp_path / "prepared"

    assert eventually(lambda: server.serves("good"))
    assert server.infer("good", 1.0) == [2.0]
    assert "Extra files found in model 'evil': 1/helper.py" in server.index()["evil"]["reason"]
    assert eventually(lambda: copied(copies) == ["good"])
    assert not list((repository / "good").rglob("__pycache__"))

    refused = server.load("evil")
    assert refused.status == 500
    assert refused.error == (
        "failed to load 'evil', failed to poll from model repository: expected a valid signature "
        f"by the key '{signer.public}' in 'model.sig', got a folder that differs from what was "
        "signed: Extra files found in model 'evil': 1/helper.py"
    )
    sent = server.load("good", config="{}", **{"file:1/model.py": _text(b"evil")})
    assert "got no such file" in sent.error
    assert "expected no configuration" in server.load("good", config='{"backend": "x"}').error
    assert not marker.exists()

    (repository / "evil" / "1" / "helper.py").unlink()
    assert server.load("evil").status == 200
    assert marker.exists()
    assert server.unload("evil").status == 200
    assert eventually(lambda: copied(copies) == ["good"])
    assert server.end() == 0
    assert list(copies.iterdir()) == []


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_verified_bytes_are_served_though_files_change_meanwhile(start, tmp_path):
    signer = KeySigner(tmp_path)
    started, go = tmp_path / "started", tmp_path / "go"
    initialize = READS_WEIGHTS.format(started=str(started), go=str(go))

    def prepare(repository):
        files = model(code("y = x * self.weights", initialize=initialize), weights="2.0")
        write_model(repository / "m", files)
        signer.sign(repository / "m")

    server = start(prepare, *signer.flags)
    assert eventually(started.exists), server.output
    (tmp_path / "prepared" / "m" / "weights").write_text("666")
    go.touch()
    server.await_ready()

    assert server.infer("m", 3.0) == [6.0]


def test_server_with_an_expired_certificate_does_not_start_and_executes_nothing(start, tmp_path):
    signer, marker = CertificateSigner(tmp_path, begin=NOW - 3 * DAY, end=NOW - DAY), tmp_path / "x"

    def prepare(repository):
        write_model(repository / "m", marked(marker))
        signer.sign(repository / "m")

    server = start(prepare, *signer.flags)

    assert server.exit_code() == 1
    assert "certificate has expired" in server.output
    assert not marker.exists()


def test_ensemble_of_signed_models_is_served_with_sigstore_and_certificates(start, tmp_path):
    sigstore, certified = Sigstore(tmp_path), CertificateSigner(tmp_path)
    steps = """
    ensemble_scheduling { step [
      { model_name: "m" model_version: -1
        input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" } } ] }
    """
    tensors = config().replace('backend: "python"', 'platform: "ensemble"').partition("instance")[0]

    def prepare(repository):
        write_model(repository / "m", model(code("y = x + 5")))
        sigstore.sign(repository / "m", ALICE)
        write_model(repository / "e", {"config.pbtxt": tensors + steps})
        (repository / "e" / "1").mkdir()
        certified.sign(repository / "e")

    server = start(prepare, *sigstore.flags(ALICE), *certified.flags).await_ready()

    assert server.infer("e", 1.0) == [6.0]


def test_polling_server_follows_signed_changes_alone(start, tmp_path):
    signer = KeySigner(tmp_path)
    poll = ["--model-control-mode=poll", "--repository-poll-secs=1"]

    def prepare(repository):
        write_model(repository / "m", model(code("y = x + 1")))
        signer.sign(repository / "m")

    server = start(prepare, *poll, *signer.flags).await_ready()
    folder = tmp_path / "prepared" / "m"
    write_model(folder, model(code("y = x + 2")))

    assert eventually(lambda: "Hash mismatch for '1/model.py'" in server.output)
    assert server.infer("m", 1.0) == [2.0]
    signer.sign(folder)
    assert eventually(lambda: server.infer("m", 1.0) == [3.0])


@pytest.mark.parametrize(
    "flags, reason",
    [
        ([], "--require-signed-models needs --model-signing-key"),
        (["--model-signing-key=/nowhere"], "Expected a file for --model-signing-key"),
        (["--model-signing-identity=a@b"], "expected an identity, its issuer and a trust root"),
    ],
)
def test_wrong_options_end_the_server(start, flags, reason):
    server = start(lambda _: None, *flags)

    assert server.exit_code() != 0
    assert reason in server.output
