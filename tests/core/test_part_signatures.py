"""Parts whose options are the fields of one settings object."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from llmrl.config.builder import Builder
from llmrl.core.arguments import get_signature
from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt

MODULE = __name__


@dataclass(frozen=True)
class Width:
    width: PositiveInt


@dataclass(frozen=True)
class NetworkSettings(Width):
    """Settings with an inherited field and a default."""

    names: list[str]
    depth: PositiveInt = 1


class Network:
    def __init__(self, settings: NetworkSettings, device: str, extra: bool = False) -> None:
        self.settings, self.device, self.extra = settings, device, extra


class Ambiguous:
    def __init__(self, settings: NetworkSettings, width: int) -> None: ...


def node(**options) -> dict:
    return {"_target_": f"{MODULE}.Network", **options}


@pytest.fixture
def builder() -> Builder:
    return Builder({"device": "cpu"}, (MODULE,))


def test_options_become_settings_fields(builder):
    network = builder.build(node(width=3, names=["a"], extra=True), "agent")
    assert network.settings == NetworkSettings(width=3, names=["a"]) and network.extra and network.device == "cpu"


@pytest.mark.parametrize(
    ("options", "place"),
    [({"width": 0, "names": []}, "agent.width"), ({"width": 1, "names": [1]}, "agent.names"), ({"names": []}, "width")],
)
def test_fields_are_validated_by_name(builder, options, place):
    with pytest.raises(ConfigError, match=place):
        builder.build(node(**options), "agent")


@pytest.mark.parametrize("option", ["settings", "height"])
def test_only_fields_are_options(builder, option):
    for action in (builder.build, builder.validate):
        with pytest.raises(ConfigError, match=f"'{option}'"):
            action(node(width=1, names=[], **{option: 1}), "agent")


def test_fields_are_signature_parameters():
    signature = get_signature(Network)
    assert list(signature.parameters) == ["device", "extra", "width", "names", "depth"]
    assert signature.hints["width"] == PositiveInt and signature.settings_class is NetworkSettings


def test_field_names_are_unique():
    with pytest.raises(TypeError, match="width"):
        get_signature(Ambiguous)
