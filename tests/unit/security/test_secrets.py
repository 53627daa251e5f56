"""Detection and redaction of secrets and personal data, in linear time."""

from __future__ import annotations

import random
import string
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import BadSettings, SecretRefused
from recollect.security.redaction import RedactionPolicy, add_sensitive_kinds
from recollect.security.secrets import find_secrets, is_card, is_iban
from recollect.settings import Settings

RANDOM_PART = "aB3dE5gH7jK9mN1pQ2sT4vW6xY8zC0fR"
# Assembled here, so that secret scanners do not report this file.
SECRETS = [
    ("anthropic api key", f"sk-ant-api03-{RANDOM_PART}"),
    ("openai api key", f"sk-proj-{RANDOM_PART}"),
    ("openai api key", f"sk-{RANDOM_PART}{RANDOM_PART[:16]}"),
    ("aws access key", "AKIA" + "Q3E7ZP5KX9WL2MDT"),
    ("github token", f"ghp_{RANDOM_PART}aB3d"),
    ("github token", f"github_pat_{RANDOM_PART}"),
    ("gitlab token", f"glpat-{RANDOM_PART[:20]}"),
    ("slack token", "xoxb-" + "123456789012-abCDefGHijKL"),
    ("google api key", f"AIza{RANDOM_PART}aB3"),
    ("stripe key", f"sk_live_{RANDOM_PART}"),
    ("hugging face token", f"hf_{RANDOM_PART}aB"),
    ("npm token", f"npm_{RANDOM_PART}aB3d"),
    ("sendgrid key", f"SG.{RANDOM_PART[:22]}.{RANDOM_PART}aB3dE5gH7jK"),
    ("json web token", f"eyJ{RANDOM_PART}.eyJ{RANDOM_PART}.{RANDOM_PART}"),
    ("private key", "-----BEGIN RSA PRIVATE KEY-----\n" + RANDOM_PART * 4 + "\n-----END RSA PRIVATE KEY-----"),
    ("payment card", "4111 1111 1111 1111"),
    ("payment card", "5500-0000-0000-0004"),
    ("payment card", "378282246310005"),
    ("us social security number", "078-05-1120"),
    ("password in a url", "hunter2x"),
    ("password", "correct-horse"),
    ("secret", "9f8e7d6c5b4a39281706"),
    ("iban", "DE89 3704 0044 0532 0130 00"),
    ("iban", "GB29NWBK60161331926819"),
    ("email", "ada.lovelace+x@mail.example.org"),
    ("phone", "+44 20 7946 0958"),
    ("phone", "(555) 123-4567"),
]  # fmt: skip
TEMPLATES = {
    "password in a url": "postgres://ada:{}@db.example/x",
    "password": 'password="{}"',
    "secret": "api_key={}",
}


@pytest.mark.parametrize(("kind", "secret"), SECRETS)
def test_each_kind_is_found_at_its_position(kind: str, secret: str):
    text = TEMPLATES.get(kind, "We noted {} for later.").format(secret)
    [found] = find_secrets(text)
    assert (found.kind, text[found.start : found.end]) == (kind, secret)


@pytest.mark.parametrize(
    "text",
    [
        "The password: see below.",
        "password = os.environ['DB']",
        "token: required",
        "Set api_key to your own key.",
        "4111 1111 1111 1112",  # Luhn
        "order 1234567890123456",
        "DE89 3704 0044 0532 0130 01",
        "666-12-3456 and 123-00-4567",
        "On 2026-11-15 at 10:30, version 3.11.4, 1,234,567 rows in 0.25 s",
        "task-force-of-the-small-and-very-old-town",
        "sk-learn is a library, and sk-xxxxxxxxxxxxxxxxxxxxxxxx a placeholder",
        "@property and user@localhost",
        "https://example.org/a:b@c",
        "sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "pwd: /home/ada/projects",
        "PWD=/srv and OLDPWD=/home/ada/work-2024",
        "password: ~/.pgpass",
        r"passwd = C:\\keys\\db.txt",
        "password=/run/secrets/db-password",
    ],
)
def test_similar_text_is_not_a_secret(text: str):
    assert find_secrets(text) == []


@pytest.mark.parametrize("value", ["/x9Jk2LmQ", "/bPxRfiCYzK7/EXq1LmNoPq", "correct/horse", "/hunter2!", "//s3cr3t//"])
def test_password_with_slashes_is_not_a_path(value: str):
    # Mutant: every text with a slash is a path.
    [found] = find_secrets(f"password={value} for guests")
    assert found.kind == "password"


@pytest.mark.parametrize(
    ("text", "password"),
    [("my password is hunter2", "hunter2"), ("The wifi passphrase was Sunny-Day-42, I think.", "Sunny-Day-42")],
)
def test_password_in_prose_is_found(text: str, password: str):
    [found] = find_secrets(text)
    assert (found.kind, text[found.start : found.end]) == ("password", password)


@pytest.mark.parametrize(
    "text",
    [
        "My password is secure and long.",
        "The password was changed yesterday.",
        "The secret is out.",
        "Order number 4539578763621486 arrives on Friday.",
        "invoice no. 4539578763621486",
    ],
)
def test_prose_and_order_numbers_are_no_secrets(text: str):
    assert not find_secrets(text)


def test_number_without_a_label_may_be_a_card():
    [found] = find_secrets("Pay for the order with 4539578763621486.")
    assert found.kind == "payment card"


@pytest.mark.parametrize("text", ["password=hunter2x!", "password: hunter2x!", "'password': 'hunter2x!'"])
def test_password_is_found_in_any_assignment(text: str):
    [found] = find_secrets(text)
    assert (found.kind, text[found.start : found.end]) == ("password", "hunter2x!")


@given(st.integers(0, 10**11))
def test_one_of_ten_check_digits_makes_a_card_number(body: int):
    digits = f"4{body:014d}"
    assert sum(is_card(f"{digits}{last}") for last in range(10)) == 1


@given(st.text(string.digits, min_size=18, max_size=18), st.integers(0, 17))
def test_wrong_digit_makes_an_invalid_iban(body: str, at: int):
    check = 98 - int(f"{body}131400") % 97  # D and E are 13 and 14
    right = f"DE{check:02d}{body}"
    wrong = right[: at + 4] + str((int(right[at + 4]) + 1) % 10) + right[at + 5 :]
    assert is_iban(right)
    assert not is_iban(wrong)


@given(st.text(max_size=300))
def test_findings_are_ordered_and_within_the_text(text: str):
    found = find_secrets(text)
    assert all(0 <= finding.start < finding.end <= len(text) for finding in found)
    assert all(a.end <= b.start for a, b in pairwise(found))


def test_slow_pattern_in_a_long_text_takes_bounded_time():
    # Mutant: an unbounded quantifier takes minutes.
    chance = random.Random(7)
    seeds = [
        "a", "1", "1 ", "@", "a@", "a.b@c.", "password=", "pass", "://a:", "sk-", "eyJ", "eyJaaaaaaaa.", "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----", "AA11 ", "DE89 ", "AKIA", "ghp_", 'key" : ', "+1(", "hooks.slack.com/services/",
    ]  # fmt: skip
    seeds += ["".join(chance.choices("aA1 @:-_./+=\"'", k=chance.randint(2, 12))) for _ in range(12)]
    slowest = 0.0
    for seed in seeds:
        text = (seed * (100_000 // len(seed) + 1))[:100_000]
        started = time.process_time()
        find_secrets(text)
        slowest = max(slowest, time.process_time() - started)
    assert slowest < 2.0  # for 0.1 MB; a few hundredths of a second on an idle machine


class TestPolicies:
    def policy(self, secrets: str = "redact", personal_data: str = "flag") -> RedactionPolicy:
        return RedactionPolicy.from_settings(Settings(secrets=secrets, personal_data=personal_data))

    def test_redact_replaces_and_names_the_secret(self):
        redacted = self.policy().redact_text("content", f"Use ghp_{RANDOM_PART}aB3d today, says ada@example.org.")
        assert redacted.value == "Use [redacted: github token] today, says ada@example.org."
        assert redacted.kinds == ("email", "github token")

    def test_log_names_the_kind_and_not_the_secret(self, caplog: pytest.LogCaptureFixture):
        with caplog.at_level("INFO", "recollect.security"):
            self.policy().redact_text("content", "The wifi has password=correct-horse, ask ada@example.org.")
        assert caplog.messages == ["content contained password: redacted"]

    def test_redacted_text_contains_no_secret(self):
        once = self.policy(personal_data="redact").redact_text("content", "password=hunter22 of ada@example.org")
        assert self.policy(personal_data="redact").redact_text("content", once.value).kinds == ()

    def test_flag_keeps_the_text(self):
        text = f"key ghp_{RANDOM_PART}aB3d"
        assert self.policy(secrets="flag").redact_text("content", text) == (text, ("github token",))

    def test_allow_skips_the_scan(self):
        assert self.policy("allow", "allow").redact_text("content", "password=hunter22") == ("password=hunter22", ())

    def test_refuse_names_kind_and_position_without_the_secret(self):
        secret = f"ghp_{RANDOM_PART}aB3d"
        with pytest.raises(SecretRefused, match=r"metadata.auth.* github token at character 4") as caught:
            self.policy(secrets="refuse").redact_json("metadata", {"auth": [f"see {secret}"]})
        assert secret not in str(caught.value)

    def test_redact_scans_metadata_values_and_keeps_keys(self):
        redacted = self.policy().redact_json("metadata", {"a": {"b": ["password=hunter22", 7, None]}})
        assert redacted.value == {"a": {"b": ["password=[redacted: password]", 7, None]}}
        assert add_sensitive_kinds({"x": 1}, redacted) == {"x": 1, "sensitive": ["password"]}

    def test_unknown_policy_is_refused(self):
        with pytest.raises(BadSettings, match="'allow', 'flag', 'redact' or 'refuse'"):
            Settings(secrets="hide")
