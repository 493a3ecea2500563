"""Compose a run with Hydra, train it, test it."""

from pathlib import Path

from linear_transformers.jobs.cli import Program

main = Program("train", Path(__file__).resolve().parent)

if __name__ == "__main__":
    main()
