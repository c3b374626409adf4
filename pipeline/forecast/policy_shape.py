"""The shape of a policy before it is built: from its configuration alone, on tensors that have no memory."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.config.model import ModelConfig
from pipeline.config.trial import TrialConfig, canonical_json
from pipeline.forecast.shapes import BASE_CLASSIFIER, PUBLISHED, ScorerShape, Shape
from pipeline.models.anatomy import blocks_of, trunk
from pipeline.models.loading import CausalLM, scratch_config
from pipeline.models.meter import attention_width, cached_numbers, linear_maps, map_sizes
from pipeline.run.hub import available

PROBE = "sizes probe"


def shape_of(config: TrialConfig) -> Shape | None:
    """The policy's shape; None where its sizes cannot be had: a base that is no folder, not in `PUBLISHED`, not on the
    hub."""
    model = config.model
    if model.base is None:
        return scratch_shape(model, config.data.vocab_size)
    folder = Path(model.base)
    if folder.is_dir():
        file = folder / "config.json"
        return measured(file.read_text("utf-8", "replace")) if file.is_file() else None
    if model.base in PUBLISHED:
        return measured(canonical_json(PUBLISHED[model.base]))
    return _from_hub(model.base, model.revision)


def scratch_shape(sizes: ModelConfig, vocabulary: int) -> Shape | None:
    """Of a scratch model with so many embeddings."""
    return measured(canonical_json(scratch_config(sizes, vocabulary, 0, 1, 1024).to_diff_dict()))


def scorer_shapes(config: TrialConfig) -> tuple[ScorerShape, ...]:
    """Of every classifier that rewards or judges; of one whose configuration cannot be had, `BASE_CLASSIFIER`."""
    return tuple(_scorer(*classifier) or BASE_CLASSIFIER for classifier in _scorers(config))


def assumed_scorers(config: TrialConfig) -> list[str]:
    """Classifiers of which only an assumption is known."""
    return [model for model, revision in dict.fromkeys(_scorers(config)) if _scorer(model, revision) is None]


def _scorers(config: TrialConfig) -> list[tuple[str, str | None]]:
    return [
        (part.model, part.revision)
        for part in (*config.judges.values(), *config.reward.scorers().values())
        if part.model is not None
    ]


@lru_cache(maxsize=16)
def _scorer(model: str, revision: str | None) -> ScorerShape | None:
    from transformers import AutoConfig, AutoModelForSequenceClassification

    try:
        if not (Path(model).is_dir() or available(model, revision)):
            return None
        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
        with torch.device("meta"):
            network = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    maps = [sizes for module in network.modules() if (sizes := map_sizes(module)) is not None]
    widest = max((outputs for _, outputs in maps), default=0)
    width = int(getattr(config, "hidden_size", 0) or getattr(config, "dim", 0))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return ScorerShape(parameters, sum(inputs * outputs for inputs, outputs in maps), 4.0 * (4 * width + 2 * widest))


@lru_cache(maxsize=16)
def _from_hub(base: str, revision: str | None) -> Shape | None:
    from transformers import AutoConfig

    try:
        if not available(base, revision):  # one quiet call; the client itself would ask six times and say so
            return None
        config = AutoConfig.from_pretrained(base, revision=revision, trust_remote_code=False)
    except (OSError, ValueError):
        return None
    return measured(config.to_json_string())


@lru_cache(maxsize=64)
def measured(config_json: str) -> Shape | None:
    """The shape of the causal language model that a ``config.json`` describes; None for what is none."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        content: dict[str, Any] = json.loads(config_json)
        config = AutoConfig.for_model(**content)
        with torch.device("meta"):
            network: CausalLM = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        maps = linear_maps(network)
        in_blocks = sum(parameter.numel() for block in blocks_of(network) for parameter in block.parameters())
        body = sum(parameter.numel() for parameter in trunk(network).parameters())
        return Shape(
            vocab=int(config.vocab_size),
            hidden=int(config.hidden_size),
            layers=int(config.num_hidden_layers),
            attention=attention_width(config),
            kv=cached_numbers(config),
            maps=sum(linear.weights for linear in maps),
            ports=sum(linear.inputs + linear.outputs for linear in maps),
            blocks=in_blocks,
            outside=body - in_blocks,
            head=sum(parameter.numel() for parameter in network.parameters()) - body,
            kept_fp32=_kept(content, int(config.num_hidden_layers), half=False),
            kept_half=_kept(content, int(config.num_hidden_layers), half=True),
        )
    except Exception:  # each library has its own class for a setting that it does not know; loading says which
        return None


def _kept(content: dict[str, Any], layers: int, *, half: bool) -> float:
    """Bytes per position that the backward of a trunk needs: measured at two lengths on one layer and on two."""
    one_layer, two_layers = ([_saved(content, count, length, half) for length in (16, 32)] for count in (1, 2))
    rest, both = one_layer[1] - one_layer[0], two_layers[1] - two_layers[0]
    return (rest + (both - rest) * (layers - 1)) / 16


def _saved(content: dict[str, Any], layers: int, length: int, half: bool) -> int:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(PROBE, _attention)
    config = AutoConfig.for_model(**content)
    config.num_hidden_layers, config.vocab_size = layers, 16
    if getattr(config, "layer_types", None):
        config.layer_types = (config.layer_types * layers)[:layers]
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with FakeTensorMode():
        network = AutoModelForCausalLM.from_config(config, trust_remote_code=False, attn_implementation=PROBE)
        own = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
        ids, mask = torch.zeros(1, length, dtype=torch.long), torch.ones(1, 1, length, length, dtype=torch.bool)
        saving = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with saving, torch.autocast("cpu", dtype=torch.float16, enabled=half):
            trunk(network)(input_ids=ids, attention_mask=mask, position_ids=ids, use_cache=False)
        return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in own)


class _Attention(torch.autograd.Function):
    """Keeps what a fused kernel keeps: queries, keys, values and its output, no matrix of scores."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = torch.empty_like(queries)
        ctx.save_for_backward(queries, keys, values, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pragma: no cover
        raise NotImplementedError("sizes are measured forward only")


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    tensors = [query, key, value]
    if torch.is_autocast_enabled("cpu"):
        tensors = [tensor.to(torch.get_autocast_dtype("cpu")) for tensor in tensors]
    out: Tensor = _Attention.apply(*tensors)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2).contiguous(), None
