"""Checkpoints both ways between this package and transformers: the logits are the same."""

import importlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from statedual.layers import Mamba1Config, Mamba2Config
from statedual.models import LanguageModel, ModelConfig
from statedual.models.checkpoints import convert, load, save

transformers = pytest.importorskip("transformers")

D_MODEL, VOCABULARY = 32, 50
FAMILIES = {
    "mamba2": (transformers.Mamba2Config, transformers.Mamba2ForCausalLM),
    "mamba": (transformers.MambaConfig, transformers.MambaForCausalLM),
}
MAMBA2 = {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 16}
CASES: dict[str, dict[str, Any]] = {
    **{f"{groups} groups": {"n_groups": groups} for groups in (1, 2, 8)},
    "biases": {"use_bias": True, "n_groups": 2},
    "no bias of the convolution": {"use_conv_bias": False},
    "tied": {"tie_word_embeddings": True, "n_groups": 8},
    "sizes": {"expand": 3, "num_heads": 6, "head_dim": 16, "conv_kernel": 3, "num_hidden_layers": 3},
    "dt_limit": {"time_step_limit": (0.2, 0.9)},
    "dt_limit without end": {"time_step_limit": (0.2, math.inf)},
    "eps": {"layer_norm_epsilon": 0.1},
    "other ends of texts": {"eos_token_id": [2, 3], "pad_token_id": None},
}
MAMBA1_CASES: dict[str, dict[str, Any]] = {
    "as released": {},
    "untied": {"tie_word_embeddings": False},
    "biases": {"use_bias": True, "use_conv_bias": False},
    "sizes": {"state_size": 4, "time_step_rank": 5, "conv_kernel": 3, "expand": 1},
    "eps": {"layer_norm_epsilon": 0.1},
}
ALL = [("mamba2", name) for name in CASES] + [("mamba", name) for name in MAMBA1_CASES]


@pytest.fixture(autouse=True)
def _without_bars() -> Iterator[None]:
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def options(family: str, case: str) -> dict[str, Any]:
    given = MAMBA2 | CASES[case] if family == "mamba2" else MAMBA1_CASES[case]
    return {"hidden_size": D_MODEL, "num_hidden_layers": 2, "vocab_size": VOCABULARY, **given}


def theirs(family: str, case: str) -> Any:
    """Their model with parameters that can all be seen in the logits."""
    config, model = FAMILIES[family]
    made = model(config(**options(family, case))).eval()
    shake(made)
    return made


def shake(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Their initial matrices are large: with them a residual stream of 32 grows until nothing else is seen.
            if parameter.ndim > 1 and "A_log" not in name:
                parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[-1]))
            else:
                parameter.add_(0.3 * torch.randn_like(parameter))


def logits(model: torch.nn.Module, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids).logits


def difference(got: Tensor, truth: Tensor) -> float:
    assert got.shape == truth.shape
    return float((got.double() - truth.double()).norm() / truth.double().norm())


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (2, 37))


def stepped(model: LanguageModel, ids: Tensor) -> Tensor:
    """Token by token."""
    state, lines = model.init_state(len(ids)), []
    with torch.no_grad():
        for token in ids.T:
            line, state = model.step(token, state)
            lines.append(line)
    return torch.stack(lines, dim=1)


@pytest.mark.parametrize(("family", "case"), ALL)
def test_what_they_write_we_read(family: str, case: str, tmp_path: Path) -> None:
    model, ids = theirs(family, case), tokens()
    model.save_pretrained(tmp_path)
    ours, truth = load(tmp_path), logits(model, ids)
    assert difference(logits(ours, ids), truth) < 1e-5
    assert difference(stepped(ours, ids), truth) < 1e-5


@pytest.mark.parametrize(("family", "case"), ALL)
def test_what_we_write_they_read(family: str, case: str, tmp_path: Path) -> None:
    """Every tensor is what it was, nothing is initialised anew, and their configuration has the values it had."""
    config, model = FAMILIES[family]
    original, ids = theirs(family, case), tokens()
    original.save_pretrained(tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours", layout="transformers")
    again, info = model.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert isinstance(again.config, config)
    for name, tensor in original.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert difference(logits(again, ids), logits(original, ids)) < 1e-5
    given = options(family, case)
    for key in given.keys() - {"chunk_size", "eos_token_id", "pad_token_id"}:
        value = getattr(again.config, key)
        assert (tuple(value) if isinstance(value, list) else value) == given[key], key


OURS = {
    "Mamba-2": (Mamba2Config(d_state=8, head_dim=8, heads_b=2, heads_c=2),) * 2,
    "Mamba-2, B and C for every head": (Mamba2Config(d_state=8, head_dim=8, heads_b=None, heads_c=None),),
    "Mamba-2, limited": (Mamba2Config(d_state=8, head_dim=8, dt_limit=(0.1, math.inf), bias=True, conv_bias=False),),
    "Mamba-1": (Mamba1Config(d_state=4, bias=True),) * 2,
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", OURS)
def test_a_model_of_ours(name: str, tied: bool, tmp_path: Path) -> None:
    """Theirs has no padding of the vocabulary: its rows are tokens."""
    config = ModelConfig(
        d_model=D_MODEL, vocab_size=VOCABULARY, blocks=OURS[name], pad_vocab_size_multiple=16, tie_embeddings=tied
    )
    ours, ids = LanguageModel(config).eval(), tokens()
    shake(ours)
    save(ours, tmp_path / "new", layout="transformers")
    made = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert made.config.vocab_size == 64
    assert difference(logits(made, ids), logits(ours, ids)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Their A_log, D and dt_bias are rounded in the file, and ours are what the file has."""
    model, ids = theirs(family, next(iter(CASES if family == "mamba2" else MAMBA1_CASES))).to(dtype), tokens()
    model.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert ours.embedding.weight.dtype == dtype
    save(ours, tmp_path / "ours", layout="transformers")
    again = FAMILIES[family][1].from_pretrained(tmp_path / "ours")
    assert again.dtype == dtype
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert difference(logits(ours, ids), logits(model.float(), ids)) < 1e-2


@pytest.mark.parametrize("family", FAMILIES)
def test_shards(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = theirs(family, next(iter(CASES if family == "mamba2" else MAMBA1_CASES))), tokens()
    model.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    ours = load(tmp_path / "theirs")
    assert difference(logits(ours, ids), logits(model, ids)) < 1e-5
    module = importlib.import_module("statedual.models.checkpoints.save")

    monkeypatch.setattr(module, "SHARD_BYTES", 20_000)
    save(ours, tmp_path / "ours", layout="transformers")
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 1
    again = FAMILIES[family][1].from_pretrained(tmp_path / "ours")
    assert difference(logits(again, ids), logits(model, ids)) < 1e-5


def test_they_generate_from_what_convert_writes(tmp_path: Path) -> None:
    model = theirs("mamba2", "1 groups")
    model.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "state-spaces", layout="state-spaces")
    (tmp_path / "state-spaces" / "generation_config.json").write_text('{"eos_token_id": 7, "pad_token_id": 1}')
    convert(tmp_path / "state-spaces", tmp_path / "ours", layout="transformers", check=True)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert (again.config.eos_token_id, again.config.pad_token_id) == (7, 1)
    prompt = tokens()[:1]
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=7, pad_token_id=1)
    assert torch.equal(again.generate(prompt, max_new_tokens=8, do_sample=False), expected)


def test_their_legacy_spellings(tmp_path: Path) -> None:
    """The same model under the keys of version 4: torch_dtype, a bare Infinity, and time_step_limit null."""
    model, ids = theirs("mamba2", "2 groups"), tokens()
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    del values["dtype"]
    for limit in ([0.0, math.inf], None):
        path.write_text(json.dumps(values | {"torch_dtype": "float32", "time_step_limit": limit}))
        assert difference(logits(load(tmp_path), ids), logits(model, ids)) < 1e-5
