#!/usr/bin/env python3
"""200 steps of GPT-2 124M: Weft in bf16 and PyTorch in fp32 (TF32 off), from equal weights, on the same batches.

  loss_curve.py TEXT --weft PATH [--steps N] [--batch N]

TEXT: a text file, say what `bible -f gen1:1-rev22:21` of the package bible-kjv prints. Its tokens come from a tokenizer
trained on it by `weft tokenizer train`; the weights are drawn by transformers and read by both from one Hugging Face
folder. Prints the difference of the two loss curves step by step (the largest, and of means over 10 steps), and whether
a second run of Weft with --deterministic-mode gives the same metrics and the same bytes of weights and moments.
"""
import argparse
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors.numpy import save_file
from transformers import GPT2Config, GPT2LMHeadModel

SEQ, VOCAB = 1024, 50257
LR, WARMUP, BETAS, EPS, DECAY, CLIP = 3e-4, 20, (0.9, 0.95), 1e-8, 0.1, 1.0


def tokens_of(text, weft, folder):
    tokenizer = folder / "tokenizer.json"
    subprocess.run([weft, "tokenizer", "train", "--input", text, "--vocab-size", "8192", "--out", tokenizer], check=True)
    with open(text) as file:
        ids = subprocess.run([weft, "tokenizer", "encode", "--tokenizer", tokenizer], stdin=file, check=True,
                             capture_output=True, text=True).stdout
    return numpy.array(ids.split(), dtype=numpy.int32)


def batches_of(tokens, steps, batch):
    """[steps * batch, SEQ] inputs and labels: pieces of the text in a random order, again and again"""
    pieces = (len(tokens) - 1) // SEQ
    random = numpy.random.default_rng(11)
    order = numpy.concatenate([random.permutation(pieces) for _ in range(steps * batch // pieces + 1)])[:steps * batch]
    cut = lambda shift: numpy.stack([tokens[p * SEQ + shift:(p + 1) * SEQ + shift] for p in order])
    return cut(0).reshape(steps, batch, SEQ), cut(1).reshape(steps, batch, SEQ)


def peer_losses(model, inputs, labels, rates):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = model.cuda().float().train()
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, fused=True)
    losses = []
    for x, y, rate in zip(inputs, labels, rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        total = 0.0
        for rows in range(0, len(x), 8):  # what fits beside fp32 attention
            a = torch.tensor(x[rows:rows + 8], device="cuda", dtype=torch.int64)
            b = torch.tensor(y[rows:rows + 8], device="cuda", dtype=torch.int64)
            logits = model(a).logits
            loss = torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), b.view(-1), reduction="sum") / y.size
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def weft_run(weft, model, file, steps, batch, folder, options):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    metrics = folder / "metrics.jsonl"
    command = [weft, "train", "--load", model, "--batches", file, "--device", "cuda", "--ranks", 1, "--bf16",
               "--micro-batch-size", batch, "--global-batch-size", batch, "--train-iters", steps, "--eval-iters", 0,
               "--hidden-dropout", 0, "--attention-dropout", 0, "--lr", LR, "--lr-decay-style", "constant",
               "--lr-warmup-iters", WARMUP, "--adam-beta1", BETAS[0], "--adam-beta2", BETAS[1], "--adam-eps", EPS,
               "--weight-decay", DECAY, "--clip-grad", CLIP, "--metrics", metrics, *options]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"weft failed:\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in open(metrics)]


def bytes_of(folder):
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--weft", default="build-cuda/weft")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp())
    tokens = tokens_of(args.text, args.weft, work)
    inputs, labels = batches_of(tokens, args.steps, args.batch)
    save_file({"input_ids": inputs, "labels": labels}, work / "batches.safetensors")
    torch.manual_seed(5)
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    model.save_pretrained(work / "model")
    print(f"{len(tokens)} tokens, {args.steps} steps of {args.batch} x {SEQ}", flush=True)

    run = lambda name, options: weft_run(args.weft, work / "model", work / "batches.safetensors", args.steps, args.batch,
                                         work / name, options)
    plain = run("plain", [])
    ours = [m["lm_loss"] for m in plain]
    exact = ["--deterministic-mode", "--save", work / "checkpoint"]
    first, sums = run("one", exact), bytes_of(work / "checkpoint")
    shutil.rmtree(work / "checkpoint")
    second = run("two", exact)
    keys = ("lm_loss", "grad_norm")
    same = all(a[k] == b[k] for a, b in zip(first, second) for k in keys) and sums == bytes_of(work / "checkpoint")
    print("deterministic runs:", "the same bits" if same else "DIFFERENT", flush=True)

    theirs = peer_losses(model, inputs, labels, [m["lr"] for m in plain])
    with open(os.path.join(os.environ.get("OUT", "."), "loss_curve.json"), "w") as file:
        json.dump({"weft_bf16": ours, "weft_deterministic": [m["lm_loss"] for m in first], "torch_fp32": theirs}, file)
    relative = numpy.abs(numpy.array(ours) / numpy.array(theirs) - 1)
    tens = len(ours) // 10 * 10
    smooth = numpy.abs(numpy.array(ours[:tens]).reshape(-1, 10).mean(1) / numpy.array(theirs[:tens]).reshape(-1, 10).mean(1) - 1)
    for step in [1, 10, 50, 100, 150, args.steps]:
        if step <= len(ours):
            print(f"step {step:4d}: weft {ours[step - 1]:.5f} torch {theirs[step - 1]:.5f}")
    print(f"largest difference {100 * relative.max():.3f} % at step {relative.argmax() + 1}; of means over 10 steps "
          f"{100 * smooth.max():.3f} %; mean {100 * relative.mean():.3f} %")
    shutil.rmtree(work)
    return 0 if same and smooth.max() < 0.005 else 1


if __name__ == "__main__":
    sys.exit(main())
