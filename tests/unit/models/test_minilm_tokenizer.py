"""WordPiece tokenizer, compared with the reference tokenizer."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece as ReferencePieces
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from recollect.errors import BadInput, ModelDamaged
from recollect.models.minilm.build import install
from recollect.models.minilm.tokenizer import WordPieceTokenizer

CHAT = [
    "Hey Mel! Good to see you :) How have you been?",
    "Caroline: I'm off to the lgbtq support-group tmrw...",
    "W00t!!1",
]


@pytest.fixture(scope="module")
def vocabulary():
    return install() / "vocab.txt"


@pytest.fixture(scope="module")
def ours(vocabulary):
    return WordPieceTokenizer.read(vocabulary)


@pytest.fixture(scope="module")
def reference(vocabulary):
    model = ReferencePieces.from_file(str(vocabulary), unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def find_differences(texts: list[str], ours: WordPieceTokenizer, reference: Callable[[str], list[int]]) -> list[str]:
    return [ascii(text) for text in texts if ours.tokenize(text) != reference(text)]


def list_characters(stop: int = 0x110000) -> list[str]:
    """Return all characters that this Python version knows."""
    chars = (chr(code) for code in range(stop) if not 0xD800 <= code < 0xE000)
    return [char for char in chars if unicodedata.category(char) != "Cn"]


def test_every_character_between_letters_matches_the_reference(ours, reference):
    visible = [
        char for char in list_characters() if unicodedata.category(char) != "Co" and not "\uac00" <= char <= "\ud7a3"
    ]
    texts = ["".join(f"x{char}y {char}{char} " for char in visible[at : at + 8]) for at in range(0, len(visible), 8)]
    assert find_differences(texts, ours, reference) == []


@pytest.mark.parametrize("stop", [0x80, 0x250, 0x700, 0x3100, 0x110000])
def test_random_text_matches_the_reference(stop, ours, reference):
    source = random.Random(stop)
    chars = list_characters(stop)
    texts = ["".join(source.choices(chars, k=source.randrange(1, 60))) for _ in range(1500)]
    assert find_differences(texts, ours, reference) == []


def test_words_accents_and_emoji_match_the_reference(ours, reference):
    source = random.Random(1)
    words = """hello Hello HELLO résumé naïve Ångström ÀÉÎÕÜ İstanbul ΣΊΣΥΦΟΣ ﬁnance Straße ẞ don't it's U.S.A. 3.14
        1,000 $5 foo_bar a/b c:\\d e@f.gh #tag @you 👍 👩‍👩‍👧‍👦 🇩🇪 東京 北京大学 한국어 ありがとう ภาษาไทย हिन्दी
        עברית العربية unaffable tokenization antidisestablishmentarianism supercalifragilisticexpialidocious
        [SEP] [CLS] [MASK] ##ing
        \u200b \ufeff \u00a0 \u3000 \u2028 \x00 \x07 \x85 \ufffd e\u0301 a\u0323\u0302 \u302e\u302f""".split(" ")
    texts = [" ".join(source.choices([*words, *CHAT], k=source.randrange(1, 40))) for _ in range(3000)]
    assert find_differences(texts, ours, reference) == []


def test_words_over_100_characters_are_unknown_like_the_reference(ours, reference):
    texts = [letter * size for letter in ("a", "é", "ß", "字") for size in (1, 50, 99, 100, 101, 102, 5000)]
    assert find_differences(texts, ours, reference) == []
    assert ours.tokenize("a" * 101) == [ours.unknown]


def test_control_tokens_in_text_are_plain_text(ours):
    assert not {ours.start, ours.end, ours.pad} & set(ours.tokenize("[CLS] forget all [SEP] [PAD]"))


def test_lone_surrogates_and_nul_are_removed(ours):
    assert ours.tokenize("a\ud800b\x00c \udfff") == ours.tokenize("abc")


def test_word_cache_is_bounded(ours):
    for number in range(200_000):
        ours.tokenize(f"w{number}")
    assert ours._match_word.cache_info().currsize <= 1 << 16


def test_other_tokenizer_type_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"type": "BPE", "vocab": {}}, "normalizer": null}')
    with pytest.raises(BadInput, match="WordPiece"):
        WordPieceTokenizer.read(path)


def test_vocabulary_without_control_tokens_is_refused(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("a\nb\n")
    with pytest.raises(ModelDamaged, match="CLS"):
        WordPieceTokenizer.read(path)
