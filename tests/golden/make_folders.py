#!/usr/bin/env python3
"""Writes tests/golden/folders/: tiny model folders of every family, by a writer that is not keel.

    pip install safetensors==0.5.3 numpy && python3 tests/golden/make_folders.py

Tensor names and shapes are spelled out here, not taken from keel. Element i of a tensor is
((fnv1a32(name) + 7919 i) mod 255 - 127) / 128, which every stored dtype holds exactly; tests/ckpt/model_folder_test.cpp
computes the same.
"""
import json
import pathlib
import shutil

import numpy
import safetensors

OUT = pathlib.Path(__file__).parent / "folders"
V, H, L, I, A, K = 24, 16, 2, 20, 4, 2


def fnv1a32(text):
    h = 2166136261
    for byte in text.encode():
        h = ((h ^ byte) * 16777619) % 2**32
    return h


def values(name, shape):
    i = numpy.arange(int(numpy.prod(shape)), dtype=numpy.uint64)
    return (((fnv1a32(name) + i * 7919) % 255).astype(numpy.float32) - 127) / 128


def raw(dtype, x):
    if dtype == "float32":
        return x.astype("<f4").tobytes()
    if dtype == "float16":
        return x.astype("<f2").tobytes()
    return (x.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()  # bfloat16; the values are exact


def olmo2_tensors(d):
    out = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,), "lm_head.weight": (V, H)}
    for i in range(L):
        p = f"model.layers.{i}."
        out |= {
            p + "self_attn.q_proj.weight": (A * d, H), p + "self_attn.k_proj.weight": (K * d, H),
            p + "self_attn.v_proj.weight": (K * d, H), p + "self_attn.o_proj.weight": (H, A * d),
            p + "self_attn.q_norm.weight": (A * d,), p + "self_attn.k_norm.weight": (K * d,),
            p + "post_attention_layernorm.weight": (H,), p + "post_feedforward_layernorm.weight": (H,),
            p + "mlp.gate_proj.weight": (I, H), p + "mlp.up_proj.weight": (I, H), p + "mlp.down_proj.weight": (H, I),
        }
    return out


def phi3_tensors(d):
    out = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,), "lm_head.weight": (V, H)}
    for i in range(L):
        p = f"model.layers.{i}."
        out |= {
            p + "input_layernorm.weight": (H,), p + "post_attention_layernorm.weight": (H,),
            p + "self_attn.qkv_proj.weight": ((A + 2 * K) * d, H), p + "self_attn.o_proj.weight": (H, A * d),
            p + "mlp.gate_up_proj.weight": (2 * I, H), p + "mlp.down_proj.weight": (H, I),
        }
    return out


def tensors(d, tied=False, bias=False, qk_norm=False):
    out = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)}
    if not tied:
        out["lm_head.weight"] = (V, H)
    for i in range(L):
        p = f"model.layers.{i}."
        out |= {
            p + "input_layernorm.weight": (H,), p + "post_attention_layernorm.weight": (H,),
            p + "self_attn.q_proj.weight": (A * d, H), p + "self_attn.k_proj.weight": (K * d, H),
            p + "self_attn.v_proj.weight": (K * d, H), p + "self_attn.o_proj.weight": (H, A * d),
            p + "mlp.gate_proj.weight": (I, H), p + "mlp.up_proj.weight": (I, H), p + "mlp.down_proj.weight": (H, I),
        }
        if bias:
            out |= {p + "self_attn.q_proj.bias": (A * d,), p + "self_attn.k_proj.bias": (K * d,),
                    p + "self_attn.v_proj.bias": (K * d,)}
        if qk_norm:
            out |= {p + "self_attn.q_norm.weight": (d,), p + "self_attn.k_norm.weight": (d,)}
    return out


def write(name, dtype, config, shapes, shards=1):
    folder = OUT / name
    folder.mkdir(parents=True)
    config = {"vocab_size": V, "hidden_size": H, "num_hidden_layers": L, "intermediate_size": I,
              "num_attention_heads": A, "num_key_value_heads": K, "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 512,
              "use_cache": True, "transformers_version": "4.51.0", "bos_token_id": 1} | config
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    names = list(shapes)
    weight_map, total = {}, 0
    for s in range(shards):
        part = names[s * len(names) // shards:(s + 1) * len(names) // shards]
        file = "model.safetensors" if shards == 1 else f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        data = {n: {"dtype": dtype, "shape": list(shapes[n]), "data": raw(dtype, values(n, shapes[n]))} for n in part}
        safetensors.serialize_file(data, str(folder / file), {"format": "pt"})
        total += sum(len(t["data"]) for t in data.values())
        weight_map |= {n: file for n in part}
    if shards > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


shutil.rmtree(OUT, ignore_errors=True)
write("llama", "float32", {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "float32", "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    "attention_dropout": 0.0, "pretraining_tp": 1, "eos_token_id": [2, 3],
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 64, "rope_type": "llama3"}}, tensors(4))
write("smollm2", "bfloat16", {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
    "rope_theta": 100000, "rope_interleaved": False, "rope_scaling": None, "is_llama_config": True,
    "tie_word_embeddings": True, "eos_token_id": 2, "pad_token_id": 2}, tensors(4, tied=True))
write("mistral", "float16", {
    "model_type": "mistral", "architectures": ["MistralForCausalLM"], "dtype": "float16", "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}, "sliding_window": 6, "head_dim": None,
    "eos_token_id": 2}, tensors(4))
write("qwen2", "bfloat16", {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": False, "max_window_layers": 2,
    "tie_word_embeddings": False, "eos_token_id": 2}, tensors(4, bias=True), shards=2)
write("qwen3", "bfloat16", {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "dtype": "bfloat16", "rms_norm_eps": 1e-6,
    "head_dim": 8, "attention_bias": False, "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "layer_types": ["full_attention"] * L, "sliding_window": None, "use_sliding_window": False,
    "tie_word_embeddings": True, "eos_token_id": 2}, tensors(8, tied=True, qk_norm=True))
write("olmo2", "bfloat16", {
    "model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "torch_dtype": "bfloat16", "rms_norm_eps": 1e-6,
    "rope_theta": 500000, "rope_scaling": None, "attention_bias": False, "tie_word_embeddings": False,
    "pad_token_id": 2, "eos_token_id": 2}, olmo2_tensors(4))
write("phi3", "bfloat16", {
    "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "torch_dtype": "bfloat16", "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "su", "short_factor": [1.25], "long_factor": [4.5]},
    "sliding_window": 47, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_bias": False, "tie_word_embeddings": False,
    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}, "eos_token_id": 2}, phi3_tensors(4), shards=2)
