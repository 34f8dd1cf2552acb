"""Who is better and worse than the baseline, and than its plain twin."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.comparing import grounds

from bayesfed.results import gains, grounds_files
from bayesfed.results.gains import Table
from bayesfed.results.paired import Comparison

BASE, GOOD, BAD, CLOSE = [0.8, 0.81, 0.82], [0.9, 0.912, 0.92], [0.7, 0.71, 0.718], [0.81, 0.81, 0.8]


def tables(path: Path, **found: dict[str, list[float]]) -> list[Table]:
    """The tables of grounds by name: method -> accuracy of each seed, from which all other values follow."""
    return grounds_files.gains_tables([Comparison(grounds(path, found), "global")])


def cells(table: Table) -> dict[str, list[str]]:
    """Method -> its cells, without costs."""
    _, head, rows = table
    return {
        method: [cell for title, cell in zip(head[1:], of, strict=True) if ", global" in title] for method, *of in rows
    }


def test_on_one_ground_words_say_who_is_better(tmp_path: Path) -> None:
    (table,) = tables(tmp_path, one={"FedAvg": BASE, "A": GOOD, "B": BAD, "C": CLOSE})
    assert table[0] == "Better and worse than FedAvg"
    assert table[1][:2] == ["method", "accuracy, global"]
    assert cells(table) == {"A": ["better"] * 4, "B": ["worse"] * 4}
    assert tables(tmp_path / "none", one={"FedAvg": BASE, "C": CLOSE}) == []


def test_over_grounds_they_are_counted_and_those_with_most_gains_come_first(tmp_path: Path) -> None:
    one = {"FedAvg": BASE, "A": GOOD, "B": BAD, "C": CLOSE}
    (table,) = tables(tmp_path, one=one, two=one | {"A": BAD, "C": GOOD, "New": GOOD})
    assert table[0].endswith("on how many of 2 grounds)")
    assert cells(table) == {"C": ["+1"] * 4, "New": ["+1"] * 4, "A": ["+1 −1"] * 4, "B": ["−2"] * 4}


def test_costs_are_means_of_ratios_to_the_baseline(tmp_path: Path) -> None:
    found = grounds(tmp_path, {"one": {"FedAvg": BASE, "A": GOOD}, "two": {"FedAvg": BASE, "A": GOOD}})
    side = Comparison(found, "global")
    rows = grounds_files.numbers(side)
    for row, factor in zip([row for row in rows if row["method"] == "A"], (2.0, 4.0), strict=True):
        base = float(row["megabytes"])
        row |= {"megabytes": str(base * factor), "megabytes_difference": str(base * (factor - 1)), "time": ""}
    (_, head, ((_, *of),)) = gains.tables(rows, "FedAvg")[0]
    assert dict(zip(head[1:], of, strict=True))["MB"] == "3.0x"
    assert dict(zip(head[1:], of, strict=True))["time"] == ""


def test_what_a_bayesian_part_changes(tmp_path: Path) -> None:
    """Also where that is nothing; twins without a common seed have no row."""
    one = {"A": GOOD, "A, plain": BASE, "B": BAD, "B, plain": BASE, "C": CLOSE, "C, plain": CLOSE[::-1]}
    twins = tables(tmp_path / "a", one={"FedAvg": BASE} | one)[-1]
    assert twins[0] == "Is it the Bayesian part? Better and worse than the plain twin"
    assert cells(twins) == {"A": ["better"] * 4, "B": ["worse"] * 4, "C": [""] * 4}
    two = {"FedAvg": BASE} | one | {"A": BAD, "D": BASE, "D, plain": BASE[:1]}
    twins = tables(tmp_path / "b", one={"FedAvg": BASE} | one, two=two)[-1]
    assert cells(twins) == {"A": ["+1 −1"] * 4, "B": ["−2"] * 4, "C": [""] * 4}


def test_of_many_methods_some_seem_better_by_chance(tmp_path: Path) -> None:
    """A's interval alone is without zero, p = 0.02; beside 20 methods that are as good as FedAvg that is to be expected."""
    base, close = [0.8, 0.81, 0.82, 0.8], [0.81, 0.8, 0.82, 0.8]
    a = [value + more for value, more in zip(base, [0.01, 0.03, 0.02, 0.015], strict=True)]
    (table,) = tables(tmp_path / "a", one={"FedAvg": base, "A": a})
    assert cells(table)["A"][0] == "better"
    many = {"one": {"FedAvg": base, "A": a} | {f"B{place}": close for place in range(20)}}
    assert tables(tmp_path / "b", **many) == []
    side = Comparison(grounds(tmp_path / "b", many), "global")
    assert side.told_apart("accuracy", [("A", "FedAvg")]) == {"A": {"one": 1}}


@pytest.mark.parametrize(
    ("words", "shown"), [(["better"], "+1"), (["open", "worse", "worse"], "−2"), (["", "open"], "")]
)
def test_counts(words: list[str], shown: str) -> None:
    assert gains.counted(words, alone=False) == shown
