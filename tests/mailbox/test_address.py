"""Addresses read back as they were written, and ids are judged in one place."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fencepost.mailbox.address import ID_LENGTH_MAX, Address, check_id
from fencepost.mailbox.errors import FencepostError, InvalidIdentifier

PRINTABLE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=ID_LENGTH_MAX)


@given(PRINTABLE)
def test_printable_ascii_is_an_id(text):
    assert check_id("pane_id", text) is text


@pytest.mark.parametrize("bad", ["", "x" * 257, "\x1f", "\x7f", "ü", "a\nb", "\u2028", "\ud800", None, 5, b"x", True])
def test_anything_else_is_refused_by_field_and_value(bad):
    with pytest.raises(InvalidIdentifier) as refused:
        check_id("session_id", bad)
    assert refused.value.field == "session_id"
    assert refused.value.value is bad
    assert isinstance(refused.value, ValueError)
    assert isinstance(refused.value, FencepostError)
    assert "session_id" in str(refused.value)


def test_a_long_value_is_shown_short():
    with pytest.raises(InvalidIdentifier) as refused:
        check_id("pane_id", "x" * 1_000_000)
    assert len(str(refused.value)) < 500
    assert len(refused.value.value) == 1_000_000


def test_the_bound_itself_is_allowed():
    assert check_id("pane_id", "x" * 256)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (Address.pane("p"), "pane:p"),
        (Address.intent("i"), "intent:i"),
        (Address.batch("p", "o", "t"), "batch:p/o/t"),
        (Address("session", "s"), "session:s"),
        (Address.pane("a:b c"), "pane:a:b c"),
    ],
)
def test_an_address_reads_back_as_it_was_written(address, text):
    assert str(address) == text
    assert Address.parse(text) == address
    assert hash(Address.parse(text)) == hash(address)


@given(st.sampled_from(["pane", "session", "intent"]), PRINTABLE)
def test_every_id_makes_an_address(kind, key):
    assert Address.parse(str(Address(kind, key))) == Address(kind, key)


def test_a_batchs_address_may_be_longer_than_an_id():
    address = Address.batch("p" * 256, "o" * 256, "t" * 256)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "pane", "pane:", ":p", "pone:p", "PANE:p", " pane:p", "pane:ü", "pane:" + "x" * 257, None, 7, b"pane:p"],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InvalidIdentifier) as refused:
        Address.parse(text)
    assert refused.value.field == "address"
