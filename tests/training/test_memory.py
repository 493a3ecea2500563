"""What a step frees stays with the process."""

import platform
import subprocess
import sys

import pytest

# The pages that the system gives while 64 MiB are used and freed five times, after many times.
PROGRAM = """
import resource, torch
from linear_transformers.training.memory import keep_freed_memory
keep_freed_memory()
for _ in range(20):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is for glibc's allocator")
@pytest.mark.parametrize("variables", [{}, {"MALLOC_TRIM_THRESHOLD_": "131072"}], ids=str)
def test_what_a_step_frees_is_there_for_the_next_one(variables, monkeypatch):
    """Unless the user has set the allocator's variables."""
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")  # else pages of 2 MiB
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcome = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    pages = int(outcome.stdout)
    assert pages > 16384 if variables else pages < 100, outcome.stderr
