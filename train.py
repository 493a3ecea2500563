"""Compose a run with Hydra, train it, test it."""

from linear_transformers.jobs.cli import Program

main = Program(__file__, "linear_transformers.jobs.train:run")

if __name__ == "__main__":
    main()
