from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import smoke

from pipeline.config.loading import dotted_keys, load_config, parse_set
from pipeline.config.names import SYMBOLS, WORDS
from pipeline.config.presets import PRESETS
from pipeline.config.yaml_files import MOST_BYTES, PlainDumper, line_of, read_value, read_yaml
from pipeline.errors import UserError
from pipeline.training.rounds import last_update


def test_the_digest_ignores_what_cannot_change_a_result_and_nothing_else() -> None:
    base = load_config("tiny")
    assert load_config("tiny", {"runtime.threads": 2, "runtime.rollout_batch_size": 8}).digest() == base.digest()
    assert load_config("tiny", {"kl.beta": 0.123}).digest() != base.digest()


@pytest.mark.parametrize(
    ("own", "below", "same"),
    [
        ({"reward.kind": "lexicon"}, {"reward.learned.pairs": 64}, True),
        ({}, {"reward.learned.pairs": 64}, False),
        ({}, {"algorithm.trpo.delta": 0.1}, True),
        ({"algorithm": "trpo"}, {"algorithm.trpo.delta": 0.1}, False),
        ({}, {"kl.adaptive.target": 3.0}, True),
        ({"kl.control": "adaptive"}, {"kl.adaptive.target": 3.0}, False),
        ({}, {"judge.ocr.size": 32}, True),
        ({"judge.kind": "ocr"}, {"judge.ocr.size": 32}, False),
        ({}, {"replay.share": 0.5}, True),
        ({"algorithm": "best_of_n"}, {"optimiser.lr": 0.1}, True),
        ({"algorithm": "best_of_n"}, {"algorithm.clip.epsilon": 0.1}, True),
        ({"algorithm": "best_of_n"}, {"train.response_length": 8}, False),
    ],
)
def test_a_section_that_does_not_act_is_part_of_no_key(own: dict[str, Any], below: dict[str, Any], same: bool) -> None:
    assert (load_config("tiny", own, below=below).digest() == load_config("tiny", own).digest()) is same


def test_words_lead_to_keys_that_exist() -> None:
    keys = set(dotted_keys())
    assert keys.issuperset(key for meant in WORDS.values() for key in meant)
    assert all(WORDS[word][0] == key for word, key in (part.split(" = ") for part in SYMBOLS.split(", ")))


def test_all_faults_of_several_settings_come_at_once() -> None:
    with pytest.raises(UserError) as error:
        load_config("tiny", {"beta": 1, "kl.beta": -1, "critic.kind": "seperate", "data.prompt_length": 3})
    assert str(error.value).splitlines() == [
        "--set: unknown key 'beta'; beta is the key 'kl.beta'",
        "--set: data.prompt_length = 3: must be a list, such as [1, 2]",
        "--set: kl.beta = -1: must be greater than or equal to 0",
        "--set: critic.kind = 'seperate': must be 'shared', 'separate' or 'none'; did you mean 'separate'?",
    ]


def test_lines_of_entries(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\nb:\n  c: {d: 2}\n  e:\n    - 5\n    - f: 6\n")
    places: list[tuple[tuple[str | int, ...], int | None]] = [
        (("a",), 1), (("b",), 2), (("b", "c", "d"), 3), (("b", "e", 1, "f"), 6), (("b", "e", 7), 4), (("x",), None)
    ]  # fmt: skip
    assert [(where, line_of(path, where)) for where, _ in places] == places


@pytest.mark.parametrize("profile", ["smoke", "tiny", "t4", "t4-256"])
@pytest.mark.parametrize("name", PRESETS)
def test_every_algorithm_takes_as_many_episodes_and_steps(profile: str, name: str) -> None:
    plain, chosen = load_config(profile), load_config(profile, {"algorithm": name})
    assert chosen.algorithm.name == name
    assert (chosen.train.updates, chosen.train.steps) == (plain.train.updates, plain.train.steps)
    assert chosen.train.batch_size == plain.train.batch_size
    assert (chosen.critic.kind == "none") == (chosen.algorithm.advantage != "gae")


def test_names_mean_the_published_settings() -> None:
    found = {
        name: (config.advantage, config.ratio, config.trust_region, config.aggregation, config.clip.epsilons)
        for name in PRESETS
        if name != "best_of_n"  # which trains nothing
        if (config := load_config("tiny", {"algorithm": name}).algorithm)
    }
    tokens, both = ("token", "clip"), (0.2, 0.2)
    assert found == {
        "ppo": ("gae", *tokens, "token_mean", both),
        "ppo_penalty": ("gae", "token", "kl_penalty", "token_mean", both),
        "trpo": ("gae", "token", "trpo", "token_mean", both),
        "reinforce": ("reinforce", "none", "none", "seq_mean_token_sum", both),
        "remax": ("remax", "none", "none", "seq_mean_token_sum", both),
        "rloo": ("rloo", "sequence_sum", "clip", "seq_mean_token_mean", both),
        "grpo": ("group_norm", *tokens, "seq_mean_token_mean", both),
        "dr_grpo": ("group_mean", *tokens, "constant", both),
        "lite_ppo": ("group_mean_batch_std", *tokens, "token_mean", both),
        "reinforce_pp": ("reinforce_pp", *tokens, "token_mean", both),
        "vine_ppo": ("replay", *tokens, "token_mean", both),
        "gspo": ("group_norm", "sequence_mean", "clip", "seq_mean_token_mean", (3e-4, 4e-4)),
        "cispo": ("group_norm", "token", "cispo", "token_mean", both),
        "dapo": ("group_norm", *tokens, "token_mean", (0.2, 0.28)),
        "a_star_po": ("v_star", "none", "none", "seq_mean_token_sum", both),
        "dpo": ("preference", "sequence_sum", "dpo", "seq_mean_token_mean", both),
        "ipo": ("preference", "sequence_mean", "ipo", "seq_mean_token_mean", both),
        "online_dpo": ("preference", "sequence_sum", "dpo", "seq_mean_token_mean", both),
    }


def test_an_algorithm_of_one_epoch_takes_smaller_steps_unless_told_otherwise() -> None:
    train = load_config("tiny", {"algorithm": "reinforce"}).train
    assert (train.num_epochs, train.num_mini_batches, train.steps_per_update) == (1, 16, 16)
    train = load_config("tiny", {"algorithm": "reinforce", "train.num_mini_batches": 4}).train
    assert (train.num_epochs, train.num_mini_batches) == (1, 4)


@pytest.mark.parametrize("place", ["reward", "score"])
def test_the_group_of_a_preset_goes_with_a_penalty_in_the_loss(place: str) -> None:
    named = {"algorithm": "a_star_po"}
    assert load_config("tiny", named).kl.group == "sequence"
    assert load_config("tiny", {**named, "kl.place": "loss"}).kl.group == "sequence"
    moved = load_config("tiny", {**named, "kl.place": place})
    assert (moved.kl.place, moved.kl.group) == (place, "token")
    assert load_config("tiny", named, below={"kl.place": place}).kl.group == "token"
    assert load_config("tiny", {**named, "kl.place": "loss"}, below={"kl.place": place}).kl.group == "sequence"
    grouped = load_config("tiny", {**named, "kl.place": "reward", "kl.group": "clause"})
    assert grouped.kl.group == "clause", "what is set beside the name wins"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("b: 1\na: &a [x]\nc: [*a, *a]", ", line 2: anchors and aliases ('a') are not read"),
        ("a: " + "[" * 3_000, ": not valid YAML: "),
        ("a: 1\nb: !!int 'x'", ", line 2: the tag '!!int' is not read; leave it out"),
        ("a: !!python/object/apply:os.system [id]", ", line 1: the tag '!!python/object/apply:os.system' is not read"),
        ("a: 0x" + "f" * 4_000, ", line 1: 0xfff"),
        ("a: 9223372036854775808", ", line 1: 9223372036854775808 is beyond 64 bits"),
        ('a: "\\e[31m"', r", line 1: '\x1b[31m' holds the control character \x1b"),
        ('"\\a": 1', r", line 1: '\x07' holds the control character \x07"),
        ('a: "\\U99999999"', ": not valid YAML: Python int too large"),
        ("null: 1", ", line 1: a key must be a text or a number"),
        ("? [a]\n: 1", ", line 1: a key must be a text or a number"),
        ("a: 1\na: 2", ", line 2: not valid YAML: key 'a' is written twice"),
        ("a: 1".encode("utf-16"), ": not valid YAML: "),
        ("a:\n\tb: 1\n", ", line 2: not valid YAML: found character '\\t' that cannot start any token"),
        ("a: what: why\n", ", line 1: not valid YAML: mapping values are not allowed here"),
        ("# nothing yet\n", ": the file is empty"),
        ("- 1\n", ": must be a mapping"),
        ("#" * (MOST_BYTES + 1), ": cannot be read: it has 1,048,577 bytes, and at most 1,048,576 are read"),
    ],
)  # fmt: skip
def test_yaml_that_is_not_plain_is_refused_at_its_line(tmp_path: Path, content: str | bytes, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as refused:
        read_yaml(path)
    assert line_of(path, ("a", 0)) in (None, 1)
    assert str(refused.value).removeprefix(str(path)).startswith(says)


def test_plain_yaml_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("\ufeffdate: 2026-02-30\nis: =\ntext: !!str 5\nlast: 9223372036854775807\nlines: |\n  a\n  b\n")
    assert read_yaml(path) == {"date": "2026-02-30", "is": "=", "text": "5", "last": 2**63 - 1, "lines": "a\nb\n"}


def test_settings_have_the_same_limits() -> None:
    assert read_value("[1, 0.5, null, 2026-01-01]") == [1, 0.5, None, "2026-01-01"]
    for value, says in {"!!int x": "the tag '!!int' is not read", "{": "is not a YAML value"}.items():
        with pytest.raises(UserError, match=says):
            parse_set([f"kl.beta={value}"])
    with pytest.raises(UserError) as refused:
        parse_set(["\x1b]0;title\x07"])
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", ["1e-5", "1E5", "-2.5e3", ".5e3"])
def test_a_plain_number_with_an_exponent_is_a_number_and_a_quoted_one_a_text(text: str) -> None:
    assert read_value(text) == float(text)
    assert read_value(f"'{text}'") == text
    assert read_value(yaml.dump([text], Dumper=PlainDumper)) == [text]
    assert read_value(f"{{{text}: 0}}") == {text: 0}, "an arm's name is a text"
    for alike in ("e5", "1e", "1e-5x", "12345678901234567890e12345678901234567890"):
        assert read_value(alike) == alike


Changes = dict[str, Any]
INSULTS: Changes = {"data.builtin.insults": 0.5, "judge.also": {"harmless": {"kind": "harmless"}}}
TWO: Changes = {
    **INSULTS,
    "reward.kind": "composite",
    "reward.parts": {
        "helpful": {"kind": "learned"},
        "harmless": {"kind": "learned", "preferences": "judge:harmless", "weight": 0.0},
    },
}
GROUPS: dict[str, Changes] = {
    "": {},
    "LOCAL": {"data.source": "local", "data.local.path": "/reviews"},
    "PAIRWISE": {"reward.kind": "pairwise", "reward.against": "reference"},
    "FROM_REWARD": {"critic.kind": "separate", "critic.init": "reward"},
    "INSULTS": INSULTS,
    "TWO": TWO,
    "FLOOR": {**TWO, "floor.part": "harmless"},
    "ONE_PART": {"reward.kind": "composite", "reward.parts": {"one": {"kind": "learned"}}},
    "PAIRWISE_PART": {"reward.kind": "composite", "reward.parts": {"good": {"kind": "pairwise"}}},
    "SEEN": {"judge.also": {"x": {"kind": "harmless"}}},
    "GRAMMAR": {"judge.also": {"x": {"kind": "grammar"}}},
    "WEIGHTLESS": {"reward.kind": "composite", "reward.parts": {"a": {"kind": "lexicon", "weight": 0}}},
    "IDLE_PART": {"reward.kind": "composite", "reward.parts": {"a": {"kind": "lexicon", "ocr": {"blur": 1}}}},
}
"""Settings that have no short form."""
REFUSED = """
beta=1 | unknown key 'beta'; beta is the key 'kl.beta'
ppo.beta=1 | unknown key 'ppo.beta'; beta is the key 'kl.beta'
lambda=1 | unknown key 'lambda'; lambda is the key 'algorithm.gae_lambda'
epsilon=1 | unknown key 'epsilon'; epsilon is the key 'algorithm.clip.epsilon'
c1=1 | unknown key 'c1'; c1 is the key 'critic.vf_coef'
learning_rate=1 | unknown key 'learning_rate'; learning_rate is the key 'optimiser.lr', 'sft.lr' or 'reward.learned.lr'
sft.learning_rate=1 | unknown key 'sft.learning_rate'; learning_rate is the key 'sft.lr'
kl_coef=1 | unknown key 'kl_coef'; kl_coef is the key 'kl.beta'
klcoef=1 | unknown key 'klcoef'; did you mean 'kl.beta'?
steps=1 | unknown key 'steps'; did you mean 'train.steps' or 'sft.steps'?
train=1 | unknown key 'train'; 'train' is a section: name its keys with a dot, for example 'train.
lora_rank=1 | unknown key 'lora_rank'; lora_rank is the key 'adapter.rank'
algorithm=a_star_po train.num_epochs=4 kl.beta=0.0 | train.num_epochs is 4; use 1, or ratio: token, or a kl.beta
algorithm=a_star_po train.num_epochs=4 kl.control=linear | or a kl.beta above 0 in every update
ppo.kl_coeff=1 | unknown key 'ppo.kl_coeff'; did you mean 'kl.beta'?
pppo.kl_coef=1 | unknown key 'pppo.kl_coef'; kl_coef is the key 'kl.beta'
kl.beta=.nan | kl.beta = nan
kl.beta=true | kl.beta = true: must be a number
kl.beta='0.1' | kl.beta = '0.1': must be a number
train.steps=2048.0 | train.steps = 2048.0: must be a whole number
algorithm.whiten_advantages=1 | algorithm.whiten_advantages = 1: must be true or false
data.prompt_length=[3,true] | data.prompt_length.1 = true: must be a whole number
optimiser.lr=9e18 | optimiser.lr = 9e+18: must be less than or equal to 1000000000000
train.steps=100 | nearest: 96 or 112
train.num_mini_batches=7 | batch_size 64 is no multiple of num_mini_batches 7
model.hidden_size=97 | even multiple of heads
nonsense | write it as section.key=value
algorithm.ratio=none | ratio 'none' leaves trust_region 'clip' nothing to bound; use trust_region: none
algorithm.ratio=sequence_sum | needs one advantage for a whole response, and advantage 'gae' gives every token
algorithm=reinforce_pp algorithm.ratio=sequence_sum | gives every token its own; use ratio: token or none
algorithm=rloo kl.place=reward | in the reward gives every token its own; use kl.place: score or loss
algorithm=gspo algorithm.clip.epsilon=0.2 | clip.epsilon 0.2 never clips a ratio that is averaged over a response
algorithm=grpo train.responses_per_prompt=1 | so it needs at least 2
algorithm=grpo train.responses_per_prompt=5 | batch_size 64 is no multiple of responses_per_prompt
algorithm=reinforce train.num_epochs=2 | does not correct a second pass over a rollout, and train.num_epochs is 2
algorithm=a_star_po train.num_epochs=2 kl.group=clause | does not correct a second pass over a rollout
algorithm=best_of_n critic.kind=shared | critic.kind 'shared' is not for advantage 'none': use none
algorithm=rloo algorithm.trust_region=kl_penalty | bounds the KL per token, and ratio 'sequence_sum' is that of a whole
algorithm=vine_ppo replay.share=0.5 | needs values in every episode, and replay.share is 0.5; use 1
kl.place=margin | kl.place 'margin' is the beta of a loss of pairs, and algorithm.trust_region is 'clip'
algorithm=dpo kl.place=loss | kl.place 'loss' does not fit; use kl.place: margin, or algorithm: dpo
algorithm=dpo algorithm.advantage=rloo | 'rloo' does not fit; use algorithm.advantage: preference
algorithm=ipo algorithm.ratio=token | compares whole responses, and ratio is 'token'; use sequence
algorithm=dpo train.responses_per_prompt=4 | advantage 'preference' is of pairs; use 2
algorithm=dpo algorithm.whiten_advantages=true | destroys these signs; use false
algorithm=dpo algorithm.signs=positive | needs both responses of a pair in full
algorithm=ipo algorithm.tokens=random | needs both responses of a pair in full
algorithm=dpo kl.beta=0 | weighs its margin by kl.beta, which must stay above 0; it goes through 0
algorithm=online_dpo kl.control=linear | which must stay above 0; it goes through 0.05, 0
algorithm=dpo reward.kind=lexicon | that a reward was learned from, and reward.kind is 'lexicon'
algorithm=dpo algorithm.target_kl=0.02 | it would freeze the policy near the reference
algorithm=ipo kl.hinge=0.02 | kl.hinge 0.02 bounds what is measured on rollouts
train.data=pairs | train.data 'pairs' needs a loss of pairs, and algorithm.trust_region is 'clip'
algorithm=dpo train.num_mini_batches=64 | and a mini-batch has 1 episodes
algorithm=trpo critic.kind=shared | would move the values of a shared critic too
algorithm=trpo critic.vf_coef=0 | and critic.vf_coef 0 does not train it
algorithm=grpo algorithm.trust_region=trpo | use advantage: gae and critic.kind: separate
algorithm=trpo kl.place=loss kl.group=clause | is of several; use kl.group: token, or kl.place: reward
algorithm=trpo adapter.kind=lora adapter.quantize=4bit | needs forward-mode derivatives, which adapter.quantize '4bit'
critic.warmup_steps=2048 | critic.warmup_steps 2048 leaves the policy none of train.steps 2048; use fewer
evaluate.prompts=2048 | evaluate.prompts 2048 is more than data.heldout_prompts 1024; raise the latter
evaluate.first_prompt=600 | 600 + evaluate.prompts 512 is more than data.heldout_prompts 1024; raise the latter to at
runtime.processes=3 | runtime.processes 3 does not divide a mini-batch of 16 episodes
entropy.control=adaptive | coef 0 stays 0 with control: adaptive, which multiplies it; start above 0
entropy.coef=1 entropy.control=adaptive entropy.adaptive.horizon=12 | lets one rollout take entropy.coef to 0 or below
kl.control=adaptive kl.adaptive.horizon=12 | kl.adaptive.horizon 12 lets one rollout take beta to 0 or below
algorithm=best_of_n entropy.coef=0.1 | entropy.coef = 0.1 has no effect while algorithm.advantage is none
reward.kind=pairwise | reward.kind 'pairwise' compares two answers, and reward.against is 'none'
PAIRWISE_PART | reward.parts.good.kind 'pairwise' compares two answers, and reward.against is 'none'
PAIRWISE FROM_REWARD | needs a reward that is a network with a score, reward.kind is 'pairwise'
reward.against=reference FROM_REWARD | critic.init 'reward' starts the critic at the reward model's score
reward.learned.trunk=scratch FROM_REWARD | needs a reward model of the policy's shape, reward.learned.trunk is 'scratch'
reward.learned.trunk=scratch reward.learned.scratch.heads=7 | must be an even multiple of heads 7
reward.kind=ocrr | or package.module:Class for a class of your own; did you mean 'ocr'?
reward.kind=classifier | kind: classifier needs classifier.model; set it to a hub id or a local folder
reward.kind=composite | kind: composite needs parts; for example parts:
WEIGHTLESS | parts: every weight is 0, so there is nothing to learn
IDLE_PART | reward.parts.a.ocr has no effect while reward.parts.a.kind is lexicon
TWO reward.parts.x.weight=1 | reward.parts.x.weight: there is no 'x' to change; there are: helpful, harmless
judge.kind=cycle LOCAL | judge.kind 'cycle' understands only built-in reviews, data.source is 'local'
LOCAL GRAMMAR | judge.also.x.kind 'grammar' understands only built-in reviews
LOCAL reward.kind=harmless | reward.kind 'harmless' understands only built-in reviews
judge.kind=helpful | judge.kind 'helpful' is about insults, and data.builtin.insults is 0
SEEN | judge.also.x.kind 'harmless' is about insults
INSULTS reward.preferences=judge:harmles | judge.also has no 'harmles'; did you mean 'harmless'?
reward.preferences=judge:x | reward.preferences 'judge:x': judge.also has no 'x'; there are: none
reward.preferences='judge:' | must be judge, judge:NAME, or the path
TWO floor.part=harmles | floor.part 'harmles': reward.parts has none of that name; did you mean
floor.part=x | there are: none, since reward.kind is not composite
ONE_PART floor.part=one | floor.part 'one' is the only part of the reward
FLOOR algorithm=a_star_po | use scores that were made before it
data.source=local | source 'local' needs data.local.path
data.source=hub | source 'hub' needs data.hub.name
data.source=hub data.hub.name=a/b data.hub.revision=main | hub.revision 'main' does not pin 'a/b'
data.prompt_length=[8,3] | the range [8, 3] is empty
data.builtin.clauses=[12,8] | builtin.clauses: the range [12, 8] is empty
data.builtin.clauses=[8,21] | data.builtin.clauses.1 = 21: must be less than or equal to 20
reward.kind=grammar reward.dense=true algorithm=rloo | advantage 'rloo' compares whole responses; use gae or
reward.kind=grammar reward.dense=true algorithm=remax | 'remax' compares whole responses
reward.dense=true | reward.kind 'learned' has none; use grammar or helpful or verifier
reward.kind=grammar reward.dense=true reward.against=reference | and reward.against is 'reference'; use none
reward.kind=grammar reward.dense=true critic.pretraining_steps=8 | critic.pretraining_steps 8 fit the critic to whole
data.source=chains train.response_length=38 reward.kind=verifier reward.dense=true | reward.verifier.sound_steps is 0
data.prompt_unit=tokens data.prompt_length=[8,200] | prompt_length [8, 200] goes beyond 128 tokens
adapter.quantize=4bit | without an adapter none is frozen; set adapter.kind: lora
reward.learned.ranked=200 | one ranking makes 19900 pairs, and reward.learned.pairs is 8192
reward.learned.ranked=4 reward.learned.rounds=2 | rounds 2 collects pairs, and reward.learned.ranked is 4
reward.learned.ranked=3 judge.kind=cycle | the preferences of judge.kind 'cycle' are no order
reward.learned.ranked=3 reward.preferences=pairs.jsonl | a file holds pairs, and reward.learned.ranked is 3
reward.learned.rounds=3 | reward.learned.rounds 3 does not divide reward.learned.pairs 8192
reward.learned.rounds=256 | does not divide the 128 updates of train.steps 2048, which are those of all rounds
reward.learned.rounds=2 critic.pretraining_steps=8 | needs samples that one reward has scored
reward.learned.rounds=2 algorithm=a_star_po | algorithm.advantage 'v_star' needs samples that one reward has scored
reward.learned.rounds=2 FROM_REWARD | critic.init 'reward' needs one reward for the whole training
reward.learned.rounds=2 algorithm=best_of_n | it needs an algorithm that takes gradient steps
"""
ALLOWED = """
algorithm=a_star_po train.num_epochs=4
algorithm=a_star_po train.num_epochs=4 kl.control=linear kl.end=0.01
PAIRWISE
PAIRWISE algorithm=dpo
PAIRWISE judge.kind=cycle
PAIRWISE_PART reward.against=reference
reward.kind=lexicon reward.against=reference
algorithm=trpo kl.group=clause
reward.kind=grammar reward.dense=true algorithm=reinforce_pp
reward.kind=grammar reward.dense=true algorithm=vine_ppo
algorithm=a_star_po train.num_epochs=2
reward.kind=lexicon reward.preferences=judge
reward.kind=mine:Short reward.settings={"longest":3}
"""


def changes(text: str) -> Changes:
    found: Changes = {}
    for word in text.split():
        found |= GROUPS[word] if word in GROUPS else parse_set([word])
    return found


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_what_does_not_go_together_is_refused_in_one_line(case: str) -> None:
    settings, _, says = case.partition(" | ")
    with pytest.raises(UserError) as error:
        load_config("tiny", changes(settings))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", ALLOWED.strip().splitlines())
def test_what_goes_together_is_allowed(case: str) -> None:
    load_config("tiny", changes(case))


def test_a_ranking_counts_as_its_pairs() -> None:
    assert (smoke().reward.learned.comparisons, smoke().reward.learned.rankings) == (1, 256)
    four = smoke(reward__learned__ranked=4).reward.learned
    assert (four.comparisons, four.rankings) == (6, 42)
    assert smoke(reward__learned__ranked=4, reward__learned__batch_size=64).reward.learned.rankings_in_step == 10
    assert smoke(reward__learned__ranked=9, reward__learned__batch_size=8).reward.learned.rankings_in_step == 1


def test_rounds_split_the_updates_evenly_and_lose_none() -> None:
    assert (smoke().rounds, smoke(reward__learned__rounds=4).rounds) == (1, 4)
    assert load_config("tiny", {"algorithm": "best_of_n"}, below={"reward.learned.rounds": 2}).rounds == 1
    assert [last_update(128, number, 4) for number in range(5)] == [0, 32, 64, 96, 128]


def test_reviews_that_insult_have_a_judge_who_understands_it() -> None:
    kinds = {"grammar": {}, "helpful": INSULTS}
    assert {kind: load_config("tiny", own).gold.kind for kind, own in kinds.items()} == {kind: kind for kind in kinds}
    assert load_config("tiny", {**INSULTS, "judge.kind": "grammar"}).gold.kind == "grammar"


KNOBS = """
data.local.path=/reviews | | data.source=local
data.hub.name=c/d | | data.source=hub data.hub.name=a/b data.hub.revision=COMMIT
data.builtin.insults=0.5 | LOCAL |
floor.at=-0.5 | TWO | FLOOR
data.vocab_size=500 | model.base=some/model |
model.revision=COMMIT | | model.base=some/model
sft.batch_size=32 | sft.steps=0 |
sft.seed=1 | model.base=some/model sft.steps=0 | sft.steps=0
reward.settings={"longest":3} | | reward.kind=mine:Short
judge.settings={"longest":3} | | judge.kind=mine:Short
reward.preferences=pairs.jsonl | reward.kind=lexicon |
reward.parts={"helpful":{"kind":"learned"},"harmless":{"kind":"grammar"}} | INSULTS | TWO
reward.classifier.model=a/c | | reward.kind=classifier reward.classifier.model=a/b
judge.classifier.label=GOOD | | judge.kind=classifier judge.classifier.model=a/b
reward.ocr.blur=1.0 | | reward.kind=ocr
judge.ocr.noise=1.0 | reward.kind=ocr | judge.kind=ocr
reward.learned.pairs=64 | reward.kind=lexicon |
reward.learned.label_noise=0.1 | reward.preferences=pairs.jsonl |
reward.learned.scratch.hidden_size=64 | | reward.learned.trunk=scratch
reward.learned.rounds=2 | reward.preferences=pairs.jsonl |
reward.learned.keep_pairs=newest | | reward.learned.rounds=2
reward.learned.max_tokens=64 | | reward.preferences=pairs.jsonl
critic.head_lr=0.1 | critic.vf_coef=0.0 |
critic.warmup_steps=16 | algorithm=trpo |
critic.pretraining_steps=10 | algorithm=rloo |
replay.continuations=2 | | critic.target=replay
critic.kind=separate | critic.vf_coef=0.0 | critic.vf_coef=0.0 critic.init=reward
critic.init=reward | | critic.kind=separate
critic.lr=0.1 | critic.kind=separate critic.init=reward critic.vf_coef=0.0 | critic.kind=separate
critic.quantize=8bit | critic.kind=separate | critic.kind=separate critic.adapter=lora
algorithm.gamma=0.9 | algorithm=rloo | algorithm=reinforce_pp
algorithm.clip.epsilon=0.1 | algorithm.trust_region=none |
algorithm.kl_penalty.target=2.0 | | algorithm=ppo_penalty
algorithm.trpo.delta=0.02 | | algorithm=trpo
algorithm.target_kl=0.02 | algorithm=trpo |
optimiser.lr=0.1 | algorithm=trpo critic.lr=0.2 critic.head_lr=0.2 | algorithm=trpo
algorithm.gae_lambda=0.9 | algorithm=rloo |
optimiser.clip_norms=together | | critic.kind=separate
train.missing_eos=none | algorithm=dpo |
train.overlong_penalty=2.0 | | train.overlong_share=0.2
algorithm.v_star.beta=2.0 | | algorithm=a_star_po
values.samples=32 | algorithm=rloo | algorithm=a_star_po
train.missing_eos_penalty=2.0 | train.missing_eos=none |
kl.place=loss | kl.beta=0.0 |
kl.loss_estimator=k3 | | kl.place=loss
kl.group=clause | kl.place=score | kl.place=loss
kl.group_credit=last | kl.place=loss | kl.group=sentence
kl.end=0.3 | kl.control=adaptive | kl.control=cosine kl.beta=0.0
kl.adaptive.target=3.0 | | kl.control=adaptive
entropy.control=linear | | entropy.coef=0.1
entropy.adaptive.target=0.5 | entropy.coef=0.1 | entropy.coef=0.1 entropy.control=adaptive
optimiser.guard_kl=0.1 | | optimiser.guard=true
train.steps=64 | algorithm=best_of_n |
adapter.rank=4 | algorithm=best_of_n | adapter.kind=lora
adapter.rank=4 | critic.kind=separate | critic.kind=separate critic.adapter=lora
""".replace("COMMIT", f"'{'0' * 40}'")
"""A value of one knob for each condition, where it has no effect, and where it has one."""


@pytest.mark.parametrize("case", KNOBS.strip().splitlines())
def test_a_setting_acts_or_is_refused_in_one_line(case: str) -> None:
    setting, off, on = case.split("|")
    key = setting.partition("=")[0]
    load_config("tiny", {**changes(on), **changes(setting)})
    with pytest.raises(UserError) as error:
        load_config("tiny", {**changes(off), **changes(setting)})
    assert re.fullmatch(
        rf"--set: {key}( = \S+)? has no effect while .*; change that, or leave {key} out", str(error.value)
    )


def test_what_a_profile_holds_for_a_switch_that_is_off_may_stay_and_may_be_repeated() -> None:
    profile = load_config("tiny")
    assert (profile.kl.control, profile.kl.adaptive.target) == ("fixed", 2.0)
    assert load_config("tiny", {"kl.adaptive.target": 2, "kl.adaptive.horizon": 300, "adapter.rank": 16}) == profile
    with pytest.raises(
        UserError, match=r"kl\.adaptive\.target = 6\.0 has no effect while kl\.control is fixed: it needs"
    ):
        load_config("tiny", {"kl.adaptive.target": 6.0})  # the default, and another than the profile's
