"""The shapes of deliveries, as a program outside relies on them: written out once more from the contract (D-1 to D-33).

A default or a field that moves is a change for every bridge, so it has to be changed here too, on purpose.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import fencepost.mailbox
import fencepost.supervisor as fp

SHAPES = """
Outbound             text, via, delivery_id=None
DeliveryReport       delivery_id, stage, stop, mechanism, outcome, native=None, delay=None, detail=None
MailboxEvent         event_id, delivery_id, pane_id, mechanism, text
MechanismOutcome     outcome, native=None, delay=None, detail=None
NativeSession        session_id, pane_id, agent, entries
TranscriptEntry      entry_id, role, text, complete=True
ChannelMessage       delivery_id, pane_id, text
TurnEnd              outcome, native=None, text=None
HeadSeatOutbox       *, grace_seconds=5.0, acknowledge_seconds=30.0, reply_seconds=0.0, fallback=None
FleetSeatMailbox     *, grace_seconds=5.0, acknowledge_seconds=30.0
HarnessSeatControl   control, *, answer_seconds=30.0
ChannelTurn          runner, *, wait_seconds=600.0
Binding              binding, detail=None
InboundPost          delivery_id, binding, text
Receipt              received, stage, stop, delivery_id, binding, fingerprint, detail=None
AcceptedTurn         run_id, delivery_id, pane_id, conversation_id, text, wrapped_text
ChannelPump          source, sink, *, wait_seconds=25.0, retry_seconds=1.0
PumpStopped          event_id, cause
ClaimedSender        state_dir, scope, transport
Response             status, body
SendReport           stage, stop, delivery_id, binding, fingerprint, detail
Reach                stage=None, stop=None
Following            automatic_retry, explicit_retry, fallback
UnmappedMechanism    mechanism, outcome=None
Pane.deliver             outbound
Pane.reconcile           delivery_id, evidence
Pane.poll_events         wait_seconds=0
Pane.acknowledge_event   event_id, native=None, delay=None
Pane.reply_event         event_id, text
Pane.cancel_delivery     delivery_id
Pane.settle              delivery_id, approval
Pane.binding
Pane.accept              post
Pane.receipt             delivery_id, binding, fingerprint
Pane.reset_conversation
NativeControl.inspect        pane_id
NativeControl.send           session, delivery_id, text
PumpSource.poll              wait_seconds
PumpSource.acknowledge       event_id
PumpSource.refresh
NotificationSink.write       event
Transport.read_binding
Transport.post               delivery_id, binding, text
Transport.read_receipt       delivery_id, binding, fingerprint
Transport.refresh
ClaimedSender.send           text
ClaimedSender.settle         delivery_id, approval
ladder.report                mechanism, outcome, native=None
ladder.may_follow            reach
ladder.advance               current, proved
ladder.decode                record
"""
BLOCKING = ("Transport.", "ClaimedSender.", "ladder.")
KEYWORDS_TOO = {"DeliveryReport", "Receipt"}
"""Records that nobody outside makes: whether their fields may be given by position is not promised."""


def shape_of(name: str) -> str:
    owner, _, method = name.partition(".")
    target: Any = getattr(fp, owner)
    parameters = [*inspect.signature(getattr(target, method) if method else target).parameters.values()]
    parameters = [parameter for parameter in parameters if parameter.name != "self"]
    if name in KEYWORDS_TOO:
        parameters = [parameter.replace(kind=parameter.POSITIONAL_OR_KEYWORD) for parameter in parameters]
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    return str(inspect.Signature(bare))[1:-1]


@pytest.mark.parametrize("line", SHAPES.strip().splitlines(), ids=lambda line: line.split()[0])
def test_the_names_and_fields_are_the_contracts(line):
    name, _, shape = line.partition(" ")
    assert shape_of(name) == shape.strip()
    if "." in name:
        owner, _, method = name.partition(".")
        assert inspect.iscoroutinefunction(getattr(getattr(fp, owner), method)) is not name.startswith(BLOCKING)


@pytest.mark.parametrize("name", ["ladder", "Stage", "Stop", "ClaimedSender", "Response", "SendReport"])
def test_d_1_what_both_packages_export_is_the_same(name):
    assert getattr(fp, name) is getattr(fencepost.mailbox, name)


def test_d_12_the_words_of_what_may_follow():
    assert [retry.name for retry in fp.Retry] == ["NO", "ORIGINAL_RECEIPT", "NEW_REQUEST", "AFTER_RECONCILE", "NEW_ID"]
    assert [fallback.name for fallback in fp.Fallback] == ["NO", "BEFORE_DISPATCH"]
