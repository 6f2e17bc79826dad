# SPDX-License-Identifier: Apache-2.0
"""What makes a signature of a model count, and what is said about one that does not."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random

import pytest

from pytriton.base.errors import InvalidArgumentError
from pytriton.serving.repository.signing import verification
from pytriton.serving.repository.signing.signers import AgentDemand, Signers, read_agent
from pytriton.serving.repository.signing.verification import (
    Question,
    RefusedError,
    describe_differences,
    read_bundle,
    signed_files,
)
from tests.signing.authorities import DAY, NOW, CertificateSigner, KeySigner, Sigstore

ALICE = "alice@example.com"


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("code")
    (folder / "config.pbtxt").write_text("config")
    return folder


def problem(model, **signers):
    return verification.verify(Question(str(model), "model.sig", Signers(**signers))).problem


def test_signature_by_a_key_counts(model, tmp_path):
    signer = KeySigner(tmp_path)
    signer.sign(model)

    answer = verification.verify(
        Question(str(model), "model.sig", Signers(keys=(str(signer.public),)))
    )
    assert answer.problem == ""
    assert answer.files == ("1/model.py", "config.pbtxt")
    assert answer.signer == f"the key '{signer.public}'"
    assert (model / "model.sig").is_file()


def test_signature_by_one_of_several_keys_counts(model, tmp_path):
    old, new = KeySigner(tmp_path), KeySigner(tmp_path)
    new.sign(model)

    assert problem(model, keys=(str(old.public), str(new.public))) == ""


def test_signature_by_another_key_does_not_count(model, tmp_path):
    KeySigner(tmp_path).sign(model)

    text = problem(model, keys=(str(KeySigner(tmp_path).public),))
    assert text.startswith("a signature by a key that does not count: Key mismatch")


def test_signature_of_another_kind_does_not_count(model, tmp_path):
    KeySigner(tmp_path).sign(model)

    assert problem(model, certificates=("roots.pem",)) == "a signature by a key"


def test_signed_statement_cannot_be_replaced(model, tmp_path):
    signer = KeySigner(tmp_path)
    signature = signer.sign(model)
    (model / "1" / "model.py").write_text("other code")
    bundle = json.loads(signature.read_text())
    forged = json.loads(signer.sign(model, "other.sig").read_text())
    bundle["dsseEnvelope"]["payload"] = forged["dsseEnvelope"]["payload"]
    signature.write_text(json.dumps(bundle))

    text = problem(model, keys=(str(signer.public),))
    assert text == "a signature by a key that does not count: it does not fit the signed statement"


def add_file(model):
    (model / "1" / "x.py").write_text("")


def remove_file(model):
    (model / "config.pbtxt").unlink()


def change_file(model):
    (model / "1" / "model.py").write_text("evil")


DIGEST = hashlib.sha256(b"code").hexdigest()


@pytest.mark.parametrize(
    "change, expected",
    [
        (add_file, "Extra files found in model 'm': 1/x.py"),
        (remove_file, "Missing files in model 'm': config.pbtxt"),
        (change_file, f"Hash mismatch for '1/model.py': Expected 'sha256:{DIGEST}', Actual 'sha2"),
    ],
)
def test_folder_that_differs_from_its_signature_is_refused(model, tmp_path, change, expected):
    signer = KeySigner(tmp_path)
    signer.sign(model)
    change(model)

    text = problem(model, keys=(str(KeySigner(tmp_path).public), str(signer.public)))
    assert f"a folder that differs from what was signed: {expected}" in text


def test_signature_need_not_ignore_its_own_file(model, tmp_path):
    signer = KeySigner(tmp_path)
    signer.sign(model, "../elsewhere.sig").rename(model / "model.sig")

    assert problem(model, keys=(str(signer.public),)) == ""


def test_signature_with_a_certificate_counts(model, tmp_path):
    signer = CertificateSigner(tmp_path)
    signer.sign(model)

    assert problem(model, certificates=(str(signer.root),)) == ""


def test_certificate_of_another_authority_does_not_count(model, tmp_path):
    CertificateSigner(tmp_path).sign(model)

    text = problem(model, certificates=(str(CertificateSigner(tmp_path).root),))
    assert text.startswith("a signature with the certificate of 'CN=signer ")
    assert "self-signed certificate in certificate chain" in text


@pytest.mark.parametrize(
    "begin, end, reason",
    [
        (NOW - 3 * DAY, NOW - DAY, "certificate has expired"),
        (NOW + DAY, NOW + 2 * DAY, "certificate is not yet valid"),
    ],
)
def test_certificate_out_of_its_time_does_not_count(model, tmp_path, begin, end, reason):
    signer = CertificateSigner(tmp_path, begin=begin, end=end)
    signer.sign(model)

    assert reason in problem(model, certificates=(str(signer.root),))


def test_offline_bundle_of_sigstore_counts_after_its_certificate_has_expired(model, tmp_path):
    sigstore = Sigstore(tmp_path)
    sigstore.sign(model, ALICE)
    signers = {"issuer": sigstore.issuer, "trust_root": str(sigstore.trust_root)}

    assert problem(model, identity=ALICE, **signers) == ""


def test_other_identity_and_other_issuer_and_other_sigstore_do_not_count(model, tmp_path):
    sigstore, other = Sigstore(tmp_path), Sigstore(tmp_path)
    sigstore.sign(model, ALICE)
    root = str(sigstore.trust_root)

    assert "do not match bob@example.com; actual SANs: {'alice@example.com'}" in problem(
        model, identity="bob@example.com", issuer=sigstore.issuer, trust_root=root
    )
    assert "got 'https://accounts.example.com'" in problem(
        model, identity=ALICE, issuer="https://other", trust_root=root
    )
    assert "certificate chain" in problem(
        model, identity=ALICE, issuer=sigstore.issuer, trust_root=str(other.trust_root)
    )


def test_bundle_of_sigstore_without_its_log_does_not_count(model, tmp_path):
    sigstore = Sigstore(tmp_path)
    signature = sigstore.sign(model, ALICE)
    bundle = json.loads(signature.read_text())
    del bundle["verificationMaterial"]["tlogEntries"]
    signature.write_text(json.dumps(bundle))

    signers = {"issuer": sigstore.issuer, "trust_root": str(sigstore.trust_root)}
    assert problem(model, identity=ALICE, **signers) != ""


def text_of(payload=b"{}", material='"publicKey": {}', more="", more_in_envelope=""):
    content = base64.b64encode(payload).decode()
    return (
        f'{{"dsseEnvelope": {{"payload": "{content}"{more_in_envelope}}}, '
        f'"verificationMaterial": {{{material}}}{more}}}'
    ).encode()


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "no sigstore bundle"),
        (b"\xff\xfe", "no sigstore bundle"),
        (b"[1]", "expected an object"),
        (b"{}", "no sigstore bundle of a model (KeyError: 'dsseEnvelope')"),
        (b"[" * 100_000, "no sigstore bundle"),
        (text_of(more=', "dsseEnvelope": {}'), "a member occurs twice"),
        (text_of(more=', "dsse_envelope": {}'), "unknown member 'dsse_envelope'"),
        (text_of(more_in_envelope=', "payload_type": ""'), "unknown member 'payload_type'"),
        (text_of(material=""), "x509CertificateChain"),
        (text_of(material='"x509CertificateChain": {"certificates": [{"rawBytes": "%"}]}'), "no "),
    ],
)
def test_file_that_is_no_signature_is_refused(content, reason):
    with pytest.raises(RefusedError) as caught:
        read_bundle(content)

    assert reason in str(caught.value)


def test_names_of_files_that_are_no_utf8_are_shown_in_another_way(model, tmp_path):
    signer = KeySigner(tmp_path)
    signer.sign(model)
    (model / os.fsdecode(b"\xff.py")).write_text("")

    assert "Extra files found in model 'm': \\udcff.py" in problem(
        model, keys=(str(signer.public),)
    )


def test_damaged_signatures_are_read_or_refused(model, tmp_path):
    content = CertificateSigner(tmp_path).sign(model).read_bytes()
    chance = random.Random(7)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(content)
        at = chance.randrange(len(damaged))
        damaged[at : at + chance.choice([0, 1, 20])] = chance.randbytes(chance.choice([0, 1, 3]))
        try:
            read_bundle(bytes(damaged))
        except RefusedError:
            refused += 1

    assert refused > 0


def test_broken_file_is_a_problem_and_no_failure(model):
    (model / "model.sig").write_text("no JSON")

    assert problem(model, keys=("k",)).startswith("a file that is no sigstore bundle of a model")


def statement(method, *names, predicate=verification._PREDICATE):
    resources = [{"name": name, "algorithm": "sha256", "digest": "00"} for name in names]
    predicates = {"serialization": {"method": method}, "resources": resources}
    return json.dumps({"predicateType": predicate, "predicate": predicates}).encode()


def test_files_of_a_statement_are_known():
    assert signed_files(statement("files", "a", "b/c")) == ("a", "b/c")
    assert signed_files(statement("shards", "a:0:9", "a:9:12", "b/c:0:1")) == ("a", "b/c")


@pytest.mark.parametrize(
    "payload, reason",
    [
        (statement("files", predicate="https://model_signing/Digests/v0.1"), "Digests/v0.1"),
        (b'{"predicateType": "https://model_signing/signature/v1.0"}', "without a list of files"),
        (b"1", "expected an object"),
    ],
)
def test_other_statements_are_refused(payload, reason):
    with pytest.raises(RefusedError) as caught:
        signed_files(payload)

    assert reason in str(caught.value)


def test_only_some_of_many_differences_are_named():
    texts = [f"Hash mismatch for '{number}'" for number in range(12)]

    assert describe_differences(str(texts)).endswith("Hash mismatch for '9'; and 2 more")
    assert describe_differences("no list") == "no list"


# Agents


def test_parameters_of_the_agent_say_who_may_sign(tmp_path):
    key = tmp_path / "key.pub"
    key.write_text("")

    demand = read_agent({"key": str(key), "signature": "a.sig"}, Signers(keys=("other",)))
    assert demand == AgentDemand(Signers(keys=(str(key),)), "a.sig")


def test_agent_without_signers_means_those_of_the_server(tmp_path):
    key = tmp_path / "key.pub"
    key.write_text("")
    server = Signers(keys=(str(key),))

    assert read_agent({}, server) == AgentDemand(server, "model.sig")


@pytest.mark.parametrize(
    "parameters, reason",
    [
        ({}, "that say who may sign the model"),
        ({"Key": "/k"}, "got 'Key'"),
        ({"key": "keys/k.pub"}, "expected an absolute path as parameter 'key'"),
        ({"key": "/nowhere/k.pub"}, "got '/nowhere/k.pub', which is none"),
        ({"identity": "a@b"}, "expected an identity, its issuer and a trust root together"),
    ],
)
def test_wrong_parameters_of_the_agent_are_refused(parameters, reason):
    with pytest.raises(InvalidArgumentError) as caught:
        read_agent(parameters, Signers())

    assert reason in caught.value.message
