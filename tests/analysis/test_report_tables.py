"""Tables in all output formats."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.analysis.report_tables import to_slug
from llmrl.results.table_format import NumberFormat, ReportTable, escape_latex, format_seeds

TEXT_CHARACTERS = st.characters(exclude_characters="\r", codec="utf-8")
SPECIAL = r"\&%$#_{}~^<>|\"" + "-[]*`"


@given(st.text(alphabet=st.sampled_from(SPECIAL + "a1 ="), max_size=20))
def test_latex_keeps_no_special_character(text: str) -> None:
    escapes = r"\\(?:textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar|textquotedbl|dag)\{\}"
    rest = re.sub(escapes + r"|\\[&%$#_{}]|\$-\$", "", escape_latex(text))
    assert not set(rest) & set(r'\&%$#_{}~^<>|"')


@pytest.mark.parametrize(
    ("text", "rendering"),
    [("-1.50 [-2, 3]", "$-$1.50 [$-$2, 3]"), ("-", "--"), ("a-b_1", r"a-b\_1"), ("x=-.5", "x=$-$.5"), ("50%", r"50\%")],
)
def test_latex_text(text: str, rendering: str) -> None:
    assert escape_latex(text) == rendering


@given(st.lists(st.lists(st.text(TEXT_CHARACTERS, max_size=8), min_size=2, max_size=2), max_size=4))
def test_csv_round_trip(rows: list[list[str]]) -> None:
    text = ReportTable("t", "c", [["a", "b"], *rows]).to_csv()
    assert list(csv.reader(io.StringIO(text, newline="")))[1:] == rows


def test_csv_has_full_precision() -> None:
    line = [np.float64(0.1) + 0.2, np.array(1.5), 3, None, float("nan"), "x"]
    assert ReportTable("t", "c", [line]).to_csv() == "0.30000000000000004,1.5,3,,,x\n"


def test_markdown_and_latex_tables() -> None:
    table = ReportTable(
        "t_1", "A & B", [], ["g", "n", "why"], [["a|b", "-1", "[x](y)"], ["[c]", "2", ""]], 1, True, ["† so"]
    )
    assert table.to_markdown().splitlines() == [
        "| g | n | why |",
        "| --- | ---: | --- |",
        r"| a\|b | -1 | [x\](y) |",
        "| [c] | 2 |  |",
        "",
        "† so",
    ]
    lines = table.to_latex().splitlines()
    assert r"\begin{tabular}{lrl}" in lines
    assert r"\caption{A \& B}" in lines
    assert r"\label{tab:t-1}" in lines
    assert r"a\textbar{}b & $-$1 & [x](y) \\" in lines
    assert r"{}[c] & 2 &  \\" in lines  # a bracket after a line's end would be its argument
    assert [line for line in lines if line.startswith((r"\toprule", r"\midrule", r"\bottomrule"))] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]


@pytest.mark.parametrize(
    ("values", "value", "rendering"),
    [
        ([-13.3, -6.4], -9.2265, "-9.23"),
        ([0.0, 1.0], 0.12345, "0.12"),
        ([10_000.0, 70_000.0], 12_345.6, "12346"),
        ([0.5001, 0.5009], 0.50056, "0.500560"),
        ([3.0], 3.0, "3.00"),
        ([0.0, 0.0], 0.0, "0.00"),
        ([1e9, 2e9], 1.5e9, "1.5e+09"),
        ([-1.0, 1.0], -0.0001, "0.00"),
        ([1.0], float("nan"), "-"),
    ],
)
def test_decimals_distinguish_numbers(values: list[float], value: float, rendering: str) -> None:
    assert NumberFormat(np.array(values))(value) == rendering


def test_decimals_follow_errors() -> None:
    close = np.array([0.99236, 1.0])
    assert (
        NumberFormat(close)(0.99236) == "0.99236" and NumberFormat(close, np.array([0.0076, 0.0]))(0.99236) == "0.9924"
    )
    assert NumberFormat(close, np.array([0.0, 0.0]))(1.0) == "1.00000"  # nothing is known of errors of zero


@pytest.mark.parametrize(
    ("seeds", "rendering"), [([], ""), ([3], "3"), ([1, 0], "0, 1"), ([0, 2, 3, 4, 9], "0, 2-4, 9")]
)
def test_seed_list(seeds: list[int], rendering: str) -> None:
    assert format_seeds(seeds) == rendering


@given(st.text())
def test_slugs_are_file_names(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._]{1,60}", to_slug(text))
    assert to_slug(text) not in (".", "..")
