"""How one document changes another: merge patch, JSON patch, strategic merge, and who owns which field.

Documents are plain JSON and never changed in place. Field ownership is kept as a set of paths: a path is a tuple of
elements in the spelling of `fieldsV1` (`f:spec`, `k:{"name":"a"}`, `v:"x"`), so that sets of paths are what the rules of
server-side apply are about, and the tree form is only how they are written down.

Lists are merged by the keys that their schema gives them; a list without keys is one value, owned and replaced whole.
"""  # noqa: E501

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from admission.sandbox.shapes import Schema, child, copy, is_atomic, is_set, item, key_of, list_keys

Path = tuple[str, ...]


class PatchError(ValueError):
    """The patch cannot be applied; `code` is the HTTP status that says so."""

    def __init__(self, message: str, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy(patch)
    out = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        else:
            out[key] = merge_patch(out.get(key), value)
    return out


# JSON patch (RFC 6902)


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902. A failed `test` or a missing path is PatchError 422, a malformed patch 400."""
    if not isinstance(operations, list):
        raise PatchError("cannot unmarshal object into Go value of type jsonpatch.Patch")
    out = copy(target)
    for operation in operations:
        if not isinstance(operation, dict) or "op" not in operation or "path" not in operation:
            raise PatchError("a JSON patch is a list of {op, path, ...}")
        out = _operate(out, operation)
    return out


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not text.startswith("/"):
        raise PatchError(f"{text!r} is no JSON pointer", 422)
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _look(doc: Any, parts: list[str], text: str) -> Any:
    for part in parts:
        if isinstance(doc, dict) and part in doc:
            doc = doc[part]
        elif isinstance(doc, list) and part.lstrip("-").isdigit() and -len(doc) <= int(part) < len(doc):
            doc = doc[int(part)]
        else:
            raise PatchError(
                f"the server rejected our request due to an error in our request: path {text} is missing", 422
            )
    return doc


def _operate(doc: Any, operation: Mapping[str, Any]) -> Any:
    op, text = operation["op"], str(operation["path"])
    parts = _pointer(text)
    if op == "test":
        try:
            found = _look(doc, parts, text)
        except PatchError:
            found = None
        if not _same(found, operation.get("value")):
            raise PatchError("the server rejected our request due to an error in our request", 422)
        return doc
    if op in ("add", "replace"):
        value = copy(operation.get("value"))
    elif op in ("copy", "move"):
        source = _pointer(str(operation.get("from", "")))
        value = copy(_look(doc, source, str(operation.get("from"))))
        if op == "move":
            doc = _operate(doc, {"op": "remove", "path": operation["from"]})
        op = "add"
    elif op != "remove":
        raise PatchError(f"Unexpected kind: {op}", 422)
    else:
        value = None
    if not parts:
        return value
    parent = _look(doc, parts[:-1], text)
    last = parts[-1]
    if isinstance(parent, list):
        if op == "add" and last == "-":
            parent.append(value)
            return doc
        index = int(last) if last.lstrip("-").isdigit() else -1
        if index < 0 or index > len(parent) or (op != "add" and index == len(parent)):
            raise PatchError(f"the server rejected our request due to an error in our request: no index {text}", 422)
        if op == "add":
            parent.insert(index, value)
        elif op == "replace":
            parent[index] = value
        else:
            del parent[index]
    elif isinstance(parent, dict):
        if op != "add" and last not in parent:
            raise PatchError(
                f"the server rejected our request due to an error in our request: path {text} is missing", 422
            )
        if op == "remove":
            del parent[last]
        else:
            parent[last] = value
    else:
        raise PatchError(f"the server rejected our request due to an error in our request: path {text} is missing", 422)
    return doc


def _same(a: Any, b: Any) -> bool:
    # In Python 1 == True; in JSON it is not.
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)


# Strategic merge


def strategic_merge(target: Any, patch: Any, schema: Schema | None) -> Any:
    """Strategic merge patch, with `$patch`, `$deleteFromPrimitiveList`, `$setElementOrder` and `$retainKeys`."""
    if not isinstance(patch, dict):
        return copy(patch)
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    if directive == "replace":
        return {k: copy(v) for k, v in patch.items() if k != "$patch"}
    if directive not in (None, "merge"):
        raise PatchError(f"unknown $patch directive {directive!r}")
    out = dict(target) if isinstance(target, dict) else {}
    retain = patch.get("$retainKeys")
    if isinstance(retain, list):
        out = {k: v for k, v in out.items() if k in retain}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.split("/", 1)[1]
            out[name] = [x for x in out.get(name) or [] if x not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            out.pop(key, None)
        elif isinstance(value, list):
            out[key] = _strategic_list(out.get(key), value, child(schema, key) if schema else None)
        else:
            out[key] = strategic_merge(out.get(key), value, child(schema, key) if schema else None)
    for key, order in patch.items():
        if key.startswith("$setElementOrder/") and isinstance(out.get(key.split("/", 1)[1]), list):
            name = key.split("/", 1)[1]
            out[name] = _in_order(out[name], order, _merge_key(child(schema, name) if schema else None))
    return out


def _merge_key(schema: Schema | None) -> str | None:
    if schema is None or "merge" not in str(schema.get("x-kubernetes-patch-strategy", "")):
        return None
    found: str | None = schema.get("x-kubernetes-patch-merge-key")
    return found


def _strategic_list(target: Any, patch: list[Any], schema: Schema | None) -> list[Any]:
    merges = schema is not None and "merge" in str(schema.get("x-kubernetes-patch-strategy", ""))
    current = list(target) if isinstance(target, list) else []
    if not merges:
        return [copy(x) for x in patch if not (isinstance(x, dict) and "$patch" in x)]
    key = _merge_key(schema)
    if key is None:
        return current + [copy(x) for x in patch if x not in current]
    if any(isinstance(x, dict) and x.get("$patch") == "replace" for x in patch):
        return [copy(x) for x in patch if x.get("$patch") != "replace"]
    for entry in patch:
        if not isinstance(entry, dict) or key not in entry:
            raise PatchError(f"map: {json.dumps(entry)} does not contain declared merge key: {key}")
        index = next((i for i, x in enumerate(current) if x.get(key) == entry[key]), None)
        if entry.get("$patch") == "delete":
            if index is not None:
                del current[index]
        elif index is None:
            current.append(strategic_merge({}, entry, item(schema)))
        else:
            current[index] = strategic_merge(current[index], entry, item(schema))
    return current


def _in_order(current: list[Any], order: list[Any], key: str | None) -> list[Any]:
    wanted = [x.get(key) if key and isinstance(x, dict) else x for x in order]
    named = [x.get(key) if key and isinstance(x, dict) else x for x in current]
    listed = sorted(
        (x for x, n in zip(current, named, strict=True) if n in wanted),
        key=lambda x: wanted.index(x.get(key) if key and isinstance(x, dict) else x),
    )
    return listed + [x for x, n in zip(current, named, strict=True) if n not in wanted]


# Field sets


@lru_cache(maxsize=8192)
def _key_element(names: tuple[str, ...], values: tuple[Any, ...]) -> str:
    body = {n: v for n, v in sorted(zip(names, values, strict=True)) if v is not None}
    return "k:" + json.dumps(body, separators=(",", ":"))


def _entries(value: list[Any], schema: Schema | None) -> dict[str, Any] | None:
    """The items of a list by path element, or None where the list is one value."""
    keys = list_keys(schema)
    if keys:
        out = {}
        for entry in value:
            identity = key_of(entry, keys, item(schema))
            if identity is None:
                return None
            out[_key_element(keys, identity)] = entry
        return out
    if is_set(schema):
        return {"v:" + json.dumps(x, separators=(",", ":")): x for x in value}
    return None


def owned_paths(value: Any, schema: Schema | None, at: Path = ()) -> set[Path]:
    """Every field that an applied document lays claim to."""
    if isinstance(value, dict) and value and not is_atomic(schema):
        out: set[Path] = set()
        for key, entry in value.items():
            out |= owned_paths(entry, child(schema, key) if schema else None, (*at, "f:" + key))
        return out
    if isinstance(value, list) and value:
        entries = _entries(value, schema)
        if entries is not None:
            out = set()
            for element, entry in entries.items():
                path = (*at, element)
                out.add(path)
                if isinstance(entry, dict):
                    out |= owned_paths(entry, item(schema), path)
            return out
    return {at}


def compare(old: Any, new: Any, schema: Schema | None) -> tuple[set[Path], set[Path]]:
    """(changed or added, removed) paths between two documents."""
    changed: set[Path] = set()
    removed: set[Path] = set()
    _compare(old, new, schema, (), changed, removed)
    return changed, removed


def _compare(old: Any, new: Any, schema: Schema | None, at: Path, changed: set[Path], removed: set[Path]) -> None:
    if old is new or (type(old) is type(new) and old == new):
        return
    if isinstance(old, dict) and isinstance(new, dict) and not is_atomic(schema):
        if not new or not old:
            # An empty object is a value of its own.
            (changed if new == {} or old == {} else removed).add(at)
        for key in old.keys() | new.keys():
            sub = child(schema, key) if schema else None
            path = (*at, "f:" + key)
            if key not in new:
                removed |= owned_paths(old[key], sub, path)
                removed.add(path)
            elif key not in old:
                changed |= owned_paths(new[key], sub, path)
                if isinstance(new[key], dict) and not is_atomic(sub):
                    changed.add(path)
            else:
                _compare(old[key], new[key], sub, path, changed, removed)
        return
    if isinstance(old, list) and isinstance(new, list):
        before, after = _entries(old, schema), _entries(new, schema)
        if before is not None and after is not None and (list_keys(schema) or is_set(schema)):
            if not after or not before:
                changed.add(at)
            for element in before.keys() | after.keys():
                path = (*at, element)
                if element not in after:
                    removed |= owned_paths(before[element], item(schema), path)
                    removed.add(path)
                elif element not in before:
                    changed.add(path)
                    if isinstance(after[element], dict):
                        changed |= owned_paths(after[element], item(schema), path)
                else:
                    _compare(before[element], after[element], item(schema), path, changed, removed)
            return
    changed.add(at)


def to_fields(paths: Iterable[Path]) -> dict[str, Any]:
    """The tree form, `fieldsV1`."""
    root: dict[str, Any] = {}
    ordered = sorted(paths)
    inner = {path[:n] for path in ordered for n in range(1, len(path))}
    for path in ordered:
        node = root
        for element in path:
            node = node.setdefault(element, {})
        if path in inner:
            node["."] = {}
    return root


def from_fields(tree: Mapping[str, Any], at: Path = ()) -> set[Path]:
    out: set[Path] = set()
    for element, node in tree.items():
        if element == ".":
            out.add(at)
        elif node:
            out |= from_fields(node, (*at, element))
        else:
            out.add((*at, element))
    return out


# Server-side apply


def apply_merge(live: Any, applied: Any, schema: Schema | None) -> Any:
    """The live document with everything the applied one says."""
    if isinstance(live, dict) and isinstance(applied, dict) and not is_atomic(schema):
        out = dict(live)
        for key, value in applied.items():
            out[key] = apply_merge(live.get(key), value, child(schema, key) if schema else None)
        return out
    if isinstance(live, list) and isinstance(applied, list):
        before, after = _entries(live, schema), _entries(applied, schema)
        if before is not None and after is not None and (list_keys(schema) or is_set(schema)):
            merged = {
                k: apply_merge(before.get(k), v, item(schema)) if k in before else copy(v) for k, v in after.items()
            }
            return [(merged if k in merged else before)[k] for k in _order(before, list(after))]
    return copy(applied)


def _order(live: Collection[str], applied: Sequence[str]) -> list[str]:
    """Of the entries of both: as in the applied document; what only the live one has stays between those that it was
    between."""
    places = {key: i for i, key in enumerate(applied)}
    both = [key for key in applied if key in live]
    out: list[str] = []
    taken = agreed = 0
    for key in live:
        if key not in places:
            out.append(key)
        elif agreed < len(both) and key == both[agreed]:
            out += applied[taken : places[key] + 1]
            taken, agreed = places[key] + 1, agreed + 1
    return out + list(applied[taken:])


def prune(doc: Any, gone: set[Path], kept: set[Path], schema: Schema | None) -> Any:
    """The document without the paths in `gone`; what holds anything in `kept` stays."""
    holders = {path[:n] for path in kept for n in range(1, len(path) + 1)}
    touched = {path[:n] for path in gone for n in range(1, len(path) + 1)}
    return _prune(doc, gone, holders, touched, schema, ())


def _prune(doc: Any, gone: set[Path], holders: set[Path], touched: set[Path], schema: Schema | None, at: Path) -> Any:
    if isinstance(doc, dict):
        out = {}
        for key, value in doc.items():
            path = (*at, "f:" + key)
            sub = child(schema, key) if schema else None
            if path not in touched:
                out[key] = value
                continue
            if path in gone and path not in holders:
                continue
            made = _prune(value, gone, holders, touched, sub, path)
            # A map or list that lost all it had because its owner let go of it goes as well.
            if made in ({}, []) and value not in ({}, []) and path not in holders:
                continue
            out[key] = made
        return out
    if isinstance(doc, list):
        entries = _entries(doc, schema)
        if entries is not None:
            out_list = []
            for element, value in entries.items():
                path = (*at, element)
                if path in touched and path in gone and path not in holders:
                    continue
                out_list.append(_prune(value, gone, holders, touched, item(schema), path) if path in touched else value)
            return out_list
    return doc
