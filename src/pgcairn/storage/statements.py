"""Loads the SQL texts from ``sql/`` and puts the composed statements together.

Owns the file format (``-- name: x :kind``, comments, text), the schema marker and the numbering of
parameters when parts are joined. No SQL is written here; a statement's text is constant once its schema is
known, so that it stays prepared.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pgcairn.connection.pool import Query

# How many times as long as others a statement on all rows of a thread may take (guess).
_PATIENCE_WITH_WHOLE_THREADS = 10.0

# Parts of statements on one thread, by the markers that stand for them.
_THREAD_PARTS = (
    ("/* referenced values */", "part_referenced_values"),
    ("/* needed values */", "part_needed_values"),
)

_NAME = re.compile(r"^-- name: (?P<name>\w+) :(?P<kind>part|one|many|execrows|script)$", re.MULTILINE)
_PARAMETER = re.compile(r"\$(\d+)")
_CAST = re.compile(r"\$(\d+)::(\w+(?:\[\])?)")
_MARKER = re.compile(r"/\* schema( name)? \*/")
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)


def sql_directory() -> Path:
    """Where the SQL files are: inside an installed package, or beside ``src`` in a checkout."""
    here = Path(__file__).resolve()
    for directory in (here.parents[1] / "_sql", here.parents[3] / "sql"):
        if directory.is_dir():
            return directory
    raise FileNotFoundError("pgcairn's SQL files are missing: the package is not completely installed.")


@lru_cache(maxsize=1)
def _texts() -> dict[str, str]:
    """All named texts of ``sql/queries``, without their comments."""
    texts: dict[str, str] = {}
    for file in sorted(sql_directory().joinpath("queries").iterdir(), key=lambda f: f.name):
        source = file.read_text(encoding="utf-8")
        marks = list(_NAME.finditer(source))
        for mark, following in zip(marks, [*marks[1:], None], strict=True):
            body = source[mark.end() : following.start() if following else len(source)]
            if mark["name"] in texts:
                raise ValueError(f"{file.name}: the name {mark['name']} is used twice.")
            texts[mark["name"]] = _COMMENT.sub("", body).strip()
    return texts


def quote_identifier(name: str) -> str:
    """Quote a name for use as an identifier."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What a batch holds; its statement consists of just these parts."""

    needs: bool
    values: bool
    checkpoints: bool
    writes_kept: bool
    writes_replaced: bool


class Statements:
    """All statements for one schema name.

    Args:
        schema: The schema's name as the user wrote it; it is quoted here.
    """

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._name = quote_identifier(schema)
        self._prefix = self._name + "."
        self._batches: dict[BatchShape, Query] = {}
        self.insert_checkpoint = self._single("insert_checkpoint")
        self.insert_checkpoint_on_base = self._single("insert_checkpoint_on_base")
        self.insert_checkpoint_and_value = self._single("insert_checkpoint_and_value")
        self.insert_checkpoint_and_edit = self._single("insert_checkpoint_and_edit")
        self.insert_write = self._single("insert_write")
        self.lock_checkpoint = self._single("lock_checkpoint")
        self.replace_checkpoint = self._single("replace_checkpoint")
        self.lock_values_of_threads = self._single("lock_values_of_threads")
        self.delete_threads = self._whole("delete_threads")
        self.installed_tables = self._single("installed_tables")
        self.applied_migrations = self._single("applied_migrations")
        self.record_migration = self._single("record_migration")
        self.try_setup_lock = self._single("try_setup_lock")
        self.schema_bytes = self._single("schema_bytes")
        self.count_sessions = self._single("count_sessions")
        self.server_limits = self._single("server_limits")
        self.select_places = self._whole("select_places")
        self.select_roots = self._whole("select_roots")
        self.select_needed = self._whole("select_needed")
        self.select_runs = self._whole("select_runs")
        self.lock_checkpoints = self._single("lock_checkpoints")
        self.hide_checkpoints = self._single("hide_checkpoints")
        self.delete_checkpoints = self._single("delete_checkpoints")
        self.prepare_operation = self._single("prepare_operation")
        self.delete_range = self._whole("delete_range")
        self.delete_unneeded_values = self._whole("delete_unneeded_values")
        self.select_missing_values = self._whole("select_missing_values")
        self.relink_checkpoints = self._whole("relink_checkpoints")
        self.select_unreferenced = self._whole("select_unreferenced")
        self.lock_values = self._single("lock_values")
        self.delete_values = self._single("delete_values")
        self.lock_copy_target = self._single("lock_copy_target")
        self.copy_thread = self._whole("copy_thread")
        self.doctor_threads = self._single("doctor_threads")
        self.doctor_checkpoints = self._single("doctor_checkpoints")
        self.doctor_values = self._single("doctor_values")
        self.doctor_writes = self._single("doctor_writes")
        self.doctor_orphaned_values = self._single("doctor_orphaned_values")
        self.doctor_orphaned_writes = self._single("doctor_orphaned_writes")
        self.doctor_unneeded_hidden = self._single("doctor_unneeded_hidden")
        self.doctor_lost_calls = self._single("doctor_lost_calls")
        self.doctor_isolation = self._single("doctor_isolation")
        self.doctor_delete_values = self._single("doctor_delete_values")
        self.doctor_lock_writes = self._single("doctor_lock_writes")
        self.doctor_delete_writes = self._single("doctor_delete_writes")
        self.select_latest = self._tuples("select_latest", "source_latest")
        self.select_exact = self._tuples("select_exact", "source_exact")
        self.select_many = self._tuples("select_many", "source_many")
        self.select_delta_path = self._single("select_delta_path")
        self.select_delta_rows = self._single("select_delta_rows")
        self.page_of_namespace = self._tuples("page_of_namespace", "source_page_of_namespace", ordered=True)
        self.page_of_thread = self._tuples("page_of_thread", "source_page_of_thread", ordered=True)
        self.page_of_all = self._tuples("page_of_all", "source_page_of_all", ordered=True)

    def qualify(self, text: str) -> str:
        """Replace the schema markers in an SQL text."""
        # In one pass: a schema may be called like a marker.
        return _MARKER.sub(lambda mark: self._name if mark[1] else self._prefix, text)

    def script(self, name: str) -> str:
        """The text of a DDL script."""
        return self.qualify(_texts()[name])

    def batch(self, shape: BatchShape) -> Query:
        """The statement for a batch of this shape. Its parameters are those of its parts, in their order."""
        query = self._batches.get(shape)
        if query is None:
            query = self._batches[shape] = self._compose_batch(shape)
        return query

    def all(self) -> list[Query]:
        """Every statement there is, with every shape of batch; for tests."""
        singles = [value for value in vars(self).values() if isinstance(value, Query)]
        bits = (False, True)
        shapes = [
            BatchShape(needs, values, checkpoints, kept, replaced)
            for needs in bits
            for values in bits
            for checkpoints in bits
            for kept in bits
            for replaced in bits
            if (checkpoints or not (values or needs)) and (checkpoints or kept or replaced)
        ]
        return singles + [self.batch(shape) for shape in shapes]

    def _single(self, name: str, *, patience: float = 1.0) -> Query:
        texts = _texts()
        text = texts[name]
        # Their $1 is the thread, as it is in the statements that they are parts of.
        for marker, part in _THREAD_PARTS:
            text = text.replace(marker, texts[part])
        return self._query(name, text, patience)

    def _whole(self, name: str) -> Query:
        """A statement on all rows of a thread."""
        return self._single(name, patience=_PATIENCE_WITH_WHOLE_THREADS)

    def _tuples(self, name: str, source: str, *, ordered: bool = False) -> Query:
        texts = _texts()
        text = texts["part_tuple"].replace("/* source */", texts[source])
        return self._query(name, f"{text}\n{texts['order_newest']}" if ordered else text)

    def _compose_batch(self, shape: BatchShape) -> Query:
        texts = _texts()
        parts: list[str] = []
        used = 0
        for wanted, name in (
            (shape.needs, "part_needs"),
            (shape.values, "part_values"),
            (shape.checkpoints, "part_checkpoints"),
            (shape.writes_kept, "part_writes_kept"),
            (shape.writes_replaced, "part_writes_replaced"),
        ):
            if wanted:
                part, count = _shift(texts[name], used)
                parts.append(part)
                used += count
        unless_missing = texts["unless_missing"] if shape.needs else ""
        result = (
            texts["part_result"]
            .replace(
                "/* count checkpoints */",
                texts["count_checkpoints"] if shape.checkpoints else texts["count_none"],
            )
            .replace("/* count values */", texts["count_values"] if shape.values else texts["count_none"])
            .replace("/* list missing */", texts["list_missing"] if shape.needs else texts["list_none"])
        )
        text = ("WITH " + ",\n".join(parts) + "\n" + result).replace("/* unless missing */", unless_missing)
        return self._query("batch", text)

    def _query(self, name: str, text: str, patience: float = 1.0) -> Query:
        types: dict[int, str] = {}
        for number, type_name in _CAST.findall(text):
            types[int(number)] = type_name
        if sorted(types) != list(range(1, len(types) + 1)) or len(types) != len(
            set(_PARAMETER.findall(text))
        ):
            raise ValueError(f"{name}: every parameter needs a number without gaps and a cast.")
        return Query(
            name=name,
            text=f"/* pgcairn:{name} */ {self.qualify(text)}",
            types=tuple(types[number] for number in sorted(types)),
            patience=patience,
        )


def _shift(text: str, by: int) -> tuple[str, int]:
    """Renumber a part's parameters from $1… to $(by+1)…, and count them."""
    count = max((int(number) for number in _PARAMETER.findall(text)), default=0)
    return _PARAMETER.sub(lambda match: f"${int(match[1]) + by}", text), count


@lru_cache(maxsize=64)
def statements_for(schema: str) -> Statements:
    """The statements for a schema; loaded once."""
    return Statements(schema)
