"""eSpeak NG as a function from a text to a recording and its phones.

The library reports each phone and its time as it speaks: transcripts need no dictionary.
"""

import ctypes
from functools import cache
from typing import NamedTuple

import numpy as np

SAMPLE_RATE = 22050
SYNCHRONOUS, PHONEME_EVENTS, DONT_EXIT = 2, 1, 0x8000
END_OF_EVENTS, PHONEME = 0, 7
UTF8, RATE, PITCH = 1, 1, 3

# eSpeak's phonemes of American English as phones of CMUdict, without stress.
ARPABET = {
    "a": "AE", "aa": "AE", "a#": "AH", "A:": "AA", "A@": "AA R", "A#": "AA", "0": "AA", "0#": "AA",
    "E": "EH", "E#": "EH", "e@": "EH R", "3": "ER", "3:": "ER", "I": "IH", "I#": "IH", "I2": "IH",
    "i": "IY", "i:": "IY", "i@": "IH R", "i@3": "IH R", "I@": "IH R", "O": "AO", "O:": "AO",
    "O2": "AO", "O@": "AO R", "o@": "AO R", "U": "UH", "U@": "UH R", "u:": "UW", "u": "UW",
    "V": "AH", "@": "AH", "@2": "AH", "@5": "AH", "@-": "AH", "@L": "AH L", "IR": "ER",
    "VR": "ER R", "aI": "AY", "aI@": "AY AH", "aI3": "AY ER", "aU": "AW", "aU@": "AW ER",
    "eI": "EY", "OI": "OY", "oU": "OW", "oU#": "OW",
    "p": "P", "b": "B", "t": "T", "t2": "T", "t#": "T", "d": "D", "d#": "D", "k": "K", "g": "G",
    "tS": "CH", "dZ": "JH", "f": "F", "v": "V", "T": "TH", "D": "DH", "s": "S", "z": "Z",
    "z/2": "Z", "z#": "Z", "S": "SH", "Z": "ZH", "h": "HH", "m": "M", "n": "N", "N": "NG",
    "l": "L", "l#": "L", "r": "R", "r-": "R", "r/": "R", "j": "Y", "w": "W", "n-": "AH N",
    "m-": "AH M", "?": "", ";": "",
}  # fmt: skip


class Spoken(NamedTuple):
    """A recording and its phones.

    Attributes:
        samples: The 16-bit samples, at `SAMPLE_RATE`.
        phones: The phones, of CMUdict's set.
        starts: The start of each phone, in seconds.
    """

    samples: np.ndarray
    phones: tuple[str, ...]
    starts: tuple[float, ...]


class _Id(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int), ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int), ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int), ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p), ("id", _Id),
    )  # fmt: skip


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


def speak(text: str, *, voice: str, words_per_minute: int, pitch: int) -> Spoken:
    """Synthesise a text.

    Args:
        text: The English text.
        voice: The voice: `en-us`, or a variant such as `en-us+f3`.
        words_per_minute: The speed; eSpeak's default is 175.
        pitch: The pitch, 0 to 99; 50 is the voice's default.
    """
    library = _library()
    pieces: list[np.ndarray] = []
    events: list[tuple[float, str]] = []

    def collect(samples, count: int, event) -> int:
        if samples and count:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        i = 0
        while event[i].type != END_OF_EVENTS:
            if event[i].type == PHONEME:
                name = event[i].id.string.decode()
                events.append((event[i].audio_position / 1000, name))
            i += 1
        return 0

    callback = _Callback(collect)
    library.espeak_SetSynthCallback(callback)
    done = library.espeak_SetVoiceByName(voice.encode())
    assert done == 0, f"eSpeak has no voice {voice}"
    library.espeak_SetParameter(RATE, words_per_minute, 0)
    library.espeak_SetParameter(PITCH, pitch, 0)
    encoded = text.encode()
    library.espeak_Synth(encoded, len(encoded) + 1, 0, 1, 0, UTF8, None, None)
    phones = [(start, phone) for start, name in events for phone in _arpabet(name)]
    starts, names = zip(*phones, strict=True) if phones else ((), ())
    return Spoken(np.concatenate(pieces), names, starts)


def _arpabet(name: str) -> list[str]:
    """Return the phones of one of eSpeak's phonemes; a pause has none."""
    bare = name.lstrip("',%=").rstrip("`")
    if bare.startswith("_") or bare in ("", "|", "||", ":"):
        return []
    return ARPABET[bare].split()


@cache
def _library() -> ctypes.CDLL:
    import espeakng_loader  # synthesis alone needs it

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(
        SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), PHONEME_EVENTS | DONT_EXIT
    )
    assert rate == SAMPLE_RATE, f"eSpeak could not be started ({rate})"
    return library
