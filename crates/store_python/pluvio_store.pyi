"""A log-structured key-value store inside your process.

Keys have at most 64 KiB, values at most 1 MiB. Both may be `bytes`, `str` (its UTF-8) or any other
buffer of bytes, and come back as `bytes`. Any number of threads may call; calls that read or
change objects release Python's lock while they work.
"""

from collections.abc import Sequence
from os import PathLike
from typing import Generic, TypeVar, final, overload

from typing_extensions import Buffer

_Bytes = Buffer | str
_T = TypeVar("_T")
_Given = TypeVar("_Given", covariant=True)

class Error(Exception):
    """What the store refuses. Nothing was changed."""

class FullError(Error):
    """Memory is full: retry later, or delete something."""

    retry_after: float

class ConditionError(Error):
    """The condition does not hold; `found` is the version of the object that is there."""

    found: int | None

class TableError(Error):
    """There is no such table."""

class LimitError(Error):
    """A key, a value or an option is outside of its range."""

class NumberError(Error):
    """The value is no number, or the sum is outside of 64 bits."""

class FolderError(Error):
    """The folder cannot be read or written, is damaged, or another store has it open."""

class ClosedError(Error):
    """The store is closed."""

@final
class View(Buffer):
    """A value where it lies in the store: `memoryview(view)` copies nothing.

    The store gives no memory back while a view, or a `memoryview` of it, lives.
    """

    @property
    def version(self) -> int: ...
    def __len__(self) -> int: ...

@final
class Iterator(Generic[_Given]):
    """Gives each object that is there all the time exactly once, in no useful order."""

    def __iter__(self) -> Iterator[_Given]: ...
    def __next__(self) -> _Given: ...

class Table:
    """A table of a store: a dictionary of bytes."""

    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: _Bytes, /) -> bool: ...
    def __getitem__(self, key: _Bytes, /) -> bytes: ...
    def __setitem__(self, key: _Bytes, value: _Bytes, /) -> None: ...
    def __delitem__(self, key: _Bytes, /) -> None: ...
    def __iter__(self) -> Iterator[bytes]: ...
    def keys(self) -> Iterator[bytes]: ...
    def values(self) -> Iterator[bytes]: ...
    def items(self) -> Iterator[tuple[bytes, bytes]]: ...
    @overload
    def get(self, key: _Bytes, default: None = None) -> bytes | None: ...
    @overload
    def get(self, key: _Bytes, default: _T) -> bytes | _T: ...
    def get_with_version(self, key: _Bytes) -> tuple[bytes, int] | None:
        """The value and its version, which grows with every change of the key."""
    def view(self, key: _Bytes) -> View | None:
        """The value without a copy."""
    def put(
        self,
        key: _Bytes,
        value: _Bytes,
        *,
        ttl: float | None = None,
        until: float | None = None,
        if_absent: bool = False,
        if_present: bool = False,
        if_version: int | None = None,
    ) -> int:
        """Stores a value under at most one condition; gives its version.

        It expires after `ttl` seconds, or at `until` (seconds since 1970).
        """
    def delete(self, key: _Bytes, *, if_version: int | None = None) -> bool:
        """Removes an object; says whether there was one."""
    def increment(self, key: _Bytes, by: int = 1) -> int:
        """Adds to a number in decimal text, 0 where there is no object; gives the sum."""
    def touch(
        self, key: _Bytes, *, ttl: float | None = None, until: float | None = None
    ) -> bool:
        """Gives an object another lifetime, for ever without one; says whether it is there."""
    def deadline(self, key: _Bytes) -> float | None:
        """When an object expires, in seconds since 1970."""
    def get_many(self, keys: Sequence[_Bytes]) -> list[bytes | None]: ...
    def put_many(self, pairs: Sequence[tuple[_Bytes, _Bytes]]) -> None:
        """Stores all pairs in their order, up to the first error."""

class Store(Table):
    """A store, which is its table `main` as well. With a folder it outlives the process.

    Leaving its `with` block closes it.
    """

    def __new__(
        cls,
        folder: str | PathLike[str] | None = None,
        *,
        memory: int = 268435456,
        segment: int | None = None,
        heads: int | None = None,
        cleaner_threads: int | None = None,
        in_place: bool = False,
        keyed_hashing: bool = False,
        huge_pages: bool = True,
        populate: bool = False,
        live_percent_max: int = 90,
    ) -> Store: ...
    def table(self, name: str, *, create: bool = True) -> Table: ...
    def table_names(self) -> list[str]: ...
    def drop_table(self, name: str) -> None: ...
    def sync(self) -> None:
        """Waits until the folder has everything that was written before."""
    def clean(self) -> bool:
        """Does a part of the cleaner's work; says whether there is more."""
    def stats(self) -> dict[str, int]: ...
    def close(self) -> None:
        """Syncs and closes; later calls raise ClosedError."""
    def __enter__(self) -> Store: ...
    def __exit__(self, *_reason: object) -> None: ...
