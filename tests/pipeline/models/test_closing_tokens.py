"""The tokens that end a clause or a sentence, by their texts, in tokenizers of several kinds."""

from __future__ import annotations

from typing import Any

from small_tokenizers import TEXTS

from pipeline.models.tokenizers import closing_tokens, train_tokenizer

LINES = ["One.\n\nTwo; three, four: five! Six? Seven...\n", 'He said "no!" and left.', *TEXTS]


def cut(tokenizer: Any, text: str, group: Any) -> str:
    """The text with a bar behind every token that ends a group."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    closes = closing_tokens(tokenizer, group, len(tokenizer))
    assert closes is not None
    return "".join(tokenizer.convert_ids_to_tokens(token) + "|" * bool(closes[token]) for token in ids)


def test_the_built_in_tokenizer_by_hand() -> None:
    tokenizer = train_tokenizer(LINES, 500)
    text = "I saw it, and we left. Why?"
    assert cut(tokenizer, text, "clause").replace("Ġ", " ") == "I saw it,| and we left.| Why?|"
    assert cut(tokenizer, text, "sentence").replace("Ġ", " ") == "I saw it, and we left.| Why?|"
    assert cut(tokenizer, "a; b: c! d", "clause").replace("Ġ", " ") == "a;| b:| c!| d"
    assert cut(tokenizer, "a; b: c! d", "sentence").replace("Ġ", " ") == "a; b: c!| d"
    for group in ("clause", "sentence"):
        assert cut(tokenizer, "a\nb", group) == "aĊ|b"


def test_a_quote_or_bracket_behind_the_point_is_part_of_the_end() -> None:
    tokenizer = train_tokenizer(['"No." "No." "No." (no.) (no.) (no.) "No," "No,"'] * 20, 300)
    words = {word: token for word, token in tokenizer.get_vocab().items() if word in {'."', ".)", ',"'}}
    assert len(words) == 3, "the tokenizer joins them"
    clause, sentence = (closing_tokens(tokenizer, group, len(tokenizer)) for group in ("clause", "sentence"))  # type: ignore[arg-type]
    assert clause is not None
    assert sentence is not None
    for word, token in words.items():
        assert clause[token]
        assert bool(sentence[token]) == ("." in word)
    assert not clause[tokenizer.get_vocab()['"']]


def test_special_tokens_and_places_without_a_token_close_nothing() -> None:
    tokenizer = train_tokenizer(LINES, 500)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<stop.>"]})
    closes = closing_tokens(tokenizer, "sentence", len(tokenizer) + 7)
    assert closes is not None
    assert closes.shape == (len(tokenizer) + 7,)
    assert not closes[-7:].any()
    for special in (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<stop.>")):
        assert not closes[special]
