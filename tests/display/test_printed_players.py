"""Several players in one table."""

from llmrl.display.results import print_evaluation

ROW = {"mean": 2.0, "standard_error": 0.1, "low": 1.8, "high": 2.2, "min": 1.0, "max": 3.0}


def test_missing_player_metric_is_dash(capsys):
    players = [
        {"policy": "student", "mode": "stochastic", "table": {"return": ROW, "welfare/sum": ROW}},
        {"policy": "random", "mode": "stochastic", "table": {"return": ROW, "mean_eating_step": ROW}},
    ]
    arguments = {"mechanism": None, "context": None, "carried": [], "videos": [], "out": "out"}
    print_evaluation({"episodes": 4, "seed": 0, "checkpoint": 1, "players": players, "table": {}, **arguments})
    lines = capsys.readouterr().out.splitlines()
    [eating] = [line for line in lines if "mean eating step" in line]
    assert eating.split("│")[2].strip() == "-" and eating.split("│")[3].strip() == "2.000"
    assert not any("welfare" in line for line in lines)
