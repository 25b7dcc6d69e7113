"""Pong against an opponent that follows the ball."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.arrays import ArrayGames, choices
from llmrl.envs.gym.tasks import canvas

WIDTH, HEIGHT = 800, 600
PADDLE_WIDTH, PADDLE, BALL = 10, 80, 10
PADDLE_SPEED, BALL_SPEED = 5, 5
GOAL_TEXT = (
    "You play Pong on a field of 800 x 600 pixels; x grows to the right and y downwards. Your paddle, 80 high, is at "
    "the left edge and moves up and down by 5 pixels a step; your opponent's is at the right edge. Where the ball "
    "meets a paddle decides how steeply it leaves.\n"
    "You get 1 each time you return the ball. The episode ends when either player misses it."
)
OBSERVATIONS = {
    "paddle_y": {"description": "middle of your paddle", "unit": "pixels", "range": [40, 560]},
    "ball_x": {"description": "left edge of the ball, 10 at your paddle", "unit": "pixels", "range": [-5, 795]},
    "ball_y": {"description": "upper edge of the ball", "unit": "pixels", "range": [-5, 605]},
    "ball_dx": {"description": "speed of the ball to the right", "unit": "pixels a step", "range": [-5, 5]},
    "ball_dy": {"description": "speed of the ball downwards", "unit": "pixels a step", "range": [-5, 5]},
}
ACTIONS = {"up": "move the paddle up by 5", "down": "move the paddle down by 5", "stay": "leave it where it is"}
_SHIFT = np.array([-PADDLE_SPEED, PADDLE_SPEED, 0.0])
_LOW = np.array([PADDLE / 2, -BALL_SPEED, -BALL_SPEED, -BALL_SPEED, -BALL_SPEED])
# A ball that is below the field (at most at HEIGHT) when it meets the lower end of a paddle is deflected further down.
# It then oscillates, as it changes its direction in every step in which it is outside.
_HIGH = np.array([HEIGHT - PADDLE / 2, WIDTH - BALL + BALL_SPEED, HEIGHT + BALL_SPEED, BALL_SPEED, BALL_SPEED])


class PongGames(ArrayGames):
    """Games of Pong on 800 x 600 pixels, y downwards; the player has the left paddle.

    The rules and random numbers are those of `Pong-v0`, published with ProPS (https://github.com/props-llm).

    **Observation.** Middle of the player's paddle, the ball's x and y and its speed along both axes, pixels and pixels
    a step, float32.

    **Action.** 0 up, 1 down, 2 stay; a paddle moves 5 pixels a step. The opponent's moves down if its middle is
    above the ball's upper edge, else up.

    **Reward.** 1 whenever the player returns the ball. Where it meets the paddle decides how steeply it leaves. A ball
    needs 308 steps for there and back, so 3 is the most in 1000 steps.

    **End.** A ball behind either paddle.

    Args:
        n: games.
        horizon: steps after which an episode is truncated; None: never.
    """

    def __init__(self, n: int, horizon: int | None = None) -> None:
        from gymnasium import spaces

        space = spaces.Box(_LOW.astype(np.float32), _HIGH.astype(np.float32), dtype=np.float32)
        super().__init__(n, space, spaces.Discrete(len(ACTIONS)), horizon)
        # Upper edges of the two paddles, then position and velocity of the ball.
        self._agent_y, self._opponent_y = np.zeros(n), np.zeros(n)
        self._x, self._y, self._dx, self._dy = (np.zeros(n) for _ in range(4))

    def begin(self, indices: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        self._agent_y[indices] = self._opponent_y[indices] = (HEIGHT - PADDLE) / 2
        self._x[indices], self._y[indices] = WIDTH / 2, HEIGHT / 2
        draws = np.array([(source.integers(2), source.uniform(-BALL_SPEED, BALL_SPEED)) for source in sources])
        draws = draws.reshape(-1, 2)
        self._dx[indices] = np.where(draws[:, 0] == 0, -BALL_SPEED, BALL_SPEED)
        self._dy[indices] = draws[:, 1]

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        top = HEIGHT - PADDLE
        agent_y = np.clip(self._agent_y + _SHIFT[choices(actions, len(ACTIONS))], 0, top)
        step = np.where(self._opponent_y + PADDLE / 2 < self._y, PADDLE_SPEED, -PADDLE_SPEED)
        opponent_y = np.clip(self._opponent_y + step, 0, top)
        x, y = self._x + self._dx, self._y + self._dy
        dx, dy = self._dx, np.where((y <= 0) | (y >= HEIGHT - BALL), -self._dy, self._dy)
        returns = (dx < 0) & (x <= PADDLE_WIDTH) & (agent_y <= y) & (y <= agent_y + PADDLE)
        opponent_returns = (
            (dx > 0) & (x >= WIDTH - PADDLE_WIDTH - BALL) & (opponent_y <= y) & (y <= opponent_y + PADDLE)
        )
        paddle = np.where(returns, agent_y, opponent_y)
        contact = returns | opponent_returns
        dy = np.where(contact, BALL_SPEED * (2 * (y - paddle) / PADDLE - 1), dy)
        dx = np.where(contact, -dx, dx)
        new_state = (agent_y, opponent_y, x, y, dx, dy)
        old_state = (self._agent_y, self._opponent_y, self._x, self._y, self._dx, self._dy)
        if playing is not None:
            new_state = tuple(
                np.where(playing, after, previous) for after, previous in zip(new_state, old_state, strict=True)
            )  # type: ignore[assignment]
        self._agent_y, self._opponent_y, self._x, self._y, self._dx, self._dy = new_state
        return returns.astype(np.float64), (x < 0) | (x > WIDTH - BALL)

    def observe(self) -> NDArray[np.float32]:
        observation = np.stack((self._agent_y + PADDLE / 2, self._x, self._y, self._dx, self._dy), axis=1)
        return observation.astype(np.float32)

    def render(self, index: int) -> NDArray[np.uint8]:
        """Return a frame of the field at half its size, [300, 400, 3]; the player's paddle is blue."""
        image = canvas.Canvas(WIDTH // 2, HEIGHT // 2, canvas.INK)
        image.box(0, self._agent_y[index] / 2, PADDLE_WIDTH / 2, PADDLE / 2, canvas.BLUE)
        right = (WIDTH - PADDLE_WIDTH) / 2
        image.box(right, self._opponent_y[index] / 2, PADDLE_WIDTH / 2, PADDLE / 2, canvas.RED)
        image.box(self._x[index] / 2, self._y[index] / 2, BALL / 2, BALL / 2, canvas.PAPER)
        return image.image
