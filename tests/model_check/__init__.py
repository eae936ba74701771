"""A model checker for the protocols of intents, tools and deliveries: the shipped decisions, every interleaving.

Theory of operation
===================

Nothing in here knows a rule of the protocol.  The rules are the pure functions and tables of `fencepost.actors`; the
checker calls exactly those, in every order in which a small world can make them be called, and looks at what they
wrote.  A rule that is wrong there is wrong here, and shows.

    ledger   the durable half: rows, and each transaction a pure decision makes of them
    laws     what must hold after every transaction, whatever led to it
    world    the rest: harness process, hooks, messages, host, human; which steps are possible in a state; what is
             assumed of a host and an adapter
    search   breadth first over all states; the least faulty and then shortest way to each; the way to a good end
    story    a counterexample, told in numbered sentences with the rows' codes after each
    faults   deliberate mistakes, patched into the shipped modules at run time, to see that they are caught

    tool_world       the tool core by itself: a batch of three, every interleaving
    delivery_world   messages from a pane: bridges with their claim, a lossy wire, the service, damage
    pump_world       messages to a pane: a mailbox, the pumps that poll it, what they write to, damage
    outlets          the ways to a pane, and the one that is never taken
    breadth          the search of those two
    delivery_faults  deliberate mistakes in deliveries

The laws of deliveries are the twelve of protocol-delivery.md section 10; each of the two worlds says by number which it
judges, and all of them are judged in one or the other.  Their laws stand in the worlds, since most are about a step.
The rest of this page is about intents.

**The world.**  One pane; two base transitions, so up to two intents; a harness whose turns have batches of two calls,
and which may issue a second batch in the same turn; a host that launches, retires and reports failures; a runtime
that reconciles; a human who resolves, rearms and discards.  A process that ends is replaced, and turns go on, for as
long as there is anything to explore: neither is bounded.

**Messages** are a soup: what was said once may arrive at any time from then on, never, or again and again.  One rule
covers the lost, the doubled, the late and the overtaken message.  (Tool calls that arrive again are the one thing about
which something must be assumed; see `world`, and `--strays` for what happens otherwise.)  What a *retired* incarnation
has said stays in the soup too; since the fence must stop all of it, it is not part of the state but tried in every
state (`Ledger.probe`).

**Time and names.**  No rule compares times or names except for equality and order, so states that differ in nothing
else are one state: after each step turns are renumbered by rank, the latest incarnation gets one fixed name, every
stored time becomes 1 (a transaction runs at time 2, so that a law still sees which times it wrote), and what can
matter no more is forgotten.  The two calls of a batch are interchangeable.  This is what makes the space finite.

**Faults** are counted, ordinary steps are not: a crash, a death, a hook that gives up, a message that arrives again,
a process that comes up without its input, files in an unexpected state.  States are visited in the order of how many
faults they need, so every counterexample is the least faulty one.  `Bounds.faults` limits their number.

**Two kinds of claim.**  Safety: no step breaks a law.  And no dead end: from every state that is reachable, with
whatever faults, a good end is reachable *without any further fault*: every intent acknowledged, superseded, or
discarded by a human, and no proof open.
"""
