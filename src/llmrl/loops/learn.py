"""The loop of learning agents without a principal, and the mechanisms that are imposed on their games."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
from annotated_types import MinLen
from pydantic.dataclasses import dataclass as validated_dataclass

from llmrl.core.agent_interfaces import LearnsFromEpisodeGroups, RecordsEpisodes
from llmrl.core.errors import ConfigError
from llmrl.core.metrics import RowKind
from llmrl.core.protocols import VecEnv
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.core.state_fields import StateFields
from llmrl.loops.compute_requests import Begin, Call, Log, Loop, PlaySteps, Requests, SafePoint, Update
from llmrl.loops.continuations import EpisodeGroups
from llmrl.loops.loop_parts import LoopParts, check_rollout_steps, write_trained_adapter, write_trained_results
from llmrl.loops.probing import Probes
from llmrl.rollout.collector import Collector, evaluate_policy
from llmrl.rollout.episode_summaries import summarize, summarize_evaluation
from llmrl.rollout.run_observers import EpisodeProgress, StepProgress, TrainingEpisodeWriter
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.run import Run


@validated_dataclass(frozen=True)
class Box:
    """Uniform distribution of mechanism vectors between two bounds.

    Args:
        low, high: bounds of each value, [d].
        weight: weight of this box in its mixture; probabilities are proportional to weights.
        equal: whether all values of a vector are equal (a flat tax): one draw between `low[0]` and `high[0]`.
    """

    low: list[float]
    high: list[float]
    weight: PositiveFloat = 1.0
    equal: bool = False


@validated_dataclass(frozen=True)
class Phase:
    """A phase of training with one distribution of mechanism vectors.

    Args:
        mixture: boxes; each vector is drawn from one of them, selected with probability proportional to `weight`.
        episodes: length of the phase in episodes of each game; None: until the end (only in the last phase).
    """

    mixture: Annotated[list[Box], MinLen(1)]
    episodes: PositiveInt | None = None


class MechanismSampler(StateFields):
    """Sampler of the mechanism vector of each game at the start of each episode.

    The seed of a vector depends only on the episode and the game's group, so vectors of other groups do not affect it.

    Args:
        env: environment with a mechanism.
        mechanism: constant vector, [d], or phases with distributions of vectors.
        seeds: seed node of the vectors.
        group_size: number of games with consecutive indices that get equal vectors.

    Attributes:
        episodes: number of episodes that have started in each game, [n_envs].

    Raises:
        ConfigError: the environment has no mechanism, a bound or value is outside the mechanism's bounds, or a phase
            before the last has no length.
    """

    _state_fields = ("episodes", "values")

    def __init__(
        self, env: VecEnv, mechanism: Sequence[float] | Sequence[Phase], seeds: Seeds, group_size: int = 1
    ) -> None:
        space = env.spec.mechanism
        if space is None:
            raise ConfigError(
                f"learn.mechanism needs an environment with a mechanism, and env={env.spec.name} has none as "
                "configured. Choose another one, or set learn.mechanism=null"
            )
        values = [x for x in mechanism if isinstance(x, int | float)]
        if values:
            box = Box([float(x) for x in values], [float(x) for x in values])
            self.phases = [Phase([box])]
        else:
            self.phases = [phase for phase in mechanism if isinstance(phase, Phase)]
        if not self.phases or any(phase.episodes is None for phase in self.phases[:-1]):
            raise ConfigError("learn.mechanism needs at least one phase, and `episodes` in every phase but the last")
        for box in (box for phase in self.phases for box in phase.mixture):
            space.check([box.low, box.high])
            if any(low > high for low, high in zip(box.low, box.high, strict=True)):
                raise ConfigError(f"learn.mechanism: low={box.low} exceeds high={box.high}; swap them")
        self.env, self.space, self._group_size = env, space, group_size
        self._training_seeds = self._seeds = seeds
        self._use_last_phase = False
        self.episodes = np.zeros(env.spec.n_envs, dtype=np.int64)
        self.values = np.tile(space.low, (env.spec.n_envs, 1))

    def impose_vectors(self, game_mask: np.ndarray) -> None:
        """Impose new vectors on the games where `game_mask` [n_envs] is true; call it before they are reset."""
        for game in np.flatnonzero(game_mask).tolist():
            episode = int(self.episodes[game])
            rng = self._seeds.child(game // self._group_size).numpy(episode)
            self.values[game] = self._draw_vector(self._select_phase(episode), rng)
        self.episodes[game_mask] += 1
        self.env.set_mechanism(self.values)

    def begin_evaluation(self, seeds: Seeds) -> State:
        """Reset the episode counts and draw from the last phase with `seeds`; return the state of training."""
        training_state = self.state_dict()
        self._seeds, self._use_last_phase, self.episodes = seeds, True, np.zeros_like(self.episodes)
        return training_state

    def end_evaluation(self, training_state: State) -> None:
        """Restore the state of training that `begin_evaluation` returned."""
        self._seeds, self._use_last_phase = self._training_seeds, False
        self.load_state_dict(training_state)

    def _select_phase(self, episode: int) -> Phase:
        phases = zip(self.phases, itertools.accumulate(phase.episodes or 0 for phase in self.phases[:-1]), strict=False)
        return next((phase for phase, end in phases if episode < end and not self._use_last_phase), self.phases[-1])

    def _draw_vector(self, phase: Phase, rng: np.random.Generator) -> np.ndarray:
        weights = np.array([box.weight for box in phase.mixture])
        box = phase.mixture[int(rng.choice(len(weights), p=weights / weights.sum()))]
        uniform_draws = rng.random(self.space.dim)
        if box.equal:
            return np.full(self.space.dim, box.low[0] + uniform_draws[0] * (box.high[0] - box.low[0]))
        low, high = np.array(box.low), np.array(box.high)
        return np.asarray(low + uniform_draws * (high - low))


@dataclass(frozen=True)
class LearnSettings:
    """Budget, logging and evaluation of learning: the section `learn` of the config.

    Attributes:
        env_steps: environment steps (summed over games) to train for; rounded up to complete rollouts.
        rollout_steps: steps of every game per update; None: the horizon, i.e. full episodes, or 256 without a horizon.
        evaluation_interval: updates between evaluations; 0: only at the end.
        evaluate_episodes: minimum number of episodes of an evaluation, rounded up to a multiple of the games.
        probes: list of fixed prompts after which action probabilities are logged (`Probes.load`): name of a list in the
            package, or path of a YAML file; None: no probes.
        probe_interval: updates between measurements of the probes.
        mechanism: mechanism of the games (`MechanismSampler`): a constant vector [d], or phases; None: the default
            mechanism of the environment.
    """

    env_steps: PositiveInt
    rollout_steps: PositiveInt | None
    evaluation_interval: NonNegativeInt
    evaluate_episodes: PositiveInt
    probes: str | None = None
    probe_interval: PositiveInt = 1
    mechanism: list[float] | list[Phase] | None = None


class LearnLoop(Loop):
    """The loop of `principal=none` with agents that learn for a budget of environment steps.

    Args:
        parts: parts of the run, with one agent. Each update, evaluation and start draws from its own sub-tree of the
            seeds, so a resumed run is bit-equal to an uninterrupted one.
        settings: budget, logging and evaluation.
    """

    def __init__(self, parts: LoopParts, settings: LearnSettings) -> None:
        [self.agent] = parts.agents
        self.env, self.seeds, self.meter, self.settings = parts.env, parts.seeds, parts.meter, settings
        self.welfare_measure = parts.welfare_measure
        group_size = self.agent.group_size if isinstance(self.agent, LearnsFromEpisodeGroups) else None
        self.mechanism_sampler: MechanismSampler | None = None
        if settings.mechanism is not None:
            seeds = self.seeds.child("mechanism")
            self.mechanism_sampler = MechanismSampler(self.env, settings.mechanism, seeds, group_size or 1)
        before_reset = None if self.mechanism_sampler is None else self.mechanism_sampler.impose_vectors
        self.collector = Collector(
            self.env, self.agent.policy, parts.device, parts.teacher_channels, before_reset, parts.observers
        )
        self.rollout_steps = settings.rollout_steps or self.env.spec.horizon or 256
        self.episode_groups = (
            None if group_size is None else EpisodeGroups(self.collector, self.agent, self.rollout_steps)
        )
        check_rollout_steps(parts.agents, self.rollout_steps, self.env.spec.n_envs)
        self.n_updates = -(-settings.env_steps // (self.rollout_steps * self.env.spec.n_envs))
        self.probes = None if settings.probes is None else Probes.load(settings.probes, self.env, self.agent.policy)
        self.iteration = self.env_steps = 0

    def plan(self) -> list[tuple[str, str]]:
        n_games = self.env.spec.n_envs
        if self.episode_groups is not None:
            return [
                ("  updates", f"{self.n_updates:,} or more, of {n_games:,} episodes in groups with equal starts"),
                ("environment steps", f"{self.settings.env_steps:,}"),
            ]
        return [
            ("  updates", f"{self.n_updates:,} of {self.rollout_steps:,} steps x {n_games} games"),
            ("environment steps", f"{self.n_updates * self.rollout_steps * n_games:,}"),
        ]

    def requests(self, run: Run) -> Requests[float]:
        """Train, then evaluate; return the mean objective of evaluated episodes (by default an agent's base return)."""
        yield from self._restore(run)
        n_games = self.env.spec.n_envs
        if self.probes is not None:
            self.probes.write(run.folder)
            if self.iteration == 0:
                yield self._make_log_request("probe", self.probes.metrics())
        total_steps, has_groups = self.settings.env_steps, self.episode_groups is not None
        if not has_groups:
            total_steps = self.n_updates * self.rollout_steps * n_games
        with run.progress(total_steps, "steps", "learn", self.env_steps) as progress:
            step_counter = (
                EpisodeProgress(progress, counts_steps=True) if has_groups else StepProgress(progress, n_games)
            )
            with self.collector.add_observers(self.episode_writer, step_counter):
                while not self.is_complete:
                    yield from self._update(run, progress)
                    yield from self._probe_and_evaluate()
                    yield SafePoint(self.iteration, self.state_dict)
        yield SafePoint(self.iteration, self.state_dict, always=True)
        self.episode_writer.close()
        episodes = yield from self._evaluate()
        self.collector.close()
        final_metrics = summarize_evaluation(episodes, *self.welfare_measure)
        objectives = write_trained_results(run, self.env.spec.name, self.agent, episodes, *self.welfare_measure)
        write_trained_adapter(run, self.agent)
        yield self._make_log_request("evaluation", final_metrics)
        if self.probes is not None:
            from llmrl.analysis.probes import draw_probes

            draw_probes(run.folder)
        run.summary = {"updates": self.iteration, "env_steps": self.env_steps, **final_metrics}
        run.summary[RESULT_EPISODES] = [objectives]
        return final_metrics["evaluation/objective"]

    def _update(self, run: Run, progress: ProgressBar) -> Requests[None]:
        """Play a rollout and update the agent from it."""
        seeds = self.seeds.child("iteration").child(self.iteration)
        action_seeds = [seeds.integer("actions")]
        with self._save_on_llm_error(run):
            if self.episode_groups is not None:
                self.episode_writer.record_reset(self.env_steps // self.env.spec.n_envs)
                if self.mechanism_sampler is not None:
                    # Only the resets of updates count, so that the seeds of vectors depend on the iteration alone.
                    self.mechanism_sampler.episodes[:] = self.iteration
                rollout, n_steps = yield from self.episode_groups.play(seeds)
            else:
                rollout = yield PlaySteps(collector=self.collector, steps=self.rollout_steps, action_seeds=action_seeds)
                n_steps = self.rollout_steps * self.env.spec.n_envs
            agents, minibatch_seeds = [self.agent], [seeds.integer("minibatches")]
            [metrics] = yield Update(agents=agents, rollout=rollout, minibatch_seeds=minibatch_seeds, stacked=False)
        self.iteration += 1
        self.env_steps += n_steps
        # Biased to short episodes, which end in a rollout more often. Figures use the file of training episodes.
        metrics |= summarize(rollout.episodes, "episode")
        metrics |= {} if self.meter is None else self.meter.metrics()
        yield self._make_log_request("update", metrics)
        if rollout.episodes:
            progress.show_result(metrics["episode/return"])

    def _probe_and_evaluate(self) -> Requests[None]:
        """Measure the probes and evaluate the agents, if they are due."""
        if self.probes is not None and self.iteration % self.settings.probe_interval == 0:
            yield self._make_log_request("probe", self.probes.metrics())
        interval = self.settings.evaluation_interval
        if interval and self.iteration % interval == 0 and not self.is_complete:
            episodes = yield from self._evaluate()
            yield self._make_log_request("evaluation", summarize_evaluation(episodes, *self.welfare_measure))
            self.episode_writer.record_reset(self.iteration * self.rollout_steps)

    @property
    def is_complete(self) -> bool:
        """True once the budget of environment steps is used."""
        return self.env_steps >= self.settings.env_steps

    def _evaluate(self) -> Requests[list[Episode]]:
        """Return episodes that are played without learning in newly seeded games; then start new training episodes."""
        seeds = self.seeds.child("evaluation").child(self.iteration)
        sampler = self.mechanism_sampler
        training_state = None if sampler is None else sampler.begin_evaluation(seeds.child("mechanism"))
        unrecorded_context = self.agent.pause_recording() if isinstance(self.agent, RecordsEpisodes) else nullcontext()
        with unrecorded_context, self.collector.disable_observers():
            episodes: list[Episode] = yield Call(
                partial(evaluate_policy, self.collector, self.settings.evaluate_episodes, seeds)
            )
        if sampler is not None and training_state is not None:
            sampler.end_evaluation(training_state)
        yield Begin(self.collector, seeds.integer("after"))
        return episodes

    def _make_log_request(self, kind: RowKind, metrics: dict[str, float]) -> Log:
        return Log(kind, "env_steps", metrics, {"env_steps": self.env_steps, "updates": self.iteration})

    def state_dict(self) -> State:
        """Return the state for a bit-equal resume (on engines that can be restored)."""
        return {
            "agents": [self.agent.state_dict()],
            "collector": self.collector.state_dict(),
            "meter": None if self.meter is None else self.meter.state_dict(),
            "episodes": self.episode_writer.state_dict(),
            "env_steps": self.env_steps,
            **({} if self.mechanism_sampler is None else {"mechanism": self.mechanism_sampler.state_dict()}),
        }

    def _save_on_llm_error(self, run: Run) -> AbstractContextManager[None]:
        """Return a context that saves the run if the language model cannot be reached; a null context without one."""
        if self.meter is None:
            return nullcontext()
        return run.save_on_llm_error(self.iteration, self.state_dict, changes_weights=True)

    def _restore(self, run: Run) -> Requests[None]:
        self.iteration, state, spec = run.iteration, run.restored_state, self.env.spec
        if self.mechanism_sampler is not None and state is not None:
            # Loaded here, because `Begin` resets the games, which draws vectors; loaded again below to undo the draws.
            self.mechanism_sampler.load_state_dict(state["mechanism"])
        games_state = None if state is None else state["collector"]
        yield Begin(self.collector, self.seeds.child("start").integer(run.iteration), state=games_state)
        self.episode_writer = TrainingEpisodeWriter(spec, run.folder, None if state is None else state["episodes"])
        if state is None:
            return
        self.env_steps = state["env_steps"]
        self.agent.load_state_dict(state["agents"][0])
        if not spec.deterministic:
            self.episode_writer.record_reset(self.iteration * self.rollout_steps)  # such games cannot be restored
        elif self.mechanism_sampler is not None:
            self.mechanism_sampler.load_state_dict(state["mechanism"])
        if self.meter is not None:
            self.meter.load_state_dict(state["meter"])
