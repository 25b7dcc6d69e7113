"""Evaluation in one environment: each player plays in each mode under each mechanism, and videos are recorded.

Players are the student, the teacher, an oracle, a bot and random actions. Student and teacher may call a chat model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from llmrl.agents.bot_agent import BotPolicy
from llmrl.agents.random_agent import RandomPolicy
from llmrl.config.builder import Builder, Config
from llmrl.core.errors import BudgetExhausted, ConfigError
from llmrl.core.option_files import load_option
from llmrl.core.protocols import EstimatesCalls, Policy, VecEnv
from llmrl.core.records import CallEstimate, State
from llmrl.core.rollouts import Episode
from llmrl.core.seeding import Seeds
from llmrl.core.services import TeacherServices
from llmrl.core.spaces import EnvSpec
from llmrl.evaluation.evaluated_mechanisms import EvaluatedMechanism
from llmrl.evaluation.settings import EvaluationSettings, Reporter
from llmrl.evaluation.society_pictures import SocietyPictures
from llmrl.evaluation.videos import record_video, save_side_by_side_video
from llmrl.experiment.parts import Parts
from llmrl.llms.client import ChatClient
from llmrl.rollout.collector import Collector, evaluate_policy
from llmrl.rollout.trajectory_writers import make_trajectory_writer

PlayerMode = tuple[str, str]
"""Name of a player, and the mode in which it plays, `stochastic` or `deterministic`."""


def build_recording_collector(env: VecEnv, policy: Policy, device: str, trajectories: Path | None) -> Collector:
    """Return a collector of one policy, which stores every step as arrays in `trajectories` unless that is None.

    Raises:
        ConfigError: the environment does not provide the channels that the policy reads.
    """
    writers = [] if trajectories is None else [make_trajectory_writer(env, policy, trajectories)]
    return Collector(env, policy, device, observers=writers)


@dataclass(frozen=True)
class Videos:
    """Paths of recorded videos.

    Attributes:
        paths_by_mechanism: name of each mechanism -> paths of its videos.
        side_by_side: paths of the video of all mechanisms side by side; empty for a single mechanism.
    """

    paths_by_mechanism: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    side_by_side: Sequence[Path] = ()


@dataclass(frozen=True)
class PlannedEvaluation:
    """An evaluation whose parts, players and mechanisms have been built.

    Attributes:
        settings: settings of the evaluation.
        parts: parts of the run.
        players: name of each player -> its policy; videos show the first one.
        mechanisms: mechanisms that are set in the environment one after the other.
        context: index of the context; None without contexts.
        seeds: seed node of the episodes, equal for all players and mechanisms.
        out: folder of the results.
        report: function that shows progress messages.
    """

    settings: EvaluationSettings
    parts: Parts
    players: Mapping[str, Policy]
    mechanisms: Sequence[EvaluatedMechanism]
    context: int | None
    seeds: Seeds
    out: Path
    report: Reporter

    @property
    def is_comparison(self) -> bool:
        """True if several mechanisms are compared."""
        return len(self.mechanisms) > 1

    @property
    def carried_state_names(self) -> list[str]:
        """Names of states that agents keep from one episode to the next; empty if no agents play."""
        return list(getattr(self.parts.agents[0], "carried_states", ())) if "student" in self.players else []

    def find_folder(self, mechanism: EvaluatedMechanism, subfolder: str = "") -> Path:
        """Return the folder for files of one mechanism, in `subfolder` of the folder of the results."""
        return self.out / subfolder / mechanism.name if self.is_comparison else self.out / subfolder

    def record_videos(self, states: Sequence[State]) -> Videos:
        """Record a video of the first player under each mechanism; return the paths of the files.

        If there are several mechanisms, only the world is recorded, all videos are padded to the same length, and an
        additional video shows them side by side.

        Args:
            states: state of the agent that plays, for each mechanism.
        """
        videos = []
        for mechanism, state in zip(self.mechanisms, states, strict=True):
            self._report_activity("filming", mechanism)
            self._set_mechanism(mechanism)
            self.parts.agents[0].load_state_dict(state)
            policy, greedy = next(iter(self.players.values())), self.settings.mode == "deterministic"
            max_steps = self.settings.video_steps
            videos.append(record_video(self.parts, policy, self.seeds, max_steps, greedy, self.is_comparison))
        fps = self.settings.fps
        if not self.is_comparison:
            [mechanism], [video] = self.mechanisms, videos
            societies = [video.to_society(mechanism.heading, mechanism.sentence)]
            pictures = None if video.setting is None else SocietyPictures(societies, video.setting)
            return Videos({mechanism.name: video.recorder.save(self.find_folder(mechanism, "videos"), fps, pictures)})
        paths_by_mechanism: dict[str, Sequence[Path]] = {}
        for mechanism, video in zip(self.mechanisms, videos, strict=True):
            video.pad_to(max(map(len, videos)))
            paths_by_mechanism[mechanism.name] = video.recorder.save(self.find_folder(mechanism, "videos"), fps)
        pairs = zip(videos, self.mechanisms, strict=True)
        societies = [video.to_society(mechanism.heading, mechanism.sentence) for video, mechanism in pairs]
        assert videos[0].setting is not None
        side_by_side = save_side_by_side_video(societies, videos[0].setting, self.out / "videos", fps)
        return Videos(paths_by_mechanism, side_by_side)

    def play_episodes(
        self, states: Sequence[State], n_episodes: int, exactly: bool
    ) -> list[dict[PlayerMode, list[Episode]]]:
        """Play with each player in each mode under each mechanism.

        Args:
            states: state of the agent that plays, for each mechanism.
            n_episodes: minimum number of episodes of each player.
            exactly: whether `n_episodes` is also the maximum number.

        Returns:
            For each mechanism, the episodes of each player and mode.
        """
        players = [(name, mode) for name in self.players for mode in self.settings.modes]
        episodes_by_mechanism = []
        for mechanism, state in zip(self.mechanisms, states, strict=True):
            self._report_activity(f"{n_episodes} episodes", mechanism)
            folder, episodes_by_player = self.find_folder(mechanism), dict[PlayerMode, list[Episode]]()
            for name, mode in players:
                # The agents' state may have changed in a video or in another mode.
                self.parts.agents[0].load_state_dict(state)
                subfolder = folder if len(players) == 1 else folder / f"{name}_{mode}"
                trajectories = subfolder if self.settings.trajectories else None
                env, policy = self.parts.env, self.players[name]
                collector = build_recording_collector(env, policy, self.parts.device, trajectories)
                greedy, set_mechanism = mode == "deterministic", partial(self._set_mechanism, mechanism)
                episodes_by_player[name, mode] = evaluate_policy(
                    collector, n_episodes, self.seeds, greedy, prepare=set_mechanism, exactly=exactly
                )
                collector.close()
            episodes_by_mechanism.append(episodes_by_player)
        return episodes_by_mechanism

    def _report_activity(self, activity: str, mechanism: EvaluatedMechanism) -> None:
        """Report an activity if several mechanisms are compared; other evaluations are short."""
        if self.is_comparison:
            self.report(f"{activity}: {mechanism.title}")

    def _set_mechanism(self, mechanism: EvaluatedMechanism) -> None:
        """Set a mechanism and the context of the evaluation in the environment."""
        if mechanism.vector is not None:
            self.parts.env.set_mechanism(mechanism.vector)
        if self.context is not None:
            self.parts.env.set_context(self.context)


PLAYERS = ("student", "teacher", "oracle", "bot", "random")
_PLAYER_GROUPS = {"student": "agent", "teacher": "teacher"}
"""Player that may call a chat model -> its config group."""
BASELINE_POLICIES: Mapping[str, Callable[[EnvSpec], Policy]] = {"bot": BotPolicy, "random": RandomPolicy}
"""Player whose policy needs only the specification of the environment -> constructor of the policy."""


def build_players(names: Sequence[str], config: Config, parts: Parts) -> dict[str, Policy]:
    """Return the name of each player -> its policy, in the order of `names`.

    Args:
        names: names from `PLAYERS`.
        config: config of the run, with its teacher. An oracle uses the options `domain` and `parity` of the teacher.
        parts: parts of the run.

    Raises:
        ConfigError: a name is unknown, the run has no teacher that can play, or the environment has no oracle.
    """
    players: dict[str, Policy] = {}
    for name in names:
        if name not in PLAYERS:
            raise ConfigError(f"policy={name} is unknown; use {', '.join(PLAYERS)}, several with commas")
        if name == "student":
            players[name] = parts.agents[0].policy
        elif name in BASELINE_POLICIES:
            players[name] = BASELINE_POLICIES[name](parts.env.spec)
        elif name == "teacher":
            if parts.teacher is None or parts.teacher.policy is None:
                raise ConfigError("policy=teacher: this run has no teacher that can play; remove it")
            players[name] = parts.teacher.policy
        else:
            services = TeacherServices(parts.env.spec, Seeds(config["seed"]).child("oracle"))
            domain_options = {key: config["teacher"][key] for key in ("domain", "parity") if key in config["teacher"]}
            oracle_options = load_option("teacher", "oracle") | (
                domain_options if domain_options.get("domain") is not None else {}
            )
            players[name] = Builder(services, config["trusted_modules"]).build(oracle_options, "teacher").policy
    return players


def find_llm_players(names: Sequence[str], config: Config, llm: object) -> list[str]:
    """Return the players among `names` that call the chat model `llm`, except a teacher whose calls are free."""
    if not isinstance(llm, ChatClient):
        return []
    builder = Builder(trusted=config["trusted_modules"])
    llm_players = [
        name
        for name in names
        if name in _PLAYER_GROUPS and builder.needs(config[_PLAYER_GROUPS[name]], "llm", _PLAYER_GROUPS[name])
    ]
    may_be_paid = llm.provider.cost(10**6, 10**6) != 0  # the cost is None if prices are unknown
    return [name for name in llm_players if name == "student" or may_be_paid]


def describe_llm_calls(
    names: Sequence[str], parts: Parts, n_episodes: int, n_combinations: int, video_steps: int | None, n_videos: int = 1
) -> list[tuple[str, str]]:
    """Return the number of calls of players to a chat model and their cost, as pairs (label, text).

    Args:
        names: names of the players (`find_llm_players`).
        parts: parts of the evaluation.
        n_episodes: number of episodes of each player in each combination of a mode and a mechanism.
        n_combinations: number of these combinations.
        video_steps: number of steps of each video; 0: videos show none of the players. None: unknown.
        n_videos: number of videos.
    """
    from llmrl.experiment.plan import build_call_rows

    assert isinstance(parts.llm, ChatClient)
    video_text = "" if video_steps == 0 else f", and {n_videos} that {'is' if n_videos == 1 else 'are'} filmed"
    rows = [("model", parts.llm.label), ("episodes", f"{len(names) * n_combinations * n_episodes:,}{video_text}")]
    horizon, [agent] = parts.env.spec.horizon, parts.agents
    if names != ["student"] or not isinstance(agent, EstimatesCalls) or horizon is None or video_steps is None:
        return [*rows, ("LLM calls", "unknown, about one for each decision; calls (--calls) limits them")]
    play_estimate = agent.estimate(horizon, n_episodes)
    estimates = [play_estimate] * n_combinations + ([agent.estimate(video_steps, n_videos)] if video_steps else [])
    return [*rows, *build_call_rows(CallEstimate.add_up(estimates), parts.llm)]


def explain_exhausted_budget(error: BudgetExhausted) -> BudgetExhausted:
    """Return the error of an evaluation with an exhausted budget, with an explanation of what the user can do."""
    return BudgetExhausted(
        error.reached_limit,
        "All evaluations of a run share the budget of the run, and this one has saved no results. Paid replies are in "
        "the cache; play fewer episodes, or allow more replies with calls (--calls)",
    )
