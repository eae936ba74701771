"""The mutation line: every durable write of a runtime, one after the other.

Theory of operation
===================

Many actors want to commit; one store can sync.  A sync costs hundreds of microseconds and costs the same for one
mutation as for five hundred, so whatever arrives while the store is busy goes into its next transaction.  That is all
the scheduling there is: a FIFO, a thread that takes what is in it, and a rule that nobody is told anything before it
is durable.

    trio thread                                    the store's thread
    -----------                                    ------------------
    commit():  put into the FIFO, sleep   ------>  take all that is in it, or wait for the first
               ...                                 BEGIN, each mutation, COMMIT, synced
    deliver(): on_committed(events)      <------   one run_sync_soon for the whole batch
               reschedule each caller              take all that came in the meantime …

* The libraries of the stores are asyncio's.  So the line starts a thread with an asyncio loop, private to it: no event
  loop policy is touched, and the host may be anything.  On that loop the store is opened and closed; in between it is
  handed `_work`, the loop of the picture, and runs it on whichever thread its data is nearest to.  A call and its
  answer are then one wake-up each, which is most of what a single commit costs besides the sync.
* The FIFO is a SimpleQueue.  A thread that is waiting in it needs no polling and no flag; None in it means the end.
* A caller that is cancelled stops waiting; its mutation stands, because nobody could say how far it got.
* Refused mutations and unreadable records are answers, for one caller each.  Whatever else a store raises is a fault:
  nothing of that batch is visible, and from then on every call raises `StoreFault` with that first cause.
* The thread ends when it finds the end in the FIFO, so everything before it is answered first; also if nobody waits
  for it any more, and when the trio run ends without `aclose` (a system task notices).

With crash points
-----------------

Given `crash_points`, the line must pass the same points in the same order whenever the same things are asked of it.
So every mutation is a batch of its own and every call blocks the trio thread until its batch is done.  Timing is not
what it is in production then; the code in the line thread and in the store is.

A *quick* store (memory) is served the same way, crash points or not: it has nothing to wait for, and a trio clock that
jumps when every task sleeps must not take the thread's work for idleness.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import Final, TypeVar, cast

import trio
from outcome import Error, Value

from fencepost.mailbox.errors import MailboxClosed, StoreFault
from fencepost.mailbox.mutation import DeadLetter, Event, Mutation
from fencepost.mailbox.ports import ActorKilled, CrashPoints, Kill, RuntimeKilled
from fencepost.mailbox.query import Query
from fencepost.mailbox.records import Record
from fencepost.mailbox.storable import require_storable
from fencepost.mailbox.stores.store import (
    Answer,
    Job,
    Load,
    LoadDeadLetters,
    LoadEvents,
    LoadFields,
    Run,
    Store,
)

__all__ = ["BATCH_MAX", "EVENTS_KEPT_MAX", "MutationLine"]

R = TypeVar("R", bound=Record)

BATCH_MAX: Final = 1024
"""Jobs in one transaction at most: beyond this a longer batch saves no syncs worth the wait of those in it."""
EVENTS_KEPT_MAX: Final = 100_000


class _Phase(Enum):
    NEW = "not started"
    OPEN = "open"
    CLOSING = "closing"


class _Entry:
    """A job in the FIFO and the task that waits for its answer, None once that task was cancelled."""

    __slots__ = ("job", "task")

    def __init__(self, job: Job, task: trio.lowlevel.Task | None) -> None:
        self.job = job
        self.task = task

    def stop_waiting(self, _: object) -> trio.lowlevel.Abort:
        """The task was cancelled; the job is done all the same."""
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class MutationLine:
    """The one way to a store's writing side.  All methods belong to the trio thread that called `start`.

    `on_committed` is called in the trio thread with the events of each batch, in order of their seq, before the
    callers of that batch go on; it must neither block nor raise (if it raises, the line is faulted).  `on_fault` is
    called there soon after the fault, whoever met it: those who wait for something else must be told too.
    """

    def __init__(
        self,
        store: Store,
        *,
        on_committed: Callable[[Sequence[Event]], None],
        crash_points: CrashPoints | None = None,
        events_kept_max: int = EVENTS_KEPT_MAX,
        batch_max: int = BATCH_MAX,
    ) -> None:
        self._store = store
        self._on_committed = on_committed
        self.on_fault: Callable[[], None] | None = None
        self._crash_points = crash_points
        self._events_kept_max = events_kept_max
        self._blocking = crash_points is not None or store.quick
        self._batch_max = 1 if self._blocking else batch_max
        self._phase = _Phase.NEW
        self._thread: threading.Thread | None = None
        self._fault: StoreFault | None = None
        self._queue: SimpleQueue[_Entry | None] = SimpleQueue()
        self._unanswered = 0
        self._opening_error: BaseException | None = None
        self._ended = False
        self._owed: list[_Entry] = []
        self._killed = False
        self._killed_actor_at: str | None = None
        self._blocking_answers: SimpleQueue[Sequence[Answer] | None] = SimpleQueue()

    # ------------------------------------------------------------------------------------------------ the trio side

    async def start(self) -> None:
        """Open the store; on return the line takes calls.

        Raises `StoreOwned`, `SchemaTooNew`, `CorruptRecord` or `StoreFault`; then nothing is left open.
        """
        if self._phase is not _Phase.NEW:
            raise RuntimeError("a line starts once")
        self._phase = _Phase.OPEN
        self._token = trio.lowlevel.current_trio_token()
        self._thread_ended = trio.Event()
        self._opened = trio.Event()
        self._opened_anyhow = threading.Event()
        self._watch_scope = trio.CancelScope()
        self._thread = threading.Thread(target=self._run_thread, name=f"fencepost line of {self._store.url}")
        self._thread.start()
        trio.lowlevel.spawn_system_task(self._close_with_run)
        try:
            if self._blocking:
                self._opened_anyhow.wait()
                await trio.lowlevel.checkpoint()
            else:
                await self._opened.wait()
        except BaseException:
            self._stop()
            raise
        if self._opening_error is not None:
            self._stop()
            with trio.CancelScope(shield=True):
                await self._thread_ended.wait()
            self._thread.join()
            raise self._opening_error

    @property
    def depth(self) -> int:
        """How many calls have no answer yet."""
        return self._unanswered

    @property
    def fault(self) -> StoreFault | None:
        """What the line died of, or None; its `__cause__` is the first cause."""
        return self._fault

    async def commit(self, mutation: Mutation) -> tuple[Event, ...]:
        """Commit `mutation`; on return all of it is durable, and its events, in order, have their seq.

        Raises `MutationRefused` if a guard, a constraint or one of its own values forbids it (nothing of it is
        visible), `StoreFault` if the store failed (nothing of its batch is visible), `MailboxClosed` after `aclose`.
        Cancelling stops the waiting and not the commit.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._crash_points is not None:
            return self._commit_blocking(mutation)
        if self._blocking:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return cast("tuple[Event, ...]", self._call_blocking(mutation))
        return cast("tuple[Event, ...]", await self._call(mutation))

    async def load(self, *queries: Query[R]) -> list[list[R]]:
        """Answer each query, all from one moment, behind everything committed before this call.

        Raises `CorruptRecord` for a record no protocol can have written (the line goes on), `StoreFault` and
        `MailboxClosed` as `commit` does.
        """
        return cast("list[list[R]]", await self._ask(Load(cast("tuple[Query[Record], ...]", queries))))

    async def load_fields(self, *wanted: tuple[Query[Record], str]) -> list[list[object]]:
        """Answer each query with what the field named beside it holds in the matches, as stored; otherwise as `load`.

        Nothing is decoded, so no damage to another field keeps a record from being found.  They come in the line's
        order, that of their first writing, save from tables that are kept by their key (`LoadFields`).
        """
        return cast("list[list[object]]", await self._ask(LoadFields(wanted)))

    async def load_events(self, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return the stored events with a seq over `after`, oldest first; otherwise as `load`."""
        require_storable(after)
        return cast("list[Event]", await self._ask(LoadEvents(after, limit)))

    async def load_dead_letters(self, after: int = 0, limit: int | None = None) -> list[DeadLetter]:
        """Return the dead letters with a seq over `after`, oldest first; otherwise as `load`."""
        require_storable(after)
        return cast("list[DeadLetter]", await self._ask(LoadDeadLetters(after, limit)))

    async def aclose(self) -> None:
        """Finish what is queued, close the store and end the thread; later calls raise `MailboxClosed`.

        Does nothing the second time.  If this is cancelled the thread still does all of that, unobserved.
        """
        if self._thread is None:
            self._phase = _Phase.CLOSING
            return
        self._stop()
        if not self._blocking:
            await self._thread_ended.wait()
        self._thread.join()

    def kill(self, cause: BaseException) -> None:
        """Die as if the process had: the store refuses every further call and every caller gets `StoreFault`.

        On return the store is given back and could be opened anew; what was committed by then is durable and nothing
        else is.  Blocks for as long as the running batch needs to notice.
        """
        self._killed = True
        self._set_fault(cause, "the runtime was killed")
        self._store.refuse(cause)
        if self._thread is None:
            self._phase = _Phase.CLOSING
            return
        self._stop()
        self._thread.join()

    # ------------------------------------------------------------------------------------------------------- calling

    def _require_open(self) -> None:
        if self._fault is not None:
            raise self._fresh_fault()
        if self._phase is not _Phase.OPEN:
            raise MailboxClosed(f"the line of {self._store.url} is {self._phase.value}")

    async def _ask(self, job: Job) -> object:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._blocking:
            return self._call_blocking(job)
        return await self._call(job)

    @trio.lowlevel.enable_ki_protection
    async def _call(self, job: Job) -> object:
        """Queue `job` and sleep until it is answered."""
        self._require_open()
        entry = _Entry(job, trio.lowlevel.current_task())
        self._unanswered += 1
        self._queue.put(entry)
        return await trio.lowlevel.wait_task_rescheduled(entry.stop_waiting)

    def _deliver(self, entries: Sequence[_Entry], answers: Sequence[Answer]) -> None:
        """Tell the followers, then the callers; runs in the trio thread, once a batch."""
        self._unanswered -= len(entries)
        if self._killed:
            answers = [self._fresh_fault() for _ in entries]  # the dead tell nothing, not even what they achieved
        self._announce(answers)
        reschedule = trio.lowlevel.reschedule
        for entry, answer in zip(entries, answers, strict=True):
            if entry.task is not None:
                reschedule(entry.task, Error(answer) if isinstance(answer, Exception) else Value(answer))

    def _announce(self, answers: Sequence[Answer]) -> None:
        events = list(chain.from_iterable(answer for answer in answers if type(answer) is tuple))
        if events:
            try:
                self._on_committed(events)
            except Exception as error:  # noqa: BLE001 - told to every later caller
                self._set_fault(error, "on_committed raised")

    def _stop(self) -> None:
        """Tell the thread to end once it has answered what is queued."""
        if self._phase is _Phase.OPEN:
            self._phase = _Phase.CLOSING
            self._watch_scope.cancel()
            self._queue.put(None)

    async def _close_with_run(self) -> None:
        """System task: when the trio run ends and nobody closed the line, end its thread."""
        try:
            with self._watch_scope:
                await trio.sleep_forever()
        finally:
            self._stop()

    def _set_fault(self, cause: BaseException, what: str = "the store failed") -> None:
        """Remember the first cause; later ones follow from it."""
        if self._fault is None:
            fault = StoreFault(f"{what}: {cause}")
            fault.__cause__ = cause
            self._fault = fault
            if self.on_fault is not None:
                self._tell(self.on_fault)

    def _fresh_fault(self) -> StoreFault:
        """Return an error of the caller's own, so that tracebacks do not pile up on a shared one."""
        assert self._fault is not None
        fault = StoreFault(str(self._fault))
        fault.__cause__ = self._fault.__cause__
        return fault

    # --------------------------------------------------------------------------------------------- with crash points

    @trio.lowlevel.enable_ki_protection
    def _call_blocking(self, job: Job) -> object:
        """Queue `job` and block the trio thread until it is answered."""
        self._require_open()
        self._queue.put(_Entry(job, None))
        answers = self._blocking_answers.get()
        if answers is None:
            self._blocking_answers.put(None)  # the thread has ended: there will be no other
            raise self._fresh_fault()
        (answer,) = answers
        self._announce((answer,))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _commit_blocking(self, mutation: Mutation) -> tuple[Event, ...]:
        self._require_open()
        self._killed_actor_at = None
        try:
            self._pass_point(f"{mutation.label}/enqueued")
        except RuntimeKilled as cause:
            self.kill(cause)
            raise self._fresh_fault() from cause
        events = cast("tuple[Event, ...]", self._call_blocking(mutation))
        if self._killed_actor_at is not None:
            raise ActorKilled(self._killed_actor_at)
        return events

    def _pass_point(self, point: str) -> None:
        """Pass `point`; whose actor dies there is told when its mutation is done, whose runtime does, at once."""
        assert self._crash_points is not None
        match self._crash_points.passed(point):
            case Kill.RUNTIME:
                raise RuntimeKilled(point)
            case Kill.ACTOR:
                self._killed_actor_at = self._killed_actor_at or point
            case None:
                pass

    # ------------------------------------------------------------------------------------------------ the line thread

    def _run_thread(self) -> None:
        loop = asyncio.SelectorEventLoop()  # not the policy's: the host's choice of loop is its own
        try:
            loop.run_until_complete(self._serve())
        finally:
            loop.close()
            self._blocking_answers.put(None)
            self._tell(self._end)

    def _end(self) -> None:
        """Once the thread has ended: answer who queued after its last look.  Runs in the trio thread."""
        late = [entry for entry in self._rest() if entry is not None]
        if late:
            self._deliver(late, [self._fresh_fault() for _ in late])
        self._thread_ended.set()

    def _rest(self) -> Iterator[_Entry | None]:
        while self._queue.qsize():
            yield self._queue.get_nowait()

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the trio thread call `function`, unless its run is over and nobody is left to be told."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(function, *arguments)

    def _say_opened(self) -> None:
        self._opened_anyhow.set()
        self._tell(self._opened.set)

    async def _serve(self) -> None:
        try:
            await self._store.open(self._events_kept_max)
        except BaseException as error:  # noqa: BLE001 - raised by start()
            self._opening_error = error
            self._say_opened()
            return
        self._say_opened()
        try:
            await self._store.serve(self._work)
        except BaseException as error:  # noqa: BLE001 - told to every later caller
            self._set_fault(error, "the line broke")
        try:
            await self._store.close()
        except Exception as error:  # noqa: BLE001 - everything acknowledged is durable; told to whoever asks
            self._set_fault(error, "the store could not be closed")
        self._answer_rest()

    def _work(self, run: Run) -> None:
        """Take, run and answer batches until the end; runs on the store's thread."""
        while entries := self._take():
            self._owed = entries
            answers = self._run_batch(run, entries)
            if answers is None:
                return
            self._owed = []
            self._answer(entries, answers)

    def _take(self) -> list[_Entry]:
        """Wait for an entry and return it with all that is queued behind it; nothing at the end."""
        queue = self._queue
        entries: list[_Entry] = []
        waiting = 1
        while waiting and not self._ended:
            for _ in range(waiting):
                entry = queue.get()
                if entry is None:
                    self._ended = True
                    break
                entries.append(entry)
            waiting = min(queue.qsize(), self._batch_max - len(entries))
        return entries

    def _run_batch(self, run: Run, entries: Sequence[_Entry]) -> Sequence[Answer] | None:
        """Return an answer for each entry, or None if the runtime was killed on the way."""
        if self._fault is not None:
            return [self._fresh_fault() for _ in entries]
        probe = None
        if self._crash_points is not None and isinstance(mutation := entries[0].job, Mutation):
            probe = partial(self._pass_boundary, mutation.label)
        try:
            return run([entry.job for entry in entries], probe)
        except RuntimeKilled as killed:
            self._set_fault(killed, "the runtime was killed")
            self._store.refuse(killed)
            return None
        except Exception as error:  # noqa: BLE001 - becomes the sticky fault
            self._set_fault(error)
        return [self._fresh_fault() for _ in entries]

    def _pass_boundary(self, label: str, boundary: str) -> None:
        self._pass_point(f"{label}/{boundary}")

    def _answer(self, entries: Sequence[_Entry], answers: Sequence[Answer]) -> None:
        if self._blocking:
            self._blocking_answers.put(answers)
        else:
            self._tell(self._deliver, entries, answers)

    def _answer_rest(self) -> None:
        """Once the store is closed: answer the calls of a killed runtime, and those nobody took or answered."""
        if not self._ended and self._fault is None:
            self._set_fault(RuntimeError("the store serves no more"), "the line broke")
        while not self._ended and self._queue.qsize():
            self._owed += self._take()
        if self._owed:
            self._answer(self._owed, [self._fresh_fault() for _ in self._owed])
