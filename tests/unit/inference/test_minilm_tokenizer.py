"""Our word pieces are those of the reference tokenizer, on everything we could think of and much that we could not."""

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
from recollect.inference.minilm import install
from recollect.inference.minilm.tokenizer import WordPiece

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
    return WordPiece.read(vocabulary)


@pytest.fixture(scope="module")
def reference(vocabulary):
    model = ReferencePieces.from_file(str(vocabulary), unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True
    )
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def differing(texts: list[str], ours: WordPiece, reference: Callable[[str], list[int]]) -> list[str]:
    return [ascii(text) for text in texts if ours.pieces(text) != reference(text)]


def assigned(stop: int = 0x110000) -> list[str]:
    """Every character this Python knows; of the others it could not tell the lower case."""
    chars = (chr(code) for code in range(stop) if not 0xD800 <= code < 0xE000)
    return [char for char in chars if unicodedata.category(char) != "Cn"]


def test_every_character_between_letters_is_cut_like_the_reference(ours, reference):
    visible = [char for char in assigned() if unicodedata.category(char) != "Co" and not "\uac00" <= char <= "\ud7a3"]
    texts = ["".join(f"x{char}y {char}{char} " for char in visible[at : at + 8]) for at in range(0, len(visible), 8)]
    assert differing(texts, ours, reference) == []


@pytest.mark.parametrize("stop", [0x80, 0x250, 0x700, 0x3100, 0x110000])
def test_random_text_is_cut_like_the_reference(stop, ours, reference):
    source = random.Random(stop)
    chars = assigned(stop)
    texts = ["".join(source.choices(chars, k=source.randrange(1, 60))) for _ in range(1500)]
    assert differing(texts, ours, reference) == []


def test_words_and_accents_and_emoji_are_cut_like_the_reference(ours, reference):
    source = random.Random(1)
    words = """hello Hello HELLO résumé naïve Ångström ÀÉÎÕÜ İstanbul ΣΊΣΥΦΟΣ ﬁnance Straße ẞ don't it's U.S.A. 3.14
        1,000 $5 foo_bar a/b c:\\d e@f.gh #tag @you 👍 👩‍👩‍👧‍👦 🇩🇪 東京 北京大学 한국어 ありがとう ภาษาไทย हिन्दी
        עברית العربية unaffable tokenization antidisestablishmentarianism supercalifragilisticexpialidocious
        [SEP] [CLS] [MASK] ##ing
        \u200b \ufeff \u00a0 \u3000 \u2028 \x00 \x07 \x85 \ufffd e\u0301 a\u0323\u0302 \u302e\u302f""".split(" ")
    texts = [" ".join(source.choices([*words, *CHAT], k=source.randrange(1, 40))) for _ in range(3000)]
    assert differing(texts, ours, reference) == []


def test_words_beyond_a_hundred_characters_are_unknown_like_in_the_reference(ours, reference):
    texts = [letter * size for letter in ("a", "é", "ß", "字") for size in (1, 50, 99, 100, 101, 102, 5000)]
    assert differing(texts, ours, reference) == []
    assert ours.pieces("a" * 101) == [ours.unknown]


def test_control_tokens_written_by_a_user_are_only_text(ours):
    assert not {ours.start, ours.end, ours.pad} & set(ours.pieces("[CLS] forget all [SEP] [PAD]"))


def test_lone_surrogates_and_nul_vanish(ours):
    assert ours.pieces("a\ud800b\x00c \udfff") == ours.pieces("abc")


def test_the_memory_for_words_is_bounded(ours):
    for number in range(200_000):
        ours.pieces(f"w{number}")
    assert len(ours._seen) <= 1 << 16


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"type": "BPE", "vocab": {}}, "normalizer": null}')
    with pytest.raises(BadInput, match="WordPiece"):
        WordPiece.read(path)


def test_a_vocabulary_without_control_tokens_is_refused(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("a\nb\n")
    with pytest.raises(ModelDamaged, match="CLS"):
        WordPiece.read(path)
