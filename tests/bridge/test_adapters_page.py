"""docs/adapters.md against the code: the adapter on the page works, and what the page names is there."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path

import pytest
from bridges import Workspace, moved, payload_of

from fencepost.supervisor import IntentState, Pane, open_supervisor
from fencepost.supervisor.bridge.adapters import Adapter, HookAnswer
from fencepost.supervisor.bridge.adapters.gate import Gate
from fencepost.supervisor.bridge.hook import open_spool
from fencepost.supervisor.bridge.startup_tag import tagged_input

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
TEXT = PAGE.read_text(encoding="utf-8")
MODULES = {
    "answers": "adapters.answers",
    "events": "adapters.events",
    "gate": "adapters.gate",
    "hook": "hook",
    "starting": "starting",
    "program": "program",
    "spool": "adapters.spool",
}


def adapter_on_the_page():
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names: dict = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names["PlainAdapter"]


async def test_the_adapter_on_the_page_blocks_restarts_tells_and_hears(tmp_path) -> None:
    adapter: Adapter = adapter_on_the_page()(Gate(tmp_path / "spool"))
    async with open_supervisor("memory://", reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane-1")

        async def hook(launch, name, **more) -> HookAnswer:
            event = {"hook_event_name": name, "turn_id": "t1", **more}
            return await adapter.on_hook(pane, launch.incarnation_id, event, 2.0)

        first = await pane.launch(adapter.harness, "session", adapter.capabilities("1.0"))
        assert await hook(first, "PreToolUse", tool_use_id="a") == HookAnswer()
        await pane.detect(moved("main-1", "main-2"))
        said = json.loads((await hook(first, "PreToolUse", tool_use_id="b")).stdout)
        assert said["hookSpecificOutput"]["permissionDecision"] == "deny"
        second = await pane.launch(adapter.harness, "session", adapter.capabilities("1.0"))
        assert second.startup.payload == payload_of("main-2")
        prompt = tagged_input(second.startup)
        await hook(second, "UserPromptSubmit", prompt=prompt, agent_id="nested")
        assert (await pane.intents())[0].state is IntentState.MATERIALIZED
        assert await hook(second, "UserPromptSubmit", prompt=prompt) == HookAnswer()
        assert (await pane.intents())[0].state is IntentState.DELIVERED
        assert await hook(second, "PreToolUse", tool_use_id="c") == HookAnswer()
        assert (await pane.intents())[0].state is IntentState.ACKNOWLEDGED


async def test_the_adapter_on_the_page_takes_in_what_passed_unseen(tmp_path) -> None:
    adapter = adapter_on_the_page()(Gate(tmp_path / "spool"))
    async with open_supervisor("memory://", reconciler=Workspace()) as supervisor:
        pane = supervisor.pane("pane-1")
        launch = await pane.launch(adapter.harness, "session", adapter.capabilities(None))
        event = {"hook_event_name": "PreToolUse", "turn_id": "t1", "tool_use_id": "a"}
        line = {"version": 1, "incarnation_id": launch.incarnation_id, "harness": "plain", "at": 1, "event": event}
        descriptor = open_spool(str(tmp_path / "spool"), "pane-1")
        os.write(descriptor, json.dumps(line).encode() + b"\n")
        os.close(descriptor)
        await pane.detect(moved("main-1", "main-2"))
        assert await adapter.on_hook(pane, launch.incarnation_id, event, 2.0) == HookAnswer()  # it ran already


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)", TEXT))))
def test_what_the_page_links_to_is_there(target: str) -> None:
    assert (PAGE.parent / target).exists()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([a-z_]+\.[A-Za-z_]+)(?:\([^`]*)?`", TEXT))))
def test_what_the_page_names_is_there(name: str) -> None:
    module, _, attribute = name.partition(".")
    if attribute == "py":
        assert list(PAGE.parents[1].glob(f"supervisor/bridge/**/{name}"))
    elif module in MODULES:
        assert hasattr(importlib.import_module(f"fencepost.supervisor.bridge.{MODULES[module]}"), attribute)
    else:
        assert module == "pane"
        assert hasattr(Pane, attribute)
