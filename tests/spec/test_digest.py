"""The digest sees every identity field and nothing else; two specs can say what they differ in."""

import pytest
from spec.alternatives import ALTERNATIVES, COUPLED, REFUSED, both, spec_with

from iddpm_ray.errors import SpecError
from iddpm_ray.spec.fields import fields_of
from iddpm_ray.spec.spec import JobSpec, differences

MARKS = {field.path: field.mark for field in fields_of(JobSpec)}


@pytest.mark.parametrize("path", ALTERNATIVES)
def test_digest_sees_identity_fields_and_no_others(path):
    old, new = both(path)
    assert old != new
    assert (old.digest() != new.digest()) == (MARKS[path] == "identity")


@pytest.mark.parametrize("path", ALTERNATIVES)
def test_difference_names_the_one_field_that_changed(path):
    old, new = both(path)
    (change,) = differences(old, new)
    assert change.path == path
    assert change.identity == (MARKS[path] == "identity")
    assert str(change).startswith(f"{path}: ")
    assert ("(identity)" in str(change)) == change.identity


@pytest.mark.parametrize(("path", "settings"), COUPLED.items())
def test_digest_sees_fields_that_change_together(path, settings):
    old, new = spec_with({}), spec_with(settings)
    assert old.digest() != new.digest()
    assert [change.path for change in differences(old, new)] == list(settings)


@pytest.mark.parametrize(("path", "value"), REFUSED.items())
def test_fields_without_an_alternative_refuse_it(path, value):
    with pytest.raises(SpecError, match=path):
        spec_with({path: value, "cluster.workers": value})


def test_no_difference_between_equal_specs():
    assert differences(spec_with({}), spec_with({})) == []


def test_difference_reads_well():
    change = differences(spec_with({}), spec_with({"diffusion.schedule": "cosine"}))[0]
    assert str(change) == 'diffusion.schedule: "linear" -> "cosine" (identity)'


def test_digest_does_not_depend_on_how_a_value_was_written():
    plain = spec_with({"optim.anneal": "2M samples", "optim.schedule": "linear", "data.image_size": 16, "model.dropout": 0})
    same = spec_with({"optim.anneal": "2000000 samples", "optim.schedule": "linear", "data.image_size": [16, 16], "model.dropout": -0.0})
    assert plain.digest() == same.digest()


@pytest.mark.parametrize("path", [field.path for field in fields_of(JobSpec) if field.later])
def test_a_field_that_came_later_leaves_the_digest_of_specs_without_it_alone(path):
    field = next(field for field in fields_of(JobSpec) if field.path == path)
    alternative = ALTERNATIVES[path]
    assert alternative.value != field.default
    old, new = both(path)
    assert old.digest() == spec_with(alternative.given).digest()
    assert old.digest() != new.digest()


def test_digest_of_a_spec_never_changes_between_versions():
    """A changed digest would make every run that exists refuse to go on: change this number only knowingly."""
    assert spec_with({}).digest() == "a52f6edd0ed66b574c036e9a5325480abc934358a0445e60d678557a87e697a9"


def test_num_classes_from_the_data_set_are_checked():
    spec = spec_with({"data.labels": "folder", "model.class_cond": True, "sample.classes": [0, 3]})
    assert spec.with_num_classes(4).model.num_classes == 4
    assert [change.path for change in differences(spec, spec.with_num_classes(4))] == ["model.num_classes"]
    with pytest.raises(SpecError, match=r"sample.classes .*has 3, but classes are 0 to 2"):
        spec.with_num_classes(3)
