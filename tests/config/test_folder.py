"""Programs know their keys and groups, and explain them, by reading `conf/` alone."""

import pytest

from linear_transformers.config.folder import OF_FILES, Configurations
from linear_transformers.flags import CommandLine
from tests.conftest import CONF, PROJECT, composed

PRIMARY = """# Do a thing.
#
#   uv run thing.py size=3
defaults:
  - colour: red
  - paths: default
  - _self_

# what to do
size: ???                   # how large
name: null                  # unset, it has none
nested: {a: 1}
"""


@pytest.fixture
def conf(tmp_path) -> Configurations:
    files = {
        "thing.yaml": PRIMARY,
        "colour/red.yaml": "value: 1\n",
        "colour/blue.yaml": "# @package _global_\ndefaults:\n  - /shade: dark\nbrightness: 2\n",
        "colour/base/all.yaml": "x: 1\n",
        "shade/dark.yaml": "x: 1\n",
        "paths/default.yaml": "# @package _global_\npaths: {runs: x}\n",
        "other/one.yaml": "x: 1\n",
    }
    for name, text in files.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / name).write_text(text)
    return Configurations((tmp_path / "conf",), "thing")


def test_groups_are_those_of_the_defaults_and_what_their_files_bring(conf):
    assert conf.groups == ["colour", "shade"]
    assert conf.choices("colour") == ["blue", "red"]


def test_keys_are_the_programs_own_and_those_that_choices_bring(conf):
    assert conf.keys == {"size", "name", "nested", "colour", "shade", "paths", "brightness"}


def test_help_is_the_commented_file(conf):
    assert conf.help().splitlines() == [
        "Do a thing.", "", "  uv run thing.py size=3", "", "what to do",
        "  size=...                    how large",
        "  name=                       unset, it has none",
        "  nested={a: 1}", "",
        "groups, and their choices",
        "  colour               blue, red", "  shade                dark",
    ]  # fmt: skip


def test_a_further_folder_brings_its_choices(conf, tmp_path):
    (tmp_path / "mine/colour").mkdir(parents=True)
    (tmp_path / "mine/colour/green.yaml").write_text("value: 3\n")
    place = f"{tmp_path}/mine"
    for words in (
        ["--config-dir", place],
        [f"--config-dir={place}"],
        ["-cd", place],
        [f"-cd={place}"],
    ):
        line = CommandLine.of(["size=3", *words])
        both = Configurations.of("train", line.folder_of_ones_own)
        assert both.choices("colour") == ["green"]
        assert "linear" in both.choices("model")


def test_a_task_that_takes_no_options_has_a_file_without_any(conf, tmp_path):
    (tmp_path / "conf/thing").mkdir()
    (tmp_path / "conf/thing/mine.yaml").write_text("# It takes none.\n")
    assert conf.quoted(["size=3"]) == ["size=3"]
    assert "It takes none." in conf.help()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("sze=3", "Did you mean size?"), ("sze.x=3", "Did you mean size?"), ("+sze=3", "size"),
        ("~colur", "Did you mean colour?"), ("colur/x=3", "colour"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_refused_with_the_nearest(conf, word, said, raises_one_line):
    with raises_one_line(said):
        conf.check_keys([word])


def test_what_exists_is_not_refused(conf):
    conf.check_keys(["size=3", "nested.a=2", "colour=blue", "colour@x=blue", "hydra.run.dir=x",
                     "hydra/launcher=x", "a word", "~name"])  # fmt: skip


@pytest.mark.parametrize("program", ["train", "sample", "transcribe"])
def test_every_option_of_every_program_has_a_default_and_is_in_its_help(program):
    conf = Configurations((CONF,), program)
    lines = [line.strip() for line in conf.help().splitlines()]
    for file in (conf.primary, *conf.uses.values()):
        keys = [line.split(":")[0] for line in file.read_text().splitlines() if line[:1].isalpha()]
        for key in set(keys) - {"defaults", *OF_FILES}:
            assert any(line.startswith(f"{key}=") for line in lines), key
    assert f"uv run {program}.py" in conf.help()
    assert (PROJECT / f"{program}.py").is_file()


@pytest.mark.parametrize("program", Configurations.programs())
def test_help_says_where_runs_are_and_data_go(program):
    words = Configurations((CONF,), program).help()
    assert "paths.runs" in words
    assert ("paths.data=DIR" in words) == (program == "train")


def test_what_hydra_works_out_is_no_place_of_that_name(tmp_path):
    words = [f"paths.runs={tmp_path}/${{seed}}", f"hydra.sweep.dir={tmp_path}/s-${{now:%Y}}"]
    assert Configurations((CONF,), "train").quoted(words) == words
    (tmp_path / "${seed}").mkdir()
    assert Configurations((CONF,), "train").quoted(words[:1]) != words[:1]


def test_blanks_around_a_value_are_of_it():
    """Hydra leaves them out: stop='e ' would end a text within its first word."""
    words = Configurations((CONF,), "train").quoted(["group=e ", "run_id=\ta", "tags=[a, b]"])
    asked = composed(*words)
    assert (asked["group"], asked["run_id"], asked["tags"]) == ("e ", "\ta", ["a", "b"])


def test_blanks_around_lists_numbers_and_the_like_are_hydras():
    words = ["tags= [a,b]", "train= false", "group=null ", "optimizer.lr= 1e-3 ", "run_id= 'a'"]
    words = Configurations((CONF,), "train").quoted([*words, "seed=1,2 "])
    assert words[-1] == "seed=1,2 "
    asked = composed(*words[:-1])
    assert (asked["tags"], asked["train"], asked["group"]) == (["a", "b"], False, None)
    assert (asked["optimizer"]["lr"], asked["run_id"]) == (1e-3, "a")
