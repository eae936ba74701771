"""The tag gives back the id and the payload it was made of, whatever the payload holds."""

from __future__ import annotations

import hashlib
import uuid

import pytest
from hypothesis import example, given, strategies as st

from fencepost.supervisor import StartupDelivery
from fencepost.supervisor.bridge.startup_tag import StartupTag, startup_of, tagged_input

ID = "6f1c2a52-0d5f-4a0e-9df4-1f3b8f4a9b10"
OTHER = "00000000-0000-4000-8000-000000000000"


def startup(payload: bytes, delivery_id: str = ID) -> StartupDelivery:
    return StartupDelivery(delivery_id, "intent", payload, hashlib.sha256(payload).hexdigest())


def test_the_tag_is_the_agreed_one() -> None:
    assert tagged_input(startup(b"two\nlines")) == f'<fencepost-startup id="{ID}">\ntwo\nlines\n</fencepost-startup>'


texts = st.text(st.characters(codec="utf-8"))
tags = st.sampled_from([f'<fencepost-startup id="{OTHER}">\n', "\n</fencepost-startup>", "\r\n", "\0", "é"])


@given(st.lists(texts | tags).map("".join), st.uuids().map(str))
@example("", ID)
@example("\n", ID)
@example(tagged_input(startup(b"nested", OTHER)), ID)
@example("\n</fencepost-startup>", ID)
def test_the_inverse_is_exact(payload: str, delivery_id: str) -> None:
    made = startup(payload.encode(), delivery_id)
    found = startup_of(tagged_input(made))
    assert found == StartupTag(delivery_id, made.payload)
    assert found.payload_sha256 == made.payload_sha256


def test_text_around_the_tag_is_ignored() -> None:
    text = f"  before\n{tagged_input(startup(b'payload'))}\nafter "
    assert startup_of(text) == StartupTag(ID, b"payload")


@given(st.text())
@example(f'<fencepost-startup id="{ID}">\nno end')
@example(f'<fencepost-startup id="{ID}">\n</fencepost-startup>')  # the two line ends are the tag's, and one is missing
@example(f'\n</fencepost-startup><fencepost-startup id="{ID}">\n')
@example(f'<fencepost-startup id="{ID.upper()}">\np\n</fencepost-startup>')
@example(f'<fencepost-startup id="{ID}">\r\np\r\n</fencepost-startup>')
@example(f'<fencepost-startup id="{ID}">\n\ud800\n</fencepost-startup>')
@example('<fencepost-startup id="../../etc">\np\n</fencepost-startup>')
def test_anything_else_is_no_tag(text: str) -> None:
    assert startup_of(text) is None


def test_a_payload_that_is_no_text_cannot_be_tagged() -> None:
    with pytest.raises(UnicodeDecodeError):
        tagged_input(startup(b"\xff"))


def test_ids_are_those_the_runtime_mints() -> None:
    assert startup_of(tagged_input(startup(b"p", str(uuid.uuid4())))) is not None
