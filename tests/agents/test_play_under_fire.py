"""The loop `play` with replies that are bad, and runs that are stopped, killed and asked for more."""

import json
import time
from contextlib import nullcontext

import imageio.v3 as iio
import pytest

import commands
from experiments import comparable_metrics, only_run_folder, run, silent_run
from llmrl.core.errors import BudgetExhausted
from llmrl.core.option_files import options
from llmrl.llms.call_log import read_calls
from llmrl.run.files import read_lines

TAXI = ("env=taxi", "env.horizon=12", "env.n_envs=3", "play.episodes=4")


def play(root, *overrides):
    result = run(*overrides, f"output_root={root}")
    return result, only_run_folder(root)


def written(folder):
    """Everything a run writes down of its episodes, by file."""
    files = [*folder.glob("episodes/*/replies.jsonl"), folder / "episodes.jsonl"]
    return {path.relative_to(folder).as_posix(): read_lines(path) for path in files}


class TestAStorm:
    """Half of all replies are bad, in every way: the experiment completes and every bad reply is counted."""

    @pytest.mark.parametrize(
        "shares",
        [
            ("llm.malformed=0.5",),
            ("llm.malformed=0.1", "llm.empty=0.1", "llm.truncated=0.1", "llm.refusal=0.1", "llm.out_of_range=0.1"),
            ("llm.malformed=1.0", "agent.lessons=2"),
        ],
    )
    @pytest.mark.parametrize("env", ["taxi", "blackjack"])
    def test_it_completes(self, tmp_path, env, shares):
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
        last = comparable_metrics(folder)[-1]
        assert last["llm/invalid_replies"] == bad > 0
        assert last["player/invalid_rate"] == pytest.approx(bad / len(calls))
        assert json.loads((folder / "results.json").read_text())["episodes"] == 6
        assert sum(row["invalid"] for row in read_lines(folder / "episodes.jsonl")) == bad

    def test_numbers_out_of_range(self, tmp_path):
        file = tmp_path / "conf" / "env" / "pendulum_words.yaml"
        file.parent.mkdir(parents=True)
        node = options("env")["taxi"] | {"id": "Pendulum-v1", "name": "pendulum_words", "text": "auto"}
        file.write_text(json.dumps(node | {"success": None, "horizon": 20, "n_envs": 2}))
        config = f"hydra.searchpath=[file://{tmp_path}/conf]"
        run_it = (config, "env=pendulum_words", "agent=llm_player", "play.episodes=2", "llm.out_of_range=0.5")
        run_it = (*run_it, "llm.max_invalid=null")
        _, folder = play(tmp_path / "out", *run_it)
        last = comparable_metrics(folder)[-1]
        assert 0.3 < last["player/invalid_rate"] < 0.7 and last["player/decisions"] == 40
        actions = [line["action"] for line in read_lines(folder / "episodes" / "0" / "replies.jsonl")]
        assert all(-2 <= action["action_0"] <= 2 for action in actions)


class TestResuming:
    OPTIONS = (*TAXI, "agent=llm_player", "agent.lessons=1", "llm.malformed=0.3", "play.videos=1")

    def test_a_budget_that_ran_out(self, tmp_path):
        """Stopped in the middle of an episode and continued: files, numbers and videos of a run that was not."""
        _, whole = play(tmp_path / "whole", *self.OPTIONS)
        parts = (*self.OPTIONS, f"output_root={tmp_path / 'parts'}")
        for calls in (20, 45):
            with pytest.raises(BudgetExhausted):
                run(*parts, f"llm.budget.calls={calls}")
        stopped = only_run_folder(tmp_path / "parts")
        lines = [sum(map(len, written(folder).values())) for folder in (stopped, whole)]
        assert 0 < lines[0] < lines[1]
        run(*parts)
        self.check(whole, stopped)

    @pytest.mark.slow
    def test_kills(self, tmp_path):
        """With SIGKILL, wherever it is after so many lines."""
        context = commands.children()
        overrides = (*self.OPTIONS, "play.videos=1", "play.episodes=5", "checkpoint_seconds=0")
        killed = tmp_path / "killed"
        for lines in (7, 30, None):
            process = context.Process(target=silent_run, args=(*overrides, f"output_root={killed}"))
            process.start()
            while lines is not None and process.is_alive():
                if sum(path.read_text().count("\n") for path in killed.rglob("replies.jsonl")) >= lines:
                    process.kill()
                time.sleep(0.005)
            process.join()
        assert json.loads((only_run_folder(killed) / "status.json").read_text())["attempt"] == 3
        _, whole = play(tmp_path / "whole", *overrides)
        self.check(whole, only_run_folder(killed))

    def check(self, whole, other):
        assert written(whole) == written(other)
        names = ("results.json", "summary.json")
        first, second = ([json.loads((folder / name).read_text()) for name in names] for folder in (whole, other))
        for summary in (first[1], second[1]):
            summary.pop("llm_calls_paid")  # what was paid for is not what was used
        assert first == second
        rows = [
            [{k: v for k, v in row.items() if not k.startswith("spent/")} for row in comparable_metrics(folder)]
            for folder in (whole, other)
        ]
        assert rows[0] == rows[1]
        for film in sorted(path.parent.name for path in whole.rglob("episode.gif")):
            a, b = (iio.imread(folder / "episodes" / film / "episode.gif", index=None) for folder in (whole, other))
            assert a.shape == b.shape and (a == b).all()


class TestFilmsAndRecords:
    """How much is kept to be looked at makes no other run."""

    OPTIONS = ("env=taxi", "env.horizon=3", "env.n_envs=1", "play.episodes=3", "agent=llm_player")

    def videos(self, folder):
        return sorted(int(path.parent.name) for path in folder.rglob("episode.gif"))

    def test_a_finished_run_is_asked_for_more(self, tmp_path, capsys):
        """It is skipped, and the message says how to get them; made again, it has them, and the same numbers."""

        def again(*overrides):
            return run(*self.OPTIONS, f"output_root={tmp_path}", *overrides)

        first = again()
        folder = only_run_folder(tmp_path)
        assert again("play.videos=1", "play.records=1", "play.fps=9") == first and only_run_folder(tmp_path) == folder
        said = " ".join(capsys.readouterr().out.split())
        assert "Already finished" in said and "play.videos=0, and 1 are asked for: rerun=true" in said
        assert "llmrl-evaluate" in said and "--video" in said
        assert not self.videos(folder)
        results = json.loads((folder / "results.json").read_text())
        assert again("play.videos=1", "rerun=true") == first
        assert self.videos(folder) == [0] and json.loads((folder / "results.json").read_text()) == results
        capsys.readouterr()
        assert again("play.videos=1") == first and "asked for" not in capsys.readouterr().out

    def test_a_run_goes_on_with_other_numbers(self, tmp_path):
        """Videos and records are of whole episodes: of those that begin from then on."""
        for calls, kept in ((2, 0), (5, 2), (None, 3)):
            more = (f"play.videos={kept}", f"play.records={kept}", f"llm.budget.calls={calls or 'null'}")
            with pytest.raises(BudgetExhausted) if calls else nullcontext():
                run(*self.OPTIONS, *more, f"output_root={tmp_path}")
        folder = only_run_folder(tmp_path)
        # Stopped in episode 0, which began with none, and in episode 1, which began with two wanted.
        assert self.videos(folder) == [1, 2]
        lines = {int(path.parent.name): len(read_lines(path)) for path in folder.rglob("replies.jsonl")}
        assert lines == {1: 3, 2: 3}
        assert len(iio.imread(folder / "episodes" / "1" / "episode.mp4")) == 4

    def test_a_film_that_is_not_wanted_any_more(self, tmp_path):
        with pytest.raises(BudgetExhausted):
            run(*self.OPTIONS, "play.videos=2", "llm.budget.calls=2", f"output_root={tmp_path}")
        run(*self.OPTIONS, f"output_root={tmp_path}")
        folder = only_run_folder(tmp_path)
        assert not self.videos(folder) and not list(folder.glob("episodes/*/frames"))
