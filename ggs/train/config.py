"""Every setting of a training run, with its type, default, unit and limits: the one source for the
YAML file, the flags and the help page.

    config = parse(["--config", "examples/quickstart.yaml", "--density", "0.01"])
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.config import JsonDict

from ggs.train import arguments, values
from ggs.train.duration import Duration, DurationField, IntervalField

_MODEL: JsonDict = {"group": "model and data"}
_TRAINING: JsonDict = {"group": "training"}
_SPARSE: JsonDict = {"group": "gradient sparsification"}
_OUTPUT: JsonDict = {"group": "evaluation and output"}
_CHECKPOINTS: JsonDict = {"group": "checkpoints"}
_LAUNCH: JsonDict = {"group": "launch"}

DataName = Literal["mnist5k", "mnist", "fashion-mnist", "cifar10", "cifar100", "imagefolder"]


def _extra(group: JsonDict, metavar: str) -> JsonDict:
    return {**group, "metavar": metavar}


class TrainConfig(BaseModel):
    """Settings of ``ggs train`` and ``entrypoint.py``."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
    )

    model: str = Field(
        "lenet5",
        description="lenet5, cifarnet, alexnet, densenet121, any torchvision.models classifier, or "
        "your own as package.module:function",
        json_schema_extra=_MODEL,
    )
    model_options: dict[str, Any] = Field(
        {},
        description="keyword arguments of the model, e.g. '{dropout: 0.2}'",
        json_schema_extra=_MODEL,
    )
    data: DataName = Field(
        "mnist5k",
        description="training and test images; mnist5k comes with ggs (4,000 + 1,000 images of MNIST); "
        "imagefolder is any folder with train/CLASS/ and test/CLASS/ or val/CLASS/",
        json_schema_extra=_MODEL,
    )
    data_dir: Path = Field(
        Path("data"), description="folder that holds the data set", json_schema_extra=_MODEL
    )
    download: bool = Field(
        False, description="fetch a missing data set from the internet", json_schema_extra=_MODEL
    )
    image_size: int | None = Field(
        None,
        ge=8,
        le=1024,
        description="side in pixels that images are scaled to; unset: their own, imagefolder 224",
        json_schema_extra=_MODEL,
    )
    augment: bool = Field(
        False,
        description="random crops of the training images, and mirroring where the image is no digit",
        json_schema_extra=_MODEL,
    )
    in_memory: bool = Field(
        False,
        description="imagefolder: decode all images once at the start and keep them in memory, "
        "3 x image_size² bytes each, in every worker",
        json_schema_extra=_MODEL,
    )
    data_workers: int = Field(
        0,
        ge=0,
        le=256,
        description="imagefolder: processes per worker that decode images",
        json_schema_extra=_MODEL,
    )

    optimizer: str = Field(
        "adam", description="any torch.optim optimizer, or amsgrad", json_schema_extra=_TRAINING
    )
    lr: float = Field(1e-3, gt=0, description="learning rate", json_schema_extra=_TRAINING)
    weight_decay: float | None = Field(
        None,
        ge=0,
        description="weight decay as the optimizer means it; unset: the optimizer's own default",
        json_schema_extra=_TRAINING,
    )
    momentum: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="momentum of sgd or rmsprop; unset: the optimizer's own default",
        json_schema_extra=_TRAINING,
    )
    optimizer_options: dict[str, Any] = Field(
        {},
        description="further arguments of the optimizer, e.g. '{betas: [0.9, 0.98]}'",
        json_schema_extra=_TRAINING,
    )
    lr_schedule: Literal["constant", "cosine", "linear", "step"] = Field(
        "constant",
        description="course of the learning rate after its warm-up: cosine and linear fall to 0 at the "
        "last step",
        json_schema_extra=_TRAINING,
    )
    lr_warmup: DurationField = Field(
        Duration(0),
        description="learning rate rises linearly over this time, e.g. '1 epoch' or '500 steps'",
        json_schema_extra=_extra(_TRAINING, "DURATION"),
    )
    lr_step: DurationField = Field(
        Duration(30),
        description="step schedule: time between two drops",
        json_schema_extra=_extra(_TRAINING, "DURATION"),
    )
    lr_gamma: float = Field(
        0.1,
        gt=0,
        le=1,
        description="step schedule: factor of each drop",
        json_schema_extra=_TRAINING,
    )
    epochs: int = Field(
        12,
        ge=1,
        le=10**9,
        description="passes over the training images",
        json_schema_extra=_TRAINING,
    )
    steps: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description="optimizer steps; where set, it replaces epochs",
        json_schema_extra=_TRAINING,
    )
    batch_size: int = Field(
        16,
        ge=1,
        description="images per worker and forward pass; a step sees batch_size x accumulate x workers",
        json_schema_extra=_TRAINING,
    )
    accumulate: int = Field(
        1,
        ge=1,
        description="forward passes whose gradients make one step",
        json_schema_extra=_TRAINING,
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="upper limit C of a gradient's norm, before the optimizer. ggs and gs: each worker's "
        "own gradient; dense: the averaged one; dgc: each worker's own, to C x sqrt(workers), as its paper "
        "has it; unset: none",
        json_schema_extra=_TRAINING,
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="arithmetic of forward and backward pass (fp16 with a loss scaler); weights are fp32",
        json_schema_extra=_TRAINING,
    )
    channels_last: bool = Field(
        False, description="NHWC memory format, faster on most GPUs", json_schema_extra=_TRAINING
    )
    seed: int = Field(
        0,
        ge=0,
        lt=2**32,
        description="of weights, order and augmentation; same seed, same bits on the CPU",
        json_schema_extra=_TRAINING,
    )

    method: Literal["ggs", "dense", "gs", "dgc"] = Field(
        "ggs",
        description="ggs sends the largest updates; the baselines: dense averages all gradients, gs sends "
        "the largest gradients, dgc is Deep Gradient Compression (with sgd)",
        json_schema_extra=_SPARSE,
    )
    density: float = Field(
        0.001,
        gt=0,
        le=1,
        description="share of the elements that a worker sends per step (0.001 = 99.9 % sparsity)",
        json_schema_extra=_SPARSE,
    )
    density_warmup: DurationField = Field(
        Duration(1),
        description="time over which the density falls exponentially from 1, e.g. '1 epoch', "
        "'200 steps' or 0",
        json_schema_extra=_extra(_SPARSE, "DURATION"),
    )
    scope: Literal["global", "tensor"] = Field(
        "global",
        description="select over the whole model, or the same share of each tensor",
        json_schema_extra=_SPARSE,
    )
    values: Literal["fp32", "bf16", "int8", "int4", "sign"] = Field(
        "fp32",
        description="format of the sent values; the rounding error stays in the residual",
        json_schema_extra=_SPARSE,
    )
    batchnorm: Literal["average", "local", "dense", "recalibrate"] = Field(
        "average",
        description="batch-norm layers: local to each worker; the same, averaged for evaluation and "
        "saving; synchronised every step; or averaged with statistics measured anew",
        json_schema_extra=_SPARSE,
    )
    exchange: Literal["auto", "allgather", "split", "hierarchical"] = Field(
        "auto",
        description="how what is sent reaches the others: allgather to all, split by index range; auto: the "
        "cheaper of the two; hierarchical: gradients averaged inside a node before the optimizer, and sent "
        "between nodes only",
        json_schema_extra=_SPARSE,
    )
    workers_per_node: int | None = Field(
        None,
        ge=1,
        description="workers that share a fast network, for the exchange; unset: those of a task",
        json_schema_extra=_SPARSE,
    )
    dense_below: int = Field(
        0,
        ge=0,
        description="tensors with fewer elements than this are sent whole every step",
        json_schema_extra=_SPARSE,
    )
    max_consecutive_skips: int = Field(
        100,
        ge=1,
        description="steps in a row with NaN or infinite gradients after which the run stops",
        json_schema_extra=_SPARSE,
    )

    evaluate_every: DurationField = Field(
        Duration(1),
        description="time between evaluations on the test images; 0: only at the end",
        json_schema_extra=_extra(_OUTPUT, "DURATION"),
    )
    eval_batch_size: int = Field(
        250,
        ge=1,
        description="images per worker and forward pass of an evaluation",
        json_schema_extra=_OUTPUT,
    )
    log_every: int = Field(
        10, ge=1, description="steps between two lines in metrics.jsonl", json_schema_extra=_OUTPUT
    )
    tensorboard: bool = Field(
        True,
        description="write TensorBoard events to run_dir/tensorboard, where the package tensorboard is "
        "installed",
        json_schema_extra=_OUTPUT,
    )
    run_dir: Path | None = Field(
        None,
        description="folder for configuration, metrics and weights; unset: a new one, "
        "runs/MODEL-DATA-METHOD[-2, -3, ...]",
        json_schema_extra=_OUTPUT,
    )
    overwrite: bool = Field(
        False, description="replace a finished run in run_dir", json_schema_extra=_OUTPUT
    )

    checkpoint_dir: Path | None = Field(
        None,
        description="folder for checkpoints, on a storage that outlives the job and that all tasks share; "
        "unset: no checkpoints",
        json_schema_extra=_CHECKPOINTS,
    )
    checkpoint_every: IntervalField | None = Field(
        None,
        description="time between two checkpoints, e.g. '500 steps', '1 epoch' or '10 minutes'; "
        "unset: 10 minutes",
        json_schema_extra=_extra(_CHECKPOINTS, "INTERVAL"),
    )
    keep_checkpoints: int = Field(
        3, ge=1, description="newest checkpoints that are kept", json_schema_extra=_CHECKPOINTS
    )
    resume: str = Field(
        "auto",
        min_length=1,
        description="auto: go on from the newest checkpoint in checkpoint_dir that all workers can read; "
        "never: start over; or another run's checkpoint to start from where checkpoint_dir has none",
        json_schema_extra=_extra(_CHECKPOINTS, "auto|never|PATH"),
    )
    checkpoint_timeout: float = Field(
        600,
        gt=0,
        le=604800,
        description="seconds after which a checkpoint that is still being written has failed",
        json_schema_extra=_extra(_CHECKPOINTS, "SECONDS"),
    )
    check_replicas_every: DurationField = Field(
        Duration(100, "steps"),
        description="time between two comparisons of the workers' weights; 0: never",
        json_schema_extra=_extra(_CHECKPOINTS, "DURATION"),
    )

    dry_run: bool = Field(
        False,
        description="check everything, show what would be exchanged and what memory it takes, train "
        "nothing",
        json_schema_extra=_LAUNCH,
    )
    workers: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="worker processes of this task; unset: one per GPU, else 1",
        json_schema_extra=_LAUNCH,
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="auto: a GPU per worker where there is one (AMD's too)",
        json_schema_extra=_LAUNCH,
    )
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="CPU threads per worker; 0: the cores, shared between the workers",
        json_schema_extra=_LAUNCH,
    )
    backend: Literal["auto", "gloo", "nccl"] = Field(
        "auto",
        description="of torch.distributed; auto: nccl with a GPU per worker, else gloo",
        json_schema_extra=_LAUNCH,
    )
    roles: str = Field(
        "",
        description="OpenPAI task roles that train together, such as chief,worker; empty: all",
        json_schema_extra=_LAUNCH,
    )
    independent: bool = Field(
        False,
        description="every OpenPAI task trains alone, as in an array of jobs; give each its own run_dir",
        json_schema_extra=_LAUNCH,
    )
    rendezvous_timeout: float = Field(
        1800,
        gt=0,
        le=604800,
        description="seconds that tasks wait for each other at the start",
        json_schema_extra=_extra(_LAUNCH, "SECONDS"),
    )
    collective_timeout: float = Field(
        300,
        gt=0,
        le=604800,
        description="seconds that a worker waits for the others in a step before it gives up",
        json_schema_extra=_extra(_LAUNCH, "SECONDS"),
    )

    @field_validator("data_dir", "run_dir", "checkpoint_dir", "resume", mode="before")
    @classmethod
    def _can_be_a_path(cls, value: Any) -> Any:
        return values.path(value)

    @field_validator("model_options", "optimizer_options")
    @classmethod
    def _can_be_written_down(cls, value: dict[str, Any]) -> dict[str, Any]:
        values.require_plain(value)
        return value

    @model_validator(mode="after")
    def _has_a_place_for_checkpoints(self) -> "TrainConfig":
        if self.checkpoint_every is not None and self.checkpoint_dir is None:
            raise ValueError("checkpoint_every: give a --checkpoint-dir to write checkpoints to")
        return self


def parse(argv: Sequence[str], prog: str = "ggs train") -> TrainConfig:
    """Read flags and ``--config``. What types and limits do not tell, ``ggs.train.check`` does.

    Raises ConfigurationError with one line that names the setting, its value and what is allowed;
    SystemExit(0) after ``--help``.
    """
    description = "Train an image classifier with sparsified exchange between workers."
    return arguments.parse(TrainConfig, argv, prog, description)
