"""A stand-in for the Responses API: plays given turns, one a request, and keeps whatever the model was sent.

    with responses_api([shell("a", "touch x"), shell("b", "touch y")]) as api:
        ...  # run a harness whose provider has `api.url` as its base_url
        api.inputs()  # what the model received, request by request

A turn is the output items of one response, or makes them from the request.  A `Held` turn is answered only once the
test lets it go, so that something can be killed while the model is provably being waited for.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from attrs import define, field, frozen

Item = dict[str, Any]


@frozen(eq=False)
class Held:
    """A turn that waits: `asked` is set when the harness asks for it, and `go` is set by the test."""

    items: Sequence[Item] = ()
    asked: threading.Event = field(factory=threading.Event)
    go: threading.Event = field(factory=threading.Event)


Turn: TypeAlias = Sequence[Item] | Held | Callable[[dict[str, Any]], Sequence[Item]]


@define
class ResponsesApi:
    """What the model says next is taken from `turns`; after the last it says that it is done."""

    turns: list[Turn]
    apart: dict[str, list[list[Turn]]] = field(factory=dict)
    """Turns for prompts that hold the text, in the order they are given: of a nested agent, of a later process.  So an
    earlier one, which may ask once more before it ends, takes nothing that is meant for its successor."""
    requests: list[dict[str, Any]] = field(factory=list)
    """The bodies of the requests that offer tools, in the order they came."""
    asides: list[dict[str, Any]] = field(factory=list)
    """The bodies of those that do not: a title for the conversation, for example."""
    heads: list[tuple[str, dict[str, str]]] = field(factory=list)
    """Method with path, and headers with lower-case names, of every request, GETs too."""
    url: str = ""
    _lock: threading.Lock = field(factory=threading.Lock)
    _ended: threading.Event = field(factory=threading.Event)
    _begun: dict[str, list[Turn]] = field(factory=dict)

    def next_turn(self, request: dict[str, Any]) -> tuple[str, Sequence[Item]]:
        """Record a request; the id and the items of the response to it."""
        with self._lock:
            if not request.get("tools"):
                self.asides.append(request)
                return f"resp_aside_{len(self.asides)}", [says("aside")]
            self.requests.append(request)
            response_id = f"resp_{len(self.requests)}"
            turns = self._turns_of(_texts(request)[-1])
            turn = turns.pop(0) if turns else [says("done")]
        if not isinstance(turn, Held):
            return response_id, turn(request) if callable(turn) else turn
        turn.asked.set()
        while not (turn.go.wait(0.05) or self._ended.is_set()):
            pass
        return response_id, turn.items

    def _turns_of(self, prompt: str) -> list[Turn]:
        for text, in_order in self.apart.items():
            if text in prompt and prompt not in self._begun:
                self._begun[prompt] = in_order.pop(0) if in_order else []
        return self._begun.get(prompt, self.turns)

    def inputs(self) -> list[list[Item]]:
        """What the model was sent, one list of input items a request."""
        return [request["input"] for request in list(self.requests)]

    def prompts(self, request: int = -1) -> list[str]:
        """Everything one request, by default the last, has in the user's name, oldest first."""
        return _texts(self.requests[request])

    def results(self) -> dict[str, str]:
        """The text of each tool result that any request carried, by call id."""
        return {call: text for request in list(self.requests) for call, text in results_in(request).items()}

    def end(self) -> None:
        """Let every held turn go, so that no thread stays."""
        self._ended.set()


def results_in(request: dict[str, Any]) -> dict[str, str]:
    """The text of each tool result in one request, by call id."""
    outputs = [item for item in request["input"] if str(item.get("type")).endswith("_call_output")]
    return {item["call_id"]: _text(item["output"]) for item in outputs}


def _text(output: object) -> str:
    return output if isinstance(output, str) else json.dumps(output)


def _texts(request: dict[str, Any]) -> list[str]:
    said = [item for item in request["input"] if item.get("role") == "user"]
    return [part["text"] for item in said for part in item["content"] if "text" in part]


def says(text: str) -> Item:
    """The model's words."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "id": "msg_said", "status": "completed", "content": content}


def calls(call_id: str, name: str, *, namespace: str | None = None, **arguments: object) -> Item:
    """A function call."""
    where = {} if namespace is None else {"namespace": namespace}
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": json.dumps(arguments),
        "status": "completed",
        **where,
    }


def shell(call_id: str, command: str) -> Item:
    """A call of the harness's shell."""
    return calls(call_id, "exec_command", cmd=command)


def stream_of(response_id: str, items: Sequence[Item]) -> Iterator[bytes]:
    """The server-sent events of one response, in the order the real one sends them."""

    def event(kind: str, **data: object) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

    response = {"id": response_id, "object": "response", "status": "in_progress", "output": []}
    usage = {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    }
    yield event("response.created", response=response)
    for index, item in enumerate(items):
        yield event("response.output_item.done", output_index=index, item=item)
    completed = {**response, "status": "completed", "output": list(items), "usage": usage}
    yield event("response.completed", response=completed)


def _handler(api: ResponsesApi) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            """Say nothing."""

        def do_GET(self) -> None:
            self.note()
            self.answer(b'{"models": [], "data": []}')

        def do_POST(self) -> None:
            self.note()
            body = self.rfile.read(int(self.headers["content-length"]))
            if not self.path.endswith("/responses"):
                self.answer(b"{}")
                return
            response_id, items = api.next_turn(json.loads(body))
            self.answer(b"".join(stream_of(response_id, items)), "text/event-stream")

        def note(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            api.heads.append((f"{self.command} {self.path}", headers))

        def answer(self, body: bytes, kind: str = "application/json") -> None:
            with suppress(ConnectionError):  # whoever asked was killed
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

    return Handler


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # they are waited for at the end, so none of them outlives its test


@contextmanager
def responses_api(*turns: Turn) -> Iterator[ResponsesApi]:
    """Serve on loopback; `url` is the provider's base_url."""
    api = ResponsesApi(list(turns))
    server = _Server(("127.0.0.1", 0), _handler(api))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    api.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield api
    finally:
        api.end()
        server.shutdown()
        thread.join()
        server.server_close()
