"""Hydra's own flags, told from the other words of a command line."""

import pytest
from hydra._internal.utils import get_args_parser

from linear_transformers.flags import CommandLine, _hydras


def test_the_flags_are_hydras():
    def of(parser):
        flags = (x for x in parser._actions if x.option_strings)
        return {tuple(x.option_strings): (x.nargs, x.const, x.choices) for x in flags}

    theirs = of(get_args_parser())
    theirs[("--version",)] = (0, True, None)  # it prints at once
    assert of(_hydras()) == theirs


@pytest.mark.parametrize("typed", ["-m", "--multi", "--multirun"])
def test_flags_stand_anywhere_and_may_be_shortened(typed):
    line = CommandLine.of(["seed=1", typed, "x=2", "-cd", "mine", "~model", "--resolve"])
    assert line.words == ["seed=1", "x=2", "~model"]
    assert line.folder_of_ones_own == "mine"
    assert CommandLine.of(line.typed_flags) == CommandLine(line.flags, [])
    assert line.flags == {"multirun": True, "config-dir": "mine", "resolve": True}


@pytest.mark.parametrize("words", [["-i"], ["--info", "all"], ["--info=all"]])
def test_a_value_may_be_left_out(words):
    assert CommandLine.of(words).typed_flags == ["--info=all"]


def test_what_is_no_flag_of_hydras_is_a_word():
    words = ["--lr", "3", "-x", "-1", "a b", ""]
    assert CommandLine.of(words) == CommandLine({}, words)
