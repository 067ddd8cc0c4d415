"""The demo: from facts to a readable answer with its explanation, on the bundled world graph.

The pre-trained run answers at once; then a run is trained, which answers better.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from oneshot.config import Config, PredictorConfig, SamplerConfig, TrainingConfig
from oneshot.data.load import load
from oneshot.evaluation.frequency import frequency_metrics
from oneshot.ranking import Metrics
from oneshot.reasoner.explanation import Explanation
from oneshot.reasoner.reasoner import Prediction, Reasoner
from oneshot.runs.run import Run
from oneshot.runs.train import train_run, warn
from oneshot.training.observer import Observer

QUESTION = ("Bolivia", "borders")


@dataclass(frozen=True)
class Demo:
    """The result of the demo.

    `untrained`: the answers of the pre-trained run, before the training. `result`: that of the
    training, as in a run's `result.json`. `prediction`: the answers of the trained run.
    """

    untrained: Prediction
    result: dict[str, Any]
    baseline: Metrics
    prediction: Prediction
    explanation: Explanation
    plot: Path


def demo_config(seed: int = 0) -> Config:
    """What a plan chooses, with small subgraphs and few epochs: half a minute on two cores."""
    return Config(
        sampler=SamplerConfig(name="fitted", max_entities=400),
        predictor=PredictorConfig(
            num_layers=4,
            dim=32,
            attention_dim=5,
            aggregate="pna",
            norm=True,
            shortcut=True,
            gate=False,
            priors=True,
            prior_start=1.0,
        ),
        training=TrainingConfig(
            epochs=3,
            batch_size=32,
            learning_rate=0.005,
            schedule="cosine",
            mask_known=True,
            clip=1.0,
            valid_limit=400,
            seed=seed,
        ),
    )


def run_demo(
    out: Path,
    seed: int,
    device: torch.device,
    observers: Sequence[Observer] = (),
    messages: Callable[[str], None] = warn,
    answered: Callable[[Prediction], None] = lambda prediction: None,
) -> Demo:
    """Answer the query without training, train on `world` into `out/run`, answer it again, and draw
    the explanation into `out`.

    Facts of the graph are excluded from the answers; the best answer is explained. `observers`,
    `messages`: as in `train_run`. `answered`: called with the first answers.
    """
    data = load("world")
    pretrained = Reasoner.load("foundation", graph=data.graph).to(device)
    untrained = pretrained.predict(*QUESTION, top=5, exclude_known=True)
    answered(untrained)
    run = out / "run"
    result = train_run(data, run, demo_config(seed), device, observers=observers, messages=messages)
    reasoner = Run.open(run).reasoner_on(data.graph).to(device)
    prediction = reasoner.predict(*QUESTION, top=5, exclude_known=True, explain=1)
    explanation = prediction.explanations[0]
    plot = out / "explanation.png"
    explanation.to_png(plot)
    baseline = frequency_metrics(data)
    return Demo(untrained, result, baseline, prediction, explanation, plot)
