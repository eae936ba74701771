"""The pure half of a pending claim: the record and its bytes, and which row of the table an answer belongs to."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from claim_service import BINDING, OTHER_BINDING, SCOPE, binding_body, body, receipt_body
from hypothesis import given, strategies as st

from fencepost.mailbox.claim import (
    RULES,
    TEXT_BYTES_MAX,
    Claim,
    ClaimState,
    Finding,
    Response,
    Step,
    fingerprint_of,
    judge_binding,
    judge_post,
    judge_receipt,
    judge_text,
)
from fencepost.mailbox.claim_record import (
    CLAIM_BYTES_MAX,
    CorruptClaim,
    check_scope,
    decode_claim,
    encode_abandoned,
    encode_claim,
    scope_hash,
)
from fencepost.mailbox.delivery_ids import check_delivery_id
from fencepost.mailbox.errors import InvalidIdentifier
from fencepost.mailbox.ladder import Reach, Stage, Stop

ID = "12345678-9abc-4def-8123-456789abcdef"
OTHER_ID = "00000000-0000-4000-8000-000000000000"
CLAIM = Claim.of(ID, BINDING, "hello\n")
SENDABLE = st.text(st.characters()).filter(lambda text: judge_text(text) is None)


# -- fingerprints (DA-13, DA-15, D-32) ---------------------------------------------------------------------------


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("hello", "hello"),
        ("  hello\n", "hello"),
        ("\r\n a\r\nb\rc \r", "a\nb\nc"),
        ("a\r\r\nb", "a\n\nb"),
        ("a  b", "a  b"),
        ("\u2003a\u00a0", "a"),
        ("a\0b", "a\0b"),
        ("\0", "\0"),
        ("a\ud800b", "a\ufffdb"),
        ("\udfff", "\ufffd"),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_12_o3_and_da_13_a_fingerprint_is_of_the_normalized_text(text, normalized):
    assert fingerprint_of(text) == sha(normalized)


@given(st.text(st.characters()))
def test_da_13_surrogates_become_u_fffd_once_before_the_fingerprint(text):
    claim = Claim.of(ID, BINDING, text)
    assert claim.text == re.sub("[\ud800-\udfff]", "\ufffd", text)
    assert claim.fingerprint == fingerprint_of(text) == fingerprint_of(claim.text)
    assert claim.text.encode().decode() == claim.text


@pytest.mark.parametrize("text", ["", " ", "\r\n\t", "\u2003\u00a0"])
def test_da_15_blank_text_is_not_sent(text):
    assert judge_text(text).finding is Finding.TEXT_BLANK


@pytest.mark.parametrize("text", ["\0", "\ud800", "\ufeff", "."])
def test_da_15_what_shows_little_is_not_blank(text):
    assert judge_text(text) is None


@pytest.mark.parametrize("character", ["a", "\u00e4", "\u20ac", "\U0001f600", "\ud800"])
def test_d_32_the_bound_is_in_bytes_and_is_allowed(character):
    width = len(character.encode(errors="replace")) if character != "\ud800" else 3
    count, rest = divmod(TEXT_BYTES_MAX, width)
    assert TEXT_BYTES_MAX == 1_048_576
    assert judge_text(character * count + "a" * rest) is None
    assert judge_text(character * count + "a" * (rest + 1)).finding is Finding.TEXT_TOO_LARGE


# -- scopes and ids ----------------------------------------------------------------------------------------------


def test_a_scope_has_one_name_whoever_asks():
    assert scope_hash(SCOPE) == scope_hash(tuple(SCOPE))
    assert re.fullmatch("[0-9a-f]{64}", scope_hash(SCOPE))


@given(st.tuples(st.text(st.characters()), st.text()), st.tuples(st.text(st.characters()), st.text()))
def test_two_scopes_have_two_names(one, other):
    assert (scope_hash(one) == scope_hash(other)) == (one == other)


def test_where_a_scope_is_cut_matters():
    assert scope_hash(("/a", "bc")) != scope_hash(("/ab", "c"))


@pytest.mark.parametrize("scope", [("", "pane"), ("/s", ""), ("/s", "p\n"), ("/s", "p" * 257), (1, "p"), ("/s", None)])
def test_a_scope_that_is_none_is_refused(scope):
    with pytest.raises(InvalidIdentifier):
        check_scope(scope)


@pytest.mark.parametrize("scope", ["/s", ("/s",), ["/s", "p"], None])
def test_a_scope_is_a_pair(scope):
    with pytest.raises(TypeError, match="scope"):
        check_scope(scope)


@pytest.mark.parametrize("value", ["", "1", ID.upper(), ID.replace("-", ""), f"{ID}\n", f"{{{ID}}}", None, 7])
def test_a_delivery_id_is_a_canonical_uuid(value):
    with pytest.raises(InvalidIdentifier):
        check_delivery_id(value)


# -- the record's bytes (D-29) -----------------------------------------------------------------------------------


def test_12_o3_and_d_29_a_claim_is_one_json_object_with_legible_text():
    claim = Claim.of(ID, BINDING, "grüße\0")
    assert json.loads(encode_claim(claim)) == {
        "version": 1,
        "delivery_id": ID,
        "binding": BINDING,
        "fingerprint": claim.fingerprint,
        "text": "grüße\0",
    }
    assert "grüße".encode() in encode_claim(claim)


@given(SENDABLE)
def test_what_is_written_is_read_again(text):
    claim = Claim.of(ID, BINDING, text)
    assert decode_claim(encode_claim(claim)) == claim


@pytest.mark.parametrize("character", ["\0", "\u00e4", "\U0001f600", "\\"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_largest_text_is_read_again_however_it_is_spelt(character, ascii_only):
    text = character * (TEXT_BYTES_MAX // len(character.encode()))
    claim = Claim.of(ID, BINDING, text)
    assert decode_claim(json.dumps(json.loads(encode_claim(claim)), ensure_ascii=ascii_only).encode()) == claim


@pytest.mark.parametrize("spelling", [{"indent": 2}, {"sort_keys": True}, {"separators": (",", ":")}])
def test_another_spelling_of_the_same_object_is_the_same_claim(spelling):
    assert decode_claim(json.dumps(json.loads(encode_claim(CLAIM)), **spelling).encode()) == CLAIM


def altered(**members):
    return json.dumps(json.loads(encode_claim(CLAIM)) | members).encode()


def without(name):
    return json.dumps({key: value for key, value in json.loads(encode_claim(CLAIM)).items() if key != name}).encode()


WHOLE = encode_claim(CLAIM)
DAMAGED = {
    "empty": b"",
    "cut": WHOLE[:-1],
    "cut at its start": WHOLE[1:],
    "zeroes": bytes(len(WHOLE)),
    "an extra byte": WHOLE + b"x",
    "an extra line end": WHOLE + b"\n",
    "a blank before it": b" " + WHOLE,
    "a byte order mark": b"\xef\xbb\xbf" + WHOLE,
    "two of them": WHOLE + WHOLE,
    "a list": b"[" + WHOLE + b"]",
    "not UTF-8": WHOLE.replace(b"hello", b"hel\xff"),
    "UTF-16": WHOLE.decode().encode("utf-16"),
    "another text": altered(text="hallo\n"),
    "another fingerprint": altered(fingerprint=sha("hallo")),
    "a fingerprint in capitals": altered(fingerprint=CLAIM.fingerprint.upper()),
    "a binding of other form": altered(binding="b" * 63),
    "no binding": altered(binding=None),
    "an id of other form": altered(delivery_id=ID.upper()),
    "an id that is a number": altered(delivery_id=7),
    "another version": altered(version=2),
    "version true": altered(version=True),
    "version 1.0": altered(version=1.0),
    "version as text": altered(version="1"),
    "a text that is none": altered(text=["hello"]),
    "a blank text": altered(text=" ", fingerprint=sha("")),
    "a lone surrogate": altered(text="a\ud800", fingerprint=fingerprint_of("a\ud800")),
    "an oversize text": altered(text="a" * (TEXT_BYTES_MAX + 1), fingerprint=sha("a" * (TEXT_BYTES_MAX + 1))),
    "one member more": altered(approval="me"),
    **{f"without its {name}": without(name) for name in json.loads(WHOLE)},
    "a member twice": WHOLE[:-1] + b', "version": 1}',
    "nothing in it": b"{}",
    "a number that is none": WHOLE.replace(b"1,", b"NaN,", 1),
    "endless nesting": b'{"version":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "too long": b"{" + b" " * CLAIM_BYTES_MAX + b"}",
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_corrupt(data):
    with pytest.raises(CorruptClaim):
        decode_claim(data)


@given(st.binary())
def test_any_bytes_are_corrupt(data):
    with pytest.raises(CorruptClaim):
        decode_claim(data)


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3))
def test_a_claim_with_other_bytes_in_it_is_that_claim_or_corrupt(place, replacement):
    try:
        found = decode_claim(WHOLE[:place] + replacement + WHOLE[place + len(replacement) :])
    except CorruptClaim:
        return
    assert fingerprint_of(found.text) == found.fingerprint == CLAIM.fingerprint


def test_what_is_kept_of_an_abandoned_claim_is_all_of_it_and_the_approval():
    assert json.loads(encode_abandoned(CLAIM, "me\ud800")) == {**json.loads(WHOLE), "approval": "me\ufffd"}
    with pytest.raises(CorruptClaim):
        decode_claim(encode_abandoned(CLAIM, "me"))


# -- the table ---------------------------------------------------------------------------------------------------


def test_every_finding_has_its_row():
    assert set(RULES) == set(Finding)


@pytest.mark.parametrize("finding", Finding, ids=lambda finding: finding.name)
def test_a_row_is_sound(finding):
    rule = RULES[finding]
    goes_on = rule.step in {Step.CLAIM, Step.RECONCILE}
    assert (rule.reach.stage is None and rule.reach.stop is None) == goes_on
    if rule.claim is ClaimState.CORRUPT:
        assert rule.after is ClaimState.CORRUPT
    if rule.after is not ClaimState.NONE and not goes_on:
        assert rule.reach.stop is Stop.UNCERTAIN, "what stands is not told as settled"
    if rule.step is Step.CLEAR:
        assert (rule.claim, rule.after) == (ClaimState.HELD, ClaimState.NONE)
        assert rule.reach.stop is not Stop.UNCERTAIN
    if rule.reach.stage is not None:
        assert rule.reach.stage is Stage.STORED
        assert rule.step is Step.CLEAR


# -- the binding (D-28) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 299])
@pytest.mark.parametrize("more", [{}, {"detail": "later"}, {"nested": {"a": [1]}}])
def test_a_binding_is_known(status, more):
    judged = judge_binding(Response(status, body(version=1, binding=BINDING, **more)))
    assert (judged.finding, judged.binding) == (Finding.BINDING_KNOWN, BINDING)


@pytest.mark.parametrize("status", [400, 401, 403, 413])
def test_a_read_of_the_binding_is_refused(status):
    judged = judge_binding(Response(status, binding_body()))
    assert (judged.finding, judged.binding) == (Finding.BINDING_REFUSED, None)


NO_BINDING = {
    "null": (200, binding_body(None)),
    "not found": (404, binding_body()),
    "redirect": (302, binding_body()),
    "server error": (500, binding_body()),
    "informational": (100, binding_body()),
    "empty": (200, b""),
    "html": (200, b"<html>"),
    "list": (200, b"[]"),
    "short": (200, binding_body("b" * 63)),
    "capitals": (200, binding_body("B" * 64)),
    "line end": (200, binding_body(BINDING + "\n")),
    "number": (200, binding_body(7)),
    "no version": (200, body(binding=BINDING)),
    "version 2": (200, body(version=2, binding=BINDING)),
    "version true": (200, body(version=True, binding=BINDING)),
    "twice": (200, b'{"version": 1, "binding": "%s", "binding": "%s"}' % (BINDING.encode(), BINDING.encode())),
    "not UTF-8": (200, binding_body() + b"\xff"),
    "deep": (200, b"[" * 100_000),
    "huge": (200, binding_body() + b" " * 2_000_000),
}


@pytest.mark.parametrize(("status", "data"), NO_BINDING.values(), ids=NO_BINDING)
def test_there_is_no_binding(status, data):
    assert judge_binding(Response(status, data)).finding is Finding.BINDING_MISSING


@pytest.mark.parametrize("error", [ConnectionRefusedError(), TimeoutError(), OSError(), ValueError("bug")])
def test_the_read_of_the_binding_failed(error):
    assert judge_binding(error).finding is Finding.BINDING_UNREACHABLE


# -- receipts (D-28, DA-16) --------------------------------------------------------------------------------------

TRIPLE = {"delivery_id": ID, "binding": BINDING, "fingerprint": CLAIM.fingerprint}


def receipt(word="stored", **more):
    return receipt_body(word, ID, BINDING, CLAIM.fingerprint, **more)


EXACT = {
    "stored": Finding.POST_STORED,
    "rejected": Finding.POST_REJECTED,
    "unavailable": Finding.POST_UNAVAILABLE,
    "uncertain": Finding.POST_UNCERTAIN,
}


@pytest.mark.parametrize(("word", "finding"), EXACT.items())
@pytest.mark.parametrize("status", [200, 202, 299])
def test_an_exact_receipt_is_taken_at_its_word(word, finding, status):
    judged = judge_post(CLAIM, Response(status, receipt(word, detail="said so", extra=[1])))
    assert (judged.finding, judged.detail) == (finding, "said so")
    assert judge_post(CLAIM, Response(status, receipt(word))).detail is None
    assert judge_post(CLAIM, Response(status, receipt(word, detail=None))).detail is None


INEXACT = {
    "legacy success": body(received=True),
    "legacy success, versioned": body(version=1, received=True),
    "another id": receipt(delivery_id=OTHER_ID),
    "another binding": receipt(binding=OTHER_BINDING),
    "another fingerprint": receipt(fingerprint=sha("hallo")),
    "id in capitals": receipt(delivery_id=ID.upper()),
    "no id": body(version=1, received=True, stage="stored", binding=BINDING, fingerprint=CLAIM.fingerprint),
    "no stage": body(version=1, received=True, **TRIPLE),
    "unknown stage": receipt("delivered"),
    "stage in capitals": receipt(stage="STORED"),
    "stage null": receipt(stage=None),
    "stored, not received": receipt(received=False),
    "received, not stored": receipt("unavailable", received=True),
    "received 1": receipt(received=1),
    "no received": body(version=1, stage="stored", **TRIPLE),
    "version 2": receipt(version=2),
    "no version": body(received=True, stage="stored", **TRIPLE),
    "detail a number": receipt(detail=7),
    "empty": b"",
    "unreadable": b"\xff\xfe",
    "cut": receipt()[:-1],
    "list": b"[" + receipt() + b"]",
    "a member twice": receipt()[:-1] + b', "stage": "stored"}',
    "extra member twice": receipt()[:-1] + b', "x": 1, "x": 2}',
    "two objects": receipt() + receipt(),
    "huge": receipt() + b" " * 2_000_000,
}


@pytest.mark.parametrize("data", INEXACT.values(), ids=INEXACT)
def test_what_is_not_exact_proves_nothing(data):
    assert judge_post(CLAIM, Response(200, data)).finding is Finding.POST_INEXACT
    assert judge_receipt(CLAIM, CLAIM.fingerprint, Response(200, data)).finding is Finding.RECEIPT_OPEN


@pytest.mark.parametrize("status", [100, 199, 300, 302, 307, 400, 401, 403, 404, 409, 413, 500, 503, 0, -1])
@pytest.mark.parametrize("word", EXACT)
def test_without_success_even_an_exact_receipt_proves_nothing(status, word):
    assert judge_post(CLAIM, Response(status, receipt(word))).finding is Finding.POST_UNSUCCESSFUL
    judged = judge_receipt(CLAIM, CLAIM.fingerprint, Response(status, receipt(word)))
    assert judged.finding is Finding.RECEIPT_OPEN


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), OSError(), ValueError("bug")])
def test_no_answer(error):
    assert judge_post(CLAIM, error).finding is Finding.POST_BROKEN
    assert judge_receipt(CLAIM, CLAIM.fingerprint, error).finding is Finding.RECEIPT_OPEN


def test_a_refused_connection_is_told_from_a_broken_one():
    assert judge_post(CLAIM, ConnectionRefusedError()).finding is Finding.POST_UNREACHED
    assert judge_receipt(CLAIM, CLAIM.fingerprint, ConnectionRefusedError()).finding is Finding.RECEIPT_OPEN


def test_a_receipt_resolves_only_as_stored():
    same, other = CLAIM.fingerprint, sha("hallo")
    assert judge_receipt(CLAIM, same, Response(200, receipt())).finding is Finding.RECEIPT_STORED
    judged = judge_receipt(CLAIM, other, Response(200, receipt()))
    assert judged.finding is Finding.RECEIPT_STORED_OTHER_TEXT
    assert judged.detail == f"the original is {ID}"
    for word in ("uncertain", "unavailable", "rejected"):
        for fingerprint in (same, other):
            judged = judge_receipt(CLAIM, fingerprint, Response(200, receipt(word)))
            assert judged.finding is Finding.RECEIPT_OPEN


@given(
    st.integers(),
    st.binary()
    | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(
        lambda value: json.dumps(value).encode()
    ),
)
def test_any_answer_has_a_row_and_resolves_nothing(status, data):
    response = Response(status, data)
    assert judge_binding(response).rule.step is Step.REPORT
    assert judge_post(CLAIM, response).rule.step is Step.KEEP
    assert judge_receipt(CLAIM, CLAIM.fingerprint, response).rule.step is Step.KEEP


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "version": st.sampled_from([1, 1, 1, 2, True, "1"]),
            "received": st.sampled_from([True, False, 1, None]),
            "stage": st.sampled_from([*EXACT, "delivered", None]),
            "delivery_id": st.sampled_from([ID, ID, OTHER_ID, None]),
            "binding": st.sampled_from([BINDING, BINDING, OTHER_BINDING, None]),
            "fingerprint": st.sampled_from([CLAIM.fingerprint, CLAIM.fingerprint, sha("hallo"), None]),
            "detail": st.sampled_from(["", "why", None, 3]),
        },
    ),
    st.sampled_from([200, 204, 302, 403, 500]),
)
def test_only_the_exact_receipt_resolves(members, status):
    resolves = (
        status in {200, 204}
        and {name: members.get(name) for name in TRIPLE} == TRIPLE
        and type(members.get("version")) is int
        and members.get("version") == 1
        and members.get("stage") in {"stored", "rejected", "unavailable"}
        and members.get("received") is (members.get("stage") == "stored")
        and members.get("detail") != 3
    )
    judged = judge_post(CLAIM, Response(status, body(**members)))
    assert (judged.rule.step is Step.CLEAR) == resolves
    asked = judge_receipt(CLAIM, CLAIM.fingerprint, Response(status, body(**members)))
    assert (asked.rule.step is Step.CLEAR) == (resolves and members["stage"] == "stored")


def test_a_receipts_detail_is_bounded_and_storable():
    judged = judge_post(CLAIM, Response(200, receipt(detail="\ud800" + "x" * 100_000)))
    assert judged.detail.startswith("\ufffdx")
    assert len(judged.detail) <= 2_000


def test_the_documented_table_is_the_code():
    page = (Path(__file__).resolve().parents[2] / "docs" / "deliveries.md").read_text(encoding="utf-8")
    _, _, after = page.partition("| what was found | the report | the claim then |\n| --- | --- | --- |\n")
    documented = [line.strip("| ").split(" | ") for line in after.partition("\n\n")[0].splitlines()]
    assert documented == [
        [finding.value, str(rule.step if rule.reach == Reach() else rule.reach), rule.after.value]
        for finding, rule in RULES.items()
    ]
