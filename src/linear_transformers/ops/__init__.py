"""The algorithms of attention in plain PyTorch: functions of tensors, without parameters.

Causal linear attention has a definition and two ways to compute it, each a module with a function
of its name:

    parallel     O(t^2): the definition, and the oracle of the tests
    chunkwise    O(t): matrix products inside chunks, a state between them
    recurrent    O(1): one position

`bidirectional` is linear attention without a mask. `decayed` and `delta` are recurrences without a
normaliser; `lsh` and `sparse` compute softmax over some of the positions. Compiled implementations
are in `linear_transformers.kernels`.
"""
