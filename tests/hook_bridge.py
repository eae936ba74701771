"""The hook route of a bridge over a real unix socket, and no more of one."""

from __future__ import annotations

import trio
from hook_programs import asked_of, response


class Bridge:
    """Answers hooks of one pane through one adapter; `marked` is what became of each report of a delivery."""

    def __init__(self, here, pane, adapter) -> None:
        self.here = here
        self.pane = pane
        self.adapter = adapter
        self.marked = []

    async def serve(self, task_status=trio.TASK_STATUS_IGNORED) -> None:
        with trio.socket.socket(trio.socket.AF_UNIX) as listener:
            await listener.bind(str(self.here.socket))
            listener.listen()
            task_status.started()
            await trio.serve_listeners(self.answer, [trio.SocketListener(listener)])

    async def answer(self, stream) -> None:
        data = b""
        while not data.endswith(b"}") or b"\r\n\r\n" not in data:
            data += await stream.receive_some()
        _, said = asked_of(data)
        if "event" in said:
            answer = await self.adapter.on_hook(self.pane, said["incarnation_id"], said["event"], said["wait_seconds"])
            delivered = answer.delivered and {
                name: getattr(answer.delivered, name) for name in answer.delivered.__slots__ if name[0] != "_"
            }
            body = {"stdout": answer.stdout.decode(), "exit_code": answer.exit_code, "delivered": delivered}
        else:
            self.marked.append(await self.pane.mark_delivered(**said["delivered"]))
            body = {"answer": "applied"}
        await stream.send_all(response({"version": 1, **body}))
        await stream.aclose()
