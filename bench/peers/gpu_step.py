#!/usr/bin/env python3
"""A training step of Weft and of PyTorch on one GPU, by turns, on the same tokens.

  gpu_step.py CASE... [--weft PATH] [--rounds N] [--steps N] [--weft-only] [--option "--x y"]

Cases: gpt2-124m gpt2-1.5b llama-s4096-b2 llama-s4096-b4 llama-s8192-b1, and tiny-gpt2, tiny-llama to try the script.
PyTorch: torch.compile, SDPA through cuDNN, bf16 weights and gradients in flat buffers, fp32 master weights and moments,
gradient clip and AdamW in one compiled kernel: the fastest form we know. Both sides are resident; a round of one follows
a round of the other. Prints a line for each round, then medians, ratio, spread and the memory each takes on the device.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.numpy import save_file

OUT = os.environ.get("OUT", "/tmp")


def log(*words):
    print(f"[{time.time() - START:6.1f}s]", *words, flush=True)


START = time.time()

GPT2 = dict(kind="gpt2", vocab=50257, seq=1024)
LLAMA = dict(kind="llama", layers=8, hidden=4096, heads=32, groups=8, ffn=14336, vocab=128256)
CASES = {
    "gpt2-124m": dict(GPT2, layers=12, hidden=768, heads=12, batch=64, compile="whole"),
    "gpt2-1.5b": dict(GPT2, layers=48, hidden=1600, heads=25, batch=16, compile="block"),
    "llama-s4096-b2": dict(LLAMA, seq=4096, batch=2, compile="block"),
    "llama-s4096-b4": dict(LLAMA, seq=4096, batch=4, compile="block"),
    "llama-s8192-b1": dict(LLAMA, seq=8192, batch=1, compile="block"),
    "tiny-gpt2": dict(GPT2, layers=2, hidden=256, heads=4, batch=4, compile="whole"),
    "tiny-llama": dict(LLAMA, layers=2, hidden=512, heads=4, groups=2, ffn=1024, vocab=2048, seq=512, batch=2,
                       compile="block"),
    "wide-llama": dict(LLAMA, layers=1, vocab=2048, seq=512, batch=2, compile="block"),
}


class GptBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, self.heads = c["hidden"], c["heads"]
        self.ln1, self.ln2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.proj = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.fc1, self.fc2 = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x):
        b, s, h = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, s, 3, self.heads, h // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, h)
        x = x + self.proj(y)
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.padded = (c["vocab"] + 127) // 128 * 128
        self.words, self.positions = nn.Embedding(self.padded, c["hidden"]), nn.Embedding(c["seq"], c["hidden"])
        self.blocks = nn.ModuleList([GptBlock(c) for _ in range(c["layers"])])
        self.norm = nn.LayerNorm(c["hidden"])
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)
        self.register_buffer("index", torch.arange(c["seq"]), persistent=False)
        self.loss = self.head

    def head(self, x, y):
        return F.cross_entropy(F.linear(self.norm(x), self.words.weight).view(-1, self.padded).float(), y.reshape(-1))

    def forward(self, tokens, y):
        x = self.words(tokens) + self.positions(self.index)
        for block in self.blocks:
            x = block(x)
        return self.loss(x, y)


class RmsNorm(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(h))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


def linear(i, o, std=0.02):
    layer = nn.Linear(i, o, bias=False)
    nn.init.normal_(layer.weight, 0, std)
    return layer


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        h = c["hidden"]
        self.heads, self.groups, self.dim = c["heads"], c["groups"], h // c["heads"]
        self.n1, self.n2 = RmsNorm(h), RmsNorm(h)
        out = 0.02 / (2 * c["layers"]) ** 0.5  # of what is added to the residual stream
        self.qkv, self.proj = linear(h, (self.heads + 2 * self.groups) * self.dim), linear(h, h, out)
        self.fc1, self.fc2 = linear(h, 2 * c["ffn"]), linear(c["ffn"], h, out)

    def forward(self, x, cos, sin):
        b, s, h = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, s, -1, self.dim).split((self.heads, self.groups, self.groups), 2)
        q, k = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, h))
        gate, up = self.fc1(self.n2(x)).chunk(2, -1)
        return x + self.fc2(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, self.vocab = c["hidden"], c["vocab"]
        self.words = nn.Embedding(c["vocab"], h)
        nn.init.normal_(self.words.weight, 0, 0.02)
        self.blocks = nn.ModuleList([LlamaBlock(c) for _ in range(c["layers"])])
        self.norm, self.out = RmsNorm(h), linear(h, c["vocab"])
        d = h // c["heads"]
        angle = torch.outer(torch.arange(c["seq"]).float(), 1.0 / 500000 ** (torch.arange(0, d, 2).float() / d))
        self.register_buffer("cos", angle.cos()[None, :, None, :], persistent=False)
        self.register_buffer("sin", angle.sin()[None, :, None, :], persistent=False)
        self.loss = self.head

    def head(self, x, y):
        return F.cross_entropy(self.out(self.norm(x)).view(-1, self.vocab).float(), y.reshape(-1))

    def forward(self, tokens, y):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.loss(x, y)


class FlatAdamW:
    """Weights and gradients bf16, master and moments fp32, in flat buffers; norm, clip, AdamW and zeroing."""

    CHUNK = 1 << 27

    def __init__(self, model, lr, b1=0.9, b2=0.95, eps=1e-8, decay=0.1, clip=1.0):
        params = list(model.parameters())
        n = sum((p.numel() + 63) // 64 * 64 for p in params)
        chunk = min(self.CHUNK, n)
        n = (n + chunk - 1) // chunk * chunk
        device = params[0].device
        w, g = (torch.zeros(n, dtype=torch.bfloat16, device=device) for _ in range(2))
        at = 0
        for p in params:
            k = p.numel()
            w[at:at + k].copy_(p.data.reshape(-1))
            p.data, p.grad = w[at:at + k].view(p.shape), g[at:at + k].view(p.shape)
            at += (k + 63) // 64 * 64
        master = w.float()
        m, v = torch.zeros_like(master), torch.zeros_like(master)
        self.t, self.lr = torch.zeros((), device=device), torch.tensor(lr, device=device)
        self.clip = clip

        def update(w, g, master, m, v, scale, t, lr):
            grad = g.float() * scale
            m1, v1 = m * b1 + grad * (1 - b1), v * b2 + grad * grad * (1 - b2)
            new = master - lr * ((m1 / (1 - b1**t)) / ((v1 / (1 - b2**t)).sqrt() + eps) + decay * master)
            m.copy_(m1), v.copy_(v1), master.copy_(new), w.copy_(new.to(torch.bfloat16)), g.zero_()

        self.update = torch.compile(update, dynamic=False)
        self.chunks = [[x[i:i + chunk] for x in (w, g, master, m, v)] for i in range(0, n, chunk)]

    def step(self):
        self.t += 1
        norm = torch.stack([torch.linalg.vector_norm(c[1], dtype=torch.float32) for c in self.chunks]).norm()
        scale = (self.clip / (norm + 1e-6)).clamp(max=1.0)
        with torch.no_grad():
            for c in self.chunks:
                self.update(*c, scale, self.t, self.lr)


def zipf_tokens(case, batches):
    """Natural text repeats few tokens often; uniform ones would slow embedding gradients down."""
    random = numpy.random.default_rng(7)
    p = 1.0 / numpy.arange(1, case["vocab"] + 1)
    ids = random.choice(case["vocab"], (batches, case["batch"], case["seq"] + 1), p=p / p.sum())
    return random.permutation(case["vocab"]).astype(numpy.int32)[ids]


class Peer:
    def __init__(self, case, tokens, lr):
        torch.manual_seed(1)
        torch.backends.cuda.enable_cudnn_sdp(True)
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_math_sdp(False)
        with torch.device("cuda"):
            self.model = (Gpt if case["kind"] == "gpt2" else Llama)(case).bfloat16()
        if case["kind"] == "llama":  # angles stay fp32
            d = case["hidden"] // case["heads"]
            angle = torch.outer(torch.arange(case["seq"], device="cuda").float(),
                                1.0 / 500000 ** (torch.arange(0, d, 2, device="cuda").float() / d))
            self.model.cos, self.model.sin = angle.cos()[None, :, None, :], angle.sin()[None, :, None, :]
        self.optimizer = FlatAdamW(self.model, lr)
        self.data = torch.tensor(tokens, device="cuda", dtype=torch.int64)
        self.run = self.model
        if case["compile"] == "whole":
            self.run = torch.compile(self.model)
        else:
            for block in self.model.blocks:
                block.compile()
            self.model.loss = torch.compile(self.model.head)
        self.at = 0

    def steps(self, count):
        """ms of a step, and the loss of the last"""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(count):
            d = self.data[self.at % len(self.data)]
            self.at += 1
            loss = self.run(d[:, :-1], d[:, 1:])
            loss.backward()
            self.optimizer.step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / count, float(loss.detach())


class Weft:
    def __init__(self, args, case, file, lr):
        model = ["--num-layers", case["layers"], "--hidden-size", case["hidden"], "--num-attention-heads", case["heads"],
                 "--seq-length", case["seq"], "--max-position-embeddings", case["seq"], "--vocab-size", case["vocab"],
                 "--init-method-std", 0.02]
        if case["kind"] == "gpt2":
            model += ["--position-embedding-type", "learned_absolute", "--normalization", "LayerNorm"]
        else:
            model += ["--position-embedding-type", "rope", "--normalization", "RMSNorm", "--swiglu",
                      "--disable-bias-linear", "--group-query-attention", "--num-query-groups", case["groups"],
                      "--ffn-hidden-size", case["ffn"], "--rotary-base", 500000,
                      "--untie-embeddings-and-output-weights"]
        command = [args.weft, "bench", "step", "--paced", "--rounds", args.rounds, "--steps-per-round", args.steps,
                   "--batches", file, "--device", "cuda", "--ranks", 1, "--micro-batch-size", case["batch"],
                   "--hidden-dropout", 0, "--attention-dropout", 0, "--lr", lr, "--lr-decay-style", "constant",
                   "--adam-beta1", 0.9, "--adam-beta2", 0.95, "--weight-decay", 0.1, "--clip-grad", 1.0,
                   *model, *(["--profile"] if args.profile and args.weft_only else []), *args.option.split()]
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def until(self, key):
        for line in self.process.stdout:
            if line.startswith(key):
                return line.strip()
        raise SystemExit(f"weft ended (status {self.process.wait()}) before it said {key}")

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        words = dict(w.split("=") for w in self.until("round=").split())
        return float(words["ms"]), float(words["loss"])


def in_use():
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


def run_case(name, args):
    case = CASES[name]
    lr, batches = 1e-4, 8
    tokens = zipf_tokens(case, batches)
    file = os.path.join("/tmp", name + ".safetensors")
    save_file({"input_ids": numpy.ascontiguousarray(tokens[:, :, :-1]),
               "labels": numpy.ascontiguousarray(tokens[:, :, 1:])}, file)
    torch.cuda.synchronize()
    base = in_use()
    weft = Weft(args, case, file, lr)
    weft.until("ready")
    weft_mib = in_use() - base
    row = dict(case=name, weft_mib=weft_mib, weft_ms=[], peer_ms=[])
    log(name, f"weft is ready, {weft_mib:.0f} MiB")
    peer = None
    if not args.weft_only:
        before = torch.cuda.memory_reserved() / 2**20
        peer = Peer(case, tokens, lr)
        peer.steps(5)
        context = base  # of this process alone: nobody else was on the device
        row["peer_mib"] = context + torch.cuda.max_memory_reserved() / 2**20 - before
        log(name, f"peer is ready, {row['peer_mib']:.0f} MiB")
    for i in range(args.rounds):
        ms, loss = weft.go()
        if i + 1 < args.rounds:
            weft.until("ready")
        row["weft_ms"].append(ms)
        row["weft_loss"] = loss
        text = f"weft {ms:.2f} ms loss {loss:.4f}"
        if peer is not None:
            ms, loss = peer.steps(args.steps)
            row["peer_ms"].append(ms)
            row["peer_loss"] = loss
            text += f" | peer {ms:.2f} ms loss {loss:.4f} | ratio {row['peer_ms'][-1] / row['weft_ms'][-1]:.3f}"
        log(name, text)
    rest = weft.process.stdout.read()
    print("\n".join(line for line in rest.split("\n") if "=" not in line), flush=True)
    row["weft_says"] = dict(line.split("=") for line in rest.split("\n") if "=" in line)
    weft.process.wait()
    del peer
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return row


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--weft", default="build/weft")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--weft-only", action="store_true")
    parser.add_argument("--profile", action="store_true", help="with --weft-only: what each operation costs")
    parser.add_argument("--option", default="", help="more options for weft")
    args = parser.parse_args()
    rows = []
    torch.zeros(1, device="cuda")
    for name in args.cases:
        try:
            rows.append(run_case(name, args))
        except SystemExit as error:
            log(name, error)
        with open(os.path.join(OUT, "gpu_step.json"), "w") as file:
            json.dump(rows, file, indent=1)
    print("case | weft ms | PyTorch ms | ratio (min-max by round) | weft MiB | PyTorch MiB")
    for r in rows:
        ms = statistics.median(r["weft_ms"])
        if r["peer_ms"]:
            ratios = [p / w for p, w in zip(r["peer_ms"], r["weft_ms"])]
            peer = statistics.median(r["peer_ms"])
            print(f"{r['case']} | {ms:.2f} | {peer:.2f} | {statistics.median(ratios):.3f} "
                  f"({min(ratios):.3f}-{max(ratios):.3f}) | {r['weft_mib']:.0f} | {r['peer_mib']:.0f}")
        else:
            print(f"{r['case']} | {ms:.2f} | | | {r['weft_mib']:.0f} |")


if __name__ == "__main__":
    sys.exit(main())
