"""Token ids to text: every token's exact text, and a stream that never shows half a character or a stop string.

A token is a string of bytes, and a character may be spread over several tokens:

    ids        9530 | 241 | 228 |  104      ->  b" \\xf0\\x9f" | b"\\x98" | b"\\x80" | b"!"
    stream       "" |  "" | " 😀" | "!"
"""

from __future__ import annotations

import codecs
import contextlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from engine.errors import ConfigError
from engine.events import TokenText

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenPieces:
    """The exact bytes and text of a tokenizer's tokens, each worked out once.

    Joined as bytes, the pieces are the decoded text: for byte-level BPE always; a SentencePiece decoder also drops the
    space before the first word, which stays here. An id that the tokenizer does not know has the text "".
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._decoder = repr(getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None))
        self._bytes: dict[int, bytes] = {}
        self._texts: dict[int, TokenText] = {}
        self.special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} | set(
            tokenizer.all_special_ids
        )

    def raw(self, token_id: int) -> bytes:
        """The bytes of a token."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._read(int(token_id))
        return found

    def text(self, token_id: int) -> TokenText:
        """The text of a token; bytes where it alone is not valid UTF-8. Special tokens as they are written."""
        found = self._texts.get(token_id)
        if found is None:
            found = raw = self.raw(token_id)
            with contextlib.suppress(UnicodeDecodeError):
                found = raw.decode("utf-8")
            self._texts[token_id] = found
        return found

    def texts(self, ids: Iterable[int]) -> tuple[TokenText, ...]:
        return tuple(self.text(token_id) for token_id in ids)

    def _read(self, token_id: int) -> bytes:
        if "ByteLevel(" in self._decoder:
            return _from_byte_level(self._token(token_id))
        if any(kind in self._decoder for kind in ("ByteFallback(", "Metaspace(", "▁")):
            return _from_sentencepiece(self._token(token_id))
        return self._tokenizer.decode([token_id], skip_special_tokens=False).encode()

    def _token(self, token_id: int) -> str:
        return self._tokenizer.convert_ids_to_tokens([token_id])[0] or ""


class StreamingDetokenizer:
    """The text of a growing list of tokens, piece by piece; special tokens have none.

    `stopped` turns true when one of the `stop` strings is complete (`stop_string`); nothing of it is ever returned, so
    text that may be the beginning of one is held back until the next token decides.
    """

    def __init__(self, pieces: TokenPieces, stop: Sequence[str] = ()) -> None:
        if isinstance(stop, str) or not all(isinstance(s, str) and s for s in stop):
            raise ConfigError(f"stop must be a list of strings that are not empty, got {stop!r}.")
        self._pieces = pieces
        self._stop = tuple(stop)
        # Holds incomplete characters back; what can never become one turns into U+FFFD, as in `tokenizer.decode`.
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.stop_string: str | None = None

    @property
    def stopped(self) -> bool:
        return self.stop_string is not None

    def append(self, token_id: int) -> str:
        """The new text that is safe to show."""
        if self.stopped or token_id in self._pieces.special:
            return ""
        decoded = self._utf8.decode(self._pieces.raw(token_id))
        if not self._stop:
            return decoded
        self._held += decoded
        # The stop string that is complete first; of two that end together, the one that began first.
        found = [(start + len(s), start, s) for s in self._stop if (start := self._held.find(s)) >= 0]
        if found:
            _, end, self.stop_string = min(found)
        else:
            end = len(self._held) - self._possible_stop()
        text, self._held = self._held[:end], "" if found else self._held[end:]
        return text

    def finish(self) -> str:
        """What was held back, at the end of the text. The bytes of a character that never became whole are dropped."""
        self._utf8.reset()
        text, self._held = self._held, ""
        return text

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text with which a stop string begins."""
        longest = max((len(s) for s in self._stop), default=1) - 1
        ends = (self._held[-n:] for n in range(min(longest, len(self._held)), 0, -1))
        return next((len(end) for end in ends if any(s.startswith(end) for s in self._stop)), 0)


@cache
def _byte_of_char() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100 onwards (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def _from_byte_level(token: str) -> bytes:
    table = _byte_of_char()
    try:
        return bytes(table[char] for char in token)
    except KeyError:  # an added token, which is written as it is
        return token.encode()


def _from_sentencepiece(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()
