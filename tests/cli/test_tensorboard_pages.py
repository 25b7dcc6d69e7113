"""What TensorBoard's own server tells its pages about a sweep."""

import json
import queue
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

import pytest

from experiments import run
from llmrl.cli.evaluate import main as evaluate

TINY = ("env=escape_room", "env.n_envs=4", "design.steps=3", "design.adapt_rounds=1", "design.validate_episodes=4")


class Server:
    """TensorBoard in a process of its own, on a free port of this machine."""

    def __init__(self, logdir: Path) -> None:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host=127.0.0.1", "--port=0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: [lines.put(line) for line in self.process.stderr], daemon=True).start()
        told = ""
        while not (found := re.search(r"at (http://127\.0\.0\.1:\d+/)", told)):
            told += lines.get(timeout=60)
        self.url = found[1]

    def ask(self, path: str, body: dict | None = None, **query: str) -> tuple[bytes, str]:
        """The answer and its content type."""
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.url}data/plugin/{path}" + (f"?{urlencode(query)}" if query else "")
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read(), response.headers.get_content_type()

    def json(self, path: str, body: dict | None = None, **query: str) -> dict:
        return json.loads(self.ask(path, body, **query)[0])


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two principals with two seeds, a scripted model, agents alone, and an evaluation with a video."""
    root = tmp_path_factory.mktemp("outputs")
    for principal in ("ucb", "thompson"):
        for seed in (0, 1):
            run(*TINY, f"principal={principal}", f"seed={seed}", f"output_root={root}")
    run(*TINY, "principal=llm", "llm=scripted", f"output_root={root}")
    run(*TINY[:2], "principal=none", "learn.env_steps=40", "learn.evaluate_episodes=4", f"output_root={root}")
    (folder,) = root.glob("*/*ucb*/s0")
    evaluate([str(folder), "--episodes", "4", "--video"])
    return root


@pytest.fixture(scope="module")
def server(sweep):
    server = Server(sweep)
    try:
        deadline = time.monotonic() + 60
        while len(server.json("scalars/tags")) < 7 and time.monotonic() < deadline:
            time.sleep(0.5)  # it reads the files in the background
        yield server
    finally:
        server.process.terminate()
        server.process.wait()


@pytest.mark.slow
def test_hparams_table_has_a_row_for_each_run_with_its_final_numbers(server, sweep):
    experiment = server.json("hparams/experiment", {})
    columns = [info["name"] for info in experiment["hparamInfos"]]
    assert {"principal", "seed", "env", "design.steps"} <= set(columns)
    assert columns.index("principal") < columns.index("env")  # what differs comes first
    metrics = [info["name"]["tag"] for info in experiment["metricInfos"]]
    assert {"Final/result", "Final/best_objective", "Final/final_objective"} <= set(metrics[:5])  # those are shown
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
        shown = {
            metric["name"]["tag"]: metric["value"] for metric in row["metricValues"] if not metric["name"]["group"]
        }
        assert shown["Final/result"] == pytest.approx(json.loads((folder / "status.json").read_text())["result"])
        summary = json.loads((folder / "summary.json").read_text())
        assert shown.get("Final/best_objective") == pytest.approx(summary.get("best_objective"))


@pytest.mark.slow
def test_principals_share_the_tags_of_their_curves(server):
    tags = server.json("scalars/tags")
    governed = [set(tags[run]) for run in tags if re.search(r"principal_(ucb|thompson|llm)[^/]*/s\d$", run)]
    shared = set.intersection(*governed)
    assert len(governed) == 5
    assert {"principal/objective", "principal/best_objective", "validation/return", "train/return"} <= shared


@pytest.mark.slow
def test_texts_and_pictures_are_listed(server):
    (run_,) = (run for run, tags in server.json("text/tags").items() if tags)
    assert "principal_llm" in run_
    entries = server.json("text/text", run=run_, tag="llm/exchange")
    assert [entry["step"] for entry in entries] == [1, 2, 3] and "<pre>" in entries[0]["text"]
    ((run_, tags),) = server.json("images/tags").items()
    assert run_.endswith("s0/evaluation") and set(tags) == {"evaluation/episode", "evaluation/first_frame"}
    for tag, kind in (("evaluation/episode", "image/gif"), ("evaluation/first_frame", "image/png")):
        (image,) = server.json("images/images", run=run_, tag=tag, sample="0")
        assert image["step"] == 3
        data, content_type = server.ask("images/individualImage?" + image["query"])
        assert content_type == kind and data
    assert "evaluation/objective" in server.json("scalars/tags")[run_]
