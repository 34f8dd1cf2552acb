"""Neurons of several clients, matched as draws around common atoms: PFNM's assignment problems (`methods.bnfed`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Places = list[Tensor | None]  # where each client's neurons are among the atoms, (H,); None for one that is not placed
CAP = 10  # of the counts of neurons at an atom, in the public code


def match(neurons: Tensor, sigma: float, sigma_0: float, gamma: float, iterations: int) -> tuple[Tensor, Tensor]:
    """Return the atoms (L, F) and where each client's neurons are among them (J, H), from all neurons (J, H, F)."""
    v, clients = neurons.double(), len(neurons)

    def gains(j: int, places: Places, used: int) -> Tensor:
        sums, counts = gathered(v, places, used)
        return scores(v[j], sums, counts, clients, sigma, sigma_0, gamma)

    used, places = visited([None] * clients, [*range(clients)] * (1 + iterations), gains)
    sums, counts = gathered(v, places, used)
    atoms = sums * sigma**-2 / (sigma_0**-2 + counts * sigma**-2)[:, None]
    return atoms, placed(places)


def scores(v: Tensor, sums: Tensor, counts: Tensor, clients: int, sigma: float, sigma_0: float, gamma: float) -> Tensor:
    """Return what each neuron v (H, F) gains at each of L atoms, with sums (L, F) and counts (L,), and as one of H new
    ones: (H, L + H).
    """
    s, s_0 = sigma**-2, sigma_0**-2
    together = v.square().sum(1)[:, None] + 2 * v @ sums.t() + sums.square().sum(1)  # |v + S_i|^2
    old = s**2 * (together / (s_0 + s * (counts + 1)) - sums.square().sum(1) / (s_0 + s * counts))
    old = old + 2 * (counts / (clients - counts)).log()
    new = s**2 * v.square().sum(1) / (s_0 + s)
    return torch.cat([old, new[:, None] - of_new(v, clients, gamma)], dim=1)


@dataclass(frozen=True)
class Precise:
    """Neurons v (J, H, F) of precisions s (J, F), around atoms of prior means mu (F,) and precision p; see `form: code`."""

    v: Tensor
    s: Tensor
    mu: Tensor
    p: float
    gamma: float

    def match(self, places: Places, order: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the atoms (L, F) and where each client's neurons are among them (J, H), after visits in that order."""
        used, places = visited(places, order, self.gains)
        sums, precisions, _ = self.gathered(places, used)
        return sums / precisions, placed(places)

    def gathered(self, places: Places, atoms: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return p mu + S_i and p + T_i, (L, F), and the counts m_i, (L,)."""
        s = self.s[:, None].expand_as(self.v)
        sums, counts = gathered(self.v * s, places, atoms)
        return self.p * self.mu + sums, self.p + gathered(s, places, atoms)[0], counts

    def gains(self, j: int, places: Places, atoms: int) -> Tensor:
        """Return what each neuron of client j gains at each of L atoms, and as one of H new ones: (H, L + H)."""
        sums, precisions, counts = self.gathered(places, atoms)
        s, v, prior, clients = self.s[j], self.v[j] * self.s[j], self.p * self.mu, len(self.v)
        both, m = precisions + s, counts.clamp(max=CAP)
        together = v.square() @ (1 / both).t() + 2 * v @ (sums / both).t() + (sums.square() / both).sum(1)
        old = together - (sums.square() / precisions).sum(1) + (m / (clients - m)).log()
        new = ((prior + v).square() / (self.p + s)).sum(1) - prior.square().sum() / self.p
        return torch.cat([old, new[:, None] - of_new(v, clients, self.gamma)], dim=1)


def of_new(v: Tensor, clients: int, gamma: float) -> Tensor:
    """Return 2 log(k J / gamma) for k = 1..H, the number of neurons v (H, F)."""
    place = torch.arange(1, len(v) + 1, dtype=v.dtype, device=v.device)
    return 2 * (place * clients / gamma).log()


def assigned(gains: Tensor) -> Tensor:
    """Return the columns (H,), all different, whose sum of gains (H, M) is the largest.

    Where a gain is not finite, as after a neuron that is not, the run ends with this round, whatever is matched: the first.
    """
    if not gains.isfinite().all():
        return torch.arange(len(gains), device=gains.device)
    from scipy.optimize import linear_sum_assignment

    return torch.from_numpy(linear_sum_assignment(gains.cpu().numpy(), maximize=True)[1]).to(gains.device)


def visited(places: Places, order: Sequence[int], gains: Callable[[int, Places, int], Tensor]) -> tuple[int, Places]:
    """Return how many atoms are in use, and where the clients' neurons are, once clients in that order have each been
    taken out and put where their `gains` are largest, given the places of the others among so many atoms.
    """
    for j in order:
        used, places = renumbered([*places[:j], None, *places[j + 1 :]])
        where = assigned(gains(j, places, used))
        # Which neuron is the first new atom, and which the second, gains nothing: they stay in order.
        new = where >= used
        where[new] = used + torch.arange(int(new.sum()), device=where.device)
        places[j] = where
    return renumbered(places)


def placed(places: Places) -> Tensor:
    """Return the places of all clients, who have theirs: (J, H)."""
    return torch.stack([where for where in places if where is not None])


def renumbered(places: Places) -> tuple[int, Places]:
    """Return how many atoms are in use, and the clients' places counted among these alone."""
    known = [where for where in places if where is not None]
    if not known:
        return 0, list(places)
    used = torch.cat(known).unique()
    return len(used), [None if where is None else torch.searchsorted(used, where) for where in places]


def gathered(v: Tensor, places: Places, atoms: int) -> tuple[Tensor, Tensor]:
    """Return the sum (L, F) and the number (L,) of the neurons v (J, H, F) that are at each atom."""
    sums, counts = v.new_zeros(atoms, v.shape[2]), v.new_zeros(atoms)
    for of_client, where in zip(v, places, strict=True):
        if where is not None:  # a client has at most one neuron at an atom
            sums[where] += of_client
            counts[where] += 1
    return sums, counts
