"""Conversations as text: chat templates, and which spans of the text the assistant wrote.

Chat templates come with models and may be malicious, so they are rendered in Jinja's sandbox.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from train.data.config import DataConfig
from train.data.files import read_bytes
from train.data.texts import CorpusError, Row
from train.data.tokens import Tokenizer
from train.storage import converted_errors, one_line, parse_location
from train.strict import ConfigError

ASSISTANT = "assistant"

DEFAULT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ message.role }}: {{ message.content }}{{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Chat template for tokenizers without one. The generation prompt ends without a space: byte-pair
encodings join the space before an answer to its first word, so the space is part of the answer."""

ANSWERS = ("answer", "completion")
"""Keys of a row that may contain the answer to its ``prompt``."""


type Message = dict[str, str]
"""A message of a conversation: ``role`` and ``content``."""


class Span(NamedTuple):
    """A part of a conversation's text; ``is_learned`` if the assistant wrote it."""

    text: str
    is_learned: bool


def parse(row: Row) -> list[Message]:
    """Return the conversation of a row: its ``messages``, or its ``prompt`` and answer.

    The answer has one of the keys ANSWERS. Raises CorpusError if the row has no conversation, or if
    no message is the assistant's.
    """
    values = row.values
    answer = next((key for key in ANSWERS if isinstance(values.get(key), str)), None)
    if isinstance(values.get("messages"), list):
        messages = [_message(row.origin, message) for message in values["messages"]]
    elif isinstance(values.get("prompt"), str) and answer:
        messages = [
            {"role": "user", "content": values["prompt"]},
            {"role": ASSISTANT, "content": values[answer]},
        ]
    else:
        keys = ", ".join(map(str, values))[:200]
        raise CorpusError(
            f"{row.origin}: must have messages (a list), or prompt and answer (texts); has: {keys}"
        )
    if not any(message["role"] == ASSISTANT for message in messages):
        raise CorpusError(
            f"{row.origin}: no message has the role {ASSISTANT}, so nothing is learned from it. "
            "Add an answer, or remove this conversation"
        )
    return messages


def _message(origin: str, value: object) -> Message:
    keys = ("role", "content")
    if not isinstance(value, Mapping) or not all(isinstance(value.get(key), str) for key in keys):
        raise CorpusError(f"{origin}: each message must have role and content, both texts")
    return {key: value[key] for key in keys}


class ChatTemplate:
    """A compiled chat template.

    ``identity`` is the template's source and special tokens, which decide how it renders messages.
    """

    def __init__(self, source: str, tokens: Mapping[str, str], origin: str) -> None:
        """Compile a template; ``tokens`` maps bos_token and eos_token to their texts.

        Raises ConfigError if Jinja is not installed or the template is invalid. In the second case,
        the message begins with ``origin``.
        """
        if importlib.util.find_spec("jinja2") is None:
            raise ConfigError(
                "data.documents: chat needs the package jinja2. Add it to worker_extras in "
                "group_vars, then run: ansible-playbook setup.yml"
            )
        import jinja2

        self.source = source
        self.identity = (source, sorted(tokens.items()))
        try:
            self._render = _environment().from_string(source, globals=dict(tokens)).render
        except jinja2.TemplateError as err:
            raise ConfigError(
                f"{origin} is not a chat template: {one_line(err)}. Set data.chat_template to "
                "the file of another template"
            ) from err

    def spans(self, messages: list[Message], origin: str) -> Iterator[list[Span]]:
        """Yield the texts of a conversation, each as a list of spans.

        Usually, there is one text. If the template writes earlier answers differently from the last
        one, for example without their reasoning, there is one text per answer: it ends with this
        answer as the model has to write it, and only this answer is learned. Raises CorpusError,
        whose message begins with ``origin``, if the template refuses the messages.
        """
        text = self._text(messages, origin)
        answers = [i for i, message in enumerate(messages) if message["role"] == ASSISTANT]
        texts = [self._around(messages, i, origin) for i in answers]
        spans, end = [], 0
        for before, after in texts:
            if not text.startswith(after) or len(before) < end:
                break
            spans += [Span(text[end : len(before)], False), Span(after[len(before) :], True)]
            end = len(after)
        else:
            yield [*spans, Span(text[end:], False)]
            return
        for before, after in texts:
            yield [Span(before, False), Span(after[len(before) :], True)]

    def _around(self, messages: list[Message], i: int, origin: str) -> tuple[str, str]:
        """Return two texts: the conversation before the answer ``messages[i]``, and including it.

        Raises CorpusError if the second text does not begin with the first.
        """
        after = self._text(messages[: i + 1], origin)
        before = self._text(messages[:i], origin, add_generation_prompt=True)
        if not after.startswith(before):
            before = self._text(messages[:i], origin)
        if not after.startswith(before):
            raise CorpusError(
                f"{origin}: the chat template renders earlier messages differently once an answer "
                "is added, so the answer cannot be found. Set data.chat_template to the file of "
                "another template"
            )
        return before, after

    def _text(
        self, messages: list[Message], origin: str, add_generation_prompt: bool = False
    ) -> str:
        try:
            return self._render(messages=messages, add_generation_prompt=add_generation_prompt)
        except Exception as err:  # a template can raise any error
            raise CorpusError(
                f"{origin}: the chat template fails: {one_line(err)}. Correct the messages, or set "
                "data.chat_template to the file of another template"
            ) from err


def chat_template(tokenizer: Tokenizer, cfg: DataConfig) -> ChatTemplate:
    """Return the template in the file ``chat_template``, else the tokenizer's, else the default.

    Raises ConfigError if the file cannot be read or the template is invalid.
    """
    origin, source = "data.tokenizer: its chat_template", tokenizer.settings.chat_template
    if cfg.chat_template is not None:
        origin = f"data.chat_template: {cfg.chat_template}"
        with converted_errors(f"{origin} cannot be read"):
            content = read_bytes(parse_location(cfg.chat_template, "data.chat_template"))
        try:
            source = content.decode("utf-8")
        except UnicodeDecodeError as err:
            raise ConfigError(
                f"{origin} cannot be read: it is not UTF-8. Convert the file to UTF-8"
            ) from err
    end = tokenizer.settings.end or tokenizer.decode(tokenizer.end)
    tokens = {"bos_token": tokenizer.settings.begin, "eos_token": end}
    return ChatTemplate(source or DEFAULT_TEMPLATE, tokens, origin)


def _environment() -> Any:
    """Return Jinja's sandbox, set up as Hugging Face's transformers documents it for templates.

    ``strftime_now`` is missing on purpose, because a text must not depend on the date.
    """
    import json

    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Parser of the template tag ``generation``, which marks the assistant's answers.

        The mark has no effect, because ``ChatTemplate.spans`` finds the answers without it.
        """

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: object, indent: int | None = None, **_: object) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment
