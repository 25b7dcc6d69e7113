"""The table of a sweep over environments and players, both trained and fixed."""

import csv
import json

import numpy as np
import pytest

from experiments import find_run_folder, run
from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.final_episodes import build_players_table
from llmrl.analysis.report import ReportSettings
from llmrl.cli.sweep_report import main
from llmrl.llms.scripted import ScriptedChat

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Write the folders of `--multirun env=cartpole,blackjack agent=... seed=0,1` and of a trained run."""
    root = tmp_path_factory.mktemp("sweep")
    for seed in SEEDS:
        common = (f"seed={seed}", f"output_root={root}", "env.n_envs=5")
        for env in ("cartpole", "blackjack"):
            for agent in ("random", "heuristic", "llm_player"):
                # As `llmrl-train` names runs that ask a language model.
                model_options = ("llm=scripted",) if agent == "llm_player" else ()
                run(f"env={env}", f"agent={agent}", "env.horizon=20", "play.episodes=5", *common, *model_options)
        run("env=cartpole", "agent=ppo", "env.horizon=20", "learn.env_steps=100", "learn.rollout_steps=20", *common)
    return root


@pytest.fixture(scope="module")
def players(sweep):
    return compute_report(sweep, ReportSettings()).players


def find_player(players, task, name):
    [match] = [player for player in players if player.task == task and f"agent={name}" in player.group.label]
    return match


def results(sweep, task, name):
    return [json.loads(path.read_text()) for path in sorted(sweep.glob(f"{task}/*agent_{name}*/s*/results.json"))]


def test_table_lists_players_per_environment(players):
    names = [(table_player.task, table_player.group.label.partition(",")[0]) for table_player in players]
    assert sorted(names) == sorted(
        [
            (env, f"agent={agent}")
            for env in ("blackjack", "cartpole")
            for agent in ("heuristic", "llm_player", "random")
        ]
        + [("cartpole", "agent=ppo")]
    )


def test_episodes_of_fixed_players_are_pooled(sweep, players):
    rows = results(sweep, "cartpole", "random")
    lengths = np.concatenate([row["per_episode"]["length"] for row in rows])
    player = find_player(players, "cartpole", "random")
    assert (player.n_runs, player.n_episodes, player.is_trained) == (2, 10, False)
    assert player.means["length"] == pytest.approx(lengths.mean())
    assert player.errors["length"] == pytest.approx(lengths.std(ddof=1) / 10**0.5)


def test_compares_runs_of_learners(sweep, players):
    rows = results(sweep, "cartpole", "ppo")
    means = [np.mean(row["per_episode"]["return"]) for row in rows]
    player = find_player(players, "cartpole", "ppo")
    assert player.is_trained and player.errors["return"] == pytest.approx(np.std(means, ddof=1) / 2**0.5)
    assert "tokens" not in player.means


def test_language_model_has_price(players):
    player = find_player(players, "blackjack", "llm_player")
    assert player.means["tokens"] > 500 and player.means["cost"] == 0.0 and player.means["invalid_rate"] == 0.0


def test_table_is_printed(sweep, capsys):
    main([str(sweep), "--no-figures"])
    output = capsys.readouterr().out
    assert "Final episodes of each player" in output and "agent=llm_player, llm=scripted rule" in output
    assert "†" not in output
    page = (sweep / "report" / "report.html").read_text()
    assert 'id="players"' in page and "Final episodes of each player" in (sweep / "report" / "summary.md").read_text()
    with (sweep / "report" / "tables" / "players.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7 and {row["llm"] for row in rows} == {"", ScriptedChat.label}
    assert all(row["return_standard_error"] for row in rows)


def test_numbers_have_standard_errors(players):
    table = build_players_table(players)
    [row] = [row for row in table.rows if row[0] == "blackjack" and "llm_player" in row[1]]
    cells = dict(zip(table.columns, row, strict=True))
    player = find_player(players, "blackjack", "llm_player")
    assert cells["tokens"] == f"{player.means['tokens']:,.0f} ± {player.errors['tokens']:,.0f}"
    for name in ("success", "return", "steps", "tokens", "cost, $", "invalid replies"):
        assert "±" in cells[name], name


def test_player_names_are_unique(players):
    """Omit fields from a name only if the rest identifies one player."""
    rows = build_players_table(players).rows
    assert len({tuple(row[:2]) for row in rows}) == len(rows)
    assert not any("episodes=" in row[1] for row in rows)
    duplicates = [find_player(players, "cartpole", "ppo")] * 2
    assert all("env_steps=100" in row[1] for row in build_players_table(duplicates).rows)


@pytest.mark.parametrize(("overrides", "name"), [(("agent=heuristic",), "agent=heuristic"), ((), "uniform random")])
def test_single_group_is_labeled(tmp_path, overrides, name):
    agent_override = next(iter(overrides), "agent=random")
    run("env=cartpole", agent_override, "env.horizon=5", "play.episodes=2", f"output_root={tmp_path}")
    folder = find_run_folder(tmp_path)
    if not overrides:
        # As if the player were a preset's: nobody typed it.
        status = json.loads((folder / "status.json").read_text())
        overrides_left = [override for override in status["overrides"] if not override.startswith("agent=")]
        (folder / "status.json").write_text(json.dumps(status | {"overrides": overrides_left}))
    [player] = compute_report(tmp_path, ReportSettings()).players
    assert player.group.label == "all runs"
    assert build_players_table([player]).rows[0][1] == build_players_table([player]).csv_rows[1][1] == name
