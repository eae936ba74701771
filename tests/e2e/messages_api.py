"""A stand-in for the Messages API: plays what a test wrote for each prompt, and keeps every request it was sent.

A conversation is known by a marker in its latest prompt, and how far it got by the assistant messages behind that
prompt.  So a request that is sent again is answered the same, and nested agents do not get into each other's way.
"""

from __future__ import annotations

import http.server
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from attrs import define, field, frozen

T = TypeVar("T")
Block = dict[str, Any]

PATIENCE_SECONDS: Final = 60.0
"""How long a test waits for a request before it fails."""


def text(said: str) -> Block:
    return {"type": "text", "text": said}


def tool_use(call_id: str, name: str = "Bash", **arguments: Any) -> Block:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def touch(call_id: str, path: str) -> Block:
    """A call that leaves a file behind, if it runs."""
    return tool_use(call_id, command=f"touch {path}")


@define(eq=False)
class Turn:
    """What the model says at once.  A held one is said when `go` is set; whoever asked waits until then."""

    blocks: Sequence[Block]
    go: threading.Event = field(factory=threading.Event)

    @classmethod
    def at_once(cls, *blocks: Block) -> Turn:
        turn = cls(blocks)
        turn.go.set()
        return turn

    @classmethod
    def held(cls, *blocks: Block) -> Turn:
        return cls(blocks)


@frozen
class Received:
    """One request of the model: the marker of its prompt, how many turns followed that, and what was sent."""

    marker: str
    turn: int
    body: Mapping[str, Any] = field(repr=False)

    @property
    def prompts(self) -> list[str]:
        """Every text of the user's, oldest first."""
        return [block["text"] for block in self._of_the_user("text")]

    @property
    def results(self) -> dict[str, bytes]:
        """What each tool call that the history still has is said to have given back, as bytes."""
        return {block["tool_use_id"]: _bytes_of(block["content"]) for block in self._of_the_user("tool_result")}

    def _of_the_user(self, kind: str) -> list[Block]:
        users = [message for message in self.body["messages"] if message["role"] == "user"]
        return [block for message in users for block in _blocks(message) if block["type"] == kind]


class MessagesApi:
    """See the module.  Its methods may be called from any thread; those that wait block."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Received] = []
        self.strange: list[str] = []
        self._scripts: dict[str, list[Turn]] = {}
        self._changed = threading.Condition()
        self._closed = False

    # -- for tests --

    def play(self, marker: str, *turns: Turn | list[Block]) -> None:
        """Say these, one after the other, to the prompt that has `marker` in it, and then that it is done."""
        made = [turn if isinstance(turn, Turn) else Turn.at_once(*turn) for turn in turns]
        with self._changed:
            self._scripts[marker] = [*made, Turn.at_once(text(f"{marker} is done"))]

    def wait_for(self, found: Callable[[Sequence[Received]], T | None]) -> T:
        """Return what `found` makes of the requests so far, once that is something.  Fails if it takes too long."""
        with self._changed:
            result = self._changed.wait_for(lambda: found(self.requests), PATIENCE_SECONDS)
            assert result, f"not asked within {PATIENCE_SECONDS:g} s; asked {self.requests}, strange {self.strange}"
            return result

    def asked(self, marker: str, turn: int) -> Received:
        """Wait for the request for that turn, counted from 0: it carries the results of the turn before."""
        return self.wait_for(lambda requests: next((one for one in requests if _is(one, marker, turn)), None))

    def times_asked(self, marker: str) -> int:
        return sum(one.marker == marker for one in self.requests)

    # -- for the server --

    def answer_to(self, body: dict[str, Any]) -> list[Block] | None:
        """Keep the request; return what is said to it, or None if nobody wrote that."""
        if not body.get("tools"):
            return [text("aside")]  # a title, a summary: no turn of a conversation
        with self._changed:
            received = self._placed(body)
            turns = self._scripts.get(received.marker, [])
            if received.turn >= len(turns):
                self.strange.append(f"turn {received.turn} of {received.prompts[-1]!r:.200}")
                self._changed.notify_all()
                return None
            self.requests.append(received)
            self._changed.notify_all()
        turn = turns[received.turn]
        turn.go.wait()
        return None if self._closed else list(turn.blocks)

    def _placed(self, body: dict[str, Any]) -> Received:
        marker, turn = "", 0
        for message in body["messages"]:
            if message["role"] == "assistant":
                turn += 1
            elif message["role"] == "user":
                said = "\n".join(block["text"] for block in _blocks(message) if block["type"] == "text")
                found = max((one for one in self._scripts if one in said), key=said.rfind, default=None)
                marker, turn = (marker, turn) if found is None else (found, 0)
        return Received(marker, turn, body)

    def close(self) -> None:
        """Let everybody go who waits for a turn that was held."""
        with self._changed:
            self._closed = True
            for turns in self._scripts.values():
                for turn in turns:
                    turn.go.set()


def _is(received: Received, marker: str, turn: int) -> bool:
    return (received.marker, received.turn) == (marker, turn)


def _blocks(message: Mapping[str, Any]) -> list[Block]:
    content = message["content"]
    return [text(content)] if isinstance(content, str) else content


def _bytes_of(content: str | list[Block]) -> bytes:
    if isinstance(content, str):
        return content.encode()
    return "".join(block["text"] for block in content if block["type"] == "text").encode()


def stream_of(blocks: Sequence[Block], model: str) -> Iterator[bytes]:
    """One assistant message as server-sent events."""

    def event(kind: str, **data: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

    message = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant", "model": model, "content": []}
    usage = {"input_tokens": 1, "output_tokens": 1}
    yield event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage})
    for index, block in enumerate(blocks):
        start: Block = text("")
        if block["type"] == "text":
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        yield event("content_block_start", index=index, content_block=start)
        yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 5})
    yield event("message_stop")


@contextmanager
def messages_api() -> Iterator[MessagesApi]:
    """Serve one on loopback.  Whoever leaves without an error has not been asked anything strange."""
    api = MessagesApi()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            """Say nothing."""

        def do_GET(self) -> None:
            self.answer(200, b"{}")

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if "count_tokens" in self.path:
                self.answer(200, b'{"input_tokens": 10}')
                return
            blocks = api.answer_to(body)
            if blocks is None:
                error = {"type": "error", "error": {"type": "invalid_request_error", "message": "nobody wrote that"}}
                self.answer(400, json.dumps(error).encode())
            else:
                self.answer(200, b"".join(stream_of(blocks, body["model"])), "text/event-stream")

        def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
            with suppress(ConnectionError):  # a client that was killed meanwhile
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)
                self.wfile.flush()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
        assert api.strange == []
    finally:
        api.close()
        server.shutdown()
        thread.join()
        server.server_close()
