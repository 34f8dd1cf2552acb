"""How notes.csv was drawn: short notes of three clinics, from words of their own and words that all of them use."""

import csv
from pathlib import Path

import numpy as np

OWN = (
    [
        "heart",
        "pulse",
        "murmur",
        "valve",
        "rhythm",
        "stent",
        "artery",
        "pressure",
        "ankle-swelling",
        "angina",
        "palpitations",
        "aorta",
    ],
    ["skin", "rash", "itch", "mole", "ointment", "eczema", "blister", "sun", "scalp", "nail", "lesion", "biopsy"],
    [
        "knee",
        "joint",
        "fracture",
        "cast",
        "tendon",
        "ligament",
        "sprain",
        "shoulder",
        "hip",
        "crutches",
        "bone",
        "swelling",
    ],
)
COMMON = [
    "patient",
    "reports",
    "since",
    "week",
    "pain",
    "left",
    "right",
    "no",
    "better",
    "worse",
    "after",
    "visit",
    "advised",
    "control",
    "again",
    "mild",
]


def draw(random: np.random.Generator, clinic: int) -> str:
    """Draw a note: a third of its words are the clinic's own, and now and then one is another's."""
    words = [
        random.choice(
            OWN[clinic if random.random() < 0.85 else random.integers(3)] if random.random() < 0.35 else COMMON
        )
        for _ in range(random.integers(8, 20))
    ]
    return " ".join(words)


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    with Path(__file__).with_name("notes.csv").open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["split", "label", "text"])
        for split, count in (("train", 450), ("test", 150)):
            out.writerows([split, number % 3, draw(generator, number % 3)] for number in range(count))
