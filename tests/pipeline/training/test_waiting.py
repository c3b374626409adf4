"""A micro-batch asks no tensor for its value, so that a card is never waited for within one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from syncs import waiting
from tinynets import UNEVEN
from tinytrial import CONTROLS, trainer

from pipeline.models.micro_batches import Extents, picked
from pipeline.models.packing import Packing
from pipeline.models.policy import Episodes, flush_left, to_grid
from pipeline.training.natural_step import NaturalLearner
from pipeline.training.update import Learner


def in_micro_batches(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[int]]:
    """What is asked for within the micro-batches of gradient steps, and of measuring passes; how many there were."""
    found: list[str] = []
    count = [0]

    def watched(work: Any) -> Any:
        def watching(*args: Any) -> Any:
            count[0] += 1
            with waiting() as asked:
                result = work(*args)
            found.extend(asked)
            return result

        return watching

    means = Learner.token_means
    monkeypatch.setattr(Learner, "token_means", lambda self, one, sums: means(self, one, watched(sums)))
    monkeypatch.setattr(Learner, "backward", watched(Learner.backward))
    monkeypatch.setattr(NaturalLearner, "critic_backward", watched(NaturalLearner.critic_backward))
    return found, count


@pytest.mark.parametrize("control", ["fixed", "separate", "few bits", "sentences in the loss", "rloo", "dpo", "trpo"])
def test_a_micro_batch_asks_no_tensor_for_its_value(
    control: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, count = in_micro_batches(monkeypatch)
    one = trainer(tmp_path, runtime={"micro_batch_size": 2}, **{"train__steps": 8, **CONTROLS[control]})
    assert one.run().status == "complete"
    assert count[0] >= (2 if control == "target" else 8)
    assert found == []


# --- what the host works out is what the masks say ----------------------------------------------------------


def indexed(rows: list[int], episodes: Episodes = UNEVEN) -> tuple[Any, Any, Any]:
    extents = Extents.of(episodes.query_mask, episodes.response_mask)
    (micro_batch,) = extents.micro_batches(len(rows), torch.tensor(rows), torch.device("cpu"))
    return micro_batch, episodes.take(micro_batch), episodes.take(micro_batch.rows)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [3, 1], [2], [1, 4, 0], [1, 4, 2]])
def test_a_micro_batch_is_what_the_masks_of_its_rows_say(rows: list[int]) -> None:
    micro_batch, known, asked = indexed(rows)
    for name in ("query_responses", "query_mask", "response_mask", "ended", "labels", "lengths"):
        assert torch.equal(getattr(known, name), getattr(asked, name)), name
    for one, other in zip(flush_left(known), flush_left(asked), strict=True):
        assert torch.equal(one, other)
    mask, grid = asked.response_mask, torch.rand(asked.response_mask.shape)
    assert torch.equal(picked(grid, mask, micro_batch), grid[mask])
    row, step = mask.nonzero(as_tuple=True)
    assert torch.equal(micro_batch.row, row)
    starts = asked.query_mask.sum(1)
    tokens = flush_left(asked)[0][:, :-1]
    packing = Packing.of(starts + asked.lengths - 1, tokens.shape[1], row, starts[row] - 1 + step)
    assert torch.equal(micro_batch.cells, packing.cells)
    assert torch.equal(micro_batch.read, packing.read)
    whole = torch.rand(UNEVEN.response_mask.shape)
    assert torch.equal(
        whole.reshape(-1)[micro_batch.whole], whole[micro_batch.rows][UNEVEN.response_mask[micro_batch.rows]]
    )
    assert torch.equal(to_grid(known.labels, mask), to_grid(asked.labels, mask))
