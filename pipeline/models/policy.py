"""The policy with its critic, if it has one, and the one forward that rollouts and training share.

Shapes: B sequences, P prompt columns (left-padded), T response columns (right-padded), H width, V
vocabulary, N valid response tokens of the batch, row by row. Everything after the trunk happens on the N
valid tokens only: padding reaches neither the heads nor any average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pipeline.models.heads import full_precision, log_probs
from pipeline.models.out_of_memory import Room, bucket
from pipeline.models.trunk import CausalLM, states


@dataclass(frozen=True)
class Episodes:
    """Prompts and responses as tokens, on one device."""

    query_responses: Tensor
    """(B, P + T) int64."""
    query_mask: Tensor
    """(B, P) bool, False on left padding."""
    response_mask: Tensor
    """(B, T) bool, from recorded lengths, EOS included."""
    ended: Tensor
    """(B,) bool, True where the response ended by EOS."""

    @property
    def context_length(self) -> int:
        """P."""
        return self.query_mask.shape[1]

    @property
    def lengths(self) -> Tensor:
        """(B,) valid tokens of each response."""
        return self.response_mask.sum(1)

    @property
    def responses(self) -> Tensor:
        """(B, T)."""
        return self.query_responses[:, self.context_length :]

    @property
    def attention_mask(self) -> Tensor:
        """(B, P + T) int64, 1 on prompt and response tokens."""
        return torch.cat([self.query_mask, self.response_mask], dim=1).long()

    @property
    def labels(self) -> Tensor:
        """(N,) the valid response tokens, row by row."""
        return self.responses[self.response_mask]

    def each(self, change: Callable[[Tensor], Tensor]) -> Episodes:
        return Episodes(*(change(column) for column in vars(self).values()))

    def buckets(self, size: int, rows: Tensor | None = None) -> list[Tensor]:
        """Indices of `rows` (all when none), `size` at a time, sorted by length so that little of each is padding."""
        lengths = self.query_mask.sum(1) + self.lengths
        rows = torch.arange(len(lengths), device=lengths.device) if rows is None else rows
        return list(torch.split(rows[lengths[rows].argsort(stable=True)], size))

    def grids(self, count: int, room: Room, columns: Callable[[Episodes], Sequence[Tensor]]) -> Tensor:
        """`count` grids (B, T) of ``columns(episodes)``, (N,) each over the valid tokens of some rows, 0 elsewhere.

        `columns` is called on micro-batches, as large as `room` allows, and must not need gradients. Raises
        `MemoryFull`.
        """
        (order,) = self.buckets(len(self.ended))
        found = torch.zeros(count, *self.response_mask.shape, device=self.ended.device)

        def fill(part: slice) -> None:
            episodes = self.take(order[part])
            mask = episodes.response_mask
            for grid, column in zip(found, columns(episodes), strict=True):
                grid[order[part], : mask.shape[1]] = to_grid(column, mask)

        room.over(len(order), fill, bucket(self.ended.device, len(order)))
        return found

    def take(self, rows: Tensor | slice) -> Episodes:
        """Some of the rows, with columns that are padding in all of them cut away."""
        queries, mask = self.query_mask[rows], self.response_mask[rows]
        first = int(queries.any(0).long().argmax()) if queries.any() else self.context_length - 1
        last = self.context_length + max(int(mask.sum(1).max()), 1)
        return replace(
            self,
            query_responses=self.query_responses[rows][:, first:last],
            query_mask=queries[:, first:],
            response_mask=mask[:, : last - self.context_length],
            ended=self.ended[rows],
        )


def response_mask(lengths: Tensor, width: int) -> Tensor:
    """True on the first `lengths[b]` of `width` positions: valid response tokens, EOS included.

    lengths (B,) int; returns (B, width) bool. Made from lengths and never from ``token == pad``: pad may
    equal EOS, or be sampled.

    >>> response_mask(torch.tensor([2, 0]), 3).tolist()
    [[True, True, False], [False, False, False]]
    """
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def padded_episodes(
    prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], ended: Tensor, pad: int
) -> Episodes:
    """Tokens of B prompts and responses as episodes on the CPU, padded left and right; ended (B,) bool."""
    starts, lengths = (torch.tensor([len(row) for row in rows]) for rows in (prompts, responses))
    width, longest = int(starts.max()), int(lengths.max())
    tokens = torch.full((len(prompts), width + longest), pad)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        tokens[row, width - len(prompt) : width + len(response)] = torch.tensor([*prompt, *response])
    query_mask = torch.arange(width) >= (width - starts)[:, None]
    return Episodes(tokens, query_mask, response_mask(lengths, longest), ended)


def positions(attention_mask: Tensor) -> Tensor:
    """Position ids that ignore left padding, so that a prompt means the same however it is padded; (B, L)."""
    return (attention_mask.cumsum(1) - 1).clamp(min=0)


def flush_left(episodes: Episodes) -> tuple[Tensor, Tensor]:
    """Tokens (B, L) with every prompt beginning in column 0, and the column of every first response token (B,).

    L is the longest prompt and response together. What stands behind a response means nothing.

    >>> padded = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 0]])
    >>> query_mask = torch.tensor([[False, False, True], [True, True, True]])
    >>> mask = response_mask(torch.tensor([2, 1]), 2)
    >>> tokens, starts = flush_left(Episodes(padded, query_mask, mask, torch.ones(2).bool()))
    >>> tokens[0, :3].tolist(), tokens[1].tolist(), starts.tolist()
    ([5, 6, 7], [1, 2, 3, 4], [1, 3])
    """
    starts = episodes.query_mask.sum(1)
    width = torch.arange(int((starts + episodes.lengths).max()), device=starts.device)
    columns = (episodes.context_length - starts).unsqueeze(1) + width
    return episodes.query_responses.gather(1, columns.clamp(max=episodes.query_responses.shape[1] - 1)), starts


def response_hidden(model: CausalLM, episodes: Episodes) -> Tensor:
    """Hidden states (N, H) at the positions that predict the valid response tokens. A prompt has at least one token."""
    tokens, starts = flush_left(episodes)
    row, step = episodes.response_mask.nonzero(as_tuple=True)
    # The last token predicts nothing that anybody reads.
    return states(model, tokens[:, :-1], starts + episodes.lengths - 1, row, starts[row] - 1 + step)


def to_grid(flat: Tensor, mask: Tensor) -> Tensor:
    """Put (N,) values of valid tokens back on (B, T), 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=flat.dtype, device=flat.device).masked_scatter(mask, flat)


class ActorCritic(nn.Module):
    """A causal language model and a critic: a scalar head on the policy's trunk, on a trunk of its own, or none."""

    def __init__(
        self,
        lm: CausalLM,
        critic_trunk: CausalLM | None = None,
        value_head: nn.Linear | None = None,
        *,
        has_critic: bool = True,
    ) -> None:
        """Without `critic_trunk` the critic is shared; without `value_head` (H, 1) it is zero at the start."""
        super().__init__()
        self.lm = lm
        self.critic_trunk = critic_trunk
        self.value_head = value_head
        if has_critic and value_head is None:
            self.value_head = nn.Linear((critic_trunk or lm).config.hidden_size, 1)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    @property
    def has_critic(self) -> bool:
        return self.value_head is not None

    def hidden_and_values(self, episodes: Episodes) -> tuple[Tensor, Tensor | None]:
        """Hidden states (N, H) of the policy and values (N,) at the positions that predict the valid response tokens.
        No values without a critic.

        The value of token t is that of the state before it was chosen: a shared critic reads the very hidden
        state that the language-modelling head reads.
        """
        hidden = response_hidden(self.lm, episodes)
        if self.value_head is None:
            return hidden, None
        if self.critic_trunk is not None:
            return hidden, self.values(episodes)
        return hidden, full_precision(self.value_head, hidden)

    def values(self, episodes: Episodes) -> Tensor:
        """The values (N,) alone, of a policy that has a critic."""
        assert self.value_head is not None
        return full_precision(self.value_head, response_hidden(self.critic_trunk or self.lm, episodes))

    @property
    def networks(self) -> list[CausalLM]:
        """The policy, and the critic's trunk where it is separate."""
        return [network for network in (self.lm, self.critic_trunk) if network is not None]

    def forward(self, episodes: Episodes, temperature: float) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities (N, V) and values (N,) at the valid response tokens, both fp32."""
        hidden, values = self.hidden_and_values(episodes)
        return log_probs(self.lm, hidden, temperature), values


def save_critic(actor: ActorCritic, path: Path) -> None:
    """The value head, and of a trunk of its own what is trained, in one file; none without a critic."""
    if actor.has_critic:
        tensors = _critic(actor)
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)


def restore_critic(actor: ActorCritic, path: Path) -> None:
    """Give the critic of `actor` the weights that `save_critic` wrote. Raises `ValueError` where they are those of
    another kind of critic."""
    tensors, own = load_file(path), _critic(actor)
    if other := own.keys() ^ tensors.keys():
        raise ValueError(f"{path}: it is not this kind of critic: {', '.join(sorted(other))}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])


def _critic(actor: ActorCritic) -> dict[str, Tensor]:
    """The tensors of a critic, by name. Beside an adapter the trunk is as the trial found it, and is left out."""
    tensors = {name: tensor for name, tensor in actor.state_dict().items() if not name.startswith("lm.")}
    kept = ("value_head.", ".lora_") if any(".lora_" in name for name in tensors) else ("",)
    return {name: tensor for name, tensor in tensors.items() if any(part in name for part in kept)}


def calibrated_head(head: nn.Linear, mean: float, std: float) -> nn.Linear:
    """Return a head (H, 1) whose output is (that of `head` - mean) / std."""
    result = nn.Linear(head.in_features, 1).to(head.weight.device)
    with torch.no_grad():
        result.weight.copy_(head.weight / std)
        result.bias.copy_((head.bias - mean) / std)
    return result
