"""Pure statistics over the rounds of a run."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def quantile(samples: Sequence[float], q: float) -> float:
    """Return the q-quantile (0 to 1), interpolated between the nearest samples."""
    if not samples:
        raise ValueError("quantile of no samples")
    ordered = sorted(samples)
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True, slots=True)
class Summary:
    """The middle of the samples and the band that 80 % of them lie in."""

    median: float
    low: float
    high: float


def summarise(samples: Sequence[float]) -> Summary:
    """Reduce the rounds to median, p10 and p90."""
    return Summary(statistics.median(samples), quantile(samples, 0.1), quantile(samples, 0.9))


# Compare within a round, then take the median: what slows the whole machine for a while
# slows both sides of that round and cancels out, which a ratio of two medians would not do.
def median_ratio(samples: Sequence[float], base: Sequence[float]) -> float:
    """Return the median over the rounds of sample / base."""
    return statistics.median(a / b for a, b in zip(samples, base, strict=True))


def median_excess(samples: Sequence[float], base: Sequence[float]) -> float:
    """Return the median over the rounds of sample - base."""
    return statistics.median(a - b for a, b in zip(samples, base, strict=True))


def jain(shares: Sequence[float]) -> float:
    """Return Jain's fairness index: 1 when all shares are equal, 1/n when one takes everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
