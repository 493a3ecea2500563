"""Tables of counts, on data whose entropy is known."""

import numpy as np

from linear_transformers.data import Splits
from linear_transformers.data.baselines import baselines


def splits(images: np.ndarray) -> Splits:
    third = len(images) // 3
    return Splits(images[:third], images[third : 2 * third], images[2 * third :])


def test_uniform_noise_costs_all_its_bits():
    noise = np.random.default_rng(0).integers(0, 4, (3000, 6, 6, 1), np.uint8)
    tables = baselines(splits(noise), num_levels=4)
    np.testing.assert_allclose(tables, 2.0, atol=0.02)


def test_one_picture_over_and_over_costs_nothing_by_position():
    picture = np.random.default_rng(0).integers(0, 4, (1, 6, 6, 1), np.uint8)
    tables = baselines(splits(np.repeat(picture, 3000, axis=0)), num_levels=4)
    assert tables.histogram < 0.001
    assert tables.neighbours > tables.histogram


def test_columns_of_one_colour_cost_little_given_the_upper_neighbour():
    row = np.random.default_rng(0).integers(1, 5, (3000, 1, 6, 3), np.uint8)
    tables = baselines(splits(np.repeat(row, 6, axis=1)), num_levels=5)
    np.testing.assert_allclose(tables.histogram, 2.0, atol=0.02)
    np.testing.assert_allclose(tables.neighbours, 2.0 / 6, atol=0.02)


def test_256_levels_of_colour_fit_in_memory():
    noise = np.random.default_rng(0).integers(0, 256, (5000, 4, 4, 3), np.uint8)
    tables = baselines(splits(noise), num_levels=256)
    assert 7.9 < min(tables) <= max(tables) < 8.3
