"""Every row of every table of the delivery protocol has a test, and the test's name names its row."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from attrs import Factory, define

TESTS = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("protocol_rows.txt")
LOOKS_LIKE_A_ROW = re.compile(r"(?<![\w.-])\d{1,2}(?:\.\d)?-(?:[sOD]?\d{1,2})(?= )")


@define
class Table:
    """One table: how many rows it has in the protocol, and which tests show each."""

    name: str
    rows: int
    tests: dict[str, list[str]] = Factory(dict)


def read(text: str) -> list[Table]:
    tables: list[Table] = []
    for line in text.splitlines():
        if heading := re.fullmatch(r"# ([\d.]+): (\d+) rows: .+", line):
            tables.append(Table(heading[1], int(heading[2])))
        elif tables and line.startswith("    "):
            list(tables[-1].tests.values())[-1].append(line.strip())
        elif tables and line:
            key = line.partition(": ")[0]
            assert all(key not in table.tests for table in tables), f"{key} stands twice"
            tables[-1].tests[key] = []
    return tables


TABLES = read(LIST.read_text(encoding="utf-8"))
CLAIMS = [(row, test) for table in TABLES for row, tests in table.tests.items() for test in tests]


def names(row: str, function: str, parameters: str) -> bool:
    """Whether the test's own name, or that of its parameters, is this row's."""
    slug = re.sub(r"[^0-9a-z]+", "_", row.lower())
    if re.search(rf"(?:^test_|_and_){slug}(?:_|$)", function):
        return True
    table, _, number = slug.rpartition("_")
    for first, last in re.findall(rf"(?:^test_|_and_){table}_(\d+)_to_{table}_(\d+)(?=_|$)", function):
        if number.isdecimal() and int(first) <= int(number) <= int(last):
            return True
    return re.search(rf"(?<![\w.]){re.escape(row)}(?!\w)", parameters) is not None


@pytest.fixture(scope="module")
def collected() -> dict[str, list[str]]:
    """The tests there are, as `file::function`, with the names of their parameters."""
    files = {test.partition("::")[0] for _, test in CLAIMS}
    paths = sorted(str(path) for file in files for path in TESTS.rglob(file))
    asked = [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *paths]
    answer = subprocess.run(asked, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = defaultdict(list)
    for line in answer.stdout.splitlines():
        if test := re.fullmatch(r"tests/(?:\w+/)*(\w+\.py::\w+)(?:\[(.*)\])?", line):
            found[test[1]].append(test[2] or "")
    return dict(found)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_row_of_the_table_has_a_test(table):
    assert len(table.tests) == table.rows
    assert [row for row, tests in table.tests.items() if not tests] == []
    numbered = [row for row in table.tests if row.rpartition("-")[2].isdecimal()]
    assert numbered in ([], [f"{table.name}-{number}" for number in range(1, table.rows + 1)])


def test_every_test_that_is_named_exists_and_names_its_row(collected):
    missing = sorted({test for _, test in CLAIMS if test not in collected})
    assert missing == []
    nameless = [
        (row, test)
        for row, test in CLAIMS
        if not any(names(row, test.partition("::")[2], parameters) for parameters in collected[test])
    ]
    assert nameless == []


def test_every_row_that_a_parameter_names_is_there(collected):
    rows = {row for row, _ in CLAIMS}
    named = {row for parameters in collected.values() for one in parameters for row in LOOKS_LIKE_A_ROW.findall(one)}
    assert len(named) > 50
    assert named - rows == set()


@pytest.mark.parametrize(
    ("row", "function", "parameters", "named"),
    [
        ("3-1", "test_3_1_clear", "", True),
        ("3-1", "test_2_3_1_clear", "", False),
        ("3-1", "test_3_10_clear", "", False),
        ("3-1", "test_2_3_and_3_1_clear", "", True),
        ("3-1", "test_clear", "memory-3-1 head", True),
        ("3-1", "test_clear", "2.3-1 head", False),
        ("3-1", "test_clear", "3-10 head", False),
        ("3-4", "test_3_2_to_3_5_clear", "", True),
        ("3-6", "test_3_2_to_3_5_clear", "", False),
        ("12-D4", "test_12_d4_settled", "", True),
        ("12-D4", "test_settled", "12-D4 head", True),
        ("b2", "test_b2_killed", "", True),
        ("8-a-reset", "test_8_a_reset_takes", "", True),
    ],
)
def test_what_names_a_row(row, function, parameters, named):
    assert names(row, function, parameters) is named
