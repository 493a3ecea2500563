"""Load a trained model and take it along: weights, ONNX, a page."""

from pathlib import Path

from linear_transformers.jobs.cli import Program

main = Program("export", Path(__file__).resolve().parent)

if __name__ == "__main__":
    main()
