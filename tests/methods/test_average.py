"""Averages over what clients sent, as methods take them."""

import pytest
import torch

from bayesfed.methods.method import Update, average, move_towards_average


class Server(dict[str, torch.Tensor]):
    """The server's state, as far as an average changes it."""


def updates(*values: list[float], dtype: torch.dtype = torch.float32) -> list[Update]:
    """Updates under the name `v`, of clients with 1, 2, 3, ... images."""
    total = sum(range(len(values) + 1))
    return [
        Update(k, k + 1, torch.tensor((k + 1) / total, dtype=torch.float64), {"v": torch.tensor(value, dtype=dtype)})
        for k, value in enumerate(values)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clients_count_by_their_images_unless_weights_are_given(dtype: torch.dtype) -> None:
    sent = updates([3.0, 0.0], [6.0, 3.0], dtype=dtype)
    assert average(sent, "v").tolist() == [5.0, 2.0]
    assert average(sent, "v").dtype == dtype
    assert average(sent, "v", torch.tensor([1.0, 1.0])).tolist() == [4.5, 1.5]


def test_sums_are_taken_in_float64() -> None:
    sent = updates([2.0**25], [1.0], [-(2.0**25)])
    assert average(sent, "v", torch.ones(3)).item() == pytest.approx(1 / 3, rel=1e-7)


def test_the_server_goes_a_part_of_the_way() -> None:
    server = Server(v=torch.tensor([1.0, 1.0]))
    move_towards_average(server, updates([3.0, 0.0], [6.0, 3.0]), "v", 0.25, torch.ones(2))  # type: ignore[arg-type]
    assert server["v"].tolist() == [0.75 + 0.25 * 4.5, 0.75 + 0.25 * 1.5]
    assert server["v"].dtype == torch.float32
