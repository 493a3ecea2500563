"""What is written for Hydra to read comes back as it was."""

from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from linear_transformers.config.messages import in_quotes, override, without_interpolation

# What Hydra and OmegaConf have a meaning for, beside any other character.
TEXTS = st.text(st.sampled_from("\\'\"${}[](),=: \n\ta") | st.characters(codec="utf-8"))


def parsed(word: str) -> str:
    return OverridesParser.create().parse_override(word).value()


@given(TEXTS.map("' {}".format))
@example("C:\\runs\\new one")  # backslashes were doubled
@example("it's\\")
def test_an_override_that_needs_quotes_has_its_value(text):
    assert parsed(override("key", text)) == text


@given(TEXTS)
@example("${oc.env:HOME}")
@example("\\${a}")
@example("null")
@example("")
def test_a_text_in_quotes_is_that_text(text):
    value = parsed(f"key={in_quotes(without_interpolation(text))}")
    found = OmegaConf.to_container(OmegaConf.create({"key": value}), resolve=True)
    assert found == {"key": text}
