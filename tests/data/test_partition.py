"""Partitions: the properties every draw has, the files, and what is refused."""

import errno
import os

import numpy as np
import pytest
from helpers.damage import cuts, flips, put
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bayesfed.core import rng
from bayesfed.core.errors import InputError
from bayesfed.data import overview, partition, store
from bayesfed.data.fetch import fetch
from bayesfed.data.records import read_npz, write_npz
from bayesfed.data.schemes import (
    IID,
    ClassesApart,
    Dirichlet,
    DirichletClient,
    DirichletFloor,
    Labels5,
    Shards,
    TwoClasses,
    TwoLevel,
    Whole,
    divide,
    read,
)

SPEC = Dirichlet(alpha=1, clients=4, min_train=2)

specs = st.builds(
    Dirichlet,
    alpha=st.sampled_from([0.05, 0.3, 1, 10, 100]),
    clients=st.integers(1, 12),
    min_train=st.integers(0, 3),
    min_test=st.integers(0, 1),
)
seeds = st.integers(0, 2**31)


@st.composite
def labels(draw):
    """Labels of a training and a test split; classes differ in size and may be absent."""
    classes = draw(st.integers(1, 6))
    splits = []
    for most in (60, 30):
        counts = draw(st.lists(st.integers(0, most), min_size=classes, max_size=classes))
        assume(sum(counts))
        order = np.random.default_rng(draw(seeds)).permutation(sum(counts))
        splits.append(np.repeat(np.arange(classes), counts)[order])
    return splits


def drawn(train, test, spec, seed):
    """A partition; examples that cannot be met are none."""
    try:
        return divide(train, test, spec, seed)
    except InputError:
        assume(False)


@settings(deadline=None, max_examples=60)
@given(labels(), specs, seeds)
def test_disjoint_complete_and_large_enough(splits, spec, seed):
    parts = drawn(*splits, spec, seed)
    for indices, offsets, split in (
        (parts.train_indices, parts.train_offsets, splits[0]),
        (parts.test_indices, parts.test_offsets, splits[1]),
    ):
        np.testing.assert_array_equal(np.sort(indices), np.arange(len(split)))
        assert len(offsets) == spec.clients + 1
        assert (offsets[0], offsets[-1]) == (0, len(split))
        assert (indices.dtype, offsets.dtype) == (np.int64, np.int64)
    for client in range(spec.clients):
        assert len(parts.train(client)) >= spec.min_train
        assert len(parts.test(client)) >= spec.min_test


@settings(deadline=None, max_examples=60)
@given(labels(), specs, seeds)
def test_train_and_test_are_cut_at_the_same_shares(splits, spec, seed):
    """Cut points floor(s * n): up to each client, train and test allow one common s for every class."""
    parts = drawn(*splits, spec, seed)
    for label in range(max(map(max, splits)) + 1):
        bounds = []
        for hands, split in ((parts.train, splits[0]), (parts.test, splits[1])):
            held = [int((split[hands(client)] == label).sum()) for client in range(spec.clients)]
            total = sum(held)
            if total:
                cuts = np.cumsum(held)[:-1]  # floor(s * n) = c  <=>  c / n <= s < (c + 1) / n
                bounds.append((cuts / total, (cuts + 1) / total))
        if len(bounds) == 2:
            (low, high), (other_low, other_high) = bounds
            assert (np.maximum(low, other_low) < np.minimum(high, other_high) + 1e-9).all()


@settings(deadline=None, max_examples=30)
@given(labels(), specs, seeds)
def test_deterministic(splits, spec, seed):
    first, second = (drawn(*splits, spec, seed) for _ in range(2))
    for one, two in zip(vars(first).values(), vars(second).values(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_other_seeds_give_other_images_even_where_shares_are_equal():
    split = np.repeat(np.arange(3), 100)
    spec = Dirichlet(alpha=1e9, clients=2)
    one, two = (divide(split, split, spec, seed) for seed in (0, 1))
    assert len(one.train(0)) == pytest.approx(150, abs=3)
    assert not np.array_equal(one.train_indices, two.train_indices)


def test_sizes_show_the_rule_that_the_paper_used():
    """Of 100 classes of 100 images the floor takes half an image a cut: mean 950, 1000, ..., 1050 (spec 2.4)."""
    split = np.repeat(np.arange(100), 100)
    spec = Dirichlet(alpha=100, clients=10)
    sizes = np.mean([np.diff(divide(split, split, spec, seed).test_offsets) for seed in range(30)], axis=0)
    np.testing.assert_allclose(sizes, [950, *[1000] * 8, 1050], atol=12)


def test_a_kept_draw_is_not_redrawn_for_small_clients():
    split = np.repeat(np.arange(10), 100)
    sizes = [
        np.diff(divide(split, split, spec, 3).train_offsets).min()
        for spec in (
            Dirichlet(alpha=0.05, clients=10, min_train=0, min_test=0),
            Dirichlet(alpha=0.05, clients=10, min_train=20),
        )
    ]
    assert sizes[0] < 20 <= sizes[1]


def test_which_of_hbfl_s_draws_are_redrawn_for_small_clients():
    """Of the seeds of its tables and of the search for its readings, CIFAR-10 at alpha 0.05 (docs/assumptions/hbfl.md)."""
    train, test = (np.repeat(np.arange(10), count) for count in (5000, 1000))
    ours, any_size = (Dirichlet(alpha=0.05, **least) for least in ({}, {"min_train": 0, "min_test": 0}))
    redrawn = [
        seed
        for seed in (0, 1, 2, 97, 98, 99, *range(80, 90))
        if not np.array_equal(*(divide(train, test, spec, seed).train_offsets for spec in (ours, any_size)))
    ]
    assert redrawn == [82]
    first = divide(train, test, any_size, 82)
    assert min(zip(np.diff(first.train_offsets), np.diff(first.test_offsets), strict=True)) == (3, 0)


# Schemes that deal training images alone

trained = st.one_of(
    st.builds(
        scheme, alpha=st.sampled_from([0.01, 0.3, 1, 100]), clients=st.integers(1, 12), min_train=st.integers(0, 3)
    )
    for scheme in (DirichletFloor, DirichletClient)
)
two_level = st.builds(
    TwoLevel,
    sizes=st.sampled_from([0.3, 1, 100]),
    alpha=st.sampled_from([0.01, 0.5, 100]),
    share=st.sampled_from([0.3, 1.0]),
    clients=st.integers(1, 12),
    min_train=st.integers(1, 3),
)


def train_hands(splits, spec, seed):
    """What each client holds; examples that cannot be met are none."""
    try:
        parts = divide(*splits, spec, seed)
    except InputError:
        assume(False)
    assert len(parts.test_indices) == 0
    assert (parts.test_offsets == 0).all()
    return [parts.train(k) for k in range(spec.clients)]


@settings(deadline=None, max_examples=80)
@given(labels(), st.one_of(trained, two_level), seeds)
def test_training_images_go_to_one_client_each_and_nobody_is_empty(splits, spec, seed):
    hands = train_hands(splits, spec, seed)
    dealt = np.concatenate(hands)
    assert len(np.unique(dealt)) == len(dealt)
    assert dealt.min() >= 0
    assert dealt.max() < len(splits[0])
    assert min(map(len, hands)) >= max(spec.min_train, 1)
    for one, two in zip(hands, train_hands(splits, spec, seed), strict=True):
        np.testing.assert_array_equal(one, two)


@settings(deadline=None, max_examples=60)
@given(labels(), trained, seeds)
def test_floor_deals_runs_of_a_class_in_its_order(splits, spec, seed):
    """Without the one image that an empty client gets: consecutive images, and less than one a client and class is
    dropped."""
    assume(isinstance(spec, DirichletFloor))
    hands = train_hands(splits, spec, seed)
    for label in range(splits[0].max() + 1):
        images = np.flatnonzero(splits[0] == label)
        held = [hand[splits[0][hand] == label] for hand in hands if len(hand) > 1]
        together = np.concatenate([np.zeros(0, np.int64), *held])
        np.testing.assert_array_equal(together, np.sort(together))
        assert len(images) - len(together) <= 2 * spec.clients
        for hand in held:
            np.testing.assert_array_equal(hand, images[np.searchsorted(images, hand)])
            assert not len(hand) or len(hand) == 1 + np.searchsorted(images, hand[-1]) - np.searchsorted(
                images, hand[0]
            )


def test_two_levels_are_shares_of_sizes_times_classes():
    """Without skew the share of each class is dealt equally; with it a client's images of a class are the rule's."""
    split = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 500))
    even = TwoLevel(sizes=1e8, alpha=1e8, share=0.2, clients=5)
    parts = divide(split, split, even, 0)
    for k in range(5):
        assert np.bincount(split[parts.train(k)]).tolist() == [20] * 4
    uneven = TwoLevel(sizes=1, alpha=0.5, share=0.5, clients=5, min_train=0)
    parts, random = divide(split, split, uneven, 3), rng.generator(3, "partition")
    sizes, classes = random.dirichlet(np.ones(5)), random.dirichlet(np.full(4, 0.5), size=5)
    for label in range(4):
        weights = [sizes[k] * classes[k, label] for k in range(5)]
        asked = [round(0.5 * 500 * weight / sum(weights)) for weight in weights]
        held = [int((split[parts.train(k)] == label).sum()) for k in range(5)]
        assert held == [2 if count == 1 else count for count in asked]


@pytest.mark.parametrize(("clients", "classes"), [(100, 10), (5, 10), (7, 2), (6, 4)])
def test_two_classes_for_every_client(clients, classes):
    """Each client has images of two classes, all images are dealt once, and pieces of a class are equal."""
    split = np.random.default_rng(1).permutation(np.repeat(np.arange(classes), 203))
    seen = set()
    for seed in range(3):
        parts = divide(split, split, TwoClasses(clients=clients, min_train=1), seed)
        np.testing.assert_array_equal(np.sort(parts.train_indices), np.arange(len(split)))
        for k in range(clients):
            counts = np.bincount(split[parts.train(k)], minlength=classes)
            assert np.count_nonzero(counts) == 2
            assert set(counts[counts > 0]) <= {203 // (2 * clients // classes), 203 // (2 * clients // classes) + 1}
        seen.add(parts.train_indices.tobytes())
    assert len(seen) == 3
    with pytest.raises(InputError, match=r"^partition\.clients: 5 clients have 10 pieces of 3 classes"):
        divide(np.arange(60) % 3, np.arange(60) % 3, TwoClasses(clients=5, min_train=1), 0)


def test_an_empty_client_gets_one_image_of_the_first_class():
    """At so small an alpha a class goes to one client: of three classes and eight clients five have none."""
    split = np.repeat(np.arange(3), 50)
    spec = DirichletFloor(alpha=1e-6, clients=8, min_train=0, min_test=0)
    parts = divide(split, split, spec, 0)
    sizes = sorted(np.diff(parts.train_offsets))
    assert sizes[:5] == [1] * 5
    assert sum(sizes) == 150
    assert all(split[parts.train(k)[0]] == 0 for k in range(8) if len(parts.train(k)) == 1)


@pytest.mark.parametrize(("alpha", "share"), [(1e6, 0.1), (1e-3, 1.0)])
def test_clients_of_equal_size_have_the_classes_they_like(alpha, share):
    """Alpha large: all classes alike. Alpha small: one class, of which there is enough for the first client."""
    split = np.repeat(np.arange(10), 1000)
    spec = DirichletClient(alpha=alpha, clients=20, min_test=0)
    parts = divide(split, split, spec, 0)
    assert set(np.diff(parts.train_offsets)) == {500}
    first = np.bincount(split[parts.train(0)], minlength=10) / 500
    assert first.max() == pytest.approx(share, abs=0.05)


def test_classes_apart():
    train, test = np.arange(40) % 10, np.arange(20) % 10
    parts = divide(train, test, ClassesApart(clients=2, min_train=1), 0)
    assert [set(train[parts.train(k)]) for k in (0, 1)] == [{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}]
    assert [set(test[parts.test(k)]) for k in (0, 1)] == [{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}]
    assert sorted([*parts.train(0), *parts.train(1)]) == list(range(40))
    with pytest.raises(InputError, match="11 clients cannot hold 10 classes apart; at most 10"):
        divide(train, test, ClassesApart(clients=11, min_train=1), 0)


@pytest.mark.parametrize(
    ("clients", "size", "train", "test"),
    [(10, "small", 50, 950), (10, "medium", 200, 800), (10, "large", 900, 300), (20, "large", 450, 150)],
)
def test_labels5_has_the_papers_numbers(clients, size, train, test):
    """Of a class of 6000 images, 5000 of them training images; clients hold two sets of labels, from both splits."""
    labels = np.arange(50_000) % 10, np.arange(10_000) % 10
    parts = divide(*labels, Labels5(clients=clients, size=size), 3)
    pool = np.concatenate(labels)
    both = np.concatenate([parts.train_indices, parts.test_indices])
    assert len(np.unique(both)) == len(both) == clients * 5 * (train + test)
    for k in range(clients):
        hand = np.concatenate([parts.train(k), parts.test(k)])
        assert np.bincount(pool[hand], minlength=10).tolist() == (
            [train + test] * 5 + [0] * 5 if k % 2 == 0 else [0] * 5 + [train + test] * 5
        )
        assert (len(parts.train(k)), len(parts.test(k))) == (5 * train, 5 * test)
    tested = np.concatenate([parts.test(k) for k in range(clients)])
    assert 0.1 < (tested >= 50_000).mean() < 0.25  # a sixth of the pool
    assert np.ptp(np.bincount(pool[parts.train(0)])[:5]) > 0  # cut behind the shuffle, not class by class


def test_labels5_shrinks_with_the_smallest_class_and_refuses_what_cannot_be():
    labels = np.repeat(np.arange(10), 174), np.zeros(0, np.int64)
    parts = divide(*labels, Labels5(clients=4, size="medium"), 0)
    assert [len(parts.train(k)) for k in range(4)] == [5 * 14] * 4  # 2000 * 174/6000 / 4
    assert [len(parts.test(k)) for k in range(4)] == [5 * 58] * 4
    with pytest.raises(InputError, match="10 clients would have 5 training images each; at least 10 are asked for"):
        divide(*labels, Labels5(clients=10, size="small"), 0)
    with pytest.raises(InputError, match="a class has too few images for 3 clients of size large"):
        divide(*labels, Labels5(clients=3, size="large"), 0)
    with pytest.raises(InputError, match="needs at least 5 classes, there are 4"):
        divide(np.arange(80) % 4, np.arange(80) % 4, Labels5(clients=2, size="large"), 0)


def test_what_labels5_deals_becomes_the_splits(digits_dir, tmp_path):
    fetch("digits", tmp_path)
    spec = Labels5(clients=4, size="medium")
    data = store.load("digits", tmp_path)
    partition.build("digits", spec, 0, tmp_path)
    parts = partition.load("digits", spec, 0, tmp_path)
    run, own = partition.as_dealt(data, parts, spec, 0)
    pool = np.concatenate([data.train_images, data.test_images])
    labels = np.concatenate([data.train_labels, data.test_labels])
    assert len(run.test_labels) == len(parts.test_indices)
    for k in range(4):
        assert np.array_equal(run.train_images[own.train(k)], pool[parts.train(k)])
        assert np.array_equal(run.test_labels[own.test(k)], labels[parts.test(k)])
    files = overview.write("digits", spec, 0, tmp_path, tmp_path)
    assert "labels5-clients~4-size~medium-seed~0.csv" in [path.name for path in files]
    whole = ClassesApart(clients=2)
    assert partition.as_dealt(data, parts, whole, 0) == (data, parts)


def test_other_schemes_are_stored_and_checked(digits_dir, tmp_path):
    fetch("digits", tmp_path)
    for spec in (
        DirichletFloor(alpha=0.1, clients=5, min_train=0, min_test=0),
        ClassesApart(clients=2),
        Labels5(clients=4, size="small"),
    ):
        path = partition.build("digits", spec, 0, tmp_path)
        assert partition.load("digits", spec, 0, tmp_path).train_offsets.size == spec.clients + 1
        with np.load(path) as arrays:
            changed = dict(arrays)
        changed["train_indices"][1] = changed["train_indices"][0]
        write_npz(path, changed)
        with pytest.raises(InputError, match="does not deal each image once"):
            partition.load("digits", spec, 0, tmp_path)


# Schemes of FedPPD

MNIST = {"shards": 25, "shards_each": 2, "share": 0.08, "least": 10, "server": 10000}
CIFAR10 = {"shards": 20, "shards_each": 2, "share": 0.5, "least": 10, "server": 10000}
CIFAR100 = {"shards": 200, "shards_each": 20, "share": 0.5, "least": 2, "server": 10000}

sharded = st.builds(
    lambda each, spare, **more: Shards(shards=each * more["clients"] + spare, shards_each=each, **more),
    each=st.integers(1, 3),
    spare=st.integers(0, 3),
    clients=st.integers(1, 6),
    share=st.sampled_from([0.08, 0.5, 1]),
    least=st.integers(0, 2),
    server=st.integers(0, 60),
    min_train=st.integers(0, 3),
    min_test=st.just(0),
)
uniform = st.builds(
    IID,
    clients=st.integers(1, 6),
    images_each=st.integers(1, 20),
    server=st.integers(0, 60),
    min_train=st.just(0),
    min_test=st.just(0),
)


def given_out(train, spec, seed):
    """A partition of a scheme; examples that cannot be met are none."""
    try:
        return divide(train, train, spec, seed)
    except InputError:
        assume(False)


@settings(deadline=None, max_examples=100)
@given(labels(), st.one_of(sharded, uniform), seeds)
def test_no_client_has_the_servers_images_or_one_twice(splits, spec, seed):
    parts = given_out(splits[0], spec, seed)
    assert len(np.unique(parts.server_indices)) == len(parts.server_indices) == spec.server
    for k in range(spec.clients):
        own = parts.train(k)
        assert len(np.unique(own)) == len(own) >= spec.min_train
        assert not np.isin(own, parts.server_indices).any()
        assert not len(parts.test(k))
    again = given_out(splits[0], spec, seed)
    assert all(np.array_equal(*both) for both in zip(vars(parts).values(), vars(again).values(), strict=True))


@settings(deadline=None, max_examples=100)
@given(labels(), sharded, seeds)
def test_clients_have_their_shards_and_the_least_of_every_class(splits, spec, seed):
    train = splits[0]
    parts = given_out(train, spec, seed)
    size = (len(train) - spec.server) // spec.shards
    taken, present = int(size * spec.share + 1e-9), np.unique(train)
    for k in range(spec.clients):
        own = train[parts.train(k)]
        assert len(own) == spec.shards_each * taken + spec.least * len(present)
        assert all((own == label).sum() >= spec.least for label in present)
    # Without the least images, no two clients have one in common.
    bare = given_out(train, Shards(**vars(spec) | {"least": 0, "min_train": 0}), seed)
    assert len(np.unique(bare.train_indices)) == len(bare.train_indices)


@settings(deadline=None, max_examples=60)
@given(labels(), uniform, seeds)
def test_iid_clients_have_as_many_images_each_and_none_in_common(splits, spec, seed):
    parts = given_out(splits[0], spec, seed)
    assert [len(parts.train(k)) for k in range(spec.clients)] == [spec.images_each] * spec.clients
    assert len(np.unique(parts.train_indices)) == len(parts.train_indices)


@pytest.mark.parametrize(
    ("counts", "options", "images", "main", "shared"),
    [
        ([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], MNIST, 420, 4, 10),
        ([5000] * 10, CIFAR10, 2100, 2, 10),
        ([500] * 100, CIFAR100, 2200, 20, 2),
    ],
    ids=["mnist", "cifar10", "cifar100"],
)
def test_the_papers_numbers(counts, options, images, main, shared):
    """2, 2 and 20 shards: of as many classes, but that MNIST's straddle two each; of all others the least images alone. The
    server has 10 000."""
    train = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    parts = divide(train, train, Shards(**options, min_test=0), 3)
    assert len(parts.server_indices) == 10000
    for k in range(10):
        held = np.bincount(train[parts.train(k)], minlength=len(counts))
        assert held.sum() == images
        assert (held > shared).sum() <= main
        assert held.min() == shared
    server = np.bincount(train[parts.server_indices])
    assert (abs(server - 10000 * np.array(counts) / sum(counts)) <= 1).all()


def test_other_seeds_give_other_shards_and_images():
    train = np.repeat(np.arange(10), 100)
    spec = Shards(shards=10, shards_each=1, share=0.5, least=0, server=0, clients=5, min_test=0)
    one, two = (divide(train, train, spec, seed) for seed in (0, 1))
    assert [set(train[one.train(k)]) for k in range(5)] != [set(train[two.train(k)]) for k in range(5)]
    assert not np.array_equal(one.train_indices, two.train_indices)


def test_schemes_with_images_of_the_server_are_stored_and_checked(digits_dir, tmp_path):
    fetch("digits", tmp_path)
    own = {"shards": 20, "shards_each": 2, "share": 0.5, "least": 2}
    for spec, wrong in (
        (Shards(**own, server=100, min_test=0), "a client's image is the server's"),
        (IID(images_each=30, server=100, min_test=0), "two clients have an image"),
    ):
        path = partition.build("digits", spec, 0, tmp_path)
        parts = partition.load("digits", spec, 0, tmp_path)
        assert len(parts.server_indices) == 100
        assert overview.write("digits", spec, 0, tmp_path, tmp_path / "pictures")[2].exists()
        with np.load(path) as arrays:
            changed = dict(arrays)
        index = parts.server_indices[0] if "server's" in wrong else parts.train(1)[0]
        changed["train_indices"][0] = index
        write_npz(path, changed)
        with pytest.raises(InputError, match="does not deal each image once"):
            partition.load("digits", spec, 0, tmp_path)


# What is refused


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"alpha": 0}, "alpha: 0.0 is out of range; it must be above 0"),
        ({"alpha": -1.5}, "alpha: -1.5 is out of range; it must be above 0"),
        ({"alpha": float("nan")}, "alpha: expected a finite number, found nan"),
        ({"alpha": 1e10}, r"is out of range; it must be above 0 and at most 1e\+09"),
        ({"alpha": None}, "alpha: expected a number, found None"),
        ({}, r"alpha is missing; give a number above 0 and at most 1e\+09"),
        ({"alpha": "0.1"}, "alpha: expected a number, found '0.1'"),
        ({"alpha": 0.12345678}, "more digits than names hold; write 0.123457"),
        ({"alpha": 1, "clients": 0}, "clients: 0 is out of range; it must be at least 1"),
        ({"alpha": 1, "clients": 2.5}, "clients: expected a whole number, found 2.5"),
        ({"alpha": 1, "min_train": -1}, "min_train: -1 is out of range; it must be at least 0"),
        ({"alpha": 1, "min_test": True}, "min_test: expected a whole number, found True"),
        (
            {"scheme": "dirichlet", "alpha": 1},
            "no partition scheme is named 'dirichlet'; did you mean one of dirichlet_class_floor, ",
        ),
        ({"scheme": "classes_apart", "alpha": 1}, "1 means nothing with scheme classes_apart"),
        (
            {"scheme": "dirichlet_client", "alpha": 1, "min_test": 1},
            "min_test: 1, but scheme dirichlet_client deals no test images",
        ),
        ({"scheme": "labels5"}, "size is missing; give one of small, medium, large"),
        ({"scheme": "labels5", "size": "tiny"}, "size: 'tiny' is not a choice; valid: large, medium, small"),
        ({"scheme": "labels5", "size": "small", "alpha": 1}, "1 means nothing with scheme labels5"),
        ({"alpha": 1, "size": "small"}, "size: 'small' means nothing with scheme dirichlet_class_shared"),
        ({"scheme": "whole", "alpha": 1}, "1 means nothing with scheme whole"),
        ({"alpha": 1, "shards": 20}, "shards: 20 means nothing with scheme dirichlet_class_shared"),
        ({"scheme": "iid", "images_each": 5, "server": 1, "least": 2}, "least: 2 means nothing with scheme iid"),
        ({"scheme": "iid", "server": 1}, "images_each is missing; give a whole number at least 1"),
        ({"scheme": "iid", "images_each": 5, "server": -1}, "server: -1 is out of range; it must be at least 0"),
        ({"scheme": "shards"} | MNIST | {"share": 1.5}, "share: 1.5 is out of range; it must be above 0 and at most 1"),
        (
            {"scheme": "shards"} | MNIST | {"share": 0.12345678},
            "share: 0.12345678 has more digits than names hold; write 0.123457",
        ),
        ({"scheme": "shards"} | MNIST | {"share": True}, "share: expected a number, found True"),
        ({"scheme": "shards", "min_test": 1} | MNIST, "min_test: 1, but scheme shards deals no test images"),
        ({"scheme": "shards", "alpha": 1, "min_test": 0} | MNIST, "alpha: 1 means nothing with scheme shards"),
    ],
)
def test_wrong_specs(wrong, message):
    with pytest.raises(InputError, match="partition.*" + message):
        read(wrong)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Dirichlet(alpha=1, clients=11), "11 clients with at least 10 training images need 110, there are 100"),
        (Dirichlet(alpha=1, clients=101, min_train=0), "101 clients with at least 1 training"),
        (Dirichlet(alpha=1, clients=10, min_test=9), "at least 9 test images need 90, there are 80: at most 8"),
    ],
)
def test_more_clients_than_a_split_can_feed(spec, message):
    with pytest.raises(InputError, match=message):
        divide(np.zeros(100, int), np.zeros(80, int), spec, 0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"server": 100}, "partition.server: 100 of 100 images leave none"),
        ({"clients": 11}, "shards_each: 11 clients with 2 shards each need 22; there are 20"),
        ({"share": 0.1}, "share: 0.1 of a shard of 4 images is none"),
        ({"least": 60}, "least: a class has fewer than 60 images for a client"),
        ({"min_train": 9}, "a client gets 8 training images, fewer than min_train 9"),
    ],
)
def test_shards_that_cannot_be(more, message):
    own = {"clients": 10, "shards": 20, "shards_each": 2, "share": 1, "least": 0, "server": 10, "min_train": 0} | more
    with pytest.raises(InputError, match=message):
        divide(np.arange(100) % 2, np.zeros(9, int), Shards(**own, min_test=0), 0)


def test_iid_clients_that_cannot_be():
    spec = IID(images_each=10, server=10, min_test=0)
    with pytest.raises(InputError, match="images_each: 10 clients with 10 images each need 100; there are 90"):
        divide(np.zeros(100, int), np.zeros(9, int), spec, 0)


def test_the_redraw_is_bounded():
    split = np.zeros(100, int)
    with pytest.raises(InputError, match=r"none of 1000 draws with alpha 0\.001 .* larger alpha, fewer clients"):
        divide(split, split, Dirichlet(alpha=0.001, clients=10), 0)


# Files


def test_label_and_filename():
    assert (
        partition.filename("cifar10", Dirichlet(alpha=0.05), 3)
        == "partitions/cifar10/dirichlet_class_shared-alpha~0.05-clients~10-seed~3.npz"
    )
    assert Dirichlet(alpha=100.0, min_train=0, min_test=0).label == (
        "dirichlet_class_shared-alpha~100-clients~10-min_train~0-min_test~0"
    )
    assert Whole(clients=2).label == "whole-clients~2"
    assert Shards(**MNIST, min_test=0).label == (
        "shards-clients~10-shards~25-shards_each~2-share~0.08-least~10-server~10000-min_test~0"
    )
    assert IID(images_each=4000, server=10000, min_test=0).label == (
        "iid-clients~10-images_each~4000-server~10000-min_test~0"
    )


def test_what_a_partition_was_made_from_is_told_as_ever():
    """Files from before there were options of single schemes are still good."""
    told = {"scheme": "classes_apart", "alpha": None, "clients": 2, "min_train": 10, "min_test": 1}
    assert ClassesApart(clients=2).to_dict() == told


@pytest.fixture
def data(mirror, tmp_path):
    fetch("toy-idx", tmp_path / "data", mirror)
    return tmp_path / "data"


def test_build_once_and_load(data):
    path = partition.build("toy-idx", SPEC, 0, data)
    before = path.stat().st_mtime_ns
    assert partition.build("toy-idx", SPEC, 0, data).stat().st_mtime_ns == before
    parts = partition.load("toy-idx", SPEC, 0, data)
    assert len(parts.train_offsets) == 4 + 1
    assert sum(len(parts.test(client)) for client in range(4)) == 30
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_equal_partitions_are_equal_files(data):
    path = partition.build("toy-idx", SPEC, 0, data)
    content = path.read_bytes()
    path.unlink()
    assert partition.build("toy-idx", Dirichlet(alpha=1.0, clients=4, min_train=2), 0, data) == path
    assert path.read_bytes() == content


@pytest.mark.parametrize("damage", [lambda b: b[:-200], lambda b: b[:900] + b"\xff\xff" + b[902:], lambda b: b""])
def test_damaged_partition(damage, data):
    path = partition.build("toy-idx", SPEC, 0, data)
    path.write_bytes(damage(path.read_bytes()))
    for use in (partition.load, partition.build):
        with pytest.raises(InputError, match=r"truncated or changed: delete it and run `bayesfed partition`"):
            use("toy-idx", SPEC, 0, data)


def test_every_flipped_byte_and_every_cut_of_a_partition_is_noticed(data):
    """One bit of each byte, which differs from byte to byte."""
    path = partition.build("toy-idx", SPEC, 0, data)
    whole = path.read_bytes()
    for content in (*flips(whole), *cuts(whole)):
        put(path, content)
        with pytest.raises(ValueError, match="not as it was written"):
            read_npz(path)


def test_partition_of_other_parameters_or_missing(data):
    path = partition.build("toy-idx", SPEC, 0, data)
    path.rename(data / partition.filename("toy-idx", SPEC, 1))
    with pytest.raises(InputError, match="made from other data or parameters"):
        partition.load("toy-idx", SPEC, 1, data)
    with pytest.raises(InputError, match=r"no partition .*: run `bayesfed partition` first"):
        partition.load("toy-idx", SPEC, 0, data)
    with pytest.raises(InputError, match="whole needs no partition file"):
        partition.build("toy-idx", Whole(clients=2), 0, data)


def test_partitions_have_a_place_of_their_own(data, tmp_path):
    elsewhere = tmp_path / "shares"
    path = partition.build("toy-idx", SPEC, 0, data, elsewhere)
    assert data / "partitions" / path.relative_to(elsewhere) == data / partition.filename("toy-idx", SPEC, 0)
    assert partition.load("toy-idx", SPEC, 0, data, elsewhere).train_offsets.size == SPEC.clients + 1
    assert not (data / "partitions").exists()
    with pytest.raises(InputError, match="no partition"):
        partition.load("toy-idx", SPEC, 0, data)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_place_that_cannot_be_written_to_is_told_with_the_way_out(data, monkeypatch, number):
    def refuse(path, arrays):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(partition, "write_npz", refuse)
    told = rf"^{data / 'partitions' / 'toy-idx'}: partitions cannot be written here \(.*\); give .* by --partitions DIR, or"
    with pytest.raises(InputError, match=told):
        partition.build("toy-idx", SPEC, 0, data)


# The picture and the statistics


def test_overview_writes_pictures_and_statistics(data, tmp_path):
    import pandas as pd

    partition.build("toy-idx", SPEC, 0, data)
    paths = overview.write("toy-idx", SPEC, 0, data, tmp_path / "out")
    again = overview.write("toy-idx", SPEC, 0, data, tmp_path / "again")
    assert [path.name for path in paths] == [f"{SPEC.label}-seed~0{end}" for end in (".svg", ".png", ".csv")]
    assert paths[0].read_bytes() == again[0].read_bytes()
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    table = pd.read_csv(paths[2])
    totals = ["client", "split", "images", "classes", "largest_class_share", "label_entropy"]
    by_class = [name for name in table if name.startswith("class_")]
    assert list(table) == [*totals, *by_class]
    assert (table[by_class].sum(axis=1) == table["images"]).all()
    assert ((table[by_class] > 0).sum(axis=1) == table["classes"]).all()
    assert table.groupby("split")["images"].sum().to_dict() == {"train": 60, "test": 30}
    parts = partition.load("toy-idx", SPEC, 0, data)
    assert table.query("split == 'train'")["images"].tolist() == [len(parts.train(k)) for k in range(4)]


def test_statistics_of_known_counts():
    held = {"train": np.array([[4, 4, 0, 0], [0, 0, 5, 0], [0, 0, 0, 0]])}
    table = overview.statistics(held)
    assert table["images"].tolist() == [8, 5, 0]
    assert table["classes"].tolist() == [2, 1, 0]
    assert table.filter(regex=r"^class_\d").to_numpy().tolist() == held["train"].tolist()
    assert table["label_entropy"].tolist()[:2] == [1.0, 0.0]
    assert table["largest_class_share"].tolist()[:2] == [0.5, 1.0]
    assert table.iloc[2][["largest_class_share", "label_entropy"]].isna().all()
