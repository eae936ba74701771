"""The dashboard: pages for a browser, on the operator listener.

    routes     which pages there are
    sessions   one-time tickets, and the sessions that they open; in memory only
    browser    who is asking: the Host, the cookie, the Origin and the form token of a request
    board      what the pages share: the store's address, the sessions, the templates
    views      what the store says, read beside the runtime, as values; damage is one of them
    words      states, stages and reasons as a person says them, and what an intent waits for
    journey    the steps of an intent with their times, and how a batch completed against its order
    pages      one function a page
    deciding   what only a human decides: its confirmation, and doing it
    live       the stream that says that something changed
    login      asking a running bridge for a ticket

A page is rendered here and is whole without a script.  The script fetches the page again when the stream says that
something changed, and puts in what differs.
"""
