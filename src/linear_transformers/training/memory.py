"""The memory of a process that trains on a CPU."""

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of glibc's mallopt(3)
VARIABLES = ("MALLOC_", "GLIBC_TUNABLES")
NEVER = -1


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one, which needs as much again.

    By default glibc returns large blocks to the system, which maps them anew in each step, and
    fills them with zeros. Does nothing where the C library is another, or where the user has set
    variables of glibc's.
    """
    if sys.platform != "linux" or any(name.startswith(VARIABLES) for name in os.environ):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(MMAP_MAX, 0)
        library.mallopt(TRIM_THRESHOLD, NEVER)
