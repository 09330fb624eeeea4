"""The engine: requests in, one forward pass a step, and every decision told to the trace."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from engine.audit import audit
from engine.capture import Capture
from engine.config import EngineConfig, SamplingParams
from engine.detokenizer import StreamingDetokenizer, TokenPieces
from engine.errors import PagewalkError, RequestError
from engine.events import (
    AllBlocksCleared,
    BlockCopied,
    BlockStored,
    BlockTouched,
    Event,
    RequestAdded,
    RequestFinished,
    RequestRefused,
    StepTimed,
    TokenSampled,
)
from engine.lookup import Lookup, look_up
from engine.model_loader import LoadedModel, encode_prompt
from engine.model_runner import ModelRunner
from engine.request import Request, RequestStatus, TokenLogprobs
from engine.sampler import Sampler, logprobs_of
from engine.scheduler import Scheduler
from engine.trace import Trace, TraceHeader
from engine.version import VERSION

Prompt = str | Sequence[int] | Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Milliseconds of wall clock."""

    schedule_ms: float
    forward_ms: float
    sample_ms: float


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One forward pass. tokens: request id -> the token it sampled; texts: the new text that is safe to show."""

    step: int
    events: list[Event]
    tokens: dict[str, int]
    texts: dict[str, str]
    timings: StepTimings


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """finish_reason: "stop", "length", "abort", "error" (no token could be chosen), or None while it runs.

    text excludes stop strings and special tokens. num_cached_tokens: prompt tokens found in the pool instead of
    computed; all of them for a forked child. logprobs: one a token if SamplingParams.logprobs asked for them. parent_id: whom
    it was forked from.
    """

    request_id: str
    prompt: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str | None
    num_cached_tokens: int
    num_preemptions: int
    num_recomputed_tokens: int
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    parent_id: str | None = None


class Engine:
    """One visitor's engine: its own pool, scheduler and trace over weights that others may share.

    One thread drives it. Others may read it (lookup, trace) while holding `lock`, which is taken whenever the books change and
    released during the forward pass, so that a reader never waits for the model.
    """

    def __init__(self, model: LoadedModel, config: EngineConfig | None = None) -> None:
        self.model = model
        self.config = config or EngineConfig()
        self.lock = threading.RLock()
        self._pieces = TokenPieces(model.tokenizer)
        self.runner = ModelRunner(model, self.config)
        self.capture = Capture(model.num_heads, model.num_kv_heads, self.config.capture_bytes) if self.config.capture else None
        self._begin()

    def _begin(self) -> None:
        """Fresh books: nothing requested, every block free, an empty trace."""
        self.requests: dict[str, Request] = {}
        self._detokenizers: dict[str, StreamingDetokenizer] = {}
        self._later: deque[tuple[int, Prompt, SamplingParams, bool]] = deque()
        self.sampler = Sampler(self.config.seed)
        self.trace = self._new_trace()
        self.scheduler = Scheduler(self.config, self.model.max_model_len, self._emit)

    def _new_trace(self) -> Trace:
        cache, model = self.runner.kv_cache, self.model
        trace = Trace(
            TraceHeader(
                block_size=self.config.block_size,
                num_blocks=self.config.num_blocks,
                model=model.name,
                device=str(model.device),
                dtype=str(model.dtype).removeprefix("torch."),
                backend=self.runner.backend.name,
                backend_reason=self.runner.backend.reason,
                num_layers=model.num_layers,
                num_heads=model.num_heads,
                num_kv_heads=model.num_kv_heads,
                head_dim=model.head_dim,
                slot_bytes=cache.slot_bytes,
                bytes_per_block=cache.bytes_per_block,
                version=VERSION,
            )
        )
        trace.capture = self.capture
        return trace

    # ---- requests -------------------------------------------------------------------------------

    def add_request(self, prompt: Prompt, params: SamplingParams | None = None, chat: bool = False) -> str:
        """Queues a prompt (text, chat messages or token ids) and returns its id: "A", "B", ... "Z", "AA".

        chat: put a text through the model's chat template. Raises RequestError, with nothing changed, for an empty prompt or
        one that could never finish in this pool. With params.n > 1 the id is that of the first sequence; the others get
        the next free ids when they fork (RequestForked), and each ends or is aborted by itself.
        """
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params must be SamplingParams, not {type(params).__name__}.")
        text = prompt if isinstance(prompt, str) else ""
        try:
            token_ids = self._encode(prompt, chat)
            self.scheduler.check_fits(len(token_ids), params.max_tokens)
        except RequestError as error:
            self._emit(RequestRefused(self.step_count, text, str(error)))
            raise
        texts = self._pieces.texts(token_ids)
        if not isinstance(prompt, str):
            text = "".join(piece if isinstance(piece, str) else piece.decode("utf-8", "replace") for piece in texts)
        request_id = letters(len(self.requests))
        request = Request(
            request_id, text, token_ids, len(token_ids), params, self.scheduler.new_table(), token_texts=list(texts)
        )
        self._register(request)
        self.scheduler.add(request)
        self._emit(RequestAdded(self.step_count, request_id, text, tuple(token_ids), texts, params.max_tokens))
        return request_id

    def check_prompts(self, prompts: Sequence[Prompt], params: SamplingParams, chat: bool = False) -> list[int]:
        """Each prompt's number of tokens. Raises RequestError if `add_request` would refuse any of them. Changes nothing."""
        lengths = [len(self._encode(prompt, chat)) for prompt in prompts]
        for length in lengths:
            self.scheduler.check_fits(length, params.max_tokens)
        return lengths

    def add_later(self, after_step: int, prompt: Prompt, params: SamplingParams, chat: bool = False) -> None:
        """As `add_request`, once `after_step` passes are done, or earlier if nothing else is left to compute.

        Called in the order of arrival. Raises RequestError now for a prompt that could never be accepted.
        """
        self.check_prompts([prompt], params, chat)
        self._later.append((after_step, prompt, params, chat))

    def abort_all(self) -> None:
        """Ends every request, and forgets those that were to come."""
        self._later.clear()
        for request_id in list(self.requests):
            self.abort(request_id)

    def abort(self, request_id: str) -> None:
        """Ends a request now; its blocks are free when this returns. Ended or unknown ones are left alone."""
        request = self.requests.get(request_id)
        if request is not None and request.status is not RequestStatus.FINISHED:
            self._finish(request, "abort", f"{request_id} was stopped")

    def has_unfinished_requests(self) -> bool:
        return self.scheduler.num_unfinished > 0 or bool(self._later)

    def output(self, request_id: str) -> RequestOutput:
        """What the request has said so far. Raises RequestError for an id that this run does not have."""
        if request_id not in self.requests:
            raise RequestError(f"There is no request {request_id!r} in this run.")
        r = self.requests[request_id]
        return RequestOutput(
            r.request_id,
            r.prompt,
            r.token_ids[: r.num_prompt_tokens],
            r.output_token_ids,
            r.text,
            r.finish_reason,
            r.num_cached_tokens,
            r.num_preemptions,
            r.num_recomputed_tokens,
            list(r.logprobs),
            r.parent_id,
        )

    def generate(
        self, prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None, chat: bool = False
    ) -> list[RequestOutput]:
        """Runs all prompts to their end. If one is refused, none runs.

        One output a prompt, in order; with params.n > 1 each is followed by those of its n - 1 children.
        """
        if isinstance(prompts, str | bytes):
            raise RequestError("generate() takes a list of prompts; put a single one into a list.")
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise RequestError(
                f"{len(prompts)} prompts came with {len(each)} sampling parameters; give one for each, or one for all."
            )
        ids: list[str] = []
        try:
            for prompt, one in zip(prompts, each, strict=True):
                ids.append(self.add_request(prompt, one, chat))
        except PagewalkError:
            for request_id in ids:
                self.abort(request_id)
            raise
        while self.has_unfinished_requests():
            self.step()
        return [self.output(name) for request_id in ids for name in (request_id, *self.requests[request_id].child_ids)]

    # ---- one step -------------------------------------------------------------------------------

    @property
    def step_count(self) -> int:
        """Forward passes of this run so far."""
        return self.scheduler.step

    def step(self) -> StepOutput:
        """One forward pass over whatever the scheduler plans. With nothing to do it changes nothing."""
        first_event = len(self.trace.events)
        if not self.has_unfinished_requests():
            return StepOutput(self.step_count, [], {}, {}, StepTimings(0.0, 0.0, 0.0))
        started = time.perf_counter()
        with self.lock:
            self._add_arrivals()
            self.scheduler.step += 1
            plan = self.scheduler.schedule()
            if not plan:
                raise PagewalkError("The scheduler planned nothing although requests wait: this is a bug in the engine.")
            self._link_cached_vectors(first_event)
        scheduled = time.perf_counter()
        self.runner.copy_blocks(self.scheduler.copies)
        result = self.runner.execute(plan, capture=self.capture is not None)
        computed = time.perf_counter()
        with self.lock:
            live = [item for item in plan if item.request.status is RequestStatus.RUNNING]  # the others were stopped meanwhile
            written = self.scheduler.commit(live)
            if self.capture is not None and result.captured is not None:
                mine = {event.request_id: event for event in written}
                owners = [mine.get(item.request.request_id, item.num_tokens) for item in plan]
                self.capture.add(self.step_count, result.captured, owners)
                self.capture.scales = result.scales
            sampling: list[Request] = []
            rows: list[int] = []
            for row, request in enumerate(item.request for item in plan if item.samples):
                if request.status is RequestStatus.RUNNING:
                    family = [request, *self._fork(request)]
                    sampling += family
                    rows += [row] * len(family)
            logits = result.logits if rows == list(range(len(result.logits))) else result.logits[rows]
            best = None if result.best is None else [result.best[row] for row in rows]
            sampled = self.sampler.sample(logits, sampling, best) if sampling else []
            tokens: dict[str, int] = {}
            texts: dict[str, str] = {}
            for row, (request, token_id) in enumerate(zip(sampling, sampled, strict=True)):
                if token_id is None:
                    self._finish(
                        request, "error", f"the model gave no finite score for a token after {request.request_id}'s last"
                    )
                else:
                    if request.params.logprobs:
                        request.logprobs.append(logprobs_of(logits[row], token_id, request.params.logprobs))
                    texts[request.request_id] = self._append(request, token_id)
                    tokens[request.request_id] = token_id
            done = time.perf_counter()
            timings = StepTimings(*(round(1e3 * t, 3) for t in (scheduled - started, computed - scheduled, done - computed)))
            num_tokens = sum(item.num_tokens for item in plan)
            self._emit(StepTimed(self.step_count, num_tokens, len(plan), **asdict(timings)))
        return StepOutput(self.step_count, self.trace.events[first_event:], tokens, texts, timings)

    def will_run(self, max_steps: int | None) -> None:
        """Announces a run of so many steps (None: to its end). Nothing to do here; engine.detached plans by it."""

    def lookup(
        self,
        request_id: str,
        query_position: int | None = None,
        key_position: int = 0,
        layer: int = 0,
        head: int = 0,
        as_of: int | None = None,
    ) -> Lookup:
        """Where one key is and what it weighs (engine.lookup). Raises LookupFailed, saying why."""
        with self.lock:
            return look_up(self.trace, request_id, query_position, key_position, layer, head, self.runner.kv_cache, as_of)

    def audit(self) -> None:
        """Raises AuditError if the cache's books do not balance."""
        audit(self)

    def reset_prefix_cache(self) -> None:
        """Forgets what free blocks hold, so that nothing can be hit. Raises BlockPoolError while a block is in use."""
        with self.lock:
            self.scheduler.pool.clear_cache()
            self._emit(AllBlocksCleared(self.step_count))

    def reset(self, keep_cache: bool = False) -> None:
        """Ends every request and begins a new trace. keep_cache: blocks stay as they are and can be hit by the next run."""
        self.abort_all()
        pool = self.scheduler.pool
        if self.capture is not None:
            self.capture = self.capture.next_run(keep_slots=keep_cache)
        self._begin()
        if keep_cache:
            self.scheduler.pool = pool
            pool.on_removed = self.scheduler.on_removed
            for block_id in pool.cached_blocks():
                content = pool.content[block_id]
                assert content is not None
                parent = content.parent.block_hash if content.parent else None
                size = self.config.block_size
                self._emit(BlockStored(0, (content.block_hash,), parent, content.token_ids, size, (block_id,)))

    def close(self) -> None:
        """Gives the pool and the captured vectors back now; the engine cannot be used again, its trace stays readable."""
        with self.lock:
            self.runner.kv_cache = self.runner.graphs = None  # type: ignore[assignment]
            self.capture = self.trace.capture = None
            self.scheduler.pool.on_removed = lambda block_id, block_hash: None
            del self.scheduler  # they all know each other: a circle that only the collector would break

    # ---- inside ---------------------------------------------------------------------------------

    def _add_arrivals(self) -> None:
        while self._later and (self._later[0][0] <= self.step_count or not self.scheduler.num_unfinished):
            self.add_request(*self._later.popleft()[1:])

    def _emit(self, event: Event) -> None:
        self.trace.append(event)

    def _encode(self, prompt: Prompt, chat: bool) -> list[int]:
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise RequestError(f"A prompt is text, chat messages or token ids, not {type(prompt).__name__}.")
        if isinstance(prompt, str) or (prompt and all(isinstance(message, dict) for message in prompt)):
            if isinstance(prompt, str) and not prompt.strip():
                raise RequestError("The prompt is empty. Type some text, or pick an example.")
            token_ids = encode_prompt(self.model.tokenizer, prompt, chat)  # type: ignore[arg-type]
        else:
            token_ids = [t for t in prompt if isinstance(t, int) and not isinstance(t, bool) and 0 <= t < self.model.vocab_size]
            if len(token_ids) != len(prompt):
                raise RequestError(f"The prompt's token ids must be whole numbers from 0 to {self.model.vocab_size - 1:,}.")
        if not token_ids:
            raise RequestError("The prompt is empty. Type some text, or pick an example.")
        return token_ids

    def _register(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self._detokenizers[request.request_id] = StreamingDetokenizer(self._pieces, request.params.stop)

    def _fork(self, parent: Request) -> list[Request]:
        """At the end of a prompt, its further sequences; returns those that forked and sample from the same logits now.

        Child i draws with seed + i (vLLM's ParentRequest does so).
        """
        params = parent.params
        if params.n == 1 or parent.num_output_tokens:
            return []
        children = []
        for i in range(1, params.n):
            seed = None if params.seed is None else (params.seed + i) % (1 << 63)
            child = Request(
                letters(len(self.requests)), parent.prompt, list(parent.token_ids), parent.num_prompt_tokens,
                replace(params, n=1, seed=seed), self.scheduler.new_table(), token_texts=list(parent.token_texts),
                parent_id=parent.request_id,
            )  # fmt: skip
            self._register(child)
            parent.child_ids.append(child.request_id)
            children.append(child)
        if not self.scheduler.fork(parent, children):
            return []
        if self.capture is not None:
            slots = parent.block_table.slots(0, parent.num_computed_tokens)
            for child in children:
                self.capture.link(self.step_count, child.request_id, range(len(slots)), slots)
        return children

    def _append(self, request: Request, token_id: int) -> str:
        """Adds a sampled token, ends the request if it is its last, and returns the text that is now safe to show."""
        params, name = request.params, request.request_id
        piece = self._pieces.text(token_id)
        request.token_ids.append(token_id)
        request.token_texts.append(piece)
        self._emit(TokenSampled(self.step_count, name, request.num_tokens - 1, token_id, piece))
        detokenizer = self._detokenizers[name]
        ends = token_id in params.stop_token_ids or (token_id in self.model.eos_token_ids and not params.ignore_eos)
        text = "" if ends else detokenizer.append(token_id)
        if ends:
            finish = ("stop", f"{name} sampled the end-of-text token {token_id}")
        elif detokenizer.stopped:
            finish = ("stop", f"{name} reached the stop string {detokenizer.stop_string!r}")
        elif request.num_output_tokens >= params.max_tokens:
            finish = ("length", f"{name} reached max_tokens = {params.max_tokens}")
        else:
            finish = None
        if finish is not None and not detokenizer.stopped:
            text += detokenizer.finish()
        request.text += text
        if finish is not None:
            self._finish(request, *finish)
        return text

    def _finish(self, request: Request, finish_reason: str, reason: str) -> None:
        request.finish_reason = finish_reason
        self.scheduler.finish(request, reason)
        self.sampler.forget(request.request_id)
        if finish_reason in ("abort", "error"):
            request.text += self._detokenizers[request.request_id].finish()
        self._detokenizers.pop(request.request_id)
        self._emit(RequestFinished(self.step_count, request.request_id, finish_reason, reason))

    def _link_cached_vectors(self, first_event: int) -> None:
        """Positions found in the pool, and slots copied, get the vectors that were captured when the slots were written."""
        if self.capture is None:
            return
        size = self.config.block_size
        for event in self.trace.events[first_event:]:
            if isinstance(event, BlockTouched):
                start, slot = event.logical_index * size, event.block_id * size
                self.capture.link(self.step_count, event.request_id, range(start, start + size), range(slot, slot + size))
            elif isinstance(event, BlockCopied):
                source, target = event.source_block_id * size, event.block_id * size
                self.capture.copy_slots(range(source, source + event.num_slots), range(target, target + event.num_slots))


def letters(number: int) -> str:
    """0 -> "A", 25 -> "Z", 26 -> "AA", as spreadsheets count columns."""
    name = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(ord("A") + rest) + name
    return name
