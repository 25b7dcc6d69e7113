"""Controllers that worker processes import by name."""

import os
import sys
import time

import numpy as np

from llmrl.core.spaces import Parameter, ParameterSpace


class WeightedController:
    """Controller whose action is the sum of the observation times the weight of the game."""

    channel = "vector"

    def __init__(self, size: int) -> None:
        self.size = size
        self.space = ParameterSpace("weights", (Parameter("w", -10, 10, "", ""),))

    def act(self, observation, parameters):
        return np.repeat(parameters[:, :1] * observation.sum(axis=1, keepdims=True), self.size, axis=1)


class TorchFreeController(WeightedController):
    """Controller that fails if torch has been imported."""

    def act(self, observation, parameters):
        assert "torch" not in sys.modules, "torch was imported"
        return super().act(observation, parameters)


class ExitingController(WeightedController):
    """Controller that exits the process, unless it is the one in which the controller was created."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.home = os.getpid()

    def act(self, observation, parameters):
        if os.getpid() != self.home:
            os._exit(7)
        return super().act(observation, parameters)


class SlowController(WeightedController):
    def act(self, observation, parameters):
        time.sleep(0.05)
        return super().act(observation, parameters)


class FailingController(WeightedController):
    def act(self, observation, parameters):
        raise ZeroDivisionError("no such number")


class PixelController(WeightedController):
    channel = "pixels"
