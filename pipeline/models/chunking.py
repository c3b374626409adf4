"""Numbers of tokens, texts, pairs or rankings that go through a network at once: bounds on the memory in use.

Stages work by these numbers, so they are part of their keys; the planner's figures of models are in
`pipeline.forecast.shapes`.
"""

from __future__ import annotations

CHUNK_ELEMENTS, CHUNK_TOKENS, CARD_TOKENS = 2**22, 128, 512
"""A chunk at the language-modelling head: at most so many (tokens, vocabulary) entries, 16 MiB in fp32, but at least so
many tokens. Each chunk moves the whole head and its gradient once, 20 bytes a weight: with 128 tokens a T4 would be
busy with its memory for seven times as long as with its arithmetic, with 512 for three times. On a CPU, larger ones are
no faster: the allocator maps them afresh."""
CARD_POSITIONS, CPU_POSITIONS = 2**11, 2**13
"""Tokens of all answers of preference pairs or rankings whose activations are kept at once: on a card enough to be busy
with arithmetic."""


def chunk_tokens(vocab: int, on_card: bool = False) -> int:
    """Tokens that go through the language-modelling head together."""
    return max(CHUNK_ELEMENTS // vocab, CARD_TOKENS if on_card else CHUNK_TOKENS)


def text_rows(rows: int, tokens: int, vocab: int, on_card: bool = False) -> int:
    """Texts of `tokens` tokens that a batch of `rows` goes through a language-modelling head by: no more logits than
    one chunk of PPO's."""
    return min(rows, max(chunk_tokens(vocab, on_card) // tokens, 1))


def ranking_rows(rows: int, ranked: int, tokens: int, on_card: bool = False) -> int:
    """Rankings of so many answers, of `tokens` tokens each, that a reward model is trained on at once; pairs are
    rankings of 2."""
    return min(rows, max((CARD_POSITIONS if on_card else CPU_POSITIONS) // (ranked * tokens), 1))
