"""Who is looking: sessions of their own, tokens nobody guesses, what is forgotten when, and whose memory goes first."""

from __future__ import annotations

import gc
import weakref

import psutil
import pytest

from engine.config import EngineConfig, SamplingParams
from engine.errors import PagewalkError, RequestError
from engine.limits import Limits
from engine.model_loader import LoadedModel
from engine.run_settings import RunSettings
from engine.session import Session
from engine.session_store import SessionStore


def settings(max_tokens: int = 4, **config: int) -> RunSettings:
    return RunSettings(("hello",), EngineConfig(**config), SamplingParams(max_tokens=max_tokens, ignore_eos=True), False)


def run(session: Session, model: LoadedModel, **kwargs: int) -> None:
    session.begin(model, settings(**kwargs))
    session.start()
    for _ in session.updates(0.0):
        pass


def test_viewers_have_sessions_of_their_own_and_tokens_cannot_be_guessed() -> None:
    store = SessionStore()
    first, second = store.of_viewer("one"), store.of_viewer("two")
    assert first is not second and store.of_viewer("one") is first
    assert len(first.token) >= 24 and store.by_token(first.token) is first
    for guess in ("one", "", first.token[:-1], first.token.lower()):
        with pytest.raises(PagewalkError, match="expired"):
            store.by_token(guess)


def test_a_closed_session_is_kept_for_a_reload_and_then_forgotten() -> None:
    store = SessionStore(Limits(closed_seconds=10.0))
    session = store.of_viewer("old page")
    assert store.readopt(session.token, "copy of the tab", patience=0.0) is None  # still shown by another page
    store.close("old page")
    assert store.readopt(session.token, "new page") is session
    assert store.of_viewer("new page") is session
    store.close("new page")
    assert store.sweep() == 0
    session.closed_at -= 11.0
    assert store.sweep() == 1 and store.num_sessions == 0
    assert store.readopt(session.token, "late") is None


def test_idle_sessions_are_forgotten_and_running_ones_are_not(tiny: LoadedModel) -> None:
    store = SessionStore(Limits(idle_seconds=10.0))
    idle, busy = store.of_viewer("idle"), store.of_viewer("busy")
    busy.begin(tiny, settings(400))
    busy.start()
    idle.last_seen -= 11.0
    busy.last_seen -= 11.0
    assert store.sweep() == 1 and store.knows(busy.token) and not store.knows(idle.token)
    busy.stop()


def test_a_full_host_says_so_unless_somebody_left_without_a_word() -> None:
    store = SessionStore(Limits(max_sessions=2))
    first, second = store.of_viewer("a"), store.of_viewer("b")
    with pytest.raises(PagewalkError, match="All 2 places are taken"):
        store.of_viewer("c")
    first.last_seen -= 61.0
    second.last_seen -= 90.0
    third = store.of_viewer("c")
    assert store.num_sessions == 2 and store.knows(first.token) and store.knows(third.token) and not store.knows(second.token)
    assert store.of_viewer("c") is third


def test_the_session_idle_for_longest_gives_its_memory_first(tiny: LoadedModel) -> None:
    store = SessionStore(Limits(memory_mb=5))  # a pool of 300 blocks takes 2.3 MiB
    a, b, c = (store.of_viewer(name) for name in "abc")
    run(a, tiny, num_blocks=300)
    run(b, tiny, num_blocks=300)
    with pytest.raises(RequestError, match="in use by others"):  # both were seen just now
        run(c, tiny, num_blocks=300)
    a.last_seen -= 20.0
    b.last_seen -= 10.0
    run(c, tiny, num_blocks=300)
    assert a.engine is None and b.engine is not None and c.engine is not None
    assert len(a.trace.events) > 5 and store.budget.held(a) == 0
    run(a, tiny, num_blocks=16)
    assert len(a.engine.output("A").token_ids) == 4


def test_a_forgotten_session_leaves_nothing_behind(tiny: LoadedModel) -> None:
    store = SessionStore(Limits(closed_seconds=0.001))
    session = store.of_viewer("page")
    run(session, tiny)
    gc.disable()  # not by the collector: at once
    try:
        dead = [
            weakref.ref(thing) for thing in (session, session.engine, session.engine.runner.kv_cache, session.trace.capture)
        ]
        store.close("page")
        session.closed_at -= 1.0
        del session
        assert store.sweep() == 1
        assert [ref() for ref in dead] == [None] * 4 and store.budget.num_bytes == 0
    finally:
        gc.enable()


def test_a_run_in_progress_ends_when_its_session_is_forgotten(tiny: LoadedModel) -> None:
    store = SessionStore(Limits(closed_seconds=0.001))
    session = store.of_viewer("page")
    session.begin(tiny, settings(400))
    session.start()
    session.closed_at = session.last_seen - 1.0
    assert store.sweep() == 1
    assert not session.running and session.trace is None and store.turns.num_running == 0


def test_memory_is_flat_over_many_visitors(make_tiny) -> None:
    model = make_tiny(num_hidden_layers=8)
    store, process = SessionStore(), psutil.Process()
    sizes = []
    for number in range(12):
        session = store.of_viewer(f"page {number}")
        run(session, model, num_blocks=1024)  # 64 MiB, of which the run writes little
        session.engine.runner.kv_cache.fill_(0.0)
        store.close(f"page {number}")
        session.closed_at -= 100.0
        del session
        store.sweep()
        sizes.append(process.memory_info().rss)
    assert max(sizes[4:]) - sizes[3] < 32 << 20


def test_when_the_host_stops_runs_end_with_a_sentence_and_none_begins(tiny: LoadedModel) -> None:
    store = SessionStore()
    session = store.of_viewer("page")
    session.begin(tiny, settings(400))
    session.start()
    store.stop_all("The host is restarting.")
    assert not session.running and list(session.updates(0.0))[-1].problem == "The host is restarting."
    with pytest.raises(PagewalkError, match="restarting"):
        store.of_viewer("page")
