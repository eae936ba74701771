"""Text of others, with nothing in it that a terminal might obey."""

from __future__ import annotations

import pytest

from fencepost.supervisor.bridge.escaped import error_told, escaped


@pytest.mark.parametrize(
    ("text", "kept", "shown"),
    [
        ("", "", ""),
        ("naïve → 漢字", "", "naïve → 漢字"),
        ("\x1b]0;owned\x07", "", "\\x1b]0;owned\\x07"),
        ("a\u202eb\u2028c\x85", "", "a\\u202eb\\u2028c\\x85"),
        ("\udc80\U0010ffff", "", "\\udc80\\U0010ffff"),
        ("one\n\ttwo\r", "\n\t", "one\n\ttwo\\r"),
        ("one\n\ttwo\r", "", "one\\n\\ttwo\\r"),
    ],
)
def test_what_is_not_printable_is_spelled_out(text, kept, shown):
    assert escaped(text, keep=kept) == shown


def test_an_error_is_told_in_one_line_without_the_text_that_could_not_be_encoded():
    assert error_told(ValueError("a\nb → c")) == "ValueError('a\\nb \\u2192 c')"
    with pytest.raises(UnicodeEncodeError) as caught:
        "the payload \ud800".encode()
    assert "the payload" in repr(caught.value)
    assert "the payload" not in error_told(caught.value)
    assert "in position 12" in error_told(caught.value)
    assert len(error_told(ValueError("x" * 1000))) == 300
