"""The rules of `jobs.hold` in CEL, for API servers that evaluate them themselves (Kubernetes 1.36 and newer).

    python -m admission.controller.policies             # all of it, as YAML
    python -m admission.controller.policies policies    # or one part: policies, roles, priority

Nothing here needs the controller to be up. A policy asks the API server's authorizer whether the caller may `admit`
`workloads` of our group, cluster-wide; no name of ours stands in it. What holds has no parameters: a policy whose
parameter object goes missing lets everything through.

Each rule matches as little as it can (label, or a condition that cannot fail) and then fails closed. The one rule that
looks at pods of others, for the gang PriorityClass, fails open; so does the one that gives a queue to jobs without a
label, for it looks at all of these, and has to find out whether there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import yaml

from admission.controller.installation import Settings
from admission.controller.roles import roles, roles_by_policy
from admission.jobs.hold import (
    CONTAINERS,
    OWNERS_LABELS,
    PATIENCE_S,
    PRIORITY,
    QUEUED_OWNERS,
    Identities,
    Messages,
    as_selected,
    as_tolerated,
    as_written,
)
from admission.jobs.kinds import JOB, JOBSET
from admission.jobs.pins import DOMAIN, GATES, RANKS, REQUIRED, no_such_taint, template_annotations, template_labels
from admission.jobs.requests import GANG_CLASS, NODE_NAME, SYSTEM_CLASSES, Limits, excess_words
from admission.names import (
    DEFAULT_QUEUE,
    JOB_COMPLETION_INDEX,
    JOB_TRACKING_FINALIZER,
    JOBSET_GROUP,
    JOBSET_JOB_INDEX_LABEL,
    JOBSET_LABELS,
    Names,
)

Object = dict[str, Any]

POLICY_API = "admissionregistration.k8s.io/v1"
JOBS = ("batch", "jobs")
JOBSETS = (JOBSET_GROUP, "jobsets")


# ---------------------------------------------------------------- CEL


def _text(value: str) -> str:
    """A CEL string."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _texts(values: Iterable[str]) -> str:
    return "[" + ", ".join(_text(value) for value in values) + "]"


def _has_label(who: str, key: str) -> str:
    return f"(has({who}.metadata.labels) && {_text(key)} in {who}.metadata.labels)"


def _of_gangs(names: Names) -> Object:
    """A selector of pods of gangs."""
    return {"matchExpressions": [{"key": mark, "operator": "Exists"} for mark in names.gang_marks]}


def _lacks_a_mark(names: Names) -> str:
    """CEL: it is no pod of a gang."""
    first, *more = (f"!{_has_label('object', mark)}" for mark in names.gang_marks)
    return f"({' || '.join((first, *more))})" if more else first


def _suspended(who: str) -> str:
    return f"(has({who}.spec.suspend) && {who}.spec.suspend)"


def _child(who: str) -> str:
    return (
        f"(has({who}.metadata.ownerReferences) && {who}.metadata.ownerReferences.exists(r, r.kind == 'JobSet' && "
        f"r.apiVersion.startsWith('{JOBSET_GROUP}/') && has(r.controller) && r.controller))"
    )


def _may_admit(names: Names) -> str:
    return f"authorizer.group({_text(names.group)}).resource('workloads').check('admit').allowed()"


def _named_us(names: Names) -> str:
    return (
        "(has(request.options) && has(request.options.fieldManager) && "
        f"request.options.fieldManager == {_text(names.job_manager)})"
    )


def _callers(names: Names, identities: Identities) -> list[Object]:
    """Variables that say who writes, `jobs.hold.Caller`.

    A question to the authorizer costs a third of what an expression may: each is asked once, and only if it matters.
    """
    status = f"authorizer.group('{JOBSET_GROUP}').resource('jobsets').subresource('status').check('update').allowed()"
    listed = f"request.userInfo.username in {_texts(identities.jobset_controllers)}"
    return [
        _variable("may_admit", _may_admit(names)),
        _variable("is_us", f"{_OLD} && {_named_us(names)} && variables.may_admit"),
        _variable("is_jobset_controller", f"{listed} || ({status} && !variables.may_admit)"),
        _variable(
            "writes_children",
            f"request.userInfo.username in {_texts(identities.job_controllers)} || variables.is_jobset_controller",
        ),
    ]


def _marked(who: str, names: Names) -> str:
    """`jobs.hold._is_marked`; a JobSet has no such template."""
    template = f"{who}.spec.template.metadata"
    return (
        f"(has({who}.spec.template) && has({template}) && has({template}.labels) && "
        f"{_text(names.managed_label)} in {template}.labels)"
    )


_OLD = "oldObject != null"


def _condition(name: str, expression: str) -> Object:
    return {"name": name, "expression": expression}


def _variable(name: str, expression: str) -> Object:
    return {"name": name, "expression": expression}


def _by_others(names: Names) -> Object:
    return _condition("not-by-muster", f"!({_OLD} && {_named_us(names)} && {_may_admit(names)})")


def _rules(*resources: tuple[str, str], operations: Sequence[str] = ("CREATE", "UPDATE")) -> list[Object]:
    return [
        {
            "apiGroups": [group],
            "apiVersions": ["*"],
            "resources": [plural],
            "operations": list(operations),
            "scope": "Namespaced",
        }
        for group, plural in resources
    ]


def _policy(
    kind: str, name: str, settings: Settings, spec: Object, match: Object, binding: Object | None = None
) -> list[Object]:
    meta = {"name": name, "labels": dict(settings.labels)}
    # Every default is written out: server-side apply takes an atomic field without them for a change of it, and a
    # second manager (Helm after kubectl) would be refused.
    whole = {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, **match}
    return [
        {"apiVersion": POLICY_API, "kind": kind, "metadata": meta, "spec": {"matchConstraints": whole, **spec}},
        {
            "apiVersion": POLICY_API,
            "kind": f"{kind}Binding",
            "metadata": dict(meta),
            "spec": {"policyName": name, **(binding or {})},
        },
    ]


def _mutating(
    name: str,
    settings: Settings,
    match: Object,
    conditions: list[Object],
    binding: Object | None = None,
    **spec: Any,
) -> list[Object]:
    whole = {"failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded", "matchConditions": conditions, **spec}
    return _policy("MutatingAdmissionPolicy", name, settings, whole, match, binding)


def _validating(
    name: str,
    settings: Settings,
    match: Object,
    conditions: list[Object],
    validations: list[tuple[str, str]],
    *,
    failure_policy: str = "Fail",
    variables: Sequence[Object] = (),
) -> list[Object]:
    whole: Object = {
        "failurePolicy": failure_policy,
        "matchConditions": conditions,
        "variables": list(variables),
        "validations": [
            {"expression": expression, "message": message, "reason": "Forbidden"} for expression, message in validations
        ],
    }
    return _policy("ValidatingAdmissionPolicy", name, settings, whole, match, {"validationActions": ["Deny"]})


def _patch(op: str, path: str, value: str | None = None) -> str:
    """A CEL JSONPatch; `path` and `value` are CEL."""
    return f"JSONPatch{{op: '{op}', path: {path}" + (f", value: {value}" if value is not None else "") + "}"


# ---------------------------------------------------------------- jobs


def _held(names: Names, *, governed: bool) -> str:
    """`jobs.hold._is_held`."""
    may_be = f"!variables.is_us && !({_child('object')} && variables.is_jobset_controller)"
    if governed:
        return may_be
    return (
        f"{may_be} && ({_queued(names)} || "
        f"({_OLD} && ({_child('oldObject')} || {_marked('oldObject', names)}) && !variables.is_jobset_controller))"
    )


def _queued(names: Names) -> str:
    label = names.queue_label
    return f"({_has_label('object', label)} || ({_OLD} && {_has_label('oldObject', label)}))"


def hold(names: Names, settings: Settings, *, governed: bool = False) -> list[Object]:
    """`jobs.hold.mutate_job`."""
    match: Object = {"resourceRules": _rules(JOBS, JOBSETS)}
    if governed:
        match["namespaceSelector"] = dict(settings.governed_namespaces or {})
    wanted = _variable("wanted", f"oldObject == null || {_suspended('oldObject')}")
    change = _patch("add", "'/spec/suspend'", "variables.wanted")
    return _mutating(
        "muster-hold-namespaces" if governed else "muster-hold",
        settings,
        match,
        []
        if governed
        else [
            _condition(
                "queued-or-child",
                f"{_queued(names)} || ({_OLD} && ({_child('oldObject')} || {_marked('oldObject', names)}))",
            )
        ],
        variables=[*_callers(names, settings.identities), _variable("held", _held(names, governed=governed)), wanted],
        mutations=[
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": f"({_suspended('object')} == variables.wanted || !variables.held ? [] : [{change}])"
                    f" + {_as_it_was_given(names)}"
                },
            }
        ],
    )


def _as_it_was_given(names: Names) -> str:
    """`jobs.hold._as_it_was_given`: CEL, a list of patches."""
    note = f"oldObject.metadata.annotations[{_text(names.inverse_annotation)}]"
    started = (
        f"{_OLD} && !variables.is_us && has(oldObject.metadata.annotations) && "
        f"{_text(names.inverse_annotation)} in oldObject.metadata.annotations"
    )

    def noted(text: str, value: str) -> str:
        before, after = text.split("|")
        return f"{note}.contains({_text(before)} + {value} + {_text(after)})"

    def both(path: str) -> str:
        return f"has(object.{path}) && has(oldObject.{path})"

    size, place = "spec.parallelism", "spec.template.spec"
    shrunk = f"{both(size)} && object.{size} != oldObject.{size} && {noted(as_written('|'), f'string(object.{size})')}"
    new, old = (f"{who}.{place}.nodeSelector" for who in ("object", "oldObject"))
    selected = (
        f"{both('spec.template')} && {both(f'{place}.nodeSelector')} && {new} != {old} && "
        f"{new}.all(k, k in {old} && {old}[k] == {new}[k]) && "
        f"{old}.all(k, k in {new} || {noted(as_selected('|'), 'k')})"
    )
    is_, was = (f"{who}.{place}.tolerations" for who in ("object", "oldObject"))
    borne = (
        f"{both('spec.template')} && {both(f'{place}.tolerations')} && size({is_}) < size({was}) && "
        f"{is_}.all(i, t, {was}[i] == t) && {noted(as_tolerated('|'), f'string(size({is_}))')}"
    )
    given = _patch("add", "'/spec/parallelism'", f"oldObject.{size}")
    selector = _patch("add", f"'/{place.replace('.', '/')}/nodeSelector'", old)
    toleration = _patch("add", f"'/{place.replace('.', '/')}/tolerations/-'", "t")
    return (
        f"(!({started}) ? [] : ({shrunk} ? [{given}] : []) + ({selected} ? [{selector}] : []) + "
        f"({borne} ? {was}.transformList(i, t, i >= size({is_}), {toleration}) : []))"
    )


def names_no_queue(names: Names) -> Object:
    """Condition that a job has no queue label, or an empty one, which no selector can say."""
    queue = f"object.metadata.labels[{_text(names.queue_label)}]"
    return _condition("names-no-queue", f"!{_has_label('object', names.queue_label)} || {queue} == ''")


def default_queue(names: Names, settings: Settings) -> list[Object]:
    """`jobs.hold.default_queue`. The parameter is the LocalQueue of the job's own namespace: where there is none, the
    API server asks nothing more."""
    key = _text(names.queue_label)
    path = f"'/metadata/labels/' + jsonpatch.escapeKey({key})"
    label = (
        f"has(object.metadata.labels) ? [{_patch('add', path, _text(DEFAULT_QUEUE))}] : "
        f"[{_patch('add', _text('/metadata/labels'), f'{{{key}: {_text(DEFAULT_QUEUE)}}}')}]"
    )
    # Policies come in any order, and one that did not match at its turn is not asked again.
    suspend = f"{_suspended('object')} ? [] : [{_patch('add', _text('/spec/suspend'), 'true')}]"
    return _mutating(
        "muster-default-queue",
        settings,
        {
            "resourceRules": _rules(JOBS, JOBSETS, operations=("CREATE",)),
            "namespaceSelector": dict(settings.defaulted_namespaces or {}),
        },
        [
            names_no_queue(names),
            _condition(
                "no-part-of-what-is-queued",
                "!(has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(r, "
                "has(r.controller) && r.controller && "
                f"r.apiVersion.split('/')[0] + '/' + r.kind in {_texts(QUEUED_OWNERS)}))",
            ),
        ],
        {"paramRef": {"name": DEFAULT_QUEUE, "parameterNotFoundAction": "Allow"}},
        failurePolicy="Ignore",
        paramKind={"apiVersion": names.api_version, "kind": "LocalQueue"},
        mutations=[{"patchType": "JSONPatch", "jsonPatch": {"expression": one}} for one in (label, suspend)],
    )


def put_back(names: Names, settings: Settings) -> list[Object]:
    """`jobs.hold._put_back`."""
    inner = "template.spec.template.metadata"
    label = _text(names.managed_label)

    def marked(r: str) -> str:
        return f"(has({r}.{inner}) && has({r}.{inner}.labels) && {label} in {r}.{inner}.labels)"

    path = f"'/spec/replicatedJobs/' + string(object.spec.replicatedJobs.indexOf(r)) + '/{inner.replace('.', '/')}'"
    before = f"oldObject.spec.replicatedJobs.filter(o, o.name == r.name && {marked('o')})"
    change = _patch("add", path, f"{before}[0].{inner}")
    key = _text(names.inverse_annotation)
    note = f"(has(oldObject.metadata.annotations) && {key} in oldObject.metadata.annotations)"
    was = f"oldObject.metadata.annotations[{key}]"
    whole = f"{{{key}: {was}}}"
    within = f"'/metadata/annotations/' + jsonpatch.escapeKey({key})"
    noted = (
        f"(!has(object.metadata.annotations) ? [{_patch('add', _text('/metadata/annotations'), whole)}] : "
        f"{key} in object.metadata.annotations ? [] : "
        f"[{_patch('add', within, was)}])"
    )
    return _mutating(
        "muster-jobset-templates",
        settings,
        {"resourceRules": _rules(JOBSETS, operations=("UPDATE",))},
        # One without the list is refused.
        [_condition("started", f"{note} && has(object.spec.replicatedJobs)"), _by_others(names)],
        mutations=[
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": f"{noted} + "
                    f"object.spec.replicatedJobs.filter(r, !{marked('r')} && size({before}) > 0).map(r, {change})"
                    f" + {_amounts_as_they_were()}"
                },
            }
        ],
    )


def _amounts_as_they_were() -> str:
    """`jobs.hold._written_otherwise`: CEL, a list of patches."""
    spec = "template.spec.template.spec"

    def there(*paths: str) -> str:
        return " && ".join(f"has({path})" for path in paths)

    def of_each(group: str, both: str, found: str) -> str:
        new, old = f"r.{spec}.{group}", f"o.{spec}.{group}"
        return (
            f"({there(new, old)} ? {new}.transformList(j, c, j < size({old}) && "
            f"{both.replace('OLD', f'{old}[j]')}, {found.replace('OLD', f'{old}[j]')}) : [])"
        )

    def otherwise(new: str, old: str) -> str:
        same = f"quantity(string({new})).compareTo(quantity(string({old}))) == 0"
        return f"{new} != {old} && isQuantity(string({new})) && isQuantity(string({old})) && {same}"

    def as_it_was(group: str, within: str, value: str) -> str:
        path = f"'/spec/replicatedJobs/' + string(i) + '/{spec.replace('.', '/')}/{group}/' + string(j) + {within}"
        return f"{{'path': dyn({path}), 'value': {value}}}"

    found = []
    for group in CONTAINERS:
        for field in (f"resources.{one}" for one in ("limits", "requests")):
            both = there("c.resources", f"c.{field}", "OLD.resources", f"OLD.{field}")
            put = as_it_was(group, f"'/{field.replace('.', '/')}/' + jsonpatch.escapeKey(k)", f"OLD.{field}[k]")
            each = f"k in OLD.{field} && {otherwise('q', f'OLD.{field}[k]')}, {put}"
            found.append(of_each(group, both, f"c.{field}.transformList(k, q, {each})"))
    limit = "emptyDir.sizeLimit"
    both = there("c.emptyDir", f"c.{limit}", "OLD.emptyDir", f"OLD.{limit}")
    put = as_it_was("volumes", "'/emptyDir/sizeLimit'", f"OLD.{limit}")
    found.append(of_each("volumes", f"{both} && {otherwise(f'c.{limit}', f'OLD.{limit}')}", f"[{put}]"))
    return (
        "object.spec.replicatedJobs.transformList(i, r, oldObject.spec.replicatedJobs"
        f".filter(o, o.name == r.name && o.{spec} != r.{spec}).map(o, {' + '.join(found)})).flatten(3)"
        f".map(p, {_patch('add', 'string(p.path)', 'p.value')})"
    )


def _map_of(path: Sequence[str]) -> str:
    """CEL: the map at a path whose parts may be absent, else an empty one. The first part is there."""
    tests = " && ".join(f"has({'.'.join(path[: i + 1])})" for i in range(1, len(path)))
    return f"({tests} ? {'.'.join(path)} : {{}})"


def _gated(spec: str, names: Names) -> str:
    return f"(has({spec}.schedulingGates) && {spec}.schedulingGates.exists(g, g.name == {_text(names.topology_gate)}))"


def _guard(names: Names, settings: Settings, *, governed: bool = False) -> list[Object]:
    """`jobs.hold.validate_job`, for what Jobs and JobSets have in common."""
    say = Messages(names)
    label, note = names.queue_label, names.inverse_annotation
    queue_of = {
        who: f"({_has_label(who, label)} ? {who}.metadata.labels[{_text(label)}] : '')"
        for who in ("object", "oldObject")
    }
    limit = names.max_exec_time_label
    limit_of = {
        who: f"({_has_label(who, limit)} ? {who}.metadata.labels[{_text(limit)}] : '')"
        for who in ("object", "oldObject")
    }
    has_note = {
        who: f"(has({who}.metadata.annotations) && {_text(note)} in {who}.metadata.annotations)"
        for who in ("object", "oldObject")
    }
    note_of = {
        who: f"({has_note[who]} ? {who}.metadata.annotations[{_text(note)}] : '')" for who in ("object", "oldObject")
    }
    match: Object = {"resourceRules": _rules(JOBS, JOBSETS)}
    conditions = [_by_others(names)]
    variables = [*_callers(names, settings.identities), _variable("held", _held(names, governed=governed))]
    starts = f"{_OLD} && {_suspended('oldObject')} && !{_suspended('object')}"
    only_child = f"({_OLD} && {_child('oldObject')} && {queue_of['object']} == '' && {queue_of['oldObject']} == '')"
    validations = [
        (f"!(oldObject == null && !{_suspended('object')} && variables.held)", say.created_running),
        (f"!({starts} && {only_child} && variables.held)", say.child),
        (f"!({starts} && !{only_child} && variables.held)", say.started),
    ]
    if governed:
        match["namespaceSelector"] = dict(settings.governed_namespaces or {})
        return _validating("muster-jobs-namespaces", settings, match, conditions, validations, variables=variables)
    empty = {
        who: f"({_has_label(who, label)} && {who}.metadata.labels[{_text(label)}] == '')"
        for who in ("object", "oldObject")
    }
    validations.insert(0, (f"!{empty['object']} || ({_OLD} && {empty['oldObject']})", say.empty_label))
    noted = (
        f"{has_note['object']} == ({_OLD} && {has_note['oldObject']}) && "
        f"(!{has_note['object']} || {note_of['object']} == {note_of['oldObject']})"
    )
    holds = f"({has_note['oldObject']} || !{_suspended('oldObject')})"
    validations += [
        (f"oldObject == null || {queue_of['object']} == {queue_of['oldObject']} || !{holds}", say.label),
        (
            f"oldObject == null || {limit_of['object']} == {limit_of['oldObject']} || {note_of['oldObject']} == ''",
            say.limit,
        ),
        (f"({noted}) || ({_restored(names)})", say.inverse),
    ]
    return _validating("muster-jobs", settings, match, conditions, validations, variables=variables)


def _restored(names: Names) -> str:
    """CEL: `jobs.hold._is_restored`."""
    note = f"has(object.metadata.annotations) && {_text(names.inverse_annotation)} in object.metadata.annotations"
    return f"oldObject == null && {note} && {_suspended('object')} && variables.may_admit"


def _noted(names: Names) -> tuple[str, ...]:
    return (*template_annotations(names), names.pinned_annotation)


def _frozen(names: Names, same: str, *, marked: str = "false") -> str:
    """Nothing of what was admitted changes while the job carries our note, or is `marked`."""
    note = _text(names.inverse_annotation)
    noted = f"(has(oldObject.metadata.annotations) && {note} in oldObject.metadata.annotations)"
    return f"oldObject == null || !({noted} || {marked}) || ({same})"


def _job_template(names: Names, settings: Settings) -> list[Object]:
    """What `validate_job` says of a Job's template and size."""
    say = Messages(names)
    labels = {who: _map_of((f"{who}.spec.template", "metadata", "labels")) for who in ("object", "oldObject")}
    notes = {who: _map_of((f"{who}.spec.template", "metadata", "annotations")) for who in ("object", "oldObject")}
    parallelism, completions = (
        f"has(object.spec.{field}) == has(oldObject.spec.{field}) && "
        f"(!has(object.spec.{field}) || object.spec.{field} == oldObject.spec.{field})"
        for field in ("parallelism", "completions")
    )
    ends = "(has(object.spec.parallelism) && object.spec.parallelism == 0)"

    def kept(keys: Sequence[str], kind: str) -> str:
        return (
            f"{_texts(keys)}.all(k, !(k in variables.{kind}) || "
            f"(k in variables.old_{kind} && variables.old_{kind}[k] == variables.{kind}[k]))"
        )

    was_gated = f"({_OLD} && {_gated('oldObject.spec.template.spec', names)})"
    gate = f"(!{_gated('object.spec.template.spec', names)} || {was_gated})"
    clean = f"({kept(template_labels(names), 'labels')} && {kept(_noted(names), 'annotations')} && {gate})"
    but_for_pods = f"object.spec.template == oldObject.spec.template && {completions}"
    same = f"{but_for_pods} && {parallelism}"
    child = f"{_child('object')} || ({_OLD} && {_child('oldObject')})"
    in_place = " && ".join(
        f"variables.{one}.all(k, !k.startsWith({_text(JOBSET_LABELS)}) || "
        f"(k in variables.{other} && variables.{other}[k] == variables.{one}[k]))"
        for one, other in (("own_labels", "own_old_labels"), ("own_old_labels", "own_labels"))
    )
    unmoved = f"{_OLD} && {_same('metadata.ownerReferences')} && {in_place} && {same}"
    marked = f"({_marked('oldObject', names)} && !variables.writes_children)"
    return _validating(
        "muster-job-templates",
        settings,
        {"resourceRules": _rules(JOBS)},
        [_by_others(names)],
        [
            (f"!({child}) || ({unmoved}) || variables.writes_children", say.child_frozen),
            (_frozen(names, f"{but_for_pods} && ({ends} || ({parallelism}))", marked=marked), say.frozen),
            (f"{clean} || variables.is_jobset_controller || ({_restored(names)})", say.reserved),
        ],
        variables=[
            *_callers(names, settings.identities),
            _variable("own_labels", _map_of(("object.metadata", "labels"))),
            _variable("own_old_labels", f"oldObject == null ? {{}} : {_map_of(('oldObject.metadata', 'labels'))}"),
            _variable("labels", labels["object"]),
            _variable("old_labels", f"oldObject == null ? {{}} : {labels['oldObject']}"),
            _variable("annotations", notes["object"]),
            _variable("old_annotations", f"oldObject == null ? {{}} : {notes['oldObject']}"),
        ],
    )


def _same(path: str) -> str:
    """CEL: what lies at a path of the object is what lay there."""
    there = {who: f"has({who}.{path})" for who in ("object", "oldObject")}
    return f"({there['object']} == {there['oldObject']} && (!{there['object']} || object.{path} == oldObject.{path}))"


def _within(who: str, kind: tuple[str, str], limits: Limits) -> list[tuple[str, str]]:
    """(CEL that a job is within a limit, what is said when not), as `jobs.requests.excess`."""
    words = excess_words(limits)
    sets = f"{who}.spec.replicatedJobs"
    t = f"{who}.spec.template" if kind == JOBS else "r.template.spec.template"

    def every(test: str) -> str:
        return f"({test})" if kind == JOBS else f"(!has({sets}) || {sets}.all(r, {test}))"

    def annotated(meta: str) -> str:
        notes = f"{meta}.annotations"
        size = f"{notes}.map(k, size(k) + size(bytes({notes}[k]))).sum()"
        return f"(!has({notes}) || {size} <= {limits.annotation_bytes})"

    grace, tolerations = f"{t}.spec.terminationGracePeriodSeconds", f"{t}.spec.tolerations"
    priority = f"{t}.spec.priorityClassName"
    inner = f"!has({t}.metadata) || " + annotated(f"{t}.metadata")
    run_by = (JOB if kind == JOBS else JOBSET).run_by
    within = [
        (every(f"!has({grace}) || {grace} <= {limits.grace_s}"), words.grace),
        (f"{annotated(f'{who}.metadata')} && {every(inner)}", words.annotations),
        (every(f"!has({t}.metadata) || {_size(f'{t}.metadata.labels')} <= {limits.labels}"), words.labels),
        *((every(test), said) for test, said in _placing(f"{t}.spec", limits)),
        (every(f"!has({tolerations}) || size({tolerations}) <= {limits.tolerations}"), words.tolerations),
        (
            every(
                f"!has({priority}) || !({priority}.startsWith('{SYSTEM_CLASSES}') || {priority} == {_text(GANG_CLASS)})"
            ),
            words.priority,
        ),
        (f"(!has({who}.spec.managedBy) || {who}.spec.managedBy in ['', {_text(run_by)}])", words.managed_by),
    ]
    if kind == JOBSETS:
        made, child = f"{who}.spec.volumeClaimPolicies", "r.template.spec.managedBy"
        # The kind takes negative numbers, which make up for none.
        jobs = "!has(r.replicas) ? 1 : r.replicas > 0 ? r.replicas : 0"
        within += [
            (f"(!has({sets}) || size({sets}) <= {limits.pod_sets})", words.pod_sets),
            (f"(!has({sets}) || {_sum(sets, 'r', jobs)} <= {limits.child_jobs})", words.child_jobs),
            (f"(!has({made}) || {_sum(made, 'p', _size('p.templates'))} <= {limits.claims})", words.claims),
            (every(f"!has({child}) || {child} == {_text(JOB.run_by)}"), words.managed_by),
        ]
    return within


def _size(path: str) -> str:
    return f"(has({path}) ? size({path}) : 0)"


def _sum(path: str, each: str, of_each: str) -> str:
    return f"{path}.map({each}, {of_each}).sum()"


def _sum_if_any(path: str, each: str, of_each: str) -> str:
    return f"(has({path}) ? {_sum(path, each, of_each)} : 0)"


def _placing(spec: str, limits: Limits) -> list[tuple[str, str]]:
    """`jobs.requests._placing`, less tolerations. Whether a list is too long is asked first: to add up costs more."""
    words = excess_words(limits)
    affinity, spread = f"{spec}.affinity", f"{spec}.topologySpreadConstraints"
    required = f"{affinity}.nodeAffinity.{REQUIRED}"
    terms, fields = f"{required}.nodeSelectorTerms", ("matchExpressions", "matchFields")
    parts = " + ".join(_size(f"e.{field}") for field in fields)
    values = " + ".join(_sum_if_any(f"e.{field}", "m", _size("m.values")) for field in fields)
    selector = (
        f"(has(e.labelSelector) ? {_size('e.labelSelector.matchLabels')} + "
        f"{_sum_if_any('e.labelSelector.matchExpressions', 'm', '1 + ' + _size('m.values'))} : 0)"
    )

    def few(listed: str, *named: str) -> str:
        each = " + ".join(("1", selector, *(_size(f"e.{name}") for name in named)))
        return f"(size({listed}) <= {limits.pod_terms} && {_sum(listed, 'e', each)} <= {limits.pod_parts})"

    def pods(word: str) -> str:
        listed = f"{affinity}.{word}.{REQUIRED}"
        named = ("namespaces", "matchLabelKeys", "mismatchLabelKeys")
        return f"(!has({affinity}.{word}) || !has({listed}) || {few(listed, *named)})"

    ports = " + ".join(_sum_if_any(f"{spec}.{group}", "c", _size("c.ports")) for group in CONTAINERS)
    claims = f"{spec}.volumes.filter(v, has(v.persistentVolumeClaim))"
    few_parts = f"{_sum(terms, 'e', '1 + ' + parts)} <= {limits.affinity_parts}"
    few_values = f"{_sum(terms, 'e', values)} <= {limits.affinity_values}"
    nodes = f"(size({terms}) <= {limits.affinity_parts} && {few_parts} && {few_values})"
    return [
        (f"!has({affinity}) || !has({affinity}.nodeAffinity) || !has({required}) || {nodes}", words.affinity),
        (f"!has({affinity}) || ({pods('podAffinity')} && {pods('podAntiAffinity')})", words.pod_affinity),
        (f"!has({spread}) || {few(spread, 'matchLabelKeys')}", words.spread),
        (f"{_size(f'{spec}.nodeSelector')} <= {limits.node_selector}", words.node_selector),
        (f"{ports} <= {limits.ports}", words.ports),
        (f"!has({spec}.volumes) || size({claims}) <= {limits.claims}", words.claims),
    ]


def _limits(names: Names, settings: Settings, *, governed: bool = False) -> list[Object]:
    """What could be queued and not be started, or not be ended. What was beyond a limit before is let be."""
    match = {"namespaceSelector": dict(settings.governed_namespaces or {})} if governed else {}
    queued = [] if governed else [_condition("queued", _has_label("object", names.queue_label))]
    out = []
    # What JobSet's controller makes has more than its JobSet said, which was asked; nobody else makes a child.
    alone = [_condition("of-no-jobset", f"!{_child('object')}")] if governed else []
    for kind in (JOBS, JOBSETS):
        new, old = (_within(who, kind, settings.limits) for who in ("object", "oldObject"))
        out += _validating(
            f"muster-limits-{kind[1]}" + ("-namespaces" if governed else ""),
            settings,
            {"resourceRules": _rules(kind), **match},
            [*queued, _by_others(names), *(alone if kind == JOBS else ())],
            [
                (f"({good}) || ({_OLD} && !({was_good}))", said)
                for (good, said), (was_good, _) in zip(new, old, strict=True)
            ],
        )
    return out


def _jobset_templates(names: Names, settings: Settings) -> list[Object]:
    """What `validate_job` says of a JobSet's templates and size."""
    say = Messages(names)
    inner = "template.spec.template"

    def kept(keys: Sequence[str], kind: str) -> str:
        def there(r: str) -> str:
            meta = f"{r}.{inner}.metadata"
            return f"(has({r}.{inner}.metadata) && has({meta}.{kind}) && k in {meta}.{kind})"

        def value(r: str) -> str:
            return f"{r}.{inner}.metadata.{kind}[k]"

        return (
            f"{_texts(keys)}.all(k, variables.now.all(r, !{there('r')} || "
            f"variables.before.exists(o, o.name == r.name && {there('o')} && {value('o')} == {value('r')})))"
        )

    def says(r: str, kind: str, key: str) -> str:
        meta = f"{r}.template.metadata"
        return f"(has({meta}) && has({meta}.{kind}) && {_text(key)} in {meta}.{kind})"

    def said_before(kind: str, key: str) -> str:
        had = f"variables.before.exists(o, o.name == r.name && {says('o', kind, key)})"
        return f"variables.now.all(r, !{says('r', kind, key)} || {had})"

    same = (
        f"{_same('spec.failurePolicy')} && "
        "size(variables.now) == size(variables.before) && variables.now.all(r, "
        "variables.before.exists(o, o.name == r.name && has(o.replicas) == has(r.replicas) && "
        "(!has(o.replicas) || o.replicas == r.replicas) && o.template.spec == r.template.spec))"
    )
    gate = (
        f"variables.now.all(r, !{_gated(f'r.{inner}.spec', names)} || variables.before.exists(o, "
        f"o.name == r.name && {_gated(f'o.{inner}.spec', names)}))"
    )
    clean = f"{kept(template_labels(names), 'labels')} && {kept(_noted(names), 'annotations')} && {gate}"
    return _validating(
        "muster-jobset-templates",
        settings,
        {"resourceRules": _rules(JOBSETS)},
        [_by_others(names)],
        [
            (said_before("labels", names.queue_label), say.template_label),
            (said_before("annotations", names.inverse_annotation), say.inverse),
            (_frozen(names, same), say.frozen),
            (f"({clean}) || ({_restored(names)})", say.reserved),
        ],
        variables=[
            _variable("may_admit", _may_admit(names)),
            _variable("now", "has(object.spec.replicatedJobs) ? object.spec.replicatedJobs : []"),
            _variable("before", f"{_OLD} && has(oldObject.spec.replicatedJobs) ? oldObject.spec.replicatedJobs : []"),
        ],
    )


# ---------------------------------------------------------------- pods


def _note(names_key: str, default: str = "''") -> str:
    key = _text(names_key)
    return f"({key} in variables.notes ? variables.notes[{key}] : {default})"


_HAS_JOB = (
    "(has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(r, r.kind == 'Job' && "
    "r.apiVersion.startsWith('batch/') && has(r.controller) && r.controller))"
)


def _of_job(settings: Settings) -> str:
    """CEL: a Job owns this pod, and its controller made it; `jobs.hold.is_of_job`."""
    return f"request.userInfo.username in {_texts(settings.identities.job_controllers)} && {_HAS_JOB}"


def pins(names: Names, settings: Settings) -> list[Object]:
    """`jobs.hold.mutate_pod`, of pods that a Job made: what others made is refused afterwards, in words.

    The value of a JSONPatch must not be a list of objects: the API server (1.36) panics on it. Inside an object it may.
    """
    index, job_index = _text(JOB_COMPLETION_INDEX), _text(JOBSET_JOB_INDEX_LABEL)
    affinity, selector = "Object.spec.affinity", "Object.spec.affinity.nodeAffinity"
    required = f"{selector}.{REQUIRED}"
    term = f"{required}.nodeSelectorTerms"
    pin = f"{term}.matchFields{{key: '{NODE_NAME}', operator: 'In', values: [variables.host]}}"
    whole = f"{required}{{nodeSelectorTerms: [{term}{{matchFields: [{pin}]}}]}}"
    add_pin = (
        "!has(object.spec.affinity) ? ["
        + _patch("add", "'/spec/affinity'", f"{affinity}{{nodeAffinity: {selector}{{{REQUIRED}: {whole}}}}}")
        + "] : !has(object.spec.affinity.nodeAffinity) ? ["
        + _patch("add", "'/spec/affinity/nodeAffinity'", f"{selector}{{{REQUIRED}: {whole}}}")
        + f"] : !has(object.spec.affinity.nodeAffinity.{REQUIRED}) ? ["
        + _patch("add", f"'/spec/affinity/nodeAffinity/{REQUIRED}'", whole)
        + "] : ["
        + _patch(
            "replace",
            f"'/spec/affinity/nodeAffinity/{REQUIRED}'",
            f"{required}{{nodeSelectorTerms: variables.terms.map(t, has(t.matchExpressions) && "
            f"size(t.matchExpressions) > 0 ? {term}{{matchExpressions: t.matchExpressions.map(e, has(e.values) ? "
            f"{term}.matchExpressions{{key: e.key, operator: e.operator, values: e.values}} : "
            f"{term}.matchExpressions{{key: e.key, operator: e.operator}}), matchFields: {_fields(term, pin)}}} : "
            f"{term}{{matchFields: {_fields(term, pin)}}})}}",
        )
        + "]"
    )
    ranks = f"variables.form == '{RANKS}' ? ({add_pin}) : []"
    gate = f"Object.spec.schedulingGates{{name: {_text(names.topology_gate)}}}"
    gates = (
        f"variables.form != '{GATES}' || {_gated('object.spec', names)} ? [] : "
        "(has(object.spec.schedulingGates) ? [] : ["
        + _patch("add", "'/spec/schedulingGates'", "[]")
        + "]) + ["
        + _patch("add", "'/spec/schedulingGates/-'", gate)
        + "]"
    )
    selectors = (
        "(variables.selector == '' || has(object.spec.nodeSelector) ? [] : ["
        + _patch("add", "'/spec/nodeSelector'", "{}")
        + "]) + (variables.selector == '' ? [] : variables.selector.split(',').map(p, "
        + _patch("add", "'/spec/nodeSelector/' + jsonpatch.escapeKey(p.split('=')[0])", "p.split('=')[1]")
        + "))"
    )
    patience = f"Object.spec.tolerations{{operator: 'Exists', effect: 'NoExecute', tolerationSeconds: {PATIENCE_S}}}"
    tolerations = (
        "(has(object.spec.tolerations) || (variables.tolerations == '' && variables.stays) ? [] : ["
        + _patch("add", "'/spec/tolerations'", "[]")
        + "]) + (variables.tolerations == '' ? [] : variables.tolerations.split(',').map(p, "
        + _patch("add", "'/spec/tolerations/-'", _toleration("p"))
        + ")) + (variables.stays ? [] : ["
        + _patch("add", "'/spec/tolerations/-'", patience)
        + "])"
    )
    bears_all = ["", no_such_taint(names)]
    noted = [f"{key}=:{effect}" for key in bears_all for effect in ("", "NoExecute")]
    stays = (
        "(has(object.spec.tolerations) && object.spec.tolerations.exists(t, !has(t.tolerationSeconds) && "
        f"(!has(t.effect) || t.effect in ['', 'NoExecute']) && (!has(t.key) || t.key in {_texts(bears_all)}))) || "
        f"variables.tolerations.split(',').exists(p, p in {_texts(noted)})"
    )
    hosts_path = _text("/metadata/annotations/") + " + jsonpatch.escapeKey(" + _text(names.hosts_annotation) + ")"
    pinned_path = _text("/metadata/annotations/") + " + jsonpatch.escapeKey(" + _text(names.pinned_annotation) + ")"
    marks = (
        "["
        + ", ".join(
            (
                _patch("add", "'/spec/priorityClassName'", _text(names.priority_class)),
                _patch("add", "'/spec/priority'", str(PRIORITY)),
                _patch("add", "'/spec/preemptionPolicy'", "'Never'"),
                _patch("add", pinned_path, "'true'"),
            )
        )
        + f"] + ({_text(names.hosts_annotation)} in variables.notes ? ["
        + _patch("remove", hosts_path)
        + "] : [])"
    )
    stride = f"int({_note(names.rank_stride_annotation, _text('0'))})"
    rank = (
        # A pod beyond its child job's share would take the rank of another one's: no list has an index below 0.
        f"variables.stride > 0 && int(object.metadata.labels[{index}]) >= variables.stride ? -1 : "
        f"(variables.stride > 0 && {job_index} in object.metadata.labels ? "
        f"int(object.metadata.labels[{job_index}]) * variables.stride : 0) + int(object.metadata.labels[{index}])"
    )
    required_path = f"object.spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms"
    return _mutating(
        "muster-pins",
        settings,
        {
            "resourceRules": _rules(("", "pods"), operations=("CREATE",)),
            "objectSelector": _of_gangs(names),
        },
        [
            _condition(
                "not-pinned",
                "!(has(object.metadata.annotations) && "
                f"{_text(names.pinned_annotation)} in object.metadata.annotations)",
            ),
            _condition("of-a-job", f"({_of_job(settings)}) || {_may_admit(names)}"),
        ],
        variables=[
            _variable("notes", _map_of(("object.metadata", "annotations"))),
            _variable("form", _note(names.pin_form_annotation)),
            _variable("stride", stride),
            _variable("rank", rank),
            _variable("host", f"{_note(names.hosts_annotation)}.split(',')[variables.rank]"),
            _variable("selector", _note(names.selector_annotation)),
            _variable("tolerations", _note(names.tolerations_annotation)),
            _variable("stays", stays),
            _variable(
                "terms",
                f"{required_path}.filter(t, (has(t.matchExpressions) && size(t.matchExpressions) > 0) || "
                "(has(t.matchFields) && size(t.matchFields) > 0))",
            ),
        ],
        mutations=[
            {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
            for expression in (ranks, gates, selectors, tolerations, marks)
        ],
    )


def _fields(term: str, pin: str) -> str:
    """The field requirements of a term of the user's, and ours."""
    theirs = f"{term}.matchFields{{key: f.key, operator: f.operator, values: f.values}}"
    return f"(has(t.matchFields) ? t.matchFields.map(f, {theirs}) : []) + [{pin}]"


def _toleration(part: str) -> str:
    """CEL: the toleration that `key=value:effect`, or `key=value:effect:seconds`, stands for; `key==:effect` of the
    empty value alone."""
    parts = f"{part}.split(':')"
    key, value, effect = f"{parts}[0].split('=')[0]", f"{parts}[0].split('=')[1]", f"{parts}[1]"
    any_value = f"{value} == '' && size({parts}[0].split('=')) < 3"

    def made(*more: str) -> str:
        fields = ", ".join((f"key: {key}", *more, f"effect: {effect}"))
        return (
            f"(size({parts}) > 2 ? Object.spec.tolerations{{{fields}, tolerationSeconds: int({parts}[2])}} : "
            f"Object.spec.tolerations{{{fields}}})"
        )

    return f"{any_value} ? {made(_EXISTS)} : {made(_EQUAL, f'value: {value}')}"


_EXISTS, _EQUAL = "operator: 'Exists'", "operator: 'Equal'"


def _pod_guard(names: Names, settings: Settings) -> list[Object]:
    """`jobs.hold.validate_pod`."""
    say = Messages(names)
    marked = _of_gangs(names)
    required = f"object.spec.affinity.nodeAffinity.{REQUIRED}"
    ranked = (
        "has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) && "
        f"has({required}) && {required}.nodeSelectorTerms.all(t, has(t.matchFields) && "
        "t.matchFields.exists(f, f.operator == 'In'))"
    )
    pinned = (
        f"{_note(names.pinned_annotation)} == 'true' && !({_text(names.hosts_annotation)} in variables.notes) && "
        f"has(object.spec.priorityClassName) && object.spec.priorityClassName == {_text(names.priority_class)} && "
        f"(variables.form == '{RANKS}' ? {ranked} : variables.form == '{GATES}' ? {_gated('object.spec', names)} : "
        f"variables.form == '{DOMAIN}')"
    )
    created = _validating(
        "muster-pods",
        settings,
        {"resourceRules": _rules(("", "pods"), operations=("CREATE",)), "objectSelector": marked},
        [_condition("marked", " && ".join(_has_label("object", mark) for mark in names.gang_marks))],
        [(f"({_of_job(settings)}) || ({_HAS_JOB} && {_may_admit(names)})", say.pod_marker), (pinned, say.pod_unpinned)],
        variables=[
            _variable("notes", _map_of(("object.metadata", "annotations"))),
            _variable("form", _note(names.pin_form_annotation)),
        ],
    )
    same = " && ".join(
        f"({_has_label('object', key)} ? object.metadata.labels[{_text(key)}] : '') == "
        f"({_has_label('oldObject', key)} ? oldObject.metadata.labels[{_text(key)}] : '')"
        for key in template_labels(names)
    )
    tracked = {
        who: f"(has({who}.metadata.finalizers) && {_text(JOB_TRACKING_FINALIZER)} in {who}.metadata.finalizers)"
        for who in ("object", "oldObject")
    }

    def kept(keys: Sequence[str], kind: str) -> str:
        new, old = f"variables.{kind}", f"variables.old_{kind}"
        return f"{_texts(keys)}.all(k, (k in {new}) == (k in {old}) && (!(k in {new}) || {new}[k] == {old}[k]))"

    # Controllers of Kubernetes, no tenant: that of Jobs takes finalizers and owners off, that of garbage owners.
    system = (
        f"request.userInfo.username in {_texts(settings.identities.job_controllers)} || "
        "authorizer.group('').resource('pods').check('delete').allowed()"
    )
    belongs = " && ".join(
        (
            _same("metadata.ownerReferences"),
            f"{tracked['object']} == {tracked['oldObject']}",
            kept(OWNERS_LABELS, "labels"),
            kept(_noted(names), "annotations"),
        )
    )
    updated = _validating(
        "muster-pod-updates",
        settings,
        {
            "resourceRules": [
                *_rules(("", "pods"), operations=("UPDATE",)),
                *_rules(("", "pods/resize"), operations=("UPDATE",)),
            ],
            "objectSelector": marked,
        },
        [_condition("not-by-muster", f"!{_may_admit(names)}")],
        [
            (f"{same} && {_gated('object.spec', names)} == {_gated('oldObject.spec', names)}", say.pod_gate),
            ("!has(request.subResource) || request.subResource != 'resize'", say.pod_resize),
            (f"({belongs}) || {system}", say.pod_owner),
        ],
        variables=[
            _variable(name, _map_of((f"{who}.metadata", kind)))
            for kind in ("labels", "annotations")
            for name, who in ((kind, "object"), (f"old_{kind}", "oldObject"))
        ],
    )
    of_others = _validating(
        "muster-priority-class",
        settings,
        {"resourceRules": _rules(("", "pods"), operations=("CREATE",))},
        [
            _condition(
                "gang-class-without-marker",
                f"has(object.spec.priorityClassName) && object.spec.priorityClassName == {_text(names.priority_class)} "
                f"&& {_lacks_a_mark(names)}",
            )
        ],
        [(_may_admit(names), say.priority_class)],
        failure_policy="Ignore",
    )
    # Once a pod is being deleted nobody shortens its grace. What cannot be judged goes on: kubelets delete pods too.
    grace = settings.limits.grace_s
    too_long = "has({0}) && has({0}.gracePeriodSeconds) && {0}.gracePeriodSeconds > " + str(grace)
    patient = Messages(names, settings.limits).pod_grace
    deleted = _validating(
        "muster-pod-deletes",
        settings,
        {"resourceRules": _rules(("", "pods"), operations=("DELETE",)), "objectSelector": marked},
        [_condition("patient", too_long.format("request.options"))],
        [(_may_admit(names), patient)],
        failure_policy="Ignore",
    )
    # An Eviction has no labels of its pod, and who drains nodes gives pods of others the time that they have.
    drains = "authorizer.group('').resource('pods').subresource('eviction').check('create').allowed()"
    evicted = _validating(
        "muster-pod-evictions",
        settings,
        {"resourceRules": _rules(("", "pods/eviction"), operations=("CREATE",))},
        [_condition("patient", too_long.format("object.deleteOptions"))],
        [(f"{_may_admit(names)} || {drains}", patient)],
        failure_policy="Ignore",
    )
    above: list[Object] = []
    if settings.governed_namespaces is not None:
        # Kubernetes lets everybody name the classes of its own pods, which preempt those of gangs.
        above = _validating(
            "muster-priority-namespaces",
            settings,
            {
                "resourceRules": _rules(("", "pods"), operations=("CREATE",)),
                "namespaceSelector": dict(settings.governed_namespaces),
            },
            [_condition("above-gangs", f"has(object.spec.priority) && object.spec.priority > {PRIORITY}")],
            [(_may_admit(names), say.priority_above)],
            failure_policy="Ignore",
        )
    return [*created, *updated, *deleted, *evicted, *of_others, *above]


def kinds_kept(names: Names, settings: Settings) -> list[Object]:
    """While Muster is installed, its kinds are not deleted: with them all Workloads would go, and with these every gang
    that runs. This policy goes first when Muster is removed."""
    rule = {
        "apiGroups": ["apiextensions.k8s.io"],
        "apiVersions": ["*"],
        "resources": ["customresourcedefinitions"],
        "operations": ["DELETE"],
        "scope": "Cluster",
    }
    message = (
        f"Muster is installed, and all gangs stop when the kinds of {names.group} go: remove Muster first (helm "
        "uninstall, or delete its policies)"
    )
    ours = [_condition("ours", f"oldObject.spec.group == {_text(names.group)}")]
    return _validating("muster-kinds", settings, {"resourceRules": [rule]}, ours, [("false", message)])


BESIDE_WEBHOOK = (
    "muster-priority-class",
    "muster-kinds",
    "muster-job-templates",
    "muster-jobset-templates",
    "muster-pod-deletes",
    "muster-pod-evictions",
    "muster-priority-namespaces",
)
"""Policies that refuse where a webhook holds, too. It does not see the class of gangs and our kinds; and while nobody
answers it, jobs without our label get by, and with them our keys in their templates, and so do pods of others,
deletions and evictions."""


def beside_webhook(names: Names, settings: Settings | None = None) -> list[Object]:
    """Those of BESIDE_WEBHOOK, and their bindings."""
    made = policies(names, settings)
    return [one for one in made if one["kind"].startswith("Validating") and one["metadata"]["name"] in BESIDE_WEBHOOK]


def policies(names: Names, settings: Settings | None = None) -> list[Object]:
    """All policies and their bindings."""
    settings = settings or Settings()
    out = [
        *hold(names, settings),
        *put_back(names, settings),
        *_guard(names, settings),
        *_job_template(names, settings),
        *_jobset_templates(names, settings),
        *_limits(names, settings),
        *pins(names, settings),
        *_pod_guard(names, settings),
        *kinds_kept(names, settings),
    ]
    if settings.defaulted_namespaces is not None:
        out += default_queue(names, settings)
    if settings.governed_namespaces is not None:
        out += [
            *hold(names, settings, governed=True),
            *_guard(names, settings, governed=True),
            *_limits(names, settings, governed=True),
        ]
    return out


# ---------------------------------------------------------------- priority class, roles


def priority_class(names: Names, settings: Settings | None = None) -> Object:
    """The class of admitted pods: above what users may have, and never preempting."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": names.priority_class, "labels": dict((settings or Settings()).labels)},
        "value": PRIORITY,
        "preemptionPolicy": "Never",
        "description": "Pods of gangs that Muster admitted. Set by Muster; the order of gangs is their queue's.",
    }


PARTS: Mapping[str, Callable[[Names, Settings], list[Object]]] = {
    "policies": policies,
    "roles": roles_by_policy,
    "priority": lambda names, settings: [priority_class(names, settings)],
}


def objects(names: Names, settings: Settings | None = None) -> list[Object]:
    """Everything that must be there before a job can be held, pinned and started."""
    settings = settings or Settings()
    return [*roles(names, settings), priority_class(names, settings), *policies(names, settings)]


def main(arguments: Sequence[str]) -> str:
    """The YAML of the parts that are named, or of all."""
    wanted = list(arguments) or list(PARTS)
    documents = [made for part in wanted for made in PARTS[part](Names(), Settings())]
    command = " ".join(["python -m admission.controller.policies", *arguments])
    return f"# Made by: {command}\n" + yaml.safe_dump_all(documents, sort_keys=False, width=110, explicit_start=True)


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
