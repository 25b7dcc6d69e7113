"""Result pages are what their templates and the committed data give, and a changed digit is found."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import results
from hypothesis import given
from hypothesis import strategies as st
from results_pages import (
    ResultPages,
    extract_numbers,
    format_interval,
    format_number,
    format_signed_difference,
    negate_comparison,
)
from results_runs import read_rows, restore_runs, write_runs

from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.report import ReportSettings
from llmrl.results.study_settings import StudySettings
from llmrl.run.training_episodes import TrainingEpisodes
from run_folders import SCRIPTED, write_run
from some import mark_long_except, mark_long_except_every
from sweeping import run_sweep

TEMPLATES = sorted(path.name for path in (results.ROOT / "docs" / "results" / "templates").glob("*.md"))
SETTINGS = StudySettings(
    question="Which is better?",
    metric="principal/objective",
    x_axis="proposals",
    smooth=2,
    tail_fraction=None,
    baselines=["random"],
    best_known=2.0,
)
TRAINING = StudySettings(question="Which learns?", metric="train/return", tail_fraction=0.2, baselines=["random"])
MAP = StudySettings(question="Where?", map=["eat", "clean"], unit="apples")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a copy of the README, the result pages, and the files that they are rendered from."""
    shutil.copy(results.ROOT / "README.md", tmp_path)
    for folder in ("data", "templates"):
        shutil.copytree(results.ROOT / "docs" / "results" / folder, tmp_path / "docs" / "results" / folder)
    for page in (results.ROOT / "docs" / "results").glob("*.md"):
        shutil.copy(page, tmp_path / "docs" / "results")
    return tmp_path


def page_path(root: Path, template: str) -> Path:
    return root / template if template == "README.md" else root / "docs" / "results" / template


def change_digit(text: str, place: int) -> str:
    return text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :]


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_committed_results_are_current(capsys):
    assert results.main(["--check"]) == 0, capsys.readouterr().out


def test_result_pages_have_templates():
    pages = {path.name for path in (results.ROOT / "docs" / "results").glob("*.md")}
    assert pages | {"README.md"} == set(TEMPLATES)


@pytest.mark.parametrize("seed", mark_long_except([0], range(4)))
def test_page_digit_changes_are_detected(root, seed):
    """One digit of each page is changed."""
    rng, pages = np.random.default_rng(seed), [page_path(root, template) for template in TEMPLATES]
    for page in pages:
        text = page.read_text()
        is_readme = page.name == "README.md"
        start, end = (text.index("results:start"), text.index("results:end")) if is_readme else (0, len(text))
        digits = [match.start() for match in re.finditer(r"\d", text) if start < match.start() < end]
        page.write_text(change_digit(text, int(rng.choice(digits))))
    problems = ResultPages(root).find_problems()
    assert len(problems) == len(pages)
    for page in pages:
        assert sum(f"{page}\n" in problem for problem in problems) == 1, page


@pytest.mark.long
def test_readme_digit_change_exits_with_1(root, capsys, monkeypatch):
    monkeypatch.setattr(results, "compute_tables", lambda data: iter(()))  # the test above computes them
    page = root / "README.md"
    text = page.read_text()
    digits = [match.start() for match in re.finditer(r"\d", text[: text.rindex("<!-- results:end -->")])]
    page.write_text(change_digit(text, digits[-1]))
    assert results.main(["--check"], root) == 1
    assert str(page) in capsys.readouterr().out
    assert results.main(["--write", "--check"], root) == 0
    assert page.read_text() == text


@pytest.mark.parametrize(
    ("change", "location"),
    mark_long_except_every(
        2,
        [
            (("search.md", "{{ run_values(", "{{ 17.5 }} {{ run_values("), "search.md"),
            (
                ("search.md", "# Results: policy search\n", "# Results: policy search\n\nIt is 17.5 better.\n"),
                "search.md",
            ),
            (("zero_shot.md", "0.45 ± 0.06", "0.55 ± 0.06"), "zero_shot.games"),
            (("zero_shot.md", "PPO 624", "PPO many"), "settings.csv"),
            (("zero_shot.md", 'measurement("first_zero_shot.duration")', 'measurement("unknown")'), "unknown"),
            (
                ("zero_shot.md", 'comparison("first_zero_shot", "trained_chat"', 'comparison("first_zero_shot", "x"'),
                "0 rows",
            ),
        ],
    ),
)
def test_template_number_requires_source(root, change, location):
    name, old, new = change
    templates = root / "docs" / "results" / "templates"
    replace_text(templates / name, old, new)
    if location != "settings.csv":  # a message about phrases that no page has
        for template in {*templates.glob("*.md")} - {templates / name}:
            template.unlink()
    pages = ResultPages(root)
    if location in ("search.md", "settings.csv"):
        pages.write()  # the page follows its template, and the number has no source still
    assert any(location in problem for problem in pages.find_problems())


def test_table_change_updates_runless_study_pages(root):
    replace_text(root / "docs" / "results" / "data" / "grounding_scores.csv", "0.92250", "0.82250")
    [problem] = ResultPages(root).find_problems()
    assert "grounding.md" in problem


def test_run_change_updates_tables(root):
    data = root / "docs" / "results" / "data"
    for path in data.glob("*_runs.csv"):
        if path.name != "first_zero_shot_runs.csv":
            path.unlink()
    assert not results.find_table_problems(data)
    replace_text(data / "first_zero_shot_runs.csv", "{},0.016", "{},0.026")
    assert any("first_zero_shot_scores.csv" in problem for problem in results.find_table_problems(data))


def test_tables_match_original_runs(tmp_path):
    references = {"contexts": [], "warning": ""}
    level = {name: {"value": 1.0, "standard_error": 0.5} for name in ("untrained", "no_mechanism", "scan_best")}
    references["contexts"] = [level]
    rng = np.random.default_rng(1)
    for name, llm in (("ucb", ""), ("random", ""), ("llm", SCRIPTED)):
        for seed in range(4):
            overrides = [f"principal={name}", *(["llm=scripted"] if llm else [])]
            shared = {"pre-training": [f"harvest/pretrain-0a1b2c3d/s{seed % 2}"]}
            values = [float(x) for x in rng.normal(size=6)]
            folder = write_run(
                tmp_path / "outputs", "study", overrides, seed, values, llm=llm, shared=shared, references=references
            )
            summary = json.loads((folder / "summary.json").read_text())
            summary |= {
                "recommendation": values[-1],
                "recommendation_standard_error": 0.1,
                "online_performance": values[0],
            }
            (folder / "summary.json").write_text(json.dumps(summary | {"further": 1}))
            with (folder / "metrics.jsonl").open("a") as file:
                for n in (1, 2, 6):
                    row = {"kind": "recommendation", "x": "measurements", "measurements": n, "env_steps": 100 * n}
                    row |= {"recommendation/objective": values[n - 1], "recommendation/standard_error": 0.1}
                    file.write(json.dumps(row) + "\n")
    unpacked, tables = round_trip(tmp_path, SETTINGS)
    assert {"scores", "curves", "comparisons", "recommendations"} <= tables
    assert {row["llm"] for row in read_rows(tmp_path / "runs.csv")} == {"", SCRIPTED}
    summary = json.loads(next(unpacked.glob("*/s0/summary.json")).read_text())
    assert summary.keys() == {"recommendation", "recommendation_standard_error", "online_performance", "references"}


def test_new_runs_extend_stored_runs(tmp_path):
    """Tables of runs that are stored in two parts equal those of all runs; a run in both parts counts once."""
    parts = {"first": (0, 1, 2), "second": (2, 3, 4), "all": range(5)}
    for part, seeds in parts.items():
        for name, level in (("random", 0.0), ("gp", 1.0)):
            for seed in seeds:
                values = list(np.random.default_rng(seed).normal(level, 1.0, 6))
                write_run(tmp_path / part, "study", [f"principal={name}"], seed, values)
    complete, stored = tmp_path / "whole" / "data", tmp_path / "stored" / "data"
    for data in (complete, stored):
        data.mkdir(parents=True)
    files = [(data / "study_runs.csv", data / "study_run_curves.csv") for data in (complete, stored)]
    write_runs(tmp_path / "all" / "study", SETTINGS, *files[0])
    write_runs(tmp_path / "first" / "study", SETTINGS, *files[1])
    combined = results.merge_stored_runs(tmp_path / "second" / "study", stored.parent, tmp_path / "scratch")
    write_runs(combined, SETTINGS, *files[1])
    for one, other in zip(*files, strict=True):
        assert one.read_text() == other.read_text()


@pytest.mark.slow
def test_study_is_extended_by_group(root):
    """The commands of `docs/studies.md`, with two of the study's seeds."""
    run_sweep("experiment=first/search", "principal=cem", "seed=0,1", f"output_root={root / 'outputs'}", cwd=root)
    folder, page = root / "outputs" / "first_search", root / "docs" / "results"
    stored = {row["group"]: row for row in read_rows(page / "data" / "first_search_scores.csv")}
    assert "cem" not in stored
    (page / "figures").mkdir()
    text = results.store_study(results.merge_stored_runs(folder, page, root / "scratch"), page)
    scores = {row["group"]: row for row in read_rows(page / "data" / "first_search_scores.csv")}
    assert scores.keys() == {*stored, "cem"} and all(scores[name] == stored[name] for name in stored)
    assert "| cem |" in text
    assert ("cem", "random") in {
        (row["group"], row["against"]) for row in read_rows(page / "data" / "first_search_comparisons.csv")
    }


def test_training_episode_metric_tables(tmp_path):
    rng = np.random.default_rng(2)
    for name in ("taught", "random"):
        for seed in range(3):
            folder = write_run(tmp_path / "outputs", "study", [f"treatment={name}"], seed)
            record = TrainingEpisodes(folder, n_games=2, horizon=10, metrics=["return"])
            places = [(game, start, 10) for start in range(0, 300, 10) for game in range(2)]
            record.write_episodes(places, [[float(rng.normal())] for _ in places])
            record.close()
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"kind": "update", "x": "updates", "updates": 1, "env_steps": 600}) + "\n")
    _, tables = round_trip(tmp_path, TRAINING)
    assert "curves" in tables


def test_landscape_tables(tmp_path):
    for seed in range(3):
        history = [
            {"mechanism": {"eat": float(x), "clean": float(y)}, "objective": x - y + 0.1 * seed, "further": 1}
            for x in range(2)
            for y in range(2)
        ]
        write_run(tmp_path / "outputs", "study", ["principal=listed"], seed, history=history)
    _, tables = round_trip(tmp_path, MAP)
    assert tables == {"landscape"}


def round_trip(tmp_path: Path, settings: StudySettings) -> tuple[Path, set[str]]:
    """Compare the tables of runs with those of run folders made from their per-run values.

    Returns:
        These folders, and the names of the tables.
    """
    original, unpacked = tmp_path / "outputs" / "study", tmp_path / "restored" / "study"
    files = tmp_path / "runs.csv", tmp_path / "run_curves.csv"
    write_runs(original, settings, *files)
    restore_runs(*files, unpacked)
    tables = [
        {
            name: table.to_csv()
            for name, table in results.iterate_study_tables(compute_report(folder, ReportSettings(study=settings)))
        }
        for folder in (original, unpacked)
    ]
    assert tables[0] == tables[1]
    return unpacked, set(tables[0])


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("41.5 [38.0, 44], 2,500 and .78.", ["41.5", "38.0", "44", "2,500", ".78"]),
        ("\u22120.45 ± 0.06, -3 and 14&nbsp;s", ["\u22120.45", "0.06", "-3", "14"]),
        ("`seed=3` in Walker2d, GPT-4o, [page](a.md#b-2), ![5 runs](x7.png)\n## In 5 minutes\n```\n6\n```\n", []),
    ],
)
def test_numbers_in_markdown(text, numbers):
    assert extract_numbers(text) == numbers


@given(st.floats(-1e6, 1e6), st.integers(0, 3))
def test_number_tolerance_is_half_unit(value, digits):
    text = format_number(value, digits, thousands=True)
    assert abs(float(text.replace(",", "")) - value) <= 0.5 * 10**-digits + 1e-9
    assert not text.startswith("-") or float(text.replace(",", "")) < 0


def test_intervals():
    row = {"difference": -0.5, "low": -2.0, "high": 1.0, "score": 3.0}
    assert format_signed_difference(negate_comparison(row), 1) == "+0.5 [-1.0, 2.0]"
    assert format_signed_difference(row, 1) == "-0.5 [-2.0, 1.0]"
    assert format_interval(row | {"low": None, "high": None}) == "3"
