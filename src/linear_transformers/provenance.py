"""What a figure depends on besides its configuration: the command, the commit, the machine.

Cheap to import and to call. Neither the host, nor the user, nor an absolute path is in it, so that
it can be published.
"""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from linear_transformers.calls import COMMAND, with_editable
from linear_transformers.files import next_numbered, numbered, replacing

# What `git describe --always --abbrev=40 --exclude='*' --dirty` prints, for copies: they have no
# .git, or that of another commit.
COMMIT = "LINEAR_TRANSFORMERS_COMMIT"
PROVENANCE = "provenance.json"  # of a run's first start; those of further ones are numbered
MEASUREMENTS = ("results", "RESULTS.md")  # at the top of a checkout
DISTRIBUTIONS = (
    "linear-transformers", "torch", "triton", "numpy", "lightning",
    "pytorch-fast-transformers", "fla-core", "flash-linear-attention",
)  # fmt: skip
INSTRUCTIONS = re.compile(  # those that decide how fast products are, as Linux names them
    r"avx2|avx_vnni|avx512f|avx512_bf16|avx512_fp16|avx512_vnni|amx_\w+|neon|asimd|sve2?|bf16|i8mm"
)
ABSOLUTE = re.compile(r"(?:(?<![\w./:~}-])|(?<=://))/[^\s,'\"\])}]*")
GIGABYTE = 1e9


def provenance() -> dict[str, Any]:
    """Describe this process.

    Returns:
        `command`, `commit` and `clean` (None where they are unknown), `date`, `machine` (see
        `machine`) and `versions`: plain data.
    """
    return {
        "command": command(),
        **checkout(),
        "date": date.today().isoformat(),
        "machine": machine(),
        "versions": versions(),
    }


def write_provenance(folder: Path, described: Mapping[str, Any]) -> Path:
    """Write what `provenance` returned into a run's folder: `provenance.json`, or
    `provenance-2.json` where the run is continued."""
    path = next_numbered(folder / PROVENANCE)
    with replacing(path) as partial:
        partial.write_text(json.dumps(described, indent=2) + "\n")
    return path


def read_provenance(folder: Path) -> list[dict[str, Any]]:
    """Return what each start of a run wrote into its folder, the first one first.

    Raises:
        ValueError: One of the files is damaged.
    """
    found = []
    for path in numbered(folder / PROVENANCE).values():
        try:
            found.append(json.loads(path.read_text()))
        except ValueError as error:
            raise ValueError(
                f"{path} is damaged. Remove it: only its start is forgotten."
            ) from error
    return found


def command() -> str:
    """Return the command line to type, from the project's folder, to run this program again."""
    program, *arguments = sys.argv or [""]
    path = Path(program)
    if path.stem == COMMAND:  # an .exe, somewhere
        return shlex.join([COMMAND, *map(without_places, arguments)])
    module = [path.stem]
    while (path.parent / "__init__.py").is_file():
        path = path.parent
        module.insert(0, path.name)
    own = with_editable(without_places)
    if len(module) > 1:
        words = ["python", "-m", ".".join(module).removesuffix(".__main__")]
    else:
        words = [without_places(program)]
    return shlex.join(["uv", "run", *own, *words, *map(without_places, arguments)])


def without_places(argument: str, *, near: bool = True) -> str:
    """Shorten absolute paths: to relative ones, below ~, or else to their last name.

    Args:
        argument: An argument of a command.
        near: Whether paths may be relative ones, or below ~; else they are all alike.
    """

    def shortened(place: str) -> str:
        path = Path(place)
        for folder, sign in ((Path.cwd(), "."), (Path(os.environ.get("HOME", "/")), "~")):
            if near and folder.name and path.is_relative_to(folder):
                return str(sign / path.relative_to(folder))
        return f".../{path.name}"

    # A value that begins with one is all of it, with its blanks, or is a list of such.
    key, value = re.fullmatch(r"(?s)((?:[^=/]*=)?['\"]?)(.*)", argument).groups()  # pyright: ignore
    if value.startswith("/"):
        return key + ",".join(map(shortened, re.split(r",(?=/)", value)))
    return ABSOLUTE.sub(lambda match: shortened(match[0]), argument)


def checkout(file: Path = Path(__file__)) -> dict[str, Any]:
    """Return the commit of the checkout that tracks a file, and whether tracked files equal it,
    measurements aside: who writes one has changed no code.

    Args:
        file: A file of the project.

    Returns:
        `commit` and `clean`, as the environment says, or else git; both None where no checkout
        tracks the file, or there is no git.
    """

    def git(*arguments: str) -> str:
        line = ["git", "-C", str(file.parent), *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()

    state = os.environ.get(COMMIT)
    try:
        if not state:
            git("ls-files", "--error-unmatch", file.name)  # else the checkout is another project's
            code = (":/", *(f":(top,exclude){name}" for name in MEASUREMENTS))
            changed = git("status", "--porcelain", "--untracked-files=no", "--", *code)
            state = git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "clean": None}
    return {"commit": state.removesuffix("-dirty"), "clean": not state.endswith("-dirty")}


def machine() -> dict[str, Any]:
    """Describe the hardware, as far as it tells; what is unknown is None.

    Returns:
        `processor`, `cores` (those that this process may use), `instructions`, `memory_gb` and
        `gpu` (None unless torch is imported and finds one).
    """
    facts = _cpuinfo()
    flags = facts.get("flags") or facts.get("Features") or ""
    return {
        "processor": processor() or None,
        "cores": cores(),
        "instructions": sorted(filter(INSTRUCTIONS.fullmatch, flags.split())) if facts else None,
        "memory_gb": _memory(),
        "gpu": _gpu(),
    }


def processor() -> str:
    """Return the name of the processor, as far as the system tells."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of cores that this process may use: under Slurm, which need not bind a job
    to its cores, those of a task."""
    affinity = getattr(os, "sched_getaffinity", None)  # not every system has it
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    if "SLURM_CPUS_ON_NODE" not in os.environ:
        return count
    given = int(os.environ["SLURM_CPUS_ON_NODE"])
    return max(1, min(count, given // int(os.environ.get("SLURM_NTASKS_PER_NODE", "1"))))


def _cpuinfo() -> dict[str, str]:
    """Return what Linux says of the processor; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    facts = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in facts}


def _memory() -> float | None:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system has these names
        return None
    return round(total / GIGABYTE, 1)


def _gpu() -> dict[str, Any] | None:
    """Describe the first CUDA device, and how many there are."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    try:
        driver = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        driver = ""
    number = re.search(r"\d+(\.\d+)+", driver)
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "memory_gb": round(properties.total_memory / GIGABYTE, 1),
        "driver": number[0] if number else None,
        "cuda": torch.version.cuda,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that figures depend on."""
    found = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if "torch" in sys.modules:  # which tells a build for CUDA from one without
        found["torch"] = str(sys.modules["torch"].__version__)
    return found
