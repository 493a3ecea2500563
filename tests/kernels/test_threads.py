"""The kernels in C++ where OpenMP grants fewer threads than torch asks for."""

import os
import subprocess
import sys

import pytest

from linear_transformers import kernels

BEGIN = """
import torch
from functools import partial
from linear_transformers.attention import LinearAttention
from linear_transformers.feature_maps import Elu
torch.manual_seed(0)
torch.set_num_threads(2)
attention = partial(LinearAttention, feature_map=Elu)
"""
STEP = """
from linear_transformers.mixers import MultiHeadAttention
from linear_transformers.models import AutoregressiveTransformer, Transformer
from linear_transformers.sampling import CompiledStepper, largest_step_difference
mixer = partial(MultiHeadAttention, attention=attention)
stack = Transformer(mixer, 8, num_layers=2, num_heads=2, model_dim=24)
model = AutoregressiveTransformer(stack, num_values=17, num_parameters=30).eval()
assert largest_step_difference(CompiledStepper(model), torch.randint(17, (3, 8))) < 1e-5
"""
SEQUENCE = """
qkv = torch.randn(3, 2, 33, 2, 8)
outputs, expected = (attention(2, 8, kernel=kernel)(*qkv) for kernel in ("cpp", "parallel"))
torch.testing.assert_close(outputs, expected)
"""


@pytest.mark.skipif(kernels.step_unavailable() is not None, reason="they need a compiler")
@pytest.mark.parametrize("program", [STEP, SEQUENCE], ids=["step", "sequence"])
def test_fewer_threads_do_all_the_work(program):
    environment = {**os.environ, "OMP_THREAD_LIMIT": "1"}
    subprocess.run([sys.executable, "-c", BEGIN + program], check=True, env=environment)
