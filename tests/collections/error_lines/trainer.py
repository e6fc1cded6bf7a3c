"""Cases of bad input to the trainer's command line."""

from tests.collections.error_lines.bad import Bad, case


@case("stepz")
def unknown_key(bad: Bad) -> str:
    return bad.train(str(bad.file("stepz: 1\n")))


@case("data: short")
def corpus_shorter_than_a_sequence(bad: Bad) -> str:
    return bad.train(*short_corpus(bad), "model.context=4096")


@case("model.vocabulary")
def vocabulary_that_is_too_small(bad: Bad) -> str:
    return bad.train(*short_corpus(bad), "model.context=8", "model.vocabulary=3")


@case("batch")
def batch_that_is_not_divisible(bad: Bad) -> str:
    return bad.train(*short_corpus(bad), "model.context=8", "batch=3", "compute.accumulate=2")


@case("/dev/null/c")
def checkpoints_that_cannot_be_written(bad: Bad) -> str:
    return bad.train(*short_corpus(bad), "model.context=8", "checkpoint.directory=/dev/null/c")


def short_corpus(bad: Bad) -> list[str]:
    text = bad.file("a few words, " * 9, "short.txt")
    return [
        str(bad.file("steps: 1\n")),
        f"data.text={text}",
        f"data.directory={bad.folder}/data",
        "evaluate.every=0",
    ]
