"""Compares make_models.py with independent implementations of the same models: the classes of `transformers` (a
document at a time, so that packing is checked as well) and torch.optim.AdamW. Run by `make_models.py --cross-check`.

The library computes norms, angles and softmax in float32 whatever the model's type. Here "float32" means double while
its code runs, so that what is compared is the mathematics and not the rounding.
"""
import contextlib

import torch

import make_models as ours


@contextlib.contextmanager
def float_is_double():
    names = ("float32", "float")
    saved = {name: getattr(torch, name) for name in names}, torch.Tensor.float
    try:
        for name in names:
            setattr(torch, name, torch.float64)
        torch.Tensor.float = torch.Tensor.double
        yield
    finally:
        for name in names:
            setattr(torch, name, saved[0][name])
        torch.Tensor.float = saved[1]


def library_class(m):
    import transformers as t

    if m.get("post_norm"):
        return t.Olmo2Config, t.Olmo2ForCausalLM
    if m.get("rope_scaling") == "longrope":
        return t.Phi3Config, t.Phi3ForCausalLM
    if m["qkv_bias"]:
        return t.Qwen2Config, t.Qwen2ForCausalLM
    if m["qk_norm"]:
        return t.Qwen3Config, t.Qwen3ForCausalLM
    if m["window"]:
        return t.MistralConfig, t.MistralForCausalLM
    return t.LlamaConfig, t.LlamaForCausalLM


def library_config(m, config_class):
    rope = {"rope_type": "default", "rope_theta": m["rope_base"]}
    if m.get("rope_scaling") == "llama3":
        rope.update(rope_type="llama3", factor=m["rope_factor"], low_freq_factor=m["rope_low_freq_factor"],
                    high_freq_factor=m["rope_high_freq_factor"],
                    original_max_position_embeddings=int(m["rope_original_max_position"]))
    if m.get("rope_scaling") == "yarn":
        rope.update(rope_type="yarn", factor=m["rope_factor"], beta_fast=m["rope_beta_fast"],
                    beta_slow=m["rope_beta_slow"],
                    original_max_position_embeddings=int(m["rope_original_max_position"]))
    if m.get("rope_scaling") == "longrope":
        rope.update(rope_type="longrope", factor=m["rope_factor"], short_factor=m["rope_short_factors"],
                    long_factor=m["rope_long_factors"], partial_rotary_factor=m["rope_fraction"],
                    original_max_position_embeddings=int(m["rope_original_max_position"]))
    extra = {"sliding_window": m["window"] or None} if m["window"] else {}
    if m.get("rope_scaling") == "longrope":  # the class looks for it here, too
        extra["original_max_position_embeddings"] = int(m["rope_original_max_position"])
    config = config_class(
        vocab_size=m["vocab"], hidden_size=m["hidden"], num_hidden_layers=m["layers"], head_dim=m["head_dim"],
        num_attention_heads=m["heads"], num_key_value_heads=m["kv_heads"], intermediate_size=m["ffn"],
        rms_norm_eps=m["norm_eps"], rope_parameters=rope, tie_word_embeddings=bool(m["tied"]),
        max_position_embeddings=int(m["rope_original_max_position"] * m["rope_factor"]) if
        m.get("rope_scaling") == "longrope" else 1024, use_cache=False, bos_token_id=0, eos_token_id=1, pad_token_id=None, **extra)
    config._attn_implementation = "eager"
    return config


def library_weights(m, p):
    """Our parameters under the library's names; autograd follows the views."""
    q, kv = m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"]
    out = {"model.embed_tokens.weight": p["embed"], "model.norm.weight": p["final_norm"]}
    if not m["tied"]:
        out["lm_head.weight"] = p["head"]
    for i in range(m["layers"]):
        theirs, mine = f"model.layers.{i}.", f"layers.{i}."
        fused = m.get("rope_scaling") == "longrope"
        if fused:
            out[theirs + "self_attn.qkv_proj.weight"] = p[mine + "qkv"]
            out[theirs + "mlp.gate_up_proj.weight"] = p[mine + "gate_up"]
        for name, part in zip("qkv", p[mine + "qkv"].split([q, kv, kv]) if not fused else ()):
            out[theirs + f"self_attn.{name}_proj.weight"] = part
        if m["qkv_bias"]:
            for name, part in zip("qkv", p[mine + "qkv_bias"].split([q, kv, kv])):
                out[theirs + f"self_attn.{name}_proj.bias"] = part
        if m["qk_norm"]:
            out[theirs + "self_attn.q_norm.weight"] = p[mine + "q_norm"]
            out[theirs + "self_attn.k_norm.weight"] = p[mine + "k_norm"]
        gate, up = p[mine + "gate_up"].chunk(2)
        norms = ("post_attention", "post_feedforward") if m.get("post_norm") else ("input", "post_attention")
        out.update({theirs + norms[0] + "_layernorm.weight": p[mine + "attn_norm"],
                    theirs + "self_attn.o_proj.weight": p[mine + "out"],
                    theirs + norms[1] + "_layernorm.weight": p[mine + "ffn_norm"],
                    theirs + "mlp.down_proj.weight": p[mine + "down"]})
        if not fused:
            out.update({theirs + "mlp.gate_proj.weight": gate, theirs + "mlp.up_proj.weight": up})
    return out


def library_run(m, model):
    def run(_, p, ids, documents):
        weights, logits, begin = library_weights(m, p), [], 0
        for n in documents:
            row = torch.tensor([ids[begin:begin + n]])
            with float_is_double():
                logits.append(torch.func.functional_call(model, weights, (row,)).logits[0])
            begin += n
        return torch.cat(logits)
    return run


def library_train(m, p, run):
    groups = [dict(params=[w for w in p.values() if (w.dim() == 2) == matrix], weight_decay=decay)
              for matrix, decay in ((True, ours.DECAY), (False, 0.0))]
    optimizer = torch.optim.AdamW(groups, lr=ours.LR, betas=(ours.BETA1, ours.BETA2), eps=ours.EPS)
    losses = []
    for step in range(ours.STEPS):
        optimizer.zero_grad()
        loss = ours.mean_loss(m, p, ours.step_rows(m, step), run)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), m["clip"])
        optimizer.step()
        losses.append(loss.item())
    return losses


def difference(a, b):
    return (torch.as_tensor(a, dtype=torch.float64) - torch.as_tensor(b, dtype=torch.float64)).abs().max().item()


def main(only=None):
    worst = {}
    for name, m in ours.MODELS.items():
        if only and name not in only:
            continue
        config_class, model_class = library_class(m)
        with float_is_double():
            model = model_class(library_config(m, config_class)).double().eval()
        run, p = library_run(m, model), ours.parameters(m)
        ids, labels = ours.row_of(m, "row", m["documents"])
        rows = [(ids, labels, m["documents"])]
        plain = model_class(library_config(m, config_class)).float().eval()
        with torch.no_grad():
            weights = {k: v.float() for k, v in library_weights(m, p).items()}
            single = torch.cat([torch.func.functional_call(plain, weights, (part[None],)).logits[0]
                                for part in torch.split(torch.tensor(ids), m["documents"])])
        mine, theirs = ours.forward(m, p, ids, m["documents"]), run(m, p, ids, m["documents"])
        found = {"logits": difference(mine, theirs), "unmodified float32 logits": difference(mine, single.double())}
        gradients = [torch.autograd.grad(ours.mean_loss(m, p, rows, f), list(p.values())) for f in (ours.forward, run)]
        found["gradients"] = max(difference(a, b) for a, b in zip(*gradients))
        losses, _ = ours.train(m, p)
        again = ours.parameters(m)
        found["step losses"] = difference(losses, library_train(m, again, run))
        found["final parameters"] = max(difference(a.detach(), b.detach()) for a, b in zip(p.values(), again.values()))
        print(f"{name:12} {model_class.__name__:20}", *(f"{k} {v:.1e}" for k, v in found.items()))
        for key, value in found.items():
            worst[key] = max(worst.get(key, 0), value)
    print("worst:", *(f"{k} {v:.1e}" for k, v in worst.items()))
