"""The claimed sender against a scripted service: each row of the protocol's section 5, and what its files may be."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from claim_service import BINDING, OTHER_BINDING, SCOPE, Script, binding_body, body, exact, receipt_body
from hypothesis import given, strategies as st

from fencepost.mailbox import ClaimedSender, InvalidIdentifier, Response, SendReport, Stage, Stop, claim_files
from fencepost.mailbox.claim import ABANDONED, TEXT_BYTES_MAX, Claim, fingerprint_of
from fencepost.mailbox.claim_record import CorruptClaim, decode_claim, encode_claim

HELD_ID = "12345678-9abc-4def-8123-456789abcdef"
HELD = Claim.of(HELD_ID, BINDING, "original")
BROKEN = [TimeoutError("slow"), ConnectionResetError("reset"), OSError("gone"), RuntimeError("a bug of the bridge")]


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(claim_files, "LOCK_WAIT_SECONDS", 0.02)


@pytest.fixture
def script():
    return Script()


@pytest.fixture
def sender(tmp_path, script):
    return ClaimedSender(tmp_path, SCOPE, script)


@pytest.fixture
def held(sender):
    """A sender whose scope has a claim that an earlier process left."""
    sender.claim_path.parent.mkdir(mode=0o700)
    sender.claim_path.write_bytes(encode_claim(HELD))
    return sender


def reach(report):
    return report.stage or report.stop


def ids(report):
    return (report.delivery_id, report.binding, report.fingerprint)


NO_IDS = (None, None, None)


def claim_of(sender):
    return decode_claim(sender.claim_path.read_bytes())


def files(sender):
    folder = sender.claim_path.parent
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def assert_clear(sender):
    assert files(sender) == []


def assert_held(sender, text="original"):
    assert files(sender) == [sender.claim_path.name]
    assert claim_of(sender).text == text


# -- no claim: the binding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 403, 413])
def test_5_1_none_the_service_refuses_to_tell_the_binding(sender, script, status):
    script.binding = [Response(status, b"")]
    report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.REJECTED, NO_IDS)
    assert str(status) in report.detail
    assert script.posts == []
    assert_clear(sender)


@pytest.mark.parametrize(
    "response",
    [Response(200, binding_body(None)), Response(404, b""), Response(200, b"{"), Response(302, binding_body())],
    ids=["no binding", "8-no-binding-read 404", "malformed", "redirect"],
)
def test_5_1_none_no_binding(sender, script, response):
    script.binding = [response]
    report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.UNAVAILABLE, NO_IDS)
    assert script.posts == []
    assert_clear(sender)


@pytest.mark.parametrize("error", BROKEN, ids=repr)
def test_5_1_and_12_d2_none_transport_failure_nothing_was_sent(sender, script, error):
    script.binding = [error]
    report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.UNAVAILABLE, NO_IDS)
    assert str(error) in report.detail
    assert script.calls == [("binding",)], "neither refreshed nor repeated"
    assert_clear(sender)


def test_reads_may_follow_a_refreshed_port_once(sender, script):
    script.binding = [ConnectionRefusedError(), Response(200, binding_body())]
    assert reach(sender.send("hello")) is Stage.STORED
    assert [call[0] for call in script.calls] == ["binding", "refresh", "binding", "post"]


def test_a_read_that_is_refused_twice_is_given_up(sender, script):
    script.binding = [ConnectionRefusedError("nobody there")]
    assert reach(sender.send("hello")) is Stop.UNAVAILABLE
    assert [call[0] for call in script.calls] == ["binding", "refresh", "binding"]


def test_a_link_that_cannot_be_refreshed_is_not_read_again(sender, script):
    script.binding, script.refreshed = [ConnectionRefusedError("nobody there")], [FileNotFoundError("no link")]
    assert reach(sender.send("hello")) is Stop.UNAVAILABLE
    assert [call[0] for call in script.calls] == ["binding", "refresh"]


# -- no claim: claiming ------------------------------------------------------------------------------------------


def test_5_2_none_created_then_exactly_one_post(sender, script):
    seen = []

    def post(*request):
        seen.append((claim_of(sender), sender.lock_path.exists(), files(sender)))
        return exact("stored")(*request)

    script.posted = [post]
    report = sender.send("hello\r\n")
    [(claim, locked, names)] = seen
    assert not locked, "the lock is held only while the claim is made or removed"
    assert names == [sender.claim_path.name]
    assert script.posts == [(claim.delivery_id, BINDING, "hello\r\n")]
    assert (claim.binding, claim.text, claim.fingerprint) == (BINDING, "hello\r\n", fingerprint_of("hello"))
    assert report == SendReport(Stage.STORED, None, claim.delivery_id, BINDING, fingerprint_of("hello"), None)


def test_5_3_none_lock_exists(sender, script):
    sender.lock_path.parent.mkdir(mode=0o700)
    sender.lock_path.touch()
    report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, NO_IDS)
    assert "nothing was sent" in report.detail
    assert script.posts == []
    assert files(sender) == [sender.lock_path.name]


def test_5_4_none_to_held_by_another_bridge(sender, script):
    """The other bridge claims between this one's look and its own claim."""

    def overtaken():
        sender.claim_path.parent.mkdir(mode=0o700)
        sender.claim_path.write_bytes(encode_claim(HELD))
        return Response(200, binding_body())

    script.binding, script.receipt = [overtaken], [exact("uncertain")]
    report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, (HELD_ID, BINDING, HELD.fingerprint))
    assert script.posts == []
    assert script.calls[-1] == ("receipt", HELD_ID, BINDING, HELD.fingerprint)
    assert_held(sender)


@pytest.mark.parametrize("text", ["", " \r\n", "a" * (TEXT_BYTES_MAX + 1), "\u20ac" * (TEXT_BYTES_MAX // 3 + 1)])
def test_d_32_da_15_blank_and_oversize_text_makes_no_claim_and_no_request(sender, script, text):
    report = sender.send(text)
    assert (reach(report), ids(report)) == (Stop.REJECTED, NO_IDS)
    assert script.calls == []
    assert_clear(sender)


def test_d_32_the_bound_itself_is_allowed(sender, script):
    assert reach(sender.send("a" * TEXT_BYTES_MAX)) is Stage.STORED
    assert len(script.posts[0][2]) == TEXT_BYTES_MAX


def test_da_13_a_lone_surrogate_is_sent_and_claimed_as_u_fffd_and_nul_is_kept(sender, script):
    script.posted = [TimeoutError()]
    report = sender.send("a\ud800\0b")
    assert claim_of(sender).text == "a\ufffd\0b"
    assert [text for _, _, text in script.posts] == ["a\ufffd\0b"]
    assert report.fingerprint == fingerprint_of("a\ufffd\0b")


@pytest.mark.parametrize("text", [None, b"hello", 7])
def test_what_is_no_text_is_refused(sender, script, text):
    with pytest.raises(TypeError, match="text"):
        sender.send(text)
    assert script.calls == []


# -- held: the answer to the POST --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 202])
def test_5_5_held_post_answered_stored_exactly(sender, script, status):
    script.posted = [exact("stored", status, detail="kept")]
    report = sender.send("hello")
    assert (reach(report), report.detail) == (Stage.STORED, "kept")
    assert ids(report) == (script.posts[0][0], BINDING, fingerprint_of("hello"))
    assert_clear(sender)


@pytest.mark.parametrize("word", ["rejected", "unavailable"])
def test_5_6_held_post_answered_with_an_exact_refusal(sender, script, word):
    script.posted = [exact(word, detail="because")]
    report = sender.send("hello")
    assert (reach(report), report.detail) == (Stop(word), "because")
    assert report.delivery_id == script.posts[0][0]
    assert_clear(sender)


@pytest.mark.parametrize(
    "answer",
    [
        Response(200, body(received=True)),
        Response(200, receipt_body("stored", HELD_ID, BINDING, fingerprint_of("hello"))),
        Response(200, b"\xff"),
        exact("stored", binding=OTHER_BINDING),
        exact("uncertain"),
    ],
    ids=["8-legacy-success", "another id", "unreadable", "another binding", "uncertain"],
)
def test_5_7_held_post_answered_without_the_exact_triple(sender, script, answer):
    script.posted = [answer]
    report = sender.send("hello")
    assert reach(report) is Stop.UNCERTAIN
    assert ids(report) == (claim_of(sender).delivery_id, BINDING, fingerprint_of("hello"))
    assert len(script.posts) == 1
    assert_held(sender, "hello")


@pytest.mark.parametrize("status", [302, 307, 400, 401, 403, 404, 500])
@pytest.mark.parametrize("word", ["stored", "rejected", "unavailable"])
def test_5_8_and_5_9_held_post_answered_without_success_even_exactly(sender, script, status, word):
    script.posted = [exact(word, status)]
    report = sender.send("hello")
    assert (reach(report), report.delivery_id) == (Stop.UNCERTAIN, claim_of(sender).delivery_id)
    assert [call[0] for call in script.calls] == ["binding", "post"], "redirects are not followed"
    assert_held(sender, "hello")


@pytest.mark.parametrize("error", BROKEN, ids=repr)
def test_5_9_held_post_timed_out_or_reset(sender, script, error):
    script.posted = [error]
    report = sender.send("hello")
    assert (reach(report), report.delivery_id) == (Stop.UNCERTAIN, claim_of(sender).delivery_id)
    assert str(error) in report.detail
    assert [call[0] for call in script.calls] == ["binding", "post"]
    assert_held(sender, "hello")


@pytest.mark.parametrize("refreshed", [None, FileNotFoundError("no link")])
def test_5_10_and_12_d3_held_post_connection_refused_keeps_and_refreshes(sender, script, refreshed):
    script.posted, script.refreshed = [ConnectionRefusedError()], [refreshed]
    report = sender.send("hello")
    assert (reach(report), report.delivery_id) == (Stop.UNCERTAIN, claim_of(sender).delivery_id)
    assert [call[0] for call in script.calls] == ["binding", "post", "refresh"], "a POST is never repeated"
    assert_held(sender, "hello")


@pytest.mark.parametrize("answer", [None, "stored", (200, b""), Response("200", b""), Response(200, "{}")])
def test_an_answer_that_is_none_proves_nothing(sender, script, answer):
    script.posted = [answer]
    assert reach(sender.send("hello")) is Stop.UNCERTAIN
    assert_held(sender, "hello")
    script.receipt = [answer]
    assert reach(sender.send("hello")) is Stop.UNCERTAIN
    assert_held(sender, "hello")


# -- held: asking about the original -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["original", "another"])
def test_5_11_held_send_asks_about_the_original_only(held, script, text):
    script.receipt = [exact("uncertain")]
    report = held.send(text)
    assert script.calls == [("receipt", HELD_ID, BINDING, HELD.fingerprint)]
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, (HELD_ID, BINDING, HELD.fingerprint))
    assert_held(held)


@pytest.mark.parametrize("text", ["original", "original\r\n", "  original "])
def test_5_12_held_get_says_stored_and_this_is_its_text(held, script, text):
    report = held.send(text)
    assert report == SendReport(Stage.STORED, None, HELD_ID, BINDING, HELD.fingerprint, None)
    assert script.posts == []
    assert_clear(held)


def test_5_12_held_get_says_stored_and_this_is_another_text(held, script):
    report = held.send("another")
    assert (reach(report), ids(report)) == (Stop.UNAVAILABLE, NO_IDS)
    assert report.detail.startswith("original is stored, this one was not sent")
    assert HELD_ID in report.detail
    assert script.posts == []
    assert_clear(held)
    assert reach(held.send("another")) is Stage.STORED, "an explicit new send goes through"
    assert [text for _, _, text in script.posts] == ["another"]


@pytest.mark.parametrize(
    "answer",
    [
        Response(403, b""),
        exact("stored", 403),
        Response(404, b""),
        exact("uncertain"),
        exact("unavailable"),
        exact("rejected"),
        exact("stored", binding=OTHER_BINDING),
        exact("stored", delivery_id="00000000-0000-4000-8000-000000000000"),
        Response(200, body(version=1, received=True)),
        TimeoutError(),
        ConnectionRefusedError(),
    ],
    ids=[
        "8-denied", "8-denied, exactly", "404", "uncertain", "unavailable", "rejected", "other binding", "other id",
        "legacy", "timed out", "refused",
    ],
)  # fmt: skip
@pytest.mark.parametrize("text", ["original", "another"])
def test_5_13_held_get_says_anything_else(held, script, answer, text):
    script.receipt = [answer]
    report = held.send(text)
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, (HELD_ID, BINDING, HELD.fingerprint))
    assert script.posts == []
    assert_held(held)


def test_a_receipt_may_be_asked_for_once_more_at_a_refreshed_port(held, script):
    script.receipt = [ConnectionRefusedError(), exact("stored")]
    assert reach(held.send("original")) is Stage.STORED
    assert [call[0] for call in script.calls] == ["receipt", "refresh", "receipt"]
    assert_clear(held)


def test_10_9_identical_text_under_a_claim_is_the_original(sender, script):
    script.posted, script.receipt = [TimeoutError()], [exact("uncertain"), exact("stored")]
    reports = [sender.send("hello") for _ in range(3)]
    assert [reach(report) for report in reports] == [Stop.UNCERTAIN, Stop.UNCERTAIN, Stage.STORED]
    assert len({ids(report) for report in reports}) == 1
    assert len(script.posts) == 1


def test_identical_text_after_the_claim_is_a_second_message(sender, script):
    first, second = sender.send("hello"), sender.send("hello")
    assert first.delivery_id != second.delivery_id
    assert len(script.posts) == 2


# -- late, corrupt, locked ---------------------------------------------------------------------------------------


def test_5_14_a_newer_claim_took_its_place_a_late_answer_leaves_it_alone(sender, script, tmp_path):
    """The first POST's answer comes after another bridge has cleared the claim and made one of its own."""
    other_script = Script(posted=[TimeoutError()])
    other = ClaimedSender(tmp_path, SCOPE, other_script)

    def late(*request):
        assert reach(other.send("another")) is Stop.UNAVAILABLE, "resolves the original, unsent itself"
        assert reach(other.send("another")) is Stop.UNCERTAIN
        return exact("stored")(*request)

    script.posted = [late]
    assert reach(sender.send("hello")) is Stage.STORED, "its own result"
    assert_held(other, "another")
    assert [text for _, _, text in script.posts + other_script.posts] == ["hello", "another"]


def test_a_late_answer_that_finds_no_claim_is_told(sender, script, tmp_path):
    def late(*request):
        assert reach(ClaimedSender(tmp_path, SCOPE, Script()).send("hello")) is Stage.STORED
        return exact("stored")(*request)

    script.posted = [late]
    assert reach(sender.send("hello")) is Stage.STORED
    assert_clear(sender)


def test_5_15_corrupt(held, script):
    held.claim_path.write_bytes(held.claim_path.read_bytes()[:-1])
    before = held.claim_path.read_bytes()
    for text in ("original", "another"):
        report = held.send(text)
        assert (reach(report), ids(report)) == (Stop.UNCERTAIN, NO_IDS)
    assert script.calls == [], "nothing read, nothing sent"
    assert held.claim_path.read_bytes() == before


@pytest.mark.parametrize("text", ["original", "another"])
def test_5_16_and_12_o4_lock_left_behind_clear_after_an_exact_stored(held, script, text):
    held.lock_path.touch()
    report = held.send(text)
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, (HELD_ID, BINDING, HELD.fingerprint))
    assert script.count("receipt") == 1
    assert files(held) == sorted([held.claim_path.name, held.lock_path.name])
    held.lock_path.unlink()
    assert reach(held.send("original")) is Stage.STORED


@pytest.mark.parametrize("word", ["stored", "rejected", "unavailable"])
def test_a_lock_that_comes_during_the_post_keeps_the_claim(sender, script, word):
    def locked(*request):
        sender.lock_path.touch()
        return exact(word)(*request)

    script.posted = [locked]
    report = sender.send("hello")
    assert (reach(report), report.delivery_id) == (Stop.UNCERTAIN, script.posts[0][0])
    assert claim_of(sender).delivery_id == report.delivery_id


# -- files -------------------------------------------------------------------------------------------------------


def test_10_1_and_12_o3_and_d_29_one_file_a_scope_with_a_stable_name(tmp_path):
    paths = {ClaimedSender(tmp_path, (socket, pane), Script()).claim_path for socket in "ab" for pane in "12"}
    assert len(paths) == 4
    assert {path.parent for path in paths} == {tmp_path / "inbound-receipts"}
    assert {path.suffix for path in paths} == {".json"}
    sender = ClaimedSender(str(tmp_path), SCOPE, Script())
    assert sender.claim_path == ClaimedSender(tmp_path, SCOPE, Script()).claim_path
    assert sender.lock_path.parent == sender.claim_path.parent
    assert sender.lock_path != sender.claim_path


def test_two_panes_do_not_hinder_each_other(held, tmp_path):
    other = ClaimedSender(tmp_path, (SCOPE[0], "pane-2"), Script())
    assert reach(other.send("hello")) is Stage.STORED


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_the_folder_and_the_file_are_private(tmp_path, umask):
    sender = ClaimedSender(tmp_path / "new" / "state", SCOPE, Script(posted=[TimeoutError()]))
    before = os.umask(umask)
    try:
        sender.send("hello")
    finally:
        os.umask(before)
    assert stat.S_IMODE(sender.claim_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(sender.claim_path.parent.stat().st_mode) == 0o700


def test_a_folder_that_is_open_to_others_is_closed(held):
    held.claim_path.parent.chmod(0o755)
    held.send("original")
    assert stat.S_IMODE(held.claim_path.parent.stat().st_mode) == 0o700


def test_the_working_folder_may_change(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sender = ClaimedSender("state", SCOPE, Script(posted=[TimeoutError()]))
    monkeypatch.chdir("/")
    sender.send("hello")
    assert (tmp_path / "state/inbound-receipts").is_dir()


def test_everything_is_synced_before_the_post(sender, script, monkeypatch):
    """The record, then its name; and the folder's own name."""
    log = []
    fsync, link = os.fsync, os.link

    def traced_fsync(file):
        log.append(("fsync", os.fstat(file).st_ino))
        fsync(file)

    def traced_link(source, target, **options):
        log.append(("link", target))
        link(source, target, **options)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "link", traced_link)
    script.posted = [lambda *_: log.append("post")]
    sender.send("hello")
    claim, folder = sender.claim_path, sender.claim_path.parent
    assert log == [
        ("fsync", folder.parent.stat().st_ino),
        ("fsync", claim.stat().st_ino),
        ("link", claim.name),
        ("fsync", folder.stat().st_ino),
        "post",
    ]


def test_what_a_crash_left_of_a_record_means_nothing(sender):
    part = sender.claim_path.with_suffix(".part")
    part.parent.mkdir(mode=0o700)
    part.write_bytes(b"half of someth")
    assert reach(sender.send("hello")) is Stage.STORED
    assert_clear(sender)


@pytest.mark.parametrize("target", ["a claim", "nothing", "a folder"])
def test_a_symlink_at_the_claims_place_is_not_followed(sender, script, tmp_path, target):
    elsewhere = tmp_path / "elsewhere"
    if target == "a claim":
        elsewhere.write_bytes(encode_claim(HELD))
    elif target == "a folder":
        elsewhere.mkdir()
    sender.claim_path.parent.mkdir(mode=0o700)
    sender.claim_path.symlink_to(elsewhere)
    report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, NO_IDS)
    assert script.posts == []
    assert sender.claim_path.is_symlink()
    assert elsewhere.exists() == (target != "nothing")


@pytest.mark.parametrize("exists", [True, False])
def test_a_symlink_at_the_locks_place_is_a_lock(sender, script, tmp_path, exists):
    elsewhere = tmp_path / "elsewhere"
    if exists:
        elsewhere.write_text("mine")
    sender.lock_path.parent.mkdir(mode=0o700)
    sender.lock_path.symlink_to(elsewhere)
    assert reach(sender.send("hello")) is Stop.UNCERTAIN
    assert script.posts == []
    assert (elsewhere.read_text() == "mine") if exists else not elsewhere.exists()


def test_a_symlink_at_the_parts_place_is_not_followed(sender, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    sender.claim_path.parent.mkdir(mode=0o700)
    sender.claim_path.with_suffix(".part").symlink_to(elsewhere)
    assert reach(sender.send("hello")) is Stage.STORED
    assert elsewhere.read_text() == "mine"


@pytest.mark.parametrize("what", ["symlink", "file"])
def test_a_folder_that_is_none_blocks(sender, script, tmp_path, what):
    folder = sender.claim_path.parent
    if what == "file":
        folder.touch()
    else:
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, NO_IDS)
    assert script.calls == []


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_something_else_at_the_claims_place_blocks_at_once(sender, script, kind):
    sender.claim_path.parent.mkdir(mode=0o700)
    if kind == "folder":
        sender.claim_path.mkdir()
    else:
        os.mkfifo(sender.claim_path)
    assert reach(sender.send("hello")) is Stop.UNCERTAIN
    assert script.calls == []


def failing(monkeypatch, name, code, when):
    """Let the system call `name` fail with `code` whenever `when` says so of its arguments."""
    real = getattr(os, name)

    def call(*arguments, **options):
        if when(*arguments):
            raise OSError(code, os.strerror(code))
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_a_folder_that_cannot_be_read_is_not_taken_for_empty(sender, script, monkeypatch, code):
    sender.claim_path.parent.mkdir(mode=0o700)
    failing(monkeypatch, "open", code, lambda path, *_: path == sender.claim_path.parent)
    report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, NO_IDS)
    assert script.calls == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE])
def test_a_claim_that_cannot_be_read_blocks(held, script, monkeypatch, code):
    failing(monkeypatch, "open", code, lambda path, *_: path == held.claim_path.name)
    report = held.send("original")
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, NO_IDS)
    assert script.calls == []


def test_a_folder_of_another_user_blocks(held, script, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: held.claim_path.stat().st_uid + 1)
    assert reach(held.send("original")) is Stop.UNCERTAIN
    assert script.calls == []


def test_a_folder_that_cannot_be_made_leaves_the_service_unavailable(sender, script, monkeypatch):
    failing(monkeypatch, "mkdir", errno.EROFS, lambda *_: True)
    report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.UNAVAILABLE, NO_IDS)
    assert "nothing was sent" in report.detail
    assert script.posts == []


FULL = {
    "no lock": ("open", lambda path, *_: str(path).endswith(".lock")),
    "no part": ("open", lambda path, *_: str(path).endswith(".part")),
    "no link": ("link", lambda *_: True),
    "no sync": ("fsync", lambda *_: True),
}


@pytest.mark.parametrize(("name", "when"), FULL.values(), ids=FULL)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES])
def test_a_claim_that_cannot_be_made_durable_sends_nothing_and_is_not_in_the_way(
    sender, script, monkeypatch, name, when, code
):
    with monkeypatch.context() as patched:
        failing(patched, name, code, when)
        report = sender.send("hello")
    assert (reach(report), ids(report)) == (Stop.UNAVAILABLE, NO_IDS)
    assert os.strerror(code) in report.detail
    assert script.posts == []
    assert_clear(sender)
    assert reach(sender.send("hello")) is Stage.STORED


def test_a_claim_whose_name_cannot_be_synced_is_taken_back(sender, script, monkeypatch):
    folder = sender.claim_path.parent
    folder.mkdir(mode=0o700)
    inode = folder.stat().st_ino
    failing(monkeypatch, "fsync", errno.EIO, lambda file: os.fstat(file).st_ino == inode)
    assert reach(sender.send("hello")) is Stop.UNAVAILABLE
    assert script.posts == []
    assert_clear(sender)


def test_a_claim_that_can_neither_be_synced_nor_taken_back_stands(sender, script, monkeypatch):
    folder = sender.claim_path.parent
    folder.mkdir(mode=0o700)
    inode = folder.stat().st_ino
    failing(monkeypatch, "fsync", errno.EIO, lambda file: os.fstat(file).st_ino == inode)
    failing(monkeypatch, "unlink", errno.EIO, lambda path: path == sender.claim_path.name)
    assert reach(sender.send("hello")) is Stop.UNCERTAIN
    assert script.posts == []
    assert_held(sender, "hello")


def test_a_claim_made_without_the_lock_is_not_overwritten(sender, script, monkeypatch):
    link = os.link

    def late(source, target, **options):
        sender.claim_path.write_bytes(encode_claim(HELD))
        link(source, target, **options)

    monkeypatch.setattr(os, "link", late)
    assert reach(sender.send("hello")) is Stop.UNCERTAIN
    assert script.posts == []
    assert_held(sender)


@pytest.mark.parametrize(
    ("name", "when"),
    [("open", lambda path, *_: str(path).endswith(".lock")), ("unlink", lambda path: str(path).endswith(".json"))],
    ids=["no lock", "no unlink"],
)
def test_a_claim_that_cannot_be_removed_is_told_as_standing(held, script, monkeypatch, name, when):
    failing(monkeypatch, name, errno.ENOSPC, when)
    report = held.send("original")
    assert (reach(report), report.delivery_id) == (Stop.UNCERTAIN, HELD_ID)
    assert_held(held)


def test_a_lock_that_cannot_be_let_go_blocks_and_takes_nothing_back(sender, script, monkeypatch):
    failing(monkeypatch, "unlink", errno.EIO, lambda path: str(path).endswith(".lock"))
    script.posted = [TimeoutError()]
    report = sender.send("hello")
    assert (reach(report), report.delivery_id) == (Stop.UNCERTAIN, script.posts[0][0])
    assert sender.lock_path.exists()
    assert claim_of(sender).delivery_id == report.delivery_id


def test_no_descriptor_is_left_open(held, script):
    script.receipt, script.posted = [exact("uncertain"), exact("stored")], [TimeoutError(), exact("stored")]
    held.send("original")
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        held.send("original")
    held.claim_path.parent.mkdir(exist_ok=True)
    held.claim_path.write_bytes(b"damage")
    held.send("original")
    assert len(list(Path("/dev/fd").iterdir())) == before


@given(st.binary() | st.integers(0, 200).map(lambda cut: encode_claim(HELD)[:cut]))
def test_10_12_whatever_is_in_the_claims_file_nothing_is_posted_while_it_is_there(data):
    with tempfile.TemporaryDirectory() as folder:
        script = Script(receipt=[exact("uncertain")])
        sender = ClaimedSender(folder, SCOPE, script)
        sender.claim_path.parent.mkdir(mode=0o700)
        sender.claim_path.write_bytes(data)
        try:
            expected = decode_claim(data)
        except CorruptClaim:
            expected = None
        report = sender.send("hello")
        assert reach(report) is Stop.UNCERTAIN
        assert report.delivery_id == (expected and expected.delivery_id)
        assert script.count("receipt") == (expected is not None)
        assert script.posts == []
        assert sender.claim_path.read_bytes() == data


# -- settling (D-19, D4) -----------------------------------------------------------------------------------------


def test_12_d4_a_settled_claim_frees_the_scope_and_is_kept(held, script):
    report = held.settle(HELD_ID, "the owner, by hand")
    assert report == SendReport(None, Stop.UNCERTAIN, HELD_ID, BINDING, HELD.fingerprint, ABANDONED)
    assert script.calls == []
    [kept] = files(held)
    record = json.loads((held.claim_path.parent / kept).read_bytes())
    assert (record["delivery_id"], record["text"], record["approval"]) == (HELD_ID, "original", "the owner, by hand")
    report = held.send("another")
    assert reach(report) is Stage.STORED
    assert report.delivery_id != HELD_ID
    assert len(script.posts) == 1


def test_a_settled_id_stays_uncertain_however_often_it_is_settled(held):
    held.settle(HELD_ID, "the owner")
    for sender in (held, ClaimedSender(held.claim_path.parents[1], SCOPE, Script())):
        report = sender.settle(HELD_ID, "somebody else")
        assert (reach(report), report.delivery_id, report.detail) == (Stop.UNCERTAIN, HELD_ID, ABANDONED)
    [kept] = files(held)
    assert json.loads((held.claim_path.parent / kept).read_bytes())["approval"] == "the owner"


@pytest.mark.parametrize("answer", [exact("stored"), exact("unavailable"), exact("uncertain"), TimeoutError()])
def test_a_late_answer_for_a_settled_id_is_uncertain(sender, script, tmp_path, answer):
    def late(*request):
        owner = ClaimedSender(tmp_path, SCOPE, Script())
        assert owner.settle(request[0], "the owner").detail == ABANDONED
        assert reach(ClaimedSender(tmp_path, SCOPE, Script(posted=[TimeoutError()])).send("next")) is Stop.UNCERTAIN
        if isinstance(answer, Exception):
            raise answer
        return answer(*request)

    script.posted = [late]
    report = sender.send("hello")
    assert (reach(report), report.delivery_id, report.detail) == (Stop.UNCERTAIN, script.posts[0][0], ABANDONED)
    assert claim_of(sender).text == "next"


@pytest.mark.parametrize("text", ["original", "another"])
def test_a_late_receipt_for_a_settled_id_is_uncertain(held, script, tmp_path, text):
    def late(*request):
        ClaimedSender(tmp_path, SCOPE, Script()).settle(HELD_ID, "the owner")
        return exact("stored")(*request)

    script.receipt = [late]
    report = held.send(text)
    assert (reach(report), report.delivery_id, report.detail) == (Stop.UNCERTAIN, HELD_ID, ABANDONED)
    assert script.posts == []


def test_a_settlement_that_a_crash_cut_short_is_finished(held, script, monkeypatch):
    """The record is durable and the claim is still there."""
    with monkeypatch.context() as patched:
        failing(patched, "unlink", errno.EIO, lambda path: path == held.claim_path.name)
        assert reach(held.settle(HELD_ID, "the owner")) is Stop.UNCERTAIN
    assert held.claim_path.exists()
    assert len(files(held)) == 2
    assert held.settle(HELD_ID, "the owner").detail == ABANDONED
    held.claim_path.write_bytes(encode_claim(HELD))
    report = held.send("another")
    assert reach(report) is Stage.STORED
    assert [call[0] for call in script.calls] == ["binding", "post"], "the abandoned one is not asked about"


@pytest.mark.parametrize("name", ["open", "rename", "fsync"])
def test_a_settlement_that_cannot_be_recorded_changes_nothing(held, monkeypatch, name):
    with monkeypatch.context() as patched:
        failing(patched, name, errno.ENOSPC, lambda path, *_: not str(path).endswith((".json", "inbound-receipts")))
        report = held.settle(HELD_ID, "the owner")
    assert reach(report) is Stop.UNCERTAIN
    assert report.detail != ABANDONED
    assert held.claim_path.exists()


def test_an_id_that_is_not_claimed_here_is_not_settled(held):
    other = "00000000-0000-4000-8000-000000000000"
    report = held.settle(other, "the owner")
    assert (reach(report), report.delivery_id) == (Stop.UNCERTAIN, other)
    assert report.detail != ABANDONED
    assert_held(held)


def test_there_is_nothing_to_settle(sender):
    assert sender.settle(HELD_ID, "the owner").detail != ABANDONED
    assert not sender.claim_path.parent.exists()


def test_a_resolved_id_is_not_settled(sender):
    delivery_id = sender.send("hello").delivery_id
    assert sender.settle(delivery_id, "the owner").detail != ABANDONED
    assert_clear(sender)


@pytest.mark.parametrize("trouble", ["lock", "damage"])
def test_what_blocks_the_scope_blocks_its_settlement(held, trouble):
    if trouble == "lock":
        held.lock_path.touch()
    else:
        held.claim_path.write_bytes(b"{}")
    before = files(held)
    report = held.settle(HELD_ID, "the owner")
    assert (reach(report), report.delivery_id) == (Stop.UNCERTAIN, HELD_ID)
    assert report.detail != ABANDONED
    assert files(held) == before


@pytest.mark.parametrize("delivery_id", ["", HELD_ID.upper(), "../../etc/passwd", None])
def test_what_is_no_delivery_id_is_refused(held, delivery_id):
    with pytest.raises(InvalidIdentifier):
        held.settle(delivery_id, "the owner")
    assert_held(held)


@pytest.mark.parametrize("approval", ["", " ", None, True])
def test_a_settlement_needs_a_word(held, approval):
    with pytest.raises(ValueError, match="approval"):
        held.settle(HELD_ID, approval)
    assert_held(held)


@pytest.mark.parametrize("scope", [("", "p"), ("/s", "")])
def test_a_sender_needs_a_scope(tmp_path, scope):
    with pytest.raises(InvalidIdentifier):
        ClaimedSender(tmp_path, scope, Script())


# -- what it costs to load ---------------------------------------------------------------------------------------


def test_d_1_it_loads_the_standard_library_and_its_own_few_modules():
    statement = "from fencepost.mailbox import ClaimedSender, Response, SendReport, Transport, Stage, Stop, ladder"
    program = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True, text=True)
    loaded = set(run.stdout.split())
    assert {name for name in loaded if name.startswith("fencepost.")} == {
        "fencepost.mailbox",
        "fencepost.mailbox._lazy",
        "fencepost.mailbox.claim",
        "fencepost.mailbox.claim_files",
        "fencepost.mailbox.claim_record",
        "fencepost.mailbox.claimed_sender",
        "fencepost.mailbox.delivery_ids",
        "fencepost.mailbox.errors",
        "fencepost.mailbox.ladder",
        "fencepost.mailbox.text",
    }
    assert {name.split(".")[0] for name in loaded} <= sys.stdlib_module_names | {"fencepost"}
    slow = {"asyncio", "sqlite3", "http", "email", "ssl", "subprocess", "unittest"}
    assert slow & loaded == set(), "a hook is a process of its own and pays for this each time"


# -- pending -----------------------------------------------------------------------------------------------------


def test_pending_is_none_where_nothing_is_under_way_and_asks_nobody(sender, script):
    assert sender.pending() is None
    assert script.calls == []


def test_pending_asks_about_the_claimed_message_and_lets_go_of_one_that_is_stored(held, script):
    report = held.pending()
    assert (reach(report), ids(report)) == (Stage.STORED, (HELD_ID, BINDING, HELD.fingerprint))
    assert script.calls == [("receipt", HELD_ID, BINDING, HELD.fingerprint)]
    assert_clear(held)


@pytest.mark.parametrize("answer", [exact("uncertain"), exact("unavailable"), exact("stored", 404), *BROKEN])
def test_pending_leaves_the_claim_whatever_else_it_hears(held, script, answer):
    script.receipt = [answer]
    report = held.pending()
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, (HELD_ID, BINDING, HELD.fingerprint))
    assert script.posts == []
    assert_held(held)


def test_pending_says_so_where_the_claim_cannot_be_read(held, script):
    held.claim_path.write_bytes(b"{}")
    report = held.pending()
    assert (reach(report), ids(report)) == (Stop.UNCERTAIN, NO_IDS)
    assert script.calls == []
