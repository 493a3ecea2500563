"""Exported models beside the project's own step: size, time, and what int8 costs.

    uv run --group dev python -m benchmarks.export RUN [RUN ...]
    uv run --group dev python -m benchmarks.export pretrained/digits pretrained/mnist-small

Models of images, on one thread: a step of one sequence and of sixteen, the upper half of an image
at once, and the bits/dim of test images. The page's step is timed in node. Then one layer over a
long sequence: the `Scan` that prefill.onnx is, and the operator LinearAttention of ONNX 27, as it
is in the standard and in onnxruntime's own domain.
"""

import copy
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnx import TensorProto, helper

from benchmarks.precision import stepped_bits
from benchmarks.record import Measurement
from benchmarks.usage import count, parser_of, trained_models
from linear_transformers.attention import LinearAttention
from linear_transformers.data.sequences import to_sequences
from linear_transformers.export import onnx
from linear_transformers.export.operator import SequencesByOperator
from linear_transformers.export.page import page_of
from linear_transformers.export.steps import SequenceStep
from linear_transformers.feature_maps import Elu
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.models import AutoregressiveTransformer, Transformer
from linear_transformers.pictures.tables import markdown
from linear_transformers.sampling import CompiledStepper
from linear_transformers.tasks.image_generation.model import ImageModel

Row = dict[str, Any]
BATCHES = (1, 16)
LENGTH, HEADS, WIDTH = 3072, 4, 32
REPEATS, SECONDS = 5, 0.5
# Reads a page from standard input, and prints the milliseconds of a step of its model.
NODE = """
const page = require("fs").readFileSync(0, "utf8");
const part = (id) => page.split(`id="${id}">`)[1].split("</script>")[0];
const script = page.split("<script>").pop().split("</script>")[0];
const { Engine, bytesOf } = new Function(
  "module", script.split("// What the pages of images")[0] + "; return module.exports;")({});
const engine = new Engine(JSON.parse(part("model")), bytesOf(part("weights")).buffer);
const length = engine.model.positions.max_length;
const run = () => {
  const state = engine.start(), begin = performance.now();
  for (let i = 0; i < length; ++i) engine.step(i % 2, state);
  return (performance.now() - begin) / length;
};
for (let i = 0; i < 10; ++i) run();
const times = Array.from({ length: 11 }, run).sort((a, b) => a - b);
console.log(times[5]);
"""


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("ckpts", nargs="+", help="runs, checkpoints or exported models, of images")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are")
    parser.add_argument("--data-root", help="where the models' data are, if they moved")
    parser.add_argument("--images", type=count, default=1000, help="test images, at most")
    options = parser.parse_args()
    if shutil.which("node") is None:
        raise SystemExit("error: node is not installed, in which a step of the page is timed.")
    torch.set_num_threads(1)
    found = trained_models(options.ckpts, options.runs, ImageModel, "images")
    models = dict(zip(options.ckpts, found, strict=True))
    seeds = (model.config["seed"] for model in models.values())
    measurement = Measurement("export-cpu", "Exported models", device="cpu", seeds=seeds)
    rows: list[Row] = []
    for ckpt, model in models.items():
        root = options.data_root if "root" in model.data.options else None
        images = model.images("test", data_root=root)[: options.images]
        values = to_sequences(images).long()
        for row in measured(model, values):
            rows.append({"model": ckpt, "images": len(values), **row})
            print(row, flush=True)
    caption = f"A sequence of {LENGTH} through one layer of {HEADS} heads of {WIDTH}."
    summary = {"caption": caption, "rows": list(operators())}
    sources = [
        {"run": ckpt, "seed": model.config["seed"], "starts": [model.history["provenance"]]}
        for ckpt, model in models.items()
    ]
    path = measurement.save(rows, summary=summary, sources=sources)
    print(f"{markdown(rows)}\n\n{markdown(summary['rows'])}\n{path}")


def measured(trained: ImageModel, values: torch.Tensor) -> Iterator[Row]:
    """Yield a row for each form of a model."""
    task = trained.task
    for precision in ("float32", "int8"):
        stepper = CompiledStepper(copy.deepcopy(task.model), precision)
        bits = torch.cat(
            [stepped_bits(stepper, task.distribution, part) for part in values.split(128)]
        )
        yield {"form": "compiled step", "weights": precision, **_of_stepper(stepper, values)} | {
            "bits_per_dim": round(bits.mean().item(), 5)
        }
    ways = {"onnxruntime": None, "onnxruntime, by LinearAttention": SequencesByOperator(task.model)}
    for form, sequences in ways.items():
        for precision in ("float32", "int8"):
            files = onnx.files(
                SequenceStep(task.model),
                distribution=None,
                about={},
                precision=precision,
                sequences=sequences,
            )
            yield {"form": form, "weights": precision, **_of_onnx(files, trained, values)}
    page = page_of(task.model, task.distribution, task.shape, title="", about="")
    timed = subprocess.run(
        ["node", "-e", NODE], input=page, capture_output=True, text=True, check=True
    )
    yield {
        "form": "page, in node",
        "weights": "int8",
        "megabytes": round(len(page) / 1e6, 2),
        "milliseconds_of_1": round(float(timed.stdout), 3),
    }


def _of_stepper(stepper: CompiledStepper, values: torch.Tensor) -> Row:
    row: Row = {}
    with torch.inference_mode():
        for batch in BATCHES:
            token = torch.zeros(batch, dtype=torch.long)
            state = [stepper.model.init_state(batch)]

            def step(token=token, state=state, batch=batch) -> None:
                if state[0].position + 1 >= values.shape[1]:
                    state[0] = stepper.model.init_state(batch)
                state[0] = stepper.step(token, state[0])[1]

            row[f"milliseconds_of_{batch}"] = milliseconds(step)
        half = stepper.model.with_start(values[:1, : values.shape[1] // 2])
        row["milliseconds_of_half"] = milliseconds(lambda: stepper.prefill(half))
    return row


def _of_onnx(files: dict[str, bytes], trained: ImageModel, values: torch.Tensor) -> Row:
    model = trained.task.model
    step, prefill = (session(files[name]) for name in (onnx.STEP, onnx.PREFILL))
    row: Row = {"megabytes": round(len(files[onnx.STEP]) / 1e6, 2)}
    states = SequenceStep(model).states
    start = {"position": np.zeros(1, np.int64)}

    def empty(batch: int) -> dict[str, np.ndarray]:
        return {name: np.zeros((batch, *x.shape[1:]), np.float32) for name, x in states.items()}

    for batch in BATCHES:
        given = {"token": np.zeros(batch, np.int64), **start, **empty(batch)}
        row[f"milliseconds_of_{batch}"] = milliseconds(lambda given=given: step.run(None, given))
    half = model.with_start(values[:1, : values.shape[1] // 2]).numpy()
    given = {"token": half, **start, **empty(1)}
    row["milliseconds_of_half"] = milliseconds(lambda: prefill.run(None, given))
    nats = []
    for part in values.split(100):
        tokens = model.with_start(part)[:, :-1].numpy()
        outputs = prefill.run(["parameters"], {"token": tokens, **start, **empty(len(part))})
        parameters = torch.from_numpy(outputs[0])
        nats.append(-trained.task.distribution.log_prob(parameters, part).double().mean(1))
    return row | {"bits_per_dim": round(torch.cat(nats).mean().item() / math.log(2), 5)}


def operators() -> Iterator[Row]:
    """Yield the time of one layer of linear attention over a long sequence, by what computes it."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, LENGTH, HEADS, WIDTH) for _ in range(3))
    attention = LinearAttention(HEADS, WIDTH, feature_map=Elu)
    with torch.inference_mode():
        kernel = attention.kernel_on(q.device)
        yield {"by": f"kernel: {kernel}", "milliseconds": milliseconds(lambda: attention(q, k, v))}
    for domain in ("", "com.microsoft"):
        run = session(operator_of(domain).SerializeToString())
        features = [(torch.nn.functional.elu(x) + 1).flatten(2).numpy() for x in (q, k)]
        ones = torch.nn.functional.pad(v, (0, 1), value=1.0).flatten(2).numpy()
        given = dict(zip("qkv", (*features, ones), strict=True))
        name = f"{domain or 'ai.onnx'}.LinearAttention, onnxruntime {onnxruntime.__version__}"
        row = {"by": name, "milliseconds": milliseconds(lambda run=run, x=given: run.run(None, x))}
        found = torch.from_numpy(run.run(["o"], given)[0]).unflatten(2, (HEADS, WIDTH + 1))
        expected = attention(q, k, v)
        error = (found[..., :-1] / found[..., -1:] - expected).abs().max().item()
        yield row | {"greatest_difference": float(f"{error:.1e}")}
    stack = Transformer(
        partial(MultiHeadAttention, attention=partial(LinearAttention, feature_map=Elu)),
        num_layers=1, num_heads=HEADS, model_dim=HEADS * WIDTH, positions="none",
    )  # fmt: skip
    model = AutoregressiveTransformer(stack, num_values=256, num_parameters=256).eval()
    step, by_operator = SequenceStep(model), SequencesByOperator(model)
    tokens = torch.randint(256, (1, LENGTH))
    for by, sequences in (("Scan", None), ("ai.onnx.LinearAttention", by_operator)):
        files = onnx.files(step, distribution=None, about={}, sequences=sequences)
        run = session(files[onnx.PREFILL])
        given = {name: x[:1].numpy() for name, x in step.states.items()}
        given |= {"token": tokens.numpy(), "position": np.zeros(1, np.int64)}
        yield {
            "by": f"{by}, with projections and feed-forward part",
            "milliseconds": milliseconds(lambda run=run, given=given: run.run(None, given)),
        }
    with torch.inference_mode():
        yield {
            "by": "PyTorch, with projections and feed-forward part",
            "milliseconds": milliseconds(lambda: model.prefill(tokens)),
        }


def operator_of(domain: str) -> Any:
    """Return an ONNX model that is one LinearAttention: a column of ones gives the normaliser."""
    width, values = HEADS * WIDTH, HEADS * (WIDTH + 1)
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "t", size])
        for name, size in (("q", width), ("k", width), ("v", values))
    ]
    node = helper.make_node(
        "LinearAttention", ["q", "k", "v"], ["o", "state"], domain=domain, q_num_heads=HEADS,
        kv_num_heads=HEADS, scale=1.0, update_rule="linear",
    )  # fmt: skip
    output = helper.make_tensor_value_info("o", TensorProto.FLOAT, ["b", "t", values])
    sets = {"": 27} | ({domain: 1} if domain else {})
    imports = [helper.make_opsetid(name, number) for name, number in sets.items()]
    graph = helper.make_graph([node], "attention", inputs, [output])
    return helper.make_model(graph, opset_imports=imports, ir_version=11)


def session(model: bytes) -> onnxruntime.InferenceSession:
    """Return a session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options)


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call."""
    times = []
    for _ in range(REPEATS):
        count, begin = 0, time.perf_counter()
        while count == 0 or time.perf_counter() - begin < SECONDS:
            call()
            count += 1
        times.append((time.perf_counter() - begin) / count)
    return round(1000 * median(times[1:]), 3)


if __name__ == "__main__":
    main()
