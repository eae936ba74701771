"""What a claimed sender talks to in the tests: a script of answers, or a small service that behaves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from fencepost.mailbox import Response
from fencepost.mailbox.claim import fingerprint_of

BINDING = "b" * 64
OTHER_BINDING = "0" * 64
SCOPE = ("/run/terminal.sock", "pane-1")


def body(**members) -> bytes:
    return json.dumps(members).encode()


def binding_body(binding=BINDING) -> bytes:
    return body(version=1, binding=binding)


def receipt_body(word, delivery_id, binding, fingerprint, /, **more) -> bytes:
    members = {"version": 1, "received": word == "stored", "stage": word}
    return body(**members | {"delivery_id": delivery_id, "binding": binding, "fingerprint": fingerprint} | more)


def exact(word, status=200, **more) -> Callable[..., Response]:
    """An answer that says `word` of exactly what it is asked about, to a POST as to a GET."""

    def answer(delivery_id, binding, text_or_fingerprint, is_text):
        fingerprint = fingerprint_of(text_or_fingerprint) if is_text else text_or_fingerprint
        return Response(status, receipt_body(word, delivery_id, binding, fingerprint, **more))

    return answer


@dataclass
class Script:
    """A transport that answers each kind of request in one way, or in one way after the other, and counts them.

    An answer is a Response, an exception to raise, or a callable that is handed the request.  The last one stays.
    """

    binding: list = field(default_factory=lambda: [Response(200, binding_body())])
    posted: list = field(default_factory=lambda: [exact("stored")])
    receipt: list = field(default_factory=lambda: [exact("stored")])
    refreshed: list = field(default_factory=lambda: [None])
    calls: list = field(default_factory=list)

    def count(self, kind) -> int:
        return sum(call[0] == kind for call in self.calls)

    @property
    def posts(self) -> list:
        return [call[1:] for call in self.calls if call[0] == "post"]

    def _next(self, answers, *request):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer = answer(*request) if callable(answer) else answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def read_binding(self):
        self.calls.append(("binding",))
        return self._next(self.binding)

    def post(self, delivery_id, binding, text):
        self.calls.append(("post", delivery_id, binding, text))
        return self._next(self.posted, delivery_id, binding, text, True)

    def read_receipt(self, delivery_id, binding, fingerprint):
        self.calls.append(("receipt", delivery_id, binding, fingerprint))
        return self._next(self.receipt, delivery_id, binding, fingerprint, False)

    def refresh(self):
        self.calls.append(("refresh",))
        return self._next(self.refreshed)


@dataclass
class Service:
    """A service that accepts each id once and answers truthfully; its own transport, safe to share between threads."""

    binding: str = BINDING
    accepted: dict[str, tuple[str, str]] = field(default_factory=dict)
    posts: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read_binding(self):
        return Response(200, binding_body(self.binding))

    def post(self, delivery_id, binding, text):
        with self.lock:
            self.posts.append((delivery_id, text))
            self.accepted.setdefault(delivery_id, (binding, fingerprint_of(text)))
        return self.read_receipt(delivery_id, binding, fingerprint_of(text))

    def read_receipt(self, delivery_id, binding, fingerprint):
        with self.lock:
            known = self.accepted.get(delivery_id) == (binding, fingerprint)
        return Response(200, receipt_body("stored" if known else "uncertain", delivery_id, binding, fingerprint))

    def refresh(self):
        pass
