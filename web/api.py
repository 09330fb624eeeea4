"""The API for scripts and agents: the same sessions, engine and lookups as the page's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from engine.config import EngineConfig, SamplingParams
from engine.errors import PagewalkError, RequestError
from engine.run_settings import RunSettings
from engine.scenarios import SCENARIOS
from engine.session import EXPIRED, Session, nonempty
from engine.worked_example import worked_example
from web.host import PACE, Host, viewer_of


class Api:
    """Endpoints as methods; `bind()` gives them to the page that is being built."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def bind(self) -> None:
        """Inside `with gr.Blocks()`."""
        gr.api(self.generate, api_name="generate", concurrency_limit=None)
        gr.api(self.lookup, api_name="lookup", queue=False)
        gr.api(self.state, api_name="state", queue=False)
        gr.api(self.scenarios, api_name="scenarios", queue=False)
        gr.api(self.worked_example, api_name="worked_example", queue=False)

    def generate(
        self,
        request: gr.Request,
        prompt: str = "",
        max_tokens: int = 32,
        prompts: list[str] | None = None,
        n: int = 1,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        chat: bool = False,
        block_size: int = 16,
        num_blocks: int = 128,
    ) -> Iterator[dict[str, Any]]:
        """Generate text with a small language model whose attention cache is paged, and keep the run for /state and /lookup.

        Streams what every sequence has said so far about five times a second; the last message (running: false) is the result.
        It holds `session`, which names the run in /state and /lookup; `requests`, the sequences' letters; for each of them
        `texts`, `token_ids` and `finish_reasons` ("stop", "length", "abort", "error"); `problem`, a sentence if the run broke
        off; `waiting`, the place in the queue for a turn while there is one (0: running).

        Args:
            prompt: one prompt, as raw text
            max_tokens: new tokens for each sequence, at most
            prompts: several prompts that run side by side, instead of `prompt`
            n: sequences drawn from each prompt; they share its blocks
            temperature: 0 is greedy; with more, `seed` makes the draw repeatable
            top_p: draw from the likeliest tokens that make up this share (1: all)
            top_k: draw from this many of the likeliest tokens (0: all)
            seed: of the draws
            chat: put each prompt through the model's chat template
            block_size: slots (tokens) a block
            num_blocks: blocks in the pool; too few, and sequences are preempted and computed again
        """
        try:
            wanted = [_text("prompt", prompt)] if prompts is None else _texts("prompts", prompts)
            session = self.host.store.of_viewer(viewer_of(request))
            params = SamplingParams(max_tokens=max_tokens, n=n, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
            config = EngineConfig(block_size=block_size, num_blocks=num_blocks)
            model = self.host.shelf.get(None)
            session.begin(model, RunSettings(nonempty(wanted), config, params, _flag("chat", chat)))
            session.start()
            for update in session.updates(PACE):
                yield {**_outputs(session), "running": update.running, "problem": update.problem, "waiting": update.place}
        except PagewalkError as error:
            raise gr.Error(str(error), print_exception=False) from None

    def state(self, request: gr.Request, session: str = "", step: int = -1) -> dict[str, Any]:
        """The paged cache after a step of a run or recording: block tables, reference counts, blocks used, shared and cached.

        Args:
            session: the token that /generate answered with (or that the page shows); empty: this client's own run
            step: number of the forward pass; 0 is before the first one, -1 the newest
        """
        try:
            found = self.host.session_of(_text("session", session), request)
            at = _whole("step", step, -1)
            state = found.state_at(at if at >= 0 else None)
        except PagewalkError as error:
            raise gr.Error(str(error), print_exception=False) from None
        return {
            "step": state.step,
            "num_blocks": state.num_blocks,
            "block_size": state.block_size,
            "used": state.num_used_blocks,
            "shared": state.num_shared_blocks,
            "cached": state.num_cached_blocks,
            "ref_cnt": state.ref_cnt,
            "requests": {
                r.request_id: {
                    "status": r.status,
                    "num_tokens": len(r.tokens),
                    "num_computed_tokens": r.num_computed_tokens,
                    "block_table": r.block_table,
                }
                for r in state.requests.values()
            },
        }

    def lookup(
        self,
        request: gr.Request,
        session: str = "",
        request_id: str = "A",
        key_position: int = 0,
        query_position: int = -1,
        layer: int = 0,
        head: int = 0,
    ) -> dict[str, Any]:
        """Follow one token of a run to where its key is: logical block, physical block, slot, byte address, key, score, weight.

        The head's output from the paged kernel is checked against dense attention (max_abs_difference). Where there is nothing
        to look up, the answer is {"ok": false, "reason": a sentence}.

        Args:
            session: the token that /generate answered with (or that the page shows); empty: this client's own run
            request_id: the sequence's letter, "A" for the first
            key_position: the token looked up, counted from 0
            query_position: the token that asks, not before key_position; -1: the newest that has a slot
            layer: counted from 0
            head: query head, counted from 0
        """
        try:
            names = _text("session", session), _text("request_id", request_id)
            query = _whole("query_position", query_position, -1)
            numbers = _whole("key_position", key_position), _whole("layer", layer), _whole("head", head)
        except PagewalkError as error:
            return {"ok": False, "reason": str(error)}
        return self.host.lookup(names[1], numbers[0], None if query < 0 else query, numbers[1], numbers[2], names[0], request)

    def scenarios(self) -> list[dict[str, str]]:
        """The examples of the page: the id that a link names, a title, and what there is to see."""
        return [{"id": s.id, "title": s.title, "sentence": s.sentence} for s in SCENARIOS.values()]

    def worked_example(self) -> dict[str, Any]:
        """One lookup worked out by hand, always the same: 38 tokens, block table [7, 2, 15], token 20, each number."""
        return worked_example().to_dict()


def _outputs(session: Session) -> dict[str, Any]:
    engine = session.engine
    if engine is None:
        raise PagewalkError(EXPIRED)
    with engine.lock:
        outputs = [engine.output(request_id) for request_id in engine.requests]
        return {
            "session": session.token,
            "step": engine.step_count,
            "requests": [o.request_id for o in outputs],
            "texts": [o.text for o in outputs],
            "token_ids": [o.token_ids for o in outputs],
            "finish_reasons": [o.finish_reason for o in outputs],
        }


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} is {_short(value)}; give text.")
    return value


def _texts(name: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise RequestError(f"{name} is {_short(value)}; give a list of texts.")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{name} is {_short(value)}; give true or false.")
    return value


def _whole(name: str, value: Any, low: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 1 << 31:
        raise RequestError(f"{name} is {_short(value)}; give a whole number from {low}.")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
