"""Load a trained speech recogniser and write down what recordings say."""

from omegaconf import DictConfig

from linear_transformers.runtime.cli import command
from linear_transformers.runtime.schema import TranscribeJob
from linear_transformers.runtime.sweeps import Outcome

USAGE = """
usage: uv run transcribe.py ckpt=RUN_OR_FILE audio=FILE|DIR|MANIFEST|- [KEY=VALUE ...]

Write down the phones of recordings: WAV, FLAC, Ogg, Opus, MP3, of any length.

what from
  ckpt=espeak-linear-...   a run's name or directory, or a checkpoint file
  audio=FILE               or a folder, all below it; or FILE.jsonl, a manifest, and the errors are
                           counted; or - for standard input: a WAV, or 16-bit samples at the
                           model's rate
  weights=ema              or raw; unset, those that were tested
  device=auto              or cpu, cuda, mps
what to write
  format=phones            a line a recording; or ctm, with times; or json, one object a line
  out=FILE                 unset, the terminal
how to decode
  beam=16                  prefix beam search instead of the most likely path
  lm=MANIFEST              with an n-gram model of the phones in it
  lm_order=3 lm_weight=0.5 lm_bonus=1.0
long recordings
  window=20  overlap=2     seconds read at once, and shared by neighbours; unset, as in training
  batch=16                 recordings or windows side by side
as it is heard
  stream=true              print phones as the audio arrives; a model with model.causal=true
  piece=0.1                seconds of audio at a time
"""


@command(__file__, schema=TranscribeJob, usage=USAGE)
def main(cfg: DictConfig) -> Outcome:
    """Transcribe as configured."""
    from linear_transformers.runtime.transcribing import transcribe  # late: torch takes seconds

    return transcribe(cfg)


if __name__ == "__main__":
    main()
