"""Files of data sets that tests make."""

import struct

import numpy as np


def write_mnist(root, count=20):
    """torchvision's layout with a few random images."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name in ("train", "t10k"):
        pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8)
        header = struct.pack(">4i", 2051, count, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        labels = struct.pack(">2i", 2049, count) + bytes(count)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)
