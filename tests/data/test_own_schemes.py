"""Partition schemes of a user's own, and those of ours that declare their options as such do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import own_data

import bayesfed
from bayesfed import cli
from bayesfed.core import plugins
from bayesfed.core.errors import InputError
from bayesfed.data import partition, store
from bayesfed.data.schemes import Scheme, divide, read
from bayesfed.runs import run_file

GUIDE = (Path(__file__).parents[2] / "docs/guides/your-partition.md").read_text(encoding="utf-8")
HALVING = re.findall(r"<!-- a scheme: .*? -->\n```python\n(.*?)```", GUIDE, re.DOTALL)[0]
LABELS = np.arange(400) % 10, np.arange(100) % 10

Put = Callable[[str], None]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """A function that writes the scheme in `own/partitions/mine.py`, and takes the folder into use."""
    monkeypatch.chdir(tmp_path)
    Path("own/partitions").mkdir(parents=True)

    def write(text: str) -> None:
        Path("own/partitions/mine.py").write_text(text)
        plugins.use("own")

    yield write
    plugins.use(None)


def spec_of(**keys: Any) -> Scheme:
    return read(keys)


def mapping(**keys: Any) -> dict[str, Any]:
    partition = {"scheme": "halving", "clients": 4} | keys
    return own_data.mapping(dataset="digits", partition=partition, batch_size=64)


def test_the_scheme_in_the_docs_trains(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    put(HALVING)
    result = bayesfed.train(mapping(factor=0.25), "out")
    assert result.provenance["plugins"].keys() == {"partitions/halving"}
    shares = partition.load("digits", result.run.partition, 0, Path("data"))
    assert np.diff(shares.train_offsets).tolist() == [1082, 271, 68, 17]
    assert cli.main(["list", "partitions", "--plugins", "own"]) == 0
    assert (
        "halving                 Give each client `factor` of the images of the one before it."
        in capsys.readouterr().out
    )


def test_its_source_and_its_options_are_in_the_key_and_in_the_partitions_name(put: Put) -> None:
    found = []
    for text, factor in ((HALVING, 0.5), (HALVING, 0.25), (HALVING + "\n", 0.5)):
        put(text)
        run = run_file.resolve(mapping(factor=factor))
        found.append((run.key, run.partition_file))
        partition.build("digits", run.partition, 0, Path("data"))
    assert len({key for key, _ in found}) == len({file for _, file in found}) == 3
    assert "halving-clients~4-factor~0.25-min_test~0-seed~0-" in str(found[1][1])
    assert run_file.resolve(mapping()).key == found[2][0]  # a default is no part of it


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"factor": 2.0}, "partition.factor: 2.0 is out of range; it must be above 0 and at most 1"),
        ({"factr": 0.5}, "partition.factr: unknown key; did you mean 'factor'?"),
        ({"clents": 5}, "partition.clents: unknown key; did you mean 'clients'?"),
        ({"factor": 0.12345678}, "partition.factor: 0.12345678 has more digits than names hold; write 0.123457"),
        ({"min_test": 1}, "partition.min_test: 1, but scheme halving deals no test images; set it to 0"),
        ({"alpha": 1.0}, "partition.alpha: 1.0 means nothing with scheme halving; leave it out"),
        ({"scheme": "halvng"}, "partition.scheme: no partition scheme is named 'halvng'; did you mean 'halving'?"),
    ],
)
def test_its_options_are_checked_as_ours_are(put: Put, keys: dict[str, Any], message: str) -> None:
    put(HALVING)
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        run_file.resolve(mapping(**keys))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("SCHEME = Halving", "", "own/partitions/mine.py: the module has no SCHEME"),
        ("SCHEME = Halving", "SCHEME = len", "mine.py: SCHEME: expected a class derived from bayesfed.data.schemes.Scheme"),
        ("def draw", "def drew", "mine.py: SCHEME: the class has no `draw`"),
        ("factor: float", "factor: dict", "mine.py: SCHEME: its option 'factor' has the type <class 'dict'>"),
        ("factor: float", "clients: float", "mine.py: SCHEME: its option 'clients' is a key of every partition, a whole number; rename it"),
        ("@dataclass(frozen=True, kw_only=True)", "", "mine.py: SCHEME: its option 'factor' is no field; write @dataclass(frozen=True, kw_only=True)"),
        ('"halving"', '"iid"', "mine.py: the partition scheme 'iid' is there already (bayesfed); rename yours"),
        ("**", "* 'x' **", "own/partitions/mine.py, line 22: TypeError: "),
        ("np.split(images, cuts)", "np.split(images, cuts)[1:]", "mine.py: partition scheme 'halving': it deals to 3 clients of 4"),
        ("permutation(", "integers(9, size=", "partition scheme 'halving': it does not deal each image once"),
        ("return of_training_images(", "return len(", "expected a Partition of `draw`, found int"),
        ("0.5, above=0", "1e-3, above=0", "partition.min_train: 10, but a client gets 0 train images; lower it"),
    ],
)  # fmt: skip
def test_a_wrong_scheme_is_refused_in_one_line(put: Put, old: str, new: str, message: str) -> None:
    assert old in HALVING
    put(HALVING.replace(old, new))
    with pytest.raises(InputError) as caught:
        bayesfed.train(mapping(), "out")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("offsets", ["[3, 9, 400]", "[0, 300, 200]", "[0, 9, 390]", "[-400, 9, 400]"])
@pytest.mark.parametrize("scheme", ["", "\n    in_common = True"])
def test_wrong_offsets_are_refused(put: Put, offsets: str, scheme: str) -> None:
    """They would give a client no images, or leave some out."""
    wrong = f"Partition(images, np.array({offsets}), images[:0], np.zeros(3, np.int64))"
    text = HALVING.replace("import Scheme, ", "import Partition, Scheme, ").replace("images, cuts", "images[:0], [0]")
    text = text.replace('name = "halving"', f'name = "halving"{scheme}')
    put(text.replace("of_training_images(np.split(images[:0], [0]))", wrong))
    with pytest.raises(InputError, match="'halving': its offsets must go from 0 to 400 and never fall, found "):
        divide(*LABELS, spec_of(scheme="halving", clients=2, min_train=0), 0)


def test_texts_and_lists_make_names_of_files(put: Put) -> None:
    """A text that is no name, and a label that is longer than a file's name may be, become digests."""
    more = 'word: str = "plain"\n    words: tuple[str, ...] = ()\n    factor: float'
    put(HALVING.replace("factor: float", more, 1))

    def label(**keys: Any) -> str:
        return spec_of(scheme="halving", **keys).label

    assert label(words=["a.b", "c_d"]) == "halving-clients~10-word~plain-words~a.b+c_d-factor~0.5-min_test~0"
    labels = [label(word=word) for word in ("../up", "a/b", "a b", "x" * 300, "y" * 300)]
    labels += [label(words=words) for words in (["a/b", "c"], ["word"] * 99)]
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"halving[\w.+~-]{1,143}", one) for one in labels)


def test_a_pooled_scheme_sets_no_images_aside(put: Put) -> None:
    """A run would have lost them: its splits are what clients hold."""
    pooled = HALVING.replace('name = "halving"', 'name = "halving"\n    pooled = True')
    put(pooled)
    assert len(divide(*LABELS, spec_of(scheme="halving", clients=2), 0).train_indices) == 400
    put(pooled.replace("np.split(images, cuts)", "np.split(images[9:], cuts), images[:9]"))
    with pytest.raises(InputError, match="'halving': server_indices: a pooled scheme sets no images aside; deal them"):
        divide(*LABELS, spec_of(scheme="halving", clients=2), 0)


def test_quantity_skew_deals_shares_of_all_images() -> None:
    """The same shares in both splits, of every class alike; NIID-Bench's proportions ~ Dir(beta)."""
    spec = spec_of(scheme="quantity_skew", beta=0.5, clients=5, min_train=1, min_test=0)
    sizes = []
    for seed in range(300):
        shares = divide(*LABELS, spec, seed)
        assert sorted(shares.train_indices) == list(range(400))
        assert sorted(shares.test_indices) == list(range(100))
        train, test = (np.diff(offsets) for offsets in (shares.train_offsets, shares.test_offsets))
        np.testing.assert_allclose(train / 400, test / 100, atol=0.015)
        sizes.append(train / 400)
    # Dir(beta) over K clients has mean 1 / K and variance (K - 1) / (K^2 (K beta + 1)); empty clients are drawn again.
    np.testing.assert_allclose(np.mean(sizes), 0.2)
    np.testing.assert_allclose(np.var(sizes), 4 / (25 * 3.5), rtol=0.15)
    largest = divide(*LABELS, spec, 0).train(int(np.argmax(sizes[0])))
    assert set(LABELS[0][largest]) == set(range(10))
    with pytest.raises(InputError, match=r"none of 1000 draws with beta 1e-09 gave each of 5 clients 1 training"):
        divide(*LABELS, spec_of(scheme="quantity_skew", beta=1e-9, clients=5, min_train=1, min_test=0), 0)


def grey(count: int) -> store.Dataset:
    """Grey images, whose pixels are all 0.5."""
    images = np.full((count, 1, 16, 16), 128, np.uint8)
    return store.Dataset(None, images, np.arange(count) % 10, images, np.arange(count) % 10)  # type: ignore[arg-type]


def test_noise_grows_from_client_to_client() -> None:
    """Variance sigma k / K of pixels from 0 to 1, in both splits, other noise in each; no client has another's."""
    data, spec = grey(100), spec_of(scheme="noise_skew", sigma=0.02, clients=4)
    shares = divide(data.train_labels, data.test_labels, spec, 3)
    found, same = partition.as_dealt(data, shares, spec, 3)
    assert same is shares
    for split in ("train", "test"):
        images = getattr(found, f"{split}_images")
        assert images.dtype == np.uint8
        for k in range(4):
            own = images[getattr(shares, split)(k)] / 255
            assert len(own) == 25
            np.testing.assert_allclose(own.var(), 0.02 * (k + 1) / 4, rtol=0.1)
    assert not np.array_equal(found.train_images[shares.train(0)], found.test_images[shares.test(0)])
    again = partition.as_dealt(data, shares, spec, 3)[0]
    np.testing.assert_array_equal(found.train_images, again.train_images)
    assert (data.train_images == 128).all()


def test_images_are_turned_from_client_to_client() -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), np.uint8)
    data = store.Dataset(None, images, np.arange(40) % 10, images, np.arange(40) % 10)  # type: ignore[arg-type]
    spec = spec_of(scheme="rotation_skew", angles=3, clients=4)
    shares = divide(data.train_labels, data.test_labels, spec, 0)
    found, _ = partition.as_dealt(data, shares, spec, 0)
    for k, quarters in enumerate((0, 1, 2, 0)):
        for split in ("train", "test"):
            own = getattr(shares, split)(k)
            turned = np.rot90(images[own], quarters, (2, 3))
            np.testing.assert_array_equal(getattr(found, f"{split}_images")[own], turned)


def test_a_skew_changes_what_is_trained_on(tmp_path: Path) -> None:
    """Strong noise leaves little to learn, and a run of it is another one."""

    def run(sigma: float) -> Any:
        keys = {"scheme": "noise_skew", "sigma": sigma, "clients": 2}
        changes = {"partition": keys, "plugins": None, "rounds": 3, "local_epochs": 2}
        return bayesfed.train(mapping() | changes, tmp_path / f"{sigma}", data=tmp_path / "data")

    clean, noisy = run(1e-6), run(100.0)
    assert clean.summary["key"] != noisy.summary["key"]
    assert clean.summary["global"]["accuracy_last"] > noisy.summary["global"]["accuracy_last"] + 0.2


def test_what_a_scheme_shows_its_clients_is_checked(put: Put) -> None:
    more = "    def seen(self, images, client, random):\n        return images[:, :, ::2]\n\n\nSCHEME"
    put(HALVING.replace("SCHEME", more, 1))
    with pytest.raises(
        InputError, match=r"mine.py: partition scheme 'halving': expected uint8 \(\d+, 1, 32, 32\) of `seen`, found"
    ):
        bayesfed.train(mapping(), "out")
    put(HALVING.replace('name = "halving"', 'name = "halving"\n    in_common = True').replace("SCHEME", more, 1))
    with pytest.raises(InputError, match="none can see them otherwise than the others; leave `seen` out"):
        run_file.resolve(mapping())


def test_a_scheme_that_draws_without_the_seed_is_refused(put: Put) -> None:
    """Else one key would be of many partitions."""
    put(re.sub(r"rng\.generator\([^)]*\)", "np.random.default_rng()", HALVING))
    with pytest.raises(
        InputError, match=r"mine\.py: partition scheme 'halving': draw was called again with the same seed and dealt"
    ):
        divide(*LABELS, spec_of(scheme="halving", clients=4, factor=0.5), 0)
