"""A small piece of what scripts/soak.py does at length."""

from __future__ import annotations

from scripts.soak import run_pool_operations, run_soaks


def test_random_soaks_balance_after_every_step_and_say_what_they_did(capsys):
    run_soaks(25, first_seed=10_000)
    printed = capsys.readouterr().out
    assert printed.startswith("25 soaks: ")
    assert all(f"{name} 0" not in printed for name in ("RequestForked", "RequestPreempted", "BlockCopied", "PrefixHit"))


def test_random_pool_operations_are_counted(capsys):
    run_pool_operations(2_000, seed=5)
    assert capsys.readouterr().out.startswith("2,000 pool operations, each compared with plain lists")
