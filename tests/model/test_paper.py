"""The paper's recipe against a model and a training loop written from what its authors published; older checkpoints."""

import json
from pathlib import Path

import pytest
import torch
from scipy import stats
from transformers import AutoModel

from hf_semfocus import SemFocusForSequenceClassification, SemFocusModel, paper_config
from hf_semfocus.data import build_tokenizer, load_task, task_info
from hf_semfocus.experiments.presets import preset
from hf_semfocus.experiments.spec import RunSpec
from hf_semfocus.model.paper import PAPER_VARIANTS
from hf_semfocus.training.rows import TensorRows, already_batched
from hf_semfocus.training.setup import training_arguments
from hf_semfocus.training.trainer import SemFocusTrainer

from .contract import AUTO, batch, every_class, every_head, gradients, labelled, make, same_tensors, shuffled
from .paper_oracle import PaperModel, cross_entropy, sgd_step

NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "mlp_dropout": 0.0}
TASKS = {"nnch": ("modular_arithmetic_brackets", 40), "listops": ("listops", (20, 60))}
BLOCKS = 2


@pytest.fixture(scope="module", params=TASKS)
def task(request):
    """A task's name, its training rows as tensors, and the length that all are padded to."""
    name, length = TASKS[request.param]
    data = load_task(name, length=length, train_size=16, validation_size=1, test_size=1)["train"]
    rows = TensorRows(data, build_tokenizer(name).pad_token_id)
    assert (len(set(rows.lengths.tolist())) > 1) == (name == "listops")
    return name, rows, max(rows.lengths.tolist())


def pair(name, variant, length, *, dtype=torch.float64, seed=0, blocks=BLOCKS):
    """Our model, with weights that no initialisation gives, and the oracle with the same ones."""
    tokens, labels = len(build_tokenizer(name)), len(task_info(name).labels)
    torch.manual_seed(seed)
    config = paper_config(tokens, labels, mask=variant, length=length, num_hidden_layers=blocks, **NO_DROPOUT)
    ours = SemFocusForSequenceClassification(config)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    ours = ours.to(dtype)
    oracle = PaperModel(tokens, labels, variant, length, blocks).to(dtype)
    for theirs, parameters in counterparts(ours, oracle).items():
        dict(oracle.named_parameters())[theirs].data = torch.cat([one.detach() for one in parameters]).clone()
    return ours, oracle


def counterparts(ours, oracle):
    """Names of the oracle's parameters, and ours that make them (embeddings are one table there)."""
    encoder, embeddings = ours.model.encoder, ours.model.embeddings
    extra = [] if embeddings.global_tokens is None else [embeddings.global_tokens.weight]
    found = {"embedding": [embeddings.tokens.weight, *extra]}
    for place, layer in enumerate(encoder.layers):
        for name in ("query", "key", "value", "output", "expand", "contract"):
            linear = getattr(layer.mlp if name in ("expand", "contract") else layer.attention, name)
            found[f"blocks.{place}.{name}_weight"] = [linear.weight]
            found[f"blocks.{place}.{name}_bias"] = [linear.bias]
    found["classifier_weight"], found["classifier_bias"] = [ours.classifier.weight], [ours.classifier.bias]
    assert found.keys() == dict(oracle.named_parameters()).keys()
    assert sum(map(len, found.values())) == len(list(ours.parameters()))  # nothing of ours is left over
    return found


def as_texts(given):
    """What a batch of ours holds, as lists without padding, and its labels."""
    ids = given["input_ids"]
    real = given.get("attention_mask", torch.ones_like(ids)).bool()
    return [row[keep].tolist() for row, keep in zip(ids, real, strict=True)], given["labels"].tolist()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=["fp32", "fp64"])
@pytest.mark.parametrize("variant", PAPER_VARIANTS)
def test_logits_and_gradients_are_the_papers(task, variant, dtype, tolerance):
    name, rows, length = task
    given = rows.batch(slice(0, 4))
    for seed in range(50):
        ours, oracle = pair(name, variant, length, dtype=dtype, seed=seed)
        texts, labels = as_texts(given)
        expected = oracle(texts)
        if oracle.gap > 10 * tolerance:  # else rounding may choose other keys
            break
    else:
        pytest.fail("every seed has scores within rounding of each other")
    output = ours.train()(**given)
    assert torch.allclose(output.logits, expected, atol=tolerance, rtol=0)
    output.loss.backward()
    cross_entropy(expected, labels).backward()
    theirs = dict(oracle.named_parameters())
    for where, parameters in counterparts(ours, oracle).items():
        grad = torch.cat([parameter.grad for parameter in parameters])
        assert theirs[where].grad.isfinite().all()
        assert (grad - theirs[where].grad).abs().max() <= tolerance, where
    assert torch.equal(ours.eval()(**given).logits, output.logits)


def test_the_weights_of_attention_are_those_of_the_variant(task):
    name, rows, length = task
    ours, _ = pair(name, "band:9+3global", length)
    given = rows.batch(slice(0, 4))
    plain = ours(**given)
    output = ours(**given, output_attentions=True)
    assert torch.equal(output.logits, plain.logits)
    ours.set_attn_implementation("eager")
    assert torch.allclose(ours(**given).logits, plain.logits, atol=1e-12)
    positions = -(-length // 9) * 9 + 3
    for weights in output.attentions:
        assert weights.shape == (4, 1, positions, positions)
        assert torch.allclose(weights.sum(-1), torch.ones(4, 1, positions, dtype=weights.dtype))
        assert ((weights > 0).sum(-1) == torch.tensor([12] * (positions - 3) + [positions] * 3)).all()


# initial weights


@pytest.fixture(scope="module")
def initial():
    """All initial weights of 20 models with global tokens, by parameter."""
    drawn = {}
    for seed in range(20):
        torch.manual_seed(seed)
        model = SemFocusForSequenceClassification(paper_config(30, 5, mask="band:5+3global"))
        for name, parameter in model.named_parameters():
            kind = name.split("layers.")[-1].partition(".")[2] if "layers." in name else name
            drawn.setdefault(kind, []).append(parameter.detach().flatten().double())
    return {kind: torch.cat(values).numpy() for kind, values in drawn.items()}


LINEAR = [f"attention.{name}" for name in ("query", "key", "value", "output")] + ["mlp.expand", "mlp.contract"]
BOUNDS = {
    "model.embeddings.tokens.weight": 0.1,
    "model.embeddings.global_tokens.weight": 0.1,
    "classifier.weight": 0.1,
    **{f"{name}.{part}": 1 / 8 for name in LINEAR for part in ("weight", "bias")},
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_initial_weights_are_uniform(initial, kind):
    values, bound = initial[kind], BOUNDS[kind]
    assert abs(values).max() <= bound
    assert stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3
    # The test can tell: a bound that is a tenth larger fails it.
    assert stats.kstest(values, stats.uniform(-1.1 * bound, 2.2 * bound).cdf).pvalue < 1e-3
    assert len(set(values.tolist())) > 0.95 * len(values)  # no weight is another one's copy


def test_no_other_parameter_and_a_classifier_without_bias_at_the_start(initial):
    assert set(initial) == {*BOUNDS, "classifier.bias"}
    assert not initial["classifier.bias"].any()


def test_the_padding_token_is_a_token_and_shared_weights_do_not_depend_on_the_variant():
    def weights(variant):
        torch.manual_seed(3)
        return SemFocusForSequenceClassification(paper_config(9, 2, mask=variant)).state_dict()

    full = weights("full")
    assert full["model.embeddings.tokens.weight"][0].any()
    for variant in PAPER_VARIANTS:
        assert same_tensors(full, {name: value for name, value in weights(variant).items() if name in full})


# training


def specification(name, mask, rows, **training):
    return RunSpec.from_dict(
        {
            "task": name, "mask": mask, "train_size": rows, "validation_size": 1, "test_size": 1,
            "training": {"batch_size": 4, "max_grad_norm": 0.5, "optimizer": "sgd", **training},
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("variant", "dtype", "tolerance"),
    [
        ("full", torch.float32, 1e-6),
        ("band:5+1global", torch.float32, 1e-6),
        ("topk:9", torch.float64, 1e-12),
        ("block:9+3global", torch.float64, 1e-12),
    ],
)
def test_epochs_of_the_trainer_are_epochs_of_a_plain_loop(task, variant, dtype, tolerance, tmp_path):
    name, rows, length = task
    ours, oracle = pair(name, variant, length, dtype=dtype)
    epochs, rate, decay, norm = 2, 0.5, 0.6, 0.5
    spec = specification(name, "full", 16, epochs=epochs, learning_rate=rate, lr_decay=decay)
    seen = []
    trainer = SemFocusTrainer(
        model=ours, args=training_arguments(spec, tmp_path), train_dataset=rows, lr_decay=spec.training.lr_decay,
        data_collator=lambda given: seen.append(given) or already_batched(given),
    )  # fmt: skip
    trainer.train()
    assert len(seen) == epochs * 4
    norms = []
    for step, given in enumerate(seen):
        texts, labels = as_texts(given)
        cross_entropy(oracle(texts), labels).backward()
        norms.append(sum(parameter.grad.square().sum().item() for parameter in oracle.parameters()) ** 0.5)
        sgd_step(oracle, rate * decay ** (step // 4), norm)
    assert max(norms) > norm  # some gradient was cut
    theirs = dict(oracle.named_parameters())
    for where, parameters in counterparts(ours, oracle).items():
        moved = torch.cat([parameter.detach() for parameter in parameters])
        assert (moved - theirs[where]).abs().max() <= tolerance, where


@pytest.mark.parametrize(
    ("name", "rate", "decay", "epochs"), [("even_pairs", 0.1, 0.9995, 100), ("listops", 1.0, 0.99, 200)]
)
def test_the_rate_of_each_step_is_the_papers(name, rate, decay, epochs, tmp_path):
    spec, model = preset("paper").spec(name, "topk:5", 0), make(SemFocusForSequenceClassification)
    trainer = SemFocusTrainer(model=model, args=training_arguments(spec, tmp_path), lr_decay=spec.training.lr_decay)
    trainer.create_optimizer_and_scheduler(epochs * 200)  # 5,000 rows in batches of 25
    for epoch in range(epochs):
        for _ in range(200):
            assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(rate * decay**epoch, rel=1e-12)
            trainer.optimizer.step()
            trainer.lr_scheduler.step()


# global tokens and attended padding in every head

FIELDS = {"num_global_tokens": 2, "attend_padding": True, "pad_to_multiple_of": 4, "mask": "banded:3;ends=shift"}
SOME_FIELDS = [FIELDS, {"num_global_tokens": 1, "mask": "topk:3", "first_norm_eps": 0.0, "final_norm": False}]
some_fields = pytest.mark.parametrize("fields", SOME_FIELDS, ids=["padded", "topk"])


@some_fields
@every_class
def test_global_tokens_are_saved_with_every_head(cls, fields, tmp_path):
    model, inputs = shuffled(make(cls, **fields)), labelled(cls, batch())
    expected = dict(model(**inputs))
    model.save_pretrained(tmp_path)
    loaded = AUTO[cls].from_pretrained(tmp_path)
    assert type(loaded) is cls
    assert same_tensors(loaded.state_dict(), model.state_dict())
    assert same_tensors(dict(loaded(**inputs)), expected)
    base = AutoModel.from_pretrained(tmp_path)
    assert type(base) is SemFocusModel
    states = model.base_model(**batch()).last_hidden_state
    assert torch.equal(base(**batch()).last_hidden_state, states)
    extra = model.config.padded_length(9) - 9
    assert states.shape[1] == 9 + extra
    if "logits" in expected and cls.__name__ != "SemFocusForSequenceClassification":
        assert expected["logits"].shape[1] == 9


@some_fields
@every_head
def test_gradient_checkpointing_and_weights_with_global_tokens(cls, fields):
    dropout = {"hidden_dropout": 0.1, "attention_dropout": 0.1, "mlp_dropout": 0.1}
    model, inputs = make(cls, **fields, **dropout).train(), labelled(cls, batch())
    torch.manual_seed(7)
    loss, plain = gradients(model, inputs)
    assert plain[next(name for name in plain if "global_tokens" in name)].any()
    torch.manual_seed(7)
    weighed, with_weights = gradients(model, inputs, output_attentions=True)
    model.activation_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(7)
    again_loss, again = gradients(model, inputs)
    assert loss == weighed == again_loss
    assert same_tensors(plain, with_weights)
    assert same_tensors(plain, again)


@some_fields
def test_global_tokens_see_all_and_are_seen_by_all(fields):
    model, inputs = make(SemFocusModel, **fields), batch()
    count, real = fields["num_global_tokens"], inputs["attention_mask"].bool()
    for weights in model(**inputs, output_attentions=True).attentions:
        for row in range(len(real)):
            seen = weights[row] > 0
            keys = real[row].nonzero().flatten() if not fields.get("attend_padding") else slice(None, -count)
            assert seen[:, -count:, -count:].all()
            assert seen[:, keys, -count:].all()
            assert seen[:, -count:, keys].all()


# older checkpoints


@pytest.mark.parametrize("name", ["post_norm", "pre_norm"])
def test_a_checkpoint_from_before_these_fields_answers_as_it_did(name):
    folder = Path(__file__).with_name("checkpoints") / name
    stored = json.loads((folder / "logits.json").read_text(encoding="utf-8"))
    assert "num_global_tokens" not in (folder / "config.json").read_text(encoding="utf-8")
    model, told = SemFocusForSequenceClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values())
    inputs = {key: torch.tensor(stored[key]) for key in ("input_ids", "attention_mask")}
    assert torch.allclose(model(**inputs).logits, torch.tensor(stored["logits"]), atol=1e-6)
