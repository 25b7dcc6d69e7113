"""Pong against an opponent that follows the ball."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched import BatchedGames, check_choices
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


class PongGames(BatchedGames):
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
        # Upper edges of the player's and the opponent's paddles, then position and velocity of the ball.
        self._state = np.zeros((6, n))

    def set_start_states(self, indices: NDArray[np.int64], rngs: Sequence[np.random.Generator]) -> None:
        draws = np.array([(rng.integers(2), rng.uniform(-BALL_SPEED, BALL_SPEED)) for rng in rngs]).reshape(-1, 2)
        start = np.array([(HEIGHT - PADDLE) / 2, (HEIGHT - PADDLE) / 2, WIDTH / 2, HEIGHT / 2])
        self._state[:4, indices] = start[:, None]
        self._state[4, indices] = np.where(draws[:, 0] == 0, -BALL_SPEED, BALL_SPEED)
        self._state[5, indices] = draws[:, 1]

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        player_y, opponent_y, x, y, dx, dy = self._state
        top = HEIGHT - PADDLE
        player_y = np.clip(player_y + _SHIFT[check_choices(actions, len(ACTIONS))], 0, top)
        opponent_shift = np.where(opponent_y + PADDLE / 2 < y, PADDLE_SPEED, -PADDLE_SPEED)
        opponent_y = np.clip(opponent_y + opponent_shift, 0, top)
        x, y = x + dx, y + dy
        dy = np.where((y <= 0) | (y >= HEIGHT - BALL), -dy, dy)
        returns = (dx < 0) & (x <= PADDLE_WIDTH) & (player_y <= y) & (y <= player_y + PADDLE)
        opponent_returns = (
            (dx > 0) & (x >= WIDTH - PADDLE_WIDTH - BALL) & (opponent_y <= y) & (y <= opponent_y + PADDLE)
        )
        paddle_y = np.where(returns, player_y, opponent_y)
        contact = returns | opponent_returns
        dy = np.where(contact, BALL_SPEED * (2 * (y - paddle_y) / PADDLE - 1), dy)
        dx = np.where(contact, -dx, dx)
        state = np.array((player_y, opponent_y, x, y, dx, dy))
        self._state = state if playing is None else np.where(playing, state, self._state)
        return returns.astype(np.float64), (x < 0) | (x > WIDTH - BALL)

    def observe(self) -> NDArray[np.float32]:
        player_y, _, *ball = self._state
        return np.stack((player_y + PADDLE / 2, *ball), axis=1).astype(np.float32)

    def render(self, index: int) -> NDArray[np.uint8]:
        """Return a frame of the field at half its size, [300, 400, 3]; the player's paddle is blue."""
        player_y, opponent_y, x, y = self._state[:4, index] / 2
        image = canvas.Canvas(WIDTH // 2, HEIGHT // 2, canvas.INK)
        image.box(0, player_y, PADDLE_WIDTH / 2, PADDLE / 2, canvas.BLUE)
        image.box((WIDTH - PADDLE_WIDTH) / 2, opponent_y, PADDLE_WIDTH / 2, PADDLE / 2, canvas.RED)
        image.box(x, y, BALL / 2, BALL / 2, canvas.PAPER)
        return image.image
