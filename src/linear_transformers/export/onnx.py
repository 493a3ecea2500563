"""A model's step in ONNX, and the same over a whole sequence.

    step.onnx       (inputs, position, states) -> (output, states)
    prefill.onnx    (inputs, position, states) -> (outputs, states)    of whole sequences
    draw.onnx       (parameters, noise, temperature) -> value

All states are zeros at the start, and each sequence of a batch has its own. The position is the
number of inputs read so far. `onnx.json` names inputs and outputs, and says what they mean.
"""

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linear_transformers.calls import call_with
from linear_transformers.distributions import ValueDistribution
from linear_transformers.export.operator import SequencesByOperator, standardized
from linear_transformers.export.steps import BATCH, Step
from linear_transformers.kernels import levels

STEP, PREFILL, DRAW, ABOUT = "step.onnx", "prefill.onnx", "draw.onnx", "onnx.json"
OPSET = 23  # the first with RMSNormalization
POSITION, NEXT = "position", "next."


def files(
    step: Step,
    *,
    distribution: ValueDistribution | None,
    about: dict[str, Any],
    precision: str = "float32",
    sequences: SequencesByOperator | None = None,
) -> dict[str, bytes]:
    """Return the ONNX files of a step, and what says how to call them, by name.

    Args:
        step: The step.
        distribution: The distribution of a value, given the step's outputs; None has no
            `draw.onnx`.
        about: What else to say in `onnx.json`.
        precision: The precision of the matrices of blocks: `float32` or `int8`.
        sequences: The same model over sequences, for `prefill.onnx`; None is a `Scan` of the step.

    Raises:
        ValueError: There is no onnx here, or the step has no graph for batches of any size.
    """
    graph = graph_of(step, precision)
    if sequences is None:
        whole = scanned(graph, list(step.inputs), step.output, list(step.states))
    else:
        whole = graph_of_sequences(sequences, precision)
    models = {STEP: graph, PREFILL: whole}
    if distribution is not None:
        p, z = distribution.num_parameters, distribution.noise_dim
        inputs = {
            "parameters": torch.zeros(BATCH, p),
            "noise": torch.full((BATCH, z), 0.5),
            "temperature": torch.ones(1),
        }
        models[DRAW] = traced(_Draw(distribution), inputs, ["value"], ["temperature"])
    description = {
        **about,
        "inputs": _described(step.inputs),
        "output": step.output,
        "noise": 0 if distribution is None else distribution.noise_dim,
        "states": _described(step.states),
    }
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    return {name: model.SerializeToString() for name, model in models.items()} | {
        ABOUT: text.encode()
    }


def graph_of(step: Step, precision: str = "float32", *, in_time: Sequence[str] = ()) -> Any:
    """Return the graph of a step. For `in_time`, see `traced`."""
    place = torch.zeros(1, dtype=torch.long)
    inputs = {**step.inputs, POSITION: place, **step.states}
    outputs = [step.output, *(f"{NEXT}{state}" for state in step.states)]
    graph = traced(step.eval(), inputs, outputs, [POSITION], in_time=in_time)
    if precision == "int8":
        _quantize(graph, step)
    return graph


def graph_of_sequences(sequences: SequencesByOperator, precision: str = "float32") -> Any:
    """Return the graph of a model over sequences, by the standard's operator."""
    return standardized(graph_of(sequences, precision, in_time=list(sequences.inputs)))


def traced(
    module: nn.Module,
    inputs: dict[str, Tensor],
    outputs: Sequence[str],
    alike: Sequence[str],
    *,
    in_time: Sequence[str] = (),
) -> Any:
    """Return a module as an ONNX model, of a batch of any size.

    Args:
        module: The module, in `eval()` mode.
        inputs: Examples of its inputs, by name, in their order.
        outputs: The names of its outputs.
        alike: The names of inputs that are one for the whole batch.
        in_time: The names of inputs of any length, [batch, time, ...].

    Raises:
        ValueError: There is no onnx here, or it has no graph for batches of any size.
    """
    try:
        import onnxscript  # noqa: F401  what torch's exporter is made of, an extra
        from onnx_ir.passes.common import ClearMetadataAndDocStringPass
    except ModuleNotFoundError as error:
        raise ValueError(
            f"onnx=true needs {error.name}, which is not installed: {call_with('onnx')}"
        ) from error
    batch = torch.export.Dim("batch")
    time = torch.export.Dim("time", min=1)
    sizes = tuple(
        None if name in alike else {0: batch, 1: time} if name in in_time else {0: batch}
        for name in inputs
    )
    with _quiet():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes=(sizes,) if isinstance(module, Step) else sizes,
            input_names=list(inputs),
            output_names=list(outputs),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    ClearMetadataAndDocStringPass()(program.model)  # they hold the paths of this machine's files
    model = program.model_proto
    if model.graph.input[0].type.tensor_type.shape.dim[0].dim_param != batch.__name__:
        raise ValueError(
            "onnx=true was asked for, and this model's step has no graph for batches of any size. "
            "docs/exporting.md says which models have one."
        )
    return model


def scanned(step: Any, inputs: Sequence[str], output: str, states: Sequence[str]) -> Any:
    """Return the ONNX model of a step over whole sequences [batch, time, ...]: one `Scan`.

    Args:
        step: The ONNX model of the step.
        inputs: The names of what a step reads.
        output: The name of what it returns.
        states: The names of its states.
    """
    from onnx import TensorProto, helper

    given = {value.name: value for value in step.graph.input}
    returned = {value.name: value for value in step.graph.output}
    kept = [POSITION, *states]
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    known, once, every_time = {weight.name for weight in step.graph.initializer}, [], []
    for node in step.graph.node:
        is_constant = node.input and known.issuperset(node.input)
        (once if is_constant else every_time).append(node)
        known.update(node.output if is_constant else ())
    after = copy.deepcopy(given[POSITION])
    after.name = NEXT + POSITION
    last = [after, *(returned[NEXT + state] for state in states)]
    body = helper.make_graph(
        [*every_time, helper.make_node("Add", [POSITION, "one"], [after.name])],
        "step",
        [given[name] for name in (*kept, *inputs)],
        [*last, returned[output]],
    )
    scan = helper.make_node(
        "Scan",
        [*kept, *inputs],
        [*(value.name for value in last), output],
        body=body,
        num_scan_inputs=len(inputs),
        scan_input_axes=[1] * len(inputs),
        scan_output_axes=[1],
    )
    whole = [_in_time(given[name]) for name in inputs]
    graph = helper.make_graph(
        [*once, scan],
        "prefill",
        [*whole, *(given[name] for name in kept)],
        [_in_time(returned[output]), *last],
        [*step.graph.initializer, one],  # weights, outside of the loop
    )
    model = copy.deepcopy(step)
    model.graph.CopyFrom(graph)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log and the warnings of torch's exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class _Draw(nn.Module):
    """A value that uniform noise selects, as a graph."""

    def __init__(self, distribution: ValueDistribution):
        super().__init__()
        self.distribution = distribution

    def forward(self, parameters: Tensor, noise: Tensor, temperature: Tensor) -> Tensor:
        return self.distribution.sample(parameters, noise, temperature=temperature)


def _quantize(model: Any, module: nn.Module) -> None:
    """Replace the matrices of blocks by integers, each output with a scale of its own, in place.

    Args:
        model: The ONNX model, which may have matrices transposed.
        module: What it was traced from.
    """
    from onnx import TensorProto, helper, numpy_helper

    rounded = {}
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and ".blocks." in name:
            whole, scale = levels(layer.weight.detach())
            for matrix, turned in ((layer.weight, False), (layer.weight.T, True)):
                rounded[_key(matrix.detach().numpy())] = (name, whole, scale, turned)
    kept, nodes, found = [], [], set()
    for weight in model.graph.initializer:
        key = _key(numpy_helper.to_array(weight))
        if key not in rounded:
            kept.append(weight)
            continue
        name, whole, scale, turned = rounded[key]
        # Multiplied when it is loaded. Of DequantizeLinear before a product onnxruntime makes one
        # that rounds the other factor, too.
        parts = [f"{weight.name}.{part}" for part in ("int8", "wide", "scale", "product")]
        kept.append(numpy_helper.from_array(whole.numpy(), parts[0]))
        kept.append(numpy_helper.from_array(scale.unsqueeze(1).numpy(), parts[2]))
        product = parts[3] if turned else weight.name
        nodes.append(helper.make_node("Cast", parts[:1], parts[1:2], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", parts[1:3], [product]))
        if turned:
            nodes.append(helper.make_node("Transpose", [product], [weight.name], perm=[1, 0]))
        found.add(name)
    assert len(found) == len({name for name, *_ in rounded.values()}), "matrices are missing"
    nodes += model.graph.node
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(kept)
    model.graph.node.extend(nodes)


def _key(weight: np.ndarray) -> tuple[tuple[int, ...], bytes]:
    return weight.shape, weight.tobytes()  # of one row and of one column, bytes are the same


def _in_time(value: Any) -> Any:
    """Return the description of a value [batch, ...] as that of a sequence [batch, time, ...]."""
    from onnx import helper

    tensor = value.type.tensor_type
    batch, *rest = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
    return helper.make_tensor_value_info(value.name, tensor.elem_type, [batch, "time", *rest])


def _described(tensors: dict[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Return the shapes without the batch, and the types, of tensors."""
    return {
        name: {"shape": list(x.shape[1:]), "dtype": str(x.dtype).removeprefix("torch.")}
        for name, x in tensors.items()
    }
