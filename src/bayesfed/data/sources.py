"""The published datasets: where each comes from, how its files look, and how they are verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from bayesfed.data.source import File, Source


def _cifar_archive(name: str, md5: str) -> tuple[File, ...]:
    return (File(name, (f"https://www.cs.toronto.edu/~kriz/{name}",), md5),)


def _idx_files(name: str, hosts: tuple[str, ...], md5s: Mapping[str, str]) -> tuple[File, ...]:
    return tuple(File(f"{name}/{file}", tuple(f"{host}/{file}" for host in hosts), m) for file, m in md5s.items())


def _idx_parts(name: str) -> Mapping[str, tuple[str, ...]]:
    pairs = {
        split: (f"{name}/{stem}-images-idx3-ubyte.gz", f"{name}/{stem}-labels-idx1-ubyte.gz")
        for split, stem in (("train", "train"), ("test", "t10k"))
    }
    return MappingProxyType(pairs)


_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
_CIFAR_LICENCE = "none stated; the authors ask to cite Krizhevsky (2009)"
_DIGITS_HOME = "https://archive.ics.uci.edu/dataset/80"
_DIGITS_LICENCE = "CC BY 4.0 (UCI Machine Learning Repository)"

SOURCES: dict[str, Source] = {
    "cifar10": Source(
        name="cifar10",
        torchvision="cifar-10-batches-py",
        title="CIFAR-10",
        licence=_CIFAR_LICENCE,
        homepage=_CIFAR_HOME,
        classes=10,
        channels=3,
        size=32,
        train=50000,
        test=10000,
        format="cifar",
        label_bytes=1,
        files=_cifar_archive("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        parts=MappingProxyType(
            {
                "train": tuple(f"cifar-10-batches-bin/data_batch_{i}.bin" for i in range(1, 6)),
                "test": ("cifar-10-batches-bin/test_batch.bin",),
            }
        ),
        fingerprints=MappingProxyType(
            {
                "train": "55a61f79a40ece2ceda9fb5f9f7078f6ea2fc4952489cef56682bcf92cfcc260",
                "test": "325704b01eb92e1e2a6215ae6a916bb7db7de054af0c496be1c7be2e0fcfbf5f",
            }
        ),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        prepare="none",
        augment="crop_flip",
    ),
    "cifar100": Source(
        name="cifar100",
        torchvision="cifar-100-python",
        title="CIFAR-100",
        licence=_CIFAR_LICENCE,
        homepage=_CIFAR_HOME,
        classes=100,
        channels=3,
        size=32,
        train=50000,
        test=10000,
        format="cifar",
        label_bytes=2,
        files=_cifar_archive("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
        parts=MappingProxyType({"train": ("cifar-100-binary/train.bin",), "test": ("cifar-100-binary/test.bin",)}),
        fingerprints=MappingProxyType(
            {
                "train": "7077d87fc363f92dbf1245f13ba80561d7b33a96c79ad57168d49dc172aaa92b",
                "test": "96adb3db8da7632dbb350559a17b9f585fab5b17675de5fc8f6761384196b294",
            }
        ),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        prepare="none",
        augment="crop_flip",
    ),
    "mnist": Source(
        name="mnist",
        torchvision="MNIST/raw",
        title="MNIST",
        licence="CC BY-SA 3.0",
        homepage="http://yann.lecun.com/exdb/mnist/",
        classes=10,
        channels=1,
        size=28,
        train=60000,
        test=10000,
        format="idx",
        label_bytes=1,
        files=_idx_files(
            "mnist",
            ("http://yann.lecun.com/exdb/mnist", "https://ossci-datasets.s3.amazonaws.com/mnist"),
            {
                "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
        parts=_idx_parts("mnist"),
        fingerprints=MappingProxyType(
            {
                "train": "3655811c0e1223700a4714a92a51f55bd215ed7dc1fa2baa4326a2b58042d82d",
                "test": "634538fb34c5277fce98470b8b285d1e8419eb87f328da42ef1faf690d2c3911",
            }
        ),
        mean=(0.1307,),
        std=(0.3081,),
        prepare="pad",
    ),
    "fashion-mnist": Source(
        name="fashion-mnist",
        torchvision="FashionMNIST/raw",
        title="Fashion-MNIST",
        licence="MIT",
        homepage="https://github.com/zalandoresearch/fashion-mnist",
        classes=10,
        channels=1,
        size=28,
        train=60000,
        test=10000,
        format="idx",
        label_bytes=1,
        files=_idx_files(
            "fashion-mnist",
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
            {
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
        parts=_idx_parts("fashion-mnist"),
        fingerprints=MappingProxyType(
            {
                "train": "0c69d5cdeb902b69084012f812f066de080317bb3c64f43ca87f910d8ec86906",
                "test": "90c92c0507755a7d443edde8297ce4d0f131e42884e2e87e7fc9b81ffe215258",
            }
        ),
        mean=(0.2860,),
        std=(0.3530,),
        prepare="pad",
    ),
    "digits": Source(
        name="digits",
        title="Digits",
        licence=_DIGITS_LICENCE,
        homepage=_DIGITS_HOME,
        classes=10,
        channels=1,
        size=8,
        train=1438,
        test=359,
        format="scikit-learn",
        label_bytes=1,
        files=(),
        parts=MappingProxyType({}),
        fingerprints=MappingProxyType(
            {
                "train": "d6cadb34993721b09649de2f17cf6d01888cef43d9ab992b9355493132afcf3e",
                "test": "1dfac911ad9f57e35e3c9e76f965f126f65e15914f1e6b62186c285f6d300ec4",
            }
        ),
        mean=(0.3059,),
        std=(0.3760,),
        prepare="enlarge",
    ),
}
SOURCES["kmnist"] = replace(
    SOURCES["mnist"],
    name="kmnist",
    torchvision="KMNIST/raw",
    title="KMNIST",
    licence="CC BY-SA 4.0",
    homepage="http://codh.rois.ac.jp/kmnist/",
    files=_idx_files(
        "kmnist",
        ("http://codh.rois.ac.jp/kmnist/dataset/kmnist",),
        {
            "train-images-idx3-ubyte.gz": "bdb82020997e1d708af4cf47b453dcf7",
            "train-labels-idx1-ubyte.gz": "e144d726b3acfaa3e44228e80efcd344",
            "t10k-images-idx3-ubyte.gz": "5c965bf0a639b31b8f53240b1b52f4d7",
            "t10k-labels-idx1-ubyte.gz": "7320c461ea6c1c855c0b718fb2a4b134",
        },
    ),
    parts=_idx_parts("kmnist"),
    fingerprints=MappingProxyType({}),
    mean=(),
    std=(),
)
SOURCES["svhn"] = Source(
    name="svhn",
    torchvision=".",
    title="SVHN",
    licence="for non-commercial use only",
    homepage="http://ufldl.stanford.edu/housenumbers/",
    classes=10,
    channels=3,
    size=32,
    train=73257,
    test=26032,
    format="mat",
    label_bytes=1,
    files=(
        File(
            "svhn/train_32x32.mat",
            ("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
            "e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
        File(
            "svhn/test_32x32.mat",
            ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
            "eb5a983be6a315427106f1b164d9cef3",
        ),
    ),
    parts=MappingProxyType({"train": ("svhn/train_32x32.mat",), "test": ("svhn/test_32x32.mat",)}),
    fingerprints=MappingProxyType({}),
    mean=(),
    std=(),
    prepare="none",
)
# Letters alone, as FedPPD takes them. LEAF offers a script that makes its files from those of NIST, and no files.
SOURCES["femnist"] = Source(
    name="femnist",
    title="FEMNIST",
    licence="BSD 2-Clause (LEAF); NIST Special Database 19 is in the public domain",
    homepage="https://github.com/TalwalkarLab/leaf/tree/master/data/femnist",
    classes=52,
    channels=1,
    size=28,
    train=0,  # these two are known when it has been fetched
    test=0,
    format="leaf",
    label_bytes=1,
    files=(),
    parts=MappingProxyType({"train": ("femnist/train",), "test": ("femnist/test",)}),
    fingerprints=MappingProxyType({}),
    mean=(0.0,),  # FedPPD normalises no letters
    std=(1.0,),
    prepare="none",
)
# The second task of the multi-task demo: the same images in the same splits, labelled even (0) or odd (1).
SOURCES["digits-parity"] = replace(
    SOURCES["digits"],
    name="digits-parity",
    title="Digits, even or odd",
    classes=2,
    fingerprints=MappingProxyType(
        {
            "train": "3f5409a72240f6ccf97cc6ff0a911cc22f646f82507ea6976c81af8d0d756908",
            "test": "aacceaaeb5777d7ea087b07d4c788f9943820b165c0d328df0475c808ed907f0",
        }
    ),
)
# OOD data of the demo: the same images, turned by a quarter to the left.
SOURCES["digits-turned"] = replace(
    SOURCES["digits"],
    name="digits-turned",
    title="Digits, turned",
    fingerprints=MappingProxyType(
        {
            "train": "2ddc9c20f0d072394e96f3d1301fbf6c568f29a6e862f3203b8077c0603bfe51",
            "test": "69a77257b7afabd2b4b2f9ea66ede50f41f2308c28ec217ec6b272ecd7bce4d1",
        }
    ),
)
