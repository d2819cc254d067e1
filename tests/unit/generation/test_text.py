"""Text as it comes is the text as a whole, without half characters and without the beginning of a stop string."""

from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer as Tokenizers
from tokenizers import decoders, models, pre_tokenizers

from statedual.generation.text import StoppingText, TextStream, Tokenizer


class Bytes:
    """One token a byte."""

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")


class Words:
    """Each token is a piece of text of its own; the first space is dropped, as sentencepiece does."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def decode(self, ids: list[int]) -> str:
        return "".join(self.pieces[token] for token in ids).removeprefix(" ")


def byte_level(merges: Sequence[tuple[str, str]] = ()) -> Tokenizers:
    """A tokenizer of the package tokenizers whose tokens are bytes and some merged ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *("".join(pair) for pair in merges)]
    tokenizer = Tokenizers(models.BPE({word: index for index, word in enumerate(words)}, list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TEXT = "plain, für, 日本語, 👩‍👩‍👧 e\u0301\n"


def test_characters_come_whole() -> None:
    stream = TextStream(Bytes())
    pieces = [stream.push(byte) for byte in TEXT.encode()]
    assert pieces[-1] == "\n"
    assert [piece for piece in pieces if piece] == list(TEXT)
    assert stream.flush() == ""


@pytest.mark.parametrize("merges", [(), (("a", "b"), ("Ġ", "w"), ("Ã", "¼"), ("æ", "Ĺ"))])
def test_the_pieces_are_the_text_with_the_package_tokenizers(merges: tuple) -> None:
    tokenizer = byte_level(merges)
    assert isinstance(tokenizer, Tokenizer)
    ids = tokenizer.encode(TEXT).ids
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) == TEXT == tokenizer.decode(ids)
    assert all("\ufffd" not in piece for piece in pieces)


def test_spaces_between_pieces_are_kept() -> None:
    stream = TextStream(Words(" the", " cat", "s", ""))
    assert [stream.push(token) for token in (0, 1, 3, 2, 3, 0)] == ["the", " cat", "", "s", "", " the"]


def test_bytes_that_never_become_a_character_come_late_but_come() -> None:
    stream = TextStream(Bytes())
    given = b"a\xffb\xe6\x97"
    assert [stream.push(byte) for byte in given] == ["a", "", "\ufffdb", "", ""]
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_what_was_begun_is_known() -> None:
    stream = TextStream(Words("ab\ufffd", "\ufffd", "c"))
    assert (stream.push(0), stream.started) == ("", "ab")


@pytest.mark.parametrize("text", [TEXT.encode() * 50, b"\xff" * 2000])
def test_long_texts_decode_only_their_end(text: bytes) -> None:
    """Nor do bytes that never become a character pile up."""
    lengths = []

    class Counted(Bytes):
        def decode(self, ids: list[int]) -> str:
            lengths.append(len(ids))
            return super().decode(ids)

    stream = TextStream(Counted())
    shown = "".join(stream.push(byte) for byte in text) + stream.flush()
    assert shown == text.decode(errors="replace")
    assert max(lengths) <= (8 if text[0] != 0xFF else 32)  # a character of four bytes, and the one before; or 16 and 16


def stopped_text(tokenizer: Tokenizer, ids: Sequence[int], *stops: str) -> tuple[list[str], bool]:
    text = StoppingText(tokenizer, stops)
    pieces = []
    for token in ids:
        pieces.append(text.push(token))
        if text.stopped:
            return pieces, True
    return [*pieces, text.flush()], False


def test_nothing_of_a_stop_string_is_shown() -> None:
    pieces, stopped = stopped_text(Bytes(), b"one ENE END two", "END")
    assert stopped
    assert pieces == ["o", "n", "e", " ", "", "", "EN", "E ", "", "", ""]


@pytest.mark.parametrize("stops", [("END",), ("END", "\n\n"), ("xyz",), ("aab",), ("👩‍👩",), ()])
@pytest.mark.parametrize(
    "text", ["", "E", "EN", "a END", "ENEND", "EENDN", "aaab", "aab", "aaaaaab!", "\n", "\n\n", "a\n\nEND", TEXT]
)
def test_the_text_ends_before_the_first_stop_string(text: str, stops: tuple) -> None:
    pieces, stopped = stopped_text(Bytes(), text.encode(), *stops)
    places = [text.index(stop) for stop in stops if stop in text]
    assert stopped == bool(places)
    assert "".join(pieces) == (text[: min(places)] if places else text)


def test_text_is_held_no_longer_than_it_must() -> None:
    text = StoppingText(Bytes(), ["aab"])
    assert [text.push(byte) for byte in b"aaaaxaa"] == ["", "", "a", "a", "aax", "", ""]
    assert text.flush() == "aa"


def test_a_stop_string_inside_one_token() -> None:
    assert stopped_text(Words("go ENDLESS", "x"), [1, 0, 1], "END") == (["x", "go "], True)


def test_two_stop_strings_inside_one_token() -> None:
    assert stopped_text(Words("a", "b FIN c END"), [0, 1], "END", "FIN") == (["a", "b "], True)


def test_a_stop_string_behind_which_a_character_has_begun() -> None:
    assert stopped_text(Words("go EN", "D\ufffd", "x"), [0, 1, 2], "END") == (["go ", ""], True)
