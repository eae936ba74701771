"""Deliveries of a bridge on asyncio: the same calls, and its own code runs on its own loop."""

from __future__ import annotations

import asyncio
import threading

from fencepost.mailbox.claim import fingerprint_of
from fencepost.supervisor import (
    Applied,
    ChannelTurn,
    FleetSeatMailbox,
    HarnessSeatControl,
    HeadSeatOutbox,
    InboundPost,
    MechanismOutcome,
    NativeSession,
    Outbound,
    Stage,
    Stop,
    TranscriptEntry,
    TurnEnd,
    check,
    open_supervisor,
)


def test_every_mechanism_and_an_acceptance_on_asyncio(url):
    async def main() -> None:
        home = asyncio.get_running_loop()

        def here() -> None:
            assert asyncio.get_running_loop() is home
            assert threading.current_thread() is threading.main_thread()

        class Control:
            entries: tuple[TranscriptEntry, ...] = ()
            silent = False

            async def inspect(self, pane_id):
                here()
                await asyncio.sleep(0)
                return NativeSession("session-1", pane_id, "claude-code", self.entries)

            async def send(self, _session, _delivery_id, text):
                here()
                await asyncio.sleep(0)
                self.entries += (TranscriptEntry(f"entry-{len(self.entries)}", "operator", text),)
                if self.silent:
                    await asyncio.sleep(3600)
                return MechanismOutcome("accepted", "steered")

        async def turn(_message):
            here()
            await asyncio.sleep(0)
            return TurnEnd("settled", text="well")

        control = Control()
        mechanisms = [
            HeadSeatOutbox(),
            FleetSeatMailbox(),
            HarnessSeatControl(control, answer_seconds=0.2),
            ChannelTurn(turn),
        ]
        async with open_supervisor(url, mechanisms=mechanisms, dispatcher=turn) as supervisor:
            pane = supervisor.pane("pane")
            for via, reached in (("head_seat", Stage.DELIVERED), ("fleet_seat", Stage.CONSUMED)):
                report = asyncio.create_task(pane.deliver(Outbound("hello", via)))
                (event,) = await pane.poll_events(5)
                assert await pane.acknowledge_event(event.event_id, "queued") == Applied()
                assert (await report).stage is reached
            assert (await pane.deliver(Outbound("hello", "harness_seat"))).native == "steered"
            assert (await pane.deliver(Outbound("hello", "channel_turn"))).stage is Stage.RESPONDED

            control.silent = True
            silent = await pane.deliver(Outbound("are you there?", "harness_seat"))
            assert silent.stop is Stop.UNCERTAIN
            proof = await control.inspect("pane")
            assert (await pane.reconcile(silent.delivery_id, proof)).stage is Stage.CONSUMED

            await pane.launch("claude-code", "session-1")
            binding = (await pane.binding()).binding
            delivery_id = "00000000-0000-0000-0000-000000000001"
            receipt = await pane.accept(InboundPost(delivery_id, binding, "from the pane"))
            assert receipt.stage is Stage.STORED
            assert await pane.receipt(delivery_id, binding, fingerprint_of("from the pane")) == receipt
            kinds = []
            async for event in supervisor.events():
                kinds.append(event.kind)
                if event.kind == "delivery.ended":
                    break
            assert kinds.count("delivery.accepted") == 1
            assert await pane.reset_conversation() == Applied()
        assert await check(url) == []

    asyncio.run(asyncio.wait_for(main(), 30))
