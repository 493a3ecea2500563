"""Transformers that train in parallel and generate as recurrent networks.

Layers, each importing only from those below it:

    jobs                         the command line; training; using a checkpoint
    callbacks                    Lightning's callbacks
    training | tracking          Lightning's module and loggers: any task
    tasks                        the plug, and the tasks
    runs                         a run on disk: folder, checkpoints, sweeps
    pictures                     grids, alignments, tables
    sampling | data              steppers and completion | data sets
    models | distributions | ctc stacks, embeddings, heads | log_prob and sample | CTC
    attention                    one mechanism a file, one class, both forms
    kernels                      compiled implementations: C++, Triton, CUDA
    feature_maps | ops           phi | pure functions of tensors, in plain PyTorch
    shapes | config | provenance the alphabet | what may be said and named | where a figure is from
    files                        files that are whole or absent

`tasks` and everything below it is free of frameworks, and usable as a library.
"""
