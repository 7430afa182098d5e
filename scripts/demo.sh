#!/usr/bin/env bash
# The main job from end to end on a real model: what runs where, convert, prove, compare.
# Each command is shown before it runs, so that it can be typed again.
set -euo pipefail
cd "$(dirname "$0")/.."
out=demo
mkdir -p "$out"

show() {
  printf '\n\033[1m$ quantlab %s\033[0m\n' "$*"
  quantlab "$@"
}

# `check` exits 1 where the answer is no; that is an answer here, not a failure.
ask() {
  show "$@" || [ $? -eq 1 ]
}

ask doctor

fp8=examples/qwen3-32b-fp8/config.json
ask check "$fp8" --gpu MI300X --engine vllm
ask check "$fp8" --gpu MI250 --engine vllm
ask check "$fp8" --gpu "RTX 3090" --engine vllm
ask check "$fp8" --gpu local --engine transformers

[ -f "$out/sample/config.json" ] || show sample "$out/sample"
convert() { # name, then the options
  local name=$1
  shift
  [ -f "$out/$name/config.json" ] || show convert "$out/sample" "$out/$name" "$@"
}
convert fp8 --to fp8
convert w4a16 --to w4a16 --set group_size=64
convert gptq --to gptq --set group_size=64 --samples 16
convert nf4 --to nf4

evaluate() { # name, then the options
  local name=$1
  shift
  show evaluate "$out/$name" "$@" --tokens 4096 --window 1024 --output "$out/$name.json" || [ $? -eq 1 ]
}
evaluate sample
for name in fp8 w4a16 gptq nf4; do
  evaluate "$name" --baseline "$out/sample"
done

ask compare "$out"/{sample,fp8,w4a16,gptq,nf4}.json --html "$out/compare.html" --output "$out/compare.json"
printf '\nThe same as data: %s/compare.json; as a page: %s/compare.html\n' "$out" "$out"
