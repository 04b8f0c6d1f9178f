"""Training step of a small Llama-style model on the CPU: weft beside PyTorch, alternating, on the same tokens.

  python bench/peers/cpu_llama.py --weft build/weft [--rounds 3] [--steps 6] [--threads 2] [--ranks 2] [--out FILE.json]

6 layers, hidden 512, 8 heads, SwiGLU 1408, vocabulary 8192 untied, 8 x 512 tokens a step, RMSNorm, rotary positions,
AdamW, clip 1.0. PyTorch: scaled_dot_product_attention, fused=True AdamW where it exists, eager and (--compile) compiled.
Prints tokens/s of each, the median over all steps but the first of a round, and the ratios.
"""
import argparse, json, os, statistics, subprocess, sys, tempfile, time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.numpy import save_file

L, H, HEADS, FFN, V, S, B = 6, 512, 8, 1408, 8192, 512, 8


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(H))

    def forward(self, x):
        return F.rms_norm(x, (H,), self.weight, 1e-5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.n1, self.n2 = RMSNorm(), RMSNorm()
        self.qkv, self.o = linear(H, 3 * H), linear(H, H)
        self.gate_up, self.down = linear(H, 2 * FFN), linear(FFN, H)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, HEADS, H // HEADS).transpose(1, 3).unbind(2)

        def rotate(y):
            a, c = y.chunk(2, -1)
            return torch.cat((a * cos - c * sin, c * cos + a * sin), -1).to(v.dtype)

        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, H))
        gate, up = self.gate_up(self.n2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.blocks = nn.Embedding(V, H), nn.ModuleList(Block() for _ in range(L))
        self.norm, self.head = RMSNorm(), nn.Linear(H, V, bias=False)
        d = H // HEADS
        angle = torch.outer(torch.arange(S).float(), 10000.0 ** (-torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, V).float(), labels.view(-1))


class Peer:
    """A PyTorch model that keeps training between rounds."""

    def __init__(self, bf16, compiled):
        torch.manual_seed(1)
        self.model = Llama()
        self.step_model = torch.compile(self.model) if compiled else self.model
        self.bf16 = bf16
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def run(self, tokens, labels):
        times = []
        for i in range(tokens.shape[0]):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
                loss = self.step_model(tokens[i], labels[i])
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            times.append(time.perf_counter() - start)
        assert torch.isfinite(loss)
        return times[1:]


def run_weft(args, folder, bf16):
    metrics = os.path.join(folder, "metrics.jsonl")
    if os.path.exists(metrics):
        os.remove(metrics)
    command = [args.weft, "train", "--batches", os.path.join(folder, "batches.safetensors"), "--num-layers", L,
               "--hidden-size", H, "--num-attention-heads", HEADS, "--ffn-hidden-size", FFN, "--vocab-size", V,
               "--max-position-embeddings", S, "--position-embedding-type", "rope", "--normalization", "RMSNorm",
               "--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--hidden-dropout", 0,
               "--attention-dropout", 0, "--micro-batch-size", max(1, B // args.ranks), "--ranks", args.ranks,
               "--cpu-threads", max(1, args.threads // args.ranks), "--lr", 1e-3, "--lr-decay-style", "constant",
               "--adam-beta2", 0.95, "--weight-decay", 0.1, "--metrics", metrics, "--progress", "lines"]
    if bf16:
        command.append("--bf16")
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [json.loads(line)["step_ms"] / 1e3 for line in open(metrics)][1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weft", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--skip-bf16-peer", action="store_true")
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    random = np.random.default_rng(7)
    ids = np.minimum(random.zipf(1.2, size=(args.steps, B, S + 1)) - 1, V - 1).astype(np.int64)
    tokens, labels = torch.from_numpy(ids[..., :-1].copy()), torch.from_numpy(ids[..., 1:].copy())
    contenders = {"weft fp32": None, "torch fp32": Peer(False, args.compile), "weft bf16": None}
    if not args.skip_bf16_peer:
        contenders["torch bf16"] = Peer(True, args.compile)
    times = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory() as folder:
        save_file({"input_ids": tokens.numpy(), "labels": labels.numpy()}, os.path.join(folder, "batches.safetensors"))
        for _ in range(args.rounds):
            for name, peer in contenders.items():
                times[name] += peer.run(tokens, labels) if peer else run_weft(args, folder, name.endswith("bf16"))
    rate = {name: B * S / statistics.median(t) for name, t in times.items()}
    print(f"PyTorch {torch.__version__}, {args.threads} threads, weft with {args.ranks} ranks; {torch.backends.cpu.get_cpu_capability()}")
    for name, t in times.items():
        print(f"{name:12s} {rate[name]:9.0f} tokens/s   step {1e3 * statistics.median(t):7.1f} ms ({1e3 * min(t):.1f} to {1e3 * max(t):.1f})")
    ratios = {"weft/torch fp32": rate["weft fp32"] / rate["torch fp32"], "weft bf16/fp32": rate["weft bf16"] / rate["weft fp32"]}
    if "torch bf16" in rate:
        ratios["weft/torch bf16"] = rate["weft bf16"] / rate["torch bf16"]
    print("  ".join(f"{name} {value:.2f}x" for name, value in ratios.items()))
    if args.out:
        json.dump({"tokens_per_second": rate, "ratios": ratios}, open(args.out, "w"), indent=1)


main()
