"""The tag around a startup payload, by which a harness's hook tells that input from every other (section 7.3).

    <fencepost-startup id="ID">
    …payload, byte for byte…
    </fencepost-startup>

Pure.  The payload may contain such tags itself, so what counts is the first opening and the last closing one.  The tag
proves nothing: the pane compares id and hash with the attempt that it bound.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from attrs import frozen

from fencepost.supervisor import StartupDelivery

__all__ = ["PAYLOAD_BYTES_MAX", "StartupTag", "startup_of", "tagged_input"]

_OPENING: Final = re.compile(
    r'<fencepost-startup id="([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})">\n'  # a canonical UUID (contract G-14)
)
_CLOSING: Final = "\n</fencepost-startup>"
_TAG_BYTES: Final = len('<fencepost-startup id="">\n') + 36 + len(_CLOSING)
_ARGUMENT_BYTES_MAX: Final = 128 * 1024 - 1
"""Linux takes no longer argument of a command line."""
PAYLOAD_BYTES_MAX: Final = _ARGUMENT_BYTES_MAX - _TAG_BYTES
"""A longer payload could be told to the process that runs and to no successor of it."""


@frozen
class StartupTag:
    """What a tagged input carries: the one-use startup delivery id, and the payload's bytes."""

    startup_delivery_id: str
    payload: bytes

    @property
    def payload_sha256(self) -> str:
        """The hash `Pane.startup_ready` asks for, in lower-case hex."""
        return hashlib.sha256(self.payload).hexdigest()


def tagged_input(startup: StartupDelivery) -> str:
    """Return the text a replacement process is given as its first input (contract I-11).

    Raises UnicodeDecodeError for a payload that is not UTF-8, which no prepared intent has (I-15).
    """
    return f'<fencepost-startup id="{startup.startup_delivery_id}">\n{startup.payload.decode()}{_CLOSING}'


def startup_of(text: str) -> StartupTag | None:
    """Return what the tag in `text` carries, exactly; None where there is no whole tag.

    `text` is untrusted.  What stands around the tag is ignored.
    """
    opening = _OPENING.search(text)
    if opening is None:
        return None
    end = text.rfind(_CLOSING, opening.end())
    if end < 0:
        return None
    try:
        return StartupTag(opening[1], text[opening.end() : end].encode())
    except UnicodeEncodeError:
        return None  # a lone surrogate has no bytes, so this is no payload that was saved
