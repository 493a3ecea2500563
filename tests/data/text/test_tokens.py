"""Tokens say what the text said."""

import pytest

from linear_transformers.data.text import END, START, TOKENIZERS
from linear_transformers.data.text.tokens import SPECIAL, UNKNOWN, UNREADABLE

TEXTS = ("", "a", "Zwei Männer «draußen»!", "日本語 🙂\n\t", "\x00\x7f")
SIZE = 270


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_what_was_learnt_from_comes_back(kind):
    tokenizer = TOKENIZERS[kind](TOKENIZERS[kind].learn(TEXTS, SIZE))
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        assert all(SPECIAL <= token < tokenizer.num_tokens for token in tokens)
        assert tokenizer.decode([START, *tokens, END]) == text


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_vocabulary_is_all_that_is_needed(kind):
    vocabulary = TOKENIZERS[kind].learn(TEXTS, SIZE)
    first, second = (TOKENIZERS[kind](vocabulary) for _ in range(2))
    assert [first.encode(text) for text in TEXTS] == [second.encode(text) for text in TEXTS]


def test_a_character_that_was_never_seen_is_unknown():
    tokenizer = TOKENIZERS["characters"]("ab")
    assert tokenizer.encode("bxa") == [SPECIAL + 1, UNKNOWN, SPECIAL]
    assert tokenizer.decode([SPECIAL + 1, UNKNOWN, SPECIAL]) == f"b{UNREADABLE}a"


def test_bytes_that_are_no_character_are_shown_as_such():
    tokenizer = TOKENIZERS["bytes"]()
    assert tokenizer.decode(tokenizer.encode("ä")[:1]) == UNREADABLE


def test_frequent_pieces_of_words_are_one_token():
    texts = ["draußen im Garten", "draußen im Regen"] * 9
    vocabulary = TOKENIZERS["bpe"].learn(texts, 300)
    assert TOKENIZERS["bpe"].learn(iter(texts), 300) == vocabulary
    tokenizer = TOKENIZERS["bpe"](vocabulary)
    assert tokenizer.num_tokens <= 300
    assert len(tokenizer.encode("draußen im Regen")) <= 5
    unseen = "日本語  🙂 und\tmehr"
    assert tokenizer.decode(tokenizer.encode(unseen)) == unseen
