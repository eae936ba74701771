"""The reference bridge: what a harness in a terminal pane needs of the runtime, over a socket and as processes.

This is the map of the folder.  `program` is the place to begin: it says who knows whom.  The pages are docs/running.md
(agents in panes), docs/bridge.md (the HTTP surface) and docs/adapters.md (harnesses and their hooks).

    the whole
        command            `fencepost serve`: its settings, its life, its exit status
        program            everything joined: the runtime, and what it calls and what calls it
        background         a bridge for whoever needs one: `fencepost run` starts it
        client             the operator's side of a request to a bridge that serves from a folder
        folder             where that folder is; private_files: how what is in it is written and read
        durably            how it is written by who serves: off the loop, whole and in order

    a request, from the socket to the answer
        serve              the three listeners on sockets, from their binding to their bounded end
        connections        who holds how many, and for how long; limits: all bounds; turns: who goes on next
        app                one listener: the order of the checks; failures: how each failure is told
        routes             which request may come in where; handler_table: the function of each
        auth               who is asking; seats: the members of the fleet; peers: which process is at the other end
        wire               the JSON, both ways; pieces: how much of it there is, told before it is parsed
        handlers           a pane's routes: events, acknowledgements, messages, hooks
        operator_handlers  the operator's: how everything stands, detect, deliver; operator_api: what only he can decide
        process_api        the operator's for a pane's process
        openapi            all of it as a document; openapi_operator: the operator's shapes; schema: their pieces
        escaped            others' text, with nothing in it that a terminal might obey

    a hook, and what becomes of it
        hook               the program that a harness runs: one file, standard library only; hook_start: starts it fast
        hook_settings      the settings that make a harness run it; codex_home: what Codex's share with the user's own
        opencode_plugin    what makes OpenCode run it; opencode_claims: which session of its may be started
        adapters           one harness each: its hooks' words in, its decisions' words out
        startup_tag        the tag by which a startup payload is told from every other input
        reconciling        a program of the user's that moves the files, or a notice that they were moved

    the processes in the panes
        panes              the book: what runs in each pane, kept over restarts; places: where, also if that was lost
        pane_processes     what an operator does with them: start, end, look
        starting           what one is started with: settings, command line, environment
        launching          the runtime's `Launcher`: a process, and its membership of the fleet
        launchers          how one is started so that no crash leaks it, in tmux or without a terminal
        processes          which processes belong to an incarnation, and the proof that none is left
        watching           what is done when one has ended by itself

    messages
        opencode_server    OpenCode's own server as the way of a message to exactly one session
        dispatching        what a pane's agent sent goes to the head, and the head's reply ends its turn
        channel            the program that pushes a pane's messages into its harness
        channel_link       its way to the bridge; channel_stdio: to the harness
        channel_server     what it says there, the Model Context Protocol; channel_tools: the tools that it offers

    looking on
        dashboard          pages for a browser
        telemetry          logs, metrics and traces

It is built on the public names of `fencepost.supervisor`, as anybody's own bridge would be.  Beside those it only
reads: `overview` and `pane_history` tell how the fleet and a pane stand, and the dashboard reads the store's records,
with the words of `supervisor.words`.  A test holds it to that, and to this map.
"""
