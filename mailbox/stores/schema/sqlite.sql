-- The schema of a fencepost store, version 1.
--
-- Every named CHECK repeats a law of mailbox/*_records.py, every unique index and foreign key one that needs more than
-- one row (protocol-intent.md section 10).  tests/mailbox compares the vocabularies with the enums and breaks each law
-- by hand.  Foreign keys carry the pane's id, so that what belongs together also belongs to one pane.
--
-- Words are compared one by one because IN with more than two of them builds a table of its own at each UPDATE.
-- What may follow what (a record's FIXED, SETTLED and SEAL) is in the WHERE of the updates and not in triggers: a
-- trigger makes SQLite keep a journal of every single UPDATE, which costs more than the UPDATE.

CREATE TABLE intents (
    intent_id            TEXT    NOT NULL PRIMARY KEY,
    pane_id              TEXT    NOT NULL,
    revision             INTEGER NOT NULL,
    seq                  INTEGER NOT NULL,
    kind                 TEXT    NOT NULL,
    from_base            TEXT    NOT NULL,
    to_base              TEXT    NOT NULL,
    classification_op    TEXT    NOT NULL,
    detected_at          INTEGER NOT NULL,
    state                TEXT    NOT NULL,
    reason               TEXT,
    bundle_path          TEXT,
    bundle_fingerprint   TEXT,
    recovery_details     TEXT,
    resolution           TEXT,
    resolved_by          TEXT,
    discarded            INTEGER NOT NULL,
    planned_op           TEXT,
    starting_op          TEXT,
    result_op            TEXT,
    workspace_commit     TEXT,
    payload              BLOB,
    payload_sha256       TEXT,
    anchor_change_id     TEXT,
    anchor_commit_id     TEXT,
    anchor_op_id         TEXT,
    prepared_at          INTEGER,
    delivered_at         INTEGER,
    consumed_at          INTEGER,
    acknowledged_at      INTEGER,
    mode                 TEXT,
    incarnation_id       TEXT,
    turn_id              TEXT,
    turn_ordinal         INTEGER,
    batch_id             TEXT,
    bound_at             INTEGER,
    batch_completed_at   INTEGER,
    payload_offered_at   INTEGER,
    startup_delivery_id  TEXT,
    handshake_at         INTEGER,
    soft_redeliveries    INTEGER NOT NULL,
    epoch                INTEGER NOT NULL,
    exhausted_at         INTEGER,
    approval             TEXT,

    CONSTRAINT intent_counts_from_1 CHECK (revision >= 1 AND seq >= 1),
    CONSTRAINT intent_kind_is_known CHECK (kind IN ('native_rewrite', 'parent_advance')),
    CONSTRAINT intent_state_is_known CHECK (
        state = 'detected' OR state = 'reconciling' OR state = 'materialized' OR state = 'delivered'
        OR state = 'acknowledged' OR state = 'recovery_required' OR state = 'topology_diverged' OR state = 'superseded'
    ),
    CONSTRAINT intent_mode_is_known CHECK (mode IN ('soft_batch', 'restart_startup')),
    CONSTRAINT intent_discarded_is_boolean CHECK (discarded IN (0, 1)),
    CONSTRAINT intent_prepared_is_all_or_none CHECK (
        (result_op IS NULL) + (workspace_commit IS NULL) + (payload IS NULL) + (payload_sha256 IS NULL)
        + (anchor_change_id IS NULL) + (anchor_commit_id IS NULL) + (anchor_op_id IS NULL) + (prepared_at IS NULL)
        IN (0, 8)
    ),
    CONSTRAINT intent_payload_fits_state CHECK (
        (state = 'materialized' OR state = 'delivered' OR state = 'acknowledged') = (payload IS NOT NULL)
    ),
    CONSTRAINT intent_delivered_has_time CHECK (state <> 'delivered' OR delivered_at IS NOT NULL),
    CONSTRAINT intent_acknowledged_has_time CHECK ((state = 'acknowledged') = (acknowledged_at IS NOT NULL)),
    CONSTRAINT intent_acknowledged_was_delivered CHECK (
        state <> 'acknowledged' OR delivered_at IS NOT NULL OR discarded
    ),
    CONSTRAINT intent_delivered_before_acknowledged CHECK (delivered_at <= acknowledged_at),
    CONSTRAINT intent_consumed_was_delivered CHECK (consumed_at IS NULL OR delivered_at IS NOT NULL),
    CONSTRAINT intent_soft_tuple_is_all_or_none CHECK (
        (turn_id IS NULL) + (turn_ordinal IS NULL) + (batch_id IS NULL) + (bound_at IS NULL) IN (0, 4)
    ),
    CONSTRAINT intent_soft_batch_has_its_tuple CHECK ((mode IS 'soft_batch') = (batch_id IS NOT NULL)),
    CONSTRAINT intent_restart_has_its_startup CHECK ((mode IS 'restart_startup') = (startup_delivery_id IS NOT NULL)),
    CONSTRAINT intent_mode_has_its_incarnation CHECK ((mode IS NULL) = (incarnation_id IS NULL)),
    CONSTRAINT intent_unbound_state_has_no_proof CHECK (
        mode IS NULL OR (state <> 'detected' AND state <> 'acknowledged' AND state <> 'superseded')
    ),
    CONSTRAINT intent_delivered_has_a_proof CHECK (state <> 'delivered' OR mode IS NOT NULL),
    CONSTRAINT intent_completion_is_soft CHECK (
        mode IS 'soft_batch' OR (batch_completed_at IS NULL AND payload_offered_at IS NULL)
    ),
    CONSTRAINT intent_restart_is_prepared CHECK (
        mode IS NOT 'restart_startup' OR state = 'materialized' OR state = 'delivered' OR state = 'acknowledged'
    ),
    CONSTRAINT intent_handshake_is_of_a_restart CHECK (handshake_at IS NULL OR mode IS 'restart_startup'),
    CONSTRAINT intent_handshake_is_a_delivery CHECK (handshake_at IS NULL OR state = 'delivered'),
    CONSTRAINT intent_exhausted_has_its_approval CHECK ((exhausted_at IS NULL) = (approval IS NULL)),
    CONSTRAINT intent_exhausted_is_a_restart CHECK (exhausted_at IS NULL OR mode IS 'restart_startup'),
    CONSTRAINT intent_plan_names_both_operations CHECK ((planned_op IS NULL) = (starting_op IS NULL)),
    CONSTRAINT intent_has_pane UNIQUE (intent_id, pane_id),
    CONSTRAINT intent_incarnation_is_of_its_pane
        FOREIGN KEY (incarnation_id, pane_id) REFERENCES incarnations (incarnation_id, pane_id)
) STRICT;

CREATE UNIQUE INDEX intents_pane_seq ON intents (pane_id, seq);
CREATE UNIQUE INDEX intents_one_active_a_pane ON intents (pane_id)
    WHERE state = 'reconciling' OR state = 'materialized' OR state = 'delivered' OR state = 'recovery_required';
CREATE INDEX intents_by_state ON intents (state, pane_id);

CREATE TABLE triggers (
    pane_id      TEXT    NOT NULL,
    operation_id TEXT    NOT NULL,
    intent_id    TEXT    NOT NULL,
    position     INTEGER NOT NULL,
    at           INTEGER NOT NULL,

    PRIMARY KEY (pane_id, operation_id),
    CONSTRAINT trigger_intent_is_of_its_pane FOREIGN KEY (intent_id, pane_id) REFERENCES intents (intent_id, pane_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX triggers_of_intent ON triggers (intent_id, position);

CREATE TABLE incarnations (
    incarnation_id         TEXT    NOT NULL PRIMARY KEY,
    pane_id                TEXT    NOT NULL,
    revision               INTEGER NOT NULL,
    epoch                  INTEGER NOT NULL,
    harness                TEXT    NOT NULL,
    session_id             TEXT,
    soft_batches           INTEGER NOT NULL,
    turn_order             INTEGER NOT NULL,
    launched_at            INTEGER NOT NULL,
    retired_at             INTEGER,
    retire_reason          TEXT,
    relaunch               INTEGER NOT NULL,
    delivered_intent_id    TEXT,
    startup_intent_id      TEXT,
    startup_delivery_id    TEXT,
    startup_payload_sha256 TEXT,
    startup_epoch          INTEGER,
    startup_attempt        INTEGER,

    CONSTRAINT incarnation_counts_from_1 CHECK (revision >= 1 AND epoch >= 1),
    CONSTRAINT incarnation_flags_are_boolean CHECK (
        soft_batches IN (0, 1) AND turn_order IN (0, 1) AND relaunch IN (0, 1)
    ),
    CONSTRAINT incarnation_startup_is_all_or_none CHECK (
        (startup_intent_id IS NULL) + (startup_delivery_id IS NULL) + (startup_payload_sha256 IS NULL)
        + (startup_epoch IS NULL) + (startup_attempt IS NULL) IN (0, 5)
    ),
    CONSTRAINT incarnation_retired_has_no_marker CHECK (retired_at IS NULL OR delivered_intent_id IS NULL),
    CONSTRAINT incarnation_live_is_not_replaced CHECK (retired_at IS NOT NULL OR NOT relaunch),
    CONSTRAINT incarnation_retired_has_its_reason CHECK ((retired_at IS NULL) = (retire_reason IS NULL)),
    CONSTRAINT incarnation_has_pane UNIQUE (incarnation_id, pane_id),
    CONSTRAINT incarnation_marker_is_of_its_pane
        FOREIGN KEY (delivered_intent_id, pane_id) REFERENCES intents (intent_id, pane_id),
    CONSTRAINT incarnation_startup_is_of_its_pane
        FOREIGN KEY (startup_intent_id, pane_id) REFERENCES intents (intent_id, pane_id)
) STRICT;

CREATE UNIQUE INDEX incarnations_pane_epoch ON incarnations (pane_id, epoch);
CREATE UNIQUE INDEX incarnations_one_live_a_pane ON incarnations (pane_id) WHERE retired_at IS NULL;
CREATE UNIQUE INDEX incarnations_startup_delivery ON incarnations (startup_delivery_id)
    WHERE startup_delivery_id IS NOT NULL;
CREATE UNIQUE INDEX incarnations_marker ON incarnations (delivered_intent_id) WHERE delivered_intent_id IS NOT NULL;
CREATE INDEX incarnations_session ON incarnations (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX incarnations_startup_intent ON incarnations (startup_intent_id, startup_epoch)
    WHERE startup_intent_id IS NOT NULL;
CREATE INDEX incarnations_relaunch ON incarnations (incarnation_id) WHERE relaunch = 1;

CREATE TABLE admissions (
    incarnation_id TEXT    NOT NULL,
    turn_id        TEXT    NOT NULL,
    batch_id       TEXT    NOT NULL,
    pane_id        TEXT    NOT NULL,
    turn_ordinal   INTEGER,
    decision       TEXT    NOT NULL,
    intent_id      TEXT,
    at             INTEGER NOT NULL,

    PRIMARY KEY (incarnation_id, turn_id, batch_id),
    CONSTRAINT admission_decision_is_known CHECK (decision IN ('pass', 'block')),
    CONSTRAINT admission_block_names_its_intent CHECK ((decision = 'block') = (intent_id IS NOT NULL)),
    CONSTRAINT admission_turn_has_its_ordinal CHECK ((turn_id = '') = (turn_ordinal IS NULL)),
    CONSTRAINT admission_incarnation_is_of_its_pane
        FOREIGN KEY (incarnation_id, pane_id) REFERENCES incarnations (incarnation_id, pane_id),
    CONSTRAINT admission_intent_is_of_its_pane FOREIGN KEY (intent_id, pane_id) REFERENCES intents (intent_id, pane_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE projections (
    intent_id TEXT    NOT NULL PRIMARY KEY,
    pane_id   TEXT    NOT NULL,
    at        INTEGER NOT NULL,

    CONSTRAINT projection_intent_is_of_its_pane FOREIGN KEY (intent_id, pane_id) REFERENCES intents (intent_id, pane_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE transcript (
    dedup_key TEXT    NOT NULL PRIMARY KEY,
    intent_id TEXT    NOT NULL,
    payload   BLOB    NOT NULL,
    at        INTEGER NOT NULL
) STRICT;

-- Tool batches.  A memo, a checkpoint and a staged outcome refer to their call together with its status, which is fixed
-- in each of the three: none of them can outlive that status, whoever writes.

CREATE TABLE batches (
    address             TEXT    NOT NULL PRIMARY KEY,
    pane_id             TEXT    NOT NULL,
    revision            INTEGER NOT NULL,
    seq                 INTEGER NOT NULL,
    operation_id        TEXT    NOT NULL,
    turn_id             TEXT    NOT NULL,
    turn_ordinal        INTEGER NOT NULL,
    assistant_entry_id  TEXT    NOT NULL,
    incarnation_id      TEXT    NOT NULL,
    mode                TEXT    NOT NULL,
    fingerprint         TEXT    NOT NULL,
    calls_count         INTEGER NOT NULL,
    first_entry_seq     INTEGER NOT NULL,
    started_at          INTEGER NOT NULL,
    cancel_requested_at INTEGER,
    cancel_reason       TEXT,
    checkpoint          TEXT,
    closed_at           INTEGER,

    CONSTRAINT batch_counts_from_1 CHECK (revision >= 1 AND seq >= 1 AND calls_count >= 1 AND first_entry_seq >= 1),
    CONSTRAINT batch_mode_is_known CHECK (mode IN ('parallel', 'sequential')),
    CONSTRAINT batch_checkpoint_is_known CHECK (
        checkpoint = 'may_finish' OR checkpoint = 'need_assistant' OR checkpoint = 'aborted' OR checkpoint = 'ended'
    ),
    CONSTRAINT batch_closed_has_its_checkpoint CHECK ((checkpoint IS NULL) = (closed_at IS NULL)),
    CONSTRAINT batch_cancellation_has_its_reason CHECK ((cancel_requested_at IS NULL) = (cancel_reason IS NULL)),
    CONSTRAINT batch_aborted_is_cancelled CHECK (checkpoint IS NOT 'aborted' OR cancel_requested_at IS NOT NULL),
    CONSTRAINT batch_cancelled_is_aborted CHECK (
        cancel_requested_at IS NULL OR (checkpoint IS NOT 'may_finish' AND checkpoint IS NOT 'need_assistant')
    ),
    CONSTRAINT batch_has_pane UNIQUE (address, pane_id),
    CONSTRAINT batch_incarnation_is_of_its_pane
        FOREIGN KEY (incarnation_id, pane_id) REFERENCES incarnations (incarnation_id, pane_id)
) STRICT;

CREATE UNIQUE INDEX batches_pane_seq ON batches (pane_id, seq);
CREATE UNIQUE INDEX batches_one_open_a_pane ON batches (pane_id) WHERE checkpoint IS NULL;

CREATE TABLE calls (
    invocation_id TEXT    NOT NULL PRIMARY KEY,
    pane_id       TEXT    NOT NULL,
    revision      INTEGER NOT NULL,
    batch         TEXT    NOT NULL,
    source_index  INTEGER NOT NULL,
    tool_call_id  TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    refusal       TEXT,
    status        TEXT    NOT NULL,
    replay        TEXT,
    intent_id     TEXT,
    terminate     INTEGER NOT NULL,
    placed_at     INTEGER,

    CONSTRAINT call_counts CHECK (revision >= 1 AND source_index >= 0),
    CONSTRAINT call_status_is_known CHECK (
        status = 'planned' OR status = 'effect_pending' OR status = 'outcome_ready' OR status = 'completed'
    ),
    CONSTRAINT call_replay_is_known CHECK (replay IN ('never', 'safe')),
    CONSTRAINT call_terminate_is_boolean CHECK (terminate IN (0, 1)),
    CONSTRAINT call_planned_has_no_effect CHECK (status <> 'planned' OR replay IS NULL),
    CONSTRAINT call_effect_has_its_replay CHECK (status <> 'effect_pending' OR replay IS NOT NULL),
    CONSTRAINT call_terminates_by_its_outcome CHECK (
        NOT terminate OR status = 'outcome_ready' OR status = 'completed'
    ),
    CONSTRAINT call_payload_never_ran CHECK (
        intent_id IS NULL OR (replay IS NULL AND (status = 'outcome_ready' OR status = 'completed'))
    ),
    CONSTRAINT call_completed_is_placed CHECK ((status = 'completed') = (placed_at IS NOT NULL)),
    CONSTRAINT call_has_status UNIQUE (invocation_id, status),
    CONSTRAINT call_batch_is_of_its_pane FOREIGN KEY (batch, pane_id) REFERENCES batches (address, pane_id),
    CONSTRAINT call_intent_is_of_its_pane FOREIGN KEY (intent_id, pane_id) REFERENCES intents (intent_id, pane_id)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX calls_of_batch ON calls (batch, source_index);

CREATE TABLE call_arguments (
    invocation_id TEXT    NOT NULL PRIMARY KEY,
    revision      INTEGER NOT NULL,
    arguments     TEXT    NOT NULL,

    CONSTRAINT arguments_have_their_call FOREIGN KEY (invocation_id) REFERENCES calls (invocation_id)
) STRICT;

CREATE TABLE memos (
    invocation_id TEXT    NOT NULL,
    name          TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    value         TEXT    NOT NULL,
    at            INTEGER NOT NULL,

    PRIMARY KEY (invocation_id, name),
    CONSTRAINT memo_is_of_an_effect CHECK (status = 'effect_pending'),
    CONSTRAINT memo_call_is_pending FOREIGN KEY (invocation_id, status) REFERENCES calls (invocation_id, status)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
    invocation_id TEXT    NOT NULL PRIMARY KEY,
    status        TEXT    NOT NULL,
    content       TEXT    NOT NULL,
    details       TEXT,
    usage         TEXT,
    at            INTEGER NOT NULL,

    CONSTRAINT checkpoint_is_of_an_effect CHECK (status = 'effect_pending'),
    CONSTRAINT checkpoint_call_is_pending FOREIGN KEY (invocation_id, status) REFERENCES calls (invocation_id, status)
) STRICT;

CREATE TABLE outcomes (
    invocation_id    TEXT    NOT NULL PRIMARY KEY,
    status           TEXT    NOT NULL,
    content          TEXT    NOT NULL,
    details          TEXT,
    is_error         INTEGER NOT NULL,
    usage            TEXT,
    added_tool_names TEXT    NOT NULL,
    at               INTEGER NOT NULL,

    CONSTRAINT outcome_is_staged CHECK (status = 'outcome_ready'),
    CONSTRAINT outcome_is_error_is_boolean CHECK (is_error IN (0, 1)),
    CONSTRAINT outcome_call_is_ready FOREIGN KEY (invocation_id, status) REFERENCES calls (invocation_id, status)
) STRICT;

CREATE TABLE entries (
    entry_id         TEXT    NOT NULL PRIMARY KEY,
    pane_id          TEXT    NOT NULL,
    seq              INTEGER NOT NULL,
    parent_entry_id  TEXT    NOT NULL,
    operation_id     TEXT    NOT NULL,
    turn_id          TEXT    NOT NULL,
    source_index     INTEGER NOT NULL,
    tool_call_id     TEXT    NOT NULL,
    tool_name        TEXT    NOT NULL,
    content          TEXT    NOT NULL,
    details          TEXT,
    is_error         INTEGER NOT NULL,
    usage            TEXT,
    added_tool_names TEXT    NOT NULL,
    terminate        INTEGER NOT NULL,
    at               INTEGER NOT NULL,

    CONSTRAINT entry_counts CHECK (seq >= 1 AND source_index >= 0),
    CONSTRAINT entry_flags_are_boolean CHECK (is_error IN (0, 1) AND terminate IN (0, 1)),
    CONSTRAINT entry_has_its_call FOREIGN KEY (entry_id) REFERENCES calls (invocation_id)
) STRICT;

CREATE UNIQUE INDEX entries_pane_seq ON entries (pane_id, seq);

CREATE TABLE usage (
    entry_id TEXT    NOT NULL PRIMARY KEY,
    pane_id  TEXT    NOT NULL,
    usage    TEXT    NOT NULL,
    at       INTEGER NOT NULL,

    CONSTRAINT usage_has_its_entry FOREIGN KEY (entry_id) REFERENCES entries (entry_id)
) STRICT;

-- Deliveries (protocol-delivery.md).  A row of deliveries that is not resolved fences its pane, whatever the mechanism.

CREATE TABLE deliveries (
    delivery_id    TEXT    NOT NULL PRIMARY KEY,
    pane_id        TEXT    NOT NULL,
    revision       INTEGER NOT NULL,
    mechanism      TEXT    NOT NULL,
    text           TEXT    NOT NULL,
    fingerprint    TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    dispatched_at  INTEGER,
    session_id     TEXT,
    agent          TEXT,
    entries_before TEXT,
    outcome        TEXT,
    native         TEXT,
    delay          TEXT,
    detail         TEXT,
    stage          TEXT,
    stop           TEXT,
    reply          TEXT,
    resolved_at    INTEGER,
    abandoned_at   INTEGER,

    CONSTRAINT delivery_counts_from_1 CHECK (revision >= 1),
    CONSTRAINT delivery_stage_is_known CHECK (
        stage = 'stored' OR stage = 'delivered' OR stage = 'consumed' OR stage = 'responded'
    ),
    CONSTRAINT delivery_stop_is_known CHECK (
        stop = 'unavailable' OR stop = 'uncertain' OR stop = 'expired' OR stop = 'rejected'
    ),
    CONSTRAINT delivery_in_flight_reports_nothing CHECK (
        outcome IS NOT NULL
        OR (native IS NULL AND delay IS NULL AND detail IS NULL AND stage IS NULL AND stop IS NULL)
    ),
    CONSTRAINT delivery_reports_one_stage_or_stop CHECK (outcome IS NULL OR (stage IS NULL) + (stop IS NULL) = 1),
    CONSTRAINT delivery_uncertain_is_unresolved CHECK (
        (resolved_at IS NULL) = ((outcome IS NULL OR stop IS 'uncertain') AND abandoned_at IS NULL)
    ),
    CONSTRAINT delivery_abandoned_is_uncertain CHECK (abandoned_at IS NULL OR stop IS 'uncertain'),
    CONSTRAINT delivery_that_never_left_reached_nobody CHECK (
        dispatched_at IS NOT NULL OR stop IS 'unavailable' OR stop IS 'expired' OR stop IS 'rejected'
    ),
    CONSTRAINT delivery_reply_is_a_response CHECK (reply IS NULL OR stage IS 'responded'),
    CONSTRAINT delivery_session_has_its_agent CHECK ((session_id IS NULL) = (agent IS NULL)),
    CONSTRAINT delivery_entries_are_of_a_session CHECK (entries_before IS NULL OR session_id IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX deliveries_one_unresolved_a_pane ON deliveries (pane_id) WHERE resolved_at IS NULL;
CREATE INDEX deliveries_of_pane ON deliveries (pane_id, created_at);

CREATE TABLE inbound_fences (
    pane_id     TEXT    NOT NULL PRIMARY KEY,
    delivery_id TEXT    NOT NULL,
    binding     TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    at          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tombstones (
    delivery_id TEXT    NOT NULL PRIMARY KEY,
    pane_id     TEXT    NOT NULL,
    binding     TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    at          INTEGER NOT NULL,

    CONSTRAINT tombstone_has_pane UNIQUE (delivery_id, pane_id),
    CONSTRAINT tombstone_has_evidence UNIQUE (delivery_id, pane_id, binding, fingerprint)
) STRICT;

CREATE TABLE conversations (
    pane_id         TEXT    NOT NULL PRIMARY KEY,
    revision        INTEGER NOT NULL,
    conversation_id TEXT    NOT NULL,
    at              INTEGER NOT NULL,

    CONSTRAINT conversation_counts_from_1 CHECK (revision >= 1)
) STRICT;

CREATE TABLE acceptances (
    delivery_id     TEXT    NOT NULL PRIMARY KEY,
    pane_id         TEXT    NOT NULL,
    conversation_id TEXT    NOT NULL,
    binding         TEXT    NOT NULL,
    fingerprint     TEXT    NOT NULL,
    text            TEXT    NOT NULL,
    wrapped_text    TEXT    NOT NULL,
    run_id          TEXT    NOT NULL,
    at              INTEGER NOT NULL,

    CONSTRAINT acceptance_has_its_tombstone FOREIGN KEY (delivery_id, pane_id, binding, fingerprint)
        REFERENCES tombstones (delivery_id, pane_id, binding, fingerprint)
) STRICT;

CREATE INDEX acceptances_of_pane ON acceptances (pane_id, conversation_id);

CREATE TABLE runs (
    run_id       TEXT    NOT NULL PRIMARY KEY,
    revision     INTEGER NOT NULL,
    delivery_id  TEXT    NOT NULL,
    pane_id      TEXT    NOT NULL,
    published_at INTEGER NOT NULL,
    outcome      TEXT,
    native       TEXT,
    ended_at     INTEGER,

    CONSTRAINT run_counts_from_1 CHECK (revision >= 1),
    CONSTRAINT run_ended_has_its_outcome CHECK ((outcome IS NULL) = (ended_at IS NULL)),
    CONSTRAINT run_under_way_has_no_native_word CHECK (outcome IS NOT NULL OR native IS NULL),
    CONSTRAINT run_has_its_tombstone FOREIGN KEY (delivery_id, pane_id) REFERENCES tombstones (delivery_id, pane_id)
) STRICT;

CREATE UNIQUE INDEX runs_one_a_delivery ON runs (delivery_id);
CREATE INDEX runs_under_way ON runs (pane_id) WHERE ended_at IS NULL;

CREATE TABLE settlements (
    delivery_id TEXT    NOT NULL PRIMARY KEY,
    pane_id     TEXT    NOT NULL,
    approval    TEXT    NOT NULL,
    at          INTEGER NOT NULL
) STRICT;

CREATE TABLE events (
    seq     INTEGER NOT NULL PRIMARY KEY,
    at      INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    address TEXT    NOT NULL,
    data    TEXT    NOT NULL,

    CONSTRAINT event_seq_counts_from_1 CHECK (seq >= 1)
) STRICT;

CREATE TABLE dead_letters (
    seq            INTEGER NOT NULL PRIMARY KEY,
    at             INTEGER NOT NULL,
    address        TEXT    NOT NULL,
    call           TEXT    NOT NULL,
    incarnation_id TEXT,
    reason         TEXT    NOT NULL,
    detail         TEXT    NOT NULL,

    CONSTRAINT dead_letter_seq_counts_from_1 CHECK (seq >= 1)
) STRICT;

-- Trimming events must not let their numbers come back: this one row remembers the last number trimmed away.
CREATE TABLE trimmed (
    only             INTEGER NOT NULL PRIMARY KEY,
    last_event_seq   INTEGER NOT NULL,

    CONSTRAINT trimmed_is_one_row CHECK (only = 1)
) STRICT;

INSERT INTO trimmed VALUES (1, 0);
