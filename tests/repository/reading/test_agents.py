# SPDX-License-Identifier: Apache-2.0
"""Repository agents: a model whose files have other checksums than its configuration says."""

from __future__ import annotations

import hashlib
import os

import pytest

from pytriton.base.errors import ErrorCode, ServerError
from pytriton.serving.engine.client import IndexEntry
from pytriton.serving.engine.config import config_from_text
from pytriton.serving.repository.reading.layout import ModelPlace
from pytriton.serving.repository.reading.source import run_agents
from pytriton.serving.repository.signing.signers import SigningSettings
from pytriton.serving.repository.signing.verifier import SignatureVerifier
from tests.repository.scene import CODE, CONFIG, write_code, write_config, write_model

FOLDER = "/opt/tritonserver/repoagents"
VERIFIER = SignatureVerifier(SigningSettings())
SENTENCE = b"weights"
MD5 = hashlib.md5(SENTENCE, usedforsecurity=False).hexdigest()
SHA256 = hashlib.sha256(SENTENCE).hexdigest()


def agents_text(parameters: dict[str, str], name: str = "checksum") -> str:
    texts = [f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items()]
    return f'model_repository_agents {{ agents [ {{ name: "{name}" {" ".join(texts)} }} ] }}\n'


@pytest.fixture
def place(repository):
    directory = write_model(repository)
    (directory / "weights").write_bytes(SENTENCE)
    return ModelPlace(repository, directory)


def run(place: ModelPlace, parameters: dict[str, str], name: str = "checksum") -> None:
    config = config_from_text(CONFIG + agents_text(parameters, name), "config.pbtxt")
    run_agents(config, place, FOLDER, VERIFIER)


def refusal(place: ModelPlace, parameters: dict[str, str], name: str = "checksum") -> ServerError:
    with pytest.raises(ServerError) as caught:
        run(place, parameters, name)
    return caught.value


def test_model_without_agents_is_not_looked_at(place):
    # An agent that refuses a model raises.
    run_agents(config_from_text(CONFIG, "config.pbtxt"), place, FOLDER, VERIFIER)
    run_agents(
        config_from_text(CONFIG + "model_repository_agents { }", "config.pbtxt"),
        place,
        FOLDER,
        VERIFIER,
    )


@pytest.mark.parametrize(
    "key, digest",
    [
        ("MD5:weights", MD5),
        ("md5:weights", MD5.upper()),
        ("Md5:./weights", MD5),
        ("SHA256:weights", SHA256),
        ("sha256:1/../weights", SHA256),
    ],
)
def test_files_with_the_expected_checksum_are_accepted(place, key, digest):
    run(place, {key: digest})  # raises for another checksum


def test_file_with_another_checksum_is_refused(place):
    error = refusal(place, {"MD5:weights": "0" * 32})

    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == (
        f"Mismatched MD5 hash for file weights, expect: {'0' * 32}, got: {MD5}"
    )


def test_every_parameter_is_checked(place):
    (place.directory / "labels.txt").write_text("cat")

    error = refusal(place, {"MD5:weights": MD5, "SHA256:labels.txt": SHA256})

    assert error.message.startswith("Mismatched SHA256 hash for file labels.txt, expect: ")


def test_key_without_an_algorithm_is_refused(place):
    assert refusal(place, {"weights": MD5}).message == "failed to parse key: weights"


def test_unknown_algorithm_is_refused(place):
    error = refusal(place, {"CRC32:weights": "1"})

    assert error.code is ErrorCode.UNSUPPORTED
    assert error.message == "Unsupported checksum algorithm: CRC32"


def test_missing_file_is_refused(place):
    error = refusal(place, {"MD5:other": MD5})

    assert error.code is ErrorCode.INVALID_ARG
    assert error.message == "failed to open text file for read other: No such file or directory"


@pytest.mark.parametrize("name", ["1", "pipe"])
def test_directory_and_pipe_have_no_checksum(place, name):
    os.mkfifo(place.directory / "pipe")

    error = refusal(place, {f"MD5:{name}": MD5})

    assert error.message == f"file '{name}' has no checksum: it is no regular file"


@pytest.mark.parametrize("name", ["../other/secret", "{root}/other/secret", "link", ""])
def test_file_outside_the_repository_is_not_read(place, name, tmp_path):
    outside = tmp_path / "outside" / "secret"
    outside.parent.mkdir()
    outside.write_bytes(SENTENCE)
    (place.directory / "link").symlink_to(outside)

    error = refusal(place, {f"MD5:{name.format(root=tmp_path)}": MD5})

    assert error.code is ErrorCode.UNSUPPORTED
    assert "is outside model directory" in error.message
    assert MD5 not in error.message


def test_unknown_agent_is_refused_with_the_folder_that_would_have_it(place):
    error = refusal(place, {}, name="encryption")

    assert error.message == (
        "unable to find 'libtritonrepoagent_encryption.so' for repo agent 'encryption', "
        f"searched: {FOLDER}; this server has its own agents 'checksum' and 'signature' and loads "
        "no plug-ins"
    )


# Loading

CODE_MD5 = hashlib.md5(CODE.encode(), usedforsecurity=False).hexdigest()
CHECKED = CONFIG + agents_text({"MD5:1/model.py": CODE_MD5})


def write_checked(repository):
    directory = write_model(repository, config=CHECKED)
    (directory / "1" / "model.py").write_text(CODE)
    return directory


def test_changed_file_refuses_a_load_with_the_reason_in_the_index(scene, repository):
    directory = write_checked(repository)
    write_code(directory)
    it = scene()

    error = it.refusal()

    reason = "Mismatched MD5 hash for file 1/model.py"
    assert error.message.startswith(
        f"failed to load 'm', failed to poll from model repository: {reason}"
    )
    (row,) = it.rows()
    assert row.state == "UNAVAILABLE"
    assert row.reason.startswith(f"Invalid argument: {reason}")
    assert it.loader.asked == []


def test_reload_checks_again_and_keeps_what_serves(scene, repository):
    directory = write_checked(repository)
    it = scene()
    it.load()
    write_code(directory)

    it.refusal()
    served = it.rows()
    write_config(directory, CONFIG)
    it.load()

    assert served == [IndexEntry("m", "1", "READY")]
    assert it.loader.asked == [("m", 1), ("m", 1)]


def test_poll_checks_again(scene, repository):
    directory = write_checked(repository)
    it = scene(mode="poll")
    it.run(it.models.poll_once())
    loaded = it.loader.asked[:]
    write_code(directory)

    it.run(it.models.poll_once())
    (directory / "1" / "model.py").write_text(CODE)
    it.run(it.models.poll_once())

    assert loaded == [("m", 1)]
    assert it.rows() == [IndexEntry("m", "1", "READY")]
    assert len(it.loader.asked) == 2


def test_files_of_a_client_are_checked_too(scene, repository):
    it = scene()
    config = (
        '{"backend": "python", "model_repository_agents": {"agents": '
        f'[{{"name": "checksum", "parameters": {{"MD5:1/model.py": "{CODE_MD5}"}}}}]}}}}'
    )

    it.load("sent", config, {"1/model.py": CODE.encode()})
    error = it.refusal("sent", config, {"1/model.py": CODE.encode() + b"\n"})

    assert "Mismatched MD5 hash for file 1/model.py" in error.message
    assert it.rows("sent") == [IndexEntry("sent", "1", "READY")]
