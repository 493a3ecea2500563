"""Grouped queries (Ainslie et al., 2023): several heads' queries share one head's keys and values.

Where an operator wants as many keys as queries, each head's keys are given to all of its group,
and of the states that come out equal one of each group is kept.
"""

from torch import Tensor


def for_group(x: Tensor, group: int, *, dim: int) -> Tensor:
    """Return the key heads along `dim` once for each query head: every one `group` times."""
    return x if group == 1 else x.repeat_interleave(group, dim)


def one_of_group(x: Tensor, group: int) -> Tensor:
    """Return the first of each group of heads, which are the second axis of a state."""
    return x if group == 1 else x[:, ::group].contiguous()


def check_groups(num_heads: int, num_key_heads: int) -> int:
    """Return the number of query heads that share a key head.

    Raises:
        ValueError: They do not divide into equal groups.
    """
    if num_heads % num_key_heads:
        divisors = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
        raise ValueError(
            f"num_key_heads={num_key_heads} does not divide num_heads={num_heads} into equal "
            f"groups. Choose one of {divisors}."
        )
    return num_heads // num_key_heads
