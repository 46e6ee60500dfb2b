"""Command lines of OpenAI's programs as a spec: every flag is mapped, named as belonging elsewhere, or refused; none is left out."""

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from iddpm_ray.convert import guided, openai
from iddpm_ray.convert.model import UNSAID, nested
from iddpm_ray.errors import SpecError
from iddpm_ray.spec.names import closest
from iddpm_ray.spec.text import dump_mapping, load_mapping, parse_yaml

Dialect = Literal["improved", "guided"]
DIALECTS = {"improved": ("improved-diffusion", openai), "guided": ("guided-diffusion", guided)}
YES, NO = ("yes", "true", "t", "y", "1"), ("no", "false", "f", "n", "0")
USUAL_PROGRAM = "image_train"


@dataclass(frozen=True)
class Command:
    """A command line of one of the programs.

    Attributes:
        dialect: whose programs.
        program: `image_train`, ...
        processes: that it was started with, if it says so.
        flags: every flag with its value, given or by default.
        given: names of those given, in order.
    """

    dialect: Dialect
    program: str
    processes: int | None
    flags: Mapping[str, Any]
    given: tuple[str, ...]


@dataclass
class _Ledger:
    """What has become of each flag."""

    command: Command
    values: dict[str, Any] = field(default_factory=dict)
    remarks: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def has(self, flag: str) -> bool:
        return flag in self.command.flags

    def take(self, flag: str) -> Any:
        """The value of a flag, from now on accounted for."""
        self.used.add(flag)
        return self.command.flags[flag]

    def remark(self, flag: str, text: str) -> None:
        """Says what a flag is, if it was given."""
        self.used.add(flag)
        if flag in self.command.given:
            self.remarks[flag] = text

    def refuse(self, flag: str, text: str) -> None:
        self.used.add(flag)
        self.refused[flag] = text


@dataclass(frozen=True)
class Converted:
    """A spec out of flags.

    Attributes:
        command: whose.
        values: of spec fields by dotted path, everything that the program decides.
        remarks: flags that say something no spec holds, and where it belongs.
        left_open: fields that a training needs and the flags do not tell.
    """

    command: Command
    values: dict[str, Any]
    remarks: dict[str, str]
    left_open: tuple[str, ...]

    def mapping(self) -> dict[str, Any]:
        """The values as sections, without those that are left open."""
        return nested(self.values)

    def yaml(self) -> str:
        """A spec file, with what is left open and what belongs elsewhere in comments."""
        name = f"{DIALECTS[self.command.dialect][0]}'s {self.command.program}"
        lines = [f"# Made from the flags of {name}; what no flag says has that program's default."]
        if self.left_open:
            lines.append(f"# You give: {', '.join(self.left_open)}.")
        lines += [f"# --{flag} {shlex.quote(str(self.command.flags[flag]))}: {text}" for flag, text in self.remarks.items()]
        body = dump_mapping(self.mapping())
        assert parse_yaml(body) == self.mapping()
        return "\n".join(lines) + "\n" + body


def parse_command(words: Sequence[str], *, dialect: Dialect = "improved", program: str | None = None) -> Command:
    """Reads a command line: flags alone, or from the interpreter or launcher on.

    Raises:
        SpecError: no such program or flag, or a value that the flag does not take.
    """
    begin = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    before, rest = list(words[:begin]), list(words[begin:])
    programs = DIALECTS[dialect][1].PROGRAMS
    script = next((word for word in before if word.endswith(".py")), None)
    if script is not None:
        program = program or script.rpartition("/")[2].removesuffix(".py")
    program = program or USUAL_PROGRAM
    if program not in programs:
        raise SpecError("the program", value=program, fix=f"{DIALECTS[dialect][0]} has {', '.join(programs)}")
    defaults = programs[program]
    flags: dict[str, Any] = dict(defaults)
    given: list[str] = []
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or flag not in defaults:
            raise _unknown(word, flag, dialect=dialect, program=program)
        if not equals:
            if not rest:
                raise SpecError(f"--{flag}", fix="needs a value behind it")
            value = rest.pop(0)
        flags[flag] = _read(flag, value, default=defaults[flag])
        given.append(flag)
    return Command(dialect, program, _processes(before), flags, tuple(dict.fromkeys(given)))


def _unknown(word: str, flag: str, *, dialect: Dialect, program: str) -> SpecError:
    name, own = DIALECTS[dialect]
    other: Dialect = "guided" if dialect == "improved" else "improved"
    if flag in DIALECTS[other][1].PROGRAMS.get(program, {}):
        return SpecError(f"{name}'s {program} has no flag --{flag}", fix=f"{DIALECTS[other][0]}'s has: give --from {other}")
    elsewhere = [one for one, flags in own.PROGRAMS.items() if flag in flags]
    if elsewhere:
        return SpecError(f"{name}'s {program} has no flag --{flag}", fix=f"{', '.join(elsewhere)} has: give --program {elsewhere[0]}")
    near = closest(flag, list(own.PROGRAMS[program]))
    return SpecError(f"{name}'s {program} has no flag {word}", fix=f"{near}its flags are {', '.join(own.PROGRAMS[program])}")


def _read(flag: str, value: str, *, default: Any) -> Any:
    try:
        match default:
            case bool():
                if value.lower() not in (*YES, *NO):
                    raise ValueError
                return value.lower() in YES
            case int() | float():
                return type(default)(value)
            case _:
                return value
    except ValueError:
        kind = "True or False" if isinstance(default, bool) else "a whole number" if isinstance(default, int) else "a number"
        raise SpecError(f"--{flag}", value=value, fix=f"should be {kind}") from None


def _processes(before: Sequence[str]) -> int | None:
    for option, count in itertools.pairwise(before):
        if option in ("-n", "-np", "-N") and count.isdigit():
            return int(count)
    return None


def to_spec(command: Command, *, processes: int | None = None, given: Mapping[str, Any] | None = None) -> Converted:
    """What the flags say, in fields of the spec.

    Args:
        processes: that the command is started with; None to go by the command itself.
        given: further fields by dotted path, which win.

    Raises:
        SpecError: names every flag that is refused and why; or the spec that results cannot be.
    """
    given = given or {}
    ledger = _Ledger(command)
    enlarging = command.program.startswith("super_res")
    _pictures(ledger, enlarging)
    _network(ledger)
    _process(ledger)
    if command.program.endswith("_train"):
        _training(ledger, processes or command.processes, given)
    else:
        _using(ledger)
    for flag in command.flags:
        if flag.startswith("classifier_"):
            ledger.refuse(flag, "classifier guidance is not here; sample.guidance leans a network trained with model.class_dropout")
    lost = set(command.flags) - ledger.used
    assert not lost, f"flags that nobody looked at: {sorted(lost)}"
    refused = {flag: why for flag, why in ledger.refused.items() if not (flag.startswith("classifier_") and flag not in command.given)}
    if refused:
        lines = [f"--{flag} {shlex.quote(str(command.flags[flag]))}: {why}" for flag, why in refused.items()]
        raise SpecError(
            f"{len(lines)} of the flags cannot be converted:\n  " + "\n  ".join(lines) + "\n", fix="leave them out or change them"
        )
    values = {**ledger.values, **given}
    needed = UNSAID if command.program.endswith("_train") else {path: value for path, value in UNSAID.items() if path != "train.duration"}
    left_open = tuple(path for path in needed if path not in values)
    load_mapping(nested({**UNSAID, **values}))
    return Converted(command, values, ledger.remarks, left_open)


def _pictures(ledger: _Ledger, enlarging: bool) -> None:
    own = DIALECTS[ledger.command.dialect][1]
    values = ledger.values
    size_flag = "large_size" if enlarging else "image_size"
    size, asked = ledger.take(size_flag), ledger.take("channel_mult") if ledger.has("channel_mult") else ""
    values["data.image_size"] = size
    known = own.CHANNEL_MULT
    if enlarging:
        known = own.LARGE_CHANNEL_MULT
        values |= {"model.kind": "superres", "model.low_res_size": ledger.take("small_size")}
    mult = _widths(ledger, asked) if asked else known.get(size)
    if mult is None and not asked:
        sizes, more = ", ".join(map(str, sorted(known))), " or with --channel_mult" if ledger.has("channel_mult") else ""
        ledger.refuse(size_flag, f"{DIALECTS[ledger.command.dialect][0]} has no widths for this size, but for {sizes}{more}")
    values["model.channel_mult"] = list(mult or ())
    _attention(ledger, size, len(mult or ()))
    if ledger.take("class_cond"):
        values |= {"data.labels": "prefix", "model.class_cond": True, "model.num_classes": openai.NUM_CLASSES}
        ledger.remark("class_cond", f"it always makes {openai.NUM_CLASSES} classes; for a new training set model.num_classes to yours")
    if own.FLIPS and ledger.command.program.endswith("_train"):
        values["data.flip"] = True


def _widths(ledger: _Ledger, asked: str) -> tuple[float, ...] | None:
    try:
        return tuple(int(part) for part in asked.split(","))
    except ValueError:
        ledger.refuse("channel_mult", "should be whole numbers, such as 1,2,3,4")
        return None


def _attention(ledger: _Ledger, size: int, levels: int) -> None:
    try:
        asked = [int(part) for part in ledger.take("attention_resolutions").split(",")]
        factors = [size // one for one in asked]
    except (ValueError, ZeroDivisionError):
        ledger.refuse("attention_resolutions", "should be sizes of feature maps, such as 16,8")
        return
    sizes = [size // 2**level for level in range(levels) if 2**level in factors]
    ledger.values["model.attention_resolutions"] = sizes
    absent = [str(one) for one, factor in zip(asked, factors, strict=True) if factor not in [2**level for level in range(levels)]]
    if absent:
        ledger.remarks["attention_resolutions"] = f"no level has size {', '.join(absent)}, which is passed over there too"


def _network(ledger: _Ledger) -> None:
    values = ledger.values
    values |= {
        "model.num_channels": ledger.take("num_channels"),
        "model.num_res_blocks": ledger.take("num_res_blocks"),
        "model.dropout": ledger.take("dropout"),
        "model.gradient_checkpointing": ledger.take("use_checkpoint"),
        "model.scale_shift_norm": ledger.take("use_scale_shift_norm"),
    }
    width = ledger.take("num_head_channels") if ledger.has("num_head_channels") else -1
    if width != -1:
        values["model.num_head_channels"] = width
        for flag in ("num_heads", "num_heads_upsample"):
            ledger.remark(flag, "has no effect there either beside --num_head_channels")
    else:
        values["model.num_heads"] = ledger.take("num_heads")
        values["model.num_heads_upsample"] = ledger.take("num_heads_upsample")
    if ledger.has("resblock_updown"):
        values["model.resblock_updown"] = ledger.take("resblock_updown")
    if ledger.has("use_new_attention_order"):
        values["model.qkv_order"] = "qkv_first" if ledger.take("use_new_attention_order") else "heads_first"


def _process(ledger: _Ledger) -> None:
    learned, kl = ledger.take("learn_sigma"), ledger.take("use_kl")
    small = ledger.take("sigma_small") if ledger.has("sigma_small") else False
    rescaled = ledger.take("rescale_learned_sigmas")
    if learned and small:
        ledger.remark("sigma_small", "has no effect there either beside --learn_sigma True")
    if kl:
        ledger.remark("rescale_learned_sigmas", "has no effect there either beside --use_kl True")
    schedule = ledger.take("noise_schedule")
    if schedule not in ("linear", "cosine"):
        ledger.refuse("noise_schedule", "should be linear or cosine")
    respacing = ledger.take("timestep_respacing")
    ledger.values |= {
        "diffusion.timesteps": ledger.take("diffusion_steps"),
        "diffusion.schedule": schedule,
        "diffusion.predicts": "x_start" if ledger.take("predict_xstart") else "eps",
        "diffusion.variance": "learned_range" if learned else "fixed_small" if small else "fixed_large",
        "diffusion.loss": "rescaled_kl" if kl else "rescaled_mse" if rescaled else "mse",
        "diffusion.rescale_timesteps": ledger.take("rescale_timesteps"),
        "sample.respacing" if ledger.command.program.endswith("_sample") else "diffusion.respacing": respacing,
    }


def _training(ledger: _Ledger, processes: int | None, given: Mapping[str, Any]) -> None:
    values = ledger.values
    _data(ledger)
    sampler = ledger.take("schedule_sampler")
    if sampler not in ("uniform", "loss-second-moment"):
        ledger.refuse("schedule_sampler", "should be uniform or loss-second-moment")
    values |= {
        "resampler.kind": sampler.replace("-", "_"),
        "optim.lr": ledger.take("lr"),
        "optim.weight_decay": ledger.take("weight_decay"),
        "log.every": f"{ledger.take('log_interval')} steps",
        "checkpoint.every": f"{ledger.take('save_interval')} steps",
    }
    try:
        values["optim.ema_rates"] = [float(rate) for rate in ledger.take("ema_rate").split(",")]
    except ValueError:
        ledger.refuse("ema_rate", "should be rates, such as 0.9999 or 0.99,0.9999")
    anneal = ledger.take("lr_anneal_steps")
    if anneal:
        values |= {"optim.schedule": "linear", "optim.anneal": f"{anneal} steps", "train.duration": f"{anneal} steps"}
    batch = ledger.take("batch_size")
    if processes is not None:
        values["train.global_batch"] = batch * processes
    elif "train.global_batch" not in given:
        why = f"is per process there: give --processes N, which writes train.global_batch={batch} x N ({batch} for 1, {8 * batch} for 8)"
        ledger.refuse("batch_size", why)
    microbatch = ledger.take("microbatch")
    if 0 < microbatch < batch:
        values["optim.microbatch"] = microbatch
    if ledger.take("resume_checkpoint"):
        why = "a run whose directory exists goes on by itself; init.from=FILE begins a new one with these weights, without their optimiser"
        ledger.refuse("resume_checkpoint", why)
    growth = ledger.take("fp16_scale_growth")
    if ledger.take("use_fp16"):
        values |= {"optim.precision": "fp16", "optim.fp16_scale_growth": growth}
    else:
        ledger.remark("fp16_scale_growth", "has no effect there either without --use_fp16 True")


def _using(ledger: _Ledger) -> None:
    """The programs that draw, or measure the likelihood."""
    if not ledger.take("clip_denoised") and ledger.command.program == "image_nll":
        ledger.remark("clip_denoised", "said to the program that measures, as `jobs/nll.py --no-clip`, not in a spec")
    elif not ledger.take("clip_denoised"):
        ledger.refuse("clip_denoised", "predictions of the picture are always clamped here")
    _data(ledger)
    if ledger.has("use_ddim") and ledger.take("use_ddim"):
        if ledger.command.program == "super_res_sample":
            ledger.remark("use_ddim", "is ignored by super_res_sample, which draws by DDPM, and so does this spec")
        else:
            ledger.values["sample.method"] = "ddim"
    ledger.remark("model_path", "the weights: name them to `jobs/convert.py import`, or set init.from")
    ledger.remark("num_samples", "how many is said to the program that draws or measures, not in a spec")
    ledger.remark("batch_size", "pictures at a time, of each process: said to the program that draws or measures, not in a spec")
    for flag, text in (
        ("base_samples", "the small pictures: said to the program that draws, not in a spec"),
        ("use_fp16", "the precision of drawing: said to the program that draws, not in a spec"),
    ):
        if ledger.has(flag):
            ledger.remark(flag, text)


def _data(ledger: _Ledger) -> None:
    if ledger.has("data_dir") and ledger.take("data_dir"):
        ledger.values["data.path"] = ledger.take("data_dir")
