"""Bad input to the trainer, given by hand."""

from tests.collections.error_lines.bad import Bad, case


@case("stepz")
def unknown_key(bad: Bad) -> str:
    return bad.train(str(bad.file("stepz: 1\n")))


@case("data: short")
def corpus_shorter_than_a_window(bad: Bad) -> str:
    return bad.train(*short(bad), "model.context=4096")


@case("model.vocabulary")
def vocabulary_that_does_not_fit(bad: Bad) -> str:
    return bad.train(*short(bad), "model.context=8", "model.vocabulary=3")


@case("batch")
def batch_that_is_not_divisible(bad: Bad) -> str:
    return bad.train(*short(bad), "model.context=8", "batch=3", "compute.accumulate=2")


@case("/dev/null/c")
def checkpoints_that_cannot_be_written(bad: Bad) -> str:
    return bad.train(*short(bad), "model.context=8", "checkpoint.directory=/dev/null/c")


def short(bad: Bad) -> list[str]:
    text = bad.file("a few words, " * 9, "short.txt")
    return [
        str(bad.file("steps: 1\n")),
        f"data.text={text}",
        f"data.directory={bad.folder}/data",
        "evaluate.every=0",
    ]
