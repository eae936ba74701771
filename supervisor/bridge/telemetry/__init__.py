"""What the bridge tells about itself while it runs: logs, metrics and traces.  docs/observability.md has all names.

    logs         the process's log: one line a record, the ids as fields, written by a thread nobody waits for
    kinds        the runtime's events as records: their levels, and which of their data is told
    observer     what a listener tells of its requests and hooks; by itself it only logs them
    metrics      the numbers, as Prometheus reads them
    tracing      spans and numbers for OpenTelemetry, where its API is installed; spans: how they are made
    following    the runtime's events and dead letters, followed from the start of the process
    telemetry    `Telemetry`: all of it as one object, which the program hands to its `Bridge`

Nothing here can fail a request, and nothing of the runtime waits for it.
"""
