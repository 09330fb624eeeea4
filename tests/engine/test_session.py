"""Sessions: one engine a visitor, runs that stop, go on and break off, and what is forgotten when."""

from __future__ import annotations

import threading
import time

import pytest

from engine.config import EngineConfig, SamplingParams
from engine.errors import PagewalkError, RequestError
from engine.model_loader import LoadedModel
from engine.session import Limits, RunSettings, Session, SessionStore, nonempty

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def settings(*prompts: str, max_tokens: int = 12, **config: int) -> RunSettings:
    return RunSettings(
        prompts or ("abc",), EngineConfig(**config), SamplingParams(max_tokens=max_tokens, ignore_eos=True), False
    )


def finish(session: Session) -> list:
    session.start()
    return [event for update in session.updates(0.0) for event in update.events]


def test_updates_carry_every_event_once_and_in_order(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", "and more"))
    assert finish(session) == session.engine.trace.events
    assert session.engine.step_count == 12 and not session.running
    session.engine.audit()


def test_stop_ends_the_run_within_one_step_and_frees_every_block(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.start()
    while session.engine.step_count < 3:
        time.sleep(0.001)
    session.stop()
    stopped_at = session.engine.step_count
    assert not session.running and stopped_at < 400
    assert sum(session.engine.scheduler.pool.ref_cnt) == 0
    session.engine.audit()
    time.sleep(0.05)
    assert session.engine.step_count == stopped_at


def test_closing_the_follower_stops_the_run(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.start()
    follower = session.updates(0.0)
    next(follower)
    follower.close()
    assert not session.running and sum(session.engine.scheduler.pool.ref_cnt) == 0


def test_step_once_runs_one_pass_and_generate_goes_on_only_with_the_same_settings(tiny: LoadedModel) -> None:
    session, same = Session(), settings("hello", max_tokens=5)
    session.begin(tiny, same)
    for step in (1, 2):
        session.step_once()
        assert session.engine.step_count == step
    assert session.can_continue(tiny, settings("hello", max_tokens=5))
    assert not session.can_continue(tiny, settings("hello", max_tokens=6))
    finish(session)
    assert session.engine.step_count == 5
    assert not session.can_continue(tiny, same)


def test_a_refused_prompt_leaves_the_run_before_it_in_place(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", num_blocks=8))
    finish(session)
    before = list(session.engine.trace.events)
    with pytest.raises(RequestError, match="the pool has 8"):
        session.begin(tiny, settings("x" * 300, num_blocks=8))
    assert session.engine.trace.events == before
    with pytest.raises(RequestError, match="prompt is empty"):
        session.begin(tiny, RunSettings((), EngineConfig(), PARAMS, False))


def test_the_second_run_finds_the_blocks_of_the_first(tiny: LoadedModel) -> None:
    session, same = Session(), settings("a prompt that fills more than one block of sixteen")
    session.begin(tiny, same)
    finish(session)
    first = session.engine
    session.begin(tiny, same)
    finish(session)
    assert session.engine is first
    assert session.engine.output("A").num_cached_tokens == 48
    session.begin(tiny, settings("other", block_size=4))
    assert session.engine is not first


def test_a_fault_in_the_model_is_told_and_the_session_goes_on(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    session.begin(tiny, settings("hello"))
    monkeypatch.setattr(session.engine.runner, "execute", lambda *a, **k: 1 / 0)
    session.start()
    updates = list(session.updates(0.0))
    assert "broke off (ZeroDivisionError)" in updates[-1].problem
    assert sum(session.engine.scheduler.pool.ref_cnt) == 0
    monkeypatch.undo()
    session.begin(tiny, settings("hello"))
    finish(session)
    assert len(session.engine.output("A").token_ids) == 12


def test_two_runs_at_once_are_refused(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.start()
    with pytest.raises(RequestError, match="in progress"):
        session.begin(tiny, settings("again"))
    with pytest.raises(RequestError, match="in progress"):
        session.step_once()
    session.stop()


def test_a_snapshot_holds_exactly_what_the_updates_have_carried(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello"))
    session.start()
    sent: list = []
    for update in session.updates(0.0):
        sent += update.events
        events, number = session.events_so_far()
        assert events == sent and number == session.num_updates


def test_a_run_that_nobody_follows_any_more_is_told_to_its_end(tiny: LoadedModel) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=400))
    session.step_once()
    session.stop()  # nobody follows a paused run: its blocks are freed between two updates
    events, number = session.events_so_far()
    assert events == session.engine.trace.events and number == session.num_updates == 2
    assert session.events_so_far() == (events, number)


def test_a_lookup_while_a_run_is_busy_never_waits_for_the_model(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session()
    session.begin(tiny, settings("hello", max_tokens=3))
    session.step_once()
    inside, go_on = threading.Event(), threading.Event()
    execute = session.engine.runner.execute

    def slow(*args, **kwargs):
        inside.set()
        assert go_on.wait(30)
        return execute(*args, **kwargs)

    monkeypatch.setattr(session.engine.runner, "execute", slow)
    session.start()
    assert inside.wait(30)
    assert session.engine.lookup("A", None, 2, 0, 0).slot_state == "captured"  # answers although the pass has not ended
    go_on.set()
    session.stop()


def test_viewers_have_sessions_of_their_own_and_tokens_cannot_be_guessed() -> None:
    store = SessionStore()
    first, second = store.of_viewer("one"), store.of_viewer("two")
    assert first is not second and store.of_viewer("one") is first
    assert len(first.token) >= 24 and store.by_token(first.token) is first
    with pytest.raises(PagewalkError, match="expired"):
        store.by_token("one")


def test_a_closed_session_is_kept_for_a_reload_and_then_forgotten() -> None:
    store = SessionStore(Limits(closed_seconds=0.05))
    session = store.of_viewer("old page")
    assert store.readopt(session.token, "copy of the tab", patience=0.0) is None  # still shown by another page
    store.close("old page")
    assert store.readopt(session.token, "new page") is session
    assert store.of_viewer("new page") is session
    store.close("new page")
    time.sleep(0.1)
    assert store.sweep() == 1 and store.num_sessions == 0
    assert store.readopt(session.token, "late") is None


def test_idle_sessions_are_forgotten_and_a_full_host_says_so() -> None:
    store = SessionStore(Limits(max_sessions=2, idle_seconds=0.05))
    store.of_viewer("a")
    store.of_viewer("b")
    with pytest.raises(PagewalkError, match="All 2 places are taken"):
        store.of_viewer("c")
    time.sleep(0.1)
    assert store.of_viewer("c") and store.num_sessions == 1


def test_only_prompts_with_text_count() -> None:
    assert nonempty(["", " x ", "\n", "y"]) == (" x ", "y")
