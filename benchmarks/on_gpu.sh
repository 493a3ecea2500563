#!/usr/bin/env bash
# What a machine with an NVIDIA GPU, and without a network, is to say of this project. Every stage
# ends by itself within eight minutes, whatever it has reached by then; how long each takes stands
# beside it. Not run on a GPU yet: steps, train-beyond, train-cifar10, moments. fla tunes itself for more
# than a minute at each shape. What a run compiles takes a minute before its first step.
#
#   benchmarks/on_gpu.sh wheels          with a network: what else is needed, into WHEELS
#   benchmarks/on_gpu.sh probe           3 min  what is there; are our kernels right
#   benchmarks/on_gpu.sh parity          5 min  the tests marked gpu
#   benchmarks/on_gpu.sh sweep           2 min  ours by chunk, warps, stages and programs
#   benchmarks/on_gpu.sh operators       6 min  causal attention, lengths 2^9 to 2^16; fla last
#   benchmarks/on_gpu.sh sampling        4 min  the paper's models of MNIST and CIFAR-10
#   benchmarks/on_gpu.sh steps           2 min  their training steps beside SDPA's and fla's
#   benchmarks/on_gpu.sh train-mnist     8 min  for SECONDS_TO_TRAIN, from where it stopped
#   benchmarks/on_gpu.sh train-beyond    8 min  likewise: experiment=beyond/mnist
#   benchmarks/on_gpu.sh train-cifar10   8 min  likewise
#   benchmarks/on_gpu.sh weights RUN     1 min  its last weights into RESULTS, in pieces of 15 MB
#   benchmarks/on_gpu.sh moments RUN     1 min  what continues it, likewise
#
# In half an hour: probe, parity, sweep, operators; sampling, steps; train-mnist, weights. CIFAR-10 is
# another half. Arguments after the stage go to its program. The machine has Python 3.12 and torch,
# torchvision, torchaudio, lightning, torchmetrics and triton. Of the environment:
#
#   PYTHON            python3
#   WHEELS            wheels: what is in it is installed, beside what the machine has
#   DATA              data: holds MNIST/raw, and cifar-10-batches-py or cifar10.npz; or .tar files
#                     with these, which are unpacked
#   RUNS              runs: where checkpoints are, to be kept between calls
#   CACHE             RUNS/compiled: where compilers keep what they made
#   RESULTS           results: where measurements are written
#   PTXAS             unset: another assembler of Triton's code, for the probe to try
#   STAGE_SECONDS     470: when a stage is stopped
#   SECONDS_TO_TRAIN  330: what then remains is for a last batch, and for the test
#   LINEAR_TRANSFORMERS_COMMIT  for a copy: what measurements say of their commit, as
#                     git describe --always --abbrev=40 --exclude='*' --dirty prints it
#   DRY_RUN           1: everything at toy sizes on a CPU, to see that it runs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3} wheels=${WHEELS:-wheels} data=${DATA:-data} runs=${RUNS:-runs}
results=${RESULTS:-results} cache=${CACHE:-$runs/compiled}
seconds=${SECONDS_TO_TRAIN:-330} limit=${STAGE_SECONDS:-470} dry=${DRY_RUN:-}
stage=${1:-}
shift || true

# flash-linear-attention's kernels are a peer; the rest is what train.py and the tests import.
needed=(
  hydra-core omegaconf antlr4-python3-runtime pyyaml jaxtyping wadler-lindig rich
  markdown-it-py mdurl pygments safetensors soundfile cffi pycparser rapidfuzz ninja fla-core einops
  pydantic pydantic-core annotated-types typing-inspection typing-extensions
  lightning lightning-utilities torchmetrics
  pytest pytest-xdist execnet pluggy iniconfig beartype
)

fetch() {
  mkdir -p "$wheels"
  for name in "${needed[@]}"; do
    # In the version that was tested; the peer's is the latest.
    pin=$(grep --max-count 1 --only-matching "\"$name==[^ ;\"]*" pyproject.toml || echo "$name")
    name=${pin#\"}
    # What has no wheel is pure Python, and built here.
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 \
      --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
      --platform manylinux2014_x86_64 --dest "$wheels" "$name" 2>/dev/null ||
      "$python" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" "$name"
  done
  du -sh "$wheels"
}

install() {
  export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
  # What is compiled in one stage is there in the next.
  mkdir -p "$cache" "$results"
  cache=$(cd "$cache" && pwd)
  export TRITON_CACHE_DIR=$cache/triton TORCHINDUCTOR_CACHE_DIR=$cache/inductor
  export TORCH_EXTENSIONS_DIR=$cache/extensions
  # Inductor sets the assembler where nobody has, and our kernels would be compiled with that one.
  local own='from importlib.util import find_spec as f; print(*f("triton").submodule_search_locations)'
  export TRITON_PTXAS_PATH=${TRITON_PTXAS_PATH:-$("$python" -c "$own")/backends/nvidia/bin/ptxas}
  if [[ -x $TRITON_PTXAS_PATH ]]; then "$TRITON_PTXAS_PATH" --version | tail -n 1; fi
  if compgen -G "$wheels/*.whl" >/dev/null; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$wheels"/*.whl
    PYTHONPATH=$PYTHONPATH:$site PATH=$site/bin:$PATH # ninja is a program
  fi
  for archive in "$data"/*.tar; do
    if [[ -f $archive ]]; then tar --extract --skip-old-files --file "$archive" --directory "$data"; fi
  done
}

# limited COMMAND...: stops what is not done when the stage's time is up.
limited() {
  local code=0 left=$((limit > SECONDS ? limit - SECONDS : 1)) # SECONDS since this script began
  timeout --signal=TERM --kill-after=10 "$left" "$@" || code=$?
  if [[ $code == 124 || $code == 137 ]]; then
    echo "stopped  after STAGE_SECONDS=$limit; what was measured by then is in $results" >&2
  else
    return "$code"
  fi
}

# train NAME OVERRIDE...: goes on from the run's last checkpoint, is stopped when the time is up,
# and says what was reached. RAdam's rate is the paper's for batches of 10, times the root of how
# many times as large they are here.
train() {
  local name=$1 code=0
  shift
  timeout --signal=TERM --kill-after=60 "$seconds" "$python" train.py "${compiled[@]}" \
    "$@" logger=none test=false paths.runs="$runs" run_id="$name" \
    resume=auto || code=$?
  # 124: the time was up; 137: and it had not stopped a minute later.
  [[ $code == 0 || $code == 124 || $code == 137 ]] || exit "$code"
  if [[ ! -f $runs/$name/checkpoints/last.ckpt ]]; then
    echo "error: nothing was saved in SECONDS_TO_TRAIN=$seconds. Give it more." >&2
    exit 1
  fi
  limit=$((limit > SECONDS + 60 ? limit : SECONDS + 60))
  limited "$python" train.py "$@" compile=false logger=none train=false paths.runs="$runs" \
    resume="$runs/$name/checkpoints/last.ckpt"
  cp "$runs/$name/metrics.jsonl" "$results/$name-metrics.jsonl"
}

compiled=(compile=true)
fast=(trainer=gpu "~callbacks.samples")
# Batches that divide training, validation and test sets: of one size, compiled once.
mnist=(model=linear data=mnist data.root="$data" data.batch_size=100 optimizer.lr=3.2e-4)
beyond=(experiment=beyond/mnist data.root="$data" data.batch_size=100)
cifar10=(model=linear data=cifar10 data.root="$data" data.batch_size=40 optimizer.lr=4e-4)
if [[ -f $data/cifar10.npz ]]; then
  cifar10=(model=linear data=arrays data.path="$data/cifar10.npz" data.val_size=5000
    model.num_layers=16 model.num_heads=8 model.model_dim=256 model.norm=post optimizer=radam
    scheduler=constant trainer.max_epochs=112 "${cifar10[@]:3}")
fi
pytest=(-W default -p no:cacheprovider -n 4) # four processes compile kernels side by side
parity=(tests/{attention,kernels,models,sampling,training})
kernels=(--kernels triton sdpa chunkwise fla)
operators=(--device cuda --dtype bfloat16 float32 "${kernels[@]}")
# By what is thought to matter: the first are the likeliest.
sweep=(--device cuda --dtype bfloat16 --shapes 16x784 4x3072 1x65536 --rounds 3 --seconds 150
  --kernels triton triton@programs=4 triton@programs=12 triton@stages=2 triton@stages=4
  triton@chunk=32 triton@chunk=32,warps=2,programs=4 triton@warps=2,programs=4)
mnist_steps=(--batch 1 1024 8192) cifar10_steps=(--batch 1 1024 4096)
sampling=(--device cuda --steps 64 --positions 2 --methods captured "captured bfloat16"
  "fused bfloat16" recurrent "softmax, cached") # a fused step is compiled for each batch size
steps=(--device cuda --shapes mnist cifar10 --batch 32)
device=cuda
if [[ $dry ]]; then
  export TRITON_INTERPRET=1
  fast=(trainer=cpu debug=step model.num_layers=1 model.num_heads=2 model.model_dim=16
    trainer.max_epochs=1 "~callbacks.samples")
  compiled=(compile=false)
  pytest=(-W default -p no:cacheprovider)
  parity=(tests/kernels/test_on_gpu.py) # all are skipped
  operators=(--device cpu --apart --shapes 2x16 --heads 2 --head-dim 8 --rounds 1 --threads 1
    "${kernels[@]}")
  sweep=(--device cpu --apart --shapes 2x16 --heads 2 --head-dim 8 --rounds 1 --threads 1
    --kernels triton triton@chunk=16,warps=1)
  sampling=(--device cpu --layers 1 --heads 2 --model-dim 16 --steps 1 --positions 1 --rounds 1
    --threads 1 --methods captured recurrent "softmax, cached")
  steps=(--device cpu --shapes digits --batch 2 --rounds 1 --threads 1 --methods linear softmax)
  mnist_steps=(--batch 2) cifar10_steps=(--batch 2)
  device=cpu
fi

case $stage in
wheels) fetch ;;
probe)
  install
  limited "$python" -m benchmarks.probe --device "$device" "$@"
  ;;
parity)
  install
  export CUBLAS_WORKSPACE_CONFIG=:4096:8 # what torch wants for the same bits in each run
  limited "$python" -m pytest "${pytest[@]}" -m gpu "${parity[@]}" "$@"
  # These are for any device, and take the GPU where there is one.
  [[ $dry ]] || limited "$python" -m pytest "${pytest[@]}" \
    tests/{kernels/test_triton,kernels/test_dropout,sampling/test_captured}.py "$@"
  ;;
sweep)
  install
  limited "$python" -m benchmarks.operators --name "operators-sweep-$device" "${sweep[@]}" "$@"
  ;;
operators)
  install
  limited "$python" -m benchmarks.operators "${operators[@]}" "$@"
  ;;
sampling)
  install
  limit=$((limit / 2)) limited "$python" -m benchmarks.sampling --length 784 --layers 8 \
    --name "sampling-mnist-$device" "${mnist_steps[@]}" "${sampling[@]}" "$@"
  limited "$python" -m benchmarks.sampling --length 3072 --layers 16 \
    --name "sampling-cifar10-$device" "${cifar10_steps[@]}" "${sampling[@]}" "$@"
  ;;
steps)
  install
  limited "$python" -m benchmarks.training "${steps[@]}" "$@"
  ;;
train-mnist)
  install
  train on-gpu-mnist "${mnist[@]}" "${fast[@]}" "$@"
  ;;
train-beyond)
  install
  train on-gpu-beyond "${beyond[@]}" "${fast[@]}" "$@"
  ;;
train-cifar10)
  install
  train on-gpu-cifar10 "${cifar10[@]}" "${fast[@]}" "$@"
  ;;
weights | moments)
  if [[ $# == 0 ]]; then
    echo "error: give the run: benchmarks/on_gpu.sh $stage RUN" >&2
    exit 1
  fi
  install
  part=()
  [[ $stage == weights ]] || part=(--moments)
  "$python" -m benchmarks.pieces split "$runs/$1/checkpoints/last.ckpt" "$results" "${part[@]}"
  ;;
*)
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 2
  ;;
esac
