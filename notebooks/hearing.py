# %% [markdown]
# # Hearing
#
# A phone recogniser, from sound to alignment. eSpeak NG speaks sentences and says which phones it
# spoke, so there is nothing to download. The recogniser is causal linear attention under CTC: it is
# trained on whole utterances, and then hears sound as it arrives, at constant memory.

# %%
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import linear_transformers as lt
from linear_transformers.ctc import align, confusions, error_rates
from linear_transformers.data.speech import log_mel
from linear_transformers.data.speech.audio import converted
from linear_transformers.data.speech.synthesis import SAMPLE_RATE, speak

SMALL = "SMALL" in os.environ  # what the tests set: one step of training, and no claims about it
RUN = Path("runs/hearing-small" if SMALL else "runs/hearing")
RATE = 16000

# %% [markdown]
# ## A sentence, and its features
#
# The spectrogram that the model sees: 40 bands of frequencies, as the ear divides them, a hundred
# times a second.

# %%
spoken = speak("the old doctor opens a window", voice="en-us", words_per_minute=150, pitch=50)
audio = converted(spoken.samples.astype("float32")[:, None] / 2**15, SAMPLE_RATE, RATE, "eSpeak")
features = log_mel(audio, sample_rate=RATE, num_mels=40)

figure, axes = plt.subplots(figsize=(11, 2.4))
axes.imshow(features.T, origin="lower", aspect="auto", cmap="magma")
axes.set(xlabel="frame, a hundredth of a second each", ylabel="mel band")
" ".join(spoken.phones)

# %% [markdown]
# ## A recogniser
#
# Four minutes on two cores. It has heard 27 voices, and none of this sentence.

# %%
if not RUN.exists():
    options = ["experiment=espeak/streaming", f"run_id={RUN.name}", "trainer=cpu", "logger=none"]
    options += ["test=false"]
    small = ["debug=step", "data.num_train=8", "data.num_val=2", "data.num_test=2"]
    options += small if SMALL else ["trainer.max_epochs=12"]
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    program = [sys.executable, "-m", "linear_transformers", "train"]
    subprocess.run([*program, *options], env=environment, check=True, stdout=subprocess.DEVNULL)

model = lt.load(RUN)
heard = model.transcribe(audio)
said = model.shape.encode(spoken.phones)
counts = confusions([said], [model.shape.encode(heard.split())], len(model.shape.labels))
wrong = error_rates(counts)["errors"].item()
if not SMALL:
    assert wrong < 30
print("said ", " ".join(spoken.phones))
print("heard", heard)
f"{wrong:.0f} % of the phones wrong"

# %% [markdown]
# ## When it was heard
#
# CTC says which phones there were, and each output may be blank. The most likely path that spells
# the phones that were said gives each its place. Dashed lines are where eSpeak began to speak them.

# %%
recogniser = model.task.model
with torch.inference_mode():
    scores, lengths = recogniser(features[None], torch.tensor([len(features)]))
chances = scores[0].softmax(-1)

figure, axes = plt.subplots(figsize=(11, 2.8))
axes.plot(chances[:, 0], color="lightgrey", label="blank")
if len(said) + sum(a == b for a, b in pairwise(said)) <= len(chances):
    for span in align(scores[0], said):
        place = (span.start + span.end) / 2
        axes.axvspan(span.start, span.end, alpha=0.15)
        axes.text(place, 1.04, model.shape.labels[span.label - 1], ha="center", fontsize=8)
outputs_per_second = 100 / recogniser.subsampling
for start in spoken.starts:
    axes.axvline(start * outputs_per_second, color="C3", linestyle="--", linewidth=0.6)
axes.plot(chances[:, 1:].max(-1).values, label="the likeliest phone")
axes.set(xlabel="output", ylabel="probability", ylim=(0, 1.15))
axes.legend(loc="center right")
figure.tight_layout()

# %% [markdown]
# ## As it arrives
#
# The same recording, a tenth of a second at a time. What comes out is what the whole recording
# gives. The state has one size, however long one speaks.


# %%
def tensors(state: object) -> list[torch.Tensor]:
    """Return the tensors in a state."""
    if isinstance(state, torch.Tensor):
        return [state]
    return [x for part in state for x in tensors(part)] if isinstance(state, tuple | list) else []


def size_of(stream: object) -> int:
    """Return the bytes that a stream holds: the model's state, and the samples of half a frame."""
    listener = stream._listener
    held = [*tensors(listener.state), listener.samples]
    return sum(x.numel() * x.element_size() for x in held)


stream, sizes = model.stream(), []
for piece in audio.split(RATE // 10):
    print(stream.hear(piece), end=" ")
    sizes.append(size_of(stream))
stream.hear(torch.zeros(0), last=True)
assert stream.text == heard

long = model.stream()
for _ in range(2 if SMALL else 20):  # much longer
    for piece in audio.split(RATE // 10):
        long.hear(piece)
assert size_of(long) <= max(sizes)
f"{max(sizes)} bytes, after {len(audio) / RATE:.1f} s and after {20 * len(audio) / RATE:.0f} s"
