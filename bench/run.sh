#!/usr/bin/env bash
# Runs the benchmarks that `./run bench` built: the one named, or all but those that need peers, models or a GPU.
#   bench/run.sh [NAME] [--smoke] [--case CASE] [--json FILE] [--svg FILE]
#   bench/run.sh aot
#   bench/run.sh gpu [--smoke] [--json FILE] [--svg FILE]
#   bench/run.sh peers [--threads 1|2|both] [--resume] [--case CASE] [--json FILE] [--svg FILE]
# `gpu` stands for all benchmarks of a GPU; their tables are kept as bench/results/gpu-DATE.txt, with the commit and the
# device, unless --smoke tries them with small arrays.  Those of `peers`, all its cases on one and
# two threads, as bench/results/peers-DATE.md, .json and .svg.  `peers` writes its JSON file, build/peers.json unless
# --json names one, after each case; --resume continues an interrupted run.
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/../build/bench" && pwd)
available=$(cd "$folder" && find . -maxdepth 1 -type f -perm -u+x -printf '%f\n' | sort)

gpu=(gpu_streams gpu_products gpu_attention gpu_steps gpu_launch) smoke=
one=$folder/../onebackend/bench # the same with one backend built in, of which `./run bench` builds dispatch
names=() written=() options=() json='' svg=''
while (($#)); do
    case $1 in
    --json) json=${2:?--json needs a file name} && shift 2 ;;
    --svg) svg=${2:?--svg needs a file name} && shift 2 ;;
    --case) options+=(--case "${2:?--case needs a case of the benchmark}") && shift 2 ;;
    --threads) options+=(--threads "${2:?--threads needs 1, 2 or both}") && shift 2 ;;
    --resume) options+=(--resume) && shift ;;
    --smoke) smoke=yes && options+=(--smoke) && shift ;;
    -*)
        echo "unknown option $1; usage: ./run bench [NAME] [--smoke] [--case CASE] [--json FILE] [--svg FILE]" >&2
        exit 2 ;;
    *) names+=("$1") && shift ;;
    esac
done
named=${names[*]} # without a name nothing is installed
((${#names[@]})) || mapfile -t names < <(grep -vxE 'peers|models|gpu_.*|gpt2|llm' <<<"$available" || true)

# What all backends built in add to recording an op: of the two builds the fastest pass in each of a few turns, for the
# machine's speed changes from second to second; microseconds for 1000 ops, as all of dispatch's rows.
backends_by_turns() { # FILE
    local turn build
    for turn in {1..7}; do
        for build in "$folder" "$one"; do
            "$build/dispatch" --case layers-0 --json "$parts/turn" >/dev/null 2>&1
            sed -n 's/.*"min": \([0-9.]*\).*/\1/p' "$parts/turn"
        done | paste -sd ' '
    done | awk '{ print $1 - $2 }' | sort -g | awk '{ d[NR] = $1 } END {
        printf "[\n {\"bench\": \"dispatch\", \"case\": \"backends\", \"variant\": \"all - 1\", \"threads\": 1"
        printf ", \"median\": %g, \"min\": %g, \"max\": %g, \"unit\": \"us\"", d[(NR + 1) / 2], d[1], d[NR]
        printf ", \"limit\": 5, \"fraction\": null, \"baseline\": null, \"ratio\": null}\n]\n"
        printf "dispatch backends  all - 1    1 %11.2f %11.2f %11.2f us       %11.2f\n",
            d[(NR + 1) / 2], d[1], d[NR], 5 >"/dev/stderr" }' >"$1"
}

# onnxruntime for bench/models.c, in a virtual environment of its own; without it there is nothing to compare with.
peer_for_models() {
    local peer=$folder/../onnxruntime
    if ! [ -e "$peer/ready" ]; then
        python3 -m venv "$peer" && "$peer/bin/pip" install --quiet onnxruntime && touch "$peer/ready" || return 0
    fi
    export KILN_TEST_PYTHON=$peer/bin/python KILN_TEST_TURNS=$folder/../../bench/peers/onnxruntime_turns.py
}

# The table of models compiled ahead of time, those of KILN_TEST_MODELS, beside onnxruntime.
run_aot() {
    local models
    peer_for_models
    mapfile -t models < <(find "${KILN_TEST_MODELS:?a folder of models}" -name '*.onnx' | sort)
    "${KILN_TEST_PYTHON:?no Python with onnxruntime}" "$folder/../../bench/peers/aot_table.py" "$folder/.." \
        "${models[@]}"
}

# PyTorch and JAX for bench/peers/peers.c, likewise.
peers_for_peers() {
    local peers=$folder/../peers here=$folder/../../bench/peers
    [ -e "$peers/ready" ] || { echo "installing PyTorch and JAX ..." >&2 && bash "$here/install.sh" "$peers" >&2; } ||
        return 0
    export KILN_TEST_PYTHON=$peers/bin/python KILN_TEST_PEERS=$here KILN_TEST_MKL=$peers/mkl_any_vendor.so
}

# Installs llama.cpp, built here: pip may keep one that was built for another processor.
build_llamacpp() { # FOLDER CMAKE-OPTION ..
    CMAKE_ARGS="${*:2}" "$1/bin/pip" install --quiet --no-cache-dir --force-reinstall llama-cpp-python
}

# Does llama.cpp end in the products of quantized weights?  On some virtual machines its code for AMX's tiles does, by
# an illegal instruction.
llamacpp_ends() {
    "$folder/llm" --smoke --case Q8_0 --json "$parts/ends" >/dev/null 2>&1 && grep -q '"missing"' "$parts/ends"
}

# llama.cpp for bench/peers/llm.c, built for this processor, and the folder of its models.
peer_for_llm() {
    local peer=$folder/../llamacpp
    local -a no_amx=(-DGGML_NATIVE=OFF -DGGML_AVX_VNNI=ON -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON
                     -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON) # all else that processors with AMX have
    mkdir -p "$folder/../llm"
    export KILN_TEST_LLM=$folder/../llm
    export KILN_TEST_PYTHON=$peer/bin/python KILN_TEST_LLM_TURNS=$folder/../../bench/peers/llm_turns.py
    [ -e "$peer/ready" ] && return
    echo "installing llama.cpp ..." >&2
    python3 -m venv "$peer" && build_llamacpp "$peer" -DGGML_NATIVE=ON || return 0
    if grep -qw amx_tile /proc/cpuinfo && llamacpp_ends; then
        echo "building llama.cpp again, without AMX ..." >&2
        build_llamacpp "$peer" "${no_amx[@]}" || return 0
    fi
    touch "$peer/ready"
}

# PyTorch for bench/gpu/gpu_steps.c: the python3 that is there, if its PyTorch has a GPU.  Nothing is installed.
torch_for_gpu() {
    local python=${KILN_TEST_PYTHON:-python3}
    "$python" -c 'import numpy, torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null || return 0
    export KILN_TEST_PYTHON=$python KILN_TEST_PEERS=$folder/../../bench/peers KILN_TEST_PEER_DEVICE=cuda
}

# Runs all benchmarks of a GPU; one that fails does not stop the others.  Keeps their tables, the date and the commit.
run_gpu() {
    local root=$folder/../.. kept=$folder/../../bench/results/gpu-$(date +%F).txt one status=0
    torch_for_gpu
    { echo "Kiln on a GPU, $(date +%F), commit $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
      for one in "${gpu[@]}"; do
          echo
          "$folder/$one" "${options[@]}" --json "$parts/$one" 2>&1 || status=$?
          if [ -s "$parts/$one" ]; then written+=("$one"); fi
      done; } > >(tee "$parts/table")
    wait $! # for tee
    if [ -z "$smoke" ] && ((${#written[@]})); then
        mkdir -p "$root/bench/results"
        cp "$parts/table" "$kept"
    fi
    ((status == 0)) || { echo "a benchmark failed" >&2 && exit "$status"; }
}

# Runs peers with its rows in FILE; keeps the table of all cases on one and two threads, with the date, the commit and
# the processor.
run_peers() { # FILE
    local root=$folder/../.. kept=$folder/../../bench/results/peers-$(date +%F) whole
    "$folder/peers" "${options[@]}" --json "$1" | tee "$parts/table"
    whole=$(grep -c '^Geometric mean of all ' "$parts/table" || true)
    if [ "$whole" != 2 ]; then return 0; fi
    mkdir -p "$root/bench/results"
    cp "$1" "$kept.json"
    { echo '[' # a panel of ratios for each number of threads
      grep '"unit": "x"' "$1" | sed 's/"bench": "peers"\(.*"threads": \([12]\)\)/"bench": "threads: \2"\1/; $s/,$//'
      echo ']'; } >"$parts/ratios"
    "$folder/../kiln" chart "$parts/ratios" -o "$kept.svg"
    { echo "# Kiln beside PyTorch and JAX, $(date +%F), commit $(git -C "$root" rev-parse --short HEAD)" && echo
      sed -n 's/^model name[[:space:]]*: /Processor: /p' /proc/cpuinfo | head -n 1
      "$KILN_TEST_PYTHON" -c 'from importlib.metadata import version as v
print("PyTorch", v("torch") + ", JAX", v("jax"))'
      cat "$parts/table"; } >"$kept.md"
}

# llm.c for bench/peers/gpt2.c: its source at this commit, fetched once, and built as its Makefile builds it.
llmc_for_gpt2() {
    local llmc=$folder/../llm.c commit=db2454f88f1cdf0568c76d4c4bf2b1e0ed508cf0
    local source=$folder/../../bench/peers/llmc/turns.c
    mkdir -p "$llmc" "$folder/../gpt2"
    export KILN_TEST_GPT2=$folder/../gpt2
    if ! [ -e "$llmc/train_gpt2.c" ]; then
        { git -C "$llmc" init --quiet && git -C "$llmc" fetch --quiet --depth 1 https://github.com/karpathy/llm.c \
            "$commit" && git -C "$llmc" checkout --quiet FETCH_HEAD; } || return 0
    fi
    cc -Ofast -march=native -fopenmp -DOMP -w -I"$llmc" "$source" -o "$llmc/turns" -lm || return 0
    export KILN_TEST_LLMC=$llmc/turns
    lines() { grep -cvE '^[[:space:]]*(//.*|/?[*].*)?$' "$1"; }
    echo "lines without comments: examples/gpt2.c $(lines "$folder/../../examples/gpt2.c")," \
        "llm.c's train_gpt2.c $(lines "$llmc/train_gpt2.c")" >&2
}

# Each program writes a JSON array; the file is one array of all their rows.
parts=$(mktemp -d)
trap 'rm -r "$parts"' EXIT
for name in "${names[@]}"; do
    if [ "$name" = gpu ]; then
        run_gpu
        continue
    fi
    if [ "$name" = aot ]; then
        run_aot
        continue
    fi
    if ! grep -qxF -- "$name" <<<"$available"; then
        echo "no benchmark \"$name\"; there are: $(echo $available)" >&2
        exit 2
    fi
    if [ "$name" = models ]; then peer_for_models; fi
    # an installation of peers is used, but not made for the one case of `symbols` that has them, nor for `small` unless
    # it is named
    if [ "$name" = symbols ] && [ -e "$folder/../peers/ready" ]; then peers_for_peers; fi
    if [ "$name" = small ] && { [ -n "$named" ] && [ -z "$smoke" ] || [ -e "$folder/../peers/ready" ]; }; then
        peers_for_peers
    fi
    if [ "$name" = peers ] || [ "$name" = gpt2 ]; then peers_for_peers; fi
    if [ "$name" = llm ]; then peer_for_llm; fi
    if [ "$name" = gpu_steps ]; then torch_for_gpu; fi
    if [ "$name" = gpt2 ]; then llmc_for_gpt2; fi
    if [ "$name" = peers ]; then
        rows=${json:-$folder/../peers.json}
        run_peers "$rows"
        cp "$rows" "$parts/peers"
    else
        "$folder/$name" "${options[@]}" --json "$parts/$name"
    fi
    written+=("$name")
    if [ "$name" = dispatch ] && [ -x "$one/dispatch" ]; then
        "$one/dispatch" "${options[@]}" --json "$parts/onebackend"
        backends_by_turns "$parts/backends"
        written+=(onebackend backends)
    fi
done
for name in "${written[@]}"; do sed '1s/^\[//; $s/\]$//' "$parts/$name" | sed '/^$/d'; echo ,; done |
    sed '1s/^/[/; $s/.*/]/' >"$parts/all.json"
[ -z "$json" ] || cp "$parts/all.json" "$json"
[ -z "$svg" ] || "$folder/../kiln" chart "$parts/all.json" -o "$svg"
