"""Export of a trained agent to files that other programs run with PyTorch alone (`docs/with_other_tools.md`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmrl.api.trained_agents import Place, load_agent
from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError, Incompatible
from llmrl.evaluation.saved_runs import open_saved

FORMAT = 1
"""Version of the description."""
DESCRIPTION, WEIGHTS = "agent.json", "agent.safetensors"
_ACCEPTED = (
    "llmrl-export agent accepts the networks of PPO (agent=ppo, pg, ippo, mappo, gaussian_ppo, student_mlp, "
    "student_lstm, cleanup_society, harvest_society) with discrete actions or real numbers"
)


def export_agent(run: Place, out: Path | None = None, trusted: Sequence[str] = ()) -> list[Path]:
    """Write the trained agent of a run: `agent.json` and `agent.safetensors`.

    Args:
        run: run folder.
        out: folder of the two files, which is created; None: `<run>/agent`.
        trusted: packages outside llmrl that the run's config may name.

    Returns:
        The files.

    Raises:
        CheckpointError, RunFolderError: the folder is not a run folder, or has no intact checkpoint.
        ConfigError: the agent is of another kind, its config names code that is not trusted, or safetensors is not
            installed.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise ConfigError(
            f"llmrl-export agent needs safetensors, which cannot be imported ({error}): pip install 'llmrl[export]'"
        ) from error
    from llmrl.agents.ppo_agent import PPOAgent
    from llmrl.networks.layer_export import ActorLayers
    from llmrl.run.files import write_json

    folder = Path(run).expanduser()
    config = open_saved(folder, trusted).config
    target = config["agent"]["_target_"]
    kind = Builder(trusted=config["trusted_modules"]).locate(target, "agent")
    if not (isinstance(kind, type) and issubclass(kind, PPOAgent)):
        raise ConfigError(f"{folder} has an agent of the class {target}; {_ACCEPTED}")
    agent = load_agent(folder, trusted=trusted)
    policy, spec = agent.policy, agent.spec
    try:
        networks = [ActorLayers(network) for network in policy.members]
    except Incompatible as error:
        raise ConfigError(f"{folder}: {error}; {_ACCEPTED}") from error
    identities = policy.identity.tolist() if spec.n_players > 1 else [[]] * spec.n_agents
    numbers = spec.continuous_actions
    description = {
        "format": FORMAT,
        "environment": spec.name,
        "agents": {
            name: {"prefix": f"{i % len(networks)}/", "identity": identity}
            for i, (name, identity) in enumerate(zip(agent.names, identities, strict=True))
        },
        "observation": {
            name: {"shape": list(spec.observation[name].shape), "dtype": spec.observation[name].dtype}
            for name in policy.channels
        },
        "map": policy.members[0].image,
        "layers": networks[0].layers,
        "actions": list(spec.action_names)
        if numbers is None
        else [
            {"name": name, "low": low, "high": high}
            for name, low, high in zip(numbers.names, numbers.low, numbers.high, strict=True)
        ],
    }
    place = folder / "agent" if out is None else out
    place.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{i}/{name}": tensor.cpu().contiguous()
        for i, layers in enumerate(networks)
        for name, tensor in layers.tensors.items()
    }
    write_json(place / DESCRIPTION, description)
    save_file(tensors, place / WEIGHTS)
    return [place / DESCRIPTION, place / WEIGHTS]
