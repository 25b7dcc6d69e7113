"""The layout of the `vector` channel of particle worlds.

`EnvSpec.observation["vector"].parts[i]` maps names to slices of agent i's vector. Positions, offsets and velocities
are pairs (x to the right, y up). Coordinates of start positions are in [-1, 1]. An offset is a position minus the
agent's own position. Entries for other agents are in the order of `EnvSpec.agent_names`.

| scenario, agent | name | entries | meaning |
| --- | --- | --- | --- |
| simple_spread, all | `velocity` | 2 | own velocity, units a second (a step is 0.1 s) |
| | `position` | 2 | own position |
| | `landmarks` | 2 each | offset to each landmark |
| | `agents` | 2 each | offset to each other agent |
| | `heard` | 2 each | zeros: there are no messages |
| simple_tag, all | `velocity`, `position` | 2 + 2 | own |
| | `obstacles` | 2 each | offset to each obstacle |
| | `adversaries` | 2 each | offset to each other adversary |
| | `good` | 2 each | offset to each other good agent |
| | `good_velocities` | 2 each | velocity of each other good agent |
| simple_reference, all | `velocity` | 2 | own |
| | `landmarks` | 6 | offset to the red, the green and the blue landmark |
| | `told_goal` | 3 | red, green, blue of the landmark that the next agent of the ring must reach |
| | `heard` | 10 each | the word each other agent said in this step, one-hot (zeros before the first step) |
| simple_speaker_listener, speaker | `told_goal` | 3 each | red, green, blue of each listener's landmark |
| simple_speaker_listener, listeners | `velocity` | 2 | own |
| | `landmarks` | 6 | offset to the red, the green and the blue landmark |
| | `heard` | 3 | the word the speaker said to this listener in this step, one-hot (zeros before the first step) |

Entries that no part covers are padding, always zero.
"""

from __future__ import annotations

from collections.abc import Mapping

Parts = Mapping[str, slice]


def parts(**sizes: int) -> Parts:
    """Return consecutive slices of the given lengths by name.

    >>> parts(velocity=2, position=2)
    {'velocity': slice(0, 2, None), 'position': slice(2, 4, None)}
    """
    result, start = {}, 0
    for name, size in sizes.items():
        result[name] = slice(start, start + size)
        start += size
    return result


def width(layouts: tuple[Parts, ...]) -> int:
    """Return the length of the longest of several agents' vectors."""
    return max(int(part.stop) for layout in layouts for part in layout.values())
