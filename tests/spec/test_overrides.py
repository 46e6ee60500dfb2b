"""`section.key=value` is read as what the field is; what comes later wins; a wrong name or value is an error that helps."""

import pytest
from spec.alternatives import ALTERNATIVES, SMALL, nested, spec_with

from iddpm_ray.errors import SpecError
from iddpm_ray.spec.fields import as_plain, fields_of, value_of
from iddpm_ray.spec.overrides import field_suggestion, is_field, override
from iddpm_ray.spec.spec import JobSpec
from iddpm_ray.spec.text import load_mapping


def resolved(*texts: str, settings: dict[str, object] | None = None):
    given = nested({**SMALL, **(settings or {})})
    for text in texts:
        given = override(given, text)
    return load_mapping(given)


def as_words(value: object) -> str:
    """A value as one types it: lists with commas, no quotes."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("path", ALTERNATIVES)
@pytest.mark.parametrize("brackets", [False, True])
def test_every_field_can_be_set_on_the_command_line(path, brackets):
    alternative = ALTERNATIVES[path]
    words = as_words(alternative.value)
    if brackets and isinstance(alternative.value, list):
        words = f"[{words}]"
    assert resolved(f"{path}={words}", settings=alternative.given) == spec_with({**alternative.given, path: alternative.value})


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("data.path=gs://b/k=v/x=y", "data.path", "gs://b/k=v/x=y"),
        ("data.path=a,b", "data.path", "a,b"),
        ("run.name=007", "run.name", "007"),
        ("run.name=true", "run.name", "true"),
        ("run.name=null", "run.name", "null"),
        ("run.output_dir=~/runs", "run.output_dir", "~/runs"),
        ("data.image_column=a b", "data.image_column", "a b"),
        ("data.flip=True", "data.flip", True),
        ("data.flip=on", "data.flip", True),
        ("data.flip=NO", "data.flip", False),
        ("optim.lr=3e-4", "optim.lr", 3e-4),
        ("optim.lr=1", "optim.lr", 1.0),
        ("optim.clip_norm=null", "optim.clip_norm", None),
        ("optim.clip_norm=none", "optim.clip_norm", None),
        ("optim.microbatch=auto", "optim.microbatch", "auto"),
        ("optim.microbatch=4", "optim.microbatch", 4),
        ("optim.microbatch=null", "optim.microbatch", None),
        ("optim.ema_rates=0.9, 0.99", "optim.ema_rates", [0.9, 0.99]),
        ("optim.ema_rates=0.9", "optim.ema_rates", [0.9]),
        ("optim.ema_rates=[]", "optim.ema_rates", []),
        ("model.channel_mult=null", "model.channel_mult", None),
        ("model.attention_resolutions=", "model.attention_resolutions", []),
        ("data.image_size=16", "data.image_size", 16),
        ("data.image_size=16,8", "data.image_size", [16, 8]),
        ("cluster.workers=[1, 2]", "cluster.workers", [1, 2]),
        ("cluster.workers=2", "cluster.workers", 2),
        ("train.duration=2M samples", "train.duration", "2M samples"),
        ("checkpoint.keep_every=null", "checkpoint.keep_every", None),
        ("diffusion.respacing=10,15", "diffusion.respacing", "10,15"),
        ("diffusion.respacing=[10,15]", "diffusion.respacing", "10,15"),
        ("diffusion.respacing=", "diffusion.respacing", ""),
        ("sample.respacing=[ 4, 6 ]", "sample.respacing", "4,6"),
        ("data.labels=none", "data.labels", "none"),
        ("data.channels=1", "data.channels", 1),
    ],
)
def test_value_is_read_as_what_the_field_is(text, path, value):
    spec = resolved(text)
    field = next(field for field in fields_of(JobSpec) if field.path == path)
    assert as_plain(value_of(spec, field)) == value


def test_patterns_need_no_quotes():
    spec = resolved("init.from=/x", "init.only=input_blocks.*, '*.weight'", "init.skip=[out.*]", "init.weights=0.99")
    assert spec.init.only == ("input_blocks.*", "*.weight")
    assert spec.init.skip == ("out.*",)
    assert spec.init.weights == 0.99


@pytest.mark.parametrize("text", ["['a,b','c']", """['a,b', "c"]""", "'a,b',c", "[ 'a,b' , c, ]"])
def test_a_comma_in_quotes_parts_nothing(text):
    assert resolved("init.from=/x", f"init.only={text}").init.only == ("a,b", "c")


def test_what_comes_later_wins():
    assert resolved("optim.lr=1", "optim.lr=2", "optim.lr=3").optim.lr == 3


def test_mapping_is_laid_over_a_section():
    spec = resolved("optim.lr=1", "optim={weight_decay: 0.5, betas: [0.5, 0.6]}", "cluster.mesh={data: -1}")
    assert (spec.optim.lr, spec.optim.weight_decay, spec.optim.betas) == (1, 0.5, (0.5, 0.6))


@pytest.mark.parametrize(
    ("inner", "mesh"), [("{fsdp: 2}", (1, 2, 1)), ("{}", (1, 1, 1)), ("null", (1, 1, 1)), ("{fsdp: 2, data: 3}", (3, 2, 1))]
)
def test_a_section_inside_the_mapping_is_laid_over_too(inner: str, mesh: tuple[int, ...]):
    given = nested({**SMALL, "cluster.mesh.data": 1, "cluster.mesh.fsdp": 1, "cluster.mesh.tensor": 1})
    laid = override(given, f"cluster={{mesh: {inner}, workers: 4}}")
    assert (laid["cluster"]["mesh"]["data"], laid["cluster"]["mesh"]["fsdp"], laid["cluster"]["mesh"]["tensor"]) == mesh
    assert laid["cluster"]["workers"] == 4


def test_wrong_keys_and_values_of_such_a_section_are_refused_in_words():
    for text, says in (
        ("{mesh: 3}", "cluster.mesh (got 3)"),
        ("{mesh: {fdsp: 1}}", "cluster.mesh.fdsp (got 1): no such field"),
        ("{1: 2}", "cluster"),
    ):
        with pytest.raises(SpecError) as caught:
            resolved(f"cluster={text}")
        assert says in str(caught.value)


def test_given_values_stay_as_they_are():
    given = nested(SMALL)
    before = repr(given)
    override(given, "run.name=x")
    assert repr(given) == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("optim.lr=fast", 'optim.lr (got "fast"): should be a number'),
        ("optim.lr=", "optim.lr (got null): should be a number"),
        ("data.flip=1", "data.flip (got 1): should be true or false (yes, no, on and off will do)"),
        ("data.flip=maybe", "data.flip (got maybe): should be true or false"),
        ("data.flp=yes", "data.flp (got yes): no such field: did you mean data.flip?"),
        ("global_batch=4", "global_batch (got 4): no such field: did you mean train.global_batch?"),
        ("batch_size=4", "batch_size (got 4): no such field: here this is train.global_batch"),
        ("model.num_channels=32.5", "model.num_channels (got 32.5): should be a whole number"),
        ("model.num_channels=3200000000", "model.num_channels (got 3200000000): should be at most 65536"),
        ("model.channel_mult=1,1e9", "model.channel_mult[1] (got 1000000000.0): should be at most 1024"),
        ("sample.respacing=[3, x]", 'sample.respacing (got "3,x"): should be a count'),
        ("cluster.workers=two", 'cluster.workers (got "two"): should be a whole number or a list'),
        ("cluster.mesh=3", "cluster.mesh (got 3): is a section: set a field of it, such as cluster.mesh.data=VALUE"),
        ("optim={lr", "optim is not YAML ("),
        ("optim={zzz: 1}", "optim.zzz (got 1): no such field"),
        ("optim.lr=*x", "optim.lr holds an anchor or alias"),
        ("optim.ema_rates=0.9,fast", 'optim.ema_rates[1] (got "fast"): should be a number'),
        ("train.duration=5", 'train.duration (got "5"): needs a unit: "5 steps"'),
        ("train.duration=null", 'train.duration (got "null"): should be a number and a unit'),
    ],
)
def test_wrong_override_is_refused_in_words(text, says):
    with pytest.raises(SpecError) as caught:
        resolved(text)
    assert says in str(caught.value)


def test_words_are_led_to_fields():
    assert is_field("optim.lr")
    assert not is_field("optim")
    assert field_suggestion("learning_rate") == ": here this is optim.lr"
    assert field_suggestion("qqqqq") == ""
