"""Load a trained speech recogniser and write down what recordings say."""

from linear_transformers.jobs.cli import Program

main = Program(__file__, "linear_transformers.jobs.use:use")

if __name__ == "__main__":
    main()
