"""What the real Codex does, as far as the generated home and the adapter rest on it (docs/harnesses.md)."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from e2e.codex_place import CODEX, VERSION, codex_place, needs_codex
from e2e.responses_api import Held, calls, results_in, shell

from fencepost.supervisor.bridge.codex_home import OtherHooks
from fencepost.supervisor.bridge.hook_settings import HookCommand, write_codex_home

pytestmark = needs_codex

LOGGING = HookCommand(program=str(Path(__file__).with_name("codex_hook_log.py")))
EXEC = ("exec", "--skip-git-repo-check")
BYPASS = "--dangerously-bypass-hook-trust"
PARALLEL = [shell("a", "touch x"), shell("b", "touch y")]


def generated(there, incarnation_id="one") -> Path:
    """A home as a pane gets it, but that its hooks only write down what they are told."""
    return write_codex_home(there.folder / "incarnations", incarnation_id, LOGGING, there.users, there.project)


def called(there) -> list[str]:
    """The calls that had a hook."""
    return [event["tool_use_id"] for event in there.hooks() if event["hook_event_name"] == "PreToolUse"]


def test_the_binary_is_of_the_version_these_facts_are_about() -> None:
    said = subprocess.run([CODEX, "--version"], capture_output=True, text=True, check=True).stdout
    assert said == f"codex-cli {VERSION}\n"


def test_a_hook_that_is_not_trusted_silently_does_not_run() -> None:
    with codex_place(PARALLEL) as there:
        status, said = there.run(generated(there), *EXEC, "go")
        assert (status, there.files(), there.hooks()) == (0, ["x", "y"], [])
        assert "hook" not in said
        there.api.turns = [[shell("c", "touch z")]]
        status, _ = there.run(generated(there), *EXEC, BYPASS, "go")
        assert (status, there.files()) == (0, ["x", "y", "z"])
        assert [event["hook_event_name"] for event in there.hooks()] == ["UserPromptSubmit", "PreToolUse", "Stop"]


def test_a_turn_id_is_in_the_prompts_hook_and_in_every_call_that_follows_and_in_the_answers() -> None:
    with codex_place(PARALLEL, [shell("c", "touch z")]) as there:
        there.run(generated(there), *EXEC, BYPASS, 'say "ünïcode"\nand more')
        prompt, *called, answer = there.hooks()
        assert (answer["hook_event_name"], answer["last_assistant_message"]) == ("Stop", "done")
        assert prompt["prompt"] == 'say "ünïcode"\nand more'
        assert sorted(event["tool_use_id"] for event in called) == ["a", "b", "c"]
        assert {(event["session_id"], event["turn_id"]) for event in (*called, answer)} == {
            (prompt["session_id"], prompt["turn_id"])
        }


@pytest.mark.parametrize(("does", "reason"), [("deny", "ünïcode\nand more"), ("deny by status 2", "why")])
def test_a_denial_keeps_a_call_from_running_and_its_reason_is_wrapped(does: str, reason: str) -> None:
    with codex_place(PARALLEL) as there:
        there.hook_does = does
        there.run(generated(there), *EXEC, BYPASS, "go")
        assert there.files() == []
        assert there.api.results() == {
            "a": f"Command blocked by PreToolUse hook: {reason}. Command: touch x",
            "b": f"Command blocked by PreToolUse hook: {reason}. Command: touch y",
        }


class Impatient(HookCommand):
    @property
    def timeout_seconds(self) -> int:
        return 1


@pytest.mark.parametrize("does", ["deny by status", "half an answer", "die", "hang"])
def test_a_hook_that_fails_lets_the_call_run(does: str) -> None:
    with codex_place(PARALLEL) as there:
        there.hook_does = does
        home = write_codex_home(there.folder / "incarnations", "one", Impatient(program=LOGGING.program), there.users)
        there.run(home, *EXEC, BYPASS, "go")
        assert (there.files(), sorted(called(there))) == (["x", "y"], ["a", "b"])


def test_a_patch_has_a_hook() -> None:
    patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: patched\n+x\n*** End Patch\nEOF"
    with codex_place([shell("p", patch)]) as there:
        there.hook_does = "deny"
        there.run(generated(there), *EXEC, BYPASS, "go")
        assert (there.files(), called(there)) == ([], ["p"])


def test_a_conversation_is_resumed_in_the_next_incarnations_home_and_in_no_home_alone() -> None:
    with codex_place(PARALLEL) as there:
        there.run(generated(there), *EXEC, BYPASS, "first")
        session = there.hooks()[0]["session_id"]
        status, _ = there.run(generated(there, "two"), *EXEC, BYPASS, "resume", session, "second")
        assert status == 0
        assert there.hooks()[-1]["session_id"] == session
        assert there.hooks()[-1]["turn_id"] != there.hooks()[0]["turn_id"]
        assert [text for text in there.api.prompts() if "<" not in text] == ["first", "second"]
        assert set(there.api.results()) == {"a", "b"}
        status, _ = there.run(there.users, *EXEC, "resume", session, "by the user himself")
        assert (status, there.api.prompts()[-1]) == (0, "by the user himself")
        assert "second" in there.api.prompts()
        alone = write_codex_home(there.folder / "alone", "three", LOGGING)
        (alone / "config.toml").write_text((there.users / "config.toml").read_text())
        status, said = there.run(alone, *EXEC, BYPASS, "resume", session, "third")
        assert (status, "no rollout found" in said) == (1, True)


def test_two_homes_never_write_one_conversation_and_a_killed_writer_is_in_nobodys_way() -> None:
    held = Held(PARALLEL)
    with codex_place(held) as there:
        first = there.start(generated(there), *EXEC, BYPASS, "first")
        assert held.asked.wait(60)
        session = there.hooks()[0]["session_id"]
        status, said = there.run(generated(there, "two"), *EXEC, BYPASS, "resume", session, "second")
        assert (status, "already has an active writer" in said) == (1, True)
        first.kill()
        first.communicate()
        held.go.set()
        status, _ = there.run(generated(there, "three"), *EXEC, BYPASS, "resume", session, "third")
        assert (status, there.api.prompts()[-2:]) == (0, ["first", "third"])
        assert there.files() == []


def test_the_users_login_is_used_and_a_login_in_a_pane_is_the_users() -> None:
    with codex_place() as there:
        there.configure('cli_auth_credentials_store = "file"', "requires_openai_auth = true")
        (there.users / "auth.json").write_text('{"auth_mode": "apikey", "OPENAI_API_KEY": "sk-of-the-user"}')
        home = generated(there)
        status, _ = there.run(home, *EXEC, BYPASS, "go")
        keys = {headers.get("authorization") for head, headers in there.api.heads if head == "POST /v1/responses"}
        assert (status, keys) == (0, {"Bearer sk-of-the-user"})
        environment = there.environment(CODEX_HOME=str(home))
        said = [CODEX, "login", "--with-api-key"]
        subprocess.run(said, env=environment, input=b"sk-renewed\n", check=True, capture_output=True)
        assert (home / "auth.json").is_symlink()
        assert json.loads((there.users / "auth.json").read_text())["OPENAI_API_KEY"] == "sk-renewed"


def test_the_users_instructions_and_skills_are_read_in_every_home() -> None:
    with codex_place() as there:
        (there.users / "AGENTS.md").write_text("Be brief, said the user.")
        skill = there.users / "skills" / "weaving"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text("---\nname: weaving\ndescription: How the user weaves.\n---\nWeave.\n")
        for incarnation_id in ("one", "two"):
            there.run(generated(there, incarnation_id), *EXEC, BYPASS, "go")
            said = json.dumps(there.api.inputs()[-1])
            assert ("Be brief, said the user." in said, "How the user weaves." in said) == (True, True)


def test_the_bypass_runs_a_projects_hooks_unreviewed_and_so_such_a_project_is_refused() -> None:
    with codex_place([shell("a", "touch x")]) as there:
        home = generated(there)
        hook = {"type": "command", "command": f"touch {there.project}/ran"}
        (there.project / ".codex").mkdir()
        (there.project / ".codex" / "hooks.json").write_text(json.dumps({"hooks": {"PreToolUse": [{"hooks": [hook]}]}}))
        there.run(home, *EXEC, "go")
        assert there.files() == ["x"]
        there.api.turns = [[shell("b", "touch y")]]
        there.run(home, *EXEC, BYPASS, "go")
        assert there.files() == ["ran", "x", "y"]
        with pytest.raises(OtherHooks, match=r"hooks\.json declares hooks"):
            generated(there, "two")


@pytest.mark.parametrize(("options", "ran"), [((), ["ran", "x"]), (("--disable", "plugins"), ["x"])])
def test_a_plugin_brings_hooks_of_its_own_unless_plugins_are_off(options: tuple[str, ...], ran: list[str]) -> None:
    with codex_place([shell("a", "touch x")]) as there:
        market = there.folder / "market"
        hook = {"type": "command", "command": f"touch {there.project}/ran"}
        plugin = {"name": "weaver", "source": {"source": "local", "path": "./weaver"}}
        for name, content in {
            ".agents/plugins/marketplace.json": {"name": "ours", "plugins": [plugin]},
            "weaver/.codex-plugin/plugin.json": {"name": "weaver", "version": "1.0.0", "hooks": "./hooks.json"},
            "weaver/hooks.json": {"hooks": {"PreToolUse": [{"hooks": [hook]}]}},
        }.items():
            (market / name).parent.mkdir(parents=True, exist_ok=True)
            (market / name).write_text(json.dumps(content))
        there.configure(f'[marketplaces.ours]\nsource_type = "local"\nsource = "{market}"\n')
        home = generated(there)
        assert there.run(home, "plugin", "add", "weaver@ours")[0] == 0
        there.run(home, *EXEC, BYPASS, *options, "go")
        assert there.files() == ran


def test_a_nested_agents_hooks_name_its_callers_session_and_say_whose_they_are() -> None:
    spawn = calls("s", "spawn_agent", namespace="multi_agent_v1", message="do a part")
    wait = [shell("w", "while ! test -e nested; do sleep 0.05; done")]
    with codex_place([spawn], wait) as there:
        there.api.apart["do a part"] = [[[shell("n", "touch nested")]]]
        there.run(generated(there), *EXEC, BYPASS, "go")
        mine = [event for event in there.hooks() if not event.get("agent_id")]
        nested = [event for event in there.hooks() if event.get("agent_id")]
        assert {event["hook_event_name"] for event in nested} == {"UserPromptSubmit", "PreToolUse"}
        assert {event["session_id"] for event in nested} == {event["session_id"] for event in mine}
        assert not {event["turn_id"] for event in nested} & {event["turn_id"] for event in mine}
        assert [event["prompt"] for event in nested if "prompt" in event] == ["do a part"]


def test_what_only_writes_to_a_running_process_has_no_hook() -> None:
    def write(request):
        (session,) = re.findall(r"session ID (\d+)", results_in(request)["a"])
        return [calls("b", "write_stdin", session_id=int(session), chars="said\n\x04", yield_time_ms=2000)]

    with codex_place([calls("a", "exec_command", cmd="cat > written", tty=True, yield_time_ms=250)], write) as there:
        there.run(generated(there), *EXEC, BYPASS, "go")
        assert (there.project / "written").read_text() == "said\n"
        assert called(there) == ["a"]
