"""The published networks: from their command-line flags, every key, shape and place of it, and the number of parameters."""

import torch
from golden import Golden
from networks import build_published


def test_published_flags_give_the_published_keys_and_shapes(golden: Golden) -> None:
    records = golden.json("checkpoint_keys.json") if golden.file("checkpoint_keys.json").exists() else {}
    wrong = []
    for name, record in records.items():
        with torch.device("meta"):
            model = build_published(record["flags"], shapes=dict(record["keys"]))
        ours = [[key, list(tensor.shape)] for key, tensor in model.state_dict().items()]
        if ours != record["keys"]:
            wrong.append(f"{name}: first differs {next(pair for pair in zip(ours, record['keys'], strict=False) if pair[0] != pair[1])}")
        if [key for key, _ in model.named_parameters()] != [key for key, _ in record["keys"]]:
            wrong.append(f"{name}: parameters are in another order than the keys")
        if (count := sum(parameter.numel() for parameter in model.parameters())) != record["num_params"]:
            wrong.append(f"{name}: {count} parameters, recorded {record['num_params']}")
    assert not wrong, "\n".join(wrong)
