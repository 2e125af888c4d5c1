"""The decisions of Muster: which gang runs where and when. Values in, values out; no I/O, no clock, no randomness.

Begin with `model`, the values that go in and come out, and with `cycle`, one decision. Then, from the outside in:

    what is known        `state` (folded from events), with `in_flight`, `activity`, `roster`, `line`
    who is next          `filling` or `heads`, by `order` and `walk`
    a trial of one gang  `trial`: `flavors` for quota, `capacity` (under Kueue's rules `tas`) for nodes, `reclaim` for
                         what it may evict: of all `victims` those of the `classical`, `fair` or `lawful` search
    the books            `ledger`: `quota`, the tree, and `nodes`, what is free on them
    room on nodes        `booking` (what a pod takes), `table` and `counts` (how many fit), `topology` and `profiles`
                         (in which domains); of one gang `fit` (its requests, and how many of its pods each node holds),
                         `packing` (one pod set), `mixed` (several at once) and `misfit` (why not)
    what is remembered   `memos` of gangs that do not fit, and `shortage`, whether they still do not
    what people read     `project`
"""
