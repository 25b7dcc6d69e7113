"""What the entries of an observation and the outputs of a policy are called, from the environment's own words."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.core.errors import Incompatible, Misfit
from llmrl.core.spaces import EnvSpec

SHOWN = 12
"""Names of a list that are written out; of longer ones the first and the last few."""


def n_inputs(spec: EnvSpec, who: str) -> int:
    """Numbers of the channel `vector`.

    Raises:
        ConfigError: there is no such channel.
    """
    if "vector" not in spec.observation:
        raise Incompatible(
            Misfit.INTERFACE,
            f"{who} reads an observation of numbers, and env={spec.name} shows {', '.join(spec.observation)}; use an "
            "environment with the channel vector, or agent=llm_player where it is put into words",
        )
    return int(spec.observation["vector"].shape[0])


def n_states(spec: EnvSpec, who: str) -> int:
    """States that the channel `state` tells apart.

    Raises:
        ConfigError: there is no such channel.
    """
    if "state" not in spec.observation:
        raise Incompatible(
            Misfit.INTERFACE,
            f"{who} has an entry for every state, and the observation of env={spec.name} is not the number of a state "
            f"(a Discrete space); it shows {', '.join(spec.observation)}: cut numbers into bins with agent.bins, or "
            "use agent=linear or agent=mlp_policy",
        )
    return int(spec.observation["state"].high) + 1


def states_told(spec: EnvSpec) -> str:
    """A line that says which state is which, where the environment does; else nothing."""
    rule = "" if spec.text is None else spec.text.states
    signs = " (// divides without a remainder, % is the remainder)" if "%" in rule else ""
    return f"In state s: {rule}{signs}.\n" if rule else ""


def input_names(spec: EnvSpec) -> tuple[str, ...]:
    """A name for each entry of the channel `vector`: the environment's own where there is one for each."""
    n = int(spec.observation["vector"].shape[0])
    if "state" in spec.observation:
        return tuple(f"in state {i}" for i in range(n))
    told = [] if spec.text is None else [name for name, _ in spec.text.observation]
    # A thing with parts is listed before them.
    leaves = [name for name in told if not any(other.startswith(f"{name}.") for other in told)]
    if len(leaves) == n:
        return tuple(leaves)
    names = [f"observation[{i}]" for i in range(n)]
    for parts in spec.observation["vector"].parts[:1]:
        for name, part in parts.items():
            entries = range(*part.indices(n))
            for k, i in enumerate(entries):
                names[i] = name if len(entries) == 1 else f"{name}[{k}]"
    return tuple(names)


def output_names(spec: EnvSpec) -> tuple[str, ...]:
    """A name for each output: the number of an action with what it does, or what a number of the action is called."""
    if spec.continuous_actions is not None:
        return spec.continuous_actions.names
    return tuple(action_name(spec, i) for i in range(spec.n_actions))


def action_name(spec: EnvSpec, action: int) -> str:
    """The number of an action, with its name where it has one."""
    name = spec.action_names[action]
    return str(action) if name == str(action) else f"{action} ({name})"


def listed(names: Sequence[str]) -> str:
    """Names with commas between them; the middle of a long list is left out."""
    if len(names) <= SHOWN:
        return ", ".join(names)
    half = SHOWN // 2
    return f"{', '.join(names[:half])}, ..., {', '.join(names[-half:])}"


def indices(first: int, last: int) -> str:
    """`params[3]`, `params[3] and params[4]`, or `params[3] to params[7]`."""
    joint = " and " if last == first + 1 else " to "
    return f"params[{first}]" if first == last else f"params[{first}]{joint}params[{last}]"
