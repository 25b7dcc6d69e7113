"""The closing tables of a run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from llmrl.display.results import describe_loggers, format_evaluate_command, print_recommendations, print_summary


def measurement(objective, fee):
    return {
        "step": 1,
        "objective": objective,
        "standard_error": 1.0,
        "mechanism": {"fee": fee},
        "context": None,
    }


def closing_table(capsys, folder, evaluations, **entries):
    """Return the rows of the last table that is printed of a run, by their name.

    A search measured 130 once and the recommended vector at 70; its confirmation measured 86, and its evaluation 92.
    """
    recommendation = {
        "mechanism": {"fee": 1.0},
        "context": None,
        "objective": 92.0 if evaluations else None,
        "standard_error": 4.0 if evaluations else None,
        "evaluations": 8 if evaluations else 0,
        "measurements": 2,
        "measured": 78.0,
    }
    scores = {"recommendation": 92.0, "recommendation_standard_error": 4.0} if evaluations else {}
    summary = {
        **scores,
        **entries,
        "online_performance": 61.5,
        "proposals": 2,
        "confirmed": 1,
        "measurements": 3,
        "recommendations": [recommendation],
        "history": [measurement(130.0, 2.0), measurement(70.0, 1.0)],
        "confirmations": [measurement(86.0, 1.0)],
    }
    print_summary(SimpleNamespace(folder=folder, summary=summary, result=None, config={"loggers": {}}))
    table = capsys.readouterr().out.rpartition("┌")[2]
    cells = [[cell.strip() for cell in line.split("│")] for line in table.splitlines() if line.startswith("│")]
    return {name: value for _, name, value, _ in cells}


def test_contexts_lacking_proposal_are_marked(capsys):
    row = {"mechanism": {"tax": 0.0}, "objective": 1.0, "standard_error": None, "evaluations": 4}
    rows = [row | {"context": "dry", "measurements": 2}, row | {"context": "wet", "measurements": 0}]
    print_recommendations({"recommendations": rows})
    output = capsys.readouterr().out
    assert "wet (not tried)" in output and "dry (not tried)" not in output


@pytest.mark.parametrize("evaluations", [True, False])
def test_objective_values_have_distinct_text(capsys, tmp_path, evaluations):
    rows = closing_table(capsys, tmp_path, evaluations)
    values = {value.split()[0]: name for name, value in rows.items()}
    highest, validation, online = values["130"], values["78"], values["61.5"]
    assert "highest" in highest and "measurements" in validation and "online" in online
    assert all("biased upward" in rows[name] for name in (highest, validation))
    [result] = [name for name, value in rows.items() if "the result" in value]
    assert result == (values["92"] if evaluations else online)
    assert not {"recommendation", "recommendation standard error"} & set(rows)


def test_video_command_keeps_trust_option():
    config = {"trusted_modules": ["my_package", "KEY@https://host", "http://localhost:8000"]}
    assert format_evaluate_command(config, Path("/r/s0")) == "llmrl-evaluate /r/s0 --video --trust my_package"
    assert format_evaluate_command({}, Path("/r/s0")) == "llmrl-evaluate /r/s0 --video"


@pytest.mark.parametrize(
    ("loggers", "expected"),
    [
        ({}, []),
        ({"tensorboard": {}}, ["tensorboard --logdir /out/game"]),
        ({"wandb": {"mode": "online", "project": None}}, ["project game"]),
        ({"wandb": {"mode": "offline"}}, ["wandb sync /out/game/a-1/s0/loggers/wandb/offline-run-*"]),
        ({"mlflow": {"tracking_uri": None}}, ["sqlite:////out/mlflow/mlflow.db (after pip install mlflow)"]),
        ({"mlflow": {"tracking_uri": "http://h:5000"}}, ["MLflow: http://h:5000"]),
    ],
)
def test_logger_locations(loggers, expected):
    lines = describe_loggers(loggers, Path("/out/game/a-1/s0"))
    assert len(lines) == len(expected)
    assert all(line.endswith(end) for line, end in zip(lines, expected, strict=True))
