"""The reference bridge: what a harness in a terminal pane needs of the runtime, over a socket and as processes.

    routes       which request may come in where
    wire         its JSON, both ways
    auth         who is asking; seats, peers: the members and what proves them
    app          one listener as an application: the order of the checks, and each failure's answer
    handlers     what each route does
    serve        the listeners on sockets; connections, limits: their bounds, and their end
    command      `fencepost serve`
    adapters     one harness each: its hooks' words in, its decisions' words out
    telemetry    logs, metrics and traces of all of it
    channel      the program that pushes a pane's events into its harness; channel_*: its parts
    launchers    real processes: started so that no crash leaks one, stopped with proof

It is built on the public names of `fencepost.supervisor` alone, as anybody's own bridge would be.
"""
