"""A chaos test: the runtime and its actors die at every step of a delivery, and nothing an agent was told is lost."""

import trio

import fencepost.supervisor as fp

TOLD, LATER = fp.ModelTurn("turn-1", 1), fp.ModelTurn("turn-2", 2)


class Rebase:
    async def reconcile(self, attempt: fp.AttemptView) -> fp.Reconciled:
        await attempt.plan("rebase", "op-1")
        return fp.Reconciled("op-2", "commit-2", b"The base moved.", fp.Anchor("change-1", "commit-2", "op-2"))


async def deliver(url: str, chaos: fp.Chaos) -> None:
    async with fp.open_supervisor(url, reconciler=Rebase(), chaos=chaos) as supervisor:
        pane = supervisor.pane("pane-1")
        agent = (await pane.launch("agent")).incarnation_id
        intent = await pane.detect(fp.BaseTransition("parent_advance", "main-1", "main-2", "op-1", "push-7"))
        await pane.pre_tool_use(fp.ToolBoundary(agent, TOLD, "batch-1"))
        await pane.mark_delivered(intent.intent_id, agent, TOLD.id, "batch-1")
        await pane.post_tool_batch(agent, TOLD.id, "batch-1")
        assert await pane.pre_tool_use(fp.ToolBoundary(agent, LATER, "batch-2")) == fp.Allow()


async def main() -> None:
    chaos = fp.Chaos()
    chaos.kill_at("intent.prepare/committed", what="runtime")  # the payload is durable, and nobody was answered
    try:
        await deliver("memory://one-death", chaos)
    except fp.StoreFault as death:
        print(death)
    async with fp.open_supervisor("memory://one-death", reconciler=Rebase()) as supervisor:
        (intent,) = await supervisor.pane("pane-1").intents()
        again = fp.ToolBoundary(str(intent.incarnation_id), TOLD, "batch-1")  # the hook asks the new bridge
        answer = await supervisor.pane("pane-1").pre_tool_use(again)
        assert answer == fp.BlockPayload(intent.intent_id, b"The base moved."), answer

    deaths = await fp.Chaos().sweep(deliver, lambda name: f"memory://{name}")
    assert all(death.ok for death in deaths), [death for death in deaths if not death.ok]
    print(f"{len(deaths)} deaths, every store sound")


trio.run(main)
