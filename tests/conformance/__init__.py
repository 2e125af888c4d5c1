"""Replay of known answers: cases of another system's tables, as data, against the real engine.

A case file has API objects in and decisions out. `objects` turns the former into engine values (with the readers that
the controller uses), a *table* asks the public door of the module that the table is about and says what differs, and
`replay` counts. No rule lives here: a table only asks and compares.
"""
