"""The cache on disk; that damaged ones are made again is tested where it is used."""

from pathlib import Path

import numpy as np
import pytest

from linear_transformers.data import cache


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_on_a_full_disk_what_computes_is_ended_and_nothing_is_left(tmp_path, monkeypatch):
    """Else a pool would go on with all that is waiting, for hours."""
    ended = []

    def arrays():
        try:
            for _ in range(3):
                yield [np.ones(5)]
        finally:
            ended.append(True)

    def full(dir):
        return Path("/dev/full").open("wb", buffering=0)

    monkeypatch.setattr(cache.tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left") as caught:
        cache.cached(tmp_path, "numbers", [1], arrays, np.ones(0))
    assert ended, caught  # while the error is known: its traceback keeps what it passed alive
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
