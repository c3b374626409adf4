"""A new study: a commented file of one of the four designs, valid as it stands."""

from __future__ import annotations

from pathlib import Path

from pipeline.config.names import SYMBOLS, nearest
from pipeline.errors import UserError
from pipeline.run.layout import safe
from studies.definition.editor_schema import header, write_schema
from studies.definition.schema import CONFIRMATION, study_names

_HEAD = """{header}
# The knobs are the keys of pipeline/config, as section.key; an editor that knows the schema above completes them.
# {symbols}.
# Another algorithm with its settings: {{algorithm: rloo}}.
# Try it first: ablate plan {name}     Run it: ablate study {name}     Smaller: --set train.steps=512

# The question, what you expect and why, and what would refute it. Write these before you run.
{question}

profile: tiny                    # smoke (seconds), tiny (1 to 2 minutes a trial), t4; --profile replaces it
"""

_HYPOTHESES = """
# What you expect, in parts that are judged from the results. They are registered before the first trial; later
# changes and additions are marked on the page. A study without them runs, and its findings are exploratory.
hypotheses:"""

_SEEDS = """seeds: [0, 1, 2, 3, 4]           # every arm gets the same seeds and prompts, so comparisons are paired
# What each seed has of its own beside the training. Without it, all trials share one reward model and one reference
# policy, and intervals do not cover others.
vary: [labels, reward, sft]
# Fresh seeds for a confirmation, run with: ablate study NAME+confirm
# confirm: {{seeds: [100, 101, 102, 103, 104]}}
# What an arm must keep to be recommended as the best setting.
# constraints: [{{metric: eval/kl_per_token, max: 0.25}}]
"""

_COMPARE = """question: Does a smaller clipping range keep the policy closer to the reference?
hypothesis: A smaller epsilon slows the policy down, so drift and win rate both fall.
refuted_if: The drift at the end does not fall with epsilon."""

_FIND = """question: Which clipping range, beta and number of epochs win most often within 0.25 nats per token?
hypothesis: Beta decides; whatever the other two are, the best trials lie in a narrow range of it.
refuted_if: On fresh seeds, what the search chose wins no more often than the baseline."""

DESIGNS = {
    "arms": (
        """baseline: epsilon_0.2            # the arm that all others are compared with
{seeds}
# An arm has a name and what it changes of the profile.
arms:
  epsilon_0.05: {{algorithm.cliprange: 0.05}}
  epsilon_0.2: {{algorithm.cliprange: 0.2}}
  epsilon_0.2_beta_0: {{algorithm.cliprange: 0.2, kl.beta: 0.0}}
{hypotheses}
  - name: drifts_less
    claim: epsilon 0.05 ends at a lower KL per token than 0.2
    metric: eval/kl_per_token
    contrast: epsilon_0.05 - epsilon_0.2      # or `order: [arm, arm, arm]`, each lower than the last
    expect: lower                             # lower | higher | equal (needs a margin)
    # margin: 0.01                            # by more than this much; for `equal`, within this much
"""
    ),
    "grid": (
        """baseline: cliprange=0.2+beta=0.05
{seeds}
# Every combination is an arm, named after its values: 2 x 3 arms here.
grid:
  algorithm.cliprange: [0.05, 0.2]
  kl.beta: [0.01, 0.05, 0.2]
{hypotheses}
  - name: matters_more
    claim: a tight clip lowers the KL per token by more at beta 0.01 than at 0.2 (interaction)
    metric: eval/kl_per_token
    contrast: cliprange=0.05+beta=0.01 - cliprange=0.2+beta=0.01 - cliprange=0.05+beta=0.2 + cliprange=0.2+beta=0.2
    expect: lower                # lower | higher | equal (needs a margin)
"""
    ),
    "factors": (
        """{seeds}
# One factor at a time around the arm `baseline`, which is the profile as it is: leave its own values out.
factors:
  algorithm.cliprange: [0.05, 0.4]
  kl.beta: [0.0, 0.2]
# Pairs of factors whose values are also combined: does the effect of one depend on the other?
# interactions: [[algorithm.cliprange, kl.beta]]
{hypotheses}
  - name: drifts_less
    claim: epsilon 0.05 ends at a lower KL per token than the profile's
    metric: eval/kl_per_token
    contrast: cliprange=0.05 - baseline
    expect: lower                # lower | higher | equal (needs a margin)
"""
    ),
    "search": (
        """seeds: [0]                       # a search trains on one seed; what it finds is confirmed on others

search:
  space:                         # a range (log: true, int: true) or a list of values
    algorithm.cliprange: {{low: 0.05, high: 0.5}}
    kl.beta: {{low: 0.01, high: 0.5, log: true}}
    train.num_epochs: {{values: [2, 4]}}
  trials: 16                     # raise it later and the search goes on
  parallel: 2                    # proposed at once; part of the design, so the result is the same with any --jobs
  constraints:                   # a trial beyond it is infeasible; metrics of the evaluation
    - {{metric: eval/kl_per_token, max: 0.25}}
  # objectives:                  # two or more give a Pareto front instead of one best
  #   - {{metric: eval/win_rate}}
  #   - {{metric: eval/kl_per_token, direction: minimize}}
  prune: {{metric: objective/kl_exact_per_token, above: 1.0}}   # a hard ceiling: a trial beyond it ends at once
  confirm: {{top: 2, seeds: [100, 101]}}                  # the best and `baseline` again, on fresh seeds
{hypotheses}
  - name: gains
    claim: on fresh seeds the best configuration wins more often than the profile
    metric: eval/win_rate
    contrast: confirm-1 - baseline
    expect: higher               # lower | higher | equal (needs a margin)
"""
    ),
}

_TAIL = """
objective: {{metric: eval/win_rate, direction: maximize}}

# Claims, each with the observation that would refute it in a trial: metric op threshold. Of a series, such as this one,
# records before a gradient step count.
falsifiers:
  - name: drift
    claim: the policy stays within 0.5 nats per token of the reference for its first 2,000 gradient steps
    metric: objective/kl_exact_per_token   # the default
    op: ">"
    threshold: 0.5
    before_step: 2000
    aggregation: {{consecutive: 3}}   # any | mean | {{consecutive: N}}, N records in a row
    arms: ["*"]                     # patterns, as in a shell
    # stop: true                    # end a trial as soon as it refutes the claim
  # A difference to the baseline's trial of the same seed, at the same step (`relative: ratio` divides instead):
  # - name: drifts_no_further
  #   claim: no arm is more than 0.05 nats per token further from the reference than the baseline
  #   op: ">"
  #   threshold: 0.05
  #   before_step: 2000
  #   aggregation: {{consecutive: 3}}
  #   relative_to: baseline
  # The evaluation, which has no steps; `bound` takes an end of the 95 % interval over the trial's prompts:
  # - name: wins
  #   claim: every trial wins at least 70 % of the comparisons
  #   metric: eval/win_rate
  #   op: "<"
  #   threshold: 0.7
  #   bound: low
"""


def new_study(name: str, design: str, folder: Path) -> Path:
    """Write ``<folder>/<name>.yaml`` and return its path.

    Raises `UserError` for a name that cannot be a file's or is that of a shipped study, for an unknown design,
    and for a file that exists: nothing is ever overwritten.
    """
    if design not in DESIGNS:
        raise UserError(f"--design '{design}'{nearest(design, list(DESIGNS))}; there are: {', '.join(DESIGNS)}")
    path = folder / f"{safe(name.removesuffix('.yaml'))}.yaml"
    if path.stem.endswith(CONFIRMATION):
        raise UserError(f"'{path.stem}': names that end with {CONFIRMATION} are those of confirmations; choose another")
    if path.stem in study_names():
        raise UserError(
            f"'{path.stem}' is the name of a study that comes with the project; choose another, for example"
            f" {path.stem}_mine"
        )
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template(path, design))
    except FileExistsError:
        raise UserError(f"{path} exists and is not overwritten; choose another name, or remove it") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    write_schema()
    return path


def template(path: Path, design: str) -> str:
    """The text of a new study."""
    return (_HEAD + DESIGNS[design].replace("{seeds}", _SEEDS).replace("{hypotheses}", _HYPOTHESES) + _TAIL).format(
        header=header(path), name=path.stem, symbols=SYMBOLS, question=_FIND if design == "search" else _COMPARE
    )
