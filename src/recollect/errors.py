"""All errors that Recollect raises, as a tree of classes. Their docstrings say when each is raised."""

from __future__ import annotations


class RecollectError(Exception):
    """Base class of all errors of Recollect."""


class BadInput(RecollectError, ValueError):
    """Invalid argument; nothing was written."""


class SecretRefused(BadInput):
    """A text contains a secret or personal data that the settings refuse."""


class BadQuery(BadInput):
    """Invalid query, limit or filter."""


class BadVector(BadInput):
    """An embedder returned a vector that is not finite or of the wrong length."""


class NotFound(RecollectError, LookupError):
    """No such row (raised only where None would be ambiguous)."""


class Conflict(RecollectError):
    """Another writer was first; read again and retry."""


class LeaseHeld(Conflict):
    """Another worker holds the lease of the task."""


class FencedOut(Conflict):
    """Another worker has taken over the lease; the write was refused."""


class TaskError(RecollectError):
    """A task needs a decision."""


class PlanChanged(TaskError):
    """A step that was started has moved or disappeared in the plan."""


class UnknownOutcome(TaskError):
    """A step was started, its outcome is unknown, and its policy is to ask."""


class StepFailed(TaskError):
    """A step failed, or its task was canceled."""


class TaskPoisoned(StepFailed):
    """A step failed too often; `retry` starts its task again."""


class StoreError(RecollectError):
    """A problem of the store."""


class StoreUnavailable(StoreError):
    """The store cannot be opened or reached: missing, read-only, locked or down."""


class StoreCorrupt(StoreError):
    """The data is corrupt, or it is not a Recollect store."""


class StoreFull(StoreError):
    """The disk or a configured limit is full; reads still work."""


class StoreClosed(StoreError):
    """The store was used after close()."""


class KeyNeeded(StoreError):
    """The store is encrypted and no key was given."""


class WrongKey(StoreError):
    """The store is encrypted with another key."""


class NotEncrypted(StoreError):
    """A key was given and the store is not encrypted."""


class SchemaTooNew(StoreError):
    """A newer release wrote the store; upgrade to open it."""


class SchemaTooOld(StoreError):
    """An older release wrote the store, and the caller does not migrate it."""


class Unsupported(StoreError):
    """The backend lacks a feature that the call or the tier needs."""


class InferenceError(RecollectError):
    """A problem of an embedder or a language model."""


class ModelNotInstalled(InferenceError):
    """The local model is not installed; run `recollect setup`."""


class ModelDamaged(InferenceError):
    """The model files do not have the pinned checksums."""


class EmbeddingModelMismatch(InferenceError):
    """The store uses another embedding model; see `reembed`."""


class EmbedderFailed(InferenceError):
    """The embedder raised, timed out or returned invalid vectors."""


class ModelFailed(InferenceError):
    """The language model raised, timed out or returned nothing."""


class SpendLimitReached(ModelFailed):
    """Language models have cost as much as the settings allow."""


class BadSettings(RecollectError, ValueError):
    """An unknown option or an invalid value."""


class ExtraMissing(BadSettings):
    """An optional package is not installed."""

    @classmethod
    def for_feature(cls, feature: str, extra: str) -> ExtraMissing:
        """Return the error with the commands that install the extra."""
        return cls(
            f"{feature} needs the extra `{extra}`, which is not installed: pip install 'recollect-memory[{extra}]' "
            f"(in a checkout: pip install '.[{extra}]')"
        )
