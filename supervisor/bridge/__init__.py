"""The reference bridge: what a harness in a terminal pane needs of the runtime, over a socket and as processes.

    adapters     one harness each: its hooks' words in, its decisions' words out
    launchers    real processes: started so that no crash leaks one, stopped with proof

It is built on the public names of `fencepost.supervisor` alone, as anybody's own bridge would be.
"""
