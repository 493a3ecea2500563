#!/usr/bin/env bash
# What a machine with an NVIDIA GPU, and without a network, is to say of this project. Each stage
# is made to take less than nine minutes; none was timed on a GPU yet.
#
#   benchmarks/on_gpu.sh wheels          with a network: what else is needed, into WHEELS
#   benchmarks/on_gpu.sh parity          the tests marked gpu
#   benchmarks/on_gpu.sh operators       causal attention, lengths 2^9 to 2^16, bfloat16 and float32
#   benchmarks/on_gpu.sh sampling        the paper's models of MNIST and CIFAR-10, batches that fit
#   benchmarks/on_gpu.sh train-mnist     for SECONDS_TO_TRAIN, from where the last call stopped
#   benchmarks/on_gpu.sh train-cifar10   likewise
#
# Arguments after the stage go to its program, model.attention.kernel=triton for one. The machine
# has Python 3.12 and torch, torchvision, torchaudio, lightning, torchmetrics and triton. Of the
# environment:
#
#   PYTHON            python3
#   WHEELS            wheels: what is in it is installed, beside what the machine has
#   DATA              data: holds MNIST/raw, and cifar-10-batches-py or cifar10.npz
#   RUNS              runs: where checkpoints are, to be kept between calls
#   RESULTS           results: where measurements are written
#   SECONDS_TO_TRAIN  330: what then remains is for a last batch, and for the test
#   LINEAR_TRANSFORMERS_COMMIT  for a copy without .git: what measurements say of their commit, as
#                     git describe --always --abbrev=40 --exclude='*' --dirty prints it
#   DRY_RUN           1: everything at toy sizes on a CPU, to see that it runs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3} wheels=${WHEELS:-wheels} data=${DATA:-data} runs=${RUNS:-runs}
seconds=${SECONDS_TO_TRAIN:-330} dry=${DRY_RUN:-}
stage=${1:-}
shift || true

# flash-linear-attention's kernels are a peer; the rest is what train.py and the tests import.
needed=(
  hydra-core omegaconf antlr4-python3-runtime pyyaml jaxtyping wadler-lindig rich
  markdown-it-py mdurl pygments soundfile cffi pycparser rapidfuzz ninja fla-core einops
  pydantic pydantic-core annotated-types typing-inspection typing-extensions
  pytest pluggy iniconfig beartype
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
  if compgen -G "$wheels/*.whl" >/dev/null; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$wheels"/*.whl
    PYTHONPATH=$PYTHONPATH:$site PATH=$site/bin:$PATH # ninja is a program
  fi
}

# train NAME OVERRIDE...: goes on from the run's last checkpoint, is stopped when the time is up,
# and says what was reached. RAdam's rate is the paper's for batches of 10, times the root of how
# many times as large they are here.
train() {
  local name=$1 from=() code=0
  shift
  if [[ -f $runs/$name/checkpoints/last.ckpt ]]; then
    from=("ckpt_path=$name")
  elif [[ -d $runs/$name ]]; then # it was stopped before it saved anything
    mv "$runs/$name" "$runs/$name-unsaved-$(date +%s)"
  fi
  timeout --signal=TERM --kill-after=60 "$seconds" "$python" train.py model=linear \
    "${compiled[@]}" "$@" logger=none test=false paths.runs="$runs" run_id="$name" \
    "${from[@]}" || code=$?
  # 124: the time was up; 137: and it had not stopped a minute later.
  [[ $code == 0 || $code == 124 || $code == 137 ]] || exit "$code"
  if [[ ! -f $runs/$name/checkpoints/last.ckpt ]]; then
    echo "error: nothing was saved in SECONDS_TO_TRAIN=$seconds. Give it more." >&2
    exit 1
  fi
  "$python" train.py model=linear "$@" logger=none train=false paths.runs="$runs" \
    ckpt_path="$runs/$name/checkpoints/last.ckpt"
}

compiled=(compile=true)
fast=(trainer=gpu "~callbacks.samples")
mnist=(data=mnist data.root="$data" data.batch_size=80 optimizer.lr=2.8e-4)
cifar10=(data=cifar10 data.root="$data" data.batch_size=32 optimizer.lr=3.6e-4)
if [[ -f $data/cifar10.npz ]]; then
  cifar10=(data=arrays data.path="$data/cifar10.npz" data.val_size=5000 model.num_layers=16
    model.num_heads=8 model.model_dim=256 trainer.max_epochs=112 "${cifar10[@]:2}")
fi
operators=(--device cuda --dtype bfloat16 float32)
sampling=(--device cuda --steps 64 --positions 2 --batch 1 16 128 1024 4096 8192)
device=cuda
if [[ $dry ]]; then
  export TRITON_INTERPRET=1
  fast=(trainer=cpu debug=step model.num_layers=1 model.num_heads=2 model.model_dim=16
    "~callbacks.samples")
  compiled=()
  operators=(--device cpu --shapes 2x16 --heads 2 --head-dim 8 --rounds 1 --threads 1)
  sampling=(--device cpu --layers 1 --heads 2 --model-dim 16 --steps 1 --positions 1 --rounds 1
    --batch 2 --threads 1 --methods captured recurrent "softmax, cached")
  device=cpu
fi

case $stage in
wheels) fetch ;;
parity)
  install
  "$python" -m pytest -m gpu tests/{attention,kernels,models,sampling} "$@"
  # These are for any device, and take the GPU where there is one.
  [[ $dry ]] || "$python" -m pytest tests/kernels/test_triton.py tests/sampling/test_captured.py "$@"
  ;;
operators)
  install
  "$python" -m benchmarks.operators "${operators[@]}" "$@"
  ;;
sampling)
  install
  "$python" -m benchmarks.sampling --length 784 --layers 8 --name "sampling-mnist-$device" \
    "${sampling[@]}" "$@"
  "$python" -m benchmarks.sampling --length 3072 --layers 16 --name "sampling-cifar10-$device" \
    "${sampling[@]}" "$@"
  ;;
train-mnist)
  install
  train on-gpu-mnist "${mnist[@]}" "${fast[@]}" "$@"
  ;;
train-cifar10)
  install
  train on-gpu-cifar10 "${cifar10[@]}" "${fast[@]}" "$@"
  ;;
*)
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 2
  ;;
esac
