"""An adapter for a harness whose prompt and calls share a `turn_id`, told by a restart only (docs/adapters.md)."""

from collections.abc import Mapping

from attrs import evolve

from fencepost.supervisor import Capabilities, Pane, ToolBoundary
from fencepost.supervisor.bridge.adapters import HookAnswer
from fencepost.supervisor.bridge.adapters.answers import answer_of
from fencepost.supervisor.bridge.adapters.events import kind_of, optional, required, unproved_batch
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.adapters.spool import Unseen
from fencepost.supervisor.bridge.startup_tag import startup_of

Event = Mapping[str, object]


class PlainAdapter:
    harness = "plain"

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        gate.retell_by(self.harness, self._retell)
        self._echoes: dict[tuple[str, str, str], str] = {}  # bound it, for each pane: prompts are many

    def capabilities(self, _version: str | None) -> Capabilities:
        return Capabilities(soft_batches=False, turn_order=False)

    async def on_hook(self, pane: Pane, incarnation_id: str, event: Event, wait_seconds: float) -> HookAnswer:
        match kind_of(event):
            case "PreToolUse":
                boundary = self._boundary(pane, incarnation_id, event)
                decision = await self._gate.pre_tool_use(pane, boundary, wait_seconds)
                return answer_of(decision, boundary, verbatim=False)
            case "UserPromptSubmit" if not optional(event, "agent_id"):
                await self._prompt(pane, incarnation_id, event)
            case _:
                pass
        return HookAnswer()

    def _boundary(self, pane: Pane, incarnation_id: str, event: Event) -> ToolBoundary:
        turn_id, call = optional(event, "turn_id"), required(event, "tool_use_id")
        echo = None if optional(event, "agent_id") else self._echoes.get((pane.pane_id, incarnation_id, turn_id))
        batch = unproved_batch(turn_id, call)
        return ToolBoundary(incarnation_id, None, batch, call, startup_delivery_id=echo)

    async def _prompt(self, pane: Pane, incarnation_id: str, event: Event) -> None:
        prompt, turn_id = event.get("prompt"), optional(event, "turn_id")
        tag = startup_of(prompt) if isinstance(prompt, str) else None
        if tag is not None and turn_id:
            self._echoes[pane.pane_id, incarnation_id, turn_id] = tag.startup_delivery_id
            await pane.startup_ready(incarnation_id, tag.startup_delivery_id, tag.payload_sha256)

    async def _retell(self, pane: Pane, unseen: Unseen) -> bool:
        """Whether the pane knows now what a hook let pass; False: it is not clear what did."""
        if kind_of(unseen.event) != "PreToolUse":
            return True
        passed = self._boundary(pane, unseen.incarnation_id, unseen.event)
        await pane.pre_tool_use(evolve(passed, passed_unseen="yes"), wait_seconds=0)
        return True
