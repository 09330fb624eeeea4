"""Exact token texts, and a stream that shows no half character and no stop string."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.detokenizer import StreamingDetokenizer, TokenPieces
from engine.errors import ConfigError

TEXTS = [
    "Hello, world!  two  spaces\t\ttabs\r\n\r\nlines ",
    "👩‍👩‍👧‍👦 family, 🇫🇷 flag, 👍🏽 tone, é composed, e\u0301 not",
    "שלום עולם – مرحبا بالعالم – नमस्ते – 你好，世界 – สวัสดี",
    "\x00\x01\x1b[0m\x7f\x85\u2028\u202e\ufeff\ufffd",
    "<b>bold</b> &lt; $x^2$ `code` ▁Ġ<0x41> <|im_start|>user",
]


def is_dropped_by_smollm(char: str) -> bool:
    """Its vocabulary has no token for 8 bytes that UTF-8 uses (six control characters, F1 and F2): they are lost."""
    return char in "\x04\x06\x13\x14\x16\x1d" or 0x40000 <= ord(char) < 0xC0000


def as_bytes(texts) -> bytes:
    return b"".join(text.encode() if isinstance(text, str) else text for text in texts)


def stream(tokenizer, ids, stop=()) -> tuple[list[str], StreamingDetokenizer]:
    detokenizer = StreamingDetokenizer(TokenPieces(tokenizer), list(stop))
    pieces = [detokenizer.append(token_id) for token_id in ids]
    return [*pieces, detokenizer.finish()], detokenizer


# ---------------------------------------------------------------- token texts


@pytest.mark.parametrize("text", TEXTS)
def test_the_texts_of_all_tokens_joined_are_the_text(smollm, tiny, text):
    for tokenizer in (smollm.tokenizer, tiny.tokenizer):
        ids = tokenizer(text).input_ids
        texts = TokenPieces(tokenizer).texts(ids)
        assert len(texts) == len(ids)
        assert as_bytes(texts) == text.encode() == tokenizer.decode(ids, clean_up_tokenization_spaces=False).encode()


def test_any_text_joins_exactly(smollm, tiny):
    @settings(max_examples=200, deadline=None)
    @given(st.text(max_size=60))
    @example("‏א👨‍💻\x00")
    def check(text):
        for tokenizer in (smollm.tokenizer, tiny.tokenizer):
            ids = tokenizer(text).input_ids
            joined = as_bytes(TokenPieces(tokenizer).texts(ids)).decode(errors="replace")
            assert joined == tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            assert joined == text or (tokenizer is smollm.tokenizer and any(map(is_dropped_by_smollm, text)))
            assert "".join(stream(tokenizer, ids)[0]) == tokenizer.decode(ids, skip_special_tokens=True)

    check()


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 258), max_size=30))
def test_any_tokens_at_all_stream_to_what_decode_says(tiny, ids):
    tokenizer = tiny.tokenizer
    raw = as_bytes(TokenPieces(tokenizer).texts([i for i in ids if i not in (256, 257)]))
    whole = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(raw)  # without an unfinished character
    assert "".join(stream(tokenizer, ids)[0]) == whole
    assert tokenizer.decode(ids, skip_special_tokens=True).startswith(whole)


def test_a_token_is_bytes_exactly_where_it_is_no_utf8_by_itself(smollm):
    ids = smollm.tokenizer("a 😀").input_ids
    texts = TokenPieces(smollm.tokenizer).texts(ids)
    assert any(isinstance(text, bytes) for text in texts)
    for text in texts:
        if isinstance(text, bytes):
            with pytest.raises(UnicodeDecodeError):
                text.decode()


def test_every_id_of_the_vocabulary_has_its_text(smollm):
    texts = TokenPieces(smollm.tokenizer).texts(range(49152))
    assert texts[:3] == ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    assert all(texts)
    assert TokenPieces(smollm.tokenizer).texts([60000]) == ("",)


def sentencepiece_tokenizer():
    """A SentencePiece-like tokenizer with byte fallback, as Llama 2 and Mistral have."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "H", "i", "▁H", "▁Hi", "!"]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "H"), ("▁H", "i")]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(piece, special=True) for piece in ("<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def test_sentencepiece_marks_are_spaces_and_byte_tokens_are_bytes():
    tokenizer = sentencepiece_tokenizer()
    ids = tokenizer("Hi Hi €!").input_ids
    assert TokenPieces(tokenizer).texts([1, *ids]) == ("<s>", " Hi", " Hi", " ", b"\xe2", b"\x82", b"\xac", "!")
    assert tokenizer.decode(ids) == "Hi Hi €!"
    assert stream(tokenizer, [1, *ids, 2])[0] == ["", " Hi", " Hi", " ", "", "", "€", "!", "", ""]


# ---------------------------------------------------------------- streaming


@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_is_the_text_and_never_shows_half_a_character(tiny, text):
    ids = tiny.tokenizer(text, add_special_tokens=False).input_ids
    pieces, _ = stream(tiny.tokenizer, ids)
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")
    # One token a byte: every character appears with its last byte, not later.
    shown, expected = "", codecs.getincrementaldecoder("utf-8")()
    for token_id, piece in zip(ids, pieces):
        shown += piece
        ending = expected.decode(as_bytes(TokenPieces(tiny.tokenizer).texts([token_id])))
        assert piece == ending


def test_the_bytes_of_a_character_cut_off_at_the_end_are_dropped(tiny):
    ids = tiny.tokenizer("ok 😀").input_ids
    for missing in (1, 2, 3):
        assert "".join(stream(tiny.tokenizer, ids[:-missing])[0]) == "ok "


def test_bytes_that_can_never_become_a_character_read_as_decode_reads_them(tiny):
    for raw in (b"a\xe2b", b"\xff\xfe!", b"\xf0\x9fz\x98", b"\x80\x80", b"\xed\xa0\x80x", b"\xc0\xafx", b"\xf4\x90\x80\x80x"):
        ids = [i for b in raw for i in [byte_id(tiny.tokenizer, b)]]
        assert "".join(stream(tiny.tokenizer, ids)[0]) == tiny.tokenizer.decode(ids) == raw.decode(errors="replace")


def byte_id(tokenizer, byte: int) -> int:
    return next(i for i in range(256) if as_bytes(TokenPieces(tokenizer).texts([i])) == bytes([byte]))


def test_special_tokens_have_no_text_even_within_a_character(tiny):
    ids = tiny.tokenizer("é").input_ids
    assert stream(tiny.tokenizer, [256, ids[0], 257, ids[1], 257])[0] == ["", "", "", "é", "", ""]


# ---------------------------------------------------------------- stop strings


class Pieces:
    """A tokenizer whose token i is the i-th of some strings."""

    all_special_ids: tuple[int, ...] = ()
    added_tokens_decoder: dict = {}  # noqa: RUF012

    def __init__(self, pieces):
        self.pieces = pieces

    def convert_ids_to_tokens(self, ids):
        return [self.pieces[i] for i in ids]

    def decode(self, ids, skip_special_tokens=False):
        return "".join(self.pieces[i] for i in ids)


def pieces_of(stop, *parts):
    pieces, detokenizer = stream(Pieces(parts), range(len(parts)), stop)
    return pieces, detokenizer


def test_none_of_a_stop_string_is_emitted_however_it_arrives():
    pieces, detokenizer = pieces_of(["DEFGHIJ"], "ABC", "DEF", "G", "HI", "J", "K")
    assert pieces == ["ABC", "", "", "", "", "", ""]
    assert detokenizer.stopped and detokenizer.stop_string == "DEFGHIJ"


def test_what_was_held_back_for_a_stop_string_that_did_not_come_is_emitted():
    pieces, detokenizer = pieces_of(["DEFGHIJ"], "ABC", "DEF", "G", "HI", "x", "DE")
    assert pieces == ["ABC", "", "", "", "DEFGHIx", "", "DE"]
    assert not detokenizer.stopped and detokenizer.stop_string is None


def test_text_before_the_stop_string_in_the_same_token_is_emitted_and_after_it_is_not():
    assert pieces_of(["."], "One. Two.")[0] == ["One", ""]
    assert pieces_of(["\n\n"], "a\n", "b\n\nc", "d")[0] == ["a", "\nb", "", ""]


def test_a_stop_string_that_begins_again_within_itself_is_found():
    assert "".join(pieces_of(["aab"], "a", "a", "a", "b", "c")[0]) == "a"
    assert "".join(pieces_of(["abab"], "ab", "a", "ab", "ab")[0]) == "aba"


def test_a_stop_string_may_lie_across_half_characters(tiny):
    pieces, detokenizer = stream(tiny.tokenizer, tiny.tokenizer("hi 😀!").input_ids, ["😀"])
    assert "".join(pieces) == "hi " and detokenizer.stop_string == "😀"


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_where_a_text_stops_does_not_depend_on_how_it_is_cut_into_tokens(parts, stops):
    text = "".join(parts)
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    expected = text[: min(ends)[1]] if ends else text
    pieces, detokenizer = pieces_of(stops, *parts)
    assert "".join(pieces) == expected
    assert detokenizer.stop_string == (min(ends)[2] if ends else None)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("abc", min_size=1, max_size=3), max_size=10), st.text("ab", min_size=1, max_size=4))
def test_no_more_is_held_back_than_a_stop_string_may_need(parts, stop):
    detokenizer, shown, text = StreamingDetokenizer(TokenPieces(Pieces(parts)), [stop]), "", ""
    for i, part in enumerate(parts):
        shown, text = shown + detokenizer.append(i), text + part
        if detokenizer.stopped:
            break
        held = text[len(shown) :]
        assert text.startswith(shown) and stop.startswith(held) and held != stop


@pytest.mark.parametrize("stop", ["END", [""], ["a", ""], [3]])
def test_stop_strings_that_are_none_are_refused(tiny, stop):
    with pytest.raises(ConfigError, match="stop must be a list of strings that are not empty"):
        StreamingDetokenizer(TokenPieces(tiny.tokenizer), stop)
