"""Muster: a gang admission and quota controller for Kubernetes.

The map of the code. Arrows point at what a package may import; a test holds them.

    cli ──▶ commands ──▶ controller │ web │ sandbox ──▶ kube │ jobs │ api ──▶ engine ──▶ quantity, names

    names       every group, label, annotation, condition and field manager, from one value
    quantity    Kubernetes quantity <-> exact int; resource vectors
    engine      decisions only: values in, a Plan out; no I/O, no clock
    api         pydantic models of what people write: the eight kinds, the configuration file; generates crds/
    jobs        job kinds as data: where suspend, pod templates, counts, index labels and outcomes live
    kube        the only package that talks to the API server: client, informers, apply, lease, events
    controller  the shell: inbox -> state -> decide -> actuate; status, policies, webhook
    sandbox     a cluster in one process, for the demo and for fast tests
    web         health, metrics, the visibility API and the page
    commands    what people type: questions, changes, and what needs no cluster
    cli         parse, wire, print

What is absent on purpose: the engine reads no clock and does no I/O; kube knows no engine type; nothing but kube talks
to the API server; nothing outside `names` spells a group or a label. This file imports nothing.
"""
