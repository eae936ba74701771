"""A stand-in for the Messages API: plays given turns, one a request that offers tools, and keeps what it was sent."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Block = dict[str, Any]


class MessagesApi:
    """What the model says next is taken from `turns`; after the last it says that it is done."""

    def __init__(self, turns: list[list[Block]]) -> None:
        self.turns = turns
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    def next_turn(self, request: dict[str, Any]) -> tuple[str, list[Block]]:
        if not request.get("tools"):
            return "msg_aside", [{"type": "text", "text": "aside"}]
        self.requests.append(request)
        blocks = self.turns.pop(0) if self.turns else [{"type": "text", "text": "done"}]
        return f"msg_{len(self.requests)}", blocks

    def results(self) -> dict[str, str]:
        """The text of each tool result the model was sent."""
        found = {}
        for request in self.requests:
            for message in request["messages"]:
                for block in message["content"] if isinstance(message["content"], list) else []:
                    if block.get("type") == "tool_result":
                        content = block["content"]
                        found[block["tool_use_id"]] = content if isinstance(content, str) else content[0]["text"]
        return found


def stream_of(message_id: str, blocks: list[Block], model: str) -> Iterator[bytes]:
    def event(kind: str, **data: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

    message = {"id": message_id, "type": "message", "role": "assistant", "model": model, "content": []}
    usage = {"input_tokens": 1, "output_tokens": 1}
    yield event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage})
    for index, block in enumerate(blocks):
        start: Block = {"type": "text", "text": ""}
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
def messages_api(*turns: list[Block]) -> Iterator[MessagesApi]:
    api = MessagesApi(list(turns))
    lock = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            """Say nothing."""

        def do_GET(self) -> None:
            self.answer(b"{}")

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if "count_tokens" in self.path:
                self.answer(b'{"input_tokens": 10}')
                return
            with lock:
                message_id, blocks = api.next_turn(request)
            self.answer(b"".join(stream_of(message_id, blocks, request["model"])), "text/event-stream")

        def answer(self, body: bytes, kind: str = "application/json") -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
