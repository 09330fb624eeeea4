"""Re-laid and packed weights compute the same products."""

from __future__ import annotations

import pytest
import torch

from engine import cpu_linear
from engine.cpu_linear import speed_up_linears


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(96, 32)
        self.up = torch.nn.Linear(32, 80)
        self.down = torch.nn.Linear(80, 32, bias=False)
        self.head = torch.nn.Linear(32, 96, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.down(torch.relu(self.up(self.embed(ids)))))


@pytest.mark.parametrize("rows", [1, 2, 5, 33])
@torch.inference_mode()
def test_the_products_are_the_same_to_float32_rounding(rows: int) -> None:
    torch.manual_seed(rows)
    model, ids = Tied(), torch.arange(rows)[None] % 96
    plain = model(ids)
    assert speed_up_linears(model) == 4 * (32 * 80 + 80 * 32 + 96 * 32)
    torch.testing.assert_close(model(ids), plain, rtol=1e-5, atol=1e-5)  # another order of the same 32 to 80 products


def test_tied_weights_stay_tied_and_keep_their_shape() -> None:
    model = Tied()
    before = model.embed.weight.detach().clone()
    speed_up_linears(model)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.embed.weight, before) and model.head.weight.shape == (96, 32)
    assert model.head.weight.stride() == (1, 96)  # wide: laid out [in, out]
    assert model.down.weight.is_contiguous()


def test_it_is_done_once_and_only_to_float32() -> None:
    model, half = Tied(), Tied().bfloat16()
    assert speed_up_linears(model) > 0
    assert speed_up_linears(model) == 0
    assert speed_up_linears(half) == 0 and half.up.weight.is_contiguous()


@torch.inference_mode()
def test_weights_beyond_the_limit_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_linear, "MAX_PACKED_BYTES", 1000)
    model, ids = Tied(), torch.arange(7)[None]
    plain = model(ids)
    assert speed_up_linears(model) == 0 and not hasattr(model.up, "packed_weight")
    torch.testing.assert_close(model(ids), plain, rtol=1e-5, atol=1e-5)
