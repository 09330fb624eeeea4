"""Holds the plan that the device makes to the one that plain Python makes."""

from __future__ import annotations

import numpy as np
import torch

from kernels.decode_plan import DecodeConfig, plan_pieces


def assert_the_device_plans_as_the_rule_says(lens: list[int], config: DecodeConfig, device: torch.device) -> None:
    from kernels.decode_launch import ROW_IDS, DecodePlan

    size, count = 16, len(lens)
    width = max(1, -(-max(lens) // size))
    tables = torch.randint(0, 10**6, (count, width), device=device)
    rows = torch.randperm(count).int()
    batch = torch.stack((torch.arange(count, dtype=torch.int32), rows, torch.tensor(lens, dtype=torch.int32))).to(device)
    plan = DecodePlan(config, count, n_q=1, head_dim=16, device=device)
    plan.pieces.fill_(-7)
    plan.update(batch, tables, size)
    made, said = plan.pieces.cpu().numpy(), plan_pieces(lens, config)
    used = len(said.rows)
    assert used <= config.capacity
    assert (made[used:, 0] == -1).all()
    assert np.array_equal(made[:used, [0, 2, 3, 4]], said.rows)
    assert np.array_equal(made[:used, 1], rows.numpy()[said.rows[:, 0]])
    for page in range(config.pages):
        entry = np.minimum(said.rows[:, 1] // size + page, width - 1)
        assert np.array_equal(made[:used, ROW_IDS + page], tables.cpu().numpy()[said.rows[:, 0], entry])
    if plan.may_cut:
        merges = plan.merges.cpu().numpy()
        assert np.array_equal(merges[:, [1, 3]], said.merges)
        assert np.array_equal(merges[:, 0], rows.numpy())
