"""Writes the texts and fp32 vectors that the int8 model is compared with: `make_minilm_reference.py WEIGHTS_DIRECTORY`.

The directory holds the original `model.safetensors` and `vocab.txt`. Run again only when the texts change.
"""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

import numpy as np

from recollect.models.minilm import build, model_files
from recollect.models.minilm.model import MAX_TOKENS
from recollect.models.minilm.tokenizer import WordPieceTokenizer

OUT = Path(__file__).resolve().parent.parent / "tests" / "unit" / "inference" / "data"
COUNT = 200

SHORT = """
Yes. | No it is not. | I see! | What? | Thanks, Anna | ok | 42 | Berlin | Why not | I like it. | maybe later
This is not a good idea. | see you at 7 | not today | he did | :-) | Can you do it? | Happy birthday!! | A dog.
"""
FOREIGN = """
Der Zug nach München fährt um 17:45 Uhr ab. | J'ai déjà réservé une chambre près de la gare.
El niño comió manzanas. | Она работает врачом в Петербурге. | 私は昨日新しい自転車を買いました。
他住在北京，喜欢喝茶。 | 오늘은 날씨가 좋네요. | मुझे चाय पसंद है। | Zażółć gęślą jaźń. | אני גר בתל אביב
Η γάτα κοιμάται στον καναπέ. | أحب القهوة في الصباح. | Tôi thích đọc sách. | Hyvää huomenta, Väinö!
Kahve mi içelim, çay mı? | Jag flyttade till Malmö 2019.
"""
CODE = [
    "def add(a, b):\n    return a + b  # adds two numbers",
    "SELECT name, count(*) FROM users WHERE age >= 21 GROUP BY name ORDER BY 2 DESC;",
    'curl -X POST "http://localhost:8080/api/v1/items?limit=10" -d \'{"id": 7}\'',
    "Traceback (most recent call last): KeyError: 'user_id' at line 118 of handlers.py",
    "for (let i = 0; i < xs.length; i++) { total += xs[i] * 1.19; }",
    "git rebase -i HEAD~3 && make test || echo 'failed: $?'",
    "{'temperature': 21.5, 'unit': 'C', 'ok': True, 'tags': ['a', 'b']}",
    "error[E0382]: borrow of moved value: `buffer`",
]
NUMBERS = [
    "The invoice 2024-0117 over 1,249.90 EUR is due on 03/15/2024.",
    "3.14159265358979 2.718281828 1.41421356 0.57721566",
    "Call +49 30 1234567, extension 89, between 9:00 and 17:30.",
    "Room 404, floor 4, gate B12, seat 17A, flight LH1234",
    "1 2 3 5 8 13 21 34 55 89 144",
    "His blood pressure was 128/82 on Monday and 135/88 on Friday.",
]
PEOPLE = ["Caroline", "Melanie", "Tom", "Aisha", "my brother", "the new manager", "Dr. Weber", "our neighbour"]
DEEDS = [
    "adopted a puppy from the shelter",
    "signed up for a pottery class",
    "moved to Lisbon for work",
    "broke an ankle while skiing",
    "wants to run the marathon next spring",
    "is allergic to peanuts and shellfish",
    "painted a lake at sunrise",
    "started a support group for new parents",
    "lost the keys to the office again",
    "prefers tea over coffee in the morning",
]
WHEN = [
    "last week",
    "two years ago",
    "in May 2023",
    "yesterday",
    "after the funeral",
    "on her birthday",
    "every summer",
]
HOW = ["It went really well.", "I am so proud!", "Nobody expected that.", "What do you think?", "It cost a fortune."]


def texts(source: random.Random) -> list[str]:
    """Return texts that are short, long, technical, numeric, foreign, or in no language."""
    listed = [text.strip() for block in (SHORT, FOREIGN) for text in re.split(r"[|\n]", block.strip())]
    fixed = [*listed, *CODE, *NUMBERS]
    made: list[str] = []
    while len(fixed) + len(made) < COUNT:
        sentences = [
            f"{source.choice(PEOPLE)} {source.choice(DEEDS)} {source.choice(WHEN)}. {source.choice(HOW)}"
            for _ in range(source.choice((1, 1, 1, 2, 3, 6, 10)))
        ]
        noise = "".join(chr(source.randrange(33, 0x500)) for _ in range(source.randrange(5, 60)))
        made.append(noise if len(made) % 12 == 11 else " ".join(sentences))
    return [*fixed, *made][:COUNT]


def main(directory: Path) -> None:
    import onnxruntime

    raw = model_files.find_weights_in(directory)
    if raw is None or model_files.hash_file(raw.tensors) != model_files.WEIGHTS_SHA256:
        sys.exit(f"{directory} does not hold the original model.safetensors and vocab.txt")
    words = WordPieceTokenizer.read(raw.vocabulary)
    model = build.build_fp32_graph(build.read_safetensors(raw.tensors), build.EncoderShape(heads=12))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    chosen = texts(random.Random(20))
    vectors = []
    for text in chosen:
        pieces = words.tokenize(text)
        if len(pieces) > MAX_TOKENS:
            sys.exit(f"too long to be one passage: {text[:60]}")
        ids = np.array([[words.start, *pieces, words.end]], np.int32)
        vectors.append(session.run(["sentence"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0])
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "minilm_reference.json").write_text(json.dumps(chosen, ensure_ascii=False, indent=0) + "\n", "utf-8")
    np.save(OUT / "minilm_reference.npy", np.array(vectors, np.float16))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
