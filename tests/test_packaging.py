"""The three folders install as fencepost.actors, fencepost.mailbox and fencepost.supervisor, whole, in each manner."""

from __future__ import annotations

import json
import mailbox
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
from source_imports import PACKAGES, ROOT, imports_of, modules

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SETUPTOOLS = SETTINGS["tool"]["setuptools"]


def sources(checkout: Path = ROOT) -> list[Path]:
    """Every file of the packages, relative to the checkout."""
    return sorted(
        path.relative_to(checkout)
        for package in PACKAGES
        for path in (checkout / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )


def test_every_folder_is_a_listed_package() -> None:
    folders = {".".join(("fencepost", *path.parent.parts)) for path in sources()}
    assert set(SETUPTOOLS["packages"]) == folders


def test_every_folder_of_modules_has_an_init() -> None:
    folders = {path.parent for path in sources() if path.suffix == ".py"}
    assert {folder for folder in folders if not (ROOT / folder / "__init__.py").exists()} == set()


def test_every_file_that_is_no_module_is_package_data() -> None:
    patterns = SETUPTOOLS["package-data"]["*"]
    left_out = [path for path in sources() if path.suffix != ".py" and not any(fnmatch(path.name, p) for p in patterns)]
    assert left_out == []


def test_every_package_says_it_is_typed() -> None:
    assert all((ROOT / package / "py.typed").exists() for package in PACKAGES)


def test_every_package_that_is_imported_is_declared() -> None:
    project = SETTINGS["project"]
    declared = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    known = {re.split(r"[^\w-]", line)[0].replace("-", "_").lower() for line in declared} | {"attr", "fencepost"}
    known.add("opentelemetry")  # a namespace that several distributions install into
    imported = {
        item.module.split(".")[0]
        for name, path in modules().items()
        for item in imports_of(name, path)
        if not item.candidate
    }
    assert imported - sys.stdlib_module_names - known == set()


def test_the_standard_librarys_mailbox_is_still_the_standard_librarys() -> None:
    assert hasattr(mailbox, "Maildir")


# ------------------------------------------------------------------------------------------------- for real, so slowly


def run(*command: str | Path) -> str:
    """Run a command outside of the checkout and of this test's environment; its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what is packaged: building leaves its traces there, not here."""
    copy = tmp_path / "checkout"
    copy.mkdir()
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["wheel", "editable", "strict"])
def test_an_install_in_a_fresh_environment_works(manner: str, checkout: Path, tmp_path: Path) -> None:
    files = sources(checkout)
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pip = (python, "-I", "-m", "pip", "--disable-pip-version-check")
    match manner:
        case "wheel":
            run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, checkout)
            (wheel,) = tmp_path.glob("*.whl")
            names = zipfile.ZipFile(wheel).namelist()
            packed = {name for name in names if ".dist-info/" not in name}
            assert packed == {f"fencepost/{path.as_posix()}" for path in files}
            run(*pip, "install", "--quiet", wheel)
            shutil.rmtree(checkout)
        case "editable":
            run(*pip, "install", "--quiet", "--editable", checkout)
        case _:
            run(*pip, "install", "--quiet", "--config-settings", "editable_mode=strict", "--editable", checkout)

    modules = [".".join(("fencepost", *path.with_suffix("").parts)) for path in files if path.suffix == ".py"]
    data = [path.as_posix() for path in files if path.suffix != ".py"]
    program = f"""
import importlib.metadata, importlib.resources, importlib.util, json, mailbox
import fencepost, fencepost.actors, fencepost.supervisor
from fencepost.mailbox import StoreFault
import fencepost.mailbox
files = importlib.resources.files
print(json.dumps(dict(
    version=importlib.metadata.version("fencepost"),
    maildir=hasattr(mailbox, "Maildir"),
    namespace=fencepost.__file__ if hasattr(fencepost, "__file__") else None,
    missing=[name for name in {modules} if importlib.util.find_spec(name) is None],
    no_data=[
        path for path in {data}
        if not files("fencepost." + path.split("/")[0]).joinpath(*path.split("/")[1:]).is_file()
    ],
)))
"""
    assert json.loads(run(python, "-I", "-W", "error", "-c", program)) == {
        "version": SETTINGS["project"]["version"],
        "maildir": True,
        "namespace": None,
        "missing": [],
        "no_data": [],
    }
    assert "Usage" in run(environment / "bin" / "fencepost", "--help")
    if manner == "wheel":  # and from what is installed alone
        assert json.loads(run(environment / "bin" / "fencepost", "demo", "--json"))["failed"] is False
