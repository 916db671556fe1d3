"""Every setting of a training run, with its type, default, unit and limits: the one source for the
YAML file, the flags and the help page.

    config = parse(["--config", "examples/quickstart.yaml", "--density", "0.01"])
"""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ggs.errors import ConfigurationError
from ggs.optim.budget import Budget
from ggs.train import arguments, values
from ggs.train.arguments import Group, Metavar
from ggs.train.duration import Duration, DurationField, IntervalField

DataName = Literal["mnist5k", "mnist", "fashion-mnist", "cifar10", "cifar100", "imagefolder"]


T = TypeVar("T")


class Change(Enum):
    """When a run that is started again may have another value of a setting and still is the same run."""

    ANYTIME = 1
    ON_RESUME = 2


Anytime = Annotated[T, Change.ANYTIME]
"""A setting of which nothing depends that a run computes or records."""
OnResume = Annotated[T, Change.ON_RESUME]
"""A setting that may change where a run goes on from a checkpoint. All others decide what is computed."""
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=604800), Metavar("SECONDS")]


class TrainConfig(BaseModel):
    """Settings of ``ggs train`` and ``entrypoint.py``."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    model: Annotated[str, Group("model and data")] = "lenet5"
    """lenet5, cifarnet, alexnet, densenet121, any torchvision.models classifier, or your own as
    package.module:function"""
    model_options: dict[str, Any] = {}
    """keyword arguments of the model, e.g. '{dropout: 0.2}'"""
    data: DataName = "mnist5k"
    """training and test images; mnist5k comes with ggs (4,000 + 1,000 images of MNIST); imagefolder is any
    folder with train/CLASS/ and test/CLASS/ or val/CLASS/"""
    data_dir: OnResume[Path] = Path("data")
    """folder that holds the data set"""
    download: Anytime[bool] = False
    """fetch a missing data set from the internet"""
    image_size: int | None = Field(None, ge=8, le=1024)
    """side in pixels that images are scaled to; unset: their own, imagefolder 224"""
    augment: bool = False
    """random crops of the training images, and mirroring where the image is no digit"""
    in_memory: OnResume[bool] = False
    """imagefolder: decode all images once at the start and keep them in memory, 3 x image_size² bytes each,
    in every worker"""
    data_workers: OnResume[int] = Field(0, ge=0, le=256)
    """imagefolder: processes per worker that decode images"""

    optimizer: Annotated[str, Group("training")] = "adam"
    """any torch.optim optimizer, or amsgrad"""
    lr: float = Field(1e-3, gt=0)
    """learning rate"""
    weight_decay: float | None = Field(None, ge=0)
    """weight decay as the optimizer means it; unset: the optimizer's own default"""
    momentum: float | None = Field(None, ge=0, lt=1)
    """momentum of sgd or rmsprop; unset: the optimizer's own default"""
    optimizer_options: dict[str, Any] = {}
    """further arguments of the optimizer, e.g. '{betas: [0.9, 0.98]}'"""
    lr_schedule: Literal["constant", "cosine", "linear", "step"] = "constant"
    """course of the learning rate after its warm-up: cosine and linear fall to 0 at the last step"""
    lr_warmup: DurationField = Duration(0)
    """learning rate rises linearly over this time, e.g. '1 epoch' or '500 steps'"""
    lr_step: DurationField = Duration(30)
    """step schedule: time between two drops"""
    lr_gamma: float = Field(0.1, gt=0, le=1)
    """step schedule: factor of each drop"""
    epochs: OnResume[int] = Field(12, ge=1, le=10**9)
    """passes over the training images"""
    steps: OnResume[int | None] = Field(None, ge=1, le=10**12)
    """optimizer steps; where set, it replaces epochs"""
    batch_size: Count = 16
    """images per worker and forward pass; a step sees batch_size x accumulate x workers"""
    accumulate: Count = 1
    """forward passes whose gradients make one step"""
    clip_norm: float | None = Field(None, gt=0)
    """upper limit C of a gradient's norm, before the optimizer. ggs and gs: each worker's own gradient;
    dense: the averaged one; dgc: each worker's own, to C x sqrt(workers), as its paper has it; unset: none"""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """arithmetic of forward and backward pass (fp16 with a loss scaler); weights are fp32"""
    channels_last: bool = False
    """NHWC memory format, faster on most GPUs"""
    seed: int = Field(0, ge=0, lt=2**32)
    """of weights, order and augmentation; same seed, same bits on the CPU"""

    method: Annotated[Literal["ggs", "dense", "gs", "dgc"], Group("gradient sparsification")] = (
        "ggs"
    )
    """ggs sends the largest updates; the baselines: dense averages all gradients, gs sends the largest
    gradients, dgc is Deep Gradient Compression (with sgd)"""
    density: float | None = Field(0.001, gt=0, le=1)
    """share of the elements that a worker sends per step (0.001 = 99.9 % sparsity); with a budget, what
    that allows"""
    budget: str | None = None
    """instead of a density, what a worker may send per step after the density warm-up: '2 kB', '0.1 bits'
    (per parameter) or '0.4 %' (of what dense training sends)"""
    density_warmup: DurationField = Duration(1)
    """time over which the density falls exponentially from 1, e.g. '1 epoch', '200 steps' or 0"""
    momentum_follows_density: bool = False
    """ggs only: the optimizer's momentum shrinks with the density, since a sparse exchange adds one of its
    own; false is the paper's algorithm"""
    every: int = Field(1, ge=1, le=10_000)
    """optimizer steps from one exchange to the next (ggs only): above 1 each worker takes local steps in
    between, and the sum of its updates is exchanged as one"""
    scope: Literal["global", "tensor"] = "global"
    """select over the whole model, or the same share of each tensor"""
    values: Literal["fp32", "bf16", "int8", "int4", "sign"] | None = "fp32"
    """format of the sent values; the rounding error stays in the residual; with a budget and unset, what
    suits that"""
    batchnorm: Literal["average", "local", "dense", "recalibrate"] = "average"
    """batch-norm layers: local to each worker; the same, averaged for evaluation and saving; synchronised
    every step; or averaged with statistics measured anew"""
    exchange: Literal["auto", "allgather", "split", "hierarchical"] = "auto"
    """how what is sent reaches the others: allgather to all, split by index range; auto: the cheaper of the
    two; hierarchical: gradients averaged inside a node before the optimizer, and sent between nodes only"""
    workers_per_node: OnResume[int | None] = Field(None, ge=1)
    """workers that share a fast network, for the exchange; unset: those of a task"""
    dense_below: int = Field(0, ge=0)
    """tensors with fewer elements than this are sent whole every step"""
    max_consecutive_skips: OnResume[Count] = 100
    """steps in a row with NaN or infinite gradients after which the run stops"""

    evaluate_every: OnResume[Annotated[DurationField, Group("evaluation and output")]] = Duration(1)
    """time between evaluations on the test images; 0: only at the end"""
    eval_batch_size: OnResume[Count] = 250
    """images per worker and forward pass of an evaluation"""
    log_every: OnResume[Count] = 10
    """steps between two lines in metrics.jsonl"""
    tensorboard: Anytime[bool] = True
    """write TensorBoard events to run_dir/tensorboard, where the package tensorboard is installed"""
    run_dir: Anytime[Path | None] = None
    """folder for configuration, metrics and weights; unset: a new one, runs/MODEL-DATA-METHOD[-2, -3, ...]"""
    overwrite: Anytime[bool] = False
    """replace a finished run in run_dir"""

    checkpoint_dir: Anytime[Annotated[Path | None, Group("checkpoints")]] = None
    """folder for checkpoints, on a storage that outlives the job and that all tasks share; unset: no
    checkpoints"""
    checkpoint_every: Anytime[IntervalField | None] = None
    """time between two checkpoints, e.g. '500 steps', '1 epoch' or '10 minutes'; unset: 10 minutes"""
    keep_checkpoints: Anytime[Count] = 3
    """newest checkpoints that are kept"""
    resume: Anytime[Annotated[str, Metavar("auto|never|PATH")]] = Field("auto", min_length=1)
    """auto: go on from the newest checkpoint in checkpoint_dir that all workers can read; never: start over;
    or another run's checkpoint to start from where checkpoint_dir has none"""
    checkpoint_timeout: Anytime[Seconds] = 600
    """seconds after which a checkpoint that is still being written has failed"""
    check_replicas_every: Anytime[DurationField] = Duration(100, "steps")
    """time between two comparisons of the workers' weights; 0: never"""

    dry_run: Anytime[Annotated[bool, Group("launch")]] = False
    """check everything, show what would be exchanged and what memory it takes, train nothing"""
    workers: OnResume[int | None] = Field(None, ge=1, le=1024)
    """worker processes of this task; unset: one per GPU, else 1"""
    device: OnResume[Literal["auto", "cpu", "cuda"]] = "auto"
    """auto: a GPU per worker where there is one (AMD's too)"""
    threads: OnResume[int] = Field(0, ge=0, le=1024)
    """CPU threads per worker; 0: the cores, shared between the workers"""
    backend: OnResume[Literal["auto", "gloo", "nccl"]] = "auto"
    """of torch.distributed; auto: nccl with a GPU per worker, else gloo"""
    roles: OnResume[str] = ""
    """OpenPAI task roles that train together, such as chief,worker; empty: all"""
    independent: OnResume[bool] = False
    """every OpenPAI task trains alone, as in an array of jobs; give each its own run_dir"""
    rendezvous_timeout: Anytime[Seconds] = 1800
    """seconds that tasks wait for each other at the start"""
    collective_timeout: Anytime[Seconds] = 300
    """seconds that a worker waits for the others in a step before it gives up"""

    @classmethod
    def fixed(cls, *, resumed: bool) -> list[str]:
        """The settings that make a run another one: where it starts again, or goes on from a checkpoint."""
        free = (Change.ANYTIME, Change.ON_RESUME) if resumed else (Change.ANYTIME,)
        return [
            name
            for name, field in cls.model_fields.items()
            if arguments.mark(field, Change) not in free
        ]

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

    @model_validator(mode="before")
    @classmethod
    def _leaves_open_what_a_budget_decides(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and settings.get("budget") is not None:
            return {"density": None, "values": None, **settings}
        return settings

    @model_validator(mode="after")
    def _has_one_amount_to_send(self) -> "TrainConfig":
        if self.budget is not None:
            if self.density is not None:
                raise ValueError(
                    f"budget: {self.budget} and density {self.density:g} are given: give one of them, "
                    "the other follows"
                )
            if self.method == "dense":
                raise ValueError(
                    f"budget: {self.budget} is for the sparse methods, and method is dense; give --method ggs"
                )
            try:
                Budget.parse(self.budget)
            except ConfigurationError as error:
                raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _has_momentum_before_the_exchange(self) -> "TrainConfig":
        if self.momentum_follows_density and self.method != "ggs":
            raise ValueError(
                f"momentum_follows_density is for method ggs, and method is {self.method}, whose momentum is "
                "another matter; leave it out or give --method ggs"
            )
        return self

    @model_validator(mode="after")
    def _can_take_local_steps(self) -> "TrainConfig":
        if self.every > 1 and self.method != "ggs":
            raise ValueError(
                f"every: {self.every} local steps between exchanges are for method ggs, and method is "
                f"{self.method}; give --every 1 or --method ggs"
            )
        if self.every > 1 and self.exchange == "hierarchical":
            raise ValueError(
                f"every: {self.every} local steps cannot go with exchange hierarchical, which averages "
                "gradients in every step; give --every 1 or --exchange auto"
            )
        return self


def parse(argv: Sequence[str], prog: str = "ggs train") -> TrainConfig:
    """Read flags and ``--config``. What types and limits do not tell, ``ggs.train.check`` does.

    Raises ConfigurationError with one line that names the setting, its value and what is allowed;
    SystemExit(0) after ``--help``.
    """
    description = "Train an image classifier with sparsified exchange between workers."
    return arguments.parse(TrainConfig, argv, prog, description)
