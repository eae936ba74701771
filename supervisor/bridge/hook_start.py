"""Starts `hook.py` from its compiled form, and is otherwise that program.

    python -I -S hook_start.py --harness claude-code --event PreToolUse --deadline 15

The interpreter compiles a script that is named on its command line anew at each start, and for the hook program that is
half of what it costs beside the interpreter itself.  Imported modules are kept compiled, so it is loaded like one: from
the file beside this one and from nowhere else, with nothing on the import path that was not there.

What is kept may be damaged.  Then the source is read: a hook that ends with an error lets the tool call run.
"""

from __future__ import annotations

from _frozen_importlib_external import SourceFileLoader  # the same as importlib's, without what that imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

__all__ = ["program"]

PROGRAM = f"{__file__.rpartition('/')[0] or '.'}/hook.py"


def program() -> CodeType:
    """The hook program, compiled."""
    loader = SourceFileLoader("__main__", PROGRAM)
    try:
        kept = loader.get_code("__main__")
    except Exception:  # noqa: BLE001 - whatever damage does to what reads it
        kept = None
    return loader.source_to_code(loader.get_data(PROGRAM), PROGRAM) if kept is None else kept


if __name__ == "__main__":
    exec(program(), {"__name__": "__main__", "__file__": PROGRAM})  # noqa: S102 - it is our own, see above
