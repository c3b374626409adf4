"""Sampling with the noise given from outside: by one forward a token, or on a card by `generate` of transformers.

Token t of row b is the inverse of the cumulative distribution at ``noise[b, t]``. So a response depends on
its prompt, the network and its own row of noise alone, not on the batch around it. Policies that are given the
same noise can be compared with each other under common random numbers: for differences of means only, never for
the share of answers that are better (`pipeline.stages.heldout`).

The log-probabilities that a loss uses are never a sampler's: they come from the training forward.

On a CPU `generate` takes two to three times as long for a small network: it reads equal prompts anew, and rows that
have ended stay in its batch. On a card it has a static cache and a compiled decode step. The policy itself samples, its
linear maps rounded to half precision once for a call: a compiled step would cast every weight anew for every token. The
step is compiled without CUDA graphs: their pool of memory would stay through the training, and they would be recorded
at every rollout, whose weights and cache stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pipeline.models.heads import Fp32Head
from pipeline.models.out_of_memory import Room
from pipeline.models.policy import Episodes, positions, response_mask
from pipeline.models.precision import DTYPES, Precision
from pipeline.models.trunk import CausalLM, trunk

CPU_LOGITS, CARD_LOGITS = 2**18, 2**24
"""Logits that a token is drawn from at once: what the cache of a core holds; on a card, a bound on the memory of their
float64 sums."""
KEEP = 0.9
"""Rows that have ended leave the batch when at most this fraction of it is left."""


@dataclass(frozen=True)
class EagerSampler:
    """Samples one response per prompt with the network itself, one forward a token; for every architecture and device.

    The distribution is the whole softmax of logits / temperature: nothing truncates it, or the KL could come out
    negative. At temperature 0 the likeliest token is taken, whatever the noise.
    """

    lm: CausalLM
    temperature: float
    room: Room
    """Rows in memory at once; changes nothing."""
    eos_id: int
    pad_id: int

    def sample(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Episodes:
        """queries (B, P) int64 left-padded, query_mask (B, P) bool, noise (B, T) in [0, 1), uniform. Raises
        `MemoryFull`."""
        parts = self.room.over(len(queries), lambda rows: self.some(queries[rows], query_mask[rows], noise[rows]))
        responses = torch.cat(parts)
        ends, width = responses == self.eos_id, noise.shape[1]
        ended = ends.any(1)
        mask = response_mask(torch.where(ended, ends.int().argmax(1) + 1, width), width)
        return Episodes(torch.cat([queries, responses], dim=1), query_mask, mask, ended)

    def greedy(self, queries: Tensor, query_mask: Tensor, longest: int) -> Episodes:
        """The likeliest token at each place, at most `longest` of them; the rest as for `sample`."""
        return replace(self, temperature=0.0).sample(queries, query_mask, torch.zeros(len(queries), longest))

    @torch.inference_mode()
    def some(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Tensor:
        """Responses (B, T) of rows that are in memory together; what stands behind their ends means nothing."""
        from transformers import DynamicCache

        rows, width = noise.shape
        responses = torch.full((rows, width), self.pad_id, dtype=queries.dtype, device=queries.device)
        noise = noise.to(queries.device, torch.float64)
        mask = torch.cat([query_mask, query_mask.new_ones(rows, width)], dim=1).long()
        cache: Any = DynamicCache(config=self.lm.config)
        body, head = trunk(self.lm), self.lm.get_output_embeddings()
        # The responses to one prompt stand together: it is read once, and what was read is copied for each.
        once, copies = distinct(queries, query_mask)
        tokens, seen, read = queries[once], queries.shape[1], mask[once, : queries.shape[1]]
        place = positions(read)
        # Which rows are in the batch, and which of these have not ended.
        live = torch.arange(rows, device=queries.device)
        open_ = torch.ones(rows, dtype=torch.bool, device=queries.device)
        for t in range(width):
            output = body(
                input_ids=tokens,
                attention_mask=read,
                position_ids=place,
                past_key_values=cache,
                use_cache=True,
            )
            last = output.last_hidden_state[:, -1]
            if t == 0 and len(last) < rows:
                cache.reorder_cache(copies)
                last, place = last[copies], place[copies]
            logits = head(last)
            chosen = inverse_cdf(logits, noise[:, t], self.temperature) if self.temperature else logits.argmax(1)
            responses[live, t] = torch.where(open_, chosen, self.pad_id)
            open_ = open_ & (chosen != self.eos_id)
            left = int(open_.sum())
            if not left:
                break
            tokens, place = chosen.unsqueeze(1), place[:, -1:] + 1
            if left <= KEEP * len(live):
                kept = open_.nonzero().squeeze(1)
                cache.reorder_cache(kept)
                tokens, place, mask, noise, live, open_ = (
                    tensor[kept] for tensor in (tokens, place, mask, noise, live, open_)
                )
            read = mask[:, : seen + t + 1]
        return responses


def distinct(queries: Tensor, query_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for prompts (B, P) with equal ones next to each other, the first of each, (B,) bool, and which of these
    every row equals, (B,) int64."""
    same = ((queries[1:] == queries[:-1]) & (query_mask[1:] == query_mask[:-1])).all(1)
    once = torch.cat([same.new_ones(1), ~same])
    return once, once.cumsum(0) - 1


def inverse_cdf(logits: Tensor, noise: Tensor, temperature: float = 1.0) -> Tensor:
    """Sample from softmax(logits / temperature) by one uniform number a row; logits (B, V), noise (B,), returns (B,)
    int64.

    Cumulative sums are in float64: summed in fp32, the tail of a vocabulary of 150,000 falls below the rounding and is
    never drawn.

    >>> inverse_cdf(torch.log(torch.tensor([[0.2, 0.5, 0.3]])), torch.tensor([0.65])).tolist()
    [1]
    """
    rows = max(1, (CPU_LOGITS if logits.device.type == "cpu" else CARD_LOGITS) // logits.shape[1])
    tokens = []
    for part, numbers in zip(torch.split(logits, rows), torch.split(noise.double().unsqueeze(1), rows), strict=True):
        p = torch.softmax(part if temperature == 1 else part / temperature, dim=-1)
        cumulative = p.cumsum(-1, dtype=torch.float64)
        # Scaled by the last entry, so that the rounding of the sum leaves no gap at the end; past it only where logits
        # are not finite.
        found = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True)
        tokens.append(found.squeeze(1).clamp(max=logits.shape[1] - 1))
    return torch.cat(tokens)


def tokenize_prompts(tokenizer: Any, prompts: list[str]) -> tuple[Tensor, Tensor]:
    """Left-padded prompts: ids (B, P) int64 and mask (B, P) bool, the mask made from lengths."""
    rows = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    lengths = torch.tensor([len(row) for row in rows])
    width = int(lengths.max())
    ids = torch.full((len(rows), width), int(tokenizer.pad_token_id))
    for index, row in enumerate(rows):
        ids[index, width - len(row) :] = torch.tensor(row)
    return ids, torch.arange(width) >= (width - lengths)[:, None]


def decode(tokenizer: Any, episodes: Episodes) -> list[str]:
    """Completions as text, cut at their recorded lengths, special tokens left out: what they add to the text of their
    prompts.

    Not the text of the responses by themselves: some tokenizers drop the space before the first word of a text.
    """
    asked, answered = episodes.query_mask.sum(1).tolist(), episodes.lengths.tolist()
    prompts, wholes = list[list[int]](), list[list[int]]()
    for row, before, after in zip(episodes.query_responses.tolist(), asked, answered, strict=True):
        start, end = episodes.context_length - before, episodes.context_length + after
        prompts.append(row[start : episodes.context_length])
        wholes.append(row[start:end])
    openings, texts = (
        tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        for rows in (prompts, wholes)
    )
    return [_added(opening, text) for opening, text in zip(openings, texts, strict=True)]


def text_ends(tokenizer: Any, episodes: Episodes) -> list[list[int]]:
    """The number of characters of each completion (`decode`) up to and with each of its tokens."""
    ends, width = list[list[int]](), episodes.response_mask.shape[1]
    for row, length in enumerate(episodes.lengths.tolist()):
        same = [row] * length
        prefixes = response_mask(torch.arange(1, length + 1), width)
        queries, prompt, ended = episodes.query_responses[same], episodes.query_mask[same], episodes.ended[same]
        ends.append([len(text) for text in decode(tokenizer, Episodes(queries, prompt, prefixes, ended))])
    return ends


def _added(opening: str, text: str) -> str:
    """Return the rest of `text` after `opening`; a character that only both together make whole is the text's."""
    if text.startswith(opening):
        return text[len(opening) :]
    same = next(place for place in range(len(opening) + 1) if text[: place + 1] != opening[: place + 1])
    return text[same:]


def choose_sampler(
    choice: Literal["auto", "eager", "static"], eager: EagerSampler, precision: Precision, warn: Callable[[str], None]
) -> EagerSampler:
    """Return `eager`, or the static sampler of the same policy where `choice` or the device selects it.

    One line to `warn` for a network whose decode step transformers does not declare to be compilable: it is sampled
    by the eager one.
    """
    if choice == "eager" or (choice == "auto" and precision.device.type != "cuda"):
        return eager
    if not getattr(eager.lm, "_can_compile_fullgraph", False):
        name = type(eager.lm).__name__
        warn(
            "rollouts are sampled by the eager sampler, which is slower: transformers does not declare that a step of"
            f" a {name} can be compiled"
        )
        return eager
    # It imports the caches of transformers, which a trial on a CPU does without.
    from transformers import CompileConfig

    compilation = CompileConfig(mode="default") if precision.device.type == "cuda" else None
    return StaticSampler(eager.lm, eager.temperature, eager.room, eager.eos_id, eager.pad_id, precision, compilation)


@dataclass(frozen=True)
class StaticSampler(EagerSampler):
    """Samples with `generate`. Same noise, same text as the eager sampler's, up to rounding."""

    precision: Precision
    compilation: Any = None
    """The `CompileConfig` of transformers that a step is compiled with; None: it is not."""

    def some(self, queries: Tensor, query_mask: Tensor, noise: Tensor) -> Tensor:
        """Responses (B, T) of rows that are in memory together."""
        from transformers import GenerationConfig

        (rows, context), width = queries.shape, noise.shape[1]
        noise = noise.to(queries.device)

        def choose(tokens: Tensor, logits: Tensor) -> Tensor:
            """Make the token that the noise draws the likeliest one; at temperature 0 it stays."""
            if not self.temperature:
                return logits
            chosen = inverse_cdf(logits, noise[:, tokens.shape[1] - context], self.temperature)
            return torch.full_like(logits, -torch.inf).scatter_(1, chosen.unsqueeze(1), 0.0)

        wanted = GenerationConfig(
            max_new_tokens=width,
            do_sample=False,  # of what `choose` leaves
            eos_token_id=self.eos_id,
            pad_token_id=self.pad_id,
            compile_config=self.compilation,
            disable_compile=self.compilation is None,
        )
        with self.precision.autocast(), _ready(self.lm, DTYPES[self.precision.name]):
            tokens = self.lm.generate(
                queries,
                attention_mask=query_mask.long(),
                past_key_values=_cache()(config=self.lm.config, max_cache_len=context + width),
                generation_config=wanted,
                logits_processor=[choose],
            )[:, context:]
        responses = torch.full((rows, width), self.pad_id, dtype=queries.dtype, device=queries.device)
        responses[:, : tokens.shape[1]] = tokens
        return responses


@cache
def _cache() -> Any:
    """The static cache of transformers, in the precision of the values: one class, or every call would compile anew."""
    from transformers import StaticCache

    class HalfCache(StaticCache):  # type: ignore[misc]
        """Autocast leaves keys in fp32 behind their rotation, and a static layer takes both in one precision."""

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            return super().update(key_states.to(value_states.dtype), value_states, *args, **kwargs)

    return HalfCache


@contextmanager
def _ready(lm: CausalLM, dtype: torch.dtype) -> Iterator[None]:
    """The network with all linear maps in `dtype`, its head too, and without defaults of its own for `generate`."""
    from transformers import GenerationConfig

    maps = [one for one in lm.modules() if type(one) in (nn.Linear, Fp32Head) or type(one).__name__ == "Conv1D"]
    weights, defaults = [one.weight for one in maps], lm.generation_config
    try:
        lm.generation_config = GenerationConfig()
        for one in maps:
            one.weight = nn.Parameter(one.weight.detach().to(dtype), requires_grad=False)
        yield
    finally:
        lm.generation_config = defaults
        for one, weight in zip(maps, weights, strict=True):
            one.weight = weight
