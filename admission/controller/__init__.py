"""The shell around the engine; and what commands ask and change, with the rights of whoever runs them.

The first four rows run in the controller, the last where a command is run.

    one replica       `serve`, from start to end, by `setup`; `app`, its loops, with `pace` and `keyed`; `rival`
    what is seen      `decode` (slim values), `world` (folded into the engine's State), with `defaults`;
                      `silence` of all nodes and `standstill` of what creates pods, for which no gang is blamed
    what is done      `lifecycle` (which step is due) and `actuate` (its write), with `conditions`, `statuses`, `unmade`
                      and `unexplained`; `stale` and `queue_status` (of queues), `finalizers` (of what is in use);
                      paths of the API are in `resources`; `aggregate` registers the visibility API; `numbers` are
                      what metrics and pages show
    what holds jobs   `policies`, or `webhook` with `hooks` and `certificates`; `proof` that it does; `roles` are the
                      rights; `installation` has both
    what people ask   `ask` and `line`, for `answers` by `standing`, `unready`, `quotas` and `occupancy`; `whatif`;
                      what they change: `change`, `migrate` and `takeover`; on a terminal: `tell` and `printable`
"""
