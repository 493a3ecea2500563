"""Load a trained transformer and run it as a recurrent network."""

from linear_transformers.jobs.cli import Program

main = Program(__file__, "linear_transformers.jobs.use:use")

if __name__ == "__main__":
    main()
