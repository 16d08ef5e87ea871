"""Update the translations of the JupyterLab extension: nbmgpu/locale/<language>/LC_MESSAGES/.

    python tools/translations.py                update the .po files, and write the .json files
    python tools/translations.py --check        print what is missing or out of date, and fail
    python tools/translations.py --add fr_FR    begin a new language

Translators edit ``nbmgpu.po``.  JupyterLab loads ``nbmgpu.json``, in the format of Jed, by the
entry point ``jupyterlab.locale``: "Internationalization and Localization" in its documentation.
"""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.core import Locale
from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_dir
from babel.messages.pofile import read_po, write_po

REPOSITORY = Path(__file__).parents[1]
SOURCES = REPOSITORY / "labextension" / "src"
LOCALES = REPOSITORY / "nbmgpu" / "locale"

DOMAIN = "nbmgpu"
CALLS = {"__": None, "_n": (1, 2)}
"""Functions that translate, and which of their arguments: the first, or singular and plural."""

UNUSED = (
    "#, fuzzy", '"Project-Id', '"Report', '"POT-Creation', '"PO-Revision', '"Last-Tr',
    '"Language-Team', '"Generated',
)  # fmt: skip
"""How lines of the header begin that differ from run to run, or name nobody."""

Id = str | tuple[str, str]


def extract() -> Catalog:
    """Return all messages of the extension, in the order of the source files."""
    catalog = Catalog(fuzzy=False)
    found = extract_from_dir(SOURCES, [("**.ts", "javascript")], keywords=CALLS, comment_tags=())
    for path, _, message, _, _ in sorted(found, key=lambda it: it[:2]):
        if not path.endswith(".test.ts"):
            catalog.add(message)
    return catalog


def languages() -> list[str]:
    """Return the languages that there are."""
    return sorted(path.name for path in LOCALES.iterdir() if path.is_dir())


def read(language: str) -> Catalog:
    """Return the catalog of ``language``."""
    with _path(language, "po").open("rb") as file:
        return read_po(file, locale=language, domain=DOMAIN)


def to_json(catalog: Catalog) -> str:
    """Return what JupyterLab loads: translations by message."""
    header = {
        "domain": DOMAIN,
        "language": str(catalog.locale).replace("_", "-"),
        "plural_forms": catalog.plural_forms.rstrip(";") + ";",
    }
    messages = {
        _id(message)[0] if message.pluralizable else _id(message): _texts(message)
        for message in catalog
        if message.id and all(_texts(message))
    }
    return json.dumps({"": header} | messages, ensure_ascii=False, indent=1) + "\n"


def problems(language: str) -> Iterator[str]:
    """Yield what is missing, superfluous, inconsistent or out of date."""
    template, catalog = extract(), read(language)
    wanted = {_id(message) for message in template if message.id}
    messages = {_id(message): _texts(message) for message in catalog if message.id}
    yield from (f"{language}: not in the catalog: {each}" for each in wanted - messages.keys())
    yield from (f"{language}: not used any more: {each}" for each in messages.keys() - wanted)
    for each, texts in messages.items():
        if not all(texts):
            yield f"{language}: not translated: {each}"
        elif any(_places(text) != _places(_last(each)) for text in texts):
            yield f"{language}: other values than in {each}: {texts}"
    if _path(language, "json").read_text() != to_json(catalog):
        yield f"{language}: {_path(language, 'json').name} is not that of the catalog"


def update(language: str) -> None:
    """Add new messages to a catalog, remove those that are gone, and write both files."""
    catalog = read(language) if _path(language, "po").exists() else Catalog(language, DOMAIN)
    catalog.update(extract(), no_fuzzy_matching=True)
    catalog.obsolete.clear()
    catalog.header_comment = f"# {Locale.parse(language).english_name} translation of nbmgpu."
    _path(language, "po").parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    write_po(file, catalog, width=100, no_location=True)
    lines = file.getvalue().decode().splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith(UNUSED)]
    _path(language, "po").write_text("".join(kept))
    _path(language, "json").write_text(to_json(catalog))


def _path(language: str, suffix: str) -> Path:
    return LOCALES / language / "LC_MESSAGES" / f"{DOMAIN}.{suffix}"


def _id(message: Message) -> Id:
    return message.id if isinstance(message.id, str) else (message.id[0], message.id[1])


def _texts(message: Message) -> list[str]:
    """Return the translations: one, or those of all plural forms."""
    return [*message.string] if isinstance(message.string, list | tuple) else [message.string or ""]


def _last(message: Id) -> str:
    return message if isinstance(message, str) else message[1]


def _places(text: str) -> list[str]:
    """Return the places of values in a text: ``%1``."""
    return sorted(re.findall(r"%\d", text))


def main(arguments: list[str]) -> int:
    """Update all languages, or check them; see the module."""
    if arguments[:1] == ["--check"]:
        found = [problem for language in languages() for problem in problems(language)]
        print(*found, sep="\n")
        return int(bool(found))
    for language in [*languages(), *arguments[1:]]:
        update(language)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
