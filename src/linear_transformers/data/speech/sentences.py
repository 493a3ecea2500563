"""Random grammatical sentences for speech synthesis."""

import numpy as np

# Common words that together have every phone of English in several positions.
WORDS: dict[str, tuple[str, ...]] = {
    "the": ("the", "a", "this", "that", "our", "your", "my", "her", "his", "their", "each", "one"),
    "big": (
        "big", "small", "young", "old", "quick", "lazy", "yellow", "blue", "green", "thin",
        "thick", "loud", "quiet", "joyful", "angry", "clever", "foolish", "smooth", "rough",
        "orange", "purple", "royal", "noisy", "usual", "azure", "casual", "fair", "dark", "rich",
        "poor", "huge", "tiny", "northern", "southern", "foreign", "wooden", "golden", "brave",
        "shy", "cheap", "strange", "heavy", "early", "late", "warm", "cold", "tough", "fresh",
    ),
    "fox": (
        "fox", "dog", "boy", "girl", "teacher", "judge", "farmer", "thief", "mother", "father",
        "brother", "measure", "treasure", "vision", "garage", "voyage", "orchard", "church",
        "bridge", "village", "garden", "house", "mouse", "cow", "owl", "tower", "flower", "bird",
        "nurse", "earth", "worm", "shirt", "king", "queen", "singer", "finger", "thing", "ring",
        "book", "cook", "wood", "foot", "moon", "spoon", "school", "shoe", "juice", "music",
        "window", "yard", "year", "youth", "onion", "lawyer", "zebra", "lion", "tiger", "elephant",
        "giraffe", "monkey", "donkey", "horse", "sheep", "ship", "chip", "coin", "toy", "point",
        "noise", "choice", "engine", "station", "question", "picture", "nature", "weather",
        "feather", "leather", "cloth", "path", "tooth", "month", "glove", "river", "oven", "wave",
        "cave", "cup", "tub", "web", "crab", "bag", "frog", "egg", "peach", "watch", "kitchen",
        "bottle", "apple", "table", "paper", "letter", "doctor", "hammer", "ladder", "camera",
    ),
    "dogs": (
        "dogs", "cats", "horses", "houses", "children", "women", "people", "leaves", "wolves",
        "boxes", "bushes", "judges", "watches", "songs", "stories", "cities", "clouds", "stones",
        "boats", "roads", "bells", "hills", "walls", "wheels", "teeth", "feet", "mice", "geese",
        "shoes", "toys", "days", "ways", "eyes", "ears", "chairs", "fires", "hours", "flowers",
    ),
    "jumps": (
        "jumps over", "looks at", "thinks of", "runs from", "sings to", "talks with", "laughs at",
        "points at", "waits for", "walks past", "sees", "hears", "finds", "loves", "follows",
        "measures", "watches", "washes", "catches", "teaches", "changes", "chooses", "pushes",
        "pulls", "draws", "throws", "knows", "shows", "buys", "tries", "enjoys", "avoids", "counts",
        "shouts at", "hides behind", "believes", "remembers", "forgets", "leaves", "brings",
    ),
    "jump": (
        "jump over", "look at", "think of", "run from", "sing to", "talk with", "laugh at",
        "point at", "wait for", "walk past", "see", "hear", "find", "love", "follow", "measure",
        "watch", "wash", "catch", "teach", "change", "choose", "push", "pull", "draw", "throw",
        "know", "show", "buy", "try", "enjoy", "avoid", "count", "shout at", "hide behind",
    ),
    "today": (
        "today", "tomorrow", "yesterday", "at noon", "in the evening", "on Thursday", "in July",
        "every morning", "with pleasure", "without a reason", "once more", "far away",
        "very slowly", "very quickly", "for an hour", "before the storm", "after the show",
        "near the shore", "under the bridge", "through the wood", "around the corner",
        "beyond the valley",
    ),
    "seven": (
        "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
        "thirteen", "twenty", "thirty", "forty", "a hundred", "a thousand", "many", "few", "some",
    ),
    "they": ("they", "we", "you", "I", "those two", "both of us", "all of them"),
}  # fmt: skip
PATTERNS = (
    "the big fox jumps the fox",
    "the fox jumps the big fox today",
    "they jump the big fox",
    "seven dogs jump the fox today",
    "they jump seven big dogs",
    "today the big fox jumps seven dogs",
    "the fox jumps the dogs",
    "seven big dogs",
    "they jump the fox today",
)


def sentence(random: np.random.Generator) -> str:
    """Return a random sentence, one of some billions."""
    pattern = PATTERNS[random.integers(len(PATTERNS))]
    return " ".join(WORDS[word][random.integers(len(WORDS[word]))] for word in pattern.split())
