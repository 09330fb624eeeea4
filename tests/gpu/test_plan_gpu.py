"""The plan made on the device says what the plain rule says."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from kernels.decode_plan import DeviceLimits, decode_config, plan_pieces
from tests.kernels.plan_cases import assert_the_device_plans_as_the_rule_says

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(30))
def test_the_device_plans_as_the_rule_says(seed):
    rng = random.Random(seed)
    count, top = rng.choice([1, 3, 64, 256, 700]), rng.choice([40, 3000, 20000])
    lens = [top] * count if seed % 2 else [rng.randint(0, top) for _ in range(count)]
    config = decode_config(np.array(lens), rng.choice([1, 3, 8]), 64, 2, 16, DeviceLimits())
    assert len(plan_pieces(lens, config).rows) <= config.capacity
    assert_the_device_plans_as_the_rule_says(lens, config, torch.device("cuda"))
