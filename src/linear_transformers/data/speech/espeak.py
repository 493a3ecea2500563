"""A corpus without download and licence: generated sentences, spoken by eSpeak NG."""

import json
import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torchaudio.functional import resample

from linear_transformers.config.ranges import Seed, Sentences, ranged
from linear_transformers.data.base import SPLITS
from linear_transformers.data.speech.base import SpeechSource
from linear_transformers.data.speech.labels import PHONES, SpeechShape
from linear_transformers.data.speech.manifest import Utterance
from linear_transformers.data.speech.manifests import utterances_of
from linear_transformers.data.speech.sentences import sentence
from linear_transformers.data.speech.synthesis import SAMPLE_RATE, speak
from linear_transformers.files import remove_leftovers, replacing

VERSION = 2  # of the sentences and voices: increase it when they change
WRITTEN_RATE = 16000
# No voice is in two splits. Voices with breath noise are left out: it differs from run to run.
VOICES = {
    "train": (
        "f1", "m1", "m2", "m3", "m5", "m6", "m7", "klatt", "klatt3", "anika", "Annie", "Alex",
        "Andy", "david", "Gene", "Jacky", "Mario", "Michael", "adam", "belinda", "boris", "ed",
        "grandma", "iven2", "max", "norbert", "steph",
    ),
    "val": ("m4", "linda", "Lee", "Reed"),
    "test": ("m8", "f4", "paul", "Andrea"),
}  # fmt: skip
SLOWEST, FASTEST = 130, 210  # words a minute
LOWEST, HIGHEST = 25, 75  # of eSpeak's 0 to 99


class EspeakSpeech(SpeechSource):
    """Synthetic speech, made at the first use (3400 utterances in about a minute) and kept.

    Every sample is a function of the sizes and of `corpus_seed`. The corpus is a folder of FLAC
    files with a manifest for each split; test voices are unseen in training.

    Args:
        root: The folder of the corpus and its features, in subfolders `espeak` and `features`.
        num_train: The number of training utterances.
        num_val: The number of validation utterances.
        num_test: The number of test utterances.
        corpus_seed: The seed of sentences, voices, speeds and pitches.
        options: See `SpeechSource`.

    Raises:
        ValueError: Too few utterances, or see `SpeechSource`.
    """

    @ranged
    def __init__(
        self,
        root: str,
        *,
        num_train: Sentences = 3000,
        num_val: Sentences = 200,
        num_test: Sentences = 200,
        corpus_seed: Seed = 0,
        **options: Any,
    ):
        super().__init__(root, **options)
        self.sizes = (num_train, num_val, num_test)
        self.corpus_seed = corpus_seed
        name = "-".join(map(str, (VERSION, corpus_seed, *self.sizes)))
        self.folder = self.root / "espeak" / name

    def read(self, split: str) -> list[Utterance]:
        self._synthesise()
        return utterances_of(self.folder / f"{split}.jsonl", self.kind)

    @property
    def shape(self) -> SpeechShape:
        if self.kind != "phones":
            return super().shape
        # Known before anything is spoken, so that a model that cannot be is refused at once.
        return SpeechShape(self.num_mels, self.sample_rate, self.kind, PHONES)

    def _synthesise(self) -> None:
        if self.folder.is_dir():
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder.parent)
        print(f"speaking {sum(self.sizes)} sentences into {self.folder}", flush=True)
        # A new process: what eSpeak spoke before changes its samples.
        fresh = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=fresh, initializer=_end_with_parent) as pool:
            try:
                pool.submit(synthesise, self.folder, self.corpus_seed, self.sizes).result()
            except BaseException:  # a signal, say: the pool would wait for the last sentence
                for process in multiprocessing.active_children():
                    process.terminate()
                raise


def _end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def synthesise(folder: Path, seed: int, sizes: tuple[int, int, int]) -> None:
    """Synthesise a corpus of so many utterances to train, validate and test. Its folder appears
    once it is complete."""
    try:
        with replacing(folder) as partial:
            for i, (split, size) in enumerate(zip(SPLITS, sizes, strict=True)):
                random = np.random.default_rng((VERSION, seed, i))
                (partial / split).mkdir(parents=True)
                with (partial / f"{split}.jsonl").open("w", encoding="utf-8") as manifest:
                    for number in range(size):
                        audio = f"{split}/{number:05d}.flac"
                        row = _speak(random, VOICES[split], partial / audio)
                        manifest.write(json.dumps({"audio": audio, **row}) + "\n")
    except OSError:
        if not folder.is_dir():  # else another process made the same corpus first
            raise


def _speak(random: np.random.Generator, voices: tuple[str, ...], path: Path) -> dict[str, Any]:
    """Write one recording, and return its entry in the manifest."""
    text = sentence(random)
    voice = voices[random.integers(len(voices))]
    spoken = speak(
        text,
        voice=f"en-us+{voice}",
        words_per_minute=int(random.integers(SLOWEST, FASTEST, endpoint=True)),
        pitch=int(random.integers(LOWEST, HIGHEST, endpoint=True)),
    )
    waveform = torch.from_numpy(spoken.samples.astype(np.float32) / 2**15)
    waveform = resample(waveform, SAMPLE_RATE, WRITTEN_RATE)
    soundfile.write(path, waveform.clamp(-1, 1).numpy(), WRITTEN_RATE)
    return {
        "duration": round(len(waveform) / WRITTEN_RATE, 3),
        "speaker": voice,
        "text": text,
        "phones": list(spoken.phones),
        "starts": spoken.starts,
    }
