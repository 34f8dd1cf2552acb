"""The machines of runs, in words, from their `provenance.json`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bayesfed.results.formatting import unique

MARKS = re.compile(r"\((R|TM)\)| Processor| CPU| \d+-Core| @ [\d.]+ ?GHz| \d+GB HBM\d")


def machines(provenance: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the machines of a run, in order if it was resumed, each with its numbers of threads on a CPU."""
    found: dict[str, list[str]] = {}
    for one in provenance.get("sessions", [{"by": provenance}]):
        by = one["by"]
        found.setdefault(by["hardware"], []).extend([str(by["threads"])] if by["device"] == "cpu" else [])
    return found


def place(provenance: Mapping[str, Any]) -> str:
    """Describe a run's machines and precision: `AMD EPYC, 1 then 2 threads, bf16`."""
    told = [", ".join([name, *in_threads(unique(of_one), " then ")]) for name, of_one in machines(provenance).items()]
    return f"{' then '.join(told)}, {provenance['precision']}"


def names(provenances: Iterable[Mapping[str, Any]]) -> str:
    """Name the machines of several runs in one short line, without marks and clocks: `AMD EPYC, Intel Xeon, NVIDIA H200`."""
    return ", ".join(unique(MARKS.sub("", name) for one in provenances for name in machines(one)))


def places(provenances: Iterable[Mapping[str, Any]]) -> str:
    """Describe the machines of several runs, each kind once: `AMD EPYC (1 or 2 threads, bf16) and H200 (fp32)`."""
    found: dict[tuple[str, str], list[str]] = {}
    for provenance in provenances:
        for name, threads in machines(provenance).items():
            found.setdefault((name, provenance["precision"]), []).extend(threads)
    return " and ".join(
        f"{name} ({', '.join([*in_threads(sorted(set(threads), key=int), ' or '), precision])})"
        for (name, precision), threads in found.items()
    )


def in_threads(numbers: Sequence[str], between: str) -> list[str]:
    """Numbers of threads in words, or none at all where there are none, as of a GPU."""
    return [f"{between.join(numbers)} thread{'s' * (list(numbers) != ['1'])}"] if numbers else []
