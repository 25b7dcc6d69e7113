"""The loop `play` with invalid replies, and runs that are stopped, killed and extended."""

import itertools
import json
import time
from contextlib import nullcontext

import imageio.v3 as iio
import pytest

import commands
from experiments import find_run_folder, load_comparable_metrics, run, run_silently
from llmrl.core.errors import BudgetExhausted
from llmrl.core.option_files import load_options
from llmrl.llms.call_log import read_calls
from llmrl.run.files import read_json_lines
from some import mark_long_except_every

TAXI = ("env=taxi", "env.horizon=12", "env.n_envs=3", "play.episodes=4")


def play(root, *overrides):
    result = run(*overrides, f"output_root={root}")
    return result, find_run_folder(root)


def read_outputs(folder):
    """Return everything that a run writes about its episodes, by file."""
    files = [*folder.glob("episodes/*/replies.jsonl"), folder / "episodes.jsonl"]
    return {path.relative_to(folder).as_posix(): read_json_lines(path) for path in files}


class TestUnreliableServer:
    """Half of all replies are invalid in different ways: the run completes and counts each of them."""

    SHARES = (
        ("llm.malformed=0.5",),
        ("llm.malformed=0.1", "llm.empty=0.1", "llm.truncated=0.1", "llm.refusal=0.1", "llm.out_of_range=0.1"),
        ("llm.malformed=1.0", "agent.lessons=2"),
    )

    @pytest.mark.parametrize(
        ("env", "shares"), mark_long_except_every(2, itertools.product(["taxi", "blackjack"], SHARES))
    )
    def test_run_completes(self, tmp_path, env, shares):
        overrides = (
            f"env={env}",
            "env.n_envs=3",
            "env.horizon=10",
            "play.episodes=6",
            "agent=llm_player",
            "llm.max_invalid=null",
            *shares,
        )
        _, folder = play(tmp_path, *overrides)
        calls = list(read_calls(folder / "llm_calls.jsonl"))
        bad = sum(call["valid"] is False for call in calls)
        last = load_comparable_metrics(folder)[-1]
        assert last["llm/invalid_replies"] == bad > 0
        assert last["player/invalid_rate"] == pytest.approx(bad / len(calls))
        assert json.loads((folder / "results.json").read_text())["episodes"] == 6
        assert sum(row["invalid"] for row in read_json_lines(folder / "episodes.jsonl")) == bad

    def test_out_of_range_numbers(self, tmp_path):
        file = tmp_path / "conf" / "env" / "pendulum_words.yaml"
        file.parent.mkdir(parents=True)
        node = load_options("env")["taxi"] | {"id": "Pendulum-v1", "name": "pendulum_words", "text": "auto"}
        file.write_text(json.dumps(node | {"success": None, "horizon": 20, "n_envs": 2}))
        config = f"hydra.searchpath=[file://{tmp_path}/conf]"
        run_options = (config, "env=pendulum_words", "agent=llm_player", "play.episodes=2", "llm.out_of_range=0.5")
        run_options = (*run_options, "llm.max_invalid=null")
        _, folder = play(tmp_path / "out", *run_options)
        last = load_comparable_metrics(folder)[-1]
        assert 0.3 < last["player/invalid_rate"] < 0.7 and last["player/decisions"] == 40
        actions = [line["action"] for line in read_json_lines(folder / "episodes" / "0" / "replies.jsonl")]
        assert all(-2 <= action["action_0"] <= 2 for action in actions)


class TestResuming:
    OPTIONS = (*TAXI, "agent=llm_player", "agent.lessons=1", "llm.malformed=0.3", "play.videos=1")

    @pytest.mark.long
    def test_exhausted_budget(self, tmp_path):
        """Compare files, metrics and videos with those of an uninterrupted run."""
        _, reference = play(tmp_path / "whole", *self.OPTIONS)
        parts = (*self.OPTIONS, f"output_root={tmp_path / 'parts'}")
        for calls in (20, 45):
            with pytest.raises(BudgetExhausted):
                run(*parts, f"llm.budget.calls={calls}")
        stopped = find_run_folder(tmp_path / "parts")
        lines = [sum(map(len, read_outputs(folder).values())) for folder in (stopped, reference)]
        assert 0 < lines[0] < lines[1]
        run(*parts)
        self.check(reference, stopped)

    @pytest.mark.slow
    def test_kills(self, tmp_path):
        """Send SIGKILL after a given number of lines."""
        overrides = (*self.OPTIONS, "play.videos=1", "play.episodes=5", "checkpoint_seconds=0")
        resume_folder = tmp_path / "killed"
        for lines in (7, 30, None):
            process = commands.Process(target=run_silently, args=(*overrides, f"output_root={resume_folder}"))
            process.start()
            while lines is not None and process.is_alive():
                if sum(path.read_text().count("\n") for path in resume_folder.rglob("replies.jsonl")) >= lines:
                    process.kill()
                time.sleep(0.01)
            process.join()
        assert json.loads((find_run_folder(resume_folder) / "status.json").read_text())["attempt"] == 3
        _, reference = play(tmp_path / "whole", *overrides)
        self.check(reference, find_run_folder(resume_folder))

    def check(self, reference, restart):
        assert read_outputs(reference) == read_outputs(restart)
        names = ("results.json", "summary.json")
        first, second = ([json.loads((folder / name).read_text()) for name in names] for folder in (reference, restart))
        for summary in (first[1], second[1]):
            summary.pop("llm_calls_paid")  # what was paid for is not what was used
        assert first == second
        rows = [
            [{k: v for k, v in row.items() if not k.startswith("usage/")} for row in load_comparable_metrics(folder)]
            for folder in (reference, restart)
        ]
        assert rows[0] == rows[1]
        for episode in sorted(path.parent.name for path in reference.rglob("episode.gif")):
            x, b = (
                iio.imread(folder / "episodes" / episode / "episode.gif", index=None) for folder in (reference, restart)
            )
            assert x.shape == b.shape and (x == b).all()


class TestVideosAndRecords:
    """Numbers of stored videos and records do not change the run."""

    OPTIONS = ("env=taxi", "env.horizon=3", "env.n_envs=1", "play.episodes=3", "agent=llm_player")

    def videos(self, folder):
        return sorted(int(path.parent.name) for path in folder.rglob("episode.gif"))

    def test_completed_run_is_extended(self, tmp_path, capsys):
        """Skip the run; the repeated run has videos and equal metrics."""

        def rerun(*overrides):
            return run(*self.OPTIONS, f"output_root={tmp_path}", *overrides)

        first = rerun()
        folder = find_run_folder(tmp_path)
        assert rerun("play.videos=1", "play.records=1", "play.fps=9") == first and find_run_folder(tmp_path) == folder
        assert "rerun=true" in capsys.readouterr().out
        assert not self.videos(folder)
        results = json.loads((folder / "results.json").read_text())
        assert rerun("play.videos=1", "rerun=true") == first
        assert self.videos(folder) == [0] and json.loads((folder / "results.json").read_text()) == results

    def test_run_resumes_with_changed_limits(self, tmp_path):
        """Store complete episodes only: those that begin after the change."""
        for calls, n_records in ((2, 0), (5, 2), (None, 3)):
            limits = (f"play.videos={n_records}", f"play.records={n_records}", f"llm.budget.calls={calls or 'null'}")
            with pytest.raises(BudgetExhausted) if calls else nullcontext():
                run(*self.OPTIONS, *limits, f"output_root={tmp_path}")
        folder = find_run_folder(tmp_path)
        # Stopped in episode 0, which began with none, and in episode 1, which began with two wanted.
        assert self.videos(folder) == [1, 2]
        lines = {int(path.parent.name): len(read_json_lines(path)) for path in folder.rglob("replies.jsonl")}
        assert lines == {1: 3, 2: 3}
        assert len(iio.imread(folder / "episodes" / "1" / "episode.mp4")) == 4

    def test_unused_video_is_removed(self, tmp_path):
        with pytest.raises(BudgetExhausted):
            run(*self.OPTIONS, "play.videos=2", "llm.budget.calls=2", f"output_root={tmp_path}")
        run(*self.OPTIONS, f"output_root={tmp_path}")
        folder = find_run_folder(tmp_path)
        assert not self.videos(folder) and not list(folder.glob("episodes/*/frames"))
