"""Agents alone: rollout, update, evaluate. Also how agents are pre-trained for a principal's study."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from llmrl.analysis.probes import draw_probes
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.run_context import Kind, RunContext
from llmrl.loops.imposed import Imposed, Phase
from llmrl.loops.loop_parts import LoopParts
from llmrl.loops.probing import Probes
from llmrl.rollout.collector import Collector
from llmrl.rollout.episode_results import episode_row, write_results
from llmrl.rollout.evaluate_policy import evaluate_policy
from llmrl.rollout.observers import StepProgress, TrainingEpisodeWriter
from llmrl.rollout.trajectory_writers import RolloutWriter
from llmrl.rollout.welfare import summarize, summarize_evaluation
from llmrl.run.content import RESULT_EPISODES


@dataclass(frozen=True)
class LearnSettings:
    """How long agents learn, and what is logged of it: the section `learn` of the config.

    Attributes:
        env_steps: environment steps (summed over games) to train for; rounded up to whole rollouts.
        rollout_steps: steps of every game per update; None is the horizon, i.e. whole episodes.
        evaluate_every: updates between evaluations; 0 evaluates only at the end.
        evaluate_episodes: episodes per evaluation (at least; all games play).
        trajectories_every: every so many updates, the rollout it learned from is kept as arrays (`run.trajectories`);
            0 keeps none.
        probes: fixed prompts whose action probabilities are logged: name of a list that is shipped, or a file; None:
            there are none.
        probe_every: updates between two looks at them.
        mechanism: values imposed on the games (`Imposed`): a vector for all, or phases; None leaves the environment's
            own.
    """

    env_steps: PositiveInt
    rollout_steps: PositiveInt | None
    evaluate_every: NonNegativeInt
    evaluate_episodes: PositiveInt
    trajectories_every: NonNegativeInt = 0
    probes: str | None = None
    probe_every: PositiveInt = 1
    mechanism: list[float] | list[Phase] | None = None


class LearnLoop:
    """`principal=none`: improve the agents for a budget of environment steps.

    Args:
        parts: of the run; one agent. Iteration i draws only from the sub-tree `iteration/i` of the seeds, so a resumed
            run continues exactly.
        settings: how long, and what is logged.
    """

    def __init__(self, parts: LoopParts, settings: LearnSettings) -> None:
        [self.agent] = parts.agents
        self.env, self.seeds, self.meter, self.settings = parts.env, parts.seeds, parts.meter, settings
        self.judged = parts.judged
        wanted = settings.mechanism
        self.imposed = None if wanted is None else Imposed(self.env, wanted, self.seeds.child("mechanism"))
        begin = None if self.imposed is None else self.imposed.begin
        self.collector = Collector(self.env, self.agent.policy, parts.device, parts.kept, begin, parts.observers)
        self.rollout_steps = settings.rollout_steps or self.env.spec.horizon or 256
        self.updates = -(-settings.env_steps // (self.rollout_steps * self.env.spec.n_envs))
        every = settings.trajectories_every
        self.trajectories = RolloutWriter(self.env, every) if every else None
        self.probes = None if settings.probes is None else Probes.load(settings.probes, self.env, self.agent.policy)
        self.iteration = 0

    def plan(self) -> list[tuple[str, str]]:
        steps = self.updates * self.rollout_steps * self.env.spec.n_envs
        return [
            ("  updates", f"{self.updates:,} of {self.rollout_steps:,} steps x {self.env.spec.n_envs} games"),
            ("environment steps", f"{steps:,}"),
        ]

    def estimate(self) -> None:
        """Which calls an agent or a teacher makes depends on what happens in the games."""

    def run(self, run: RunContext) -> float:
        """Train, then evaluate; returns what a principal would be judged on, mean over episodes (by default the
        base return of an agent)."""
        self._restore(run)
        games = self.env.spec.n_envs
        per_update = self.rollout_steps * games
        if self.probes is not None:
            self.probes.write(run.folder)
            if self.iteration == 0:
                self._row(run, "probe", self.probes.metrics())
        writers = [self.episodes, *([] if self.trajectories is None else [self.trajectories])]
        with (
            run.progress(self.updates * per_update, "steps", "learn", self.iteration * per_update) as progress,
            self.collector.observed(*writers, StepProgress(progress, games)),
        ):
            while self.iteration < self.updates:
                self._update(run)
                self._look(run)
                run.safe_point(self.iteration, self.state_dict)
        run.checkpoint(self.iteration, self.state_dict())
        for each in writers:
            each.close()
        return self._finish(run)

    def _update(self, run: RunContext) -> None:
        """One rollout, and what is learned from it."""
        seeds = self.seeds.child("iteration").child(self.iteration)
        with self._saved(run):
            rollout = self.collector.collect(self.rollout_steps, seeds.torch("actions"))
            metrics = self.agent.update(rollout, seeds.torch("minibatches"))
        self.iteration += 1
        # Which episodes end in a rollout depends on their lengths: curves are made of those written down.
        metrics |= summarize(rollout.episodes, "ended")
        metrics |= {} if self.meter is None else self.meter.metrics()
        self._row(run, "update", metrics)

    def _look(self, run: RunContext) -> None:
        """Ask probes, and evaluate, where it is the time."""
        if self.probes is not None and self.iteration % self.settings.probe_every == 0:
            self._row(run, "probe", self.probes.metrics())
        every = self.settings.evaluate_every
        if every and self.iteration % every == 0 and self.iteration < self.updates:
            self._row(run, "evaluation", summarize_evaluation(self.evaluate(), *self.judged))
            self.episodes.begin_anew(self.iteration * self.rollout_steps)

    def _finish(self, run: RunContext) -> float:
        """Evaluate what was learned, and write down what it came to."""
        episodes = self.evaluate()
        self.collector.close()
        final = summarize_evaluation(episodes, *self.judged)
        rows = [episode_row(episode, *self.judged) for episode in episodes]
        about = {"env": self.env.spec.name, "agent": self.agent.describe(), "llm": run.status.llm, "seed": run.seed}
        write_results(run.folder, rows, learned=True, about=about)
        self._row(run, "evaluation", final)
        if self.probes is not None:
            draw_probes(run.folder)
        run.summary = {
            "updates": self.iteration,
            "env_steps": self.iteration * self.rollout_steps * self.env.spec.n_envs,
            **final,
            RESULT_EPISODES: [[row["objective"] for row in rows]],
        }
        return final["evaluation/objective"]

    def evaluate(self) -> list[Episode]:
        """Play without learning in freshly seeded games; training then starts new episodes."""
        seeds = self.seeds.child("evaluation").child(self.iteration)
        training = None if self.imposed is None else self.imposed.evaluate(seeds.child("mechanism"))
        with self.collector.unobserved():
            episodes = evaluate_policy(self.collector, self.settings.evaluate_episodes, seeds)
        if self.imposed is not None and training is not None:
            self.imposed.resume(training)
        self.collector.reset(seeds.integer("after"))
        return episodes

    def _row(self, run: RunContext, kind: Kind, metrics: dict[str, float]) -> None:
        env_steps = self.iteration * self.rollout_steps * self.env.spec.n_envs
        run.metrics.log(kind, "env_steps", metrics, env_steps=env_steps, updates=self.iteration)

    def state_dict(self) -> State:
        """Everything a resumed run needs to go on exactly (on engines that can be restored)."""
        return {
            "agents": [self.agent.state_dict()],
            "collector": self.collector.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
            "episodes": self.episodes.state_dict(),
            **({} if self.trajectories is None else {"trajectories": self.trajectories.state_dict()}),
            **({} if self.imposed is None else {"mechanism": self.imposed.state_dict()}),
        }

    def _saved(self, run: RunContext) -> AbstractContextManager[None]:
        """Keeps the work so far if a language model, where one is used, cannot be reached."""
        if self.meter is None:
            return nullcontext()
        return run.saved_if_refused(self.iteration, self.state_dict, learns=True)

    def _restore(self, run: RunContext) -> None:
        self.iteration = run.iteration
        if self.imposed is not None and run.restored is not None:
            # Before new episodes begin, for games that cannot be restored; once more below for those that are.
            self.imposed.load_state_dict(run.restored["mechanism"])
        self.collector.reset(self.seeds.child("start").integer(run.iteration))
        spec, saved = self.env.spec, None if run.restored is None else run.restored["episodes"]
        self.episodes = TrainingEpisodeWriter(spec, run.folder, saved)
        if run.restored is not None and not spec.deterministic:
            self.episodes.begin_anew(self.iteration * self.rollout_steps)  # such games cannot be restored
        if self.trajectories is not None:
            before = None if run.restored is None else run.restored.get("trajectories")
            self.trajectories.open(run.folder, run.iteration, before)
        if run.restored is not None:
            self.agent.load_state_dict(run.restored["agents"][0])
            self.collector.load_state_dict(run.restored["collector"])
            if self.imposed is not None and self.env.spec.deterministic:
                self.imposed.load_state_dict(run.restored["mechanism"])
            if self.meter is not None:
                self.meter.load_state_dict(run.restored["meter"])
