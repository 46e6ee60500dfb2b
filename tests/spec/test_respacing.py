"""Respacing is judged by arithmetic as the original would."""

import pytest

from iddpm_ray.spec.respacing import count_timesteps


def test_counts_and_refusals_are_those_of_the_original(golden_respacing):
    judged = 0
    for case in golden_respacing:
        sections = case["sections"]
        text = sections if isinstance(sections, str) else ",".join(map(str, sections))
        if not text:
            continue  # to the original the empty text is an error of its parser; in a spec it means every timestep
        if case["outcome"] == "ok":
            assert count_timesteps(case["num_timesteps"], text) == case["count"], case
        else:
            with pytest.raises(ValueError):
                count_timesteps(case["num_timesteps"], text)
        judged += 1
    assert judged > 10


@pytest.mark.parametrize("timesteps", [2, 7, 30, 100])
def test_ddim_counts_are_those_that_some_stride_takes(timesteps):
    reachable = {len(range(0, timesteps, stride)) for stride in range(1, timesteps)}
    for wanted in range(timesteps + 3):
        if wanted in reachable:
            assert count_timesteps(timesteps, f"ddim{wanted}") == wanted
        else:
            with pytest.raises(ValueError, match=f"exactly {wanted} of them"):
                count_timesteps(timesteps, f"ddim{wanted}")


def test_refusal_names_counts_that_would_do():
    with pytest.raises(ValueError, match='exactly 600 of them; "ddim500" or "ddim1000" would do'):
        count_timesteps(1000, "ddim600")
    with pytest.raises(ValueError, match=r"asks for 400 timesteps where section 3 of 3 has 333 \(of 1000\)"):
        count_timesteps(1000, "300,300,400")
    with pytest.raises(ValueError, match="asks for 4001 timesteps where there are 4000"):
        count_timesteps(4000, "4001")


@pytest.mark.parametrize("text", ["abc", "-5", "5,,5", "5;5", "ddim", "ddim-3", "1.5", "0", "0,0", " "])
def test_nonsense_is_refused(text):
    with pytest.raises(ValueError):
        count_timesteps(100, text)


def test_empty_text_keeps_every_timestep():
    assert count_timesteps(77, "") == 77
