"""A message that says how far it got: kill this program while it sends and run it again; nothing is sent twice."""

import trio

import fencepost.supervisor as fp

MESSAGE = fp.Outbound("The build is green.", "channel_turn", "0b1f6c1e-8f0a-4c53-9d3e-5a4c2f6f7d10")  # an id of ours


async def post(message: fp.ChannelMessage) -> fp.TurnEnd:
    print(f"sending: {message.text}", flush=True)  # called once, when the record of it is durable
    await trio.sleep(0.3)
    return fp.TurnEnd("settled")


async def main() -> None:
    async with fp.open_supervisor("sqlite:///messages.db", mechanisms=[fp.ChannelTurn(post)]) as supervisor:
        report = await supervisor.pane("pane-1").deliver(MESSAGE)  # a second time, this only asks about the first
        following = fp.ladder.may_follow(fp.Reach(report.stage, report.stop))
        print(f"{report.outcome}: {report.stage or report.stop}; the same message again: {following.explicit_retry}")


trio.run(main)
