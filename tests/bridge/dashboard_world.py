"""A bridge whose panes stand in every way there is, for the pages to show; empty, busy or broken."""

from __future__ import annotations

import sqlite3
import time
from contextlib import asynccontextmanager, closing
from pathlib import Path

import trio
from attrs import define, field
from bridge.http_world import OPERATOR_TOKEN, bearer
from bridges import Harness, Processes, Workspace, moved
from httpx import ASGITransport, AsyncClient

from fencepost.supervisor import (
    ActorCrashed,
    FleetSeatMailbox,
    InboundPost,
    MechanismOutcome,
    ModelTurn,
    NeedsRecovery,
    Options,
    Outbound,
    PlannedCall,
    Tool,
    ToolResult,
    TurnEnd,
    open_supervisor,
)
from fencepost.supervisor.bridge.app import ListenerApp
from fencepost.supervisor.bridge.dashboard.board import Dashboard
from fencepost.supervisor.bridge.dashboard.sessions import Sessions
from fencepost.supervisor.bridge.handlers import Bridge
from fencepost.supervisor.bridge.limits import Limits
from fencepost.supervisor.bridge.routes import Listener
from fencepost.supervisor.bridge.seats import Seats

HOST = "127.0.0.1:7410"
HERE = f"http://{HOST}"
UNCERTAIN = "00000000-0000-4000-8000-00000000000a"
REACHED = "00000000-0000-4000-8000-00000000000b"
QUEUED = "00000000-0000-4000-8000-00000000000c"
POSTED = "00000000-0000-4000-8000-00000000000d"
TEXT = "Please rebase your branch once the tests are green."


class Reconciler(Workspace):
    """Brings every workspace onto its target but the reviewer's."""

    async def reconcile(self, attempt):
        if attempt.intent.pane_id == "reviewer":
            return NeedsRecovery(
                "two files were edited while the rebase ran: src/parser.py, src/lexer.py",
                "/var/lib/bridge/recovery/7f3a",
                "sha256:5b0c",
                {"files": ["src/parser.py", "src/lexer.py"]},
            )
        return await super().reconcile(attempt)


@define(eq=False)
class OpenCode:
    """A mechanism of one's own, which knows as much as its next word says."""

    name: str = "opencode"
    says: list[MechanismOutcome] = field(factory=list)

    async def send(self, message):
        return self.says.pop(0)


@define(eq=False)
class Clock:
    """The day's clock, which goes on only when it is told to."""

    at: int = 1_796_029_200_000_000_000

    def now_ns(self) -> int:
        return self.at

    def monotonic(self) -> float:
        return time.monotonic()

    def tick(self, seconds: float) -> None:
        self.at += int(seconds * 1e9)


@define(eq=False)
class DashboardWorld:
    """One bridge, and what its panes run."""

    bridge: Bridge
    supervisor: object
    seats: Seats
    workspace: Reconciler
    mechanism: OpenCode
    gates: dict[str, trio.Event]
    path: Path
    processes: Processes
    clock: Clock
    now: list[float]
    """Seconds of the sessions' clock; set it to let time pass."""

    def app(self):
        """The operator listener's application, as if it listened at `HOST`."""
        app = ListenerApp(self.bridge, Listener.OPERATOR)

        async def connected(scope, receive, send):
            await app({**scope, "server": ("127.0.0.1", 7410)}, receive, send)

        return connected

    def client(self, **more) -> AsyncClient:
        """A browser without a session."""
        return AsyncClient(transport=ASGITransport(self.app()), base_url=HERE, **more)

    async def ticket(self) -> str:
        """The path that a new ticket opens."""
        async with self.client(headers=bearer(OPERATOR_TOKEN)) as operator:
            answer = await operator.post("/operator/dashboard-ticket", json={"version": 1})
        return "/" + answer.json()["path"]

    @asynccontextmanager
    async def browser(self, **more):
        """A browser that is logged in."""
        async with self.client(**more) as client:
            answer = await client.get(await self.ticket())
            assert answer.status_code == 200, answer.text
            yield client

    @property
    def session(self):
        """The only session there is."""
        (session,) = self.bridge.dashboard.sessions._sessions.values()
        return session

    async def decide(self, client, action: str, **fields):
        """Send a form as its page would."""
        form = {"form_token": self.session.form_token, "confirmed": "yes", **fields}
        return await client.post(f"/dashboard/actions/{action}", data=form, headers={"origin": HERE})


@asynccontextmanager
async def dashboard_world(path: Path, *, launcher=False, **more):
    """A bridge over the store at `path`, with nothing in it; further arguments are the supervisor's."""
    workspace, mechanism, gates, processes = Reconciler(), OpenCode(), dict[str, trio.Event](), Processes()
    now, clock = [1000.0], Clock()

    async def work(arguments, invocation):
        gate = gates.get(arguments["name"])
        if gate is not None:
            await gate.wait()
        return ToolResult(f"{arguments['name']} is done")

    async def dispatcher(turn):
        return TurnEnd("settled")

    async with open_supervisor(
        f"sqlite:///{path}",
        reconciler=workspace,
        launcher=processes if launcher else None,
        mechanisms=[FleetSeatMailbox(), mechanism],
        tools=[Tool("read_file", work), Tool("run_tests", work), Tool("search", work)],
        dispatcher=dispatcher,
        clock=clock,
        **more,
    ) as supervisor:
        seats = Seats()
        board = Dashboard(f"sqlite:///{path}", sessions=Sessions(lambda: now[0]), now=clock.now_ns)
        bridge = Bridge(supervisor, seats, {}, OPERATOR_TOKEN, None, None, Limits(), dashboard=board)
        yield DashboardWorld(bridge, supervisor, seats, workspace, mechanism, gates, path, processes, clock, now)


# -- what panes go through ---------------------------------------------------------------------------------------------


async def make_busy(there: DashboardWorld) -> None:
    """Every standing but faulted, a running batch, messages of every kind, a dead letter."""
    for part in (_lead, _exhausted, _reviewer, _worker, _messages, _batch):
        await part(there)
        there.clock.tick(140)
    there.seats.admit("spare")


async def _lead(there):
    """In sync, after an intent that went all its way; a zombie was fenced."""
    pane = there.supervisor.pane("lead")
    zombie = await Harness.start(pane)
    there.clock.tick(420)
    harness = await Harness.start(pane)
    there.clock.tick(95)
    detected = await pane.detect(moved("main-4f1c", "main-9a2e"))
    there.clock.tick(4)
    await harness.call(1, "batch-1")
    there.clock.tick(2)
    await harness.delivered(detected.intent_id, 1, "batch-1")
    there.clock.tick(3)
    await harness.completed(1, "batch-1")
    there.clock.tick(21)
    await harness.call(2, "batch-2")
    await zombie.delivered(detected.intent_id, 1, "batch-1")


async def _worker(there):
    """Pending: the payload is in a batch that is still open, and another intent waits behind."""
    pane = there.supervisor.pane("worker-1")
    harness = await Harness.start(pane)
    detected = await pane.detect(moved("main-9a2e", "main-c07d"))
    there.clock.tick(6)
    await harness.call(7, "batch-7")
    there.clock.tick(2)
    await harness.delivered(detected.intent_id, 7, "batch-7")
    await pane.detect(moved("main-c07d", "main-e511"))


async def _batch(there):
    """A batch of five calls: the second and the last are done, the third waits for the first."""
    pane = there.supervisor.pane("worker-2")
    await pane.launch("codex", "5f1d2c9e-session")
    names = ["parser", "lexer", "tests", "grep", "readme"]
    for name in names:
        there.gates[name] = trio.Event()
    tools = ["read_file", "read_file", "run_tests", "search", "read_file"]
    pairs = enumerate(zip(tools, names, strict=True))
    calls = [PlannedCall(f"call-{place}", tool, {"name": name}) for place, (tool, name) in pairs]
    await pane.start_batch("operation-1", ModelTurn("turn-12", 12), "entry-12", calls)
    await _told(there, "tool_start", 5)
    for count, name in enumerate(["lexer", "readme", "parser"], 1):
        there.clock.tick(11 * count)
        there.gates[name].set()
        await _told(there, "tool_end", count)
    await _told(there, "entry_added", 2)


async def _told(there, kind, count):
    """Wait until that many events of that kind are durable."""
    seen = 0
    async for event in there.supervisor.events():
        seen += event.kind == kind
        if seen == count:
            return


async def _reviewer(there):
    """Conflicted: the reconciler says that a human must look."""
    pane = there.supervisor.pane("reviewer")
    harness = await Harness.start(pane)
    await pane.detect(moved("main-9a2e", "main-c07d"))
    await harness.call(3, "batch-3")


async def _exhausted(there):
    """Conflicted: no replacement ever took its first input."""
    pane = there.supervisor.pane("docs")
    harness = await Harness.start(pane)
    await pane.detect(moved("main-9a2e", "main-c07d"))
    await harness.call(4, "batch-4")
    there.clock.tick(200)
    await harness.pane.retire(harness.incarnation_id, "the process ended")
    for _ in range(Options().startup_attempts_max):
        launch = await pane.launch("claude-code")
        there.clock.tick(30)
        await pane.launch_failed(launch.incarnation_id, "it did not come up within 30 s")
    assert (await pane.intents())[0].exhausted_at is not None


async def _messages(there):
    """To worker-1 what nobody knows the outcome of; to the lead one that got there, and one of the lead's own."""
    worker, lead = there.supervisor.pane("worker-1"), there.supervisor.pane("lead")
    there.mechanism.says = [MechanismOutcome("delivered"), MechanismOutcome("uncertain", detail="it did not answer")]
    await lead.deliver(Outbound(TEXT, "opencode", QUEUED))
    await worker.deliver(Outbound(TEXT, "opencode", UNCERTAIN))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lead.deliver, Outbound("The build is green.", "fleet_seat", REACHED))
        (event,) = await lead.poll_events(10)
        await lead.acknowledge_event(event.event_id)
    await lead.launch("claude-code", "0d9c2f77-session")
    binding = (await lead.binding()).binding
    await lead.accept(InboundPost(POSTED, binding, "I am done with the parser."))


BROKEN = Options(crashes_max=0)


async def make_broken(there: DashboardWorld) -> None:
    """A quarantined actor, a payload whose bytes have changed, and a row that no record can be; open with `BROKEN`."""
    await make_busy(there)
    flaky = there.supervisor.pane("flaky")
    await flaky.launch("claude-code")
    await there.supervisor.kill("pane:flaky")
    try:
        await flaky.binding()
    except ActorCrashed:
        await flaky.binding()
    except Exception:  # noqa: BLE001 - quarantined at once
        pass


def damage(path: Path, sql: str) -> None:
    """Change rows by hand, as no protocol would."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA ignore_check_constraints = 1")
        db.execute("PRAGMA foreign_keys = 0")
        assert db.execute(sql).rowcount >= 1
        db.commit()
