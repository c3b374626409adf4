"""Frozen networks that are off a card but while they are asked; the card is a recorder of what was put on it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from tinynets import UNEVEN, network
from torch import Tensor, nn

from pipeline.models.loading import freeze
from pipeline.models.offload import Offload
from pipeline.models.out_of_memory import MemoryFull
from pipeline.models.policy import response_hidden

CPU = torch.device("cpu")


class Card(Offload):
    """A card that counts what is on it; with `room` for so many tensors."""

    def __init__(self, networks: list[Any], room: int = 10_000) -> None:
        self.put, self.room = list[weakref.ref[Tensor]](), room
        super().__init__(networks, CPU, torch.clone)

    @property
    def present(self) -> int:
        gc.collect()
        return sum(one() is not None for one in self.put)

    def _on_card(self, waiting: Tensor) -> Tensor:
        if len(self.put) >= self.room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        copy = waiting.clone()
        self.put.append(weakref.ref(copy.untyped_storage()))  # type: ignore[arg-type]
        return copy


def frozen(architecture: str = "qwen2") -> Any:
    return freeze(network(architecture, tie_word_embeddings=True))


def addresses(lm: nn.Module) -> set[int]:
    return {one.data_ptr() for one in (*lm.parameters(), *lm.buffers())}


def test_weights_and_buffers_are_on_the_card_within_and_nowhere_else() -> None:
    lm = frozen()
    objects = {name: id(one) for name, one in (*lm.named_parameters(), *lm.named_buffers())}
    wanted, sizes = response_hidden(lm, UNEVEN), sum(one.nbytes for one in (*lm.parameters(), *lm.buffers()))
    card = Card([lm])
    waiting = addresses(lm)
    assert card.nbytes == sizes
    for _ in range(2):
        with card.at_hand():
            assert addresses(lm).isdisjoint(waiting)
            assert torch.equal(response_hidden(lm, UNEVEN), wanted)
        assert addresses(lm) == waiting
    assert {name: id(one) for name, one in (*lm.named_parameters(), *lm.named_buffers())} == objects
    assert lm.get_output_embeddings().weight is lm.get_input_embeddings().weight


def test_nothing_is_kept_on_the_card_and_nothing_is_put_there_twice() -> None:
    lm = frozen()
    count = len(objects := {id(one) for one in (*lm.parameters(), *lm.buffers())})
    assert objects
    card = Card([lm, lm, object()])
    assert card.put == []
    with card.at_hand():
        with card.at_hand():
            assert len(card.put) == card.present == count
        assert card.present == count, "the outer block goes on"
    assert len(card.put) == count
    assert card.present == 0


def test_an_error_within_takes_them_off_again() -> None:
    lm = frozen()
    card = Card([lm])
    waiting = addresses(lm)
    with pytest.raises(KeyError), card.at_hand():
        raise KeyError
    assert addresses(lm) == waiting
    with card.at_hand():
        assert addresses(lm).isdisjoint(waiting)


def test_networks_that_do_not_fit_leave_nothing_behind() -> None:
    lm = frozen()
    card = Card([lm], room=5)
    waiting = addresses(lm)
    with (
        pytest.raises(MemoryFull, match="with the frozen networks back on the card: CUDA out of memory"),
        card.at_hand(),
    ):
        raise AssertionError("they did not fit")
    assert addresses(lm) == waiting


def test_another_error_of_the_card_is_passed_on() -> None:
    class Broken(Card):
        def _on_card(self, waiting: Tensor) -> Tensor:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal memory access"), Broken([frozen()]).at_hand():
        raise AssertionError("it is broken")


def test_weights_that_are_trained_are_refused() -> None:
    with pytest.raises(ValueError, match="trained must stay on the card"):
        Card([network("qwen2")])
