"""Names of observation elements and of policy outputs, from the text interface of the environment, for prompts."""

from __future__ import annotations

from collections.abc import Sequence

from llmrl.core.errors import IncompatibilityReason, Incompatible
from llmrl.core.spaces import EnvSpec

MAX_LISTED_NAMES = 12
"""Maximum number of names in a list; the middle of longer lists is omitted."""


def count_inputs(spec: EnvSpec, consumer: str) -> int:
    """Return the length of the channel `vector`.

    Raises:
        Incompatible: there is no such channel; the message names the `consumer` that needs it.
    """
    if "vector" not in spec.observation:
        raise Incompatible(
            IncompatibilityReason.INTERFACE,
            f"{consumer} needs the channel vector, but env={spec.name} has only {', '.join(spec.observation)}; use an "
            "environment with that channel, or agent=llm_player if there are texts",
        )
    return int(spec.observation["vector"].shape[0])


def count_states(spec: EnvSpec, consumer: str) -> int:
    """Return the number of states in the channel `state`.

    Raises:
        Incompatible: there is no such channel; the message names the `consumer` that needs it.
    """
    if "state" not in spec.observation:
        raise Incompatible(
            IncompatibilityReason.INTERFACE,
            f"{consumer} needs a discrete observation (the channel state), but env={spec.name} has only "
            f"{', '.join(spec.observation)}; discretize numbers with agent.bins, or use agent=linear or "
            "agent=mlp_policy",
        )
    return int(spec.observation["state"].high) + 1


def describe_states(spec: EnvSpec) -> str:
    """Return a line that explains state indices, from `EnvDescription.states`; "" if that is missing or empty."""
    states_text = "" if spec.text is None else spec.text.states
    operator_note = " (// divides without a remainder, % is the remainder)" if "%" in states_text else ""
    return f"In state s: {states_text}{operator_note}.\n" if states_text else ""


def list_input_names(spec: EnvSpec) -> tuple[str, ...]:
    """Return a name for each element of the channel `vector`: state, field of the text, or `observation[i]`."""
    n_elements = int(spec.observation["vector"].shape[0])
    if "state" in spec.observation:
        return tuple(f"in state {i}" for i in range(n_elements))
    field_names = [] if spec.text is None else [name for name, _ in spec.text.observation]
    # Fields with subfields (`field.subfield`) are omitted: only subfields are elements of the vector.
    leaf_names = [name for name in field_names if not any(other.startswith(f"{name}.") for other in field_names)]
    if len(leaf_names) == n_elements:
        return tuple(leaf_names)
    names = [f"observation[{i}]" for i in range(n_elements)]
    for parts in spec.observation["vector"].parts[:1]:
        for name, index_slice in parts.items():
            element_indices = range(*index_slice.indices(n_elements))
            for k, i in enumerate(element_indices):
                names[i] = name if len(element_indices) == 1 else f"{name}[{k}]"
    return tuple(names)


def list_output_names(spec: EnvSpec) -> tuple[str, ...]:
    """Return a name for each output: that of a discrete action, or that of a number in a continuous action."""
    if spec.continuous_actions is not None:
        return spec.continuous_actions.names
    return tuple(format_action_label(spec, i) for i in range(spec.n_actions))


def format_action_label(spec: EnvSpec, action: int) -> str:
    """Return the index of an action, with its name if that is not the index."""
    name = spec.action_names[action]
    return str(action) if name == str(action) else f"{action} ({name})"


def join_abbreviated(names: Sequence[str]) -> str:
    """Join names with commas; the middle of a long list is omitted."""
    if len(names) <= MAX_LISTED_NAMES:
        return ", ".join(names)
    n_names_per_end = MAX_LISTED_NAMES // 2
    return f"{', '.join(names[:n_names_per_end])}, ..., {', '.join(names[-n_names_per_end:])}"


def format_indices(first: int, last: int) -> str:
    """Return `params[3]`, `params[3] and params[4]`, or `params[3] to params[7]`."""
    conjunction = " and " if last == first + 1 else " to "
    return f"params[{first}]" if first == last else f"params[{first}]{conjunction}params[{last}]"
