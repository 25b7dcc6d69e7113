"""Components built from the shipped option files."""

from llmrl.config.builder import Builder
from llmrl.core.arguments import get_signature
from llmrl.core.option_files import get_root, load_option, read_file
from llmrl.core.services import SERVICE_NAMES
from llmrl.teachers.llm_planner import LLMPlanner, LLMPlannerSettings


def build_option(path, **arguments):
    """Build the shipped option `path`, e.g. `principal/ucb`, from services and changed options by name."""
    group, name = path.split("/")
    services = {key: value for key, value in arguments.items() if key in SERVICE_NAMES}
    options = {key: value for key, value in arguments.items() if key not in SERVICE_NAMES}
    return Builder(services).build({**load_option(group, name), **options}, group)


def build_settings(path, **options):
    """Return the settings object of the shipped option `path`, e.g. `env/escape_room`, with some options changed."""
    group, name = path.split("/")
    node, builder = {**load_option(group, name), **options}, Builder()
    settings = get_signature(builder.locate(node.pop("_target_"), group)).settings_class
    return builder.build({**node, "_target_": f"{settings.__module__}.{settings.__qualname__}"}, group)


def build_search_agent(name, spec, seeds=None, **options):
    """Build the policy search agent of the option `name`."""
    return build_option(f"agent/{name}", spec=spec, seeds=seeds, **options)


def build_llm_principal(spec, llm, **arguments):
    """Build `principal=llm`."""
    return build_option("principal/llm", spec=spec, llm=llm, **arguments)


def build_principal(name, spec, seeds, **arguments):
    """Build the principal of the option `name` for the mechanism of `spec`."""
    return build_option(f"principal/{name}", spec=spec, space=spec.proposal_space, seeds=seeds, **arguments)


def build_cem(space, seeds, **options):
    """Build `principal=cem`."""
    return build_option("principal/cem", space=space, seeds=seeds, **options)


def build_thompson(space, seeds, **options):
    """Build `principal=thompson`."""
    return build_option("principal/thompson", space=space, seeds=seeds, **options)


def build_ucb(space, seeds, **options):
    """Build `principal=ucb`."""
    return build_option("principal/ucb", space=space, seeds=seeds, **options)


def build_llm_planner(domain, llm, samples=10, repair_turns=1, prompt=None, parser="shared", **arguments):
    """Build the planner of `teacher=llm`."""
    return LLMPlanner(LLMPlannerSettings(samples, repair_turns, prompt, parser), domain, llm, **arguments)


def build_dataset(**options):
    """Build `dataset=random`."""
    return build_option("dataset/random", **options)


def build_rewards(**options):
    """Build the rewards of `conf/finetune.yaml`."""
    return Builder().build({**read_file(get_root() / "finetune.yaml")["rewards"], **options}, "rewards")
