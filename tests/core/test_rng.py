"""Random streams: a key alone decides what is drawn."""

import itertools

import pytest
import torch

from bayesfed.core import rng


def test_a_stream_repeats_and_differs_from_every_other() -> None:
    keys = list(itertools.product((0, 1), rng.PURPOSES, (0, 1), (-1, 0, 1)))
    first = [tuple(rng.generator(*key).integers(0, 2**62, 2)) for key in keys]
    assert first == [tuple(rng.generator(*key).integers(0, 2**62, 2)) for key in keys]
    assert len(set(first)) == len(keys)
    seeds = [rng.seed_torch(torch.Generator(), *key).initial_seed() for key in keys]
    assert len(set(seeds)) == len(keys)


def test_streams_stay_what_they_are() -> None:
    """A change here changes every result: raise the engine's revision with it."""
    assert rng.digest(0, "partition") == 0x9A0AD99E0DB5477EE851329A1002F7F7
    assert rng.generator(7, "order", 3, 2).permutation(6).tolist() == [4, 5, 2, 3, 0, 1]


def test_an_unknown_purpose_is_refused() -> None:
    with pytest.raises(ValueError, match="no random stream is named 'shuffle'"):
        rng.generator(0, "shuffle")
