"""Reads what the modules of fencepost import, without importing them; shared by the tests of layers and of purity."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("mailbox", "actors", "supervisor")  # from the lowest layer to the highest


@dataclass(frozen=True)
class Import:
    """One imported module, spelled in full, or a name that may be one (`from x import y` gives both x and x.y)."""

    module: str
    line: int
    typing_only: bool
    candidate: bool = False  # the y of `from x import y`: a module only if there is such a file


def modules() -> dict[str, Path]:
    """Every module of the checkout under the name it is imported by."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = ("fencepost", *path.relative_to(ROOT).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.Module, name: str, *, is_package: bool) -> Iterator[Import]:
    """Every import of the module `name`, wherever it stands: in functions, in branches, for typing only, by string."""
    yield from _walk(tree, name if is_package else name.rpartition(".")[0], typing_only=False)


def imports_of(name: str, path: Path) -> Iterator[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return imports(tree, name, is_package=path.name == "__init__.py")


def _walk(node: ast.AST, package: str, *, typing_only: bool) -> Iterator[Import]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield Import(alias.name, node.lineno, typing_only)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = package.split(".")
            above = ".".join(base[: len(base) - level + 1]) if level else ""
            source = ".".join(filter(None, (above, module)))
            yield Import(source, node.lineno, typing_only)
            for alias in names:
                yield Import(f"{source}.{alias.name}", node.lineno, typing_only, candidate=True)
        case ast.Constant(value=str(text)) if text.startswith("fencepost.") and text.replace(".", "").isidentifier():
            yield Import(text, node.lineno, typing_only, candidate=True)  # import_module, a table of lazy exports
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), body=body, orelse=orelse):
            for statement in body:
                yield from _walk(statement, package, typing_only=True)
            for statement in orelse:
                yield from _walk(statement, package, typing_only=typing_only)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _walk(child, package, typing_only=typing_only)
