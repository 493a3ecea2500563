"""Transformers that train in parallel and generate as recurrent networks.

Layers, each importing only from those below it:

    runtime                      Hydra, files, signals, loggers: whole jobs
    tasks | sampling | data      losses and metrics | loops over step() | data sets
    models | distributions       stacks, embeddings, heads | log_prob and sample
    attention                    one backend a file, one class, both forms
    feature_maps | ops           phi | pure functions of tensors
    shapes | provenance          the alphabet | the command, the commit, the machine
    files                        whole or absent

Everything below `tasks` is plain PyTorch and usable as a library.
"""
