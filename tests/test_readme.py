"""README and docs/ say what the code does: examples, tables, links, cited tests, options, events, reasons, commands."""

from __future__ import annotations

import ast
import dis
import importlib.util
import inspect
import re
import shlex
from collections.abc import Awaitable, Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import get_args

import attrs
import pytest
import trio
from click.testing import CliRunner
from delivery_scenarios import (
    FIRST,
    SCENARIOS as DELIVERY_SCENARIOS,
    SECOND,
    Scenario as DeliveryScenario,
    World as DeliveryWorld,
    opened,
    stored_events,
    taken,
)
from intent_scenarios import SCENARIOS
from tool_scenarios import SCENARIOS as TOOL_SCENARIOS, Scenario as ToolScenario, World

from fencepost.actors import delivery_state, inbound_state, intent_news, intent_state, tool_results
from fencepost.actors.intent_events import IntentEvent
from fencepost.mailbox import errors
from fencepost.mailbox.records import CallStatus, Checkpoint
from fencepost.mailbox.stores.store import SCHEMES
from fencepost.supervisor import (
    ActorCrashed,
    ChannelTurn,
    Chaos,
    FleetSeatMailbox,
    HarnessSeatControl,
    HeadSeatOutbox,
    InboundPost,
    Invocation,
    Options,
    Outbound,
    Reason,
    Stage,
    Stop,
    TurnEnd,
    cli,
    delivery_invariants,
    open_supervisor,
    tool_invariants,
)

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]

Scenario = Callable[[str, Chaos], Awaitable[None]]


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def docs(name: str) -> str:
    return text_of(ROOT / "docs" / f"{name}.md")


def rows_under(heading: str, text: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    _, _, rest = text.partition(f"\n{heading}\n")
    assert rest, f"no heading {heading!r}"
    table = next(block for block in rest.strip().split("\n\n") if block.startswith("| "))
    lines = [line.strip("|").split(" | ") for line in table.splitlines()]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme_tables", ROOT / "docs" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- examples ------------------------------------------------------------------------------------------------------

INCLUDED = re.compile(r"<!-- file:(\S+) -->\n```python\n(.*?)```\n", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_code_blocks_are_the_example_files(page: Path) -> None:
    text = text_of(page)
    included = INCLUDED.findall(text)
    assert text.count("```python") == len(included), "a python block without its file"
    for name, block in included:
        assert block == (ROOT / name).read_text(encoding="utf-8"), f"{page.name} does not show {name} as it is"


def test_every_example_is_shown_somewhere() -> None:
    shown = {name for page in PAGES for name, _ in INCLUDED.findall(text_of(page))}
    assert shown == {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.py")}


def test_the_claims_shown_are_the_demos() -> None:
    story = (ROOT / "supervisor" / "demo" / "story.py").read_text(encoding="utf-8")
    claims = re.findall(r"^    ok \| ([^|]+) \|", text_of(README), re.MULTILINE)
    assert claims
    assert all(f'"{claim}"' in story for claim in claims)


# -- generated tables ----------------------------------------------------------------------------------------------


def test_the_generated_tables_are_the_codes(tables: ModuleType) -> None:
    found = CliRunner().invoke(tables.main, ["--check", str(README)])
    assert found.exit_code == 0, found.output
    for name in (*tables.TABLES, *tables.RUNTIME_TABLES):
        assert text_of(README).count(f"<!-- table:{name} -->") == 1


def points_listed(tables: ModuleType) -> set[str]:
    return {
        f"{name}/{boundary}"
        for _, names, boundaries in tables.chaos_groups()
        for name in names
        for boundary in boundaries
    }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_point_of_every_scenario_is_listed(scenario: Scenario, tables: ModuleType) -> None:
    chaos = Chaos()
    await scenario(f"memory://readme-points-{scenario.__name__}", chaos)
    assert set(chaos.trace) <= points_listed(tables)


@pytest.mark.parametrize("scenario", TOOL_SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_point_and_event_of_every_tool_scenario_is_listed(
    scenario: ToolScenario, tables: ModuleType
) -> None:
    url, chaos = f"memory://readme-tools-{scenario.__name__}", Chaos()
    await scenario(url, chaos, World())
    assert set(chaos.trace) <= points_listed(tables)
    async with open_supervisor(url) as supervisor:
        assert {event.kind async for event in supervisor.events(follow=False)} <= kinds_shown()


async def out_of_time(url: str, chaos: Chaos, world: DeliveryWorld) -> None:
    """What no scenario waits for: nobody polls, nobody acknowledges, nothing runs there."""
    world.session = None
    async with opened(url, world, chaos, times={"grace": 0.0, "acknowledge": 0.0}) as (_, pane):
        await pane.deliver(Outbound("hello", "head_seat"))
        await pane.deliver(Outbound("hello", "harness_seat"))
    async with opened(url, world, chaos, times={"acknowledge": 0.0}) as (_, pane), trio.open_nursery() as nursery:
        await (await taken(pane, world, Outbound("hello", "fleet_seat", FIRST), nursery))()


async def taken_up(url: str, chaos: Chaos, world: DeliveryWorld) -> None:
    """What a pane finds under way when its actor died: a delivery that had left, and a turn that ran."""
    async with opened(url, world, chaos) as (supervisor, pane):
        await pane.launch("claude-code", "session-1")
        world.gate = trio.Event()
        await pane.accept(InboundPost(FIRST, (await pane.binding()).binding, "from the pane"))
        async with trio.open_nursery() as nursery:
            event = await taken(pane, world, Outbound("hello", "fleet_seat", SECOND), nursery)
            await supervisor.kill("pane:pane")
            with pytest.raises(ActorCrashed):
                await event()
        await pane.binding()


async def turned_down(url: str, chaos: Chaos, world: DeliveryWorld) -> None:
    """A turn from the pane that a rule refuses."""
    world.answers = TurnEnd("failed", "policy_refused")
    async with opened(url, world, chaos) as (supervisor, pane):
        await pane.launch("claude-code", "session-1")
        await pane.accept(InboundPost(FIRST, (await pane.binding()).binding, "from the pane"))
        async for event in supervisor.events():
            if event.kind == "delivery.failed":
                break


DELIVERY_LIVES = [*DELIVERY_SCENARIOS, out_of_time, taken_up, turned_down]


@pytest.mark.parametrize("scenario", DELIVERY_LIVES, ids=lambda scenario: scenario.__name__)
async def test_every_point_and_event_of_every_delivery_is_listed(
    scenario: DeliveryScenario, tables: ModuleType
) -> None:
    url, chaos = f"memory://readme-deliveries-{scenario.__name__}", Chaos()
    await scenario(url, chaos, DeliveryWorld())
    assert set(chaos.trace) <= points_listed(tables)
    shown = data_shown()
    async with open_supervisor(url) as supervisor:
        for kind, data in await stored_events(supervisor):
            assert kind in kinds_shown()
            assert not kind.startswith("delivery.") or data.keys() <= shown[kind]


async def test_every_point_and_word_that_is_listed_of_a_delivery_occurs(tables: ModuleType) -> None:
    passed: set[str] = set()
    told: dict[str, set[str]] = {}
    for scenario in DELIVERY_LIVES:
        url, chaos = f"memory://readme-occurs-{scenario.__name__}", Chaos()
        await scenario(url, chaos, DeliveryWorld())
        passed |= {point.partition("/")[0] for point in chaos.trace}
        async with open_supervisor(url) as supervisor:
            for kind, data in await stored_events(supervisor):
                told.setdefault(kind, set()).update(data)
    listed = {name for what, names, _ in tables.chaos_groups() if what.endswith("a delivery") for name in names}
    assert listed <= passed
    assert data_shown() == {kind: names for kind, names in told.items() if kind.startswith("delivery.")}


async def test_the_supervisors_own_points_are_listed(tables: ModuleType) -> None:
    chaos = Chaos()
    async with open_supervisor("memory://", chaos=chaos, options=Options(crashes_max=1)) as supervisor:
        for _ in range(2):
            await supervisor.pane("pane").sync_status()
            await supervisor.kill("pane:pane")
            await trio.testing.wait_all_tasks_blocked()
        await supervisor.revive("pane:pane")
    assert set(chaos.trace) <= points_listed(tables)
    told = {point.partition("/")[0] for point in chaos.trace if point.startswith("supervisor.")}
    (listed,) = [names for _, names, _ in tables.chaos_groups() if names[0].startswith("supervisor.")]
    assert told == set(listed)


def test_the_boundaries_are_explained_in_their_order(tables: ModuleType) -> None:
    explained = [names_in(row[0])[0] for row in rows_under("## Points", docs("chaos"))]
    assert explained == list(tables.BOUNDARIES)


# -- links and cited tests -----------------------------------------------------------------------------------------


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}"
        assert path.is_relative_to(ROOT)
        if anchor:
            anchors = {anchor_of(heading) for heading in re.findall(r"^#+ (.+)$", text_of(path), re.MULTILINE)}
            assert anchor in anchors, f"{page.name} links to {target}"


def test_every_page_is_linked_from_readme() -> None:
    linked = {(ROOT / target).resolve() for target in re.findall(r"\]\(([^)#]+)\)", text_of(README))}
    assert set(PAGES) - {README} <= linked


@cache
def defined_tests() -> frozenset[str]:
    return frozenset(
        f"{path.name}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_cited_test_exists(page: Path) -> None:
    cited = re.findall(r"`(test_\w+\.py::\w+)`", text_of(page))
    assert set(cited) <= defined_tests()


def test_every_row_of_the_crash_tables_cites_a_test() -> None:
    intents, tools = (rows_under(name, text_of(README)) for name in ("## After a crash", "### With a tool batch"))
    out, into = (rows_under(f"### With a message {way} a pane", text_of(README)) for way in ("to", "from"))
    every = intents + tools + out + into
    assert [int(row[0]) for row in every] == list(range(1, 55))
    assert all(names_in(row[-1]) and set(names_in(row[-1])) <= defined_tests() for row in every)
    assert durable_in(intents) <= {str(code) for code in intent_state.Code}
    assert durable_in(tools) <= {str(status) for status in CallStatus}
    assert durable_in(out + into) <= {str(word) for word in [*Stage, *Stop]}


def durable_in(rows: list[list[str]]) -> set[str]:
    return {name for row in rows for name in names_in(row[2])}


# -- options, events, reasons, errors ------------------------------------------------------------------------------


def test_the_options_are_those_of_the_code() -> None:
    rows = rows_under("## Options", docs("operations"))
    shown = {names_in(name)[0]: ast.literal_eval(default) for name, default, _ in rows}
    assert list(shown.items()) == list(attrs.asdict(Options()).items())
    assert all(type(default) is type(getattr(Options(), name)) for name, default in shown.items())


def kinds_shown() -> set[str]:
    return {name for row in rows_under("## Events", docs("operations")) for name in names_in(row[0])}


def data_shown() -> dict[str, set[str]]:
    """What operations.md says that the events of deliveries carry."""
    table = rows_under("### What the events of deliveries carry", docs("operations"))
    return {kind: set(names_in(row[1])) for row in table for kind in names_in(row[0])}


def words_of(*folders: str) -> Iterator[str]:
    for folder in folders:
        for path in (ROOT / folder).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_the_events_are_those_of_the_code() -> None:
    assert set(intent_news.NEWS.values()) <= kinds_shown()
    assert kinds_shown() <= set(words_of("actors", "supervisor"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_every_event_of_every_scenario_is_shown(scenario: Scenario) -> None:
    url = f"memory://readme-events-{scenario.__name__}"
    await scenario(url, Chaos())
    async with open_supervisor(url) as supervisor:
        told = {event.kind async for event in supervisor.events(follow=False)}
    assert told <= kinds_shown()


def test_the_reasons_are_those_of_the_code() -> None:
    shown = [name for row in rows_under("## Reasons", docs("protocol")) for name in names_in(row[0])]
    assert shown == [str(reason) for reason in Reason]


def test_the_errors_are_those_of_the_code() -> None:
    shown = {name for row in rows_under("## Errors", docs("operations")) for name in names_in(row[0])}
    assert shown <= set(errors.__all__)


def test_the_store_urls_are_those_of_the_code() -> None:
    assert all(scheme.replace("PATH", "relative.db") in text_of(README) for scheme in SCHEMES)


def test_the_words_of_an_interruption_are_those_of_the_code() -> None:
    text = " ".join(text_of(README).split())
    assert all(words in text for words in (tool_results.INTERRUPTED, tool_results.INTERRUPTED_AFTER_OUTPUT))


def test_every_transaction_of_a_tool_batch_is_explained(tables: ModuleType) -> None:
    explained = [names_in(row[0])[0] for row in rows_under("## What is in one transaction", docs("tools"))]
    committed = {point.partition("/")[0] for point in points_listed(tables) if point.endswith("/committed")}
    asking = {f"batch.{name}" for name in ("await_tools", "snapshot", "take_up", "wait")}
    of_a_batch = {name for name in committed if name.startswith("batch.")} - asking
    assert {name for name in explained if name.startswith("batch.")} == of_a_batch
    assert set(explained) <= committed
    assert len(set(explained)) == len(explained)


def test_the_laws_of_tool_batches_are_those_of_the_audit() -> None:
    shown = [number for number, _ in rows_under("## The laws", docs("tools"))]
    assert shown == re.findall(r"^    (\d{3})  ", tool_invariants.__doc__ or "", re.MULTILINE)
    assert len(shown) == 16


def test_the_laws_of_deliveries_are_those_of_the_audit() -> None:
    shown = [number for number, _ in rows_under("### The laws of deliveries", docs("operations"))]
    assert shown == re.findall(r"^    (\d{3})  ", delivery_invariants.__doc__ or "", re.MULTILINE)
    assert len(shown) == 5


def test_the_deadlines_of_deliveries_are_those_of_the_code() -> None:
    async def nothing(_message: object) -> None: ...

    made = [HeadSeatOutbox(), FleetSeatMailbox(), HarnessSeatControl(nothing), ChannelTurn(nothing)]
    seconds = {
        (type(one).__name__, name): value
        for one in made
        for name, value in attrs.asdict(one, recurse=False).items()
        if name.endswith("_seconds")
    }
    table = rows_under("### Deadlines", docs("deliveries"))
    shown = {(names_in(row[0])[0], names_in(row[1])[0]): ast.literal_eval(row[2]) for row in table}
    assert shown == seconds


def test_what_the_runtime_says_of_itself_about_a_delivery_is_in_the_words_of_the_code() -> None:
    text = " ".join(docs("deliveries").split())
    assert delivery_state.FENCED in text
    assert inbound_state.SERVICE_RESTARTED in text
    assert inbound_state._TAG in text


def test_what_a_closed_batch_says_is_in_the_words_of_the_code() -> None:
    shown = set(re.findall(r"`((?:may|need|abort)\w+)`", docs("tools")))
    assert shown == {str(checkpoint) for checkpoint in Checkpoint} - {"ended"}


# -- names and commands --------------------------------------------------------------------------------------------

OWNERS = "pane|supervisor|chaos|attempt|launch|batch|invocation"
CALLED = re.compile(rf"(?<!fencepost\.)\b(?P<owner>{OWNERS})\.(?P<name>(?!md\b|py\b)[a-z_]+)\b")


def public(owner: str) -> set[str]:
    from fencepost.actors import Attempt, Launch
    from fencepost.supervisor import Pane, Supervisor, ToolBatch

    of = {
        "pane": Pane,
        "supervisor": Supervisor,
        "chaos": Chaos,
        "attempt": Attempt,
        "launch": Launch,
        "batch": ToolBatch,
        "invocation": Invocation,
    }[owner]
    fields = {attribute.name for attribute in attrs.fields(of)} if attrs.has(of) else set()
    made = {one.argval for one in dis.get_instructions(of.__init__) if one.opname == "STORE_ATTR"}
    return {name for name, _ in inspect.getmembers(of)} | fields | made | set(vars(of()) if owner == "chaos" else ())


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_what_is_called_exists(page: Path) -> None:
    text = re.sub(r"<!-- table:chaos-points -->.*?<!-- /table -->", "", text_of(page), flags=re.DOTALL)
    text = re.sub(r"^\| `\w+\.\w+` \|", "", text, flags=re.MULTILINE)  # a row about a transition, not a call
    for call in CALLED.finditer(text):
        assert call["name"] in public(call["owner"]), call[0]


def test_every_intent_event_is_a_class() -> None:
    rows = rows_under("Every transition there is; whatever is not in this table does not exist.", text_of(README))
    assert [names_in(row[0])[0] for row in rows] == [event.__name__ for event in get_args(IntentEvent)]


def commands_shown() -> list[str]:
    return sorted({line for page in PAGES for line in re.findall(r"^    (fencepost .+)$", text_of(page), re.MULTILINE)})


def test_every_command_is_shown() -> None:
    assert {shlex.split(line)[1] for line in commands_shown()} >= set(cli.main.commands)
    listed = rows_under("## The command line", docs("operations"))
    assert sorted(name for row in listed for name in names_in(row[0])) == sorted(cli.main.commands)


@pytest.mark.parametrize("line", commands_shown())
def test_every_command_shown_is_understood(line: str) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    if name in cli.main.commands:  # it is not run: it might serve, or ask the bridge of whoever runs the tests
        assert cli.main.commands[name].make_context(name, arguments).params
    else:
        assert CliRunner().invoke(cli.main, [name, *arguments], prog_name="fencepost").exit_code == 0


def test_every_make_target_shown_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    written = re.compile(r"(?:`|^    )make ([a-z-]+)", re.MULTILINE)
    shown = {target for page in PAGES for target in written.findall(text_of(page))}
    assert shown <= targets
    assert targets - shown == {"help"}


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_no_page_names_a_machine(page: Path) -> None:
    assert not re.search(r"(?<![\w:/])/(?:home|root|tmp|work|Users)/", text_of(page))
