#!/usr/bin/env python3
"""A layer of experts of Weft and of PyTorch on one GPU, by turns.

  moe_layer.py CASE... [--bench PATH] [--rounds N] [--repeat N] [--gradients bf16|f32]

Cases: qwen3-30b-a3b, mixtral-8x7b, and tiny to try the script; 8192 tokens, bf16, a router over normal tokens. PyTorch:
torch.compile over torch._grouped_mm, gradients in bf16. Both sides are resident; a round of one follows a round of the
other. Times are milliseconds, forward and backward: `layer` all of it, `grouped` the six grouped products alone, `dense`
six dense products of as many operations on the same rows.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F

CASES = {
    "qwen3-30b-a3b": dict(tokens=8192, hidden=2048, experts=128, topk=8, ffn=768),
    "mixtral-8x7b": dict(tokens=8192, hidden=4096, experts=8, topk=2, ffn=14336),
    "tiny": dict(tokens=256, hidden=256, experts=8, topk=2, ffn=256),
}


def product(x, w, ends):
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)


class ToExperts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, order, inverse, k):
        ctx.save_for_backward(inverse)
        ctx.k = k
        return x[order // k]

    @staticmethod
    def backward(ctx, d):
        inverse, = ctx.saved_tensors
        g = d[inverse]
        return g.view(-1, ctx.k, d.shape[-1]).float().sum(1).to(d.dtype), None, None, None


class FromExperts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, weights, order, inverse):
        k = weights.shape[1]
        ctx.save_for_backward(y, weights, order, inverse)
        return (y[inverse].view(-1, k, y.shape[-1]).float() * weights[:, :, None]).sum(1).to(y.dtype)

    @staticmethod
    def backward(ctx, d):
        y, weights, order, inverse = ctx.saved_tensors
        k = weights.shape[1]
        rows = d[order // k]
        dy = (rows.float() * weights.reshape(-1)[order][:, None]).to(y.dtype)
        return dy, (rows.float() * y.float()).sum(-1)[inverse].view(weights.shape), None, None


def layer(x, router, w1, w2, k):
    probs = torch.softmax((x @ router.t()).float(), -1)
    values, chosen = torch.topk(probs, k, -1)
    values = values / values.sum(-1, keepdim=True)
    flat = chosen.reshape(-1)
    order = torch.argsort(flat, stable=True)
    inverse = torch.argsort(order)
    counts = torch.zeros(router.shape[0], device=x.device, dtype=torch.int32)
    counts = counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32))
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    gate, up = product(ToExperts.apply(x, order, inverse, k), w1, ends).chunk(2, -1)
    return FromExperts.apply(product(F.silu(gate) * up, w2, ends), values, order, inverse)


class Peer:
    def __init__(self, c):
        torch.manual_seed(0)
        make = lambda *shape, scale=1.0: (torch.randn(*shape, device="cuda") * scale).bfloat16().requires_grad_()
        e, h, f = c["experts"], c["hidden"], c["ffn"]
        self.x, self.router = make(c["tokens"], h), make(e, h, scale=0.02)
        self.w1, self.w2 = make(e, 2 * f, h, scale=0.02), make(e, h, f, scale=0.02)
        self.dout = torch.randn(c["tokens"], h, device="cuda", dtype=torch.bfloat16) * 0.1
        self.run, self.k = torch.compile(layer), c["topk"]
        self.rows = torch.randn(c["tokens"] * c["topk"], h, device="cuda", dtype=torch.bfloat16).requires_grad_()
        self.hidden = torch.randn(c["tokens"] * c["topk"], 2 * f, device="cuda", dtype=torch.bfloat16)
        self.a = self.hidden[:, :f].contiguous().requires_grad_()
        self.drows = torch.randn_like(self.rows)
        with torch.no_grad():
            chosen = torch.topk(self.x @ self.router.t(), self.k, -1).indices.reshape(-1)
            self.ends = torch.cumsum(torch.bincount(chosen, minlength=e), 0).to(torch.int32)

    def layer(self):
        out = self.run(self.x, self.router, self.w1, self.w2, self.k)
        torch.autograd.grad(out, (self.x, self.router, self.w1, self.w2), self.dout)

    def grouped(self):
        torch.autograd.grad(product(self.rows, self.w1, self.ends), (self.rows, self.w1), self.hidden)
        torch.autograd.grad(product(self.a, self.w2, self.ends), (self.a, self.w2), self.drows)


def milliseconds(run, repeat):
    run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeat):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeat


class Weft:
    def __init__(self, args, case):
        command = [args.bench, "--paced", "--rounds", args.rounds, "--repeat", args.repeat, "--gradients", args.gradients]
        for name, value in case.items():
            command += ["--" + name, value]
        if args.profile:
            command += ["--profile"]
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        print(self.process.stdout.readline().strip(), flush=True)

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line.startswith("round="):
            raise SystemExit(f"the bench ended (status {self.process.wait()}): {line}")
        return {k: float(v) for k, v in (w.split("=") for w in line.split()[1:])}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--bench", default="build-cuda/moe_layer_bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--gradients", default="bf16", choices=["bf16", "f32"])
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    result = {}
    table = ["case | layer ms | PyTorch ms | ratio (by round) | grouped ms | PyTorch's | dense ms | grouped / dense: f, f+b"]
    for name in args.cases:
        weft, peer = Weft(args, CASES[name]), Peer(CASES[name])
        milliseconds(peer.layer, 3)
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(weft.go())
            theirs.append({"layer": milliseconds(peer.layer, args.repeat), "grouped": milliseconds(peer.grouped, args.repeat)})
            print(name, ours[-1], {k: round(v, 4) for k, v in theirs[-1].items()}, flush=True)
        print(weft.process.communicate("go\n" if args.profile else "")[0], flush=True)
        middle = lambda rows, key: statistics.median(r[key] for r in rows)
        ratios = [t["layer"] / w["layer"] for w, t in zip(ours, theirs)]
        of_dense = [statistics.median(w["dense" + f] / w["grouped" + f] for w in ours) for f in ("_f", "")]
        table.append(f"{name} | {middle(ours, 'layer'):.3f} | {middle(theirs, 'layer'):.3f} | {statistics.median(ratios):.3f} "
                     f"({min(ratios):.3f}-{max(ratios):.3f}) | {middle(ours, 'grouped'):.3f} | {middle(theirs, 'grouped'):.3f} | "
                     f"{middle(ours, 'dense'):.3f} | {of_dense[0]:.3f}, {of_dense[1]:.3f}")
        result[name] = dict(weft=ours, peer=theirs)
        del peer
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    with open(os.path.join(os.environ.get("OUT", "/tmp"), "moe_layer.json"), "w") as file:
        json.dump(result, file, indent=1)
    print("\n".join(table))


if __name__ == "__main__":
    sys.exit(main())
