"""Configuration of the text to train on: its sources and its preparation."""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from train.strict import Bound


@dataclass(frozen=True)
class DatasetConfig:
    """A dataset of the Hugging Face hub, or a directory that the package ``datasets`` can read."""

    id: str | None = None
    """``owner/name`` on the hub, or a directory; replaces ``data.corpus``."""
    name: str | None = None
    """The dataset's configuration, if it has several."""
    split: str = "train"
    """A split, or a slice of one: ``train[:1%]``."""
    text_key: str = "text"
    """The column of the dataset that contains the text; for files named ``*.jsonl`` in
    ``data.text``, the key of each line."""


@dataclass(frozen=True)
class SourceConfig:
    """Source of text: a packaged corpus, files, or a dataset."""

    corpus: str = "shakespeare"
    """A corpus that comes with the trainer; there is only ``shakespeare``."""
    text: str | None = None
    """A path or a glob pattern of files, on disk or gs://; replaces ``corpus``. Each file is a
    document; in a file named ``*.jsonl``, each line is a document (see ``dataset.text_key``). Files
    compressed by gzip have the further suffix ``.gz``."""
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    documents: Literal["joined", "packed", "chat"] = "joined"
    """``joined``: sequences start anywhere in the joined text. ``packed``: sequences contain whole
    documents, each of which attends only to itself. ``chat``: like ``packed``, with conversations
    of which only the assistant's messages are learned. Documents longer than a sequence are divided
    (``packed``) or cut (``chat``)."""


@dataclass(frozen=True)
class MixedConfig(SourceConfig):
    """A source of a mixture."""

    weight: Annotated[float, Bound(minimum=0, above=True)] = 1.0
    """The source's share of the sequences, relative to the weights of all sources."""


@dataclass(frozen=True)
class DataConfig(SourceConfig):
    """The text to train on: one or several sources, and how they are prepared."""

    mixture: tuple[MixedConfig, ...] = ()
    """Several sources instead of one. Each has the keys ``corpus``, ``text``, ``dataset`` and
    ``documents``, which must then not be set in ``data`` itself, and ``weight``: the source's share
    of the sequences, relative to the weights of all sources (default 1)."""
    tokenizer: str = "ascii"
    """``ascii`` (128 tokens, accents dropped), ``bytes`` (256 tokens, UTF-8), ``bpe`` (trained on
    the text), the path of a tokenizer.json (on disk or gs://), or a repository on the Hugging Face
    hub (``owner/name`` or ``owner/name@revision``)."""
    chat_template: str | None = None
    """A file with a Jinja template for ``documents: chat``; null means the tokenizer's own."""
    vocabulary: Annotated[int, Bound(minimum=257)] = 8192
    """Vocabulary size of ``tokenizer: bpe``; other tokenizers ignore it."""
    heldout: Annotated[float, Bound(minimum=0, maximum=0.9)] = 0.1
    """Fraction of the tokens, from the end of the text, that is held out for evaluation and never
    trained on."""
    directory: str | None = None
    """Directory of prepared corpora and downloads; null means /var/lib/tpufleet/data if this user
    can write to it (as on workers), otherwise ``~/.cache/tpufleet/data``."""

    @property
    def sources(self) -> tuple[SourceConfig, ...]:
        """The sources of the text: those of the mixture, or the only one."""
        return self.mixture or (self,)

    @property
    def weights(self) -> list[float]:
        """The weights of the sources."""
        return [source.weight for source in self.mixture] or [1.0]

    @property
    def is_packed(self) -> bool:
        """Whether sequences are packed (data/sequences.py): if any source is not ``joined``."""
        return any(source.documents != "joined" for source in self.sources)


def source_problems(data: DataConfig) -> Iterator[str]:
    """Yield the contradictions between keys of ``data``, each as a message with the key."""
    for source in (data, *data.mixture):
        if source.text is not None and source.dataset.id is not None:
            yield "data: text and dataset.id are both set. Set only one"
    default = DataConfig()
    replaced = (field.name for field in fields(SourceConfig))
    if data.mixture and any(getattr(data, key) != getattr(default, key) for key in replaced):
        yield "data: mixture replaces corpus, text, dataset and documents. Set them in its entries"
    if data.tokenizer == "bpe" and (data.mixture or data.documents == "chat"):
        yield (
            "data.tokenizer: bpe is trained on one text. For a mixture or conversations, use "
            "the path of a tokenizer.json, ascii or bytes"
        )
