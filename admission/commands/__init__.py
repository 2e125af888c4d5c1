"""The commands of `muster`, by what they do to a cluster: `questions` read, `changes` write, `local` needs none.

Modules here import click and the standard library alone; what a command needs is imported when it runs, so that
`muster --help` and completion start at once. `options` says how every command is told which cluster, namespace and form
it is about, and how it ends.
"""
