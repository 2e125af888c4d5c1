"""A real control plane in one process tree, and what is checked on it.

`tools/` pins the binaries as Go modules, `build` makes them, `control_plane` starts them, `up` does so for a person,
`event_log` records every object version that the API server served, and `invariants` judges such a record.
"""
