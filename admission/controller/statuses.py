"""How a status is written: by server-side apply, of the fields for which its kind has a place.

An apply that names a field which the kind does not declare is refused as a whole. Kueue's kinds lack some of ours,
which is known beforehand (`Names.stored`). And kinds may be older than the controller, where others upgrade them: what
the API server then says it lacks is left out of all that is written of this kind, and said in the log; what it would
remember lasts as long as the process. What says who runs where is never left out: such a gang is not admitted, and the
failed write is told, for who was admitted by halves could be admitted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from admission.kube.client import Client, Kind, Undeclared
from admission.names import Names

log = structlog.get_logger("muster")

Json = dict[str, Any]
Field = tuple[str, ...]

LEFT_OUT_S = 600.0
"""Then it is tried again: the kinds may have been upgraded."""
_NEEDED = frozenset({"admission", "conditions"})


class Statuses:
    """Writes statuses as the field manager of admissions. clock: monotonic seconds."""

    def __init__(self, client: Client, names: Names, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._names = names
        self._clock = clock
        self._lacking: dict[str, dict[Field, float]] = {}
        """Per kind: fields below `status`, and until when they are left out."""

    def has(self, kind: str, field: str) -> bool:
        """Is there a place for this field of a status?"""
        return bool(self.stored(kind, {field: {}}))

    def stored(self, kind: str, status: Json) -> Json:
        """A status without what its kind has no place for; `status` itself where that is nothing."""
        status = self._names.stored(kind, status)
        if kind in self._lacking:
            now = self._clock()
            lacking = [field for field, until in self._lacking[kind].items() if now < until]
            for field in lacking:
                status = _without(status, field)
            if not lacking:
                del self._lacking[kind]
        return status

    async def write(self, resource: Kind, metadata: Mapping[str, Any], status: Json) -> bytes:
        """Have the object say `status` for us; its answer. metadata: name, and what makes the write conditional.

        Raises ApiError; Undeclared where the kind lacks what cannot be left out.
        """
        path = resource.path(metadata.get("namespace"), metadata["name"], "status")
        while True:
            body = {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": metadata,
                "status": self.stored(resource.kind, status),
            }
            try:
                return await self._client.apply_raw(path, body, manager=self._names.admission_manager)
            except Undeclared as error:
                if not self._leave_out(resource.kind, error.fields):
                    raise

    def _leave_out(self, kind: str, fields: tuple[Field, ...]) -> bool:
        """Did this help: is anything left out that was not?"""
        found = {field[1:] for field in fields if field[0] == "status" and len(field) > 1 and field[1] not in _NEEDED}
        known = self._lacking.setdefault(kind, {})
        now = self._clock()
        new = sorted(field for field in found if known.get(field, 0.0) <= now)
        known.update(dict.fromkeys(new, now + LEFT_OUT_S))
        if new:
            log.warning(
                "the kinds are older than the controller: upgrade them; left out until then",
                kind=kind,
                lacks=[".".join(("status", *field)) for field in new],
            )
        return bool(new)


def _without(value: Any, field: Field) -> Any:
    """A copy without a field, which may be inside lists."""
    if isinstance(value, list):
        return [_without(one, field) for one in value]
    if not isinstance(value, dict) or field[0] not in value:
        return value
    first, rest = field[0], field[1:]
    if rest:
        return {**value, first: _without(value[first], rest)}
    return {name: one for name, one in value.items() if name != first}
