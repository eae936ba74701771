"""The commands that ask a bridge to do something: what a person decides, and what a program may hand in.

Each is one request to the bridge that serves from the folder.  The bridge's words may repeat what a harness wrote, so
they are shown escaped.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import click

from fencepost.mailbox.records import TransitionKind
from fencepost.supervisor.bridge.client import ClientError, NobodyServes, Operator, RequestRejected
from fencepost.supervisor.bridge.operator_api import ACTIONS, Action, Field
from fencepost.supervisor.cli.output import JSON, Failed, say, say_json, shown
from fencepost.supervisor.cli.reading import FOLDER, Seconds, default_folder, in_folder, pane_id

__all__ = ["COMMANDS", "asking", "operator_of"]

_COLUMNS_MAX: Final = 100
REFUSED: Final = 1
"""The exit status where the bridge, or the protocol, said no."""


class Refused(Failed):
    """The protocol has no such step."""

    exit_code = REFUSED


def operator_of(folder: Path | None) -> Operator:
    """The bridge that serves from the folder, or from the user's own."""
    return Operator(folder or default_folder())


@contextmanager
def asking() -> Generator[None]:
    """What the protocol refuses is exit status 1, whatever else goes wrong 2; each in words on stderr."""
    try:
        yield
    except RequestRejected as error:
        raise (Refused(error) if error.status == 409 else Failed(error)) from error
    except ClientError as error:
        raise Failed(error) from error


# -- what a person decides -------------------------------------------------------------------------------------------

_EXAMPLES: Final = {
    "settle": """fencepost settle 7 5e0d… --approval "ada: the pane was closed by hand\"""",
    "resolve": """fencepost resolve 7 intent-12 --resolution "took our side of a.py" --by ada""",
    "rearm": "fencepost rearm 7 intent-12",
    "discard": "fencepost discard 7 intent-12 --approval 4f1c…",
    "revive": "fencepost revive pane:7 --yes",
}
_IDS: Final = {"delivery_id": "DELIVERY", "intent_id": "INTENT", "address": "ADDRESS"}


def _command_of(action: Action) -> click.Command:
    """The command of one action: its ids are arguments, its other fields options that are required."""

    def run(folder: Path | None, yes: bool, as_json: bool, pane: str | None = None, **fields: str) -> None:
        _confirm(action, pane, fields, yes=yes)
        operator = operator_of(folder)
        with asking():
            said = operator.act(action.name, pane, fields)
        if as_json:
            say_json(said)
        if said.get("answer") == "unchanged":
            _tell_unchanged(operator, pane, fields, as_json=as_json)
        else:
            _conclude(said, as_json=as_json)

    parameters: list[click.Parameter] = [] if action.name == "revive" else [click.Argument(["pane"], callback=pane_id)]
    parameters += map(_parameter, action.fields)
    parameters.append(click.Option(["--yes", "-y"], is_flag=True, help="Do not ask for confirmation."))
    command = click.Command(
        action.name,
        params=parameters,
        callback=run,
        short_help=action.summary,
        help=f"{action.summary}\n\n"
        f"What it claims: {action.claims}\n\n"
        f"What it does not claim: {action.does_not_claim}\n\n"
        "Asks for confirmation on a terminal; elsewhere it needs --yes.  Exit status: 0 if it was done, or was so "
        "already; 1 if it was refused, with the reason; 2 if no bridge serves, or it could not be asked.",
        epilog=f"\b\nExample:\n  {_EXAMPLES[action.name]}",
    )
    return FOLDER(JSON(command))


def _parameter(field: Field) -> click.Parameter:
    if field.name in _IDS:
        return click.Argument([field.name], metavar=_IDS[field.name])
    return click.Option([f"--{field.name}"], required=True, metavar="TEXT", help=field.help)


def _confirm(action: Action, pane: str | None, fields: Mapping[str, str], *, yes: bool) -> None:
    """Have a person agree to what the action claims, unless he did so beforehand."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(f"{action.name} asks a person for confirmation, and this is no terminal: add --yes")
    said = {**({} if pane is None else {"pane": pane}), **fields}
    click.echo(_wrapped(f"{action.title}: {action.summary}"), err=True)
    for name, value in said.items():
        click.echo(f"  {name.replace('_', ' ')}: {shown(value)}", err=True)
    click.echo(f"\nWhat this claims:\n{_wrapped(action.claims, '  ')}", err=True)
    click.echo(f"\nWhat it does not claim:\n{_wrapped(action.does_not_claim, '  ')}\n", err=True)
    try:
        agreed = click.confirm(f"{action.title}?", default=False, err=True)
    except click.Abort:  # Ctrl-C, or the end of the input
        agreed = False
    if not agreed:
        raise Failed("nothing was done")


def _wrapped(text: str, indent: str = "") -> str:
    """The text in lines that end between words, for this terminal."""
    columns = min(shutil.get_terminal_size().columns, _COLUMNS_MAX)
    return click.wrap_text(text, columns, initial_indent=indent, subsequent_indent=indent)


def _conclude(said: Mapping[str, Any], *, as_json: bool) -> None:
    """Tell the answer in words, and leave with its status."""
    if said.get("answer") == "refused":
        reason = f"refused: {shown(said.get('reason'))}: {shown(said.get('detail'))}"
        click.echo(f"Error: {reason}", err=True)
        click.get_current_context().exit(REFUSED)
    if not as_json:
        say("done")


def _tell_unchanged(operator: Operator, pane: str | None, fields: Mapping[str, str], *, as_json: bool) -> None:
    """Tell what was found where there was nothing to do: so it was already, or no choice was recorded (status 1)."""
    if (address := fields.get("address")) is not None:
        words, was_so = f"no actor {shown(address)} is quarantined", True
    elif pane is not None and "resolution" in fields:
        words, was_so = _of_unresolved(operator, pane, fields["intent_id"])
    elif (delivery_id := fields.get("delivery_id")) is not None:
        words, was_so = f"delivery {shown(delivery_id)} is not uncertain, or was settled before", True
    else:
        words, was_so = "it was so already", True
    if not was_so:
        click.echo(f"Error: unchanged: {words}", err=True)
        click.get_current_context().exit(REFUSED)
    if not as_json:
        say(f"unchanged: {words}")


def _of_unresolved(operator: Operator, pane: str, intent_id: str) -> tuple[str, bool]:
    """Why an intent takes no choice of a person, in words; and whether it has had one."""
    with asking():
        intents = operator.pane(pane).get("intents") or []
    for intent in intents:
        if intent["intent_id"] == intent_id:
            found = f"intent {shown(intent_id)} is {shown(intent['state'])}"
            if intent["resolution"] is not None:
                return f"{found}, and a choice is recorded already: {shown(intent['resolution'])}", True
            return f"{found} and needs nobody; no choice was recorded", False
    return f"intent {shown(intent_id)} needs nobody; no choice was recorded", False


# -- what a program hands in -----------------------------------------------------------------------------------------

_NEW: Final = click.option(
    "--new", is_flag=True, help="The pane may be one of which nothing is known; without it, that is taken for a typo."
)


@click.command(
    epilog="""\b
Example:
  fencepost detect 7 --from 3f2a --to 9c41 --classification-op op-17 --trigger-op op-18
"""
)
@click.argument("pane", callback=pane_id)
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in TransitionKind]),
    default=TransitionKind.PARENT_ADVANCE.value,
    show_default=True,
    help="Why the base moved.",
)
@click.option("--from", "from_base", required=True, metavar="REVISION", help="The base until now.")
@click.option("--to", "to_base", required=True, metavar="REVISION", help="The base from now on.")
@click.option(
    "--classification-op",
    required=True,
    metavar="ID",
    help="An id of your own, for the look that told which kind of move it is.",
)
@click.option(
    "--trigger-op",
    required=True,
    metavar="ID",
    help="An id of your own, for what moved it (a push, say); one id counts once, so asking again is safe.",
)
@click.option("--ambiguous", metavar="WHY", help="Why the move cannot be proved; a person must resolve it then.")
@_NEW
@FOLDER
@JSON
def detect(pane: str, new: bool, folder: Path | None, as_json: bool, **members: str | None) -> None:
    """Say that the base of a pane has moved.

    Prints the intent that carries it and its state; `coalesced` if an open intent took it in.  Durable when this
    returns.  Needs a bridge that reconciles.  Exit status: 1 if the protocol has no such step; 2 if no bridge serves,
    or nothing is known of such a pane (see --new).
    """
    transition = {name: value for name, value in members.items() if value is not None}
    if transition["from_base"] == transition["to_base"]:
        raise click.UsageError(f"--from and --to are both {shown(repr(transition['to_base']))}: no base moved")
    with asking():
        said = operator_of(folder).detect(pane, transition, new=new)
    if as_json:
        say_json(said)
    else:
        coalesced = " coalesced" if said.get("coalesced") else ""
        say(f"{shown(said.get('intent_id'))} {shown(said.get('state'))}{coalesced}")


@click.command(
    epilog="""\b
Examples:
  fencepost deliver 7 --text "please run the tests"
  git log -1 | fencepost deliver 7 --via head_seat
"""
)
@click.argument("pane", callback=pane_id)
@click.option("--via", default="fleet_seat", show_default=True, metavar="MECHANISM", help="The way to the pane.")
@click.option("--text", metavar="TEXT", help="The message [standard input].")
@click.option("--id", "delivery_id", metavar="UUID", help="The delivery's id [a new one]; the same one sends once.")
@click.option("--wait", metavar="SECONDS", type=Seconds(0.1, 86_400), default=120.0, show_default=True)
@_NEW
@FOLDER
@JSON
def deliver(
    pane: str,
    via: str,
    text: str | None,
    delivery_id: str | None,
    wait: float,
    new: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Send a message to a pane and tell how far it got.

    Waits for as long as the mechanism does.  Exit status: 0 if it got to a stage; 1 if it did not (unavailable,
    uncertain, expired, rejected), or there is no such mechanism; 2 if no bridge serves, nothing is known of such a
    pane (see --new), or it has not answered in time; 130 if interrupted.  Nothing is ever sent twice: ask with the
    same text and --id how far it got.
    """
    text = _read_stdin() if text is None else text
    delivery_id = delivery_id or str(uuid4())
    try:
        with asking():
            said = operator_of(folder).deliver(pane, via, text, delivery_id, seconds=wait, new=new)
    except KeyboardInterrupt:
        click.echo(
            f"\nInterrupted; the message may be sent all the same.  {_ask_again(delivery_id, folder, new=new)}",
            err=True,
        )
        raise
    except Failed as error:
        if not isinstance(error.__cause__, NobodyServes | RequestRejected):
            click.echo(_ask_again(delivery_id, folder, new=new), err=True)
        raise
    if as_json:
        say_json(said)
    else:
        say(_report(said))
    if (other := said.get("delivery_id")) != delivery_id:
        click.echo(
            f"This text was not sent: an earlier message to the pane, {shown(other)}, is not resolved, and that is "
            "the one this tells of.",
            err=True,
        )
    if said.get("stage") is None:
        click.get_current_context().exit(REFUSED)


def _ask_again(delivery_id: str, folder: Path | None, *, new: bool) -> str:
    also = (f",{in_folder(folder)}" if folder is not None else "") + (", --new" if new else "")
    return f"Ask again how far it got with the same text{also} and --id {shown(delivery_id)}: it is sent once."


def _read_stdin() -> str:
    return sys.stdin.read()


def _report(said: Mapping[str, Any]) -> str:
    from fencepost.mailbox.ladder import Stage, Stop
    from fencepost.supervisor.words import STAGES, STOPS

    reached = said.get("stage") or said.get("stop")
    known: dict[str, str] = {**{one.value: text for one, text in STAGES.items()}}
    known |= {one.value: text for one, text in STOPS.items()}
    assert {*map(str, Stage), *map(str, Stop)} == known.keys()
    parts = [f"{shown(said.get('delivery_id'))} {shown(reached)}: {known.get(str(reached), 'nothing is said of it')}"]
    parts += [f"{name}: {shown(said[name])}" for name in ("native", "delay", "detail") if said.get(name)]
    return "; ".join(parts)


COMMANDS: Final[tuple[click.Command, ...]] = (*map(_command_of, ACTIONS.values()), detect, deliver)
"""In the order in which they are best shown."""
