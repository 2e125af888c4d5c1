"""The shell around the engine; and, with the rights of whoever asks, the answers to what people ask by command.

The first four rows run in the controller, the last where a command is typed.

    one replica       `serve`, from start to end, by `setup`; `app`, its loops, with `pace` and `keyed`; `rival`
    what is seen      `decode` (slim values), `world` (folded into the engine's State), with `defaults`;
                      `silence` of all nodes and `standstill` of who makes pods, for which no gang is blamed
    what is done      `lifecycle` (which step is due) and `actuate` (its write), with `conditions`, `statuses`, `unmade`
                      and `unexplained`; `stale` and `queue_status` (of queues), `finalizers` (of what is in use);
                      where: `resources`; `aggregate` makes the visibility API known; `numbers` are what is shown
                      of it all
    what holds jobs   `policies`, or `webhook` with `hooks` and `certificates`; `proof` that it does; with which
                      rights: `roles`; both, for one `installation`
    what people ask   `ask` and `line`, for `answers` by `standing`, `unready`, `quotas` and `occupancy`; `whatif`;
                      what they change: `change`, `migrate` and `takeover`; on a terminal: `tell` and `printable`
"""
