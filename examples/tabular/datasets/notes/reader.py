"""Text as TF-IDF vectors. Vocabulary and document frequencies are those of the training notes."""

import csv

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer


def read(folder):
    with open(folder / "notes.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    texts = {split: [row["text"] for row in rows if row["split"] == split] for split in ("train", "test")}
    labels = {split: np.array([int(row["label"]) for row in rows if row["split"] == split]) for split in texts}
    vectorizer = TfidfVectorizer().fit(texts["train"])
    return {split: (vectorizer.transform(texts[split]).toarray().astype(np.float32), labels[split]) for split in texts}
