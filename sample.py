"""Load a trained transformer and run it as a recurrent network."""

from pathlib import Path

from linear_transformers.jobs.cli import Program

main = Program("sample", Path(__file__).resolve().parent)

if __name__ == "__main__":
    main()
