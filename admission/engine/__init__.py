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

The words that all of these use:

    gang            the pods of one job, named by the job's Workload; it runs whole or not at all
    promises        Muster's own rules (Rules.promises), R1 to R12 in docs/fairness.md; without them, Kueue's rules
    root, tree      a cohort without a parent, or a queue without a cohort, and all queues below
    share           what a queue or cohort borrows, over what could be lent: the smaller share goes first
    charge          quota and nodes that a gang holds by its reservation, as the ledger has it
    claim           room that is kept for a gang until those who were evicted for it are gone; taken, for all others
    set aside       room that is kept for a gang that was passed over (waited too long as the first of its queue), and
                    for whom nobody is evicted: others may use it under conditions, where a claim binds everybody
    look, trial     working out what a gang would get if its turn were now, and whom it would evict; and the answer
    victim          a gang that is to be evicted for another; once it is evicted it is leaving, and holds its room until
                    its pods are gone
    line, bucket    the waiting gangs of a queue in their order; those of them that are alike, so that one answer does
                    for all
    parked, memo    a bucket that is not tried again before something changes on which the answer depends; that answer
    doubt           something has changed on which it may depend: a look at the book alone says whether it still holds.
                    If so the bucket is passed by: it stays parked, and the numbers in its memo are stale
    told            written to the Workload, where people read it
    step, budget    one trial; how many of them a decision may take. Time is not measured here
"""
