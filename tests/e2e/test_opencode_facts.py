"""What the real OpenCode does, as far as the plugin, command line and adapter rest on it (docs/harnesses.md)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from e2e.messages_api import Turn, text, tool_use
from e2e.opencode_place import OPENCODE, VERSION, OpenCodePlace, bash, needs_opencode, opencode_place, server
from launch_world import eventually

from fencepost.supervisor.bridge import hook
from fencepost.supervisor.bridge.opencode_plugin import OPENCODE_EVENTS, plugin_source

pytestmark = needs_opencode

LOGGING = Path(__file__).with_name("opencode_log.js").read_text(encoding="utf-8")
PARALLEL = [bash("a", "touch x"), bash("b", "touch y")]
SAID = 'ünï "quoted" — no\n  second line\t\\\n\n'


def logging(there: OpenCodePlace, **more: str) -> dict[str, str]:
    return {**there.plugin(LOGGING), "LOG": str(there.folder / "log.jsonl"), **more}


def session_in(said: str) -> str:
    return json.loads(said.splitlines()[0])["sessionID"]


def events(there: OpenCodePlace, kind: str) -> list[dict[str, Any]]:
    return [one["properties"] for one in there.heard("event") if one["type"] == kind]


def test_the_binary_is_of_the_version_these_facts_are_about() -> None:
    with opencode_place() as there:
        asked = subprocess.run(
            [OPENCODE, "--version"], env=there.environment(), capture_output=True, text=True, check=True
        )
    assert asked.stdout == f"{VERSION}\n"


@pytest.mark.parametrize("times", [1, 20_000])
def test_what_a_plugin_throws_blocks_a_call_and_reaches_the_model_byte_for_byte(times: int) -> None:
    with opencode_place() as there:
        there.api.play(
            "go now", [bash("a", "touch x"), tool_use("b", "write", filePath=str(there.project / "y"), content="y")]
        )
        more = {"LOG_DOES": "throw", "LOG_SAYS": SAID, "LOG_TIMES": str(times)}
        there.run("run", prompt="go now", **logging(there, **more))
        assert there.files() == []
        assert there.api.asked("go now", 1).results == dict.fromkeys("ab", (SAID * times).encode())


def test_the_prompt_and_the_message_of_a_call_are_told_before_it_and_the_end_of_all_calls_after_them() -> None:
    with opencode_place() as there:
        there.api.play("go now", PARALLEL)
        there.run("run", prompt="go now", **logging(there))
        seen: list[tuple[str, ...]] = []
        (prompt,) = there.heard("prompt")
        for one in there.heard():
            said = one.get("properties", {})
            if one["kind"] == "call":
                seen.append(("call", one["callID"]))
            elif one.get("type") == "message.part.updated" and said["part"]["type"] == "tool":
                part = said["part"]
                seen.append(("part", part["messageID"], part["callID"], part["state"]["status"]))
            elif one.get("type") == "message.updated" and said["info"]["role"] == "assistant":
                info = said["info"]
                assert info["parentID"] == prompt["message"]["id"]
                seen.append(("message", info["id"], str(info.get("finish")), str("completed" in info["time"])))
        (first, last) = dict.fromkeys(one[1] for one in seen if one[0] == "message")
        at = {one: place for place, one in reversed(list(enumerate(seen)))}
        for call in "ab":
            assert at["message", first, "None", "False"] < at["part", first, call, "pending"] < at["call", call]
            assert at["call", call] < at["part", first, call, "completed"] < at["message", first, "tool-calls", "True"]
        assert at["message", first, "tool-calls", "True"] < at["message", last, "None", "False"]
        assert at["message", last, "stop", "True"]


def test_a_plugin_that_cannot_be_loaded_or_is_left_out_lets_every_call_run() -> None:
    for number, (source, argument, environment) in enumerate(
        [
            ("export default (", "", {}),
            ("throw new Error('x')", "", {}),
            ("export default async () => { throw new Error('x') }", "", {}),
            (LOGGING, "--pure", {}),
            (LOGGING, "", {"OPENCODE_PURE": "1"}),
        ]
    ):
        with opencode_place() as there:
            there.api.play("go now", PARALLEL)
            more = {"LOG": str(there.folder / "log.jsonl"), "LOG_DOES": "throw", "LOG_SAYS": "no", **environment}
            options = [argument] if argument else []
            there.run("run", *options, prompt="go now", **{**there.plugin(source), **more})
            assert (number, there.files()) == (number, ["x", "y"])


def test_a_call_waits_for_a_plugin_that_does_not_answer() -> None:
    with opencode_place() as there:
        there.api.play("go now", PARALLEL)
        process = there.start("run", **logging(there, LOG_DOES="hang"))
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate("go now", timeout=20)
        process.kill()
        process.communicate()
        assert (len(there.heard("call")), there.files()) == (2, [])


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        (["false"], 30),
        (["/nonexistent"], 30),
        (["echo", "half of an ans"], 30),
        (["echo", '{"hookSpecificOutput": {"permissionDecision": "allow"}}'], 30),
        (["sh", "-c", "kill -9 $$"], 30),
        (["sleep", "60"], 1),
    ],
    ids=["fails", "is missing", "says half", "says another thing", "dies", "is late"],
)
def test_our_plugin_lets_no_call_run_whose_hook_program(command: list[str], seconds: int) -> None:
    with opencode_place() as there:
        there.api.play("go now", PARALLEL)
        ours = plugin_source(dict.fromkeys(OPENCODE_EVENTS, command), seconds)
        there.run("run", prompt="go now", **there.plugin(ours))
        assert there.files() == []
        assert there.api.asked("go now", 1).results == dict.fromkeys("ab", hook.NO_ANSWER.encode())


def test_our_plugin_is_loaded_beside_others_and_lets_run_what_the_hook_program_is_silent_about() -> None:
    with opencode_place() as there:
        users = json.loads(there.configuration.read_text())
        there.configuration.write_text(json.dumps({**users, "plugin": ["file:///nonexistent.js"]}))
        (there.project / ".opencode" / "plugins").mkdir(parents=True)
        (there.project / ".opencode" / "plugins" / "fencepost.js").write_text("export default async () => ({})")
        (there.project / "opencode.json").write_text('{"plugin": []}')
        told = there.folder / "told"
        tell = ["sh", "-c", f"printf '%s\\n' \"$(cat)\" >> {told}"]  # in one write: calls are told at the same time
        there.api.play("go now", PARALLEL)
        there.run("run", prompt="go now", **there.plugin(plugin_source(dict.fromkeys(OPENCODE_EVENTS, tell), 30)))
        assert there.files() == ["opencode.json", "x", "y"]
        prompt, *calls, answer = map(json.loads, told.read_text().splitlines())
        assert (prompt["hook_event_name"], prompt["prompt"]) == ("UserPromptSubmit", "go now")
        assert sorted(one["tool_use_id"].rpartition("/")[2] for one in calls) == ["a", "b"]
        assert {one["hook_event_name"] for one in calls} == {"PreToolUse"}
        assert answer["hook_event_name"] == "Stop"
        assert len({(one["session_id"], one["turn_id"]) for one in (prompt, *calls, answer)}) == 1
        assert not any("agent_id" in one for one in (prompt, *calls, answer))


def test_a_nested_agents_calls_have_the_hook_and_a_session_of_their_own() -> None:
    with opencode_place() as there:
        there.api.play(
            "go now", [tool_use("n", "task", description="part", prompt="do a part", subagent_type="general")]
        )
        there.api.play("do a part", PARALLEL)
        told = there.folder / "told"
        tell = ["sh", "-c", f"printf '%s\\n' \"$(cat)\" >> {told}"]  # in one write: calls are told at the same time
        there.run("run", prompt="go now", **there.plugin(plugin_source(dict.fromkeys(OPENCODE_EVENTS, tell), 30)))
        said = [json.loads(line) for line in told.read_text().splitlines()]
        nested = [one for one in said if "agent_id" in one]
        assert {one["hook_event_name"] for one in nested} == {"UserPromptSubmit", "PreToolUse", "Stop"}
        assert sorted(one["tool_use_id"].rpartition("/")[2] for one in nested if "tool_use_id" in one) == ["a", "b"]
        mine = [one for one in said if "agent_id" not in one]
        assert [one["hook_event_name"] for one in mine] == ["UserPromptSubmit", "PreToolUse", "Stop"]
        assert not {one["session_id"] for one in mine} & {one["session_id"] for one in nested}


def test_a_prompt_among_the_arguments_is_changed_and_one_that_is_read_is_not() -> None:
    with opencode_place() as there:
        there.api.play("go now")
        tagged = f'<tag id="1">\ngo now {SAID}</tag>'
        there.run("run", "--", tagged)
        assert there.api.asked("go now", 0).prompts[-1] not in {tagged, ""}
        there.api.play("go on")
        there.run("run", prompt=tagged.replace("go now", "go on"))
        assert there.api.asked("go on", 0).prompts[-1] == tagged.replace("go now", "go on")


def test_a_session_goes_on_after_a_kill_and_one_that_there_is_none_of_is_refused() -> None:
    with opencode_place() as there:
        there.api.play("go now", [bash("a", "touch started; sleep 30; touch x")])
        process = there.start("run", "--format", "json", **logging(there))
        assert process.stdin is not None
        process.stdin.write("go now")
        process.stdin.close()
        there.api.asked("go now", 0)
        eventually(there.files)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        session = there.heard("prompt")[0]["session"]
        there.api.play("go on")
        status, said = there.run("run", "--format", "json", "--session", session, prompt="go on")
        assert (status, session_in(said)) == (0, session)
        resumed = there.api.asked("go on", 0)
        assert resumed.results == {"a": b"[Tool execution was interrupted]"}
        assert resumed.prompts == ["go now", "go on"]
        status, said = there.run("run", "--session", "ses_nobodys", prompt="go on")
        assert (status, "Session not found" in said) == (1, True)


def said_in(history: list[dict[str, Any]], message_id: str) -> list[str]:
    return [part["text"] for one in history if one["info"]["id"] == message_id for part in one["parts"]]


def test_the_server_keeps_a_message_under_the_callers_id_and_adds_to_it_when_it_comes_again() -> None:
    ours, other = "msg_fencepost0000000000000001", "msg_fencepost0000000000000002"
    with opencode_place() as there:
        held = Turn.held(text("well"))
        there.api.play("go now", held)
        there.api.play("go on")
        with server(there) as (_, ask):
            assert ask("GET", "/session", token="none")[0] == 401
            _, session = ask("POST", "/session", {})
            path = f"/session/{session['id']}"
            said = {"messageID": ours, "parts": [{"type": "text", "text": f"go now {SAID}"}]}
            assert ask("POST", f"{path}/prompt_async", said) == (204, None)
            there.api.asked("go now", 0)
            assert ask("GET", "/session/status")[1] == {session["id"]: {"type": "busy"}}
            later = {"messageID": other, "parts": [{"type": "text", "text": "go on"}]}
            assert ask("POST", f"{path}/prompt_async", later)[0] == 204
            eventually(lambda: said_in(ask("GET", f"{path}/message")[1], other))
            held.go.set()
            there.api.asked("go on", 0)
            eventually(lambda: "busy" not in str(ask("GET", "/session/status")[1]))
            assert said_in(ask("GET", f"{path}/message")[1], ours) == [f"go now {SAID}"]
            asked = there.api.times_asked("go now")
            assert ask("POST", f"{path}/prompt_async", said)[0] == 204
            eventually(lambda: len(said_in(ask("GET", f"{path}/message")[1], ours)) == 2)
            assert there.api.times_asked("go now") == asked
            assert ask("POST", f"{path}/prompt_async", {**said, "messageID": "1"})[0] == 400
            assert ask("POST", "/session/ses_nobodys/prompt_async", said)[0] == 404
            before = ask("GET", f"{path}/message")[1]
        with server(there) as (_, ask):
            assert ask("GET", f"{path}/message")[1] == before


def test_what_is_taken_back_and_what_is_compacted_is_told() -> None:
    with opencode_place() as there:
        there.api.play("go now")
        there.api.play("go on")
        with server(there, **logging(there)) as (_, ask):
            _, session = ask("POST", "/session", {})
            path = f"/session/{session['id']}"
            _, answer = ask("POST", f"{path}/message", {"parts": [{"type": "text", "text": "go now"}]})
            first = answer["info"]["parentID"]
            assert ask("POST", f"{path}/revert", {"messageID": first})[0] == 200
            ask("POST", f"{path}/message", {"parts": [{"type": "text", "text": "go on"}]})
            kinds = [
                (one.get("type", one["kind"]), one.get("properties", {}).get("messageID")) for one in there.heard()
            ]
            second = [place for place, one in enumerate(kinds) if one[0] == "prompt"][1]
            assert kinds.index(("message.removed", first)) < second
            assert there.api.asked("go on", 0).prompts == ["go on"]
            assert ask("POST", f"{path}/summarize", {"providerID": "stand", "modelID": "in"})[0] == 200
            eventually(lambda: events(there, "session.compacted"))
            assert events(there, "session.compacted") == [{"sessionID": session["id"]}]
