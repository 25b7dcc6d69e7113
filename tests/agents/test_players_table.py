"""The table of a sweep over environments and players, trained ones beside those that learn nothing."""

import csv
import json

import numpy as np
import pytest

from experiments import only_run_folder, run
from llmrl.analysis.aggregate import summarize
from llmrl.analysis.final_episodes import players_table
from llmrl.analysis.report_settings import ReportSettings
from llmrl.cli.sweep_report import main

SEEDS = (0, 1)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """What `--multirun env=cartpole,blackjack agent=... seed=0,1` leaves behind, and a trained run beside it."""
    root = tmp_path_factory.mktemp("sweep")
    for seed in SEEDS:
        common = (f"seed={seed}", f"output_root={root}", "env.n_envs=5")
        for env in ("cartpole", "blackjack"):
            for agent in ("random", "heuristic", "llm_player"):
                # As `llmrl-train` names runs that ask a language model.
                named = ("llm=scripted",) if agent == "llm_player" else ()
                run(f"env={env}", f"agent={agent}", "env.horizon=20", "play.episodes=5", *common, *named)
        run("env=cartpole", "agent=ppo", "env.horizon=20", "learn.env_steps=100", "learn.rollout_steps=20", *common)
    return root


@pytest.fixture(scope="module")
def players(sweep):
    return summarize(sweep, ReportSettings()).players


def of(players, task, name):
    [found] = [each for each in players if each.task == task and f"agent={name}" in each.group.label]
    return found


def results(sweep, task, name):
    return [json.loads(path.read_text()) for path in sorted(sweep.glob(f"{task}/*agent_{name}*/s*/results.json"))]


def test_every_player_of_every_environment(players):
    names = [(each.task, each.group.label.partition(",")[0]) for each in players]
    assert sorted(names) == sorted(
        [(env, f"agent={a}") for env in ("blackjack", "cartpole") for a in ("heuristic", "llm_player", "random")]
        + [("cartpole", "agent=ppo")]
    )


def test_episodes_are_pooled_where_nobody_learned(sweep, players):
    rows = results(sweep, "cartpole", "random")
    lengths = np.concatenate([row["per_episode"]["length"] for row in rows])
    each = of(players, "cartpole", "random")
    assert (each.runs, each.episodes, each.learned) == (2, 10, False)
    assert each.means["length"] == pytest.approx(lengths.mean())
    assert each.errors["length"] == pytest.approx(lengths.std(ddof=1) / 10**0.5)


def test_and_runs_are_compared_where_somebody_did(sweep, players):
    rows = results(sweep, "cartpole", "ppo")
    means = [np.mean(row["per_episode"]["return"]) for row in rows]
    each = of(players, "cartpole", "ppo")
    assert each.learned and each.errors["return"] == pytest.approx(np.std(means, ddof=1) / 2**0.5)
    assert "tokens" not in each.means


def test_a_language_model_has_its_price(players):
    each = of(players, "blackjack", "llm_player")
    assert each.means["tokens"] > 500 and each.means["cost"] == 0.0 and each.means["invalid_rate"] == 0.0


def test_it_is_shown(sweep, capsys):
    main([str(sweep), "--no-figures"])
    shown = capsys.readouterr().out
    assert "Who played how well" in shown and "agent=llm_player, llm=scripted rule" in shown
    assert "†" not in shown
    page = (sweep / "report" / "report.html").read_text()
    assert 'id="players"' in page and "Who played how well" in (sweep / "report" / "summary.md").read_text()
    with (sweep / "report" / "tables" / "players.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7 and {row["llm"] for row in rows} == {"", "scripted rule (not a language model)"}
    assert all(row["return_standard_error"] for row in rows)


def test_every_number_has_its_standard_error(players):
    table = players_table(players)
    [row] = [row for row in table.rows if row[0] == "blackjack" and "llm_player" in row[1]]
    cells = dict(zip(table.columns, row, strict=True))
    each = of(players, "blackjack", "llm_player")
    assert cells["tokens"] == f"{each.means['tokens']:,.0f} ± {each.errors['tokens']:,.0f}"
    for name in ("success", "return", "steps", "tokens", "cost, $", "invalid replies"):
        assert "±" in cells[name], name


def test_names_tell_players_apart(players):
    """Fields are left out of a name only where what remains is one player's."""
    rows = players_table(players).rows
    assert len({tuple(row[:2]) for row in rows}) == len(rows)
    assert not any("episodes=" in row[1] for row in rows)
    same = [of(players, "cartpole", "ppo")] * 2
    assert all("env_steps=100" in row[1] for row in players_table(same).rows)


@pytest.mark.parametrize(("typed", "name"), [(("agent=heuristic",), "agent=heuristic"), ((), "uniform random")])
def test_an_only_group_is_named(tmp_path, typed, name):
    agent = next(iter(typed), "agent=random")
    run("env=cartpole", agent, "env.horizon=5", "play.episodes=2", f"output_root={tmp_path}")
    folder = only_run_folder(tmp_path)
    if not typed:
        # As if the player were a preset's: nobody typed it.
        status = json.loads((folder / "status.json").read_text())
        kept = [each for each in status["overrides"] if not each.startswith("agent=")]
        (folder / "status.json").write_text(json.dumps(status | {"overrides": kept}))
    [player] = summarize(tmp_path, ReportSettings()).players
    assert player.group.label == "all runs"
    assert players_table([player]).rows[0][1] == players_table([player]).data[1][1] == name
