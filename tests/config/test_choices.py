"""What a configuration may name and say, and what becomes of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import torch
from pydantic import Field

from linear_transformers.attention import CausalAttention, LinearAttention
from linear_transformers.config import choices
from linear_transformers.config.choices import Choice, checked, checked_choice, options_of, plain
from linear_transformers.data import EspeakSpeech
from linear_transformers.feature_maps import Elu, FeatureMap

HERE = "tests.config.test_choices"
ELU = {"_target_": "linear_transformers.feature_maps.Elu"}
LINEAR = {"_target_": "linear_transformers.attention.LinearAttention", "feature_map": ELU}


class Part:
    free_options = frozenset({"speed"})

    def __init__(self, size: int, *, speed: str = "fast", share: float = 0.5):
        if share > 1:
            raise ValueError("share is at most 1.")
        self.size, self.speed, self.share = size, speed, share


class Larger(Part):
    def __init__(self, size: int, *, names: list[str] | None = None, **options: Any):
        super().__init__(size, **options)
        self.names = names


class Whole:
    def __init__(self, *, part: Callable[[int], Part], phi: FeatureMap | None = None):
        self.part, self.phi = part(3), phi


@dataclass(kw_only=True)
class Job:
    n: Annotated[int, Field(ge=1)]
    mode: Literal["a", "b"] = "a"
    whole: Choice[Whole] | None = None


@pytest.fixture(autouse=True)
def _allowed(monkeypatch):
    monkeypatch.setattr(choices, "_allowed", [HERE])


def test_values_are_converted_and_defaults_are_recorded():
    given = {"share": 1, "names": ("x",)}
    assert checked(Larger, given, "") == {"names": ["x"], "speed": "fast", "share": 1.0}
    assert isinstance(checked(Larger, given, "")["share"], float)


def test_options_that_a_class_hands_on_are_those_of_its_base():
    assert set(options_of(Larger)) == {"size", "names", "speed", "share"}
    assert {"root", "num_train", "batch_frames", "speeds", "seed"} <= set(options_of(EspeakSpeech))
    assert "train" not in options_of(EspeakSpeech)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"speeed": "x"}, ("part.speeed", "Did you mean speed?")),
        ({"share": "much"}, ("part.share='much'", "number")),
        ({"share": float("inf")}, ("part.share=inf", "finite")),
        ({"share": True}, ("part.share=True", "number")),
        ({"names": 3}, ("part.names=3", "a list, such as [3]")),
    ],
)
def test_what_a_signature_does_not_declare_is_refused(given, words, raises_one_line):
    with raises_one_line(*words):
        checked(Larger, given, "part")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ("n has no value", "n=...")),
        ({"n": 0}, ("n=0", "at least 1")),
        ({"n": 1, "mode": "c"}, ("mode='c'", "'a', 'b'")),
        ({"n": 1, "whole": {"x": 1}}, ("whole names no class",)),
        ({"n": 1, "whole": LINEAR}, ("makes no Whole",)),
    ],
)
def test_a_jobs_options_have_ranges_and_choices(given, words, raises_one_line):
    with raises_one_line(*words):
        checked(Job, given, "")


def test_a_callable_parameter_gets_a_factory_and_any_other_an_object():
    node = {
        "_target_": f"{HERE}.Whole",
        "part": {"_target_": f"{HERE}.Larger", "share": 0.25},
        "phi": {**ELU, "head_dim": 4},
    }
    whole = checked_choice(node, "whole", Whole)()
    assert (type(whole.part), whole.part.size, whole.part.share) == (Larger, 3, 0.25)
    assert isinstance(whole.phi, Elu)


def test_a_choice_is_plain_data_again_and_the_same_choice_from_it():
    choice = checked_choice(LINEAR, "model.mixer.attention", CausalAttention)
    data = choice.plain()
    assert data == {**LINEAR, "eps": 1e-6, "scale": 1.0, "kernel": "auto", "num_key_heads": None}
    assert checked_choice(data, "model.mixer.attention", CausalAttention) == choice
    assert isinstance(choice(2, 4), LinearAttention)
    assert plain({"a": (1, choice), "b_": None}) == {"a": [1, data], "b_": None}
    assert plain({"a": {0: 1, 4: 2}}) == {"a": {0: 1, 4: 2}}
    assert plain({"continue_": True}) == {"continue": True}  # which cannot be a parameter


def test_free_options_are_left_out_where_only_the_function_counts():
    node = {"_target_": f"{HERE}.Whole", "part": {"_target_": f"{HERE}.Part", "speed": "slow"}}
    choice = checked_choice(node, "whole", Whole).without_free_options()
    assert choice.plain()["part"] == {"_target_": f"{HERE}.Part", "share": 0.5}


def test_what_the_program_supplies_cannot_be_set(raises_one_line):
    choice = checked_choice({"_target_": f"{HERE}.Part", "size": 3}, "part", Part)
    assert choice().size == 3
    with raises_one_line("part.size is set by the program"):
        choice(size=4)
    with raises_one_line("part", "size"):
        choice(4)
    with raises_one_line("part", "size"):
        checked_choice({"_target_": f"{HERE}.Part"}, "part", Part)()


def test_an_option_can_be_replaced(raises_one_line):
    choice = checked_choice({"_target_": f"{HERE}.Part"}, "part", Part)
    assert choice.with_options(share=0.75)(1).share == 0.75
    with raises_one_line("share is at most 1."):
        choice.with_options(share=2)(1)
    with raises_one_line("part.shore"):
        choice.with_options(shore=2)
    nested = {"_target_": f"{HERE}.Whole", "part": {"_target_": f"{HERE}.Part", "speed": "slow"}}
    whole = checked_choice(nested, "whole", Whole).with_options(phi={**ELU, "head_dim": 4})
    assert (whole().part.speed, type(whole().phi)) == ("slow", Elu)


@pytest.mark.parametrize(
    "name",
    [
        "os.system", "torch.nn.Linear", "torch.load", "lightning.pytorch.Callback",
        "builtins.eval", "subprocess.Popen",
    ],
)  # fmt: skip
def test_classes_from_elsewhere_may_not_be_named(name, raises_one_line):
    with raises_one_line("may not be named"):
        checked_choice({"_target_": name}, "x", object)


def test_what_was_allowed_may_be_named_and_nothing_beside_it(raises_one_line):
    choices.allow("json.decoder.JSONDecoder", ELU["_target_"])
    assert choices.allowing() == ["allow=[json,tests]"]  # ours needs no leave
    checked_choice({"_target_": "json.decoder.JSONDecoder"}, "x", object)
    for name in ("json.decoder.JSONDecodeError", "json.encoder.JSONEncoder"):
        with raises_one_line(f"x._target_={name} may not be named", "allow=[json]"):
            checked_choice({"_target_": name}, "x", object)


def test_every_class_of_a_configuration_is_found():
    config = {"model": LINEAR, "callbacks": {"a": {"_target_": "a.B"}}, "more": [{"_target_": "c"}]}
    found = [LINEAR["_target_"], ELU["_target_"], "a.B", "c"]
    assert list(choices.classes_in(config)) == found


@pytest.mark.parametrize(
    "name",
    [
        "linear_transformers.runs.folder.Path", "linear_transformers.runs.folder.os",
        "linear_transformers.nothing.Here", "linear_transformers.data.Nothing",
        "linear_transformers.config.choices._join", "torch.optim.Nothing",
        "linear_transformers.runs.folder.os.system", "Elu", "", "a b.C", ".C", "a\nb.C",
    ],
)  # fmt: skip
def test_only_what_a_module_defines_can_be_named(name, raises_one_line):
    with raises_one_line("there is no such class"):
        checked_choice({"_target_": name}, "x", object)


def test_torchs_and_lightnings_own_refusals_say_where(raises_one_line):
    choice = checked_choice({"_target_": "torch.optim.SGD", "nesterov": True}, "optimizer", object)
    with raises_one_line("optimizer: Nesterov momentum requires"):
        choice([torch.nn.Parameter(torch.zeros(1))])
