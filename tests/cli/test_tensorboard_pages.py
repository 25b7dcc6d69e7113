"""Contents of a sweep on the pages of TensorBoard's own server."""

import json
import re
from pathlib import Path

import pytest

from experiments import run
from tensorboard_server import Server

TINY = ("env=escape_room", "env.n_envs=4", "design.steps=3", "design.adapt_rounds=1", "design.validate_episodes=4")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a sweep.

    It has two principals with two seeds, a scripted model, and agents without a principal.
    """
    root = tmp_path_factory.mktemp("outputs")
    for principal in ("ucb", "thompson"):
        for seed in (0, 1):
            run(*TINY, f"principal={principal}", f"seed={seed}", f"output_root={root}")
    run(*TINY, "principal=llm", "llm=scripted", f"output_root={root}")
    run(*TINY[:2], "principal=none", "learn.env_steps=40", "learn.evaluate_episodes=4", f"output_root={root}")
    return root


@pytest.fixture(scope="module")
def server(sweep):
    server = Server(sweep)
    try:
        server.wait_for_runs(6)
        yield server
    finally:
        server.close()


@pytest.mark.slow
def test_hparams_table_lists_final_metrics(server, sweep):
    experiment = server.json("hparams/experiment", {})
    columns = [info["name"] for info in experiment["hparamInfos"]]
    assert {"principal", "seed", "env", "design.steps"} <= set(columns)
    assert columns.index("principal") < columns.index("env")  # what differs comes first
    metrics = [info["name"]["tag"] for info in experiment["metricInfos"]]
    # Five are shown at first; a run of agents alone has a number to compare of its own, which takes a place.
    assert {"Compare/1_recommendation", "Compare/2_online_objective", "Final/recommendation"} <= set(metrics[:6])
    assert "Final/result" in [metric for metric in metrics if metric != "Compare/return"][:5]
    body = {"startIndex": 0, "sliceSize": 100, "allowedStatuses": ["STATUS_SUCCESS"]}
    groups = server.json("hparams/session_groups", body)["sessionGroups"]
    rows = {group["name"]: group for group in groups}
    folders = {path.parent for path in sweep.rglob("summary.json")}
    assert set(rows) == {str(folder.relative_to(sweep)) for folder in folders} and len(rows) == 6
    assert sorted((row["hparams"]["principal"], row["hparams"]["seed"]) for row in groups) == [
        ("llm", 0), ("none", 0), ("thompson", 0), ("thompson", 1), ("ucb", 0), ("ucb", 1),
    ]  # fmt: skip
    for folder in folders:
        row = rows[str(folder.relative_to(sweep))]
        tag_values = {
            metric["name"]["tag"]: metric["value"] for metric in row["metricValues"] if not metric["name"]["group"]
        }
        assert tag_values["Final/result"] == pytest.approx(json.loads((folder / "status.json").read_text())["result"])
        summary = json.loads((folder / "summary.json").read_text())
        assert tag_values.get("Final/recommendation") == pytest.approx(summary.get("recommendation"))


@pytest.mark.slow
def test_principals_share_curve_tags(server):
    tags = server.json("scalars/tags")
    has_principal = [set(tags[run]) for run in tags if re.search(r"principal_(ucb|thompson|llm)[^/]*/s\d$", run)]
    shared = set.intersection(*has_principal)
    assert len(has_principal) == 5
    assert {"Compare/2_online_objective", "validation/return", "train/return"} <= shared


@pytest.mark.slow
def test_lists_texts(server):
    (run_,) = (run for run, tags in server.json("text/tags").items() if tags)
    assert "principal_llm" in run_
    entries = server.json("text/text", run=run_, tag="llm/exchange")
    assert [entry["step"] for entry in entries] == [1, 2, 3] and "<pre>" in entries[0]["text"]
