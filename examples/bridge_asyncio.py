"""A bridge in thirty lines, on asyncio: an agent is told what moved before any of its tools acts on it."""

import asyncio

import fencepost.supervisor as fp


class Rebase:
    async def reconcile(self, attempt: fp.AttemptView) -> fp.Reconciled:
        base = attempt.intent.to_base
        await attempt.plan(f"rebase-{base}", "op-1")  # durable; only now may files change
        payload = f"The base moved to {base}. Read again before you write.\n".encode()
        return fp.Reconciled("op-2", "commit-2", payload, fp.Anchor("change-1", "commit-2", "op-2"))


async def hook(pane: fp.Pane, agent: str, turn: fp.ModelTurn) -> None:
    decision = await pane.pre_tool_use(fp.ToolBoundary(agent, turn, f"{turn.id}-tools"))
    print(f"{turn.id}: {decision}")  # a blocked tool does not run; the model reads these exact bytes instead
    if isinstance(decision, fp.BlockPayload):
        await pane.mark_delivered(decision.intent_id, agent, turn.id, f"{turn.id}-tools")


async def main() -> None:
    async with fp.open_supervisor("sqlite:///bridge.db", reconciler=Rebase()) as supervisor:
        pane = supervisor.pane("pane-1")
        agent = (await pane.launch("claude-code")).incarnation_id  # committed: start the process now
        await pane.detect(fp.BaseTransition("parent_advance", "main-1", "main-2", "op-1", "push-7"))
        for turn in (fp.ModelTurn("turn-1", 1), fp.ModelTurn("turn-2", 2)):
            async with asyncio.TaskGroup() as tools:  # the model's parallel tool calls
                for _call in range(2):
                    tools.create_task(hook(pane, agent, turn))
            await pane.post_tool_batch(agent, turn.id, f"{turn.id}-tools")
        for intent in await pane.intents():
            print(f"{intent.to_base}: {intent.state}, {await pane.sync_status()}")  # turn 2 proved that it was read


asyncio.run(main())
