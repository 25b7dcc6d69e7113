"""Performance of teachers in the particle worlds: random actions, a planner with and without debate, and the oracle.

    python benchmarks/particle_teachers.py --games 1000

Returns are sums of 25 rewards on the scale of `mpe2`, averaged over agents (over the agents of each team in
simple_tag). The scripted planner is not a language model; it provides suboptimal plans.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from llmrl.core.seeding import Seeds
from llmrl.envs.particles.mpe_scenarios import SimpleReference, SimpleSpeakerListener, SimpleSpread, SimpleTag
from llmrl.envs.particles.scenario import Scenario
from llmrl.envs.particles.vec_env import ParticlesEnv
from llmrl.llms.by_name import chat_model
from llmrl.teachers.debate import Debate
from llmrl.teachers.domain import Domain
from llmrl.teachers.llm_planner import LLMPlanner, LLMPlannerSettings
from llmrl.teachers.planners import OraclePlanner, Planner
from llmrl.teachers.policy_teacher import PlanPolicy
from llmrl.teachers.teacher_factory import find_domain

SCENARIOS: dict[str, Scenario] = {
    "spread": SimpleSpread(),
    "tag": SimpleTag(),
    "reference": SimpleReference(),
    "reference4": SimpleReference(4),
    "speaker": SimpleSpeakerListener(),
    "speaker4": SimpleSpeakerListener(4),
}
TEACHERS = ("random", "scripted", "scripted+1", "scripted+2", "oracle")
"""Names of teachers; `+n` means n rounds of debate."""


def build_planner(teacher: str, domain: Domain, names: tuple[str, ...]) -> Planner:
    if teacher == "oracle":
        return OraclePlanner(domain)
    settings = LLMPlannerSettings(samples=1, repair_turns=1, prompt=None, parser="shared")
    planner = LLMPlanner(settings, domain, chat_model("scripted"))
    rounds = int(teacher.partition("+")[2] or 0)
    return Debate(planner, names, rounds) if rounds else planner


def play(scenario: Scenario, teacher: str, games: int, seed: int) -> tuple[np.ndarray, dict[str, float]]:
    """Play an episode in each game, and return the returns [games, n_agents] and metrics of episodes and planner."""
    env = ParticlesEnv(Seeds(seed), scenario, n_envs=games)
    spec, observation, rng = env.spec, env.reset(seed=seed), np.random.default_rng(seed)
    domain = find_domain(spec.name, spec=spec)
    plan_policy = PlanPolicy(build_planner(teacher, domain, spec.agent_names))
    legal = np.ones((spec.n_agents, spec.n_actions)) if scenario.legal_actions is None else scenario.legal_actions
    returns, metrics = np.zeros((games, spec.n_agents)), dict.fromkeys(spec.metrics, 0.0)
    for _ in range(spec.horizon or 25):
        if teacher == "random":
            advice = np.tile(legal / legal.sum(1, keepdims=True), (games, 1))
        else:
            advice = plan_policy.advise(plan_policy.scenes(observation))
        action = (advice.cumsum(1) <= rng.random(len(advice))[:, None] * (1 - 1e-6)).sum(1)
        step = env.step(action.reshape(games, -1))
        observation, returns = step.observation, returns + step.reward
        for name, value in step.info.items():
            previous = metrics[name] if spec.metrics[name] != "last" else 0.0
            metrics[name] = previous + float(value.mean()) / (25 if spec.metrics[name] == "mean" else 1)
    planner_metrics = {
        n: x
        for n, x in plan_policy.planner.metrics().items()
        if n in ("teacher/requested_states", "teacher/debate_changes")
    }
    return returns, metrics | planner_metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worlds", nargs="*", default=list(SCENARIOS), choices=SCENARIOS)
    parser.add_argument("--teachers", nargs="*", default=TEACHERS, choices=TEACHERS)
    options = parser.parse_args()
    for world in options.worlds:
        for teacher in options.teachers:
            start = time.perf_counter()
            returns, metrics = play(SCENARIOS[world], teacher, options.games, options.seed)
            seconds = time.perf_counter() - start
            team_returns = [returns[:, :3], returns[:, 3:]] if world == "tag" else [returns]
            means = [x.mean(1) for x in team_returns]
            cells = ", ".join(f"{x.mean():7.2f} ± {1.96 * x.std(ddof=1) / len(x) ** 0.5:4.2f}" for x in means)
            print(f"{world:11}{teacher:11}{cells}  {seconds:4.0f} s ", end="")
            print(", ".join(f"{name} {value:.3g}" for name, value in metrics.items()), flush=True)


if __name__ == "__main__":
    main()
