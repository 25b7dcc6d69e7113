"""Pong against an opponent that follows the ball."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.array_games import check_discrete_actions
from llmrl.envs.gym.batched import BatchedGames
from llmrl.envs.gym.tasks import canvas

# Sizes in pixels, speeds in pixels per step.
WIDTH, HEIGHT = 800, 600
PADDLE_WIDTH, PADDLE_HEIGHT, BALL_SIZE = 10, 80, 10
PADDLE_SPEED, BALL_SPEED = 5, 5
GOAL_TEXT = (
    "You play Pong on a field of 800 x 600 pixels; x grows to the right and y downwards. Your paddle, 80 high, is at "
    "the left edge and moves up and down by 5 pixels a step; your opponent's is at the right edge. Where the ball "
    "meets a paddle decides how steeply it leaves.\n"
    "You get 1 each time you return the ball. The episode ends when either player misses it."
)
OBSERVATION_SCHEMA = {
    "paddle_y": {"description": "middle of your paddle", "unit": "pixels", "range": [40, 560]},
    "ball_x": {"description": "left edge of the ball, 10 at your paddle", "unit": "pixels", "range": [-5, 795]},
    "ball_y": {"description": "upper edge of the ball", "unit": "pixels", "range": [-5, 605]},
    "ball_dx": {"description": "speed of the ball to the right", "unit": "pixels a step", "range": [-5, 5]},
    "ball_dy": {"description": "speed of the ball downwards", "unit": "pixels a step", "range": [-5, 5]},
}
ACTION_SCHEMA = {"up": "move the paddle up by 5", "down": "move the paddle down by 5", "stay": "leave it where it is"}
_PADDLE_SHIFTS = np.array([-PADDLE_SPEED, PADDLE_SPEED, 0.0])
_MIN_OBSERVATION = np.array([PADDLE_HEIGHT / 2, -BALL_SPEED, -BALL_SPEED, -BALL_SPEED, -BALL_SPEED])
# A paddle can deflect a ball that is below the field (y at most HEIGHT) further down, by up to BALL_SPEED. In each
# following step outside the field, the ball reverses its vertical direction, so its y does not exceed this bound.
_MAX_OBSERVATION = np.array(
    [HEIGHT - PADDLE_HEIGHT / 2, WIDTH - BALL_SIZE + BALL_SPEED, HEIGHT + BALL_SPEED, BALL_SPEED, BALL_SPEED]
)


class PongGames(BatchedGames):
    """Parallel copies of Pong on a field of 800 x 600 pixels, y downwards; the player has the left paddle.

    The rules and random numbers are those of `Pong-v0`, published with ProPS (https://github.com/props-llm).

    **Observation.** [n, 5] float32: y of the middle of the player's paddle, x and y of the ball, in pixels, and the
    ball's velocity along x and y, in pixels per step.

    **Action.** 0 up, 1 down, 2 stay; a paddle moves 5 pixels per step. The opponent's paddle moves down if its middle
    is above the ball's upper edge, else up.

    **Reward.** 1 in each step in which the player's paddle hits the ball. The vertical velocity after a hit depends on
    its position on the paddle. The ball takes 308 steps to return to the player, so 1000 steps give at most 3.

    **End.** An episode terminates when the ball passes either paddle.

    Args:
        n: number of copies.
        horizon: steps after which an episode is truncated; None: never.
    """

    def __init__(self, n: int, horizon: int | None = None) -> None:
        from gymnasium import spaces

        space = spaces.Box(_MIN_OBSERVATION.astype(np.float32), _MAX_OBSERVATION.astype(np.float32), dtype=np.float32)
        super().__init__(n, space, spaces.Discrete(len(ACTION_SCHEMA)), horizon)
        # Upper edges of the player's and the opponent's paddles, then position and velocity of the ball.
        self._state = np.zeros((6, n))

    def set_start_states(self, indices: NDArray[np.int64], rngs: Sequence[np.random.Generator]) -> None:
        samples = np.array([(rng.integers(2), rng.uniform(-BALL_SPEED, BALL_SPEED)) for rng in rngs]).reshape(-1, 2)
        start = np.array([(HEIGHT - PADDLE_HEIGHT) / 2, (HEIGHT - PADDLE_HEIGHT) / 2, WIDTH / 2, HEIGHT / 2])
        self._state[:4, indices] = start[:, None]
        self._state[4, indices] = np.where(samples[:, 0] == 0, -BALL_SPEED, BALL_SPEED)
        self._state[5, indices] = samples[:, 1]

    def advance(self, actions: Any, active: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        player_y, opponent_y, x, y, dx, dy = self._state
        max_y = HEIGHT - PADDLE_HEIGHT
        player_y = np.clip(player_y + _PADDLE_SHIFTS[check_discrete_actions(actions, len(ACTION_SCHEMA))], 0, max_y)
        opponent_shift = np.where(opponent_y + PADDLE_HEIGHT / 2 < y, PADDLE_SPEED, -PADDLE_SPEED)
        opponent_y = np.clip(opponent_y + opponent_shift, 0, max_y)
        x, y = x + dx, y + dy
        dy = np.where((y <= 0) | (y >= HEIGHT - BALL_SIZE), -dy, dy)
        player_hits = (dx < 0) & (x <= PADDLE_WIDTH) & (player_y <= y) & (y <= player_y + PADDLE_HEIGHT)
        opponent_hits = (
            (dx > 0) & (x >= WIDTH - PADDLE_WIDTH - BALL_SIZE) & (opponent_y <= y) & (y <= opponent_y + PADDLE_HEIGHT)
        )
        paddle_y = np.where(player_hits, player_y, opponent_y)
        is_hit = player_hits | opponent_hits
        dy = np.where(is_hit, BALL_SPEED * (2 * (y - paddle_y) / PADDLE_HEIGHT - 1), dy)
        dx = np.where(is_hit, -dx, dx)
        state = np.array((player_y, opponent_y, x, y, dx, dy))
        self._state = state if active is None else np.where(active, state, self._state)
        return player_hits.astype(np.float64), (x < 0) | (x > WIDTH - BALL_SIZE)

    def observe(self) -> NDArray[np.float32]:
        player_y, _, *ball = self._state
        return np.stack((player_y + PADDLE_HEIGHT / 2, *ball), axis=1).astype(np.float32)

    def render(self, index: int) -> NDArray[np.uint8]:
        """Return a frame at half the size of the field, [300, 400, 3] uint8; the player's paddle is blue."""
        player_y, opponent_y, x, y = self._state[:4, index] / 2
        drawing = canvas.Canvas(WIDTH // 2, HEIGHT // 2, canvas.INK)
        drawing.draw_rectangle(0, player_y, PADDLE_WIDTH / 2, PADDLE_HEIGHT / 2, canvas.BLUE)
        drawing.draw_rectangle((WIDTH - PADDLE_WIDTH) / 2, opponent_y, PADDLE_WIDTH / 2, PADDLE_HEIGHT / 2, canvas.RED)
        drawing.draw_rectangle(x, y, BALL_SIZE / 2, BALL_SIZE / 2, canvas.PAPER)
        return drawing.image
