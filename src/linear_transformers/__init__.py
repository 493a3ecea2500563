"""Transformers that train in parallel and generate as recurrent networks.

Layers, each importing only from those below it:

    runtime                      Hydra, files, signals, loggers: whole jobs
    tasks | sampling | data      losses and metrics | steppers and completion | data sets
    models | distributions       stacks, embeddings, heads | log_prob and sample
    attention                    one backend a file, one class, both forms
    feature_maps | ops           phi | pure functions of tensors
    shapes                       the alphabet

Everything below `tasks` is plain PyTorch and usable as a library.
"""
