"""The command `linear-transformers`: the programs, wherever the package is installed."""

import sys
from importlib.metadata import version
from pathlib import Path

from linear_transformers.calls import COMMAND
from linear_transformers.config.folder import Configurations
from linear_transformers.config.messages import nearest
from linear_transformers.jobs.cli import Program

USAGE = f"""Transformers that train in parallel and generate as recurrent networks.

  {COMMAND} PROGRAM [KEY=VALUE ...]
  {COMMAND} PROGRAM --help

Runs are kept in ./runs, data in ./data: paths.runs=DIR and paths.data=DIR choose other places.

programs
"""
# For bash; what completes options is Hydra's, asked with the words after the command's name.
COMPLETION = r"""
_linear_transformers() {
    local program="${COMP_WORDS[1]}" line="${COMP_LINE#* }"
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "PROGRAMS" -- "$program"))
        return
    fi
    COMPREPLY=($(COMP_LINE="$line" COMP_POINT="${#line}" COMP_WORDBREAKS= \
        linear-transformers "$program" -sc query=bash 2>/dev/null))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _linear_transformers linear-transformers
"""


def main() -> None:
    """Run the program that the first word names."""
    programs = Configurations.programs()
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        lines = [f"  {name:<12} {Configurations.of(name).title}" for name in programs]
        print(USAGE + "\n".join(lines))
    elif name == "--version":
        print(version(COMMAND))
    elif name == "--completion":
        print(COMPLETION.strip().replace("PROGRAMS", " ".join(programs)))
    elif name in programs:
        Program(name, Path.cwd())(arguments)
    else:
        sys.exit(f"error: {name} is no program. {nearest(name, programs)}")


if __name__ == "__main__":
    main()
