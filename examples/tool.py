"""A tool in ten lines: kill this program while it works and run it again; what was done is not done again."""

from functools import partial

import trio

import fencepost.supervisor as fp


async def release(arguments: dict[str, list[str]], invocation: fp.Invocation) -> fp.ToolResult:
    log = ""
    for name in arguments["steps"]:
        log += await invocation.step(name, partial(work, name))  # recorded: a later run of this call skips it
        invocation.update(fp.ToolResult(log), checkpoint=True)  # what is left to show if the call is never finished
    return fp.ToolResult(log)


async def work(name: str) -> str:
    print(f"{name} …", flush=True)
    await trio.sleep(0.3)
    return f"{name}: done\n"


async def main() -> None:
    tool = fp.Tool("release", release, replay=fp.Replay.SAFE)  # safe: an interrupted call may be run again
    async with fp.open_supervisor("sqlite:///tools.db", tools=[tool]) as supervisor:
        pane = supervisor.pane("pane-1")
        if not await pane.batches():  # the first run; a later one finds the incarnation, and the batch as it stood
            await pane.launch("my-agent")
        call = fp.PlannedCall("call-1", "release", {"steps": ["test", "build", "publish"]})
        batch = await pane.start_batch("operation-1", fp.ModelTurn("turn-1", 1), "message-1", [call])
        for entry in (await batch.wait()).entries:  # the same ids and calls name the same batch, finished or not
            print(*(block["text"] for block in entry.content), end="")


trio.run(main)
