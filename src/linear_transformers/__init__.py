"""Transformers that train in parallel and generate as recurrent networks.

Layers, each importing only from those below it:

    runtime                      Hydra, files, signals, loggers: whole jobs
    tasks | sampling | data      losses and metrics | loops over step() | data sets
    models | distributions       stacks, embeddings, heads | log_prob and sample
    attention                    one mechanism a file, one class, both forms
    kernels                      compiled implementations: C++, Triton, CUDA
    feature_maps | ops           phi | pure functions of tensors, in plain PyTorch
    shapes                       the alphabet

Everything below `tasks` is plain PyTorch and usable as a library.
"""
