"""A stage of a training: its optimizer, and all that depends on the parameters that it updates."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import reduce
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from hifi_cli.config.run_config import TrainingConfig
from hifi_cli.errors import logger
from hifi_cli.methods.base import Method, Stage
from hifi_cli.models.modules import WordRows
from hifi_cli.tasks.task_spec import EncodedExample
from hifi_cli.training.losses import ClassWeights
from hifi_cli.training.runner import ModelRunner
from hifi_cli.training.schedule import learning_rate_factor

if TYPE_CHECKING:
    from hifi_cli.training.step_graphs import StepGraphs


class TrainingStage:
    """Takes the optimizer steps of one stage.

    It is complete when it is made. Before, the method has chosen what trains: in `on_stage_start`,
    or in `load_training_state` when a checkpoint is continued.

    Args:
        runner: has the model; wrapped in DDP until `close`, if several processes train.
        method_stage: the method whose parameters train, and the settings.
        steps: the numbers of the stage's steps in the run.
        examples: the train examples of the run.
        class_weights: of the loss; None: equal ones.
        trains_all_words: whether the word embedding trains whole, also where the method may leave
            out the words that no example has.

    Attributes:
        optimizer, lr_scheduler: AdamW over what trains, and its learning rates.
        clip_groups: parameters whose gradients are clipped by one norm, group by group.
        word_rows: the words that train; None: the word embedding trains whole, or not at all.
        graphs: computes the steps instead of the runner, where a GPU repeats recorded ones.
    """

    def __init__(
        self,
        runner: ModelRunner,
        method_stage: Stage,
        steps: range,
        examples: Sequence[EncodedExample],
        class_weights: ClassWeights = None,
        *,
        trains_all_words: bool = False,
    ) -> None:
        self.runner = runner
        self.method = method_stage.method
        self.steps = steps
        self.class_weights = class_weights
        self.model = runner.encoder.model
        training = method_stage.training or runner.config
        self.max_grad_norm = training.max_grad_norm
        groups = self.method.param_groups(self.model, training.weight_decay)
        if runner.config.layer_decay < 1:
            groups = groups_by_layer(groups, runner, self.method, training.learning_rate)
        self.clip_groups = self.method.clip_groups(self.model)
        self.word_rows: WordRows | None = None
        if not trains_all_words:
            self.word_rows = self._rows_of_words(examples)
        if self.word_rows:
            # Optimizer and clipping get these rows in the place of the whole embedding.
            for group in groups:
                group["params"] = self.word_rows.replace_in(group["params"])
            self.clip_groups = [self.word_rows.replace_in(group) for group in self.clip_groups]
        self.optimizer = adamw(groups, training)
        if self.word_rows:
            self.optimizer.register_step_pre_hook(self.word_rows.count_decay)
        self.lr_scheduler = schedule_of(self.optimizer, training, len(steps))
        # DDP registers what requires a gradient now: it is wrapped anew in every stage.
        runner.wrap()
        self.graphs = self._graphs_of(examples)

    def _rows_of_words(self, examples: Sequence[EncodedExample]) -> WordRows | None:
        """Take the rows of words that occur out of the word embedding; None: it stays whole.

        Words that no example has get no gradient: they would only decay, which `WordRows` counts and
        applies at once.

        Args:
            examples: the train examples of the run.
        """
        embedding = embedding_of_occurring_words(self.runner, self.method)
        if embedding is None:
            return None
        return WordRows(embedding, occurring_words(examples, self.runner.pad))

    def _graphs_of(self, examples: Sequence[EncodedExample]) -> "StepGraphs | None":
        """Make what repeats recorded steps; None where none can be recorded."""
        if not self.runner.may_record:
            return None
        # Other runs have no use for the module.
        from hifi_cli.training import step_graphs

        reason = step_graphs.unsupported_because(self.runner, self.method)
        if reason:
            logger.info(f"training steps are not recorded as CUDA graphs: {reason}")
            return None
        # The rows of words and the entries of sparse methods train without being parameters of the
        # model.
        trained = chain.from_iterable(group["params"] for group in self.optimizer.param_groups)
        parameters = [*self.model.parameters(), *trained]
        longest = max(map(len, examples))
        graphs = step_graphs.StepGraphs(self.runner, parameters, longest, self.class_weights)
        if graphs.obstacle:
            logger.info(f"training steps are not recorded as CUDA graphs: {graphs.obstacle}")
        return graphs

    # --- a step

    def step(
        self, batch: list[EncodedExample], on_backward_end: Callable[[], None] = lambda: None
    ) -> Tensor:
        """Take one optimizer step on a batch.

        Args:
            on_backward_end: called with the gradient of the whole batch, before it is clipped.

        Returns:
            The mean loss over the batch, on the model's device: nothing waits for it.
        """
        self.method.before_step(self.model, self.next_step, self.steps)
        loss = self.accumulate_gradient(batch)
        self.method.after_backward(self.model)
        on_backward_end()
        self.clip_gradients()
        self.method.before_optimizer_step(self.model)
        self.optimizer.step()
        self.lr_scheduler.step()
        self.method.after_optimizer_step(self.model)
        # Without gradients, memory is free for the next forward pass.
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    @property
    def steps_done(self) -> int:
        """Finished steps of the stage."""
        # PyTorch's schedulers count steps under this name.
        return self.lr_scheduler.last_epoch

    @property
    def next_step(self) -> int:
        """The number in the run of the step that comes next."""
        return self.steps.start + self.steps_done

    def accumulate_gradient(self, batch: list[EncodedExample]) -> Tensor:
        """Compute the gradient of the mean loss over a batch; return that loss."""
        if self.graphs:
            return self.graphs.accumulate_gradient(batch, self.method.regularization_loss)
        return self.runner.accumulate_gradient(
            batch, self.class_weights, self.method.regularization_loss
        )

    @property
    def repeated_steps(self) -> int:
        """How many steps of this process repeated a recorded one."""
        return self.graphs.repeated if self.graphs else 0

    def clip_gradients(self) -> None:
        """Clip the gradients of each of the `clip_groups` to the configured norm, if any."""
        if self.max_grad_norm:
            for parameters in self.clip_groups:
                nn.utils.clip_grad_norm_(parameters, self.max_grad_norm)

    # --- what training has reached

    @property
    def learning_rate(self) -> float:
        """The learning rate of the optimizer's first group in the next step."""
        return float(self.lr_scheduler.get_last_lr()[0])

    def has_trained(self) -> bool:
        """Whether a step has had a learning rate above 0.

        The first step of a warm-up has a learning rate of 0 and trains nothing.
        """
        # Each parameter group has a function that gives its factor in a step.
        factors = self.lr_scheduler.lr_lambdas
        steps = range(self.steps_done)
        return any(factor(step) > 0 for factor, step in product(factors, steps))

    def before_evaluation(self) -> None:
        """Bring the model's weights to what training has reached."""
        # In training, some methods compute with other weights than their own: Diff-Pruning's search
        # samples them in each step.
        self.method.before_evaluation(self.model)
        if self.word_rows:
            self.word_rows.merge()

    def state_dict(self) -> dict[str, Any]:
        """Return what continuing the stage needs besides the method's own `training_state`."""
        return {
            "word_rows": self.word_rows and self.word_rows.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "lr_scheduler": self.lr_scheduler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of an equal stage."""
        if self.word_rows:
            self.word_rows.load_state_dict(state["word_rows"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.lr_scheduler.load_state_dict(state["lr_scheduler"])

    def close(self) -> None:
        """Leave the model as it is without this stage: its own weights, trained so far."""
        # A graph that is freed later may spoil the recording of another one.
        if self.graphs:
            self.graphs.close()
            self.graphs = None
        self.runner.unwrap()
        if self.word_rows:
            self.word_rows.close()


# --- the optimizer's parameters


def groups_by_layer(
    groups: list[dict[str, Any]], runner: ModelRunner, method: Method, learning_rate: float
) -> list[dict[str, Any]]:
    """Split an optimizer's groups by layer, for layer-wise learning rate decay.

    The learning rate of a group is multiplied by `layer_decay` for each layer above it. The task
    head comes first, because the first group's learning rate is the one that is logged.

    Args:
        groups: parameter groups of AdamW.
        runner: has the encoder, and the configured decay.
        method: whose parameters train.
        learning_rate: that of groups without one of their own, before it is multiplied.
    """
    encoder = runner.encoder
    decay = runner.config.layer_decay
    trained = method.trainable_parameters(encoder.model)
    # Parameters are compared by identity, so that one can be the key of a dictionary.
    distances = {value: encoder.layers_above(name) for name, value in trained.items()}
    by_layer = []
    for distance in sorted(set(distances.values())):
        # A group is divided, not merged with others: its weight decay and other settings stay.
        for group in groups:
            params = [value for value in group["params"] if distances[value] == distance]
            if params:
                rate = group.get("lr", learning_rate) * decay**distance
                by_layer.append({**group, "params": params, "lr": rate})
    return by_layer


def adamw(groups: list[dict[str, Any]], training: TrainingConfig) -> torch.optim.AdamW:
    """Make AdamW over parameter groups, with the settings of a stage."""
    return torch.optim.AdamW(
        groups,
        lr=training.learning_rate,
        betas=training.adam_betas,
        eps=training.adam_epsilon,
        # One pass over a parameter's memory updates it, not one for each operation of AdamW.
        fused=True,
    )


def schedule_of(optimizer: torch.optim.Optimizer, training: TrainingConfig, steps: int) -> LambdaLR:
    """Make the schedule of an optimizer's learning rates.

    A group's `lr_schedule` says whether it follows the run's schedule (`run`, the default) or keeps
    its learning rate (`constant`).

    Args:
        optimizer: its groups say which schedule they follow.
        training: the settings of the stage.
        steps: those of the stage.
    """

    def of_run(step: int) -> float:
        return learning_rate_factor(training, steps, step)

    def constant(_: int) -> float:
        return 1.0

    schedules: dict[str, Callable[[int], float]] = {"run": of_run, "constant": constant}
    # The warm-up of a stage of one step would train nothing.
    usual = "constant" if steps == 1 else "run"
    factors = [schedules[group.get("lr_schedule", usual)] for group in optimizer.param_groups]
    return LambdaLR(optimizer, factors)


def embedding_of_occurring_words(runner: ModelRunner, method: Method) -> nn.Embedding | None:
    """Return the word embedding whose words that occur may train alone; None where all train.

    Several processes train all words: the rows of `WordRows` are no parameters of the model, and DDP
    averages the gradients of the model's parameters only.
    """
    if not method.may_leave_out_words or runner.process_state.num_processes > 1:
        return None
    embedding = runner.encoder.word_embedding
    if embedding is None or not embedding.weight.requires_grad:
        return None
    return embedding


def occurring_words(examples: Sequence[EncodedExample], pad: dict[str, int]) -> set[int]:
    """Return the token ids of some examples, and that of padding."""
    sequences = chain.from_iterable(example.sequences for example in examples)
    words = np.unique(np.concatenate([sequence["input_ids"] for sequence in sequences]))
    return {*words.tolist(), pad["input_ids"]}


def batch_gradients(
    runner: ModelRunner,
    batches: Sequence[list[EncodedExample]],
    class_weights: ClassWeights = None,
) -> Iterator[None]:
    """Leave the gradient of each batch in the parameters, the same bits in every process.

    Args:
        runner: its model is not wrapped: every process computes all examples.
        batches: one after the other.
        class_weights: of the loss; None: equal ones.
    """
    model = runner.encoder.model
    for batch in batches:
        model.zero_grad()
        runner.accumulate_gradient(batch, class_weights)
        if runner.process_state.num_processes > 1:
            # GPUs add in any order, and a method chooses by these gradients.
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad = reduce(parameter.grad, "mean")
        yield
