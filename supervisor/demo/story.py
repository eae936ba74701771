"""The story the demo tells, and what it checks at every turn of it."""

from __future__ import annotations

import os
import signal
from typing import Any

import trio

from fencepost.supervisor import check
from fencepost.supervisor.demo.stage import Agent, Stage
from fencepost.supervisor.demo.workspace import FILES, FIRST_BASE, NEXT_BASE, compose, make_workspace, read_workspace

__all__ = ["tell"]

AMBER, BIRCH, CEDAR = "amber", "birch", "cedar"
PANES = (AMBER, BIRCH, CEDAR)
API, LIMITS, NAMES = FILES


async def tell(stage: Stage) -> None:
    """Three panes, three misfortunes, one audit."""
    report = stage.report
    report.act("A bridge, its store, and three panes with an agent each")
    for pane in PANES:
        make_workspace(stage.root / "panes" / pane, FIRST_BASE)
    await stage.start_bridge()
    for pane in PANES:
        await stage.ask("launch", pane=pane)
    agents = {pane: await stage.agent(pane) for pane in PANES}
    report.check("three harness processes run", [agent.process_id for agent in agents.values()], len(agents) == 3)

    report.act("amber: the base moves between the tool calls of a working agent")
    await base_moves_softly(stage, agents[AMBER])
    report.act("birch: the harness is killed after it was told, before it showed that it had read it")
    await harness_dies(stage, agents[BIRCH])
    report.act("cedar: the bridge is killed while it rewrites files")
    await bridge_dies(stage, agents)
    report.act("The audit")
    await audit(stage)


# -- (a) ---------------------------------------------------------------------------------------------------------


async def base_moves_softly(stage: Stage, amber: Agent) -> None:
    """An intent from detection to acknowledgement, under a harness that goes on running."""
    report = stage.report
    first = await amber.turn(append(API, "amber: look up the limit"))
    await base_moves(stage, AMBER)
    first += await amber.more(read(API), read(NAMES))
    await amber.end_turn()
    report.check(
        "a: a batch that was let pass keeps its files, though the base moved meanwhile",
        runs(first),
        runs(first) == [FIRST_BASE] * 3,
    )

    blocked = await amber.turn(
        read(API), append(API, "amber: too early"), read(LIMITS), append(NAMES, "amber: too early")
    )
    intent = await latest_intent(stage, AMBER)
    report.check("a: the next batch is blocked, every parallel call", hooks(blocked), hooks(blocked) == ["payload"] * 4)
    report.check(
        "a: four hook processes printed the same bytes, the saved ones",
        prints(blocked),
        prints(blocked) == [intent["payload_sha256"][:12]] * 4,
    )
    files = read_workspace(stage.root / "panes" / AMBER)
    moved = moved_files("amber: look up the limit\n", API)
    report.check("a: the files are on the new base, with the agent's own line", bases(files), files == moved)
    report.check(
        "a: marked delivered by the hooks, not yet complete",
        intent["state"],
        intent["state"] == "delivered" and intent["delivered_at"] and not intent["batch_completed_at"],
    )

    ended = await amber.end_turn()
    intent = await latest_intent(stage, AMBER)
    report.check(
        "a: the batch completes, which acknowledges nothing",
        f"{ended}, {intent['state']}",
        (ended, intent["state"]) == ("applied", "delivered") and intent["batch_completed_at"],
    )
    later = await amber.turn(read(API), append(API, "amber: new limit used"), read(LIMITS), read(NAMES))
    await amber.end_turn()
    intent = await latest_intent(stage, AMBER)
    report.check(
        "a: a later turn acknowledges, and its tools run on what the agent was told",
        [intent["state"], *runs(later)],
        intent["state"] == "acknowledged" and runs(later) == [NEXT_BASE] * 4,
    )


# -- (b) and (c) -------------------------------------------------------------------------------------------------


async def harness_dies(stage: Stage, birch: Agent) -> None:
    """Delivered is not acknowledged: the replacement is told again, the same bytes, before anything else."""
    report = stage.report
    await birch.turn(append(LIMITS, "birch: limit is 5"))
    await birch.end_turn()
    await base_moves(stage, BIRCH)
    blocked = await birch.turn(read(LIMITS), append(LIMITS, "birch: too early"), read(NAMES))
    intent = await latest_intent(stage, BIRCH)
    report.check(
        "b: three hooks told it, and marked it delivered",
        [*prints(blocked), intent["state"]],
        prints(blocked) == [intent["payload_sha256"][:12]] * 3 and intent["state"] == "delivered",
    )
    await birch.ask(do="straggler", turn=birch.position, intent=intent["intent_id"])
    straggler = await stage.agent(BIRCH, hello="straggler")

    os.kill(birch.process_id, signal.SIGKILL)
    await birch.gone()
    successor = await stage.agent(BIRCH)
    intent = await latest_intent(stage, BIRCH)
    hello = successor.hello
    report.check(
        "b: SIGKILL; the launcher starts a replacement once the old process is gone",
        f"process {birch.process_id} → {successor.process_id}",
        is_gone(birch.process_id) and successor.incarnation != birch.incarnation,
    )
    report.check(
        "b: its first input is tagged with a startup delivery id",
        hello["startup_delivery_id"],
        hello["startup_delivery_id"] == intent["startup_delivery_id"] is not None,
    )
    report.check(
        "b: and carries the same bytes the dead one's hooks printed",
        hello["sha256"][:12],
        [hello["sha256"][:12]] * 3 == prints(blocked) and hello["sha256"] == intent["payload_sha256"],
    )
    report.check(
        "b: the handshake proves delivery, and acknowledges nothing",
        f"{hello['handshake']}, {intent['state']}",
        (hello["handshake"], intent["state"]) == ("applied", "delivered") and intent["handshake_at"],
    )

    await zombie_speaks(stage, straggler, birch, intent)

    echoed = await successor.turn(read(LIMITS), read(NAMES))
    await successor.end_turn()
    intent = await latest_intent(stage, BIRCH)
    report.check(
        "b: the replacement's first turn echoes the id: acknowledged, and its tools run",
        [intent["state"], *runs(echoed)],
        intent["state"] == "acknowledged" and runs(echoed) == [NEXT_BASE] * 2,
    )


async def zombie_speaks(stage: Stage, straggler: Agent, dead: Agent, before: dict[str, Any]) -> None:
    """A hook that outlived its harness goes on as if nothing had happened."""
    report = stage.report
    told = await straggler.ask(go=True)
    await straggler.gone()
    report.check(
        "c: a hook that outlived its harness asks for its tool: fenced",
        f"{told['decision'].get('decision')} ({told['decision'].get('reason')})",
        (told["decision"].get("decision"), told["decision"].get("reason")) == ("generic", "retired_incarnation"),
    )
    report.check(
        "c: and reports its delivery: refused",
        f"{told['mark'].get('answer')} ({told['mark'].get('reason')})",
        (told["mark"].get("answer"), told["mark"].get("reason")) == ("refused", "retired_incarnation"),
    )
    report.check("c: the intent stands as it stood", before["state"], await latest_intent(stage, BIRCH) == before)
    letters = [letter for letter in (await stage.ask("dead_letters"))["letters"] if letter[1] == dead.incarnation]
    report.check(
        "c: both are in the dead letters",
        ", ".join(f"{call}: {reason}" for call, _, reason in letters),
        [(call, reason) for call, _, reason in letters]
        == [("pre_tool_use", "retired_incarnation"), ("mark_delivered", "retired_incarnation")],
    )


# -- (d) ---------------------------------------------------------------------------------------------------------


async def bridge_dies(stage: Stage, agents: dict[str, Agent]) -> None:
    """SIGKILL between the plan and the payload, one file moved, one torn, one untouched."""
    report, cedar = stage.report, agents[CEDAR]
    await cedar.turn(append(LIMITS, "cedar: limit is 7"))
    await cedar.end_turn()
    await base_moves(stage, CEDAR)
    await stage.ask("interrupt_at", pane=CEDAR)
    blocked: list[dict[str, Any]] = []

    async def ask_for_tools() -> None:
        blocked.extend(await cedar.turn(read(LIMITS), append(LIMITS, "cedar: too early"), read(NAMES)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_for_tools)
        await stage.until(lambda: stage.told("half_written"))
        ended = await stage.kill_bridge()
        torn = read_workspace(stage.root / "panes" / CEDAR)
        moved = moved_files("cedar: limit is 7\n", LIMITS)
        report.check(
            "d: SIGKILL of the bridge, one file moved, one torn, one untouched",
            f"exit {ended}, {[len(text) for text in torn.values()]} characters",
            ended == -signal.SIGKILL
            and torn[API] == moved[API]
            and torn[LIMITS] != moved[LIMITS]
            and moved[LIMITS].startswith(torn[LIMITS])
            and torn[NAMES] == compose(FIRST_BASE, NAMES),
        )
        await stage.start_bridge()
    await stage.catch_up()
    await next_bridge_goes_on(stage, agents, blocked, moved)


async def next_bridge_goes_on(
    stage: Stage, agents: dict[str, Agent], blocked: list[dict[str, Any]], moved: dict[str, str]
) -> None:
    """The files are finished once, the hooks that waited are told, and no harness has noticed anything."""
    report, cedar = stage.report, agents[CEDAR]
    intent = await latest_intent(stage, CEDAR)
    attempts = stage.told("reconcile", pane=CEDAR)
    report.check(
        "d: a new bridge resumes the attempt and probes the files first",
        f"resumed {[attempt['resumed'] for attempt in attempts]}, {list(attempts[-1]['probe'].values())}",
        [attempt["resumed"] for attempt in attempts] == [False, True]
        and attempts[0]["plan"] == attempts[1]["plan"] is not None
        and list(attempts[-1]["probe"].values()) == ["after", "torn", "before"],
    )
    wrote = [fact["file"] for fact in stage.told("wrote", pane=CEDAR)]
    files = read_workspace(stage.root / "panes" / CEDAR)
    report.check("d: every file is finished exactly once", wrote, wrote == list(FILES) and files == moved)
    report.check(
        "d: the hooks that asked the dead bridge get their answer from the new one, the saved bytes",
        prints(blocked),
        hooks(blocked) == ["payload"] * 3 and prints(blocked) == [intent["payload_sha256"][:12]] * 3,
    )
    await cedar.end_turn()
    later = await cedar.turn(read(LIMITS), read(NAMES))
    await cedar.end_turn()
    intent = await latest_intent(stage, CEDAR)
    report.check(
        "d: acknowledged by the later turn",
        [intent["state"], *runs(later)],
        intent["state"] == "acknowledged" and runs(later) == [NEXT_BASE] * 2,
    )
    survived = await agents[AMBER].turn(read(API))
    await agents[AMBER].end_turn()
    await stage.catch_up()
    report.check(
        "d: the harnesses survived: same processes, same incarnations, no relaunch",
        [*runs(survived), f"{kinds(stage).count('incarnation.launched')} launches in all"],
        runs(survived) == [NEXT_BASE] and kinds(stage).count("incarnation.launched") == len(PANES) + 1,
    )


# -- (e) ---------------------------------------------------------------------------------------------------------


async def audit(stage: Stage) -> None:
    """What must hold whatever happened."""
    report = stage.report
    ended = await stage.stop_bridge()
    report.check("e: the bridge closes", f"exit {ended}", ended == 0)
    counts = {kind: kinds(stage).count(f"intent.{kind}") for kind in ("detected", "materialized", "acknowledged")}
    report.check(
        "e: every intent was prepared once and acknowledged once", counts, set(counts.values()) == {len(PANES)}
    )
    numbers = [event["seq"] for event in stage.events]
    report.check(
        "e: the events have no gap, over both bridges",
        f"1 to {numbers[-1]}",
        numbers == list(range(1, len(numbers) + 1)),
    )
    unaware = [run for run in stage.tools_run if run.ran_on != run.knew]
    report.check(
        "e: no tool ran on files its agent was not told about",
        f"{len(stage.tools_run)} tools ran, {len(unaware)} unaware",
        bool(stage.tools_run) and not unaware,
    )
    early = [
        name for pane in PANES for name, text in read_workspace(stage.root / "panes" / pane).items() if "early" in text
    ]
    report.check("e: no blocked tool left a trace in a file", f"{len(early)} traces", not early)
    violations = await check(stage.store_url)
    report.check(
        "e: check(store) finds every invariant held", f"{len(violations)} violations {violations[:3]}", not violations
    )


# -- words ---------------------------------------------------------------------------------------------------------


def read(file: str) -> dict[str, str]:
    """A tool call that reads a file."""
    return {"tool": "read", "file": file}


def append(file: str, line: str) -> dict[str, str]:
    """A tool call that adds a line to a file."""
    return {"tool": "append", "file": file, "line": line}


def hooks(results: list[dict[str, Any]]) -> list[str]:
    """How the hook of each call decided."""
    return [result["hook"] for result in results]


def prints(results: list[dict[str, Any]]) -> list[str]:
    """The hash of what each hook process printed, shortened."""
    return [result["sha256"][:12] for result in results]


def runs(results: list[dict[str, Any]]) -> list[str | None]:
    """The base each tool ran on; None for one that did not run."""
    return [result["ran_on"] for result in results]


def moved_files(own_line: str, name: str) -> dict[str, str]:
    """What a workspace must hold on the next base, with one line of the agent's own."""
    return {file: compose(NEXT_BASE, file, own_line if file == name else "") for file in FILES}


def bases(files: dict[str, str]) -> list[str]:
    """The base each file says it is on."""
    return [text.partition("\n")[0] for text in files.values()]


def kinds(stage: Stage) -> list[str]:
    """The kind of every event so far."""
    return [event["kind"] for event in stage.events]


def is_gone(process_id: int) -> bool:
    """Whether there is no such process."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


async def base_moves(stage: Stage, pane: str) -> None:
    """Somebody pushed: the pane's base is now another."""
    transition = {"kind": "parent_advance", "from_base": FIRST_BASE, "to_base": NEXT_BASE}
    transition |= {"classification_op": "fetch-1", "trigger_op": f"push-to-{pane}"}
    await stage.ask("detect", pane=pane, transition=transition)


async def latest_intent(stage: Stage, pane: str) -> dict[str, Any]:
    """The pane's youngest intent, as stored."""
    intents: list[dict[str, Any]] = (await stage.ask("intents", pane=pane))["intents"]
    return intents[-1]
