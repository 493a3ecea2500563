"""Load a trained translator and translate texts, line by line."""

from pathlib import Path

from linear_transformers.jobs.cli import Program

main = Program("translate", Path(__file__).resolve().parent)

if __name__ == "__main__":
    main()
