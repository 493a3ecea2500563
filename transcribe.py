"""Load a trained speech recogniser and write down what recordings say."""

from pathlib import Path

from linear_transformers.jobs.cli import Program

main = Program("transcribe", Path(__file__).resolve().parent)

if __name__ == "__main__":
    main()
