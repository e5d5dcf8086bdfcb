"""One wording of what was released, for the command line, the report and the explorer."""

from discreet.core.types import TRAINING, UPDATE
from discreet.releases.description import describe_knowledge, describe_release

VECTORS = {"kind": "representation", "width": 32, "model": "a fresh minilm"}
GRADIENT = {"kind": "gradient", "parameters": "all 38 tensors", "model": "m", "batch_size": 2, "steps": 1}


def test_one_vector_is_not_several() -> None:
    assert "1 vector of 32 numbers from 1 text" in describe_release(VECTORS | {"vectors": 1})
    assert "8 vectors of 32 numbers" in describe_release(VECTORS | {"vectors": 8})
    few = describe_release(VECTORS | {"vectors": 8, "first_words": 6})
    assert "from at most 6 first words of 1 text" in few


def test_a_gradient_says_of_what_how_often_and_how_protected() -> None:
    assert describe_release(GRADIENT) == "the gradient of 2 texts at m, once; all 38 tensors"
    assert describe_release(GRADIENT | {"steps": 3}, texts="your sentence").startswith(
        "the gradient of your sentence at m, 3 times"
    )
    protected = {"name": "dp-sgd", "noise_multiplier": 0.5}
    assert describe_release(GRADIENT | {"protection": protected}, protection=True).endswith(
        "; dp-sgd (noise multiplier 0.5)"
    )
    assert describe_release(GRADIENT, protection=True).endswith("; no protection")


def test_a_simulated_release_and_a_whole_training_are_told_apart() -> None:
    simulated = GRADIENT | {"simulated": True, "candidates": 64, "scope": UPDATE}
    assert describe_release(simulated).startswith("the simulated gradient of one of 64 texts at m, once")
    training = simulated | {"scope": TRAINING, "steps": 20, "sampling_rate": 0.25}
    assert "in all 20 updates of its training, each with probability 0.25" in describe_release(training)


def test_what_old_trials_did_not_record_is_left_out() -> None:
    assert describe_release({}) == "not recorded"
    assert describe_release({"kind": "gradient"}) == "the gradient of 1 text at the model, once; ?"
    assert describe_release({"kind": "gradient", "scope": TRAINING, "steps": 9}).count("probability") == 0
    assert describe_knowledge({}) == "The attacker also knows: nothing."
