"""Mails with patches, as `git format-patch` writes them, and the heads of other patches: what they say of a diff."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from email import message_from_bytes
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.parser import HeaderParser

# git's own date is always the same; another program's is a time and a year.
_BEGIN = re.compile(
    rb"^From [0-9a-f]{40} Mon Sep 17 00:00:00 2001$"
    rb"|(?:\A|(?<=\n\n))From \S++ +\w{3} \w{3} +\d{1,2} \d\d:\d\d(?::\d\d)? [^\n]*\d{4}$",
    re.MULTILINE,
)
_HEAD = re.compile(rb"(?:From [^\n]*\n)?((?:[A-Za-z][\w-]*:[^\n]*\n(?:[ \t][^\n]*\n)*)+)(?=\n|---|diff |Index: |\Z)")
_FIELDS = frozenset({"from", "subject", "description", "origin", "forwarded", "bug", "author"})
_DIFF = re.compile(
    r"^(?:diff -|Index: |@@ |Only in .*: |Binary files? .* differ$|(?:---|\*\*\*) .*\n(?:\+\+\+|---) )", re.MULTILINE
)
_PREFIX = re.compile(r"(?i)\A(?:\s*(?:re|fwd?):|\s*\[(?:(?!patch)[^\]])*+patch[^\]]*+\])*+\s*")
_TRAILER = re.compile(r"(?i)(?:[a-z]+(?:-[a-z]+)*-by|cc|change-id|from):\s.*|-{3,}\s*")
_NUMBER = re.compile(r"\A(?:v\d+-)?\d{1,4}[-_.]++(?=.*[^\W\d_])", re.DOTALL)  # of a series, before words
_PULL = re.compile(r"(?i)\Apr[-_]?(\d{3,6})(?:[-_.]+|$)")
_KINDS = ("patch", "diff", "mbox", "eml", "txt")
_DOWNLOADED = re.compile(r"[1-9]\d{4,5}")  # a pull request of vLLM's, whose diff has this name at GitHub
_LONGEST = 60  # characters of an id
_SUBJECT = 2000  # characters; `_PREFIX` takes the square of it for some
MAILS = 1000
VLLM = "vllm-project/vllm#"


@dataclass(frozen=True)
class Letter:
    """A diff and what stands above it.

    Attributes:
        subject: one line, "" if nothing is a subject.
        description: the text below it, without trailers.
        commit: the commit that the mail was made from, "" if unknown.
        head: all text above the diff, for links.
        diff: the diff, and what is below it.
        above: how many lines of the file stand above `diff`.
    """

    subject: str
    description: str
    commit: str
    head: str
    diff: str
    above: int


def letters(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the mails of a mailbox, each with the number of lines above it; all of `data` if it is none.

    Raises:
        ValueError: it has more mails than anyone imports at once.
    """
    begins = [found.start() for found in _BEGIN.finditer(data)]
    if not begins or data[: begins[0]].strip():
        begins = [0, *begins]
    if len(begins) > MAILS:
        raise ValueError(f"it has {len(begins):,} mails, more than {MAILS:,}")
    for begin, end in zip(begins, [*begins[1:], len(data)], strict=True):
        yield data.count(b"\n", 0, begin), data[begin:end]


def letter_of(data: bytes, above: int = 0) -> Letter:
    """Return what a mail, or a diff with or without a head, says.

    Args:
        data: the mail or diff.
        above: how many lines of the file stand above it.

    Raises:
        ValueError: it is not UTF-8; the message is one sentence that begins with the line.
    """
    found = _HEAD.match(data)
    head = text_of(found[1] if found else b"", above)
    fields = HeaderParser().parsestr(head)
    if not found or not _FIELDS & {name.lower() for name in fields}:
        found, head, fields = None, "", HeaderParser().parsestr("")
    begin = found.end() if found else 0
    body = _body(data, begin, fields["Content-Transfer-Encoding"] or fields.get_content_maintype())
    text = text_of(body, lines_above := above + data.count(b"\n", 0, begin))
    start = at.start() if (at := _DIFF.search(text)) else 0
    prose = text[:start]
    description = re.split(r"(?m)^---\s*$", prose, maxsplit=1)[0]
    # DEP-3 folds a field by a space, and writes an empty line as a dot.
    title, _, more = re.sub(r"(?m)^ \.$|^ ", "", _decoded(fields["Description"] or "")).partition("\n")
    subject = _decoded((fields["Subject"] or "")[:_SUBJECT])
    commit = re.match(rb"From ([0-9a-f]{40}) ", data)
    return Letter(
        " ".join(_PREFIX.sub("", subject).split()) or title.strip(),
        _without_trailers(more if fields["Description"] else description),
        commit[1].decode() if commit else "",
        f"{head}\n{prose}",
        text[start:],
        lines_above + text.count("\n", 0, start),
    )


def text_of(data: bytes, above: int = 0) -> str:
    """Decode UTF-8.

    Raises:
        ValueError: it is something else.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = above + data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line}: it is not UTF-8") from error


def name_of(file: str, subject: str) -> str:
    """Return an id for an overlay by the name of a file, or else by a subject; "" if neither has words for one."""
    stem = file
    while (parts := stem.rpartition("."))[2].lower() in _KINDS and parts[1]:
        stem = parts[0]
    if _DOWNLOADED.fullmatch(stem):
        stem = "" if subject else f"pr{stem}"
    stem = _NUMBER.sub("", stem)
    return _id(_PULL.sub("", stem)) or _id(stem) or _id(_unlinked(subject))


def upstream_of(file: str, letter: Letter) -> tuple[str, ...]:
    """Return the pull requests of vLLM that a subject, the text above a diff and the name of its file name."""
    stem = file.partition(".")[0]
    numbers = [
        *re.findall(r"\(#(\d{3,6})\)", letter.subject),
        *re.findall(r"vllm-project/vllm(?:/pull/|#)(\d+)", letter.head),
        *re.findall(r"(?i)(?:^|[-_])pr[-_]?(\d{3,6})(?=[-_.]|$)", stem),
        *_DOWNLOADED.findall(stem if _DOWNLOADED.fullmatch(stem) else ""),
    ]
    return tuple(dict.fromkeys(f"{VLLM}{number}" for number in numbers))


def base_of(letter: Letter) -> str | None:
    """Return the release that the text above a diff names in a line `Base: VERSION`."""
    from packaging.version import InvalidVersion, Version

    found = re.search(r"(?m)^Base:[ \t]*v?(\S+)[ \t]*$", letter.head)
    try:
        return str(Version(found[1])) if found else None
    except InvalidVersion:  # a commit, or a branch
        return None


def _body(data: bytes, begin: int, encoding: str) -> bytes:
    """Return what is below a mail's head; it is as in the file, but for encodings that mail programs use."""
    if encoding.strip().lower() not in ("quoted-printable", "base64", "multipart"):
        return data[begin:]
    mail = message_from_bytes(re.sub(rb"\AFrom [^\n]*\n", b"", data))
    texts = (part.get_payload(decode=True) for part in mail.walk() if not part.is_multipart())
    return b"\n" + b"\n".join(text.replace(b"\r\n", b"\n") for text in texts if isinstance(text, bytes))


def _decoded(field: str) -> str:
    """Return the text of a field (RFC 2047), without control characters; it may have more than one line."""
    with suppress(HeaderParseError, LookupError, ValueError):  # an encoding that is damaged or unknown: as it stands
        field = str(make_header(decode_header(field))) if "=?" in field else field
    return _printable(field)


def _without_trailers(text: str) -> str:
    lines = (line.rstrip() for line in _printable(text).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if not _TRAILER.fullmatch(line))).strip()


def _printable(text: str) -> str:
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs"))


def _unlinked(subject: str) -> str:
    return re.sub(r"\(#\d+\)", "", subject)


def _id(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"^[\d-]+", "", "-".join(re.findall(r"[a-z0-9]+", plain)))
    return words if len(words) <= _LONGEST else words[: _LONGEST + 1].rpartition("-")[0] or words[:_LONGEST]
