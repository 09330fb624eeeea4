"""The API for scripts and agents: the same sessions, engine and lookups as the page's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from engine.config import EngineConfig, SamplingParams
from engine.errors import PagewalkError
from engine.run_settings import RunSettings
from engine.scenarios import SCENARIOS
from engine.session import Session, nonempty
from engine.worked_example import worked_example
from web.host import PACE, Host, model_name, viewer_of


class Api:
    """Endpoints as methods; `bind()` gives them to the page that is being built."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def bind(self) -> None:
        """Inside `with gr.Blocks()`."""
        gr.api(self.generate, api_name="generate", concurrency_limit=8)
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
        """Generate through the paged cache. Streams the state of the run; the last message has every text.

        Args:
            prompt: one prompt. prompts: several, instead. max_tokens: new tokens for each. n: sequences for each prompt.
            temperature: 0 is greedy. top_p, top_k, seed: sampling. chat: use the model's chat template.
            block_size: slots a block. num_blocks: blocks in the pool.
        """
        try:
            session = self.host.store.of_viewer(viewer_of(request))
            model = self.host.shelf.get(model_name(None))
            params = SamplingParams(max_tokens=max_tokens, n=n, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
            config = EngineConfig(block_size=block_size, num_blocks=num_blocks)
            session.begin(model, RunSettings(nonempty(prompts or [prompt]), config, params, chat))
        except PagewalkError as error:
            raise gr.Error(str(error)) from None
        session.start()
        for update in session.updates(PACE):
            yield {**_outputs(session), "running": update.running, "problem": update.problem}

    def state(self, session: str = "", step: int = -1, request: gr.Request | None = None) -> dict[str, Any]:
        """The cache after a step of what the session shows, its run or a recording: tables, reference counts, counts of blocks.

        Args:
            session: the token that the page or /generate gave; empty for the caller's own. step: -1 for the newest.
        """
        try:
            found = self.host.session_of(session, request)
            state = found.state_at(step if step >= 0 else None)
        except PagewalkError as error:
            raise gr.Error(str(error)) from None
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
        """Follow one token to its block, slot, address, key, score and weight, checked against dense attention.

        Args:
            session: the token that the page or /generate gave; empty for the caller's own. request_id: the sequence's letter.
            key_position: the token looked up. query_position: the token that asks; -1 for the newest with a slot.
            layer, head: which query head of which layer.
        """
        query = None if query_position < 0 else query_position
        return self.host.lookup(request_id, key_position, query, layer, head, session, request)

    def scenarios(self) -> list[dict[str, str]]:
        """The examples of the page: the id that a link names, a title, and what there is to see."""
        return [{"id": s.id, "title": s.title, "sentence": s.sentence} for s in SCENARIOS.values()]

    def worked_example(self) -> dict[str, Any]:
        """The worked lookup: block table [7, 2, 15], token 20, every number of its six steps."""
        return worked_example().to_dict()


def _outputs(session: Session) -> dict[str, Any]:
    engine = session.engine
    assert engine is not None
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
