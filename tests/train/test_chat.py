"""Conversations: chat templates, learned tokens, and special tokens that a tokenizer adds."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from train.core import model
from train.core.config import Config, ConfigError, DataConfig, build
from train.core.data import Corpus
from train.data import tokens
from train.data.chat import DEFAULT_TEMPLATE, ChatTemplate
from train.data.corpus import prepare, prepare_all, read_meta, read_tokenizer
from train.data.texts import CorpusError
from train.run.sample import generate

CHATML = """\
{{- bos_token }}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
WITHOUT_EARLIER_REASONING = """\
{%- for message in messages %}
    {%- if message.role == 'assistant' and not loop.last %}
        {{- 'A:' + message.content.split('</think>')[-1] + '<|im_end|>' }}
    {%- elif message.role == 'assistant' %}
        {%- generation %}{{- 'A:' + message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- 'U:' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'A:' }}{%- endif %}
"""
TALK = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "who is come"},
    {"role": "assistant", "content": "the king"},
    {"role": "user", "content": "caf\u00e9 \u4e16?"},
    {"role": "assistant", "content": " no \u4e16"},
]
SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>"]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, "data.chat_template: t")


def learned_texts(source: str, rows: list[dict[str, str]]) -> list[list[str]]:
    texts = template(source).spans(rows, "talk")
    return [[span.text for span in spans if span.is_learned] for spans in texts]


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tokenizer.json of a byte-pair encoding with special tokens; it puts <s> before a text."""
    from tokenizers import Tokenizer, processors

    directory = tmp_path_factory.mktemp("tokenizer")
    encoding = Tokenizer.from_str(tokens.train_bpe(["who is come the king"] * 9, 280).decode())
    encoding.add_special_tokens(SPECIAL)
    begin = encoding.token_to_id("<s>")
    encoding.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", begin)]
    )
    encoding.save(str(directory / "tokenizer.json"))
    settings = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "<|im_end|>",
        "chat_template": [
            {"name": "tool_use", "template": "{{ 1 / 0 }}"},
            {"name": "default", "template": CHATML},
        ],
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    (directory / "generation_config.json").write_text('{"eos_token_id": 3}')
    return directory / "tokenizer.json"


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    rows = [{"messages": TALK}, {"prompt": "who", "answer": "all"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    return path


@pytest.fixture
def prepare_talk(tmp_path: Path, talk: Path) -> Callable[..., Path]:
    def prepare_it(**changes: object) -> Path:
        keys = {
            "text": str(talk),
            "documents": "chat",
            "directory": str(tmp_path / "data"),
            "heldout": 0.0,
        }
        return prepare(DataConfig(**keys | changes))

    return prepare_it


def test_only_answers_and_their_end_tokens_are_learned():
    assert learned_texts(CHATML, TALK) == [["the king<|im_end|>\n", " no \u4e16<|im_end|>\n"]]
    assert learned_texts(DEFAULT_TEMPLATE, TALK[1:3]) == [[" the king</s>"]]
    [spans] = template(CHATML).spans(TALK, "talk")
    text = "<s>" + "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TALK)
    assert "".join(span.text for span in spans) == text


def test_a_template_that_rewrites_earlier_answers_gives_one_text_per_answer():
    rows = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "<think>a</think>x"},
        {"role": "user", "content": "2"},
        {"role": "assistant", "content": "<think>b</think>y"},
    ]
    texts = template(WITHOUT_EARLIER_REASONING).spans(rows, "talk")
    assert [[(span.text, span.is_learned) for span in spans] for spans in texts] == [
        [("U:1A:", False), ("<think>a</think>x<|im_end|>", True)],
        [("U:1A:x<|im_end|>U:2A:", False), ("<think>b</think>y<|im_end|>", True)],
    ]


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include '/etc/passwd' %}",
        "{{ strftime_now('%Y') }}",
        "{{ raise_exception('no system messages') }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox_and_its_failure_is_one_line(source: str):
    with pytest.raises(CorpusError, match=r"^talk: the chat template fails: \w+") as error:
        learned_texts(source, TALK)
    assert "\n" not in str(error.value)


def test_an_invalid_template_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"^data\.chat_template: t is not a chat template: Temp"):
        template("{% for %}")


def test_a_template_that_changes_earlier_messages_is_refused():
    with pytest.raises(CorpusError, match=r"the answer cannot be found\. Set data\.chat_template"):
        learned_texts("{{ messages | length }}{{ messages[-1].content }}", TALK)


def test_a_prepared_conversation_uses_the_tokenizer_s_template_and_tokens(
    prepare_talk: Callable[..., Path], tokenizer_file: Path
):
    directory = prepare_talk(tokenizer=str(tokenizer_file))
    meta = read_meta(directory)
    tokenizer = tokens.read_file(tokenizer_file)
    token_ids = np.fromfile(directory / "train.bin", tokenizer.dtype)
    learned = np.fromfile(directory / "train.learned", bool)
    assert meta.documents == "chat"
    answers = tokenizer.decode(token_ids[learned])
    assert answers == 4 * "the king<|im_end|>\n no \u4e16<|im_end|>\nall<|im_end|>\n"
    end, begin = (tokenizer.encoding.token_to_id(name) for name in ("<|im_end|>", "<s>"))
    assert np.sum(token_ids == begin) == 8
    assert np.sum(token_ids[learned] == end) == 12


@pytest.mark.parametrize("trimmed", [False, True])
def test_a_token_with_any_character_of_an_answer_is_learned(tokenizer_file: Path, trimmed: bool):
    from tokenizers import Tokenizer, processors

    encoding = Tokenizer.from_file(str(tokenizer_file))
    encoding.post_processor = processors.ByteLevel(trim_offsets=trimmed)
    tokenizer = tokens.from_definition(encoding.to_str().encode())
    spans = [("who is ", False), ("come  the", True), ("re is   ", False), (" king", True)]
    [(token_ids, learned)] = tokenizer.encode_marked([spans])
    assert tokenizer.decode(token_ids) == "who is come  there is    king"
    assert tokenizer.decode(token_ids[learned]) == " come  the king"


def test_a_corpus_keeps_tokenizer_and_chat_template_for_an_export(
    prepare_talk: Callable[..., Path], tokenizer_file: Path, tmp_path: Path
):
    def exported_files(directory: Path) -> dict[str, bytes]:
        tokenizer = read_tokenizer(directory, read_meta(directory))
        (tmp_path / directory.name).mkdir()
        tokenizer.write(tmp_path / directory.name)
        return {path.name: path.read_bytes() for path in (tmp_path / directory.name).iterdir()}

    (tmp_path / "mine.jinja").write_text(DEFAULT_TEMPLATE)
    tokenizer_files = {path.name: path.read_bytes() for path in tokenizer_file.parent.iterdir()}
    assert len(tokenizer_files) == 4
    (tmp_path / "bare").mkdir()
    bare = shutil.copy(tokenizer_file, tmp_path / "bare")
    corpus_of_bare = prepare_talk(tokenizer=str(bare))
    default_corpus = prepare_talk(tokenizer=str(tokenizer_file))
    custom_corpus = prepare_talk(
        tokenizer=str(tokenizer_file), chat_template=str(tmp_path / "mine.jinja")
    )
    assert exported_files(corpus_of_bare) == {
        "tokenizer.json": tokenizer_files["tokenizer.json"],
        "chat_template.jinja": DEFAULT_TEMPLATE.encode(),
    }
    assert exported_files(default_corpus) == tokenizer_files
    assert exported_files(custom_corpus) == tokenizer_files | {
        "chat_template.jinja": DEFAULT_TEMPLATE.encode()
    }


def test_a_mixture_exports_the_template_of_its_conversations(
    talk: Path, tokenizer_file: Path, tmp_path: Path
):
    (tmp_path / "a.txt").write_text("who is come " * 100)
    (tmp_path / "mine.jinja").write_text(DEFAULT_TEMPLATE)
    data = {
        "mixture": [
            {"text": str(tmp_path / "a.txt")},
            {"text": str(talk), "documents": "chat"},
        ],
        "tokenizer": str(tokenizer_file),
        "chat_template": str(tmp_path / "mine.jinja"),
        "directory": str(tmp_path / "data"),
    }
    cfg = build({"data": data, "model": {"context": 40, "vocabulary": 512}})
    corpus = Corpus(prepare_all(cfg.data), cfg)
    assert corpus.tokenizer.settings.chat_template == DEFAULT_TEMPLATE


def test_the_default_template_writes_the_roles(prepare_talk: Callable[..., Path]):
    directory = prepare_talk(tokenizer="bytes")
    text = (directory / "train.bin").read_bytes()
    assert text.startswith(b"system: be brief\n\nuser: who is come\n\nassistant: the king\n\n")
    learned = np.fromfile(directory / "train.learned", bool)
    assert bytes(np.frombuffer(text, np.uint8)[learned]).startswith(b" the king\n\n  no ")


def test_a_file_without_conversations_has_nothing_to_train_on(
    prepare_talk: Callable[..., Path], talk: Path, make_config: Callable[..., Config]
):
    talk.write_text("")
    directory = prepare_talk(tokenizer="bytes")
    cfg = make_config(data={"tokenizer": "bytes"}, model={"vocabulary": 256})
    with pytest.raises(ConfigError, match=r"^data: talk has 0 tokens to train on"):
        Corpus([directory], cfg)


def test_another_chat_template_changes_the_corpus(
    prepare_talk: Callable[..., Path], tmp_path: Path
):
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    directory = prepare_talk(chat_template=str(tmp_path / "mine.jinja"))
    assert directory != prepare_talk()
    assert (directory / "train.bin").read_bytes().startswith(b"<be brief><who is come><the king>")
    (tmp_path / "mine.jinja").unlink()
    with pytest.raises(ConfigError, match=r"^data\.chat_template: .* cannot be read: No such file"):
        prepare_talk(chat_template=str(tmp_path / "mine.jinja"))


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (
            {"text": "a"},
            r"must have messages \(a list\), or prompt and answer \(texts\); has: text",
        ),
        ({"messages": [{"role": "user"}]}, "each message must have role and content, both texts"),
        (
            {"messages": TALK[:2]},
            "no message has the role assistant, so nothing is learned from it",
        ),
    ],
)
def test_a_row_that_is_no_conversation_is_refused_with_its_line_number(
    prepare_talk: Callable[..., Path], talk: Path, row: dict, error: str
):
    talk.write_text(json.dumps(row) + "\n")
    with pytest.raises(CorpusError, match=rf"talk\.jsonl:1: {error}"):
        prepare_talk()


def test_chat_refuses_plain_text(prepare_talk: Callable[..., Path], tmp_path: Path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(ConfigError, match=r"data\.documents: chat needs JSON lines or a dataset"):
        prepare_talk(text=str(tmp_path / "a.txt"))


def test_documents_begin_and_end_with_the_tokenizer_s_own_tokens(
    tokenizer_file: Path, tmp_path: Path
):
    for i in range(2):
        (tmp_path / f"{i}.txt").write_text("the king")
    cfg = DataConfig(
        text=str(tmp_path / "*.txt"),
        tokenizer=str(tokenizer_file),
        directory=str(tmp_path),
        heldout=0,
        documents="packed",
    )
    tokenizer = tokens.read_file(tokenizer_file)
    token_ids = np.fromfile(prepare(cfg) / "train.bin", tokenizer.dtype)
    assert tokenizer.decode(token_ids) == 2 * "<s>the king<|im_end|>"
    assert tokenizer.decode([*tokenizer.end, *tokenizer.begin]) == "<|im_end|><s>"


def test_a_sample_begins_with_the_tokenizer_s_own_tokens(tokenizer_file: Path, no_mesh: None):
    tokenizer = tokens.read_file(tokenizer_file)
    plain = replace(tokenizer, begin=np.array([], np.uint32))
    shape = {"layers": 1, "heads": 2, "width": 16, "context": 16, "vocabulary": 300}
    texts = []
    for prompt, used in (("the", tokenizer), ("<s>the", plain), ("the", plain)):
        cfg = build({"model": shape, "sample": {"prompt": prompt, "length": 8, "temperature": 0}})
        params = model.init_params(jax.random.key(0), cfg.model)
        texts.append(generate({n: 9 * a for n, a in params.items()}, cfg, used))
    assert f"<s>{texts[0]}" == texts[1]
    assert texts[0] != texts[2]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ("[]", "tokenizer_config.json is not valid: must be a JSON object"),
        ('{"eos_token": 3}', "tokenizer_config.json is not valid: eos_token must be text, not 3"),
        ('{"eos_token": "<end>"}', "it has no token '<end>', which tokenizer_config.json names as"),
    ],
)
def test_invalid_settings_of_a_tokenizer_are_refused(
    tokenizer_file: Path, tmp_path: Path, settings: str, error: str
):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(settings)
    with pytest.raises(ConfigError, match=rf"^data\.tokenizer: {tmp_path}.*{error}"):
        tokens.read_file(tmp_path / "tokenizer.json")


def test_a_conversation_without_an_answer_in_the_context_is_left_out(
    prepare_talk: Callable[..., Path], talk: Path, caplog: pytest.LogCaptureFixture
):
    rows = [{"prompt": "w" * 100, "answer": "all"}, {"prompt": "who", "answer": "all"}]
    talk.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"text": str(talk), "documents": "chat", "directory": str(talk.parent / "data")}
    cfg = build({"data": data | {"heldout": 0}, "model": {"context": 40}})
    corpus = Corpus(prepare_all(cfg.data), cfg)
    assert "train: 1 of 2 documents are left out: no learned token" in caplog.text
    learned = corpus.rows(0)[:, 3] > 0
    assert {
        corpus.tokenizer.decode(row[mask])
        for row, mask in zip(corpus.rows(0)[:, 0], learned, strict=True)
    } == {" all\n\n"}
