"""EH-FT (Yang et al., EMNLP 2022), LP-FT (Kumar et al., ICLR 2022): task head first, then all."""

import copy
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field

from hifi_cli.errors import UsageError
from hifi_cli.methods.base import Method, MethodContext, Stage
from hifi_cli.methods.find import build_method
from hifi_cli.models.encoder import Encoder


class TwoStage(Method):
    """Train the task head by any method (stage 1), then everything (stage 2): EH-FT, section 2.2.

    Stage 2 starts from the pretrained backbone and this task head. Stage 1 trains all of the task
    head, whatever its method trains of it alone: BitFit would leave the weight of a pretrained
    pooler as it is, and hand over a task head that was hardly trained. Each stage has its own
    optimizer and schedule. The run's steps are divided between the stages, so that it takes as many as a run of full
    fine-tuning (section 3.2).

    A run calls `prepare`, trains stage 1 by the hooks of `stage1_method`, calls `begin_stage2`, and
    trains stage 2 by the hooks of this class: those of full fine-tuning.
    """

    may_leave_out_words = True

    class Settings(Method.Settings):
        """Length of stage 1 and what stage 2 takes from it."""

        stage1_fraction: float = Field(0.1, gt=0, lt=1)
        """Fraction of the steps for stage 1."""
        reserve: bool = False
        """Keep what stage 1 trained of the backbone, and continue to train it (EH-FT, table 3)."""
        carry: Literal["all", "weights"] = "all"
        """The part of the task head that stage 2 keeps: all, or its weights only (EH-FT's code after
        BitFit). With `reserve` it keeps all."""

    def __init__(self, settings: Settings, context: MethodContext) -> None:
        super().__init__(settings, context)
        if context.stage1_config is None:
            raise UsageError(
                "stage1.method is missing: name the method of the first stage, for example"
                " stage1.method=bitfit"
            )
        self.stage1_method = build_method(
            context.stage1_config, replace(context, stage1_config=None)
        )
        self.mergeable = self.stage1_method.mergeable or not settings.reserve

    def prepare(self, encoder: Encoder) -> None:
        # Stage 1 may replace modules of the backbone and change any of its weights. Stage 2 starts
        # from the pretrained ones bit for bit, so they are kept before stage 1 touches anything.
        self._untouched_model = None
        if not self.settings.reserve:
            self._untouched_model = copy.deepcopy(encoder.model)
        self.stage1_method.prepare(encoder)
        task_head = encoder.task_head
        for parameter in task_head.values():
            parameter.requires_grad_(True)
        # `requires_grad` alone does not make a parameter train: Diff-Pruning's search trains vectors
        # of its own in the place of a pretrained pooler.
        trained = self.stage1_method.stages()[0].method.trainable_parameters(encoder.model)
        untrained = sorted(task_head.keys() - trained.keys())
        if untrained:
            raise UsageError(
                f"stage 1 must train the whole task head, and its method leaves {untrained[0]} as it"
                " is: choose another stage1.method"
            )

    def stages(self) -> list[Stage]:
        fraction = self.settings.stage1_fraction
        training = self.context.stage1_config
        # The method of stage 1 may have stages itself: each gets its part of stage 1's fraction.
        stages = [
            replace(stage, fraction=stage.fraction * fraction, training=training)
            for stage in self.stage1_method.stages()
        ]
        stages.append(Stage(self, 1 - fraction, prepare_model=self.begin_stage2))
        return stages

    @torch.no_grad()
    def begin_stage2(self, encoder: Encoder) -> None:
        """Make everything train, from the pretrained backbone and the task head of stage 1."""
        # There is no untouched model with `reserve`: what stage 1 trained of the backbone stays, and
        # trains on.
        if self._untouched_model is None:
            self.stage1_method.unfreeze_all(encoder)
            return
        # The untouched modules take the place of stage 1's, with whatever its method has put into
        # them. That brings back the initial task head too, so its trained values are kept first and
        # copied into it.
        trained_head = {name: value.clone() for name, value in encoder.task_head.items()}
        for name, module in self._untouched_model.named_children():
            encoder.model.set_submodule(name, module)
        self._untouched_model = None
        for name, parameter in encoder.task_head.items():
            if self.settings.carry == "all" or not name.endswith("bias"):
                parameter.copy_(trained_head[name])
        encoder.model.requires_grad_(True)

    def merge(self, encoder: Encoder) -> None:
        # Without `reserve`, stage 2 trains a plain model: stage 1's modules are gone.
        if self.settings.reserve:
            self.stage1_method.merge(encoder)
