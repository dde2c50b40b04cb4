"""How well a Gaussian with a normal-inverse-Wishart prior explains rows, and what splits and merges gain by it.

Everything in float64. A log-determinant is taken of the smaller of the two matrices that share it: in 768 dimensions a
cluster of 30 rows needs one of 31 x 31.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, multigammaln

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prior:
    """Of every cluster's Gaussian."""

    mean: Floats
    scale: float = 0.005
    kappa: float = 1e-4

    @property
    def dim(self) -> int:
        """Of the rows."""
        return len(self.mean)

    @property
    def nu(self) -> int:
        """Degrees of freedom."""
        return self.dim + 1

    def centre(self, rows: Floats) -> Floats:
        """Posterior mean of a cluster's centre."""
        return np.asarray((rows.sum(0) + self.kappa * self.mean) / (len(rows) + self.kappa))

    def log_marginal(self, rows: Floats, centre: Floats) -> float:
        """Log probability of the rows, scattered about ``centre``."""
        n, d = rows.shape
        kappa, nu = self.kappa + n, self.nu + n
        away = np.concatenate([rows - centre, math.sqrt(self.kappa * n / kappa) * (centre - self.mean)[None]])
        gram = away @ away.T if len(away) <= d else away.T @ away
        before = d * math.log(self.scale)
        after = before + float(np.linalg.slogdet(np.eye(len(gram)) + gram / self.scale)[1])
        return float(
            -n * d / 2 * math.log(math.pi)
            + multigammaln(nu / 2, d)
            - multigammaln(self.nu / 2, d)
            + self.nu / 2 * before
            - nu / 2 * after
            + d / 2 * (math.log(self.kappa) - math.log(kappa))
        )

    def gain(self, first: Floats, second: Floats, centres: tuple[Floats, Floats, Floats]) -> float:
        """Log of how much likelier two clusters are than one; ``centres`` are of the first, the second and both."""
        both = np.concatenate([first, second])
        ll = [self.log_marginal(*pair) for pair in zip((first, second, both), centres, strict=True)]
        counts = gammaln(len(first)) + gammaln(len(second)) - gammaln(len(both))
        return float(counts + ll[0] + ll[1] - ll[2])

    def split_gain(self, first: Floats, second: Floats) -> float:
        """Log of how much a split of the two gains, about posterior means."""
        both = np.concatenate([first, second])
        return self.gain(first, second, (self.centre(first), self.centre(second), self.centre(both)))

    def merge_gain(self, first: Floats, second: Floats, centres: tuple[Floats, Floats]) -> float:
        """Log of how much a merge of the two gains, about their centres and the weighted mean of these."""
        n, m = len(first), len(second)
        middle = (n * centres[0] + m * centres[1]) / (n + m)
        return -self.gain(first, second, (centres[0], centres[1], middle))
