"""Loading as a whole: which layout it is, dtypes, heads, every broken folder, memory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_examples import (
    D_MODEL,
    MAMBA2,
    difference,
    state_spaces_config,
    state_spaces_tensors,
    tokens,
    told,
    transformers_config,
    transformers_tensors,
    write,
    write_shards,
)
from safetensors.torch import save_file
from torch import Tensor

from statedual.models import LanguageModel
from statedual.models.checkpoints import load

KINDS = ("model.safetensors", "pytorch_model.bin")
FIRST = "backbone.layers.0.mixer."


def checkpoint(folder: Path, tensors: dict[str, Tensor], weights: str = KINDS[0], **changed: Any) -> Path:
    return write(folder, transformers_config(**changed), tensors, weights)


def refused(folder: Path, *words: Any) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        load(folder)
    told(raised.value, *words)


def logits(model: LanguageModel, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model(ids).logits


def test_a_model_is_ready_for_use(tmp_path: Path) -> None:
    model = load(checkpoint(tmp_path, transformers_tensors()))
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())
    assert torch.is_grad_enabled()
    model(tokens()).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("weights", [*KINDS, "consolidated.safetensors", "safetensors", "bin"])
def test_every_container(weights: str, tmp_path: Path) -> None:
    tensors, ids = transformers_tensors(), tokens()
    expected = logits(load(checkpoint(tmp_path / "one", tensors)), ids)
    if "." in weights:
        checkpoint(tmp_path / "other", tensors, weights)
    else:
        write_shards(tmp_path / "other", transformers_config(), tensors, weights)
    assert difference(logits(load(str(tmp_path / "other")), ids), expected) < 1e-6


@pytest.mark.parametrize("file_dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(file_dtype: torch.dtype, dtype: torch.dtype | None, tmp_path: Path) -> None:
    """Decays and the skip have float32 at least, whatever they have in the file."""
    tensors = {name: tensor.to(file_dtype) for name, tensor in transformers_tensors().items()}
    model = load(checkpoint(tmp_path, tensors), dtype=dtype)
    narrow = dtype or file_dtype
    wide = torch.promote_types(narrow, torch.float32)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == (wide if name.endswith(("A_log", "dt_bias", ".D")) else narrow), name
    a_log = model.get_parameter("blocks.0.mixer.A_log")
    assert torch.equal(a_log, tensors[f"{FIRST}A_log"].to(wide))
    assert torch.equal(model.get_parameter("norm.weight"), tensors["backbone.norm_f.weight"].to(narrow))


def test_matrices_decide_which_dtype_is_kept(tmp_path: Path) -> None:
    """Norms and biases may be float32 beside bfloat16 matrices. (That of a step size is kept anyhow.)"""
    tensors = {
        name: tensor if tensor.ndim == 1 or "A_log" in name else tensor.to(torch.bfloat16)
        for name, tensor in transformers_tensors("mamba").items()
    }
    config = {"model_type": "mamba", "hidden_size": D_MODEL, "num_hidden_layers": 2, "vocab_size": 64}
    model = load(write(tmp_path, config | {"tie_word_embeddings": False}, tensors))
    assert model.embedding.weight.dtype == torch.bfloat16
    assert model.norm.weight.dtype == torch.bfloat16
    assert model.get_parameter("blocks.0.mixer.A_log").dtype == torch.float32


def test_matrices_of_several_dtypes_lose_nothing(tmp_path: Path) -> None:
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in transformers_tensors().items()}
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.float16)
    assert load(checkpoint(tmp_path, tensors)).embedding.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.complex64])
def test_a_wrong_dtype_is_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected one of torch\.float64"):
        load(checkpoint(tmp_path, transformers_tensors()), dtype=dtype)


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_name_of_a_dtype_is_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dtype is 'bfloat16', expected one of"):
        load(checkpoint(tmp_path, transformers_tensors()), dtype="bfloat16")  # type: ignore[arg-type]


def test_device(tmp_path: Path) -> None:
    model = load(checkpoint(tmp_path, transformers_tensors()), device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("present", [True, False])
def test_a_tied_head_may_be_in_the_file_or_not(present: bool, weights: str, tmp_path: Path) -> None:
    tensors = transformers_tensors()
    tensors["lm_head.weight"] = tensors["backbone.embeddings.weight"]
    if not present:
        del tensors["lm_head.weight"]
    model = load(checkpoint(tmp_path, tensors, weights, tie_word_embeddings=True))
    assert model.head is None


@pytest.mark.parametrize("rows", [64, 63])
def test_a_tied_head_that_differs_is_refused(rows: int, tmp_path: Path) -> None:
    tensors = transformers_tensors() | {"lm_head.weight": torch.randn(rows, D_MODEL)}
    checkpoint(tmp_path, tensors, tie_word_embeddings=True)
    refused(tmp_path, "'lm_head.weight'", "differs", "'backbone.embeddings.weight'", tmp_path / "config.json")


def test_an_untied_head_does_not_share_what_a_file_stores_once(tmp_path: Path) -> None:
    """mamba_ssm writes so: training one must not change the other."""
    config = state_spaces_config()
    tensors = state_spaces_tensors(config)
    model = load(write(tmp_path, config | {"tie_embeddings": False}, tensors, KINDS[1]))
    assert model.head is not None
    assert torch.equal(model.head.weight, model.embedding.weight)
    with torch.no_grad():
        model.head.weight.zero_()
    assert model.embedding.weight.any()


def test_a_head_without_its_tensor_is_refused(tmp_path: Path) -> None:
    tensors = transformers_tensors()
    del tensors["lm_head.weight"]
    refused(checkpoint(tmp_path, tensors), tmp_path, "lacks the tensor 'lm_head.weight'", "config.json")


@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("name", ["backbone.norm_f.weight", f"{FIRST}D", "backbone.layers.1.mixer.conv1d.bias"])
def test_a_missing_tensor(name: str, weights: str, tmp_path: Path) -> None:
    tensors = transformers_tensors()
    del tensors[name]
    refused(checkpoint(tmp_path, tensors, weights), tmp_path, f"lacks the tensor {name!r}")


@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize("name", [f"{FIRST}in_proj.bias", "backbone.layers.0.mlp.fc1.weight", "step"])
def test_an_unexpected_tensor(name: str, weights: str, tmp_path: Path) -> None:
    tensors = transformers_tensors() | {name: torch.zeros(144)}
    refused(checkpoint(tmp_path, tensors, weights), tmp_path / weights, f"{name!r}", "has no place")


@pytest.mark.parametrize("weights", KINDS)
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("backbone.layers.1.mixer.in_proj.weight", (152, 31)),
        ("backbone.layers.1.mixer.A_log", (9,)),
        ("backbone.layers.1.mixer.conv1d.weight", (80, 1, 3)),
        (f"{FIRST}D", (8, 1)),
        ("backbone.norm_f.weight", (33,)),
        ("lm_head.weight", (65, D_MODEL)),
    ],
)
def test_a_tensor_of_the_wrong_shape(name: str, shape: tuple[int, ...], weights: str, tmp_path: Path) -> None:
    tensors = transformers_tensors() | {name: torch.zeros(shape)}
    refused(checkpoint(tmp_path, tensors, weights), f"tensor {name!r} in {tmp_path / weights}", f"has shape {shape}")


def test_an_embedding_of_another_width(tmp_path: Path) -> None:
    tensors = transformers_tensors() | {"backbone.embeddings.weight": torch.zeros(64, 16)}
    refused(checkpoint(tmp_path, tensors), "has shape")


def test_a_layer_that_lacks_everything(tmp_path: Path) -> None:
    tensors = {n.replace("layers.1.", "layers.2."): tensor for n, tensor in transformers_tensors().items()}
    refused(checkpoint(tmp_path, tensors), "lacks the tensor 'backbone.layers.1.norm.weight'")


@pytest.mark.parametrize("weights", KINDS)
def test_a_truncated_file(weights: str, tmp_path: Path) -> None:
    file = checkpoint(tmp_path, transformers_tensors(), weights) / weights
    file.write_bytes(file.read_bytes()[:-64])
    refused(tmp_path, file)


def test_an_a_that_is_positive_is_refused(tmp_path: Path) -> None:
    tensors = {n.replace("A_log", "A"): tensor.abs() for n, tensor in transformers_tensors().items()}
    refused(checkpoint(tmp_path, tensors), f"'{FIRST}A'", "not below 0")


def test_an_empty_folder(tmp_path: Path) -> None:
    refused(tmp_path, tmp_path, "config.json", "params.json")


def test_a_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(transformers_config()))
    refused(tmp_path, tmp_path, "holds no weights")


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent does not exist"):
        load(tmp_path / "absent")


@pytest.mark.parametrize("content", ["", "{", "[]", '"mamba2"'])
def test_a_broken_configuration(content: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, transformers_tensors())
    (tmp_path / "config.json").write_text(content)
    refused(tmp_path, tmp_path / "config.json")


@pytest.mark.parametrize("config", [{}, {"hidden_size": 32}, {"d_model": 32}, {"dim": 32}])
def test_a_configuration_of_no_known_layout(config: dict[str, Any], tmp_path: Path) -> None:
    save_file(transformers_tensors(), tmp_path / KINDS[0])
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(tmp_path, tmp_path / "config.json", "no known layout", "'mamba2'", "d_model and n_layer", "n_layers")


def test_another_familys_keys_do_not_make_it_state_spaces(tmp_path: Path) -> None:
    config = state_spaces_config() | {"model_type": "jamba"}
    write(tmp_path, config, state_spaces_tensors(state_spaces_config()))
    refused(tmp_path, "model_type is 'jamba'")


def test_the_original_keys_win_where_they_name_the_layer(tmp_path: Path) -> None:
    """A program may have written its defaults, here 8 groups, beside the keys of mamba_ssm."""
    config = transformers_config(n_groups=8, hidden_size=4096) | state_spaces_config(ssm_cfg=MAMBA2)
    model = load(write(tmp_path, config, state_spaces_tensors(state_spaces_config())))
    assert model.config.blocks[0].heads_b == 1
    assert model.config.tie_embeddings


MEMORY = """
import sys, torch
from statedual.models.checkpoints import load
torch.set_num_threads(1)

def own_bytes():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) * 1024

load(sys.argv[1])  # what happens once
before = own_bytes()
model = load(sys.argv[2])
with torch.no_grad():
    model(torch.zeros(1, 3, dtype=torch.int64), last_only=True)
print(own_bytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("weights", KINDS)
def test_weights_are_not_copied(weights: str, tmp_path: Path) -> None:
    """A model and a pass take less memory of their own than a tenth of the weights, which are those of the file."""
    checkpoint(tmp_path / "small", transformers_tensors(), weights)
    tensors, rows = transformers_tensors(), 200_000
    tensors |= {"backbone.embeddings.weight": torch.zeros(rows, D_MODEL), "lm_head.weight": torch.zeros(rows, D_MODEL)}
    checkpoint(tmp_path / "large", tensors, weights, vocab_size=rows)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "small"), str(tmp_path / "large")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 0.1 * 2 * rows * D_MODEL * 4
