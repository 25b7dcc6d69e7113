"""Environments as arrays: many games in lock step, each equal to Gymnasium's own at every step."""

from collections.abc import Mapping

_BATCHED = "llmrl.envs.gym.batched"
_TASKS = "llmrl.envs.gym.tasks"

BATCHED: Mapping[str, str] = {
    "CartPole-v1": f"{_BATCHED}.classic_control:CartPoleGames",
    "MountainCar-v0": f"{_BATCHED}.classic_control:MountainCarGames",
    "MountainCarContinuous-v0": f"{_BATCHED}.classic_control:MountainCarContinuousGames",
    "FrozenLake-v1": f"{_BATCHED}.tabular_games:frozen_lake_games",
    "FrozenLake8x8-v1": f"{_BATCHED}.tabular_games:frozen_lake_games",
    "CliffWalking-v1": f"{_BATCHED}.tabular_games:cliff_walking_games",
    "CliffWalkingSlippery-v1": f"{_BATCHED}.tabular_games:cliff_walking_games",
    "Taxi-v4": f"{_BATCHED}.tabular_games:taxi_games",
    "llmrl/Maze-v0": f"{_TASKS}.maze:MazeGames",
    "llmrl/Nim-v0": f"{_TASKS}.nim:nim_games",
    "llmrl/Navigation-v0": f"{_TASKS}.navigation:NavigationGames",
    "llmrl/Pong-v0": f"{_TASKS}.pong:PongGames",
}
"""Gymnasium's id -> `module:function` that makes games, given their number, a horizon and arguments of the
environment. It returns None if there is no engine with these arguments."""
