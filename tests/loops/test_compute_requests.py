"""Compute requests of loops: types of requests, errors of responses, and loops that are rebuilt."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import torch

import llmrl.loops
from experiments import compose, load_comparable_metrics
from llmrl.core.errors import ConfigError, LLMError
from llmrl.experiment.parts import build_loop, build_parts
from llmrl.loops.compute_requests import Call, Delegate, PlayEpisode, PlaySteps, Request, Requests, SafePoint
from llmrl.loops.executor import serve
from llmrl.rollout.collector import Collector
from llmrl.run.artifacts import load_saved_state
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from some import mark_long_except

FOLDER = Path(llmrl.loops.__file__).parent
CLOSED = {
    *("Begin", "PlaySteps", "PlayEpisode", "Update", "Call", "EvaluateController", "Delegate", "Log", "SafePoint"),
}
REQUESTS = get_args(Request)


def calls(path: Path) -> set[str]:
    """Return the source of the calls in a file."""
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}


def asking_modules() -> list[Path]:
    answering = ("compute_requests.py", "executor.py", "run_batch.py", "independent_games.py")
    loops = [path for path in sorted(FOLDER.glob("*.py")) if path.name not in answering]
    return [*loops, FOLDER.parent / "finetuning" / "loop.py"]


class TestTheList:
    def test_request_list_is_closed(self):
        assert {request.__name__ for request in REQUESTS} == CLOSED

    @pytest.mark.parametrize("request_type", REQUESTS, ids=lambda request_type: request_type.__name__)
    def test_requests_document_answers_with_fields(self, request_type):
        documentation = "".join(base.__doc__ or "" for base in request_type.__mro__[:-1])
        assert "answered" in (request_type.__doc__ or "")
        for field in dataclasses.fields(request_type):
            assert f" {field.name}:" in documentation or f" {field.name}, " in documentation, field.name

    def test_loops_use_all_requests(self):
        assert not CLOSED - {name for path in asking_modules() for name in calls(path)}

    def test_architecture_page_lists_requests(self):
        page = (FOLDER.parents[2] / "docs" / "architecture.md").read_text()
        table = page.partition("## Loops ask, executors play")[2].partition("\n## ")[0]
        rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
        assert {name.strip(" `") for row in rows for name in row.split(",")} == CLOSED

    def test_loops_do_no_work_directly(self):
        forbidden = (
            ".collect",
            ".safe_point",
            ".checkpoint",
            "metrics.log",
            "principal.ask",
            ".chat",
            ".build_evaluator",
        )
        wrong = {(path.name, name) for path in asking_modules() for name in calls(path) if name.endswith(forbidden)}
        assert not wrong


class TestServing:
    def test_loop_returns_answer(self):
        def loop() -> Requests[int]:
            return (yield Delegate(lambda ask: ask(Delegate(lambda ask: 3)))) + 1

        assert serve(loop()) == 4

    def test_answer_error_propagates_to_caller(self):
        def reject(ask):
            raise ConfigError("no")

        def loop(goes_on: bool) -> Requests[str]:
            try:
                yield Delegate(reject)
            except ConfigError:
                if not goes_on:
                    raise
            return (yield Delegate(lambda ask: "went on"))

        assert serve(loop(True)) == "went on"
        with pytest.raises(ConfigError, match="no"):
            serve(loop(False))

    def test_loop_error_propagates(self):
        def loop() -> Requests[None]:
            yield Delegate(lambda ask: None)
            raise ConfigError("mine")

        with pytest.raises(ConfigError, match="mine"):
            serve(loop())

    def test_llm_error_saves_run(self, tmp_path):
        def ask():
            raise LLMError("nobody answers")

        def loop(run: Run) -> Requests[None]:
            with run.save_on_llm_error(3, lambda: {"x": 1}):
                yield Call(ask, is_long=True)

        with pytest.raises(LLMError), Run.open(tmp_path, "asks", {"of": 1}) as run:
            serve(loop(run), run)
        iteration, state = load_saved_state(run.folder)
        assert iteration == 3 and state["x"] == 1

    def test_episode_depends_only_on_request(self):
        parts = build_parts(compose("env=escape_room", "agent=ppo", "env.n_envs=4", "env.horizon=6"), None)
        collector = Collector(parts.env, parts.agents[0].policy, "cpu")

        def loop() -> Requests[list[torch.Tensor]]:
            options = {"collector": collector, "seed": 5, "copy": True}
            episode = yield PlayEpisode(steps=6, action_seeds=[7], **options)
            repeated = yield PlayEpisode(steps=6, action_seeds=[7], **options)
            different = yield PlayEpisode(steps=6, action_seeds=[8], **options)
            first = yield PlayEpisode(steps=4, action_seeds=[7], **options)
            rest = yield PlaySteps(collector=collector, steps=2, action_seeds=None)
            return [episode.action, repeated.action, torch.cat([first.action, rest.action]), different.action]

        episode, repeated, pieces, different = serve(loop())
        parts.close()
        assert torch.equal(episode, repeated) and torch.equal(episode, pieces) and not torch.equal(episode, different)


ROOM = ("env=escape_room", "env.n_envs=8", "design.adapt_rounds=2", "design.validate_episodes=4", "design.steps=3")
LEARN = (
    "env=escape_room",
    "env.n_envs=4",
    "learn.rollout_steps=5",
    "learn.env_steps=200",
    "learn.evaluation_interval=4",
)
SEARCH = ("env=cartpole", "agent=linear", "env.horizon=30", "search.iterations=3", "search.episodes=2")
RUNS = {
    "design, confirmation of bandit arms": (
        *ROOM, "principal=egreedy", "principal.points=2", "design.candidates=2", "design.adapt_rounds=1",
        "design.steps=6", "design.confirm_steps=3", "design.evaluations=2",
    ),
    "design, a gradient": (*ROOM, "principal=metagrad", "agent=pg", "design.confirm_steps=0", "design.evaluations=0"),
    "design, pieces, societies that live on": (
        *ROOM, "principal=random", "env.horizon=10", "design.rollout_steps=5", "design.reset_agents=false",
        "design.confirm_steps=0", "design.evaluations=0",
    ),
    "learn": (*LEARN, "learn.evaluate_episodes=4"),
    "learn, a mechanism imposed": (*LEARN, "env.show_mechanism=true", "learn.mechanism=[1,0,2,0,5]"),
    "search": (
        *SEARCH, "principal=cem", "principal.population=4", "search.candidates=2", "search.confirm_candidates=2",
        "search.evaluation_interval=2", "search.evaluate_episodes=3",
    ),
    "search, random vectors first": (
        *SEARCH, "principal=random", "search.warmup=3", "search.extra_rollout=true", "search.confirm_candidates=0",
    ),
}  # fmt: skip

SHORT_RUNS = ("learn, a mechanism imposed", "design, a gradient", "search")
COMPARABLE_FILES = ("summary.json", "results.json", "proposals.jsonl", "*.tsv", "*.npz")
"""What a run writes beside its rows of metrics and its checkpoints, as far as it says nothing of time and machine."""


def equal(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "shape"):
        return a.shape == b.shape and bool((a == b).all())
    return a == b


def interrupted(requests: Requests[float], run: Run, stops: Counter[int]) -> Requests[float]:
    """Run the loop up to its next safe point.

    It stops twice at each iteration, because some loops report an iteration several times.
    """
    answer = None
    while True:
        try:
            request = requests.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield request
        if isinstance(request, SafePoint) and not request.always and stops[request.iteration] < 2:
            stops[request.iteration] += 1
            requests.close()
            raise Stopped(run.folder, 15)


def serve_run(root: Path, overrides: tuple[str, ...], stops: Counter[int] | None) -> tuple[float, Path]:
    """Return result and folder of a run; with `stops`, all its parts are built anew after each safe point."""
    config = compose(*overrides)
    while True:
        parts = build_parts(config, None)
        try:
            with Run.open(root, "loop", {**config, "checkpoint_seconds": 0}, seed=0) as run:
                requests = build_loop(config, parts).requests(run)
                run.result = serve(requests if stops is None else interrupted(requests, run, stops), run)
            return run.result, run.folder
        except Stopped:
            assert stops is not None
        finally:
            parts.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", mark_long_except(SHORT_RUNS, RUNS))
def test_rebuilt_loop_matches_uninterrupted_loop(tmp_path, name):
    stops: Counter[int] = Counter()
    (result, reference), (rebuilt, parted) = (
        serve_run(tmp_path / "whole", RUNS[name], None),
        serve_run(tmp_path / "parted", RUNS[name], stops),
    )
    assert sum(stops.values()) >= 3 and result == rebuilt
    assert load_comparable_metrics(reference) == load_comparable_metrics(parted)
    assert equal(load_saved_state(reference)[1], load_saved_state(parted)[1])
    paths = {path.relative_to(reference) for pattern in COMPARABLE_FILES for path in reference.rglob(pattern)}
    assert paths
    for path in paths:
        assert (reference / path).read_bytes() == (parted / path).read_bytes(), path
