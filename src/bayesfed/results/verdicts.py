"""Verdicts on claims, in the same words in claims.csv, on pages, in the report and in README."""

from collections.abc import Iterable

SUPPORTED, MOSTLY, MIXED, MOSTLY_NOT, CONTRADICTED = "supported", "mostly", "mixed", "mostly not", "contradicted"
WORDS = (SUPPORTED, MOSTLY, MIXED, MOSTLY_NOT, CONTRADICTED)
NOT_RUN = "not run"
PRELIMINARY, OFF_PROTOCOL = "preliminary", "off-protocol"


def word(holds: int, of: int, most: bool = False) -> str:
    """Judge a claim that holds in so many of its tests: all, at least 2/3, less, under 1/3, none.

    `most`: a claim of most settings is supported where it holds in more than half.
    """
    if not of:
        return NOT_RUN
    if holds == of or (most and 2 * holds > of):
        return SUPPORTED
    if not holds:
        return CONTRADICTED
    return MOSTLY if 3 * holds >= 2 * of else MIXED if 3 * holds >= of else MOSTLY_NOT


def flags(of: int, planned: int, part: str, apart: str) -> list[str]:
    """List what limits a verdict: fewer tests than planned, or runs that are not the paper's, each with its reason."""
    if not of:
        return []
    early = f"{PRELIMINARY} ({part})" if part else PRELIMINARY if of < planned else ""
    return [flag for flag in (early, f"{OFF_PROTOCOL} ({apart})" if apart else "") if flag]


def told(verdict: str, holds: int, of: int, limits: Iterable[str]) -> str:
    """Write a verdict with its count and flags: `mostly 9/12, preliminary`."""
    return ", ".join([f"{verdict} {holds}/{of}" if of else verdict, *limits])
