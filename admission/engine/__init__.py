"""The decisions of Muster: who runs where and when. Values in, values out; no I/O, no clock, no randomness.

Begin with `model`, what is read and answered, and with `cycle`, one decision. Then, from the outside in:

    what is known        `state` (folded from events), with `in_flight`, `activity`, `roster`, `line`
    who is next          `filling` or `heads`, by `order` and `walk`
    a look at one gang   `trial`: `flavors` for quota, `capacity` (or, as Kueue has it, `tas`) for nodes, `reclaim` for
                         whom it might evict: of all `victims` those of the `classical`, `fair` or `lawful` search
    the book             `ledger`: `quota`, the tree, and `nodes`, what is free on them
    room on nodes        `booking` (what a pod takes), `table` and `counts` (how many fit), `topology` and `profiles`
                         (in which domains); of one gang `fit` (what it asks, and how many pods of it each node holds),
                         `packing` (one pod set), `mixed` (several at once) and `misfit` (why not)
    what was found out   `memos` of those who cannot go, and `shortage`, whether they still cannot
    what people read     `project`
"""
