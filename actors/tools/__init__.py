"""Built-in tools: `from fencepost.actors.tools import bash_tool`.

Names resolve on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fencepost.mailbox._lazy import lazy_exports

_EXPORTS: Final[dict[str, tuple[str, ...]]] = {"fencepost.actors.tools.bash": ("bash_tool",)}

if TYPE_CHECKING:
    from fencepost.actors.tools.bash import bash_tool as bash_tool
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, _EXPORTS)
