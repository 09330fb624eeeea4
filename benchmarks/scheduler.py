"""What the bookkeeping costs, without a model: microseconds a step, by running requests and by the size of the pool.

    python -m benchmarks.scheduler [--repeats 5]

A step is one pass of decoding: `schedule`, a token appended to each request, `commit`, with the events made, and in the second
table folded into a trace too. CPU time, the median over the repeats of the mean over a run's steps. It should be flat from left
to right (the pool's size costs nothing) and the microseconds a request flat from top to bottom (linear in what is scheduled).
What stands when the decoding begins is frozen for Python's garbage collector, which would else walk the pool's lists now and
then: a fixed cost of the process, some 40 ms at a million blocks.

The last table is the pool alone: a block taken from the head of the free queue and freed to its tail, and a hit on the block
in the middle of the queue, freed again.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

from engine import EngineConfig, SamplingParams, Trace
from engine.block_pool import BlockPool
from engine.events import Event, RequestAdded
from engine.request import Request
from engine.scheduler import Scheduler
from engine.trace import TraceHeader
from engine.version import VERSION

BLOCK_SIZE, PROMPT = 16, 16
RUNNING = (1, 64, 1024)
POOLS = (1_000, 10_000, 100_000, 1_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    for with_trace in (False, True):
        print(f"\nmicroseconds a step (a request), {'scheduler and trace' if with_trace else 'scheduler alone'}")
        print("running".ljust(12) + "".join(f"{pool:>16,} blocks" for pool in POOLS))
        for num in RUNNING:
            print(f"{num:<12,}" + "".join(f"{step_cell(num, pool, with_trace, repeats):>23}" for pool in POOLS))
    print("\nmicroseconds an operation of the pool")
    print("".ljust(28) + "".join(f"{pool:>16,} blocks" for pool in POOLS))
    for name, operation in (("take the head, free it", take_and_free), ("hit the middle, free it", hit_the_middle)):
        cells = (statistics.median(operation(BlockPool(pool)) for _ in range(repeats)) for pool in POOLS)
        print(f"{name:<28}" + "".join(f"{cell:>23.2f}" for cell in cells))


def step_cell(num_running: int, num_blocks: int, with_trace: bool, repeats: int) -> str:
    num_steps = max(32, 2048 // num_running)
    if num_running * -(-(PROMPT + num_steps) // BLOCK_SIZE) > num_blocks:
        return "too few blocks"
    each = [decode(num_running, num_blocks, num_steps, with_trace) for _ in range(repeats)]
    step = statistics.median(each)
    return f"{step:,.1f} ({step / num_running:.2f})"


def decode(num_running: int, num_blocks: int, num_steps: int, with_trace: bool) -> float:
    """Microseconds of one decoding step, the mean over `num_steps`."""
    config = EngineConfig(
        block_size=BLOCK_SIZE, num_blocks=num_blocks, max_num_seqs=num_running, max_num_batched_tokens=1 << 20, watermark=0.0,
        free_order="ascending",
    )  # fmt: skip
    emit = trace_of(config).append if with_trace else list[Event]().append
    scheduler = Scheduler(config, 1 << 20, emit)
    for i in range(num_running):
        tokens = [PROMPT * i + j for j in range(PROMPT)]
        request = Request(f"R{i}", "", tokens, PROMPT, SamplingParams(max_tokens=num_steps + 1), scheduler.new_table())
        if with_trace:
            emit(added(request))
        scheduler.add(request)
    pass_once(scheduler)  # the prompts
    gc.collect()
    gc.freeze()
    began = time.process_time()
    for _ in range(num_steps):
        pass_once(scheduler)
    spent = time.process_time() - began
    gc.unfreeze()
    return 1e6 * spent / num_steps


def pass_once(scheduler: Scheduler) -> None:
    scheduler.step += 1
    plan = scheduler.schedule()
    scheduler.commit(plan)
    for item in plan:
        item.request.token_ids.append(7)


def added(request: Request) -> Event:
    return RequestAdded(0, request.request_id, "", tuple(request.token_ids), ("x",) * request.num_tokens, 1)


def trace_of(config: EngineConfig) -> Trace:
    return Trace(
        TraceHeader(
            block_size=config.block_size, num_blocks=config.num_blocks, model="none", device="none", dtype="none",
            backend="none", backend_reason="none", num_layers=1, num_heads=1, num_kv_heads=1, head_dim=1, slot_bytes=1,
            bytes_per_block=1, version=VERSION,
        )
    )  # fmt: skip


def take_and_free(pool: BlockPool) -> float:
    return timed(lambda: pool.free(pool.allocate(1)))


def hit_the_middle(pool: BlockPool) -> float:
    middle = [pool.num_blocks // 2]

    def operation() -> None:
        pool.touch(middle)
        pool.free(middle)

    return timed(operation)


def timed(operation: Callable[[], None], number: int = 20_000) -> float:
    """Microseconds a call, the mean of `number`."""
    began = time.process_time()
    for _ in range(number):
        operation()
    return 1e6 * (time.process_time() - began) / number


if __name__ == "__main__":
    main()
