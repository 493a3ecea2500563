"""How well trained translators translate: BLEU and chrF of whole test sets.

    uv run python -m benchmarks.translation RUN [RUN ...]
    uv run python -m benchmarks.translation RUN [RUN ...] --tests test_2016_flickr test_2017_flickr
    uv run --with sacremoses python -m benchmarks.translation RUN --moses de --weights ema

By the beam search of translate.py, and by greedy decoding. Scores are sacrebleu's, with its tokens:
of texts as one writes them, and of lower case. Papers on Multi30k report BLEU of lower case in
Moses' tokens, as the data set's scripts/task1-tokenize.sh makes them: --moses adds it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from sacrebleu.metrics.bleu import BLEU

from benchmarks.collect import source_of
from benchmarks.record import Measurement
from benchmarks.usage import parser_of, trained_models, usable_device
from linear_transformers.data.text import PairSource
from linear_transformers.pictures.tables import markdown
from linear_transformers.runs.folder import folder_of
from linear_transformers.tasks.translation.judging import judged
from linear_transformers.tasks.translation.model import Translator

Judge = Callable[[Sequence[str], Sequence[str]], float]  # of translations and their references


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("ckpts", nargs="+", help="runs or checkpoints")
    parser.add_argument("--tests", nargs="+", help="test splits; unset, that of each run")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are")
    parser.add_argument("--weights", help="ema or raw; unset, those that were tested")
    parser.add_argument("--moses", metavar="LANGUAGE", help="BLEU in Moses' tokens, of de or en")
    parser.add_argument("--length-penalty", type=float, help="of the beam; choose it by val")
    parser.add_argument("--device", type=usable_device, default="cpu")
    parser.add_argument("--name", default="translation", help="the name in results/")
    options = parser.parse_args()
    moses = in_moses_tokens(options.moses) if options.moses else None
    models = trained_models(
        options.ckpts, options.runs, Translator, "pairs of texts",
        device=options.device, weights=options.weights,
    )  # fmt: skip
    sources = [source_of(folder_of(trained.path)) for trained in models]
    seeds = (source["seed"] for source in sources)
    measurement = Measurement(options.name, "Translation", device=options.device, seeds=seeds)
    rows: list[dict[str, Any]] = []
    for trained, source in zip(models, sources, strict=True):
        splits = [{"test": test} for test in options.tests] if options.tests else [{}]
        for split in splits:
            data = trained.data.with_options(**split)()
            chosen = {"weights": options.weights, "length_penalty": options.length_penalty}
            chosen = {name: value for name, value in chosen.items() if value is not None}
            about = described(trained, source) | chosen | split
            rows.append(about | scores(trained, data, moses, options.length_penalty))
    written = measurement.save(rows, sources=sources)
    Console().print(f"{markdown(rows)}\nwritten to {written}", soft_wrap=True)


def described(trained: Translator, source: dict[str, Any]) -> dict[str, Any]:
    """Return what was trained, for how long."""
    size = sum(parameter.numel() for parameter in trained.task.model.parameters())
    return {
        "run": source["run"],
        "seed": source["seed"],
        "model": trained.task.description,
        "parameters": size,
        "minutes": round(source["seconds"] / 60),
    }


def scores(
    trained: Translator, data: PairSource, moses: Judge | None, length_penalty: float | None
) -> dict[str, float]:
    """Return how near the translations of all test sources are to their targets."""
    pairs = data.pairs("test")
    texts, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    found: dict[str, float] = {"pairs": len(pairs)}
    penalty: dict[str, Any] = {} if length_penalty is None else {"length_penalty": length_penalty}
    for suffix, options in (("", penalty), ("_greedy", {"beam": 1})):
        best = [hypotheses[0].text for hypotheses in trained.translate(texts, **options)]
        for score in judged(best, references):
            found[f"{score.name}{suffix}"] = round(score.value, 2)
        if moses:
            found[f"BLEU_moses{suffix}"] = round(moses(best, references), 2)
    return found


def in_moses_tokens(language: str) -> Judge:
    """Return BLEU of lower case in Moses' tokens of a language, its punctuation normalised."""
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # pyright: ignore
    except ModuleNotFoundError as error:
        raise SystemExit(
            "error: --moses needs sacremoses. Call this with uv run --with sacremoses."
        ) from error
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)

    def tokens(texts: Sequence[str]) -> list[str]:
        normal = (normalizer.normalize(text.lower()) for text in texts)
        return [tokenizer.tokenize(text, return_str=True) for text in normal]

    def judge(found: Sequence[str], references: Sequence[str]) -> float:
        metric = BLEU(tokenize="none", force=True)  # they are tokens, as it would warn of
        return metric.corpus_score(tokens(found), [tokens(references)]).score

    return judge


if __name__ == "__main__":
    main()
