"""OpenCode's plugin, driven by Node as OpenCode drives it: what it tells the hook program, and what it lets run."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from fencepost.supervisor.bridge import hook
from fencepost.supervisor.bridge.hook_settings import HookCommand, write_opencode_plugin
from fencepost.supervisor.bridge.opencode_plugin import OPENCODE_EVENTS, plugin_source

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="no node here: make test-opencode has the real one"
)

DRIVER = """
import { readFileSync } from "node:fs"
import plugin from "./plugin.mjs"

const get = async ({ path: { id } }) => {
  if (id === "broken") throw new Error("no server")
  return { data: id === "gone" ? undefined : { id, parentID: id === "child" ? "ses" : undefined } }
}
const hooks = await plugin({ client: { session: { get } } })
const did = []
for (const [kind, ...given] of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    await hooks[kind](...given)
    did.push(null)
  } catch (error) {
    did.push(error.message)
  }
}
await hooks.dispose()
console.log(JSON.stringify(did))
"""


class Plugin:
    """The plugin in a folder; its hook program writes down what it is told and does `answer`, a line of shell."""

    def __init__(self, folder: Path, answer: str = "true", timeout_seconds: int = 30) -> None:
        self.folder = folder
        self.told_to = folder / "told"
        tell = ["sh", "-c", f"cat >> '{self.told_to}'; echo >> '{self.told_to}'; {answer}"]
        self.write(plugin_source(dict.fromkeys(OPENCODE_EVENTS, tell), timeout_seconds))

    def write(self, source: str) -> None:
        (self.folder / "plugin.mjs").write_text(source, encoding="utf-8")
        (self.folder / "driver.mjs").write_text(DRIVER, encoding="utf-8")

    def did(self, *steps: list) -> list[str | None]:
        """For each step, what it threw, or None."""
        done = subprocess.run(
            ["node", "driver.mjs"],
            cwd=self.folder,
            input=json.dumps(steps),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def told(self) -> list[dict]:
        return [json.loads(line) for line in self.told_to.read_text(encoding="utf-8").splitlines()]


def part(call: str, message: str, session: str = "ses") -> list:
    made = {"type": "tool", "callID": call, "messageID": message, "sessionID": session}
    return ["event", {"event": {"type": "message.part.updated", "properties": {"part": made}}}]


def said(message: str, prompt: str, session: str = "ses", **more) -> list:
    info = {"id": message, "role": "assistant", "parentID": prompt, "sessionID": session, "time": {}, **more}
    return ["event", {"event": {"type": "message.updated", "properties": {"info": info}}}]


def answered(message: str, prompt: str, session: str = "ses", **more) -> list:
    return said(message, prompt, session, **{"finish": "stop", "time": {"completed": 1}, **more})


def call(call_id: str, session: str = "ses") -> list:
    return ["tool.execute.before", {"tool": "bash", "sessionID": session, "callID": call_id}, {"args": {}}]


def prompt(message: str, *parts: dict, session: str = "ses") -> list:
    return ["chat.message", {"sessionID": session}, {"message": {"id": message}, "parts": parts}]


def told_as(kind: str, session: str = "ses", **more) -> dict:
    return {"hook_event_name": kind, "session_id": session, **more}


@needs_node
def test_a_call_is_told_with_the_message_it_is_a_part_of_and_the_prompt_that_follows_from(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    text, added = {"type": "text", "text": 'say "ü"\n'}, {"type": "text", "text": "added", "synthetic": True}
    steps = [prompt("p1", text, added, {"type": "file"}), said("m1", "p1"), part("c", "m1"), call("c")]
    steps += [said("m2", "p2"), part("c", "m2"), call("c"), call("unheard of")]
    assert plugin.did(*steps) == [None] * len(steps)
    first, *calls, unknown = plugin.told()
    assert first == told_as("UserPromptSubmit", turn_id="p1", prompt='say "ü"\n')
    assert calls == [
        told_as("PreToolUse", tool_name="bash", turn_id="p1", tool_use_id="m1/c"),
        told_as("PreToolUse", tool_name="bash", turn_id="p2", tool_use_id="m2/c"),
    ]
    assert unknown["turn_id"] == ""
    assert unknown["tool_use_id"].endswith("/unheard of")
    assert len(unknown["tool_use_id"]) > len("/unheard of")


@needs_node
def test_only_an_answer_is_told_as_one_and_once_and_before_the_next_call(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    steps = [
        said("m1", "p1", finish="tool-calls", time={"completed": 1}),
        answered("m2", "p1", time={}),
        answered("m2", "p2", error={"name": "MessageAbortedError"}),
        answered("m2", "p3", summary=True),
        answered("m3", "p4"),
        answered("m3", "p4"),
        call("c"),
    ]
    plugin.did(*steps)
    answer, next_call = plugin.told()
    assert answer == told_as("Stop", turn_id="p4")
    assert next_call["hook_event_name"] == "PreToolUse"


@needs_node
def test_what_is_taken_back_or_compacted_is_forgotten_and_nothing_else(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)

    def removed(message: str) -> list:
        return [
            "event",
            {"event": {"type": "message.removed", "properties": {"sessionID": "ses", "messageID": message}}},
        ]

    compacted = ["event", {"event": {"type": "session.compacted", "properties": {"sessionID": "ses"}}}]
    plugin.did(removed("p1"), answered("m1", "p1"), removed("m1"), removed("p1"), compacted)
    assert plugin.told() == [told_as("Stop", turn_id="p1"), told_as("Forgotten"), told_as("Forgotten")]


@needs_node
@pytest.mark.parametrize("session", ["child", "gone", "broken"])
def test_whatever_is_of_an_agent_or_of_nobody_known_says_so(tmp_path: Path, session: str) -> None:
    plugin = Plugin(tmp_path)
    plugin.did(prompt("p1", session=session), answered("m1", "p1", session), call("c", session))
    assert [one.get("agent_id") for one in plugin.told()] == [session] * 3


DENIAL = json.dumps({"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": 'no "ü"\n\n'}})


@needs_node
@pytest.mark.parametrize(
    ("answer", "thrown"),
    [
        ("true", None),
        (f"cat <<'E'\n{DENIAL}\nE", 'no "ü"\n\n'),
        ("echo", hook.NO_ANSWER),
        ("exit 1", hook.NO_ANSWER),
        ("kill -9 $$", hook.NO_ANSWER),
        ("echo '{}'", hook.NO_ANSWER),
        ("echo null", hook.NO_ANSWER),
        ('echo \'{"hookSpecificOutput": {"permissionDecision": "allow"}}\'', hook.NO_ANSWER),
        ('printf %s \'{"hookSpecificOutput": {"permissionDecision": "deny", "permissionDec\'', hook.NO_ANSWER),
        (
            'echo \'{"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": ""}}\'',
            hook.NO_ANSWER,
        ),
        (f"cat <<'E'\n{DENIAL}\nE\nexit 1", hook.NO_ANSWER),
    ],
)
def test_only_silence_with_status_0_lets_a_call_run(tmp_path: Path, answer: str, thrown: str | None) -> None:
    assert Plugin(tmp_path, answer).did(call("c")) == [thrown]


@needs_node
def test_a_hook_program_that_is_late_or_missing_lets_no_call_run(tmp_path: Path) -> None:
    assert Plugin(tmp_path, "exec sleep 60", timeout_seconds=1).did(call("c")) == [hook.NO_ANSWER]
    plugin = Plugin(tmp_path)
    plugin.write(plugin_source({event: ["/nonexistent"] for event in OPENCODE_EVENTS}, 30))
    assert plugin.did(prompt("p1"), answered("m1", "p1"), call("c")) == [None, None, hook.NO_ANSWER]


@needs_node
def test_the_generated_plugin_runs_the_real_hook_program_which_denies_where_nobody_serves(tmp_path: Path) -> None:
    source = write_opencode_plugin(tmp_path / "settings", "one", HookCommand()).read_text(encoding="utf-8")
    plugin = Plugin(tmp_path)
    plugin.write(source)
    (thrown,) = plugin.did(call("c"))
    assert thrown in {hook.NO_BARRIER_KNOWN, hook.NO_ANSWER, hook.NOT_ADMITTED}
