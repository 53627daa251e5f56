"""Every error Recollect raises, drawn as one tree.

RecollectError
├── BadInput                  the call cannot be meant this way; nothing was written
│   ├── SecretRefused         a text holds a secret or personal data that the settings do not let in
│   ├── BadQuery              a query, limit or filter outside what a search accepts
│   └── BadVector             an embedder's answer that is not a finite vector of the right length
├── NotFound                  the thing named is not there (only where None would be ambiguous)
├── Conflict                  somebody wrote first; read again and retry
│   ├── LeaseHeld             another worker holds the task's lease
│   └── FencedOut             this worker's lease was taken over; its write was refused
├── TaskError                 a task that cannot go on by itself
│   ├── PlanChanged           a step that was begun is no longer where it was in the plan
│   ├── UnknownOutcome        a step was begun and nobody knows how it ended; its policy is to ask
│   └── StepFailed            a step failed, or its task was given up
│       └── TaskPoisoned      it failed so often that it is not tried again before `retry`
├── StoreError                the place where memory lives
│   ├── StoreUnavailable      it cannot be opened or reached: missing, read-only, locked, down
│   ├── StoreCorrupt          it is there but is not, or is no longer, a Recollect store
│   ├── StoreFull             the disk or the configured limit is exhausted; reads go on
│   ├── StoreClosed           used after close()
│   ├── KeyNeeded             it is encrypted, and no key was given
│   ├── WrongKey              it is encrypted with another key than the one that was given
│   ├── NotEncrypted          a key was given, and it is not encrypted
│   ├── SchemaTooNew          written by a newer Recollect; upgrade to open it
│   └── Unsupported           this backend does not make the promise that the tier needs
├── InferenceError            embedders and language models
│   ├── ModelNotInstalled     the local model has not been set up; run `recollect setup`
│   ├── ModelDamaged          the weights are not the ones that were pinned
│   ├── EmbeddingModelMismatch  the store was written with another model; see `reembed`
│   ├── EmbedderFailed        the embedder raised, hung or answered nonsense
│   └── ModelFailed           the language model raised, hung or answered nothing
│       └── SpendLimitReached language models have cost as much as the settings allow
└── BadSettings               an option that does not exist or a value it cannot take
    └── ExtraMissing          what was named needs packages that are not installed
"""

from __future__ import annotations


class RecollectError(Exception):
    """The root: catch this to catch everything that is ours."""


class BadInput(RecollectError, ValueError):
    """The call cannot be meant this way; nothing was written."""


class SecretRefused(BadInput):
    """A text holds a secret or personal data that the settings do not let in; it is named by its kind, never quoted."""


class BadQuery(BadInput):
    """A query, limit or filter outside what a search accepts."""


class BadVector(BadInput):
    """An embedder's answer that is not a finite vector of the right length."""


class NotFound(RecollectError, LookupError):
    """The thing named is not there."""


class Conflict(RecollectError):
    """Somebody wrote first; read again and retry."""


class LeaseHeld(Conflict):
    """Another worker holds the task's lease."""


class FencedOut(Conflict):
    """This worker's lease was taken over; its write was refused."""


class TaskError(RecollectError):
    """A task cannot go on by itself; the message says what to decide."""


class PlanChanged(TaskError):
    """A step that was begun or finished is no longer where it was in the plan."""


class UnknownOutcome(TaskError):
    """A step was begun, nobody knows how it ended, and its policy is to ask."""


class StepFailed(TaskError):
    """A step failed, or its task was given up."""


class TaskPoisoned(StepFailed):
    """A step failed so often that its task is left alone until somebody calls `retry`."""


class StoreError(RecollectError):
    """The place where memory lives is unwell or unsuited."""


class StoreUnavailable(StoreError):
    """The store cannot be opened or reached."""


class StoreCorrupt(StoreError):
    """The file is there but is not, or is no longer, a Recollect store."""


class StoreFull(StoreError):
    """The disk or the configured limit is exhausted; nothing was lost and reads go on."""


class StoreClosed(StoreError):
    """The store was used after close()."""


class KeyNeeded(StoreError):
    """The store is encrypted, and no key was given."""


class WrongKey(StoreError):
    """The store is encrypted with another key than the one that was given."""


class NotEncrypted(StoreError):
    """A key was given, and the store is not encrypted: whoever relies on that must hear of it."""


class SchemaTooNew(StoreError):
    """The store was written by a newer Recollect."""


class Unsupported(StoreError):
    """This backend does not make the promise that the tier needs."""


class InferenceError(RecollectError):
    """An embedder or language model could not do its work."""


class ModelNotInstalled(InferenceError):
    """The local model has not been set up on this machine."""


class ModelDamaged(InferenceError):
    """The weights found are not the ones that were pinned."""


class EmbeddingModelMismatch(InferenceError):
    """The store was written with another embedding model."""


class EmbedderFailed(InferenceError):
    """The embedder raised, hung or answered nonsense."""


class ModelFailed(InferenceError):
    """The language model raised, hung or answered nothing."""


class SpendLimitReached(ModelFailed):
    """Language models have cost as much as the settings allow."""


class BadSettings(RecollectError, ValueError):
    """An option that does not exist or a value it cannot take."""


class ExtraMissing(BadSettings):
    """What was named needs packages that are not installed."""

    @classmethod
    def of(cls, what: str, extra: str, packages: str) -> ExtraMissing:
        # The packages by their own names: the `recollect` that an index knows is another project.
        return cls(
            f"{what} needs the extra `{extra}`, which is not installed: pip install {packages} "
            f"(in a checkout: pip install '.[{extra}]')"
        )
