"""Checkpoints of others made by hand, from the tables of their formats, and a plain model that runs them in float64."""

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

Tensors = dict[str, Tensor]
D_MODEL, VOCABULARY, ROWS = 32, 50, 64

MAMBA2 = {"layer": "Mamba2", "d_state": 8, "headdim": 8}
ATTENTION = {
    "causal": True,
    "d_conv": 4,
    "head_dim": 8,
    "num_heads": 6,
    "num_heads_kv": 2,
    "out_proj_bias": False,
    "qkv_proj_bias": False,
    "rotary_emb_dim": 4,
}


def state_spaces_config(**changed: Any) -> dict[str, Any]:
    """As config.json of the released models has it, smaller."""
    return {
        "d_model": D_MODEL,
        "d_intermediate": 0,
        "n_layer": 2,
        "vocab_size": VOCABULARY,
        "ssm_cfg": MAMBA2,
        "attn_layer_idx": [],
        "attn_cfg": {},
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 16,
        "tie_embeddings": True,
    } | changed


def state_spaces_tensors(config: dict[str, Any]) -> Tensors:
    """What the state dict of mamba_ssm's model has for ``config``: the head by its own name, tied or not."""
    d, rows = config["d_model"], -(-config["vocab_size"] // config["pad_vocab_size_multiple"])
    rows *= config["pad_vocab_size_multiple"]
    shapes = {"backbone.embedding.weight": (rows, d), "backbone.norm_f.weight": (d,), "lm_head.weight": (rows, d)}
    for i in range(config["n_layer"]):
        layer = f"backbone.layers.{i}."
        if i in config["attn_layer_idx"]:
            mixer = attention_shapes(d, **config["attn_cfg"])
        elif config["ssm_cfg"].get("layer", "Mamba1") == "Mamba2":
            mixer = mamba2_shapes(d, **config["ssm_cfg"])
        else:
            mixer = mamba1_shapes(d, **config["ssm_cfg"])
        shapes[f"{layer}norm.weight"] = (d,)
        shapes |= {f"{layer}mixer.{name}": shape for name, shape in mixer.items()}
        if hidden := -(-config["d_intermediate"] // 128) * 128:
            shapes[f"{layer}norm2.weight"] = (d,)
            shapes |= {f"{layer}mlp.fc1.weight": (2 * hidden, d), f"{layer}mlp.fc2.weight": (d, hidden)}
    tensors = {name: random(name, shape) for name, shape in shapes.items()}
    if config["tie_embeddings"]:
        tensors["lm_head.weight"] = tensors["backbone.embedding.weight"]
    return tensors


def random(name: str, shape: tuple[int, ...]) -> Tensor:
    """Values with which every parameter can be seen in the logits."""
    if name.endswith(("A_log", "dt_bias", "dt_proj.bias")):
        return torch.rand(shape) - (0.5 if "A_log" in name else 1.5)
    if len(shape) == 1:
        return torch.rand(shape) + (0.5 if name.endswith(("norm.weight", "D", "norm2.weight", "norm_f.weight")) else 0)
    return torch.randn(shape) / math.sqrt(shape[-1])


def mamba2_shapes(
    d: int,
    *,
    layer: str = "Mamba2",  # noqa: ARG001
    d_state: int = 128,
    d_conv: int = 4,
    expand: int = 2,
    headdim: int = 64,
    d_ssm: int | None = None,
    ngroups: int = 1,
    D_has_hdim: bool = False,
    rmsnorm: bool = True,
    bias: bool = False,
    conv_bias: bool = True,
    **_: Any,
) -> dict[str, tuple[int, ...]]:
    inner = expand * d
    ssm = d_ssm or inner
    heads, channels = ssm // headdim, ssm + 2 * ngroups * d_state
    shapes: dict[str, tuple[int, ...]] = {
        "dt_bias": (heads,),
        "A_log": (heads,),
        "D": (ssm if D_has_hdim else heads,),
        "in_proj.weight": (2 * inner + 2 * ngroups * d_state + heads, d),
        "conv1d.weight": (channels, 1, d_conv),
        "out_proj.weight": (d, inner),
    }
    shapes |= {"in_proj.bias": shapes["in_proj.weight"][:1], "out_proj.bias": (d,)} if bias else {}
    shapes |= {"conv1d.bias": (channels,)} if conv_bias else {}
    return shapes | ({"norm.weight": (ssm,)} if rmsnorm else {})


def mamba1_shapes(
    d: int,
    *,
    layer: str = "Mamba1",  # noqa: ARG001
    d_state: int = 16,
    d_conv: int = 4,
    expand: int = 2,
    dt_rank: int | str = "auto",
    conv_bias: bool = True,
    bias: bool = False,
    **_: Any,
) -> dict[str, tuple[int, ...]]:
    inner, rank = expand * d, -(-d // 16) if dt_rank == "auto" else int(dt_rank)
    shapes: dict[str, tuple[int, ...]] = {
        "A_log": (inner, d_state),
        "D": (inner,),
        "in_proj.weight": (2 * inner, d),
        "conv1d.weight": (inner, 1, d_conv),
        "x_proj.weight": (rank + 2 * d_state, inner),
        "dt_proj.weight": (inner, rank),
        "dt_proj.bias": (inner,),
        "out_proj.weight": (d, inner),
    }
    shapes |= {"in_proj.bias": (2 * inner,), "out_proj.bias": (d,)} if bias else {}
    return shapes | ({"conv1d.bias": (inner,)} if conv_bias else {})


def attention_shapes(
    d: int,
    *,
    num_heads: int,
    num_heads_kv: int | None = None,
    head_dim: int | None = None,
    qkv_proj_bias: bool = True,
    out_proj_bias: bool = True,
    d_conv: int = 0,
    **_: Any,
) -> dict[str, tuple[int, ...]]:
    size = head_dim or d // num_heads
    qkv = size * (num_heads + 2 * (num_heads_kv or num_heads))
    shapes: dict[str, tuple[int, ...]] = {"in_proj.weight": (qkv, d), "out_proj.weight": (d, size * num_heads)}
    shapes |= {"in_proj.bias": (qkv,)} if qkv_proj_bias else {}
    shapes |= {"out_proj.bias": (d,)} if out_proj_bias else {}
    return shapes | ({"conv1d.weight": (qkv, 1, d_conv), "conv1d.bias": (qkv,)} if d_conv else {})


def codestral_config(**changed: Any) -> dict[str, Any]:
    """params.json."""
    return {
        "dim": D_MODEL,
        "n_layers": 2,
        "vocab_size": ROWS,
        "n_groups": 2,
        "rms_norm": True,
        "residual_in_fp32": True,
        "fused_add_norm": True,
        "pad_vocab_size_multiple": 1,
        "tie_embeddings": False,
        "model_type": "mamba",
    } | changed


def transformers_config(**changed: Any) -> dict[str, Any]:
    """As transformers 5 writes it for mamba2."""
    return {
        "architectures": ["Mamba2ForCausalLM"],
        "bos_token_id": 0,
        "chunk_size": 256,
        "conv_kernel": 4,
        "dtype": "float32",
        "eos_token_id": 2,
        "expand": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": D_MODEL,
        "initializer_range": 0.1,
        "layer_norm_epsilon": 1e-05,
        "model_type": "mamba2",
        "n_groups": 1,
        "num_heads": 8,
        "num_hidden_layers": 2,
        "pad_token_id": 1,
        "rescale_prenorm_residual": False,
        "residual_in_fp32": True,
        "state_size": 8,
        "tie_word_embeddings": False,
        "time_step_floor": 0.0001,
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
        "time_step_max": 0.1,
        "time_step_min": 0.001,
        "time_step_rank": 2,
        "transformers_version": "5.23.0",
        "use_bias": False,
        "use_cache": True,
        "use_conv_bias": True,
        "vocab_size": ROWS,
    } | changed


def transformers_tensors(kind: str = "mamba2", **ssm: Any) -> Tensors:
    """The same tensors; "embeddings" has an s."""
    layer = MAMBA2 if kind == "mamba2" else {"layer": "Mamba1"}
    config = state_spaces_config(tie_embeddings=False, ssm_cfg=layer | ssm)
    return {name.replace("embedding.", "embeddings."): t for name, t in state_spaces_tensors(config).items()}


def write(folder: Path, config: dict[str, Any], tensors: Tensors, weights: str = "model.safetensors") -> Path:
    """A checkpoint. ``weights`` ending in .bin is a file of torch.save."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "params.json" if "dim" in config else "config.json"
    (folder / name).write_text(json.dumps(config))
    if weights.endswith(".bin"):
        torch.save(tensors, folder / weights)
    else:
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / weights)
    return folder


def write_shards(folder: Path, config: dict[str, Any], tensors: Tensors, suffix: str) -> Path:
    """Three shards and their index."""
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    weight_map = {}
    for number in range(3):
        name = f"{stem}-0000{number + 1}-of-00003.{suffix}"
        shard = dict(list(tensors.items())[number::3])
        write(folder, config, shard, name)
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return folder


def reference(config: dict[str, Any], tensors: Tensors, ids: Tensor) -> Tensor:
    """Logits of mamba_ssm's model for ``config``, token by token, in float64."""
    t = {name: tensor.double() for name, tensor in tensors.items()}
    residual = t["backbone.embedding.weight"][ids]
    for i in range(config["n_layer"]):
        layer = {name[len(p) :]: v for name, v in t.items() if name.startswith(p := f"backbone.layers.{i}.")}
        mixer = {name[6:]: value for name, value in layer.items() if name.startswith("mixer.")}
        u = rms(residual) * layer["norm.weight"]
        if i in config["attn_layer_idx"]:
            y = attention(u, mixer, **config["attn_cfg"])
        elif "dt_bias" in mixer:
            y = mamba2(u, mixer, **config["ssm_cfg"])
        else:
            y = mamba1(u, mixer)
        residual = residual + y
        if config["d_intermediate"]:
            value, gate = ((rms(residual) * layer["norm2.weight"]) @ layer["mlp.fc1.weight"].T).chunk(2, dim=-1)
            residual = residual + (value * functional.silu(gate)) @ layer["mlp.fc2.weight"].T
    return (rms(residual) * t["backbone.norm_f.weight"]) @ t["lm_head.weight"].T


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def linear(x: Tensor, mixer: Tensors, name: str) -> Tensor:
    return x @ mixer[f"{name}.weight"].T + mixer.get(f"{name}.bias", torch.zeros(()))


def convolve(x: Tensor, mixer: Tensors) -> Tensor:
    weight = mixer["conv1d.weight"][:, 0]
    past = functional.pad(x, (0, 0, weight.shape[1] - 1, 0))
    y = sum(past[:, j : j + x.shape[1]] * weight[:, j] for j in range(weight.shape[1]))
    return y + mixer.get("conv1d.bias", torch.zeros(()))


def mamba2(
    u: Tensor,
    mixer: Tensors,
    *,
    headdim: int = 64,
    ngroups: int = 1,
    norm_before_gate: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **_: Any,
) -> Tensor:
    batch, time, _ = u.shape
    heads, inner = len(mixer["A_log"]), mixer["out_proj.weight"].shape[1]
    ssm = heads * headdim
    bc = (len(mixer["conv1d.weight"]) - ssm) // 2
    z0, x0, z, xbc, dt = linear(u, mixer, "in_proj").split([inner - ssm, inner - ssm, ssm, ssm + 2 * bc, heads], -1)
    x, b, c = functional.silu(convolve(xbc, mixer)).split([ssm, bc, bc], -1)
    x = x.unflatten(-1, (heads, headdim))
    b, c = (v.unflatten(-1, (ngroups, -1)).repeat_interleave(heads // ngroups, 2) for v in (b, c))
    dt = functional.softplus(dt + mixer["dt_bias"]).clamp(*dt_limit)
    decay = (dt * -mixer["A_log"].exp()).exp()
    state, ys = torch.zeros(batch, heads, headdim, b.shape[-1], dtype=u.dtype), []
    for s in range(time):
        state = decay[:, s, :, None, None] * state
        state = state + (dt[:, s, :, None] * x[:, s])[..., None] * b[:, s, :, None]
        ys.append((state * c[:, s, :, None]).sum(-1))
    y = torch.stack(ys, 1) + (mixer["D"].view(heads, -1) * x)
    y, gate = y.flatten(2), functional.silu(z)
    if "norm.weight" not in mixer:
        y = y * gate
    elif norm_before_gate:
        y = rms(y.unflatten(-1, (ngroups, -1))).flatten(2) * mixer["norm.weight"] * gate
    else:
        y = rms((y * gate).unflatten(-1, (ngroups, -1))).flatten(2) * mixer["norm.weight"]
    return linear(torch.cat([functional.silu(z0) * x0, y], -1), mixer, "out_proj")


def mamba1(u: Tensor, mixer: Tensors) -> Tensor:
    x, z = linear(u, mixer, "in_proj").chunk(2, -1)
    x = functional.silu(convolve(x, mixer))
    n = mixer["A_log"].shape[1]
    low, b, c = linear(x, mixer, "x_proj").split([mixer["dt_proj.weight"].shape[1], n, n], -1)
    dt = functional.softplus(linear(low, mixer, "dt_proj"))
    state, ys = torch.zeros(len(u), x.shape[-1], n, dtype=u.dtype), []
    for s in range(u.shape[1]):
        state = (dt[:, s, :, None] * -mixer["A_log"].exp()).exp() * state
        state = state + (dt[:, s] * x[:, s])[..., None] * b[:, s, None]
        ys.append((state * c[:, s, None]).sum(-1) + mixer["D"] * x[:, s])
    return linear(torch.stack(ys, 1) * functional.silu(z), mixer, "out_proj")


def attention(
    u: Tensor,
    mixer: Tensors,
    *,
    num_heads: int,
    num_heads_kv: int | None = None,
    rotary_emb_dim: int = 0,
    rotary_emb_base: float = 10000.0,
    softmax_scale: float | None = None,
    **_: Any,
) -> Tensor:
    kv = num_heads_kv or num_heads
    qkv = linear(u, mixer, "in_proj")
    qkv = convolve(qkv, mixer) if "conv1d.weight" in mixer else qkv
    heads = qkv.unflatten(-1, (num_heads + 2 * kv, -1)).transpose(1, 2)
    q, k, v = heads.split([num_heads, kv, kv], 1)
    q, k = (turn(part, rotary_emb_dim, rotary_emb_base) for part in (q, k))
    k, v = (part.repeat_interleave(num_heads // kv, 1) for part in (k, v))
    scores = q @ k.mT * (softmax_scale or q.shape[-1] ** -0.5)
    future = torch.ones(u.shape[1], u.shape[1]).triu(1).bool()
    return linear((scores.masked_fill(future, -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(2), mixer, "out_proj")


def turn(x: Tensor, dim: int, base: float) -> Tensor:
    """Entry j of the first ``dim`` with entry j + dim/2, by the angle position * base^(-2j/dim)."""
    if not dim:
        return x
    half = dim // 2
    angle = torch.arange(x.shape[-2])[:, None].double() * base ** (-torch.arange(half).double() / half)
    one, two, rest = x.split([half, half, x.shape[-1] - dim], -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([one * cos - two * sin, one * sin + two * cos, rest], -1)


def tokens(batch: int = 2, time: int = 21) -> Tensor:
    return torch.randint(VOCABULARY, (batch, time))


def difference(got: Tensor, truth: Tensor) -> float:
    """||got - truth|| / ||truth||."""
    assert got.shape == truth.shape
    return float((got.double() - truth.double()).norm() / truth.double().norm())


def told(error: BaseException | str, *words: Any) -> None:
    """The message has all of ``words``."""
    for word in words:
        assert re.search(re.escape(str(word)), str(error)), (str(word), str(error))
